"""The sweep of a graph with branches: their lines get the barrier, and what they refer to stays."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

import omniray
from omniray.engine.base.errors import BranchGone, LineOwned, StorageError
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history import lineage_levels, lineage_upkeep, manifest
from omniray.engine.history.ancestry import lineage_of
from omniray.engine.history.branch_head import find_branch
from omniray.engine.history.cas_table import SwapTable
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import FOLDER as COMMITS
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.maintenance import barrier
from omniray.engine.maintenance.orphans import TableSweep
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.store.object_store import ObjectStore, store_now_us
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.version_names import final_path, own_path
from omniray.engine.writes import row_sink
from tests.graphs import PERSON, insert, new_graph, parts_on, people, rows_of
from tests.kit.faulty_store import FaultyStore
from tests.stores import Root

TRIAL, PROBE = "trial", "probe"
PEOPLE = "nodes/Person.lance"
NAMES = [f"p{number}" for number in range(8)]


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    """A graph with ann, and a branch of it."""
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.create_branch(TRIAL)
        graph.flush()
        graph._finaliser.tidy()
        yield graph


@pytest.fixture
def store(graph: omniray.Graph) -> ObjectStore:
    return open_store(graph.uri)


def again(graph: omniray.Graph, branch: str = "main") -> omniray.Graph:
    """The same graph, as another process opens it."""
    return omniray.open(graph.uri, branch=branch)


def line_of(store: ObjectStore, name: str = TRIAL) -> str:
    return find_branch(store).newest.bindings[name].ulid


def newest_of(store: ObjectStore, line: str) -> CommitObject:
    newest = CommitLog(store, BranchId(line, line)).newest()
    assert newest is not None
    return newest


def at(point: Point, do: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """Do something the first time that a point is reached."""
    return armed({point: Action(lambda: (do(), None)[1], nth=1)})


def wait_a_tick(store: ObjectStore) -> None:
    """Let the clock that dates files go on, so that all files that are there are older than a sweep that begins now."""
    before = store_now_us(store)
    while store_now_us(store) <= before:
        pass


# The barrier


@contextlib.contextmanager
def loading(
    graph: omniray.Graph, branch: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Exception | None]]:
    """A load that has staged its rows as files and waits; call what is given to let it go on, and get its refusal."""
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 4)
    staged, go = threading.Event(), threading.Event()
    refusals: list[Exception] = []

    def wait() -> None:
        staged.set()
        go.wait()

    def load() -> None:
        try:
            loader.load([{"name": name} for name in NAMES], type="Person")
        except Exception as refusal:
            refusals.append(refusal)

    with again(graph, branch) as loader, armed({Point.STAGE_AFTER_ROWS: Action(wait, nth=1)}):
        thread = threading.Thread(target=load)
        thread.start()
        staged.wait()

        def finish() -> Exception | None:
            go.set()
            thread.join()
            with contextlib.suppress(BranchGone):
                loader.flush()
                loader._finaliser.tidy()
            return refusals[0] if refusals else None

        try:
            yield finish
        finally:
            finish()


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_branch_that_is_renamed_during_a_sweep_gets_its_barrier(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, is_renamed: bool
) -> None:
    """Between main's barrier and its own. Without it, rows go that were acknowledged."""
    other, refusals = again(graph), []
    with loading(graph, TRIAL, monkeypatch) as finish_load:
        wait_a_tick(store)

        def rename() -> None:
            if is_renamed:
                other.rename_branch(TRIAL, PROBE)

        with at(Point.SWEEP_AFTER_PUT, rename), at(Point.SWEEP_AFTER_FILES, lambda: refusals.append(finish_load())):
            swept = graph.sweep(older_than_s=0)
    (refusal,) = refusals
    assert isinstance(refusal, StorageError)
    assert swept.deleted.files > 0
    with again(graph, PROBE if is_renamed else TRIAL) as fresh:
        assert people(fresh) == ["ann"]
        assert newest_of(store, fresh.line).swept_before_us == swept.swept_before_us
    other.close()


def test_a_branch_whose_deletion_is_not_finished_takes_no_commit_after_a_sweep(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line has no end yet: a load would land there, refer to files that were swept, and be merged by its commit."""
    line, refusals = line_of(store), []
    with loading(graph, TRIAL, monkeypatch) as finish_load:
        wait_a_tick(store)
        with again(graph) as deleter, armed({Point.BRANCH_AFTER_MARK: Action(fail)}), pytest.raises(FailpointHit):
            deleter.delete_branch(TRIAL)
        with at(Point.SWEEP_AFTER_FILES, lambda: refusals.append(finish_load())):
            swept = graph.sweep(older_than_s=0)
    assert swept.deleted.files > 0
    assert [type(refusal) for refusal in refusals] == [BranchGone]
    assert newest_of(store, line).closed


def test_a_commit_of_a_deletion_that_a_sweep_finished_can_still_be_merged(
    graph: omniray.Graph, store: ObjectStore
) -> None:
    with again(graph, TRIAL) as trial:
        insert(trial, "bob")
        commit_id = trial.history(1)[0].commit_id
    with armed({Point.BRANCH_AFTER_MARK: Action(fail)}), pytest.raises(FailpointHit):
        graph.delete_branch(TRIAL)
    wait_a_tick(store)
    graph.sweep(older_than_s=0)
    graph.merge(commit_id)
    assert people(graph) == ["ann", "bob"]


def test_a_branch_that_is_deleted_during_a_sweep_needs_no_barrier(graph: omniray.Graph, store: ObjectStore) -> None:
    graph.create_branch(PROBE)
    line = line_of(store)
    with again(graph) as other, at(Point.SWEEP_AFTER_PUT, lambda: other.delete_branch(TRIAL)):
        swept = graph.sweep(older_than_s=0)
    assert newest_of(store, line).closed
    assert newest_of(store, line_of(store, PROBE)).swept_before_us == swept.swept_before_us


@pytest.mark.parametrize("late", [False, True], ids=["closed", "kept"])
def test_a_merged_branch_whose_deletion_is_not_finished_gets_its_barrier_if_it_lives(
    graph: omniray.Graph, store: ObjectStore, late: bool
) -> None:
    """It is deleted only if nobody has written to it since; the one that merged it died before the name was freed."""
    line = line_of(store)
    with again(graph, TRIAL) as writer:
        insert(writer, "bob")
        meanwhile = at(Point.BRANCH_AFTER_MARK, lambda: insert(writer, "late") if late else None)
        with meanwhile, at(Point.BRANCH_AFTER_CLOSE, fail), pytest.raises(FailpointHit):
            graph.merge(TRIAL, delete_source=True)
    graph.sweep(older_than_s=0)
    newest = newest_of(store, line)
    assert (newest.closed, newest.swept_before_us > 0) == (not late, late)


def test_a_branch_that_is_told_to_be_gone_and_is_not_stops_the_sweep(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who tells it may be wrong: without the barrier, the branch's files would not be safe."""

    def gone(*_: object, **__: object) -> None:
        raise BranchGone("the branch was deleted", line="")

    monkeypatch.setattr(barrier, "open_line", gone)
    with pytest.raises(BranchGone):
        graph.sweep(older_than_s=0)
    graph.create_branch(PROBE, TRIAL)


def test_branches_get_their_barriers_at_the_same_time_and_main_is_not_read_for_each(
    graph: omniray.Graph, store: ObjectStore
) -> None:
    """Each waits, before its put, until the other one has come as far."""
    graph.create_branch(PROBE)
    both, watched = threading.Barrier(2), FaultyStore(store)
    main = find_branch(store).newest
    with armed({Point.SWEEP_BEFORE_PUT: Action(lambda: (both.wait(timeout=60), None)[1])}):
        barrier.put_on_branches(cast(ObjectStore, watched), replace(main, swept_before_us=7), barrier.nobody_owns)
    assert {newest_of(store, line_of(store, name)).swept_before_us for name in (TRIAL, PROBE)} == {7}
    assert [call for call in watched.calls if call.path.startswith(f"{COMMITS}/{main.line}")] == []


# Owners of lines


def owned(store: ObjectStore, process: Process, name: str = TRIAL) -> Incarnation:
    """A coordinator takes the line of a branch over."""
    owner = Incarnation(new_ulid(), process, "ray://head:10001")
    take_over(open_branch(store, name).tip, str(owner))
    return owner


def test_the_line_of_a_dead_coordinator_s_branch_is_released_for_the_sweep(
    graph: omniray.Graph, store: ObjectStore
) -> None:
    owned(store, Process(this_process().host, 999_999, "1"))
    swept = graph.sweep(older_than_s=0)
    newest = newest_of(store, line_of(store))
    assert (newest.owner, newest.swept_before_us) == (EMBEDDED, swept.swept_before_us)


def test_a_sweep_says_which_branch_a_coordinator_owns(graph: omniray.Graph, store: ObjectStore) -> None:
    graph.create_branch(PROBE)
    owned(store, this_process())
    with pytest.raises(LineOwned, match=r"^branch 'trial': a coordinator owns this branch") as told:
        graph.sweep(older_than_s=0)
    assert told.value.facts["branch"] == TRIAL
    assert newest_of(store, line_of(store, PROBE)).swept_before_us > 0, "the others have it all the same"


# References


def orphan_in(store: ObjectStore, table: str = PEOPLE) -> str:
    """A data file that nothing refers to."""
    path = f"{table}/data/orphan.lance"
    store.put(path, b"")
    return path


def verdict(swept: SweepReport, table: str = PEOPLE) -> TableSweep:
    return next(one for one in swept.tables if one.table == table)


@pytest.mark.parametrize(
    ("is_own", "is_deleted"), [(True, False), (True, True), (False, False)], ids=["own", "of a deleted one", "main's"]
)
def test_a_table_is_spared_if_a_manifest_that_a_branch_pins_is_missing(
    graph: omniray.Graph, store: ObjectStore, is_own: bool, is_deleted: bool
) -> None:
    """Its own one, or one of main's that main has gone beyond. Once it is restored, everything can be read."""
    if is_own:
        with again(graph, TRIAL) as trial:
            insert(trial, "bob")
    pin = open_branch(store, TRIAL).newest().pins[PERSON]
    insert(graph, "cid")
    graph.flush()
    path = own_path(pin, graph.graph_id) if is_own else final_path(pin.path, pin.version)
    manifest, orphan = store.get(path), orphan_in(store)
    assert manifest is not None
    if is_deleted:
        graph.delete_branch(TRIAL)
    store.delete(path)
    wait_a_tick(store)
    assert f"version {pin.version}, which the branch with the id" in verdict(graph.sweep(older_than_s=0)).spared
    store.put(path, manifest)
    if not is_deleted:
        assert people(graph.snapshot(branch=TRIAL)) == (["ann", "bob"] if is_own else ["ann"])
    swept = verdict(graph.sweep(older_than_s=0))
    assert (swept.spared, [file.path for file in swept.orphans]) == ("", [orphan])


# What was staged on a branch


def files_of(store: ObjectStore, folder: str = PEOPLE) -> set[str]:
    return {file.path for file in store.files(folder)}


def left_without_sidecar(store: ObjectStore, branch: str = TRIAL) -> set[str]:
    """The files of a version that a process has staged; it died before anything told of it."""
    before, parts = files_of(store), parts_on(open_branch(store, branch))
    table = parts.cache.open(PERSON, parts.newest().pins[PERSON])
    change = parts.storage.stage_append(table, rows_of(table.type, ["ghost"]))
    parts.storage.commit_staged(table, change, str(uuid.uuid4()))
    parts.close()
    return files_of(store) - before


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_was_staged_on_a_branch_and_never_committed_goes_with_its_files(
    graph: omniray.Graph, store: ObjectStore, is_deleted: bool
) -> None:
    """Its manifest has the name of a version for good, with the number of one that was committed; the line knows it."""
    before = files_of(store)
    left = left_without_sidecar(store)
    assert {path.split("/")[2] for path in left} == {"_branches", "data", "_transactions"}
    with again(graph, TRIAL) as trial:
        insert(trial, "bob")
        insert(trial, "cid")
    graph.create_branch(PROBE, TRIAL)
    committed = files_of(store) - before - left
    assert any(path.split("/")[-1] in {one.split("/")[-1] for one in left} for path in committed)
    if is_deleted:
        graph.delete_branch(TRIAL, force=True)
    wait_a_tick(store)
    told, swept = (verdict(graph.sweep(older_than_s=0, dry_run=dry_run)) for dry_run in (True, False))
    assert told.orphans == swept.orphans
    assert {file.path for file in swept.orphans} == left
    assert files_of(store) == before | committed
    if not is_deleted:
        assert people(graph.snapshot(branch=PROBE)) == ["ann", "bob", "cid"]


def test_what_was_staged_on_a_branch_whose_history_can_t_be_read_stays(
    graph: omniray.Graph, store: ObjectStore
) -> None:
    line, left = line_of(store), left_without_sidecar(store)
    with again(graph, TRIAL) as trial:
        insert(trial, "bob")
        trial.flush()
        graph.delete_branch(TRIAL)
    for path in files_of(store, f"__manifests/{line}/data"):
        store.put(path, b"garbage")
    wait_a_tick(store)
    swept = verdict(graph.sweep(older_than_s=0))
    assert f"the history of the branch with the id {line} can't be read" in swept.spared
    assert left <= files_of(store)


def test_what_was_staged_on_a_line_that_is_not_there_stays(graph: omniray.Graph, store: ObjectStore) -> None:
    """Nobody can tell what it has pinned."""
    left = left_without_sidecar(store)
    (manifest,) = (path for path in left if "/_branches/" in path)
    strange = manifest.replace(line_of(store), new_ulid())
    store.put(strange, store.get(manifest) or b"")
    store.delete(manifest)
    wait_a_tick(store)
    assert verdict(graph.sweep(older_than_s=0)).deleted.files == 0
    assert left - {manifest} | {strange} <= files_of(store)


# Versions of a folded line that land late


def history_of(store: ObjectStore, line: str) -> list[str]:
    """The kinds of the commits of a line, newest first."""
    newest = newest_of(store, line)
    log = CommitLog(store, BranchId(TRIAL, line))
    return [entry.kind for entry in lineage_of(store, log, newest).entries(newest)]


def delete_and_sweep(graph: omniray.Graph, store: ObjectStore) -> None:
    graph.delete_branch(TRIAL)
    wait_a_tick(store)
    graph.sweep(older_than_s=0)


def once_before_it_stages(monkeypatch: pytest.MonkeyPatch, line: str, do: Callable[[], object]) -> None:
    """Do something when a version of a folded line has its files, and before it has a manifest."""
    stage, todo = SwapTable.stage, [do]

    def pausing(self: SwapTable, *arguments: Any) -> Any:
        if todo and self.uri.endswith(line):
            todo.pop()()
        return stage(self, *arguments)

    monkeypatch.setattr(SwapTable, "stage", pausing)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_fold_that_lands_after_its_branch_was_deleted_and_swept_breaks_nothing(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Its process pauses before it publishes. Nothing follows on that line, so nobody takes the fold's number."""
    line = line_of(store)
    with again(graph, TRIAL) as trial:
        if not is_first:
            insert(trial, "bob")
            trial.flush()
        insert(trial, "cid")
        once_before_it_stages(monkeypatch, line, lambda: delete_and_sweep(graph, store))
        trial.flush()
    assert newest_of(store, line).closed
    kinds = history_of(store, line)
    assert kinds == ["Mutation"] * (1 if is_first else 2)
    graph.sweep(older_than_s=0)
    assert history_of(store, line) == kinds


def test_upkeep_that_lands_after_its_branch_was_deleted_and_swept_breaks_nothing(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_levels, "SEALED_ROWS", 2)
    monkeypatch.setattr(lineage_levels, "FAN_IN", 2)
    monkeypatch.setattr(manifest, "TAIL_ROWS_MAX", 2)
    line = line_of(store)
    with again(graph, TRIAL) as trial:
        for name in "bcdefgh":
            insert(trial, name)
            trial.flush()
        once_before_it_stages(monkeypatch, line, lambda: delete_and_sweep(graph, store))
        lineage_upkeep.keep_up(trial._branch.manifest._table)
    assert newest_of(store, line).closed
    assert history_of(store, line) == ["Mutation"] * 7


def test_what_a_killed_fold_left_goes_once_a_later_version_is_there(graph: omniray.Graph, store: ObjectStore) -> None:
    line = line_of(store)
    with again(graph, TRIAL) as trial:
        insert(trial, "bob")
        trial.flush()
        before = set(store.files(f"__manifests/{line}/data"))
        insert(trial, "cid")
        with armed({Point.D_FOLD_STAGED: Action(fail)}), pytest.raises(FailpointHit):
            trial.flush()
        left = {file.path for file in set(store.files(f"__manifests/{line}/data")) - before}
        trial.flush()
    assert left
    delete_and_sweep(graph, store)
    assert not left & {file.path for file in store.files(f"__manifests/{line}/data")}
    assert history_of(store, line) == ["Mutation"] * 2
