"""The creation of a graph: an operation like any other, so whole or not at all, whoever else tries or dies."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import lance
import pytest

import omniray
from omniray.engine.base.errors import (
    FormatMismatch,
    GraphExists,
    GraphGone,
    InvariantViolation,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    ParseError,
    SchemaError,
    StorageError,
)
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.process import this_process
from omniray.engine.commit import attempt, phase_d
from omniray.engine.commit.create_graph import UNCLEAR_TRIES_MAX, create_graph
from omniray.engine.history.accepted_schema import accept, path_of
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.graph_identity import PATH as IDENTITY
from omniray.engine.line.graph_identity import GraphIdentity, encode, read_identity
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import CITY, PERSON, SCHEMA, files_below, insert, new_graph, people
from tests.kit.faulty_store import FaultyStore
from tests.kit.mortal import dying_at
from tests.stores import Root

TABLES = ("edges/Knows.lance", "nodes/City.lance", "nodes/Person.lance")
SCHEMA_FILE = path_of(accept(SCHEMA, version=1).ref)
BEFORE_PUT = (
    Point.A_BEFORE_SIDECAR, Point.A_AFTER_SIDECAR, Point.B_BEFORE_TABLE, Point.B_AFTER_TABLE, Point.C_BEFORE_PUT,
    Point.C_AFTER_PUT, Point.INIT_BEFORE_IDENTITY,
)  # fmt: skip
AFTER_PUT = (
    Point.INIT_AFTER_IDENTITY, Point.D_AFTER_NAME, Point.D_BEFORE_FOLD, Point.D_FOLD_STAGED, Point.D_AFTER_FOLD,
    Point.D_BEFORE_TIDY, Point.D_BEFORE_SIDECARS,
)  # fmt: skip


def files_of(root: Root) -> list[str]:
    return [file.path for file in open_store(f"{root.uri}/graph", root.storage_options).files("")]


def remains_among(paths: list[str]) -> list[str]:
    """Sidecars, and tables' versions that nobody sees; a staging name of the manifest's own is the sweep's."""
    return [
        path for path in paths if path.startswith("__recovery/") or (path.startswith(TABLES) and "/_staged/" in path)
    ]


def lines_among(paths: list[str]) -> set[str]:
    """The lines that have an object."""
    return {path.split("/")[1] for path in paths if path.startswith("__commits/")}


def die_at(point: Point, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Init in a process that ends at a point, and is known to be dead afterwards."""
    store = FaultyStore(open_store(f"{root.uri}/graph", root.storage_options))
    with monkeypatch.context() as patch, dying_at(store, point):
        patch.setattr(attempt, "this_process", lambda: replace(this_process(), started="before this one"))
        create_graph(cast(ObjectStore, store), SCHEMA)
    assert store.is_dead


# Created


def test_a_new_graph_is_empty_and_has_one_commit(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        assert people(graph) == []
        assert [entry.kind for entry in graph.history()] == ["Init"]
        assert graph.schema_text == SCHEMA
        assert graph.snapshot().versions == {"edge:Knows": 1, CITY: 1, PERSON: 1}
        assert graph.uri == f"{any_root.uri}/graph"


def test_a_creation_leaves_its_identity_its_line_its_tables_its_manifest_and_its_schema_and_nothing_else(
    disk: Root,
) -> None:
    new_graph(disk).close()
    found = files_of(disk)
    assert sorted({path.partition("/")[0] for path in found}) == [
        "__commits", IDENTITY, "__manifest", "__schema", "edges", "nodes",
    ]  # fmt: skip
    assert [path for path in found if path.startswith("__schema")] == [SCHEMA_FILE]
    graph_id = read_identity(open_store(f"{disk.uri}/graph")).graph_id
    assert [path for path in found if path.startswith("__commits")] == [f"__commits/{graph_id}/{2**64 - 2}.json"]
    assert remains_among(found) == []
    for table in TABLES:
        assert lance.dataset(f"{disk.uri}/graph/{table}").version == 1


def test_two_graphs_with_the_same_schema_are_two_graphs(disk: Root) -> None:
    with new_graph(disk, "one") as one, new_graph(disk, "other") as other:
        found = [read_identity(open_store(graph.uri)).graph_id for graph in (one, other)]
    assert found[0] != found[1]


def test_a_creation_is_recorded_with_its_actor(disk: Root) -> None:
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
        "nodes/Person.lance/_history/18446744073709551614.manifest",
        "nodes/_staged/18446744073709551614.manifest",
        "other/Person.lance/_transactions/0-1.txn",
        "__manifest/data/rows.lance",
        "_schema.pg",
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

    arms = {Point.INIT_BEFORE_IDENTITY: Action(meeting.wait)}  # type: ignore[arg-type]
    with armed(arms), ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(create, range(4)))
    assert answers == ["created"] + ["refused"] * 3
    found = files_of(any_root)
    assert remains_among(found) == []
    assert lines_among(found) == {read_identity(open_store(f"{any_root.uri}/graph", any_root.storage_options)).graph_id}
    assert len([path for path in found if "/_transactions/0-" in path and not path.startswith("__")]) == len(TABLES)
    with omniray.open(f"{any_root.uri}/graph", storage_options=any_root.storage_options) as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]
        assert graph.recoveries() == []


def test_a_creator_that_lost_leaves_the_folders_to_the_graph_that_is_there(disk: Root) -> None:
    """An empty folder may be one that the winner's next file is just about to be put in."""
    folder = Path(disk.uri) / "graph" / "nodes" / "Person.lance" / "data"

    def win() -> None:
        new_graph(disk).close()
        folder.mkdir(exist_ok=True)

    with armed({Point.INIT_BEFORE_IDENTITY: Action(win, nth=1)}), pytest.raises(GraphExists, match="another process"):
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
def test_a_creation_that_fails_before_its_put_has_created_nothing_and_the_next_one_works(
    any_root: Root, point: Point
) -> None:
    with armed({point: Action(fail)}), pytest.raises(FailpointHit):
        new_graph(any_root)
    left = files_of(any_root)
    assert lines_among(left) == set()
    assert [path for path in left if path.startswith("__recovery/")] == []
    with new_graph(any_root) as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]


@pytest.mark.parametrize("failing", [0, 1, 3], ids=["the sidecar", "a table", "a table later"])
def test_a_creation_whose_store_fails_leaves_nothing_but_files_that_nobody_names(
    disk: Root, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    store = open_store(f"{disk.uri}/graph")
    put, put_if_absent, count = store.put, store.put_if_absent, iter(range(100))

    def unlucky(path: str, data: bytes) -> None:
        if next(count) == failing:
            raise StorageError("access denied")
        put(path, data)

    def unlucky_sidecar(path: str, data: bytes, **options: Any) -> Answer:
        if failing == 0 and path.startswith("__recovery/"):
            raise StorageError("access denied")
        return put_if_absent(path, data, **options)

    monkeypatch.setattr(store, "put_if_absent", unlucky_sidecar)
    monkeypatch.setattr(store, "put", unlucky if failing else put)
    with pytest.raises(StorageError, match="access denied"):
        create_graph(store, SCHEMA)
    assert [path for path in files_of(disk) if "/_transactions/" not in path] == []
    monkeypatch.undo()
    create_graph(store, SCHEMA)


def test_a_creation_whose_object_is_refused_has_created_nothing_however_late_that_lands(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's client repeats requests: behind its refusal may be one that is still on its way."""
    late: list[tuple[CommitLog, CommitObject]] = []

    def refused(self: CommitLog, obj: CommitObject) -> Answer:
        late.append((self, obj))
        raise StorageError("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "put", refused)
        with pytest.raises(StorageError, match="access denied"):
            new_graph(disk)
    ((log, obj),) = late
    log.put(obj)
    with pytest.raises(NotFound, match="omniray init"):
        omniray.open(f"{disk.uri}/graph")
    with new_graph(disk) as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]


def test_a_creation_that_is_interrupted_behind_its_put_has_created_the_graph(disk: Root) -> None:
    """What it staged is pinned by then: to clear it away would destroy the graph."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with armed({Point.INIT_AFTER_IDENTITY: Action(interrupt)}), pytest.raises(KeyboardInterrupt):
        new_graph(disk)
    with omniray.open(f"{disk.uri}/graph") as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_creation_whose_outcome_is_unknown_discards_nothing(
    disk: Root, monkeypatch: pytest.MonkeyPatch, has_landed: bool
) -> None:
    store = open_store(f"{disk.uri}/graph")
    put, late = store.put_if_absent, []

    def unclear(path: str, data: bytes, **options: Any) -> Answer:
        if path != IDENTITY:
            return put(path, data, **options)
        late.append(data)
        if has_landed:
            put(path, data, **options)
        return Answer.UNCLEAR

    def down(path: str) -> bytes | None:
        if path == IDENTITY and late:
            raise StorageError("the store is down")
        return get(path)

    get = store.get
    with monkeypatch.context() as patch:
        patch.setattr(store, "put_if_absent", unclear)
        patch.setattr(store, "get", down)
        with pytest.raises(OutcomeUnknown, match="may have been created"):
            create_graph(store, SCHEMA)
    assert late == late[:1] * UNCLEAR_TRIES_MAX, "the same bytes each time"
    if not has_landed:
        put(IDENTITY, late[0])  # it arrives in the end
    with omniray.open(f"{disk.uri}/graph") as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]


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
        assert recorded == ([] if point is Point.A_BEFORE_SIDECAR else [("Init", "RolledBack")])
    found = files_of(any_root)
    if point is not Point.A_BEFORE_SIDECAR:  # nothing names what was staged without one: it is the sweep's
        assert remains_among(found) == []
    assert lines_among(found) == {read_identity(open_store(f"{any_root.uri}/graph", any_root.storage_options)).graph_id}


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
    assert {SCHEMA_FILE, IDENTITY} <= set(found)


def test_a_graph_whose_creator_died_is_read_without_a_write(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phase D is left to those who may write; versions are read under their own names."""
    die_at(Point.INIT_AFTER_IDENTITY, disk, monkeypatch)
    before = files_below(disk.uri)
    with omniray.open(f"{disk.uri}/graph", read_only=True) as reader:
        assert reader.schema_text == SCHEMA
        assert [entry.kind for entry in reader.history()] == ["Init"]
        assert people(reader) == []
    assert files_below(disk.uri) == before


# Stores that will not do


def test_a_store_that_does_not_honour_put_if_absent_is_refused(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: DirectoryStore, path: str, data: bytes, *, lasting: bool = True) -> Answer:
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


# Which graph it is


def test_a_graph_of_format_1_is_refused_with_the_way_to_bring_it_along(any_root: Root) -> None:
    store = open_store(f"{any_root.uri}/graph", any_root.storage_options)
    main = "__commits/main~00000000000000000000000000"
    store.put("__schema_state.json", b'{"format":1,"schema_hash":"x"}')
    store.put("_schema.pg", SCHEMA.encode())
    store.put(f"{main}/18446744073709551614.json", b'{"format":1,"seq":1,"op_id":"op"}')
    before = files_of(any_root)
    recipe = r"has format 1, .* serves only 2.*\(omniray export\).*\(omniray init\).*load the export"
    for read_only in (False, True):
        with pytest.raises(FormatMismatch, match=recipe) as refusal:
            omniray.open(store.uri, storage_options=any_root.storage_options, read_only=read_only)
        assert refusal.value.facts == {"found": 1, "served": 2}
    with pytest.raises(GraphExists, match="is not empty"):
        new_graph(any_root)
    assert files_of(any_root) == before


def test_where_nothing_is_there_is_no_graph_of_any_format(any_root: Root) -> None:
    """The twin of the refusal above."""
    with pytest.raises(NotFound, match="omniray init"):
        omniray.open(f"{any_root.uri}/graph", storage_options=any_root.storage_options)


@pytest.mark.parametrize(
    ("data", "error", "advice"),
    [
        (b"{", InvariantViolation, "restore it from a backup"),
        (b'{"format":2}', InvariantViolation, "restore it from a backup"),
        (b'{"graph_id":"x","format":3}', FormatMismatch, "upgrade omniray"),
    ],
)
def test_an_identity_that_can_t_be_read_is_refused_and_kept(
    disk: Root, data: bytes, error: type[OmnirayError], advice: str
) -> None:
    new_graph(disk).close()
    store = open_store(f"{disk.uri}/graph")
    store.put(IDENTITY, data)
    with pytest.raises(error, match=advice):
        omniray.open(store.uri)
    assert store.get(IDENTITY) == data


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
@pytest.mark.parametrize("successor", [True, False], ids=["another graph is there", "nothing is there"])
def test_a_handle_that_outlived_its_graph_commits_nothing(
    disk: Root, monkeypatch: pytest.MonkeyPatch, successor: bool, has_guard: bool
) -> None:
    """The twin does not look who the graph is beside its staging, and acknowledges a write that nobody will see."""
    store = open_store(f"{disk.uri}/graph")
    graph = new_graph(disk)
    insert(graph, "ann")
    graph.flush()
    if successor:
        store.put(IDENTITY, encode(GraphIdentity("01M0000000000000000000ATER")))
    else:
        store.delete(IDENTITY)
    before = objects_among(files_of(disk))
    if has_guard:
        with pytest.raises(GraphGone, match="nothing was written: open it again"):
            insert(graph, "ghost")
    else:
        for module in (attempt, phase_d):
            monkeypatch.setattr(module, "refuse_gone", lambda store, graph_id: None)
        insert(graph, "ghost")
    graph.close()
    assert (objects_among(files_of(disk)) == before) is has_guard


def objects_among(paths: list[str]) -> list[str]:
    return [path for path in paths if path.startswith("__commits/")]
