"""The writer: who loses, who is asked again, and what becomes of a write whose answer is lost."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest

from omniray.engine.base.errors import (
    ConstraintViolation,
    ExpectedVersionMismatch,
    FormatMismatch,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    StorageError,
    TableDrift,
)
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.line import line_end as tip_module
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, FORMAT, CommitObject, Remark, follow
from omniray.engine.line.line_end import RETENTION_S, UNCLEAR_TIMEOUT_S, Tip
from omniray.engine.line.owner import take_over
from omniray.engine.line.sidecar import Sidecar
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.writer import COMMIT_TIMEOUT_S
from tests.foreign import plain_ids
from tests.graphs import CITY, PERSON, Adding, Parts, files_below, parts_of
from tests.lines import answering, unreadable


@pytest.fixture
def opened(store: ObjectStore) -> Iterator[Callable[[], Parts]]:
    """Opens the graph as one more process would."""
    found: list[Parts] = []

    def open_one() -> Parts:
        found.append(parts_of(store))
        return found[-1]

    yield open_one
    for parts in found:
        with contextlib.suppress(OmnirayError):  # the test may have left something that can't be finished
            parts.close()


def add(parts: Parts, *names: str, **more: Any) -> Adding:
    intent = Adding(parts.schema, {PERSON: list(names)}, **more)
    parts.writer.commit(intent)
    return intent


def staged_in(store: ObjectStore) -> list[str]:
    """Data files and versions of Person that have no final name."""
    return [p for p in files_below(f"{store.uri}/nodes/Person.lance") if p.startswith(("data/", "_staged/"))]


# Losers


def test_a_loser_that_is_not_strict_lands_on_top_of_the_winner(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    first = add(fast, "ann")
    second = add(slow, "bob")
    assert slow.rows() == fast.rows() == ["ann", "bob"]
    assert slow.commit_ids() == [first.commit_id, second.commit_id]
    assert [judged[PERSON] for judged in second.judged] == [1, 2]


def test_a_loser_that_is_strict_fails_with_the_version_that_it_read(opened: Callable[[], Parts]) -> None:
    """It reads the newest state first, so only somebody who comes between its reading and its put can beat it."""
    slow, fast = opened(), opened()

    def overtake(state: PinnedState) -> None:
        if not fast.commit_ids():
            add(fast, "ann")

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        add(slow, "bob", strict=True, strictly=frozenset({PERSON}), refuse=overtake)
    assert refusal.value.facts == {"table_key": PERSON, "expected": 1, "actual": 2}
    assert slow.rows() == ["ann"]


def test_a_strict_write_begins_with_the_newest_state(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    intent = add(slow, "bob", strict=True, strictly=frozenset({PERSON}))
    assert intent.judged == [{PERSON: 2, CITY: 1}]


def test_of_strict_writers_at_once_exactly_one_wins(opened: Callable[[], Parts]) -> None:
    writers = [opened() for _ in range(4)]
    barrier = threading.Barrier(len(writers))
    answers: list[Exception | None] = []

    def write(number: int) -> None:
        barrier.wait()
        try:
            add(writers[number], f"{number}", expected_versions={PERSON: 1})
            answers.append(None)
        except ExpectedVersionMismatch as refusal:
            answers.append(refusal)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert answers.count(None) == 1
    assert len(writers[0].rows()) == 1


def test_a_loser_s_files_and_staged_versions_are_deleted(opened: Callable[[], Parts], store: ObjectStore) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    fast.finaliser.flush()
    before = set(files_below(f"{store.uri}/nodes/Person.lance"))
    with pytest.raises(ExpectedVersionMismatch):
        _overtaken(slow, lambda: add(fast, "bob"))
    fast.finaliser.close()
    left = set(files_below(f"{store.uri}/nodes/Person.lance")) - before
    assert len([path for path in left if path.startswith("data/")]) == 1, "the winner's data alone"
    assert [path for path in left if path.startswith("_staged/")] == []


def _overtaken(parts: Parts, meanwhile: Callable[[], object]) -> None:
    """A strict write that is beaten just before its put."""
    put = parts.log.put

    def late(obj: CommitObject) -> Answer:
        meanwhile()
        return put(obj)

    parts.log.put = late  # type: ignore[method-assign]
    add(parts, "loser", strict=True, strictly=frozenset({PERSON}))


def test_a_loser_does_not_read_its_own_lost_rows_under_the_winner_s_number(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    with pytest.raises(ExpectedVersionMismatch):
        _overtaken(slow, lambda: add(fast, "winner"))
    assert slow.newest().pins[PERSON].version == 2
    assert slow.rows() == ["winner"]


def test_a_verdict_stands_when_only_other_tables_moved(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    fast.writer.commit(Adding(fast.schema, {CITY: ["rome"]}))
    intent = add(slow, "ann")
    assert intent.judged == [{PERSON: 1, CITY: 1}], "the judge was not called again"
    assert (slow.rows(), slow.rows(CITY)) == (["ann"], ["rome"])


def test_a_verdict_falls_when_a_table_that_it_consulted_moved(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    fast.writer.commit(Adding(fast.schema, {CITY: ["rome"]}))
    intent = add(slow, "ann", consults=(CITY,))
    assert intent.judged == [{PERSON: 1, CITY: 1}, {PERSON: 1, CITY: 2}]


def test_a_loser_waits_longer_from_loss_to_loss_and_gives_up_in_the_end(opened: Callable[[], Parts]) -> None:
    parts, fast = opened(), opened()
    put = parts.log.put

    def always_late(obj: CommitObject) -> Answer:
        parts.clock.now_s += 20
        fast.writer.commit(Adding(fast.schema, {CITY: [f"{obj.seq}"]}))
        return put(obj)

    parts.log.put = always_late  # type: ignore[method-assign]
    with pytest.raises(OmnirayError, match=r"lost every race.*was not applied"):
        add(parts, "ann")
    assert parts.clock.now_s < COMMIT_TIMEOUT_S + 60
    assert parts.rows() == []


def test_a_writer_that_was_suspended_while_it_lost_tries_again(opened: Callable[[], Parts]) -> None:
    parts, fast = opened(), opened()
    put, names = parts.log.put, iter(["rome"])

    def late_once(obj: CommitObject) -> Answer:
        for name in names:
            parts.clock.now_s += 2 * COMMIT_TIMEOUT_S
            fast.writer.commit(Adding(fast.schema, {CITY: [name]}))
        return put(obj)

    parts.log.put = late_once  # type: ignore[method-assign]
    add(parts, "ann")
    assert (parts.rows(), parts.rows(CITY)) == (["ann"], ["rome"])


# Refusals


def _refuse_before(version: int) -> Callable[[PinnedState], Exception | None]:
    return lambda state: ConstraintViolation("no") if state.version(PERSON) < version else None


def test_a_refusal_judged_on_an_old_state_is_judged_again_on_the_newest(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    intent = add(slow, "bob", refuse=_refuse_before(2))
    assert [judged[PERSON] for judged in intent.judged] == [1, 2]
    assert slow.rows() == ["ann", "bob"]


def test_a_refusal_judged_on_the_newest_state_leaves_and_nothing_is_written(
    opened: Callable[[], Parts], store: ObjectStore
) -> None:
    parts = opened()
    before = files_below(store.uri)
    with pytest.raises(ConstraintViolation):
        add(parts, "bob", refuse=_refuse_before(99))
    assert files_below(store.uri) == before


def test_no_effect_commits_nothing(opened: Callable[[], Parts], store: ObjectStore) -> None:
    parts = opened()
    before = files_below(store.uri)
    result = parts.writer.commit(Adding(parts.schema, {PERSON: []}))
    assert (result.commit_id, result.affected_nodes) == (None, 0)
    assert files_below(store.uri) == before


def test_no_effect_is_answered_only_on_the_newest_state(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    intent = Adding(slow.schema, {PERSON: []}, consults=(PERSON,))
    slow.writer.commit(intent)
    assert [judged[PERSON] for judged in intent.judged] == [1, 2]


# Expected versions


def test_a_write_that_expects_what_is_there_lands(opened: Callable[[], Parts]) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    add(slow, "bob", expected_versions={PERSON: 2, CITY: 1})
    assert slow.rows() == ["ann", "bob"]


@pytest.mark.parametrize("expected", [1, 3])
def test_a_write_that_expects_another_version_fails_with_both(opened: Callable[[], Parts], expected: int) -> None:
    slow, fast = opened(), opened()
    add(fast, "ann")
    with pytest.raises(ExpectedVersionMismatch) as refusal:
        add(slow, "bob", expected_versions={PERSON: expected})
    assert refusal.value.facts == {"table_key": PERSON, "expected": expected, "actual": 2}


def test_a_version_of_an_unknown_table_is_not_found(opened: Callable[[], Parts]) -> None:
    with pytest.raises(NotFound, match=r"no table 'node:Nobody'.*node:Person"):
        add(opened(), "bob", expected_versions={"node:Nobody": 1})


# Raised epochs


def raise_epoch(parts: Parts) -> None:
    """What a recovery does before it discards anything."""
    take_over(
        Tip(CommitLog(parts.store, parts.log.branch), parts.newest(), is_folded=parts.manifest.is_folded), EMBEDDED
    )


def test_a_writer_whose_line_was_raised_before_its_put_rejoins_and_its_caller_notices_nothing(
    opened: Callable[[], Parts],
) -> None:
    parts = opened()
    raise_epoch(parts)
    intent = add(parts, "ann")
    assert (parts.rows(), parts.newest().epoch) == (["ann"], 2)
    assert parts.commit_ids() == [intent.commit_id]
    assert len(intent.judged) == 1, "no table has moved"


def test_a_writer_that_is_fenced_between_its_staging_and_its_put_begins_a_new_operation(
    opened: Callable[[], Parts],
) -> None:
    """What the fenced attempt had announced may be recorded as rolled back: its id must not come again."""
    parts, other = opened(), opened()
    attempts: list[str] = []
    put = parts.log.put

    def fenced_once(obj: CommitObject) -> Answer:
        attempts.append(obj.op_id)
        if len(attempts) == 1:
            assert parts.sidecars.listed() == attempts, "the sidecar is there before the put"
            raise_epoch(other)
        return put(obj)

    parts.log.put = fenced_once  # type: ignore[method-assign]
    add(parts, "ann")
    assert len(set(attempts)) == 2
    assert [obj.op_id for obj in parts.line()][2:] == attempts[1:]
    assert parts.sidecars.listed() == attempts[1:], "the lost attempt's own sidecar is gone"


# Foreign writers and other formats


def test_a_foreign_commit_stops_the_write_and_names_repair(opened: Callable[[], Parts], store: ObjectStore) -> None:
    parts = opened()
    uri = f"{store.uri}/nodes/Person.lance"
    before = files_below(f"{store.uri}/__commits")
    lance.write_dataset(lance.dataset(uri).to_table(), uri, mode="append")
    data = files_below(f"{uri}/data")
    with pytest.raises(TableDrift, match="'omniray repair' shows") as drift:
        add(parts, "ann")
    assert drift.value.facts == {"table_key": PERSON, "expected": 2}
    assert files_below(f"{store.uri}/__commits") == before
    assert files_below(f"{uri}/data") == data, "what the attempt staged is deleted"


def test_tables_that_nobody_touched_take_writes_beside_one_that_drifted(
    opened: Callable[[], Parts], store: ObjectStore
) -> None:
    uri = f"{store.uri}/nodes/Person.lance"
    lance.write_dataset(lance.dataset(uri).to_table(), uri, mode="append")
    parts = opened()
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    assert parts.rows(CITY) == ["rome"]


def test_a_writer_that_meets_a_newer_format_stops(opened: Callable[[], Parts], store: ObjectStore) -> None:
    parts = opened()
    newer = replace(follow(parts.newest(), op_id="op", changed={}, commits=(), finalised_through=0), format=FORMAT + 1)
    store.put(parts.log.path(2), encode(newer))
    with pytest.raises(FormatMismatch, match="upgrade omniray"):
        add(parts, "ann")
    assert parts.clock.slept_s == []


# Sidecars


def test_a_writer_whose_mirrors_were_deleted_commits_nothing_that_is_not_in_the_table(
    opened: Callable[[], Parts], store: ObjectStore
) -> None:
    """Lance makes a folder that is gone anew, without the links to the table: its files would end up there."""
    parts = opened()
    add(parts, "a")
    mirror = parts.cache.open(PERSON, parts.newest().pins[PERSON]).mirror
    shutil.rmtree(mirror.folder.path)
    with pytest.raises(StorageError, match="is not there; nothing was written"):
        add(parts, "b")
    add(parts, "c")
    parts.finaliser.flush()
    assert plain_ids(store) == ["a", "c"]


def test_a_write_whose_sidecar_can_t_be_put_aborts_and_leaves_nothing(
    opened: Callable[[], Parts], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase C starts only after the sidecar's put is confirmed."""

    def down(sidecar: Sidecar) -> None:
        raise StorageError("the store is down")

    parts = opened()
    with monkeypatch.context() as patch:
        patch.setattr(parts.sidecars, "put", down)
        with pytest.raises(StorageError, match="the store is down"):
            add(parts, "ann")
    assert [obj.seq for obj in parts.line()] == [1]
    assert staged_in(store) == []
    add(parts, "ann")
    assert parts.rows() == ["ann"]


# Unclear answers


@pytest.mark.parametrize("apply", [True, False], ids=["it had landed", "it had not landed"])
def test_an_unclear_answer_is_cleared_up_by_reading_and_the_write_lands_once(
    opened: Callable[[], Parts], apply: bool
) -> None:
    parts = opened()
    answering(parts.log, Answer.UNCLEAR, Answer.UNCLEAR, apply=apply)
    intent = add(parts, "ann")
    assert parts.rows() == ["ann"]
    assert parts.commit_ids() == [intent.commit_id]
    assert len(intent.judged) == 1


@pytest.mark.parametrize("apply", [True, False], ids=["it had landed", "it had not landed"])
def test_an_answer_that_stays_unclear_is_an_unknown_outcome_with_its_id_and_nothing_is_discarded(
    opened: Callable[[], Parts], store: ObjectStore, monkeypatch: pytest.MonkeyPatch, apply: bool
) -> None:
    parts = opened()
    answering(parts.log, *[Answer.UNCLEAR] * 1000, apply=apply)
    intent = Adding(parts.schema, {PERSON: ["ann"]})
    with monkeypatch.context() as patch:
        patch.setattr(parts.log, "read", unreadable)
        with pytest.raises(OutcomeUnknown) as unknown:
            parts.writer.commit(intent)
    assert unknown.value.facts == {"txn_id": intent.commit_id}
    assert UNCLEAR_TIMEOUT_S <= parts.clock.now_s < UNCLEAR_TIMEOUT_S + 5
    assert len(parts.sidecars.listed()) == 1
    assert staged_in(store) != []
    other = opened()
    add(other, "bob")
    assert other.rows() == (["ann", "bob"] if apply else ["bob"])


# Sleepers


def prune(parts: Parts, through: int) -> None:
    for seq in range(1, through + 1):
        parts.store.delete(parts.log.path(seq))


def slept(opened: Callable[[], Parts]) -> Parts:
    """A writer that knows only object 1, which was pruned with those after it while others wrote."""
    sleeper, others = opened(), opened()
    for number in range(5):
        add(others, f"{number}")
    others.finaliser.flush()
    prune(others, 4)
    sleeper.clock.now_s += RETENTION_S
    return sleeper


@pytest.mark.parametrize("table_key", [PERSON, CITY], ids=["the table moved", "the table did not move"])
def test_a_sleeper_does_not_believe_a_put_of_a_number_that_was_pruned(
    opened: Callable[[], Parts], table_key: str
) -> None:
    """Its put succeeds beside the line. It must notice, go by the newest object, and land there."""
    sleeper = slept(opened)
    intent = Adding(sleeper.schema, {table_key: ["late"]})
    sleeper.writer.commit(intent)
    fresh = opened()
    assert fresh.newest().seq == 7
    assert [c.commit_id for c in fresh.newest().commits] == [intent.commit_id]
    assert "late" in fresh.rows(table_key)


def test_the_sleeper_s_test_can_fail(opened: Callable[[], Parts], monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a sleeper that believes its put answers 'committed' for a write that is not in the line."""
    monkeypatch.setattr(tip_module, "believable", lambda elapsed_s, retention_s: True)
    sleeper = slept(opened)
    sleeper.writer.commit(Adding(sleeper.schema, {CITY: ["late"]}))
    assert opened().rows(CITY) == []


# Threads


def test_threads_share_a_writer_and_each_write_lands_once(opened: Callable[[], Parts]) -> None:
    parts = opened()
    names = [f"{n:02}" for n in range(16)]
    threads = [threading.Thread(target=add, args=(parts, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parts.rows() == names
    assert [obj.seq for obj in parts.line()] == list(range(1, 18))


def test_a_write_over_several_tables_is_one_object(opened: Callable[[], Parts]) -> None:
    parts = opened()
    result = parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"], CITY: ["rome"]}))
    newest = parts.newest()
    assert (newest.seq, set(newest.introduced())) == (2, {PERSON, CITY})
    assert result.versions == {PERSON: 2, CITY: 2}
    assert newest.commits[0].tables == (CITY, PERSON)
    assert newest.commits[0].actor == "ann"


def test_the_history_does_not_go_back_in_time_when_a_clock_does(
    opened: Callable[[], Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = opened()
    add(parts, "ann")
    monkeypatch.setattr("omniray.engine.commit.attempt.time.time_ns", lambda: 0)
    add(parts, "bob")
    newest = parts.newest()
    before = parts.log.read(newest.seq - 1)
    assert before is not None
    assert newest.commits[0].at_us >= before.commits[0].at_us > 0


def test_the_history_does_not_go_back_in_time_behind_an_object_without_commits(
    opened: Callable[[], Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = opened()
    add(parts, "ann")
    before = parts.newest().commits[0].at_us
    parts.tip.record(lambda newest: Remark("remark"))
    monkeypatch.setattr("omniray.engine.commit.attempt.time.time_ns", lambda: 0)
    add(parts, "bob")
    assert parts.newest().commits[0].at_us >= before


def test_the_ids_of_a_table_that_grew_too_large_are_no_longer_kept(
    opened: Callable[[], Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniray.engine.tables.cache.KNOWN_IDS_ROWS_MAX", 3)
    parts = opened()
    for n in range(6):
        state = PinnedState(parts.cache, parts.newest())
        state.existing(PERSON, pa.array([f"p{n}"]))
        add(parts, f"p{n}")
    assert parts.cache._known == {}
