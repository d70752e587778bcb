"""Writes with an id of the caller's: applied once, however often and from wherever they are asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import omniray
from omniray.engine import writer
from omniray.engine.base.errors import InputError, OutcomeUnknown, PayloadMismatch, Withdrawn
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.judge.resolution import Outcome, WriteResult
from omniray.engine.line import line_end as tip
from omniray.engine.line.owner import Incarnation
from omniray.engine.line.prune import prune
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writer import Writer
from tests.graphs import INSERT, parts_of, people
from tests.kit.faulty_store import CallFault, Crashed, Effect, FaultyStore
from tests.kit.mortal import dying_at

Ask = Callable[[Graph, str, str], WriteResult]


def ask_load(graph: Graph, txn_id: str, name: str) -> WriteResult:
    records = [
        {"type": "Person", "data": {"name": name}},
        {"type": "City", "data": {"name": f"city of {name}"}},
        {"edge": "Knows", "from": name, "to": name},
    ]
    return graph.load(records, txn_id=txn_id)


def ask_mutate(graph: Graph, txn_id: str, name: str) -> WriteResult:
    return graph.mutate(INSERT, {"name": name, "age": 7}, txn_id=txn_id)


@pytest.fixture(params=[ask_load, ask_mutate], ids=["load", "mutate"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.fixture
def graph(store: ObjectStore) -> Iterator[Graph]:
    with omniray.open(store.uri) as found:
        yield found


def crash(store: ObjectStore, point: Point, ask: Ask, txn_id: str) -> None:
    """A process dies at a point of a write, and its caller is never answered."""
    mortal = FaultyStore(store)
    with dying_at(mortal, point), Graph(open_branch(cast(ObjectStore, mortal)), read_only=False) as graph:
        ask(graph, txn_id, "ann")
    assert mortal.is_dead


def forget_the_line(store: ObjectStore) -> None:
    """Fold everything, and prune all objects but the first and the last."""
    parts = parts_of(store)
    newest = parts.newest()
    parts.finaliser.notice(newest)
    parts.close()
    in_a_year_us = time.time_ns() // 1000 + 365 * 24 * 3600 * 1_000_000
    prune(store, parts.log, newest, newest.seq, now_us=in_a_year_us, keep=1)


def assert_applied_once(graph: Graph, txn_id: str, *, among: int = 1) -> None:
    assert [entry.commit_id for entry in graph.history()].count(txn_id) == 1
    assert len(graph.history()) == among + 1
    assert people(graph).count("ann") == 1


# The same id again


def test_the_same_write_again_returns_the_first_outcome_and_applies_nothing(graph: Graph, ask: Ask) -> None:
    txn_id = new_ulid()
    first = ask(graph, txn_id, "ann")
    assert (first.commit_id, first.repeated) == (txn_id, False)
    for _ in range(2):
        again = ask(graph, txn_id, "ann")
        assert again == omniray.WriteResult(
            txn_id, first.affected_nodes, first.affected_edges, versions=first.versions, repeated=True
        )
    assert ask(graph, txn_id.lower(), "ann").repeated, "spelled in any way"
    assert_applied_once(graph, txn_id)


@pytest.mark.parametrize("how", ["in the line", "folded", "pruned"])
def test_from_another_process_and_however_long_ago_it_is_the_same(store: ObjectStore, ask: Ask, how: str) -> None:
    txn_id = new_ulid()
    first_graph = omniray.open(store.uri)
    first = ask(first_graph, txn_id, "ann")
    if how != "in the line":
        first_graph.close()
    if how == "pruned":
        with omniray.open(store.uri) as other:
            ask(other, new_ulid(), "bob")
        forget_the_line(store)
        assert parts_of(store).log.read(2) is None
    with omniray.open(store.uri) as graph:
        again = ask(graph, txn_id, "ann")
        assert (again.repeated, again.versions) == (True, first.versions)
        assert (again.affected_nodes, again.affected_edges) == (first.affected_nodes, first.affected_edges)
        assert_applied_once(graph, txn_id, among=2 if how == "pruned" else 1)
    first_graph.close()


@pytest.mark.parametrize(("point", "repeated"), [(Point.C_BEFORE_PUT, False), (Point.C_AFTER_PUT, True)])
@pytest.mark.parametrize("is_healed_first", [True, False])
def test_after_a_crash_the_same_write_is_applied_once(
    store: ObjectStore, ask: Ask, point: Point, repeated: bool, is_healed_first: bool
) -> None:
    txn_id = new_ulid()
    crash(store, point, ask, txn_id)
    with omniray.open(store.uri, grace_s=1e-6 if is_healed_first else 600) as graph:
        assert len(graph.recoveries()) == is_healed_first
        assert ask(graph, txn_id, "ann").repeated == repeated
        assert_applied_once(graph, txn_id)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_of_two_processes_with_the_same_id_at_once_one_applies_it(
    store: ObjectStore, ask: Ask, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The second one is through when the first is about to put; the twin does not look again on top of it."""
    txn_id = new_ulid()
    if not has_guard:
        monkeypatch.setattr(Writer, "_known", lambda self, intent, base: None)
    with omniray.open(store.uri) as slow, omniray.open(store.uri) as quick:
        with armed({Point.C_BEFORE_PUT: Action(lambda: answers.append(ask(quick, txn_id, "ann")), nth=1)}):
            answers: list[Any] = []
            try:
                answers.append(ask(slow, txn_id, "ann"))
            except omniray.KeyConflict as refused:  # the twin finds the row that it has written itself
                answers.append(refused)
        ids = [entry.commit_id for entry in slow.history()]
        is_once = ids.count(txn_id) == 1 and [getattr(answer, "repeated", None) for answer in answers] == [False, True]
        assert is_once == has_guard


def test_another_payload_under_the_same_id_is_refused_and_nothing_is_applied(store: ObjectStore, ask: Ask) -> None:
    txn_id = new_ulid()
    with omniray.open(store.uri) as graph:
        ask(graph, txn_id, "ann")
        for _ in range(2):
            with pytest.raises(PayloadMismatch) as refused:
                ask(graph, txn_id, "eve")
            assert refused.value.facts == {"txn_id": txn_id}
            graph.flush()  # the second time it is folded
        other = ask_mutate if ask is ask_load else ask_load
        with pytest.raises(PayloadMismatch):
            other(graph, txn_id, "ann")
        assert_applied_once(graph, txn_id)


@pytest.mark.parametrize("txn_id", ["", "ann", "01J0000000000000000000000U", "8" + "Z" * 25])
def test_what_is_no_ulid_is_no_id(graph: Graph, ask: Ask, txn_id: str) -> None:
    with pytest.raises(InputError, match="a ULID of 26 characters"):
        ask(graph, txn_id, "ann")
    with pytest.raises(InputError, match="a ULID of 26 characters"):
        graph.outcome(txn_id)
    assert people(graph) == []


# No clear answer


@pytest.mark.parametrize(("effect", "landed"), [(Effect.UNCLEAR, False), (Effect.LOSE, True)])
def test_an_unknown_outcome_carries_the_id_by_which_it_is_found_out(
    store: ObjectStore, ask: Ask, monkeypatch: pytest.MonkeyPatch, effect: Effect, landed: bool
) -> None:
    monkeypatch.setattr(tip, "UNCLEAR_TIMEOUT_S", 0.0)
    faulty, txn_id = FaultyStore(store), new_ulid()

    def lose_the_answer() -> None:
        faulty.arm(CallFault(effect, frozenset({"put_if_absent"}), path_contains="__commits"))
        faulty.arm(CallFault(Effect.FAIL, frozenset({"get"}), path_contains="__commits"))

    with Graph(open_branch(cast(ObjectStore, faulty)), read_only=False) as graph:
        with armed({Point.C_BEFORE_PUT: Action(lose_the_answer)}), pytest.raises(OutcomeUnknown) as unknown:
            ask(graph, txn_id, "ann")
        assert unknown.value.facts == {"txn_id": txn_id}
        faulty.disarm()
        assert graph.outcome(txn_id) == Outcome(txn_id, committed=landed)
        assert ask(graph, txn_id, "ann").repeated == landed
        assert_applied_once(graph, txn_id)
        assert graph.outcome(txn_id).commit_id == txn_id


# Asking


@pytest.mark.parametrize("how", ["in the line", "folded", "pruned"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_write_that_landed_is_told_as_committed(store: ObjectStore, ask: Ask, how: str, read_only: bool) -> None:
    txn_id = new_ulid()
    if how == "in the line":
        crash(store, Point.C_AFTER_PUT, ask, txn_id)
    else:
        with omniray.open(store.uri) as graph:
            ask(graph, txn_id, "ann")
    if how == "pruned":
        forget_the_line(store)
    with omniray.open(store.uri, read_only=read_only) as graph:
        assert graph.outcome(txn_id) == Outcome(txn_id, committed=True)
        assert graph.outcome(txn_id.lower()).commit_id == txn_id


def test_a_write_that_nobody_tried_is_told_as_not_committed(graph: Graph) -> None:
    outcome = graph.outcome(new_ulid())
    assert (outcome.committed, outcome.commit_id) == (False, None)


def test_a_write_whose_process_died_before_its_put_is_told_as_not_committed_and_its_put_would_be_refused(
    store: ObjectStore, ask: Ask, graph: Graph
) -> None:
    """Whether the process is known to be dead does not matter."""
    txn_id = new_ulid()
    number = parts_of(store).newest().seq + 1
    crash(store, Point.C_BEFORE_PUT, ask, txn_id)
    assert not graph.outcome(txn_id).committed
    taken = parts_of(store).log.read(number)
    assert taken is not None
    assert taken.withdrawn == (txn_id,)
    assert not ask(graph, txn_id, "ann").repeated, "sent again, it is a new try"
    assert graph.outcome(txn_id).committed
    assert_applied_once(graph, txn_id)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_a_try_that_is_under_way_ends_when_it_is_told_as_not_committed(
    store: ObjectStore, ask: Ask, graph: Graph, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin goes on as after any lost race: it commits what somebody has just been told is not committed."""
    if not has_guard:
        monkeypatch.setattr(writer, "refuse_withdrawn", lambda *_: None)
    txn_id = new_ulid()
    told: list[Outcome] = []
    with omniray.open(store.uri) as slow:
        ends = pytest.raises(Withdrawn) if has_guard else contextlib.nullcontext()
        with armed({Point.C_BEFORE_PUT: Action(lambda: told.append(graph.outcome(txn_id)), nth=1)}), ends:
            ask(slow, txn_id, "ann")
        assert told == [Outcome(txn_id, committed=False)]
        assert people(graph) == ([] if has_guard else ["ann"])
        assert ask(slow, txn_id, "ann").repeated != has_guard
    assert_applied_once(graph, txn_id)


@pytest.mark.parametrize("why", ["read-only", "owned"])
def test_where_no_try_can_be_kept_from_landing_the_outcome_is_unknown_and_nothing_is_touched(
    store: ObjectStore, ask: Ask, why: str
) -> None:
    txn_id = new_ulid()
    crash(store, Point.C_BEFORE_PUT, ask, txn_id)
    owner = (
        Graph(open_branch(store), read_only=False, owner=str(Incarnation.new("ray://here"))) if why == "owned" else None
    )
    before = list(store.files(""))
    with omniray.open(store.uri, read_only=why == "read-only") as graph:
        for unknown_id in (txn_id, new_ulid()):
            with pytest.raises(OutcomeUnknown, match="coordinator" if why == "owned" else "read-write") as unknown:
                graph.outcome(unknown_id)
            assert unknown.value.facts == {"txn_id": unknown_id}
        assert list(store.files("")) == before
    if owner is not None:
        assert not owner.outcome(txn_id).committed, "the coordinator itself can tell"
        owner.close()


def test_a_process_that_is_dead_itself_can_do_nothing(store: ObjectStore, ask: Ask) -> None:
    """What these tests rest on: the store of a process that died lets nothing through."""
    mortal = FaultyStore(store)
    graph = Graph(open_branch(cast(ObjectStore, mortal)), read_only=False)
    with pytest.raises(Crashed):
        mortal.die()
    with pytest.raises(Crashed):
        ask(graph, new_ulid(), "ann")
    with omniray.open(store.uri) as other:
        assert people(other) == []
