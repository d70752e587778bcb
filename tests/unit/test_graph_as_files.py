"""A graph is its files: a copy of them is a graph of its own place, and its tables are ordinary Lance datasets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import lancedb
import pytest

import omniray
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.store.open_store import open_store
from tests.coordination import Gate
from tests.foreign import commit_and_die, plain_ids
from tests.graphs import DELETE, files_below, insert, new_graph, people, reopen
from tests.stores import Root


def all_files(root: Root, uri: str) -> dict[str, bytes | None]:
    """Every file of a graph."""
    store = open_store(uri, root.storage_options)
    return {file.path: store.get(file.path) for file in store.files("")}


def copied(root: Root, uri: str) -> str:
    """The graph's files, copied to another place one by one, as `aws s3 cp --recursive` or `cp -r` does."""
    copy = f"{root.uri}/copy"
    if "://" not in uri:
        shutil.copytree(uri, copy)
        return copy
    store = open_store(copy, root.storage_options)
    for path, data in all_files(root, uri).items():
        assert data is not None
        store.put(path, data)
    return copy


def test_a_graph_that_was_copied_opens_with_all_its_history_and_takes_writes_beside_the_original(
    any_root: Root,
) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
        graph.mutate(DELETE, {"name": "ann"})
        insert(graph, *(f"p{n:02}" for n in range(20)))  # so that old versions are moved to the history
        history = graph.history()
        cuts = {entry.commit_id: people(graph.snapshot(at=entry.commit_id)) for entry in history}
    before = all_files(any_root, graph.uri)
    with omniray.open(copied(any_root, graph.uri), storage_options=any_root.storage_options) as copy:
        assert copy.graph_id == graph.graph_id
        assert copy.history() == history
        assert {commit_id: people(copy.snapshot(at=commit_id)) for commit_id in cuts} == cuts
        insert(copy, "zoe")
        copy.flush()
        assert "zoe" in people(copy)
        assert "zoe" in plain_ids(open_store(copy.uri, any_root.storage_options))
    assert all_files(any_root, graph.uri) == before
    with reopen(graph, any_root) as original:
        insert(original, "yves")
        assert {"yves", "zoe"} & set(people(original)) == {"yves"}


def test_a_graph_that_was_copied_while_phase_d_was_under_way_is_finished_by_who_opens_the_copy(disk: Root) -> None:
    """Fault: the copy has a version that has no final name yet, and a sidecar of the original's writer."""
    with new_graph(disk) as graph:
        pass
    commit_and_die(open_store(graph.uri), "ann")
    with omniray.open(copied(disk, graph.uri), grace_s=0.001) as copy:
        copy.flush()
        assert people(copy) == plain_ids(open_store(copy.uri)) == ["ann"]


def test_lancedb_opens_the_tables_of_a_graph_by_their_types(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
    tables = lancedb.connect(f"{graph.uri}/nodes", storage_options=any_root.storage_options or None)
    assert sorted(tables.list_tables().tables) == ["City", "Person"]
    assert sorted(tables.open_table("Person").to_arrow()["name"].to_pylist()) == ["ann", "bob"]


# Readers beside a writer whose Phase D is not through


@pytest.fixture
def stopped(disk: Root) -> Iterator[omniray.Graph]:
    """A graph whose writer stands between its put and the first final name; a reader was opened before."""
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.flush()
        gate = Gate()
        with armed({Point.D_BEFORE_NAME: Action(gate.hold)}), reopen(graph, disk, read_only=True) as reader:
            assert people(reader) == ["ann"]
            insert(graph, "bob")
            gate.wait_until_reached()
            try:
                yield reader
            finally:
                gate.open()


def test_readers_read_the_head_before_it_has_a_final_name_and_write_nothing(stopped: omniray.Graph, disk: Root) -> None:
    """One that was open before and one that is opened now; nobody lets the writer go on meanwhile."""
    before = files_below(stopped.uri)
    assert people(stopped) == ["ann", "bob"]
    with reopen(stopped, disk, read_only=True) as fresh:
        assert people(fresh) == ["ann", "bob"]
        assert people(fresh.snapshot(at=fresh.history()[0].commit_id)) == ["ann", "bob"]
    assert files_below(stopped.uri) == before
    assert plain_ids(open_store(stopped.uri)) == ["ann"], "only plain Lance waits for Phase D"
