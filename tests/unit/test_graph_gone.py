"""A graph that is created anew at the same place is another graph: handles of the first one change nothing in it.

Each test deletes a graph under somebody who holds it open, and creates another one there, with rows of its own. The
oracle is every file of the other one, byte for byte.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import omniray
from omniray.engine import load_stager
from omniray.engine.base.errors import GraphGone, InvariantViolation, OmnirayError, StorageError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit import attempt, phase_d
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.commit.staging import Base, Staged, TableStage, TableStager
from omniray.engine.history import manifest_reader, open_branch
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import storage
from omniray.engine.writes import part, row_sink
from omniray.engine.writes.options import LoadOptions
from omniray.workers.kept_graphs import kept_open
from tests.coordination import Gate, serving
from tests.foreign import plain_ids
from tests.graphs import AGE, PERSON, SCHEMA, create_store, insert, new_graph, parts_of, people, reopen
from tests.healing import everybody_is_dead, recovered
from tests.kit.mortal import bury
from tests.stores import Root

Contents = dict[str, bytes]
MANY = 40


def contents(uri: str) -> Contents:
    """Every file of a graph."""
    root = Path(uri)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def replaced(uri: str) -> Contents:
    """Delete the graph and create another one in its place, with one person; its files."""
    shutil.rmtree(uri)
    with omniray.init(uri, schema=SCHEMA) as other:
        insert(other, "zoe")
    return contents(uri)


def look_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the look at who the graph is."""
    for module in (attempt, load_stager, phase_d, storage, manifest_reader, open_branch):
        monkeypatch.setattr(module, "refuse_gone", lambda store, graph_id: None)


# Embedded


@pytest.mark.parametrize("warm", [True, False])
def test_a_writer_of_a_graph_that_was_created_anew_writes_nothing(disk: Root, warm: bool) -> None:
    with new_graph(disk) as graph:
        if warm:
            insert(graph, "ann")
            graph.flush()
        files = replaced(graph.uri)
        with pytest.raises(GraphGone, match="another one was created in its place; nothing was written") as gone:
            insert(graph, "bob")
        assert gone.value.facts["graph_id"] == graph.graph_id
        with pytest.raises(GraphGone):
            graph.load([{"name": "cid"}], type="Person", mode="overwrite")
    assert contents(graph.uri) == files


def test_a_writer_of_a_graph_that_was_deleted_says_so_and_creates_nothing(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.flush()
        shutil.rmtree(graph.uri)
        with pytest.raises(GraphGone, match="was deleted; nothing was written"):
            insert(graph, "bob")
    assert contents(graph.uri) == {}


def _no_such_file(self: TableStager, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
    raise StorageError("no such file")


def test_a_writer_whose_files_are_gone_with_the_graph_is_told_of_the_graph(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: staging raises too, for want of its files; only the look at the graph says that no retry helps."""
    with new_graph(disk) as graph:
        replaced(graph.uri)
        monkeypatch.setattr(TableStager, "stage", _no_such_file)
        with pytest.raises(GraphGone, match="another one was created in its place"):
            insert(graph, "ann")


def test_the_test_of_writers_can_fail(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the look the rows of the new graph are replaced, as every reader of its tables sees them."""
    with new_graph(disk) as graph:
        insert(graph, "ann", "bob")
        graph.flush()
        replaced(graph.uri)
        store = open_store(graph.uri)
        assert plain_ids(store) == ["zoe"]
        look_away(monkeypatch)
        insert(graph, "cid")
        graph.flush()
        assert plain_ids(store) == ["ann", "bob", "cid"]


def test_a_load_into_a_graph_that_was_created_anew_stages_nothing(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 10)
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.flush()
        files = replaced(graph.uri)
        leases = Mock(wraps=graph._branch.sidecars.put)
        monkeypatch.setattr(graph._branch.sidecars, "put", leases)
        with pytest.raises(GraphGone, match="another one was created in its place; nothing was written"):
            graph.load([{"name": f"p{n}"} for n in range(MANY)], type="Person")
    assert contents(graph.uri) == files
    leases.assert_not_called()


def test_a_recovery_of_a_graph_that_was_deleted_says_so_while_another_one_is_being_created(disk: Root) -> None:
    """The creator has put `__graph.json` and is about to finish. Nothing of the first graph is lost by a fault."""
    healer = parts_of(create_store(disk), is_dead=everybody_is_dead)
    uri, files = healer.store.uri, []

    def heal() -> None:
        files.append(contents(uri))
        with pytest.raises(GraphGone, match="another one was created in its place"):
            recovered(healer)
        files.append(contents(uri))

    shutil.rmtree(uri)
    with armed({Point.INIT_AFTER_IDENTITY: Action(heal, nth=1)}):
        create_graph(open_store(uri), SCHEMA)
    before, after = files
    assert before == after
    bury(healer)


def replaced_before_its_phase_d(disk: Root, point: Point) -> tuple[omniray.Graph, Gate, Contents]:
    """A graph that is replaced after the answer to a write, the last of several, and at a point of its Phase D."""
    graph = new_graph(disk)
    for name in ("ann", "bob", "cid"):
        insert(graph, name)
        graph.flush()
    gate = Gate()
    with armed({point: Action(gate.hold, nth=1)}):
        insert(graph, "dan")
        gate.wait_until_reached()
    return graph, gate, replaced(graph.uri)


@pytest.mark.parametrize("point", [Point.D_BEFORE_NAME, Point.D_BEFORE_FOLD])
def test_phase_d_of_a_graph_that_was_created_anew_meanwhile_gives_no_name_and_folds_nothing(
    disk: Root, point: Point
) -> None:
    graph, gate, files = replaced_before_its_phase_d(disk, point)
    gate.open()
    with pytest.raises(OmnirayError):
        graph.close()
    assert contents(graph.uri) == files


def test_the_test_of_phase_d_can_fail(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the look the history of the new graph ends in the head of the one that is gone."""
    graph, gate, files = replaced_before_its_phase_d(disk, Point.D_BEFORE_FOLD)
    look_away(monkeypatch)
    gate.open()
    with contextlib.suppress(OmnirayError):
        graph.close()
    assert contents(graph.uri) != files
    with omniray.open(graph.uri, read_only=True) as other, pytest.raises(InvariantViolation, match="does not end in"):
        other.history()


@pytest.mark.parametrize("warm", [True, False])
def test_a_reader_of_a_graph_that_was_created_anew_is_told_so(disk: Root, warm: bool) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
    with reopen(graph, disk, read_only=True) as reader:
        snapshot = reader.snapshot()
        if warm:
            assert people(snapshot) == ["ann"]
        files = replaced(graph.uri)
        for read in (lambda: people(snapshot), lambda: people(reader)):
            with pytest.raises(GraphGone, match="another one was created in its place"):
                read()
    assert contents(graph.uri) == files


# A publisher


def test_a_publisher_of_a_graph_that_was_created_anew_commits_nothing(disk: Root) -> None:
    with new_graph(disk) as graph:
        store = open_store(graph.uri)
    # When it ends it hands back a line that is gone, and so Phase D of that fails.
    with contextlib.suppress(GraphGone), serving(store) as service:
        service.write(service.load_request([{"name": "ann"}], type="Person"))
        service.finaliser.flush()
        service.finaliser.tidy()
        files = replaced(graph.uri)
        for name in ("bob", "cid"):
            with pytest.raises(GraphGone, match="another one was created in its place"):
                service.write(service.load_request([{"name": name}], type="Person"))
        service.publisher.close()  # what it gave up is deleted by then
        assert contents(graph.uri) == files


def test_a_publisher_ends_when_a_judgement_finds_that_the_graph_was_created_anew(disk: Root) -> None:
    """It is no refusal of one write: its actors have nothing to do any more."""
    with new_graph(disk) as graph:
        store = open_store(graph.uri)
    ended: list[OmnirayError] = []
    with contextlib.suppress(GraphGone), serving(store) as service:
        service.publisher._on_ended = ended.append
        service.write(service.load_request([{"name": "ann"}], type="Person"))
        service.finaliser.flush()
        service.queues.drop([PERSON])  # or it would judge without a look at the table
        replaced(graph.uri)
        with pytest.raises(GraphGone, match="another one was created in its place"):
            service.write(service.mutation(AGE, {"name": "ann", "age": 1}))
        service.publisher.close()
    assert [type(error) for error in ended] == [GraphGone]


def test_the_test_of_publishers_can_fail(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the look it commits, and Phase D shows its rows in the tables of the new graph."""
    with new_graph(disk) as graph:
        store = open_store(graph.uri)
    with serving(store) as service:
        for name in ("ann", "bob"):  # the second one knows the first, and the third reads nothing
            service.write(service.load_request([{"name": name}], type="Person"))
        service.finaliser.flush()
        replaced(graph.uri)
        look_away(monkeypatch)
        service.write(service.load_request([{"name": "cid"}], type="Person"))
        service.finaliser.flush()
        assert plain_ids(store) == ["ann", "bob", "cid"]


# Workers that stage

FAIL = LoadOptions.checked("append", "fail", None)


def read_part(stager: load_stager.LoadStager) -> Any:
    rows = pa.RecordBatch.from_pydict({"name": [f"p{n}" for n in range(MANY)]})
    return stager.read_part([rows], "Person", "here", SidecarIntent(new_ulid(), "test"))


def stage_part(stager: load_stager.LoadStager) -> Any:
    return stager.stage_part([{"name": "bob"}], FAIL, 0, type="Person")


@pytest.mark.parametrize("stage", [read_part, stage_part])
def test_a_worker_stages_nothing_for_a_graph_that_was_created_anew(
    disk: Root, stage: Callable[[load_stager.LoadStager], Any]
) -> None:
    with new_graph(disk) as graph:
        stager = kept_open(graph.uri, None, graph.graph_id)
    files = replaced(graph.uri)
    assert kept_open(graph.uri, None, graph.graph_id) is stager, "it is kept open"
    with pytest.raises(GraphGone, match="another one was created in its place"):
        stage(stager)
    assert contents(graph.uri) == files


def test_the_test_of_workers_can_fail(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the look files and leases of the first graph come into the other one."""
    monkeypatch.setattr(part, "INLINE_ROWS_MAX", 10)
    with new_graph(disk) as graph:
        stager = kept_open(graph.uri, None, graph.graph_id)
        assert stager._branch.open_newest("node:Person").dataset.version == 1
    files = replaced(graph.uri)
    look_away(monkeypatch)
    read_part(stager)
    assert contents(graph.uri).keys() > files.keys()


def test_a_worker_that_is_asked_for_a_graph_that_is_gone_does_not_open_the_other_one(disk: Root) -> None:
    with new_graph(disk) as graph:
        pass
    replaced(graph.uri)
    with pytest.raises(GraphGone):
        kept_open(graph.uri, None, graph.graph_id)
