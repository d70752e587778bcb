"""Who may extend a line: what a take-over fences, who is told where to write, and how the line comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omniray.engine.base.errors import Fenced, InvariantViolation, LineOwned, OutcomeUnknown, StorageError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, unlawful
from omniray.engine.line.owner import Incarnation, is_owner_known_dead, refuse_stranger, release, take_over
from omniray.engine.store.object_store import Answer, ObjectStore
from tests.graphs import INSERT, PERSON, Adding, Parts, files_below, insert, main_of, people
from tests.healing import everybody_is_dead, left_by, outcomes, recovered, wounds
from tests.kit.mortal import crash

A, B = (str(Incarnation.new(f"ray://{name}:6379")) for name in "ab")
DEAD_ON_THIS_MACHINE = str(Incarnation(new_ulid(), replace(this_process(), started="long ago"), "ray://gone:6379"))
ON_ANOTHER_MACHINE = str(Incarnation(new_ulid(), Process("elsewhere", 1, "long ago"), "ray://away:6379"))


@pytest.fixture
def opened(opened: Callable[..., Parts]) -> Callable[..., Parts]:
    """Opens the graph as one more process, for an owner."""
    return lambda owner=EMBEDDED: opened(owner=owner, is_dead=lambda sidecar: False)


def owned_by(opened: Callable[..., Parts], owner: str) -> Parts:
    """A coordinator that has taken the line over."""
    parts = opened(owner)
    take_over(parts.tip, owner)
    return parts


def write(parts: Parts, name: str, **more: Any) -> Adding:
    intent = Adding(parts.schema, {PERSON: [name]}, **more)
    parts.writer.commit(intent)
    return intent


def owners(parts: Parts) -> list[tuple[int, str]]:
    """Epoch and owner of every object, oldest first."""
    return [(obj.epoch, obj.owner) for obj in parts.line()]


# Incarnations


@pytest.mark.parametrize("address", ["ray://host:6379", "", "http://[::1]:80/a|b", "ß"])
def test_an_incarnation_comes_back_from_its_text(address: str) -> None:
    one = Incarnation.new(address)
    assert Incarnation.parse(str(one)) == one
    assert str(one) != EMBEDDED


@pytest.mark.parametrize("owner", ["", "coordinator", "a|b|c|d", "ulid|host|pid|started|address", "|" * 4, "x" * 900])
def test_an_owner_that_can_t_be_read_is_a_clear_error_that_says_what_to_do(owner: str) -> None:
    with pytest.raises(InvariantViolation, match=r"the line's owner .* can't be read.*recover --take-over") as refusal:
        Incarnation.parse(owner)
    assert len(refusal.value.message) < 300


def test_a_line_whose_owner_can_t_be_read_refuses_writes_and_is_handed_back_on_demand(
    opened: Callable[..., Parts],
) -> None:
    embedded = opened()
    take_over(opened().tip, "somebody")
    with pytest.raises(InvariantViolation, match="'somebody' can't be read"):
        write(embedded, "ann")
    embedded.writer.recover(take_over=True)
    write(embedded, "ann")
    assert embedded.rows() == ["ann"]


def test_two_lives_of_one_coordinator_are_two_owners() -> None:
    assert str(Incarnation.new("ray://here")) != str(Incarnation.new("ray://here"))


@pytest.mark.parametrize(
    ("owner", "dead"),
    [(EMBEDDED, False), (A, False), (DEAD_ON_THIS_MACHINE, True), (ON_ANOTHER_MACHINE, False)],
    ids=["embedded", "alive", "dead on this machine", "on another machine"],
)
def test_only_an_owner_whose_process_ended_on_this_machine_is_known_to_be_dead(owner: str, dead: bool) -> None:
    assert is_owner_known_dead(owner) is dead


# Changes of owner


def test_a_take_over_is_an_object_of_its_own_with_the_next_epoch_and_changes_nothing_else(
    opened: Callable[..., Parts],
) -> None:
    parts = opened()
    write(parts, "ann")
    parts.finaliser.flush()
    write(parts, "bob")
    before = parts.newest()
    taken = take_over(opened(A).tip, A)
    assert unlawful(before, taken) is None
    assert (taken.epoch, taken.owner, taken.commits) == (before.epoch + 1, A, ())
    assert (taken.pins, taken.head) == (before.pins, before.head)
    assert taken.finalised_through == before.finalised_through > 0
    assert parts.newest() == taken


def test_of_two_that_take_over_at_once_each_has_an_epoch_of_its_own_and_the_later_one_owns_the_line(
    opened: Callable[..., Parts],
) -> None:
    slow, fast = opened(A), opened(B)
    with armed({Point.OWNER_BEFORE_PUT: Action(lambda: take_over(fast.tip, B), nth=1)}):
        take_over(slow.tip, A)
    assert owners(slow) == [(1, EMBEDDED), (2, B), (3, A)]


def test_a_release_hands_the_line_to_everybody(opened: Callable[..., Parts]) -> None:
    coordinator, embedded = owned_by(opened, A), opened()
    write(coordinator, "ann")
    release(coordinator.tip, A)
    write(embedded, "bob")
    assert embedded.rows() == ["ann", "bob"]
    assert owners(embedded) == [(1, EMBEDDED), (2, A), (2, A), (3, EMBEDDED), (3, EMBEDDED)]


def test_a_release_does_not_take_the_line_from_a_successor(opened: Callable[..., Parts]) -> None:
    first, second = owned_by(opened, A), owned_by(opened, B)
    release(first.tip, A)
    assert owners(first) == [(1, EMBEDDED), (2, A), (3, B)]
    write(second, "ann")


def test_a_release_that_a_successor_overtakes_leaves_the_line_to_it(opened: Callable[..., Parts]) -> None:
    first, second = owned_by(opened, A), opened(B)
    put = first.log.put

    def late(obj: CommitObject) -> Answer:
        first.log.put = put  # type: ignore[method-assign]
        take_over(second.tip, B)
        return put(obj)

    first.log.put = late  # type: ignore[method-assign]
    release(first.tip, A)
    assert owners(first) == [(1, EMBEDDED), (2, A), (3, B)]


@pytest.mark.parametrize(("point", "taken"), [(Point.OWNER_BEFORE_PUT, False), (Point.OWNER_AFTER_PUT, True)])
def test_a_take_over_that_is_killed_has_happened_or_not_and_the_next_writer_goes_on(
    opened: Callable[..., Parts], store: ObjectStore, point: Point, taken: bool
) -> None:
    owner = DEAD_ON_THIS_MACHINE
    crash(store, point, lambda parts: take_over(parts.tip, owner), owner=owner)
    parts = opened()
    assert (parts.newest().owner == owner) is taken
    write(parts, "ann")
    assert parts.rows() == ["ann"]
    assert parts.newest().owner == EMBEDDED


# Embedded writers beside a coordinator


def test_an_embedded_writer_is_told_where_to_write_and_leaves_nothing(
    opened: Callable[..., Parts], store: ObjectStore
) -> None:
    embedded = opened()
    owned_by(opened, A)
    with pytest.raises(LineOwned, match=r"omniray\.connect\(uri\).*'omniray recover --take-over'") as refusal:
        write(embedded, "ann")
    assert "ray://" not in str(refusal.value), "nobody writes there"
    assert refusal.value.facts == {"owner": A, "address": "ray://a:6379", "epoch": 2}
    assert [path for path in files_below(f"{store.uri}/nodes") if "/_staged/" in path or "/data/" in path] == []
    assert embedded.sidecars.listed() == []
    assert embedded.rows() == []


def test_an_embedded_writer_that_has_staged_when_a_coordinator_takes_over_commits_nothing(
    opened: Callable[..., Parts],
) -> None:
    embedded, coordinator = opened(), opened(A)
    with (
        armed({Point.C_BEFORE_PUT: Action(lambda: take_over(coordinator.tip, A), nth=1)}),
        pytest.raises(LineOwned),
    ):
        write(embedded, "ann")
    assert owners(embedded) == [(1, EMBEDDED), (2, A)]
    assert embedded.sidecars.listed() == []
    write(coordinator, "bob")
    assert coordinator.rows() == ["bob"]


def test_a_write_that_had_landed_is_answered_although_a_coordinator_owns_the_line_now(
    opened: Callable[..., Parts],
) -> None:
    embedded = opened()
    first = write(embedded, "ann", resubmittable=True, payload_hash="h")
    owned_by(opened, A)
    again = Adding(embedded.schema, {PERSON: ["ann"]}, commit_id=first.commit_id, resubmittable=True, payload_hash="h")
    assert embedded.writer.commit(again).repeated


# A coordinator that was fenced


def test_a_fenced_coordinator_s_writer_has_ended_and_changes_nothing(opened: Callable[..., Parts]) -> None:
    zombie, successor = owned_by(opened, A), owned_by(opened, B)
    write(successor, "bob")
    before = owners(successor)
    for _ in range(2):
        with pytest.raises(Fenced, match="this coordinator's writer has ended") as fenced:
            write(zombie, "ghost")
        assert fenced.value.facts == {"epoch": 3, "owner": B}
        assert fenced.value.retry == "never"
    assert owners(successor) == before
    assert successor.rows() == ["bob"]


def test_a_coordinator_that_slept_before_its_put_while_its_successor_wrote_is_fenced_and_its_files_go(
    opened: Callable[..., Parts], store: ObjectStore
) -> None:
    zombie, successor = owned_by(opened, A), opened(B)

    def meanwhile() -> None:
        take_over(successor.tip, B)
        for number in range(20):
            write(successor, f"{number:02}")

    with armed({Point.C_BEFORE_PUT: Action(meanwhile, nth=1)}), pytest.raises(Fenced):
        write(zombie, "ghost")
    successor.finaliser.close()
    assert successor.rows() == [f"{number:02}" for number in range(20)]
    assert [path for path in files_below(store.uri) if "/_staged/" in path or "__recovery" in path] == []


def test_a_fenced_coordinator_does_not_rejoin_when_the_line_is_everybody_s_again(opened: Callable[..., Parts]) -> None:
    zombie = owned_by(opened, A)
    take_over(opened().tip, EMBEDDED)
    with pytest.raises(Fenced):
        write(zombie, "ghost")
    assert zombie.rows() == []


def test_a_coordinator_that_takes_over_anew_writes_again(opened: Callable[..., Parts]) -> None:
    parts = owned_by(opened, A)
    owned_by(opened, B)
    take_over(parts.tip, A)
    write(parts, "ann")
    assert parts.rows() == ["ann"]


def test_a_coordinator_s_own_recovery_does_not_fence_it(opened: Callable[..., Parts], store: ObjectStore) -> None:
    left = left_by(store, Point.C_BEFORE_PUT)
    coordinator = opened(A)
    coordinator.recoverer._is_dead = everybody_is_dead
    take_over(coordinator.tip, A)
    assert recovered(coordinator).rolled_back == (left,)
    write(coordinator, "ann")
    assert {owner for epoch, owner in owners(coordinator) if epoch > 1} == {A}


@pytest.mark.parametrize(
    ("owner", "newest_owner", "error"),
    [(EMBEDDED, EMBEDDED, None), (A, A, None), (EMBEDDED, A, LineOwned), (A, B, Fenced), (A, EMBEDDED, Fenced)],
    ids=["everybody", "the owner", "everybody but the owner", "a predecessor", "one that handed it back"],
)
def test_only_the_owner_of_the_newest_object_may_go_on(
    opened: Callable[..., Parts], owner: str, newest_owner: str, error: type[Exception] | None
) -> None:
    newest = replace(opened().newest(), owner=newest_owner)
    if error is None:
        refuse_stranger(owner, newest)
    else:
        with pytest.raises(error):
            refuse_stranger(owner, newest)


# Owners that are dead


def test_the_line_of_a_coordinator_that_is_dead_on_this_machine_is_inherited_by_a_write(
    opened: Callable[..., Parts],
) -> None:
    embedded, dead = opened(), owned_by(opened, DEAD_ON_THIS_MACHINE)
    write(embedded, "ann")
    assert embedded.rows() == ["ann"]
    assert owners(embedded)[-2:] == [(3, EMBEDDED), (3, EMBEDDED)]
    with pytest.raises(Fenced):
        write(dead, "ghost")


def test_one_that_is_not_known_to_be_dead_keeps_its_line(opened: Callable[..., Parts]) -> None:
    embedded = opened()
    owned_by(opened, ON_ANOTHER_MACHINE)
    with pytest.raises(LineOwned, match="a coordinator owns this branch"):
        write(embedded, "ann")
    embedded.writer.recover()
    assert embedded.newest().owner == ON_ANOTHER_MACHINE


@pytest.mark.parametrize("heal", ["an open", "a recovery"])
def test_what_a_coordinator_that_is_dead_on_this_machine_left_is_healed(
    opened: Callable[..., Parts], store: ObjectStore, monkeypatch: pytest.MonkeyPatch, heal: str
) -> None:
    owner = DEAD_ON_THIS_MACHINE
    healer = opened()
    healer.recoverer._is_dead = everybody_is_dead

    def write_as_owner(parts: Parts) -> None:
        take_over(parts.tip, owner)
        write(parts, "ghost")

    crash(store, Point.C_BEFORE_PUT, write_as_owner, owner=owner)
    (left,) = healer.sidecars.listed()
    if heal == "a recovery":
        assert healer.writer.recover().rolled_back == (left,)
    else:
        monkeypatch.setattr("omniray.engine.recovery.recoverer.is_known_dead", lambda process: True)
        Graph(open_branch(store), read_only=False).close()
    assert {key: kind for key, (kind, _) in outcomes(healer).items()} == {left: "RolledBack"}
    assert healer.newest().owner == EMBEDDED
    assert wounds(store) == []


# Handing back on demand


def test_a_line_whose_owner_is_gone_for_good_is_handed_back_on_demand_and_the_owner_is_fenced(
    opened: Callable[..., Parts],
) -> None:
    embedded, gone = opened(), owned_by(opened, ON_ANOTHER_MACHINE)
    embedded.writer.recover(take_over=True)
    write(embedded, "ann")
    with pytest.raises(Fenced):
        write(gone, "ghost")
    assert embedded.rows() == ["ann"]


def test_a_line_that_is_everybody_s_already_is_not_raised_by_taking_it_over(opened: Callable[..., Parts]) -> None:
    embedded = opened()
    embedded.writer.recover(take_over=True)
    assert owners(embedded) == [(1, EMBEDDED)]


# A graph that owns its line


def test_a_coordinator_s_graph_takes_the_line_over_and_hands_it_back_when_it_is_closed(store: ObjectStore) -> None:
    with Graph(open_branch(store), read_only=False, owner=A) as graph:
        insert(graph, "ann")
        with Graph(open_branch(store), read_only=False) as embedded, pytest.raises(LineOwned):
            insert(embedded, "bob")
    with Graph(open_branch(store), read_only=False) as embedded:
        insert(embedded, "bob")
        assert people(embedded) == ["ann", "bob"]


def test_a_coordinator_s_graph_that_was_fenced_closes_and_leaves_its_successor_the_line(store: ObjectStore) -> None:
    first = Graph(open_branch(store), read_only=False, owner=A)
    with Graph(open_branch(store), read_only=False, owner=B) as second:
        with pytest.raises(Fenced):
            insert(first, "ghost")
        first.close()
        insert(second, "ann")
        assert people(second) == ["ann"]


def test_a_coordinator_that_is_asked_for_a_write_whose_put_is_still_under_way_fences_it_first(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own line, its own epoch: only a raise makes 'not committed' true for ever."""
    late: list[CommitObject] = []
    txn_id = new_ulid()
    with Graph(open_branch(store), read_only=False, owner=A) as graph:
        with monkeypatch.context() as patch:
            patch.setattr("omniray.engine.line.line_end.UNCLEAR_TIMEOUT_S", 0.0)
            patch.setattr(CommitLog, "put", lambda self, obj: late.append(obj) or Answer.UNCLEAR)
            with pytest.raises(OutcomeUnknown):
                graph.mutate(INSERT, {"name": "ghost"}, txn_id=txn_id)
        assert not graph.outcome(txn_id).committed
        CommitLog(store, main_of(store)).put(late[0])
        insert(graph, "ann")
        assert people(graph) == ["ann"]


def test_a_coordinator_whose_opening_fails_hands_the_line_back(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = open_branch(store)
    monkeypatch.setattr(branch.sidecars, "listed", refuse_listing)
    with pytest.raises(StorageError, match="access denied"):
        Graph(branch, read_only=False, owner=A)
    newest = CommitLog(store, main_of(store)).newest()
    assert newest is not None
    assert newest.owner == EMBEDDED


def test_a_coordinator_whose_release_fails_can_be_closed_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(open_branch(store), read_only=False, owner=A)
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "put", refuse_put)
        with pytest.raises(StorageError):
            graph.close()
    graph.close()
    newest = CommitLog(store, main_of(store)).newest()
    assert newest is not None
    assert newest.owner == EMBEDDED


def refuse_listing() -> list[str]:
    raise StorageError("access denied")


def refuse_put(self: CommitLog, obj: CommitObject) -> Answer:
    raise StorageError("access denied")


def test_a_coordinator_sweeps_its_own_graph(store: ObjectStore) -> None:
    with Graph(open_branch(store), read_only=False, owner=A) as graph:
        insert(graph, "ann")
        assert not graph.sweep(older_than_s=0).dry_run
        assert people(graph) == ["ann"]
