"""The birth of a graph: an operation like any other, so whole or not at all, whoever else tries or dies."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import lance
import pytest

import omniray
from omniray.engine.base.errors import (
    GraphExists,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    ParseError,
    SchemaError,
    StorageError,
)
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.process import this_process
from omniray.engine.commit import create_graph as birth
from omniray.engine.history.accepted_schema import SCHEMA_STATE, SCHEMA_TEXT
from omniray.engine.line import line_end as tip
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import CITY, PERSON, SCHEMA, files_below, insert, new_graph, people
from tests.kit.faulty_store import FaultyStore
from tests.kit.mortal import dying_at
from tests.stores import Root

TABLES = ("edges/Knows.lance", "nodes/City.lance", "nodes/Person.lance")
BEFORE_PUT = (Point.INIT_BEFORE_SIDECAR, Point.INIT_AFTER_SIDECAR, Point.INIT_AFTER_TABLE, Point.INIT_BEFORE_PUT)
AFTER_PUT = (
    Point.INIT_AFTER_PUT, Point.INIT_AFTER_SCHEMA, Point.D_AFTER_NAME, Point.D_BEFORE_FOLD, Point.D_FOLD_STAGED,
    Point.D_AFTER_FOLD, Point.D_BEFORE_TIDY, Point.D_BEFORE_SIDECARS,
)  # fmt: skip


def files_of(root: Root) -> list[str]:
    return [file.path for file in open_store(f"{root.uri}/graph", root.storage_options).files("")]


def remains_among(paths: list[str]) -> list[str]:
    """Sidecars, and tables' versions that nobody sees; a staging name of the manifest's own is the sweep's."""
    return [
        path for path in paths if path.startswith("__recovery/") or (path.startswith(TABLES) and ".manifest-" in path)
    ]


def die_at(point: Point, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Init in a process that ends at a point, and is known to be dead afterwards."""
    store = FaultyStore(open_store(f"{root.uri}/graph", root.storage_options))
    with monkeypatch.context() as patch, dying_at(store, point):
        patch.setattr(birth, "this_process", lambda: replace(this_process(), started="before this one"))
        birth.create_graph(cast(ObjectStore, store), SCHEMA)
    assert store.is_dead


# Born


def test_a_new_graph_is_empty_and_has_one_commit(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        assert people(graph) == []
        assert [entry.kind for entry in graph.history()] == ["Init"]
        assert graph.schema_text == SCHEMA
        assert graph.snapshot().versions == {"edge:Knows": 1, CITY: 1, PERSON: 1}
        assert graph.uri == f"{any_root.uri}/graph"


def test_a_birth_leaves_its_line_its_tables_its_manifest_and_its_schema_and_nothing_else(disk: Root) -> None:
    new_graph(disk).close()
    found = files_of(disk)
    assert sorted({path.partition("/")[0] for path in found}) == [
        "__commits", "__manifest", SCHEMA_STATE, SCHEMA_TEXT, "edges", "nodes",
    ]  # fmt: skip
    assert not [path for path in found if ".manifest-" in path]
    for table in TABLES:
        assert lance.dataset(f"{disk.uri}/graph/{table}").version == 1


def test_a_birth_is_recorded_with_its_actor(disk: Root) -> None:
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA, actor="ann") as graph:
        assert [entry.actor for entry in graph.history()] == ["ann"]
        assert graph.recoveries() == []


# Where something is already


def test_a_second_init_is_refused_and_changes_nothing(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann")
        with pytest.raises(GraphExists, match=r"there is a graph at .* already"):
            new_graph(any_root)
        assert people(graph) == ["ann"]


@pytest.mark.parametrize(
    "path",
    [
        "letter.txt",
        "nodes/letter.txt",
        "nodes/Person.lance/data/rows.lance",
        "nodes/Person.lance/_versions/18446744073709551614.manifest",
        "nodes/Person.lance/_versions/deeper/18446744073709551614.manifest-1",
        "other/Person/_transactions/0-1.txn",
        SCHEMA_TEXT,
    ],
)
def test_a_place_with_other_files_in_it_is_refused_and_left_as_it_is(any_root: Root, path: str) -> None:
    open_store(f"{any_root.uri}/graph", any_root.storage_options).put(path, b"mine")
    with pytest.raises(GraphExists, match="is not empty"):
        new_graph(any_root)
    assert files_of(any_root) == [path]


# At once


def test_of_inits_at_once_exactly_one_creates_the_graph_and_the_others_leave_nothing(any_root: Root) -> None:
    """They meet just before their puts, so each has staged everything by then."""
    meeting = threading.Barrier(4)

    def create(_: int) -> str:
        try:
            new_graph(any_root).close()
        except GraphExists:
            return "refused"
        return "created"

    with armed({Point.INIT_BEFORE_PUT: Action(meeting.wait)}), ThreadPoolExecutor(4) as pool:  # type: ignore[arg-type]
        answers = sorted(pool.map(create, range(4)))
    assert answers == ["created"] + ["refused"] * 3
    found = files_of(any_root)
    assert remains_among(found) == []
    assert len([path for path in found if "/_transactions/0-" in path and not path.startswith("__")]) == len(TABLES)
    with omniray.open(f"{any_root.uri}/graph", storage_options=any_root.storage_options) as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]
        assert graph.recoveries() == []


def test_a_creator_that_lost_leaves_the_folders_to_the_graph_that_is_there(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder may be one that the winner's next file is just about to be put in."""
    folder = Path(disk.uri) / "graph" / "nodes" / "Person" / "data"

    def win() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(birth, "reach", lambda point: None)
            new_graph(disk).close()
        folder.mkdir()

    with armed({Point.INIT_BEFORE_PUT: Action(win)}), pytest.raises(GraphExists):
        new_graph(disk)
    assert folder.exists()


# Failures


@pytest.mark.parametrize(
    ("schema", "error"), [("node Person {", ParseError), ("edge Knows: Nobody -> Nobody", SchemaError)]
)
def test_a_bad_schema_is_refused_and_leaves_nothing(disk: Root, schema: str, error: type[OmnirayError]) -> None:
    with pytest.raises(error):
        omniray.init(f"{disk.uri}/graph", schema=schema)
    assert list(Path(disk.uri).iterdir()) == []


@pytest.mark.parametrize("point", BEFORE_PUT)
def test_a_birth_that_fails_before_its_put_leaves_nothing(any_root: Root, point: Point) -> None:
    with armed({point: Action(fail)}), pytest.raises(FailpointHit):
        new_graph(any_root)
    assert files_of(any_root) == []
    assert not (Path(any_root.uri) / "graph").exists()
    new_graph(any_root).close()


def test_a_birth_whose_put_is_refused_keeps_what_a_late_put_would_pin_and_the_next_one_works(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's client repeats requests: behind its refusal may be one that is still on its way."""
    late: list[CommitObject] = []

    def refused(self: CommitLog, obj: CommitObject) -> Answer:
        late.append(obj)
        raise StorageError("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "put", refused)
        with pytest.raises(StorageError, match="access denied"):
            new_graph(disk)
    staged = {pin.staging for pin in late[0].pins.values()}
    assert staged <= set(files_below(Path(disk.uri) / "graph"))
    new_graph(disk).close()


def test_a_birth_that_is_interrupted_behind_its_put_has_created_the_graph(disk: Root) -> None:
    """What it staged is pinned by then: to clear it away would destroy the graph."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with armed({Point.INIT_AFTER_PUT: Action(interrupt)}), pytest.raises(KeyboardInterrupt):
        new_graph(disk)
    with omniray.open(f"{disk.uri}/graph") as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]


def test_a_birth_whose_outcome_is_unknown_discards_nothing(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    put = CommitLog.put

    def unclear(self: CommitLog, obj: CommitObject) -> Answer:
        put(self, obj)
        return Answer.UNCLEAR

    def down(self: CommitLog, seq: int) -> CommitObject:
        raise StorageError("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(tip, "UNCLEAR_TIMEOUT_S", 0.0)
        patch.setattr(CommitLog, "put", unclear)
        patch.setattr(CommitLog, "keep", lambda self, obj: obj)
        patch.setattr(CommitLog, "newest", lambda self: None)
        patch.setattr(CommitLog, "read", down)
        with pytest.raises(OutcomeUnknown):
            new_graph(disk)
    with omniray.open(f"{disk.uri}/graph") as graph:
        assert people(graph) == []


# Creators that die


@pytest.mark.parametrize("point", BEFORE_PUT)
def test_a_creator_that_died_before_its_put_has_created_nothing_and_the_next_one_does(
    any_root: Root, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    die_at(point, any_root, monkeypatch)
    with pytest.raises(NotFound, match="omniray init"):
        omniray.open(f"{any_root.uri}/graph", storage_options=any_root.storage_options)
    with new_graph(any_root) as graph:
        insert(graph, "ann")
        recorded = [(one.sidecar_writer_kind, one.recovery_kind) for one in graph.recoveries()]
        assert recorded == ([] if point is Point.INIT_BEFORE_SIDECAR else [("Init", "RolledBack")])
    assert remains_among(files_of(any_root)) == []


@pytest.mark.parametrize("point", AFTER_PUT)
def test_a_creator_that_died_after_its_put_has_created_the_graph_and_an_open_heals_it(
    any_root: Root, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    die_at(point, any_root, monkeypatch)
    with pytest.raises(GraphExists, match=r"there is a graph at .* already"):
        new_graph(any_root)
    with omniray.open(f"{any_root.uri}/graph", storage_options=any_root.storage_options) as graph:
        assert [(one.sidecar_writer_kind, one.recovery_kind) for one in graph.recoveries()] == [
            ("Init", "RolledForward")
        ]
        assert graph.schema_text == SCHEMA
        for table in TABLES:
            assert lance.dataset(f"{graph.uri}/{table}", storage_options=any_root.storage_options).version == 1
        insert(graph, "ann")
        assert people(graph) == ["ann"]
    found = files_of(any_root)
    assert remains_among(found) == []
    assert {SCHEMA_TEXT, SCHEMA_STATE} <= set(found)


def test_a_graph_whose_creator_died_is_read_without_a_write(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schema is in object 1 while the files that repeat it are not there yet."""
    die_at(Point.INIT_AFTER_PUT, disk, monkeypatch)
    before = files_below(disk.uri)
    with omniray.open(f"{disk.uri}/graph", read_only=True) as reader:
        assert reader.schema_text == SCHEMA
        assert [entry.kind for entry in reader.history()] == ["Init"]
    assert files_below(disk.uri) == before


# Stores that will not do


def test_a_store_that_does_not_honour_put_if_absent_is_refused(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: DirectoryStore, path: str, data: bytes) -> Answer:
        self.put(path, data)
        return Answer.CREATED

    monkeypatch.setattr(DirectoryStore, "put_if_absent", careless)
    with pytest.raises(StorageError, match="does not honour put-if-absent"):
        new_graph(disk)
    assert files_below(disk.uri) == []


def test_a_store_that_does_not_list_in_order_is_refused(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DirectoryStore, "first_name", lambda self, folder: next(iter([*self.names(folder)][::-1]), None)
    )
    with pytest.raises(StorageError, match="does not list names in order"):
        new_graph(disk)
    assert files_below(disk.uri) == []
