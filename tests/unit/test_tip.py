"""The end of the line: what a put's answer is taken for, what a sleeper believes, and who runs a lost race again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from omniray.engine.base.errors import FormatMismatch, InvariantViolation, OutcomeUnknown, StorageError
from omniray.engine.history.manifest import Manifest
from omniray.engine.line import line_end as tip_module
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import HINT, HINT_EVERY, CommitLog
from omniray.engine.line.commit_object import (
    EMBEDDED,
    FORMAT,
    CommitObject,
    Fate,
    Remark,
    change_owner,
    follow,
    follow_with,
)
from omniray.engine.line.line_end import EXTEND_TRIES_MAX, RETENTION_S, UNCLEAR_TIMEOUT_S, Tip
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import Clock
from tests.lines import BRANCH, birth, commit, recovery
from tests.stores import Root


@dataclass
class Putter:
    """One process at the end of the line."""

    store: ObjectStore
    log: CommitLog
    manifest: Manifest
    clock: Clock
    tip: Tip

    def next(self, number: int) -> CommitObject:
        """A commit after the newest object that this process knows."""
        newest = self.tip.newest
        return follow(newest, op_id=f"op-{number}", changed={}, commits=(commit(number),), finalised_through=0)

    def add(self, count: int) -> list[CommitObject]:
        """Put so many commits, each of which must land."""
        added = []
        for _ in range(count):
            added.append(self.next(self.tip.newest.seq + 1))
            assert self.tip.put(added[-1]) is Fate.LANDED
        return added

    def in_line(self) -> list[str]:
        newest = CommitLog(self.store, BRANCH).newest_listed()
        assert newest is not None
        return [obj.op_id for obj in reversed(CommitLog(self.store, BRANCH).down_to(newest, 1))]


OpenTip = Callable[[], Putter]


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    store = open_store(f"{disk.uri}/graph")
    CommitLog(store, BRANCH).put(birth())
    return store


@pytest.fixture
def opened(store: ObjectStore) -> OpenTip:
    """Opens the end of the line as one more process would, which has just read object 1."""

    def open_one() -> Putter:
        log, manifest, clock = CommitLog(store, BRANCH), Manifest(store, BRANCH), Clock()
        return Putter(
            store, log, manifest, clock, Tip(log, birth(), is_folded=manifest.is_folded, clock=clock, sleep=clock.sleep)
        )

    return open_one


# Following


def test_what_was_put_is_the_newest_and_others_find_it(opened: OpenTip) -> None:
    ours, other = opened(), opened()
    (second,) = ours.add(1)
    assert ours.tip.newest == second
    assert other.tip.newest == birth(), "nobody told it yet"
    assert other.tip.refresh() == other.tip.newest == second


def test_a_hint_is_left_for_readers_of_a_disk(opened: OpenTip, store: ObjectStore) -> None:
    opened().add(HINT_EVERY - 1)
    assert store.get(f"__commits/{BRANCH.ulid}/{HINT}") == str(HINT_EVERY).encode()


def test_a_loser_s_newest_stays_until_it_reads_the_line_again(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    fast.add(1)
    assert slow.tip.put(slow.next(20)) is Fate.LOST
    assert slow.tip.newest == birth()
    assert slow.tip.refresh().op_id == "op-2"


def test_who_was_fenced_can_tell_it_from_somebody_who_was_faster(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    assert fast.tip.put(change_owner(birth(), op_id="raise", owner="embedded")) is Fate.LANDED
    assert slow.tip.put(slow.next(20)) is Fate.FENCED


# Unclear answers


def answering(putter: Putter, *answers: Answer | Exception, apply: bool) -> None:
    """Puts give these answers, then true ones; with `apply` the first of them takes effect all the same."""
    put, script = putter.log.put, list(answers)

    def scripted(obj: CommitObject) -> Answer:
        if not script:
            return put(obj)
        if apply and len(script) == len(answers):
            CommitLog(putter.store, BRANCH).put(obj)
        answer = script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    putter.log.put = scripted  # type: ignore[method-assign]


def _unreadable(seq: int) -> CommitObject:
    raise StorageError("the store is down")


@pytest.mark.parametrize("apply", [True, False], ids=["it had landed", "it had not landed"])
def test_an_unclear_answer_is_cleared_up_by_reading_and_the_same_object_put_again(opened: OpenTip, apply: bool) -> None:
    putter = opened()
    answering(putter, Answer.UNCLEAR, Answer.UNCLEAR, apply=apply)
    assert putter.tip.put(putter.next(2)) is Fate.LANDED
    assert putter.in_line() == ["op-1", "op-2"]


def test_our_own_success_that_comes_back_as_a_refusal_is_a_success(opened: OpenTip) -> None:
    putter = opened()
    answering(putter, Answer.REFUSED, apply=True)
    assert putter.tip.put(putter.next(2)) is Fate.LANDED
    assert putter.tip.newest.op_id == "op-2"


def test_an_unclear_answer_to_a_put_that_lost_is_a_loss(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    fast.add(1)
    answering(slow, Answer.UNCLEAR, apply=False)
    assert slow.tip.put(slow.next(20)) is Fate.LOST


def test_a_clear_refusal_of_the_first_put_is_told_at_once(opened: OpenTip) -> None:
    putter = opened()
    answering(putter, StorageError("access denied"), apply=False)
    with pytest.raises(StorageError, match="access denied") as refusal:
        putter.tip.put(putter.next(2))
    assert not isinstance(refusal.value, OutcomeUnknown)
    assert putter.clock.slept_s == []


def test_a_refusal_that_hides_a_success_is_a_success(opened: OpenTip) -> None:
    """The SDK lost the answer, tried again with a token that had expired, and told of the second try alone."""
    putter = opened()
    answering(putter, StorageError("the session token has expired"), apply=True)
    assert putter.tip.put(putter.next(2)) is Fate.LANDED


def test_a_refusal_behind_which_nobody_can_look_is_an_unknown_outcome(
    opened: OpenTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    putter = opened()
    answering(putter, StorageError("the session token has expired"), apply=True)
    monkeypatch.setattr(putter.log, "read", _unreadable)
    with pytest.raises(OutcomeUnknown):
        putter.tip.put(putter.next(2))


def test_a_clear_refusal_after_an_unclear_answer_clears_nothing_up(opened: OpenTip) -> None:
    putter = opened()
    answering(putter, Answer.UNCLEAR, StorageError("access denied"), apply=False)
    assert putter.tip.put(putter.next(2)) is Fate.LANDED
    assert putter.in_line() == ["op-1", "op-2"]


@pytest.mark.parametrize("apply", [True, False], ids=["it had landed", "it had not landed"])
def test_an_answer_that_stays_unclear_is_an_unknown_outcome_that_names_the_commit(
    opened: OpenTip, monkeypatch: pytest.MonkeyPatch, apply: bool
) -> None:
    putter = opened()
    answering(putter, *[Answer.UNCLEAR] * 1000, apply=apply)
    monkeypatch.setattr(putter.log, "read", _unreadable)
    with pytest.raises(OutcomeUnknown, match=r"graph\.outcome") as unknown:
        putter.tip.put(putter.next(2))
    assert unknown.value.facts == {"txn_id": "commit-000002"}
    assert UNCLEAR_TIMEOUT_S <= putter.clock.now_s < UNCLEAR_TIMEOUT_S + 5
    assert putter.tip.newest == birth()


def test_an_object_without_commits_whose_answer_stays_unclear_is_named_by_its_operation(
    opened: OpenTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    putter = opened()
    answering(putter, *[Answer.UNCLEAR] * 1000, apply=False)
    monkeypatch.setattr(putter.log, "read", _unreadable)
    with pytest.raises(OutcomeUnknown) as unknown:
        putter.tip.put(follow_with(birth(), Remark("remark")))
    assert unknown.value.facts == {"txn_id": "remark"}


def test_an_object_of_a_newer_format_at_our_number_stops_the_putter(opened: OpenTip, store: ObjectStore) -> None:
    putter = opened()
    store.put(putter.log.path(2), encode(replace(putter.next(9), format=FORMAT + 1)))
    with pytest.raises(FormatMismatch, match="upgrade omniray"):
        putter.tip.put(putter.next(2))
    assert putter.clock.slept_s == []


# Sleepers


def prune(store: ObjectStore, through: int) -> None:
    log = CommitLog(store, BRANCH)
    for seq in range(1, through + 1):
        store.delete(log.path(seq))


def slept(opened: OpenTip, store: ObjectStore) -> Putter:
    """One that knows only object 1, which was folded and pruned with those after it while others put some."""
    sleeper, others = opened(), opened()
    others.manifest.fold([birth(), *others.add(5)], named_through=6)
    prune(store, 4)
    sleeper.clock.now_s += RETENTION_S
    return sleeper


def test_a_sleeper_does_not_believe_a_put_of_a_number_that_was_pruned(opened: OpenTip, store: ObjectStore) -> None:
    sleeper = slept(opened, store)
    ours = sleeper.next(20)
    assert sleeper.tip.put(ours) is Fate.LOST
    assert CommitLog(store, BRANCH).read(2) == ours, "the store has it, beside the line"
    assert sleeper.tip.refresh().op_id == "op-6"
    assert sleeper.tip.put(sleeper.next(20)) is Fate.LANDED


def test_the_sleeper_s_test_can_fail(opened: OpenTip, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: one that believes its put answers 'landed' for an object that is not in the line."""
    monkeypatch.setattr(tip_module, "believable", lambda elapsed_s, retention_s: True)
    sleeper = slept(opened, store)
    assert sleeper.tip.put(sleeper.next(20)) is Fate.LANDED
    assert "op-20" not in sleeper.in_line()


def test_a_sleeper_that_slept_before_it_read_goes_by_the_listing(opened: OpenTip, store: ObjectStore) -> None:
    """Nothing seems to follow the object that it knows, since that was pruned with its successors."""
    assert slept(opened, store).tip.refresh().op_id == "op-6"


def test_a_sleeper_whose_put_is_in_the_line_is_answered_so(opened: OpenTip) -> None:
    sleeper = opened()
    sleeper.clock.now_s += RETENTION_S
    assert sleeper.tip.put(sleeper.next(2)) is Fate.LANDED


def asleep_after_its_put(sleeper: Putter, meanwhile: Callable[[CommitObject], object]) -> None:
    """Its put takes effect at once, but the answer is read long after."""
    put = sleeper.log.put

    def late(obj: CommitObject) -> Answer:
        answer = put(obj)
        sleeper.clock.now_s += RETENTION_S
        meanwhile(obj)
        return answer

    sleeper.log.put = late  # type: ignore[method-assign]


def test_a_sleeper_whose_commit_was_folded_and_pruned_meanwhile_finds_it_in_the_lineage(
    opened: OpenTip, store: ObjectStore
) -> None:
    sleeper, others = opened(), opened()

    def others_go_on(landed: CommitObject) -> None:
        others.tip.refresh()
        others.manifest.fold([birth(), landed, *others.add(3)], named_through=5)
        prune(store, 4)

    asleep_after_its_put(sleeper, others_go_on)
    assert sleeper.tip.put(sleeper.next(2)) is Fate.LANDED


def test_a_sleeper_s_object_without_commits_that_can_t_be_found_any_more_is_to_be_said_again(
    opened: OpenTip, store: ObjectStore
) -> None:
    sleeper, others = opened(), opened()

    def others_go_on(_: CommitObject) -> None:
        others.tip.refresh()
        others.add(3)
        prune(store, 4)

    asleep_after_its_put(sleeper, others_go_on)
    assert sleeper.tip.put(follow_with(birth(), Remark("remark"))) is Fate.LOST


def test_a_sleeper_that_can_t_read_the_line_does_not_know_what_became_of_its_put(
    opened: OpenTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down() -> CommitObject:
        raise StorageError("the store is down")

    sleeper = opened()
    asleep_after_its_put(sleeper, lambda _: monkeypatch.setattr(sleeper.log, "newest_listed", down))
    with pytest.raises(OutcomeUnknown):
        sleeper.tip.put(sleeper.next(2))


# Extending


def test_what_is_extended_is_built_anew_on_top_of_whoever_was_faster(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    built_on: list[str] = []

    def build(newest: CommitObject) -> CommitObject:
        built_on.append(newest.op_id)
        if len(built_on) <= 2:
            fast.tip.refresh()
            fast.add(1)
        return follow_with(newest, Remark("remark"))

    landed = slow.tip.extend(build)
    assert built_on == ["op-1", "op-2", "op-3"]
    assert slow.in_line() == [*built_on, "remark"]
    assert landed == slow.tip.newest


def test_where_nothing_is_built_nothing_is_put(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    fast.add(1)
    assert slow.tip.extend(lambda newest: None) is None
    assert slow.tip.newest.op_id == "op-2", "the line was read"
    assert slow.in_line() == ["op-1", "op-2"]


def test_who_loses_every_race_gives_up(opened: OpenTip) -> None:
    slow, fast = opened(), opened()

    def always_late(newest: CommitObject) -> CommitObject:
        fast.tip.refresh()
        fast.add(1)
        return follow_with(newest, Remark("remark"))

    with pytest.raises(StorageError, match=f"lost {EXTEND_TRIES_MAX} races"):
        slow.tip.extend(always_late)
    assert "remark" not in slow.in_line()


def test_what_may_be_said_again_and_gets_no_clear_answer_has_failed_and_names_no_transaction(
    opened: OpenTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller whose write only came upon a recovery would look for an id that is nobody's."""
    monkeypatch.setattr("omniray.engine.line.line_end.UNCLEAR_TIMEOUT_S", 0.0)
    monkeypatch.setattr(CommitLog, "put", lambda self, obj: Answer.UNCLEAR)
    with pytest.raises(StorageError, match="changes no table; try again") as refused:
        opened().tip.extend(lambda newest: follow_with(newest, Remark("remark")))
    assert not isinstance(refused.value, OutcomeUnknown)


def test_an_object_that_may_not_follow_is_not_put(opened: OpenTip) -> None:
    process = opened()
    stranger = replace(follow_with(process.tip.newest, Remark("stranger")), owner="somebody else")
    with pytest.raises(InvariantViolation, match="a bug in omniray"):
        process.tip.put(stranger)
    assert process.in_line() == ["op-1"]


# Recording and raising


def test_a_remark_is_made_anew_of_whoever_was_faster_and_recorded_once(opened: OpenTip) -> None:
    slow, fast = opened(), opened()
    built_on: list[str] = []

    def build(newest: CommitObject) -> Remark:
        built_on.append(newest.op_id)
        if len(built_on) == 1:
            fast.tip.refresh()
            fast.add(1)
        return Remark("remark", recoveries=(recovery("op-0"),), withdrawn=(newest.op_id,))

    landed = slow.tip.record(build)
    assert landed is not None
    assert (landed, landed.seq) == (slow.tip.newest, 3)
    assert (landed.recoveries, landed.withdrawn) == ((recovery("op-0"),), ("op-2",))
    assert slow.in_line() == ["op-1", "op-2", "remark"]


def test_where_there_is_nothing_to_remark_nothing_is_put(opened: OpenTip) -> None:
    process = opened()
    assert process.tip.record(lambda newest: None) is None
    assert process.in_line() == ["op-1"]


@pytest.mark.parametrize(
    ("above", "owner", "epoch"),
    [
        pytest.param(1, EMBEDDED, 2, id="begun in this epoch"),
        pytest.param(0, EMBEDDED, 1, id="begun in an older epoch, so fenced already"),
        pytest.param(1, "coordinator-1", 1, id="somebody else's line"),
    ],
)
def test_an_epoch_is_raised_by_its_owner_and_only_where_something_is_to_be_fenced(
    opened: OpenTip, above: int, owner: str, epoch: int
) -> None:
    process = opened()
    process.tip.raise_epoch(above, owner)
    newest = CommitLog(process.store, BRANCH).newest_listed()
    assert newest is not None
    assert (newest.epoch, newest.owner, newest.seq) == (epoch, EMBEDDED, epoch)
