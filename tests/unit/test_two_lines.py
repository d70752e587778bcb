"""Two lines of one graph: what is written, left, recovered and swept on one of them is nothing to the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Binding, CommitObject, Remark, first_of, follow_with
from omniray.engine.line.sidecar import Sidecar, SidecarIntent
from omniray.engine.maintenance import sweep
from omniray.engine.maintenance.sweep import Sweeper
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.version_names import own_path
from omniray.engine.writes.lease import Lease
from tests.foreign import PEOPLE, append, plain_ids, repair_of
from tests.graphs import CITY, PERSON, Parts, create_store, opened, parts_on, rows_of
from tests.healing import add, all_buried, everybody_is_dead, recovered, staged_versions
from tests.kit.faulty_store import FaultyStore
from tests.kit.mortal import bury, dying_at
from tests.stores import Root

SIDE = "side"
DIED_BEFORE, DIED_AFTER = Point.C_BEFORE_PUT, Point.C_AFTER_PUT
BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(MAIN, SIDE), (SIDE, MAIN)])
WITH_TWIN = pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])

On = Callable[..., Parts]


def bind(store: ObjectStore, name: str = SIDE) -> None:
    """A branch of main, as it is now."""
    main, made = opened(store), []

    def bound(newest: CommitObject) -> CommitObject:
        facts = (newest.pins, newest.schema, newest.contains, newest.head, newest.head_at_us, newest.swept_before_us)
        made.append(Binding(new_ulid(), newest.line, newest.seq, *facts))
        return replace(follow_with(newest, Remark(new_ulid())), bindings={**newest.bindings, name: made[-1]})

    assert main.tip.extend(bound) is not None
    assert CommitLog(store, BranchId(name, made[-1].ulid)).put(first_of(made[-1])) is Answer.CREATED


def two_lines(root: Root) -> ObjectStore:
    """A graph with ann, and a branch of it."""
    store = create_store(root)
    parts = parts_on(opened(store))
    add(parts, "ann")
    parts.close()
    bind(store)
    return store


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    return two_lines(disk)


@contextlib.contextmanager
def processes(store: ObjectStore) -> Iterator[On]:
    with all_buried(lambda name, **options: parts_on(open_branch(store, name), **options)) as open_one:
        yield open_one


@pytest.fixture
def on(store: ObjectStore) -> Iterator[On]:
    """Opens a branch as one more process; in the end all are closed."""
    with processes(store) as open_one:
        yield open_one


def left_on(store: ObjectStore, name: str, point: Point, person: str = "ghost") -> str:
    """Have a process die while it writes a person to two tables of a branch; the operation that it left."""
    its_own = FaultyStore(store)
    parts = parts_on(open_branch(cast(ObjectStore, its_own), name))
    before = set(parts.sidecars.listed())
    with dying_at(its_own, point):
        add(parts, person)
        parts.finaliser.close()
    assert its_own.is_dead
    bury(parts)
    (left,) = set(open_branch(store, name).sidecars.listed()) - before
    return left


def own_manifests(parts: Parts, table: str = PEOPLE) -> list[str]:
    """The manifests that a branch has staged of a table."""
    branch = parts.branch.branch
    if branch.is_main:
        return staged_versions(parts.store, table)
    return [file.path for file in parts.store.files(f"{table}/_branches/{branch.ulid}")]


def recoveries(parts: Parts) -> dict[str, str]:
    return {one.operation_id: one.recovery_kind for one in parts.lineage.recoveries(None)}


# Writing


def test_each_line_has_its_own_versions_and_sees_nothing_of_the_other(any_root: Root) -> None:
    store = two_lines(any_root)
    with processes(store) as on:
        main, side = on(MAIN), on(SIDE)
        add(side, "bob")
        add(main, "cid")
        add(side, "dan")
        pins = {name: parts.newest().pins[PERSON] for name, parts in ((MAIN, main), (SIDE, side))}
        assert pins[SIDE].version == pins[MAIN].version + 1
        assert own_path(pins[SIDE], side.branch.graph_id) in own_manifests(side)
        for parts in (main, side):
            parts.close()
        assert len(own_manifests(side)) == 2, "a branch's versions keep their one name when Phase D is through"
        assert staged_versions(store) == []
        assert main.sidecars.listed() == []
    with processes(store) as on:
        main, side = on(MAIN), on(SIDE)
        assert (main.rows(), side.rows(), plain_ids(store)) == (["ann", "cid"], ["ann", "bob", "dan"], ["ann", "cid"])
        assert [len(list(parts.lineage.entries(parts.newest()))) for parts in (main, side)] == [3, 2]
        assert side.manifest.folded_through() == side.newest().seq == 3
        assert [parts.newest().epoch for parts in (main, side)] == [1, 1]


def test_a_foreign_writer_of_the_table_is_nothing_to_a_branch(store: ObjectStore, on: On) -> None:
    """Only main's versions have names that it can take."""
    side = on(SIDE)
    append(store, "mallory")
    add(side, "bob")
    side.finaliser.flush()
    assert side.rows() == ["ann", "bob"]
    assert repair_of(side).inspect() == ()
    assert [drift.table_key for drift in repair_of(on(MAIN)).inspect()] == [PERSON]


# Recovery


def _of_every_line(self: Recoverer, operation_ids: list[str], newest: CommitObject) -> list[Sidecar]:
    return self._sidecars.read_all(operation_ids)


@BOTH_WAYS
@pytest.mark.parametrize("point", [DIED_BEFORE, DIED_AFTER])
def test_a_recovery_passes_over_what_was_left_on_another_line(
    store: ObjectStore, on: On, here: str, there: str, point: Point
) -> None:
    left = left_on(store, there, point)
    before = list(store.files(""))
    assert recovered(on(here, is_dead=everybody_is_dead)) == RecoveryReport()
    assert list(store.files("")) == before
    owner = on(there, is_dead=everybody_is_dead)
    expected = {"rolled_back" if point is DIED_BEFORE else "rolled_forward": (left,)}
    assert recovered(owner) == RecoveryReport(**expected)
    assert (owner.newest().epoch, on(here).newest().epoch) == (2 if point is DIED_BEFORE else 1, 1)
    assert owner.rows() == (["ann"] if point is DIED_BEFORE else ["ann", "ghost"])
    assert recoveries(on(here)) == {}


@BOTH_WAYS
def test_a_recovery_that_does_not_ask_for_the_line_loses_what_was_committed_on_another(
    store: ObjectStore, on: On, monkeypatch: pytest.MonkeyPatch, here: str, there: str
) -> None:
    """The twin of the test above: the operation is not in this line, so it is rolled back, and its rows are gone."""
    left = left_on(store, there, DIED_AFTER)
    assert on(there).rows() == ["ann", "ghost"]
    monkeypatch.setattr(Recoverer, "_own_sidecars", _of_every_line)
    healer = on(here, is_dead=everybody_is_dead)
    assert recovered(healer).rolled_back == (left,)
    with pytest.raises(InvariantViolation, match="neither a final name"):
        on(there).rows()


@BOTH_WAYS
def test_a_live_writer_is_not_fenced_by_a_recovery_of_another_line(
    store: ObjectStore, on: On, here: str, there: str
) -> None:
    """It raises its own line's epoch for an operation that was left there, just before the put of the live one."""
    left = left_on(store, here, DIED_BEFORE)
    healer, live = on(here, is_dead=everybody_is_dead), on(there)
    reports: list[RecoveryReport] = []
    with armed({DIED_BEFORE: Action(lambda: reports.append(recovered(healer)), nth=1)}):
        add(live, "bob")
    assert reports == [RecoveryReport(rolled_back=(left,))]
    assert (healer.newest().epoch, live.newest().epoch) == (2, 1)
    (landed,) = [obj for obj in live.line() if obj.commits and obj.seq == live.newest().seq]
    assert landed.epoch == 1, "its first try has landed"
    assert (live.rows(), healer.rows()) == (["ann", "bob"], ["ann"])


def _all_of_them(self: Recoverer, forward: list[Any]) -> list[Any]:
    return forward


@WITH_TWIN
def test_a_branch_s_operation_that_is_rolled_forward_keeps_its_one_manifest(
    store: ObjectStore, on: On, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin clears it away as it does on main, where the version has its final name by then."""
    if not has_guard:
        monkeypatch.setattr(Recoverer, "_renamed", _all_of_them)
    left, healer = left_on(store, SIDE, DIED_AFTER), on(SIDE, is_dead=everybody_is_dead)
    assert recovered(healer) == RecoveryReport(rolled_forward=(left,))
    assert recoveries(healer) == {left: "RolledForward"}
    assert healer.sidecars.listed() == []
    assert len(own_manifests(healer)) == (1 if has_guard else 0)
    with contextlib.nullcontext() if has_guard else pytest.raises(InvariantViolation, match="neither a final name"):
        assert on(SIDE).rows() == ["ann", "ghost"]


def test_a_branch_s_operation_that_is_rolled_back_leaves_no_manifest(store: ObjectStore, on: On) -> None:
    left, healer = left_on(store, SIDE, DIED_BEFORE), on(SIDE, is_dead=everybody_is_dead)
    assert len(own_manifests(healer)) == 1, "Phase B was through"
    assert recovered(healer) == RecoveryReport(rolled_back=(left,))
    assert own_manifests(healer) == []
    add(healer, "bob")
    healer.finaliser.flush()
    assert (healer.rows(), on(MAIN).rows()) == (["ann", "bob"], ["ann"])


def test_main_s_version_of_the_same_number_is_not_taken_for_a_foreign_one_of_the_branch(
    store: ObjectStore, on: On
) -> None:
    """The final name of that number is main's: it says nothing about the branch, whose versions have none."""
    main = on(MAIN)
    add(main, "cid")
    main.finaliser.flush()
    left = left_on(store, SIDE, DIED_AFTER)
    healer = on(SIDE, is_dead=everybody_is_dead)
    assert healer.newest().pins[PERSON].version == main.newest().pins[PERSON].version
    assert recovered(healer) == RecoveryReport(rolled_forward=(left,))
    assert (healer.rows(), main.rows()) == (["ann", "ghost"], ["ann", "cid"])


def test_a_branch_s_manifest_that_is_lost_aborts_its_recovery_though_main_has_a_version_of_that_number(
    store: ObjectStore, on: On
) -> None:
    main = on(MAIN)
    add(main, "cid")
    main.finaliser.flush()
    left = left_on(store, SIDE, DIED_AFTER)
    healer = on(SIDE, is_dead=everybody_is_dead)
    (lost,) = own_manifests(healer)
    store.delete(lost)
    with pytest.raises(InvariantViolation, match=f"{PERSON}=InvariantViolation, {CITY}=RolledPastExpected"):
        recovered(healer)
    assert left in healer.sidecars.listed()


# Sweeping


@pytest.fixture
def all_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is there has been there for a long time, by the store's clock."""
    monkeypatch.setattr(sweep, "store_now_us", lambda store: 2**62)


def swept(parts: Parts) -> None:
    Sweeper(parts.branch, parts.tip, parts.finaliser).sweep(now_us=2**62, older_than_s=0)


def _main_s_alone(self: Sweeper, *arguments: Any, of_all: Any = Sweeper._manifests) -> set[str]:
    return {path for path in of_all(self, *arguments) if "/_branches/" not in path}


@pytest.mark.usefixtures("all_is_old")
@WITH_TWIN
def test_what_a_branch_pins_is_not_swept(
    store: ObjectStore, on: On, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin goes by main's versions alone: a data file that only the branch's version has is taken for an orphan."""
    if not has_guard:
        monkeypatch.setattr(Sweeper, "_manifests", _main_s_alone)
        monkeypatch.setattr(sweep, "refuse_missing", lambda *_: None)
    side = on(SIDE)
    add(side, "bob")
    side.close()
    swept(on(MAIN))
    assert len(own_manifests(side)) == 1
    with contextlib.nullcontext() if has_guard else pytest.raises(StorageError, match=r"(?i)not found"):
        assert on(SIDE).rows() == ["ann", "bob"]


@pytest.mark.usefixtures("all_is_old")
@WITH_TWIN
def test_a_table_that_is_in_use_on_a_branch_is_spared(
    store: ObjectStore, on: On, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """A load on the branch has staged files that no version has yet. The twin does not ask who is at work."""
    if not has_guard:
        monkeypatch.setattr(sweep, "_named_by", lambda sidecars: {})
    side = on(SIDE)
    table = side.cache.open(PERSON, side.newest().pins[PERSON])
    lease = Lease(side.sidecars, side.newest())
    lease.take(SidecarIntent(new_ulid(), "ann"), table)
    staged = side.storage.stage_rows(table, rows_of(table.type, ["bob"]))
    files = {f"{PEOPLE}/data/{file}" for file in staged.files}
    assert files
    swept(on(MAIN))
    left = files & {file.path for file in store.files(PEOPLE)}
    assert left == (files if has_guard else set())


@pytest.mark.usefixtures("all_is_old")
def test_a_write_that_is_under_way_on_a_branch_survives_a_sweep(store: ObjectStore, on: On) -> None:
    main, side = on(MAIN), on(SIDE)
    with armed({DIED_BEFORE: Action(lambda: swept(main), nth=1)}):
        add(side, "bob")
    side.close()
    assert on(SIDE).rows() == ["ann", "bob"]
