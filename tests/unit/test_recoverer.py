"""Recovery with a real store: what is found, what is done about it, who is taken for gone, and who runs it.

A process dies somewhere, another one recovers, and afterwards `wounds` finds nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

import omniray
from omniray.engine.base.errors import GraphExists, InvariantViolation, LineOwned
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, RECOVERY_ACTOR
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.recovery import recoverer as recoverer_module
from omniray.engine.recovery.recoverer import GRACE_S, LEASE_S, SETTLED_S, Recoverer, RecoveryReport
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.version_names import manifest_name, own_folder
from omniray.engine.writes.lease import Lease
from tests.foreign import PEOPLE, append, plain_ids, repair_of
from tests.graphs import CITY, PERSON, SCHEMA, Parts, create_store, insert, parts_of, people
from tests.healing import add, everybody_is_dead, left_by, outcomes, recovered, staged_versions, wounds
from tests.kit.faulty_store import FaultyStore
from tests.kit.mortal import crash, dying_at
from tests.stores import Root

DIED_BEFORE, DIED_AFTER = Point.C_BEFORE_PUT, Point.C_AFTER_PUT


# What is found, and what is done about it


def test_an_operation_that_no_object_names_is_rolled_back(any_root: Root) -> None:
    store = create_store(any_root)
    left = left_by(store, DIED_BEFORE)
    assert len(staged_versions(store)) == 1, "Phase B was through"
    healer = parts_of(store, is_dead=everybody_is_dead)
    assert recovered(healer) == RecoveryReport(rolled_back=(left,))
    assert outcomes(healer) == {left: ("RolledBack", {PERSON: "NoMovement", CITY: "NoMovement"})}
    assert staged_versions(store) == staged_versions(store, "nodes/City.lance") == []
    assert healer.sidecars.listed() == []
    assert (healer.newest().epoch, healer.newest().owner) == (2, EMBEDDED)
    add(healer, "ann")
    healer.close()
    assert plain_ids(store) == plain_ids(store, "nodes/City.lance") == ["ann"]
    assert wounds(store) == []


def test_an_operation_that_an_object_names_is_rolled_forward(any_root: Root) -> None:
    store = create_store(any_root)
    left = left_by(store, DIED_AFTER)
    assert plain_ids(store) == [], "no final name yet"
    healer = parts_of(store, is_dead=everybody_is_dead)
    assert recovered(healer) == RecoveryReport(rolled_forward=(left,))
    assert outcomes(healer) == {left: ("RolledForward", {PERSON: "RolledPastExpected", CITY: "RolledPastExpected"})}
    assert plain_ids(store) == plain_ids(store, "nodes/City.lance") == ["ghost"]
    assert healer.sidecars.listed() == []
    assert healer.newest().epoch == 1, "nobody had to be fenced"
    healer.close()
    assert wounds(store) == []


def test_manifest_and_line_are_looked_at_as_often_for_many_operations_as_for_one(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    def looks(count: int) -> int:
        left = [left_by(store, DIED_BEFORE, f"{count} {n}") for n in range(count)]
        landed = left_by(store, DIED_AFTER, f"{count} landed")
        healer = opened()
        read = Mock(wraps=healer.lineage._read)
        healer.lineage._read = read  # type: ignore[method-assign]
        report = recovered(healer)
        assert (report.rolled_forward, sorted(report.rolled_back)) == ((landed,), sorted(left))
        return read.call_count

    assert looks(1) == looks(5)


@pytest.mark.parametrize(("count", "expected"), [(1, "UnexpectedAtP1"), (2, "UnexpectedMultistep")])
def test_a_foreign_writer_ahead_of_the_pin_does_not_keep_an_operation_from_being_cleared_away(
    store: ObjectStore, opened: Callable[..., Parts], count: int, expected: str
) -> None:
    left = left_by(store, DIED_BEFORE)
    for number in range(count):
        append(store, f"mallory-{number}")
    healer = opened()
    assert recovered(healer) == RecoveryReport(rolled_back=(left,))
    assert outcomes(healer) == {left: ("RolledBack", {PERSON: expected, CITY: "NoMovement"})}
    assert healer.rows() == [], "the graph has not moved"
    assert len(plain_ids(store)) == count, "what the foreign writer wrote is left to repair"


def test_a_foreign_writer_ahead_of_what_is_final_does_not_keep_it_from_being_rolled_forward(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left = left_by(store, Point.D_BEFORE_FOLD)
    append(store, "mallory")
    healer = opened()
    assert recovered(healer) == RecoveryReport(rolled_forward=(left,))
    assert outcomes(healer) == {left: ("RolledForward", {PERSON: "UnexpectedAtP1", CITY: "RolledPastExpected"})}


def test_a_final_name_that_a_foreign_writer_took_waits_for_repair_and_then_the_operation_is_rolled_forward(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left = left_by(store, DIED_AFTER)
    append(store, "mallory")
    healer = opened()
    assert recovered(healer) == RecoveryReport(awaiting_repair=(left,))
    assert outcomes(healer) == {}
    assert healer.sidecars.listed() == [left]
    assert recovered(opened()) == RecoveryReport(awaiting_repair=(left,)), "and it waits for as long as it takes"
    repair_of(healer).discard()
    report = recovered(healer)
    assert report == RecoveryReport(rolled_forward=(left,))
    assert outcomes(healer)[left][0] == "RolledForward"
    assert plain_ids(store) == ["ghost"]


def test_a_drifted_table_keeps_only_the_operations_that_moved_it_waiting(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    """One table's final name was taken: what moved other tables is finished, what never landed is cleared away."""
    back, waiting = left_by(store, DIED_BEFORE, "back"), left_by(store, DIED_AFTER, "waiting")
    append(store, "mallory")
    before, city = set(opened().sidecars.listed()), ["nodes/City.lance"]
    crash(store, DIED_AFTER, lambda parts: add(parts, "town", tables=(CITY,)))
    healer = opened()
    (forward,) = set(healer.sidecars.listed()) - before
    report = recovered(healer)
    assert report == RecoveryReport(rolled_forward=(forward,), rolled_back=(back,), awaiting_repair=(waiting,))
    assert healer.sidecars.listed() == [waiting]
    assert plain_ids(store, *city) == ["town", "waiting"]
    assert staged_versions(store, *city) != [], "the name that the waiting operation staged is its own to clear away"
    assert healer.manifest.folded_through() == healer.newest().seq, "and the line is folded all the same"
    assert outcomes(healer) == {
        back: ("RolledBack", {PERSON: "FinalNameTaken", CITY: "NoMovement"}),
        forward: ("RolledForward", {CITY: "RolledPastExpected"}),
    }
    repair_of(healer).discard()
    assert recovered(opened()) == RecoveryReport(rolled_forward=(waiting,))
    assert staged_versions(store) == staged_versions(store, *city) == []
    assert plain_ids(store) == ["waiting"]
    assert wounds(store) == []


def test_a_pinned_version_that_is_nowhere_aborts_loudly_and_everything_is_kept(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left = left_by(store, DIED_AFTER, "lost")
    (lost,) = staged_versions(store)
    data = store.get(lost)
    assert data is not None
    second = left_by(store, DIED_BEFORE, "second")
    store.delete(lost)
    healer, files = opened(), list(store.files(""))
    with pytest.raises(InvariantViolation, match=r"node:Person=InvariantViolation.*from a backup") as refusal:
        recovered(healer)
    assert refusal.value.facts["operation_id"] == left
    assert refusal.value.facts["outcomes"][CITY] == "RolledPastExpected"
    assert list(store.files("")) == files
    with pytest.raises(InvariantViolation):
        omniray.open(store.uri, grace_s=1e-9)
    with omniray.open(store.uri, read_only=True) as reader:
        assert reader.snapshot().table("City")["name"].to_pylist() == ["lost"]
    store.put(lost, data)
    assert recovered(opened()) == RecoveryReport(rolled_forward=(left,), rolled_back=(second,))
    assert wounds(store) == []


BEFORE_THE_GRAPH = [
    Point.A_AFTER_SIDECAR, Point.B_AFTER_TABLE, Point.C_BEFORE_PUT, Point.C_AFTER_PUT, Point.INIT_BEFORE_IDENTITY,
]  # fmt: skip


def die_creating(root: Root, point: Point) -> ObjectStore:
    """A creator dies at a point; the store where its graph would have been."""
    store = open_store(f"{root.uri}/graph", root.storage_options)
    its_own = FaultyStore(store)
    with dying_at(its_own, point):
        create_graph(cast(ObjectStore, its_own), SCHEMA, actor="first")
    assert its_own.is_dead
    return store


@pytest.mark.parametrize("point", BEFORE_THE_GRAPH)
def test_a_creator_that_died_before_its_graph_was_there_is_in_nobody_s_way_and_is_cleared_away(
    any_root: Root, point: Point
) -> None:
    store = die_creating(any_root, point)
    left = Sidecars(store).listed()
    create_graph(store, SCHEMA, actor="second")
    healer = parts_of(store, is_dead=everybody_is_dead)
    assert recovered(healer) == RecoveryReport(rolled_back=tuple(left))
    add(healer, "ann")
    told = healer.lineage.recoveries(None)
    assert [(one.operation_id, one.recovery_kind, one.sidecar_writer_kind) for one in told] == [
        (one, "RolledBack", "Init") for one in left
    ]
    assert [one.recovery_for_actor for one in told] == ["first"] * len(left)
    healer.close()
    assert healer.newest().epoch == 1, "nobody had to be fenced"
    assert {file.path.split("/")[1] for file in store.files("__commits")} == {healer.branch.graph_id}
    if left:  # else it died before its sidecar was there, and what it staged is the sweep's
        assert staged_versions(store) == staged_versions(store, "nodes/City.lance") == []
    assert plain_ids(store) == ["ann"]
    assert wounds(store) == []


def test_a_creator_that_died_after_its_graph_was_there_has_created_it(any_root: Root) -> None:
    store = die_creating(any_root, Point.INIT_AFTER_IDENTITY)
    with pytest.raises(GraphExists):
        create_graph(store, SCHEMA)
    healer = parts_of(store, is_dead=everybody_is_dead)
    (left,) = healer.sidecars.listed()
    assert recovered(healer) == RecoveryReport(rolled_forward=(left,))
    healer.close()
    assert plain_ids(store) == []
    assert wounds(store) == []


# What belongs to no line of the graph


def left_elsewhere(store: ObjectStore, kind: str, line: str, main_line: str) -> Sidecar:
    """What a writer of another machine left on a line: a sidecar and a staged version."""
    table = SidecarTable(PERSON, PEOPLE, 1, str(uuid.uuid4()))
    intents = (SidecarIntent(new_ulid(), "ann"),)
    created_at_us = time.time_ns() // 1000
    left = Sidecar(
        new_ulid(), kind, line, 3, EMBEDDED, Process("elsewhere", 1, "1"), created_at_us, intents, (table,)
    )  # fmt: skip
    Sidecars(store).put(left)
    store.put(f"{own_folder(PEOPLE, line, main_line, table.transaction_uuid)}/{manifest_name(2)}", b"staged")
    return left


@pytest.mark.parametrize("is_main", [True, False], ids=["main", "branch"])
@pytest.mark.parametrize(("waited_s", "is_cleared"), [(0.9 * GRACE_S, False), (1.1 * GRACE_S, True)])
def test_what_was_left_on_a_line_that_is_not_there_is_cleared_away_after_the_grace_period(
    any_root: Root, is_main: bool, waited_s: float, is_cleared: bool
) -> None:
    """Its graph was deleted and this one was created in its place; the line was that graph's main, or a branch."""
    store, line = create_store(any_root), new_ulid()
    healer = parts_of(store)
    files = [file.path for file in store.files(PEOPLE)]
    left = left_elsewhere(store, "Mutation", line, line if is_main else new_ulid()).operation_id
    report = recoverer_of(healer, now=lambda: time.time() + waited_s).recover(healer.tip)
    assert report == (RecoveryReport(rolled_back=(left,)) if is_cleared else RecoveryReport(left=(left,)))
    assert healer.sidecars.listed() == ([] if is_cleared else [left])
    assert ([file.path for file in store.files(PEOPLE)] == files) is is_cleared
    assert healer.newest().epoch == 1, "nobody had to be fenced"
    assert outcomes(healer) == ({left: ("RolledBack", {PERSON: "NoMovement"})} if is_cleared else {})
    healer.close()


def test_a_lease_on_a_line_that_is_not_there_is_forgotten_in_time(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    healer, line = opened(), new_ulid()
    left_elsewhere(store, STAGING, line, line)
    recoverer_of(healer, now=lambda: time.time() + 2 * GRACE_S).recover(healer.tip)
    assert len(healer.sidecars.listed()) == 1
    recoverer_of(healer, now=lambda: time.time() + 1.1 * LEASE_S).recover(healer.tip)
    assert healer.sidecars.listed() == []
    assert outcomes(healer) == {}


def test_an_object_that_a_late_writer_put_makes_no_line_of_its_own(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    """It wrote to a graph that was deleted before its put: its object has no predecessor, so it proves nothing."""
    healer, line = opened(), new_ulid()
    left = left_elsewhere(store, "Mutation", line, line).operation_id
    late = replace(healer.newest(), line=line, seq=7, op_id=left)
    assert CommitLog(store, BranchId(MAIN, line)).put(late) is Answer.CREATED
    assert recovered(healer) == RecoveryReport(rolled_back=(left,))
    assert healer.sidecars.listed() == []


# Who is gone


def recoverer_of(parts: Parts, **options: Any) -> Recoverer:
    return Recoverer(parts.branch, parts.finaliser, **options)


def test_an_operation_of_a_process_that_is_dead_on_this_machine_is_recovered_at_once(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    def write_as_one_that_ended(parts: Parts) -> None:
        parts.writer.attempts._process = replace(this_process(), started="before")
        add(parts, "ghost")

    crash(store, DIED_BEFORE, write_as_one_that_ended)
    healer = opened()
    assert len(recoverer_of(healer).recover(healer.tip).rolled_back) == 1


def test_an_operation_of_a_live_process_is_left_alone(store: ObjectStore, opened: Callable[..., Parts]) -> None:
    left, healer = left_by(store, DIED_BEFORE), opened()
    assert recoverer_of(healer).recover(healer.tip) == RecoveryReport(left=(left,))
    assert len(staged_versions(store)) == 1
    assert healer.newest().epoch == 1


@pytest.mark.parametrize(("waited", "is_recovered"), [(0.9, False), (1.1, True)])
def test_an_operation_of_another_machine_is_recovered_after_the_grace_period(
    store: ObjectStore, opened: Callable[..., Parts], waited: float, is_recovered: bool
) -> None:
    def write_elsewhere(parts: Parts) -> None:
        parts.writer.attempts._process = Process("elsewhere", 1, "1")
        add(parts, "ghost")

    crash(store, DIED_BEFORE, write_elsewhere)
    healer = opened()
    for grace_s in (GRACE_S, 5.0):
        later = time.time() + waited * grace_s
        report = recoverer_of(healer, grace_s=grace_s, now=lambda later=later: later).recover(healer.tip)
        if is_recovered:
            assert len(report.rolled_back) == 1
            return
        assert len(report.left) == 1


def test_a_lease_of_a_load_that_died_is_consumed_and_nothing_is_told_of_it(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    healer = opened()
    lease = Lease(healer.sidecars, healer.newest())
    lease.take(
        SidecarIntent("01J00000000000000000000000", "ann"), healer.cache.open(PERSON, healer.newest().pins[PERSON])
    )
    before = healer.newest()
    assert recoverer_of(healer).recover(healer.tip) == RecoveryReport(left=tuple(healer.sidecars.listed()))
    assert recovered(healer) == RecoveryReport()
    assert healer.sidecars.listed() == []
    assert healer.newest() == before
    assert outcomes(healer) == {}


@pytest.mark.parametrize(("age_s", "left"), [(2 * GRACE_S, 1), (1.1 * LEASE_S, 0)])
def test_a_lease_from_elsewhere_lasts_longer_than_a_write(
    store: ObjectStore, opened: Callable[..., Parts], age_s: float, left: int
) -> None:
    healer = opened()
    lease = Lease(healer.sidecars, healer.newest())
    lease.take(
        SidecarIntent("01J00000000000000000000000", "ann"), healer.cache.open(PERSON, healer.newest().pins[PERSON])
    )
    recoverer_of(healer, now=lambda: time.time() + age_s).recover(healer.tip)
    assert len(healer.sidecars.listed()) == left


@pytest.mark.parametrize("content", [b"", bytes(512)], ids=["empty", "zeros"])
def test_a_sidecar_that_a_power_cut_has_emptied_stands_in_nobody_s_way_and_is_forgotten_in_time(
    store: ObjectStore, opened: Callable[..., Parts], content: bytes
) -> None:
    healer, operation_id = opened(is_dead=lambda sidecar: False), new_ulid()
    store.put(f"__recovery/{operation_id}.json", content)
    assert recovered(healer).left == (operation_id,)
    add(healer, "ann")
    recoverer_of(healer, now=lambda: time.time() + LEASE_S + 60).recover(healer.tip)
    assert operation_id not in healer.sidecars.listed()
    assert operation_id not in outcomes(healer)


def test_on_a_line_that_a_coordinator_owns_everything_is_left_to_it(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left, committed = left_by(store, DIED_BEFORE), left_by(store, DIED_AFTER)
    owner = str(Incarnation.new("ray://here"))
    coordinator = opened(owner=owner)
    take_over(coordinator.tip, owner)
    before = list(store.files(""))
    assert recovered(opened()) == RecoveryReport(left=(left, committed))
    assert list(store.files("")) == before
    assert recovered(coordinator) == RecoveryReport(rolled_forward=(committed,), rolled_back=(left,))
    assert coordinator.newest().owner == owner
    assert coordinator.newest().epoch == 2, "what was there before it took over is fenced already"


def test_what_a_coordinator_has_under_way_itself_is_never_recovered_by_it(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    owner = str(Incarnation.new("ray://here"))
    coordinator = opened(owner=owner)
    take_over(coordinator.tip, owner)
    reports: list[RecoveryReport] = []
    with armed({DIED_BEFORE: Action(lambda: reports.append(recovered(coordinator)))}):
        add(coordinator, "ann")
    assert [len(report.left) for report in reports] == [1]
    assert coordinator.rows() == ["ann"]


def test_a_line_that_is_taken_over_while_a_recovery_runs_is_left_to_its_new_owner(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left, healer = left_by(store, DIED_BEFORE), opened()
    owner = str(Incarnation.new("ray://here"))
    coordinator = opened(owner=owner)
    for point in (Point.RECOVERY_BEFORE_RAISE, Point.RECOVERY_BEFORE_RECORD):
        with armed({point: Action(lambda: take_over(coordinator.tip, owner), nth=1)}):
            assert recovered(healer) == RecoveryReport(left=(left,))
        assert outcomes(healer) == {}
        assert healer.sidecars.listed() == [left]
        take_over(coordinator.tip, EMBEDDED)
    assert recovered(healer) == RecoveryReport(rolled_back=(left,))


# Who runs it


def test_a_read_only_open_touches_nothing(store: ObjectStore) -> None:
    left_by(store, DIED_BEFORE)
    left_by(store, Point.D_AFTER_NAME)
    before = list(store.files(""))
    with omniray.open(store.uri, read_only=True) as reader:
        assert people(reader) == ["ghost"]
        assert reader.recoveries() == []
    assert list(store.files("")) == before


def test_opening_heals(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_by(store, DIED_AFTER)
    monkeypatch.setattr(recoverer_module, "is_known_dead", lambda process: True)
    with omniray.open(store.uri) as graph:
        assert [(one.operation_id, one.recovery_kind) for one in graph.recoveries()] == [(left, "RolledForward")]
        (recovery,) = graph.recoveries()
        assert (recovery.recovery_for_actor, recovery.actor) == ("ann", RECOVERY_ACTOR)
        assert recovery.sidecar_writer_kind == "Mutation"
    assert plain_ids(store) == ["ghost"]


def test_a_write_heals_what_was_left_since_the_graph_was_opened(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with omniray.open(store.uri) as graph:
        left = left_by(store, DIED_BEFORE)
        monkeypatch.setattr(graph._recoverer, "_is_dead", lambda sidecar: sidecar.operation_id == left)
        insert(graph, "ann")
        assert graph.recoveries() == [], "what has only just begun is most likely under way"
        monkeypatch.setattr(graph._recoverer, "_now", lambda: time.time() + SETTLED_S + 1)
        insert(graph, "bob")
        assert [one.operation_id for one in graph.recoveries()] == [left]
        assert people(graph) == ["ann", "bob"]


def test_recover_says_what_it_did(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with omniray.open(store.uri) as graph:
        back, forward = left_by(store, DIED_BEFORE), left_by(store, DIED_AFTER)
        assert graph.recover() == RecoveryReport(left=(back, forward))
        monkeypatch.setattr(recoverer_module, "is_known_dead", lambda process: True)
        assert graph.recover() == RecoveryReport(rolled_forward=(forward,), rolled_back=(back,))
        assert graph.recover() == RecoveryReport()
        assert people(graph) == ["ghost"]


def test_a_branch_whose_coordinator_is_gone_for_good_is_handed_back_on_demand(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    owner = str(Incarnation.new("ray://here"))
    take_over(opened(owner=owner).tip, owner)
    with omniray.open(store.uri) as graph:
        with pytest.raises(LineOwned, match="a coordinator owns this branch"):
            insert(graph, "ann")
        graph.recover(take_over=True)
        insert(graph, "ann")
        assert people(graph) == ["ann"]


# A recovery that is killed


RECOVERY_POINTS = [point for point in Point if point.name.startswith("RECOVERY_")]
PHASE_D_POINTS = [
    Point.D_BEFORE_NAME, Point.D_AFTER_NAME, Point.D_BEFORE_FOLD, Point.D_BEFORE_AUDIT, Point.D_AUDIT_STAGED,
    Point.D_FOLD_STAGED, Point.D_AFTER_FOLD,
]  # fmt: skip


@pytest.mark.parametrize("point", [*RECOVERY_POINTS, *PHASE_D_POINTS])
def test_a_recovery_that_is_killed_anywhere_is_finished_by_the_next_and_told_once(
    store: ObjectStore, opened: Callable[..., Parts], point: Point
) -> None:
    back, forward = left_by(store, DIED_BEFORE, "back"), left_by(store, DIED_AFTER, "forward")
    crash(store, point, lambda parts: recovered(parts), is_dead=everybody_is_dead)
    healer = opened()
    recovered(healer)
    recovered(opened())
    assert {one: kind for one, (kind, _) in outcomes(healer).items()} == {back: "RolledBack", forward: "RolledForward"}
    assert healer.sidecars.listed() == []
    assert plain_ids(store) == plain_ids(store, "nodes/City.lance") == ["forward"]
    assert wounds(store) == []
    add(healer, "next")
