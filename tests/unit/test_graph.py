"""The graph as its users hold it: opened as what it is, written by many, read as of any commit."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.engine.base.errors import (
    FormatMismatch,
    InputError,
    InvariantViolation,
    KeyConflict,
    NotFound,
    SchemaError,
    StorageError,
)
from omniray.engine.history.accepted_schema import path_of
from omniray.engine.line import graph_identity
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import FORMAT
from omniray.engine.line.line_end import Tip
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import old_versions as archive
from omniray.engine.tables import table
from tests.graphs import (
    AGE,
    CITY,
    DELETE,
    INSERT,
    INSERT_CITY,
    PERSON,
    SCHEMA,
    files_below,
    insert,
    main_of,
    new_graph,
    people,
    reopen,
)
from tests.stores import Root


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    with new_graph(disk) as graph:
        yield graph


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Opening


def test_where_no_graph_is_there_is_nothing_to_open_and_nothing_is_created(disk: Root) -> None:
    with pytest.raises(NotFound, match="omniray init"):
        omniray.open(f"{disk.uri}/nowhere")
    assert list(Path(disk.uri).iterdir()) == []


def test_a_graph_is_opened_by_path_and_by_file_uri(graph: omniray.Graph, tmp_path: Path) -> None:
    insert(graph, "ann")
    for uri in (graph.uri, f"file://{graph.uri}"):
        with omniray.open(uri) as other:
            assert people(other) == ["ann"]


@pytest.mark.parametrize(("found", "advice"), [(FORMAT - 1, "omniray export"), (FORMAT + 1, "upgrade omniray")])
def test_a_graph_of_another_format_is_refused(graph: omniray.Graph, found: int, advice: str) -> None:
    edit_json(Path(graph.uri) / graph_identity.PATH, format=found)
    with pytest.raises(FormatMismatch, match=advice):
        omniray.open(graph.uri)


@pytest.mark.parametrize(("found", "advice"), [(FORMAT - 1, "omniray export"), (FORMAT + 1, "upgrade omniray")])
def test_a_line_of_another_format_is_refused(graph: omniray.Graph, found: int, advice: str) -> None:
    store = open_store(graph.uri)
    log = CommitLog(store, main_of(store))
    newest = log.newest()
    assert newest is not None
    store.put(log.path(1), encode(replace(newest, format=found)))
    with pytest.raises(FormatMismatch, match=advice):
        omniray.open(graph.uri)


def test_a_graph_of_the_first_format_is_refused_by_the_file_that_it_had(disk: Root) -> None:
    place = Path(disk.uri) / "old"
    place.mkdir()
    (place / "__schema_state.json").write_text('{"format": 1}')
    with pytest.raises(FormatMismatch, match="omniray export"):
        omniray.open(place)


def schema_file(graph: omniray.Graph) -> Path:
    return Path(graph.uri) / path_of(graph._branch.accepted.ref)


@pytest.mark.parametrize("edited", [("age: I32?", "age: I64?"), ("    ", "\t")], ids=["meaning", "blanks"])
def test_a_schema_that_was_edited_by_hand_is_refused(graph: omniray.Graph, edited: tuple[str, str]) -> None:
    schema_file(graph).write_text(SCHEMA.replace(*edited))
    with pytest.raises(SchemaError, match="edited by hand"):
        omniray.open(graph.uri)


def test_a_schema_whose_file_is_gone_is_named(graph: omniray.Graph) -> None:
    schema_file(graph).unlink()
    with pytest.raises(InvariantViolation, match=r"__schema/\w+\.pg is gone; restore it"):
        omniray.open(graph.uri)


def test_an_identity_that_can_t_be_read_is_named(graph: omniray.Graph) -> None:
    (Path(graph.uri) / graph_identity.PATH).write_text("{")
    with pytest.raises(InvariantViolation, match=r"__graph\.json can't be read"):
        omniray.open(graph.uri)


def test_a_read_only_graph_reads_and_does_not_write(graph: omniray.Graph, disk: Root) -> None:
    insert(graph, "ann")
    graph.close()
    before = files_below(graph.uri)
    with reopen(graph, disk, read_only=True) as reader:
        assert people(reader) == ["ann"]
        for write in (lambda: insert(reader, "bob"), lambda: reader.load([], type="Person")):
            with pytest.raises(InputError, match="read-only"):
                write()
        assert "read_only=True" in repr(reader)
    assert files_below(graph.uri) == before


def test_a_closed_graph_takes_no_writes_and_may_be_closed_again(graph: omniray.Graph) -> None:
    insert(graph, "ann")
    graph.close()
    graph.close()
    with pytest.raises(InputError, match="the graph is closed"):
        insert(graph, "bob")


def test_an_open_graph_is_never_pickled(graph: omniray.Graph) -> None:
    with pytest.raises(TypeError, match=r"omniray\.open"):
        pickle.dumps(graph)


def test_another_branch_is_not_found(graph: omniray.Graph) -> None:
    for call in (lambda: graph.snapshot(branch="other"), lambda: graph.mutate(INSERT, {"name": "a"}, branch="other")):
        with pytest.raises(NotFound, match="no branch 'other'"):
            call()


# Writing


def test_several_graphs_in_one_process_write_one_graph(graph: omniray.Graph, disk: Root) -> None:
    with reopen(graph, disk) as other:
        for number in range(6):
            insert((graph, other)[number % 2], f"{number}")
        assert people(graph) == people(other) == list("012345")


def test_a_refused_write_leaves_the_graph_as_it_was(graph: omniray.Graph) -> None:
    insert(graph, "ann")
    before = graph.snapshot().versions
    with pytest.raises(KeyConflict):
        graph.load([{"name": "bob"}, {"name": "ann"}], type="Person", mode="append")
    assert (graph.snapshot().versions, people(graph)) == (before, ["ann"])


def test_a_strict_write_fails_on_versions_of_an_older_snapshot(graph: omniray.Graph) -> None:
    snapshot = graph.snapshot()
    insert(graph, "ann")
    with pytest.raises(omniray.ExpectedVersionMismatch):
        graph.mutate(INSERT, {"name": "bob"}, expected_versions={PERSON: snapshot.versions[PERSON]})
    graph.mutate(INSERT_CITY, {"name": "rome"}, expected_versions={CITY: snapshot.versions[CITY]})


def test_a_write_that_matches_nothing_commits_nothing(graph: omniray.Graph) -> None:
    insert(graph, "ann")
    before = graph.history()
    result = graph.mutate(DELETE, {"name": "nobody"})
    assert (result.commit_id, result.affected_nodes) == (None, 0)
    assert graph.history() == before


# Snapshots


def history_of_three(graph: omniray.Graph) -> list[str]:
    commits = [graph.mutate(INSERT, {"name": name}).commit_id for name in ("ann", "bob", "cat")]
    return [commit for commit in commits if commit is not None]


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
def test_a_snapshot_at_a_commit_shows_the_graph_as_of_it(graph: omniray.Graph, disk: Root, folded: bool) -> None:
    commits = history_of_three(graph)
    if folded:
        graph.flush()
    with reopen(graph, disk) as reader:
        for commit_id, seen in zip(commits, (["ann"], ["ann", "bob"], ["ann", "bob", "cat"]), strict=True):
            snapshot = reader.snapshot(at=commit_id)
            assert (snapshot.commit_id, people(snapshot)) == (commit_id, seen)
            assert snapshot.count("Person") == len(seen)


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
@pytest.mark.parametrize("form", ["datetime", "text", "text without zone"])
def test_a_snapshot_at_a_time_shows_the_newest_commit_until_then(graph: omniray.Graph, folded: bool, form: str) -> None:
    commits = history_of_three(graph)
    if folded:
        graph.flush()
    times = {entry.commit_id: entry.at for entry in graph.history()}
    at: Any = times[commits[1]]
    if form != "datetime":
        at = at.isoformat() if form == "text" else at.replace(tzinfo=None).isoformat()
    assert people(graph.snapshot(at=at)) == ["ann", "bob"]


def test_a_snapshot_before_the_graph_or_at_an_unknown_commit_is_not_found(graph: omniray.Graph) -> None:
    with pytest.raises(NotFound, match="no commit at or before"):
        graph.snapshot(at=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(NotFound, match="no commit 01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        graph.snapshot(at="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_what_is_neither_commit_nor_time_is_bad_input(graph: omniray.Graph) -> None:
    with pytest.raises(InputError, match="neither a commit id nor a time"):
        graph.snapshot(at="yesterday")


def test_a_snapshot_stays_as_it_was_while_others_write(graph: omniray.Graph, disk: Root) -> None:
    insert(graph, "ann", "bob")
    opened, unopened = graph.snapshot(), graph.snapshot()
    assert people(opened) == ["ann", "bob"]
    with reopen(graph, disk) as other:
        other.mutate(AGE, {"name": "ann", "age": 7})
        other.mutate(DELETE, {"name": "bob"})
        other.load([{"name": "eve"}], type="Person", mode="overwrite")
    for snapshot in (opened, unopened):
        assert people(snapshot) == ["ann", "bob"]
        assert snapshot.table("Person", ["age"])["age"].to_pylist() == [None, None]
    assert people(graph) == ["eve"]


def test_a_snapshot_that_is_read_for_the_first_time_long_after_is_as_it_was(
    graph: omniray.Graph, disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken before its version had a final name, read when that name was moved to the history."""
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 4)
    with reopen(graph, disk) as reader:
        insert(graph, "ann")
        snapshot = reader.snapshot()
        for number in range(12):
            insert(graph, f"{number}")
        graph.flush()
        assert people(snapshot) == ["ann"]


def test_threads_that_share_a_graph_each_see_what_they_wrote(graph: omniray.Graph) -> None:
    def write_and_read(thread: int) -> list[str]:
        names = [f"{thread}-{number}" for number in range(10)]
        missing = []
        for name in names:
            insert(graph, name)
            if name not in people(graph):
                missing.append(name)
        return missing

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write_and_read, range(4))) == [[], [], [], []]


def test_a_snapshot_taken_while_another_thread_looks_is_as_new_as_its_own_look(graph: omniray.Graph) -> None:
    """The other thread's look began before the write and ends after ours."""
    insert(graph, "ann")
    old = graph._branch.tip.newest

    class Overtaken(Tip):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, old if name == "newest" else value)

    graph._branch.tip.__class__ = Overtaken
    assert people(graph) == ["ann"]


def test_a_snapshot_is_one_cut_over_all_tables(graph: omniray.Graph) -> None:
    both = [{"type": "Person", "data": {"name": "ann"}}, {"type": "City", "data": {"name": "rome"}}]
    before = graph.snapshot()
    graph.load(both)
    assert (before.count("Person"), before.count("City")) == (0, 0)
    assert (graph.snapshot().count("Person"), graph.snapshot().count("City")) == (1, 1)
    assert len(graph.history()) == 2


def test_columns_and_filters_are_pushed_down_and_bad_ones_named(graph: omniray.Graph) -> None:
    graph.load([{"name": "ann", "age": 3}, {"name": "bob", "age": 5}], type="Person")
    snapshot = graph.snapshot()
    assert snapshot.table("Person", ["name"], "age > 4").to_pylist() == [{"name": "bob"}]
    with pytest.raises(InputError, match="Person has no column 'size'"):
        snapshot.table("Person", ["size"])
    with pytest.raises(InputError, match="can't filter Person"):
        snapshot.table("Person", filter="size > 4")
    with pytest.raises(NotFound):
        snapshot.table("Nobody")


def test_a_snapshot_describes_itself(graph: omniray.Graph) -> None:
    insert(graph, "ann")
    assert graph.snapshot().describe() == {
        "branch": "main",
        "commit_id": graph.history()[0].commit_id,
        "tables": [
            {"table_key": "edge:Knows", "version": 1, "row_count": 0},
            {"table_key": CITY, "version": 1, "row_count": 0},
            {"table_key": PERSON, "version": 2, "row_count": 1},
        ],
    }


# SQL


def test_sql_reads_the_snapshot_and_joins_types(graph: omniray.Graph) -> None:
    graph.load(
        [
            {"type": "Person", "data": {"name": "ann"}},
            {"type": "Person", "data": {"name": "bob"}},
            {"edge": "Knows", "from": "ann", "to": "bob"},
        ]
    )
    snapshot = graph.snapshot()
    insert(graph, "cat")
    assert snapshot.sql("select count(*) as n from Person").to_pylist() == [{"n": 2}]
    joined = "select p.name from Person p join knows k on k.dst = p.id"
    assert snapshot.sql(joined).to_pylist() == [{"name": "bob"}]


@pytest.mark.parametrize(
    "query",
    [
        "create table t (a int)",
        "insert into Person values ('x')",
        "select 1; select 2",
        "",
        "copy (select 1) to 'stolen.csv'",
        "attach 'other.db'",
        "select * from read_csv('/etc/passwd')",
        "select nonsense from Person",
        "select * from Nobody",
        "selec 1",
    ],
)
def test_sql_that_is_not_one_good_select_is_bad_input(graph: omniray.Graph, query: str) -> None:
    with pytest.raises(InputError):
        graph.snapshot().sql(query)


# History and export


def test_history_is_newest_first_and_linear(graph: omniray.Graph, disk: Root) -> None:
    for number in range(4):
        graph.mutate(INSERT, {"name": f"{number}"}, actor=f"actor-{number}", tenant="acme")
        if number == 1:
            graph.flush()
    entries = graph.history()
    assert [entry.seq for entry in entries] == [5, 4, 3, 2, 1]
    assert [entry.actor for entry in entries] == ["actor-3", "actor-2", "actor-1", "actor-0", ""]
    assert [entry.parent for entry in entries] == [*(e.commit_id for e in entries[1:]), ""]
    assert [entry.at for entry in entries] == sorted((e.at for e in entries), reverse=True)
    assert entries[0].tables == (PERSON,)
    with reopen(graph, disk, read_only=True) as reader:
        assert reader.history() == entries


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
def test_history_can_be_limited(graph: omniray.Graph, folded: bool) -> None:
    history_of_three(graph)
    if folded:
        graph.flush()
    assert [entry.seq for entry in graph.history(limit=2)] == [4, 3]
    assert len(graph.history(limit=99)) == 4
    with pytest.raises(InputError, match="a limit of 0"):
        graph.history(limit=0)


def test_an_export_loads_back_to_the_same_rows(graph: omniray.Graph, disk: Root, tmp_path: Path) -> None:
    graph.load(
        [
            {"type": "Person", "data": {"name": "ann \"the\" 'one'\n", "age": 3}},
            {"type": "Person", "data": {"name": "bob"}},
            {"type": "City", "data": {"name": "rome"}},
            {"edge": "Knows", "from": "bob", "to": "ann \"the\" 'one'\n"},
        ]
    )
    exported = tmp_path / "export.jsonl"
    exported.write_bytes(b"".join(graph.snapshot().export()))
    with new_graph(disk, "copy") as copy:
        copy.load(str(exported))
        for name in ("Person", "City", "Knows"):
            ours, theirs = (g.snapshot().table(name).sort_by("id") for g in (graph, copy))
            assert ours.equals(theirs), name


def test_an_export_of_one_type_has_only_that_one(graph: omniray.Graph) -> None:
    insert(graph, "ann")
    graph.mutate(INSERT_CITY, {"name": "rome"})
    assert [json.loads(line)["data"] for line in graph.snapshot().export("City")] == [{"name": "rome"}]


# Phase D, as users see it


def test_plain_lance_sees_a_write_when_flush_or_close_is_through(disk: Root) -> None:
    import lance

    graph = new_graph(disk)
    insert(graph, "ann")
    graph.flush()
    assert lance.dataset(f"{graph.uri}/nodes/Person.lance").to_table()["name"].to_pylist() == ["ann"]
    insert(graph, "bob")
    graph.close()
    assert sorted(lance.dataset(f"{graph.uri}/nodes/Person.lance").to_table()["name"].to_pylist()) == ["ann", "bob"]


def test_a_graph_that_fails_to_flush_closes_all_the_same(graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise StorageError("the store is down")

    insert(graph, "ann")
    graph.flush()
    with monkeypatch.context() as patch:
        patch.setattr(graph._branch.store, "copy_if_absent", down)
        insert(graph, "bob")
        with pytest.raises(StorageError, match="the store is down"):
            graph.close()
    assert not [t for t in threading.enumerate() if t.name == "omniray-phase-d" and t is graph._finaliser._thread]
    with omniray.open(graph.uri) as healed:
        assert people(healed) == ["ann", "bob"]


def test_large_values_are_read_a_few_at_a_time(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SCANNED_BYTES_MAX", 1 << 18)
    with omniray.init(f"{disk.uri}/images", schema="node Image { name: String @key  data: Blob }") as graph:
        graph.load([{"name": f"i{n}", "data": bytes([n]) * (1 << 16)} for n in range(32)], type="Image")
        batches = list(graph.snapshot().reader("Image"))
    assert sum(len(batch) for batch in batches) == 32
    assert max(batch.nbytes for batch in batches) <= 1 << 18
