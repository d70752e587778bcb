"""Groups of fragments: each row of a snapshot is in exactly one, and another process reads it as it was."""

from __future__ import annotations

import pickle

import omniray
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.reading.fragment_groups import FragmentGroup, GroupReader, cut, grouped
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.table import Fragment
from tests.coordination import Gate
from tests.graphs import DELETE, insert, new_graph, reopen
from tests.stores import Root


def sizes(*rows: int, limit: int) -> list[list[int]]:
    fragments = [Fragment(n, (f"{n}.lance",), None, count, 0) for n, count in enumerate(rows)]
    return [[f.rows for f in group] for group in grouped(fragments, limit)]


def read(group: FragmentGroup, graph: omniray.Graph, root: Root, **options: object) -> list[str]:
    """As another process does, which has nothing but the group and the graph's place."""
    reader = GroupReader(open_store(graph.uri, root.storage_options), graph.graph_id, graph.schema.type("Person"))
    names: list[str] = reader.read(pickle.loads(pickle.dumps(group)), **options).read_all()["name"].to_pylist()
    return names


def test_neighbours_share_a_group_up_to_the_limit_and_a_larger_fragment_has_its_own() -> None:
    assert sizes(5, 5, 1, 30, 2, 2, limit=10) == [[5, 5], [1], [30], [2, 2]]
    assert sizes(limit=10) == []


def test_the_groups_of_a_snapshot_are_its_rows_each_once_without_the_deleted(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        for start in (0, 1500):
            graph.load([{"name": f"p{n:04}"} for n in range(start, start + 1500)], type="Person")
        graph.mutate(DELETE, {"name": "p0007"})
        graph.mutate(DELETE, {"name": "p2999"})
        snapshot = graph.snapshot()
        table = snapshot._open(graph.schema.type("Person"))
        groups = cut(table, snapshot._pins["node:Person"], group_rows=1000)
        assert len(groups) == 2
        assert all(len(pickle.dumps(group)) < 1000 for group in groups)
        found = [name for group in groups for name in read(group, graph, any_root)]
        assert found == [f"p{n:04}" for n in range(3000) if n not in (7, 2999)]


def test_a_group_is_read_as_it_was_whatever_is_written_and_moved_to_the_history_meanwhile(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
        (group,) = graph.snapshot().groups("Person")
        graph.mutate(DELETE, {"name": "ann"})
        insert(graph, *(f"p{n}" for n in range(24)))
        graph.flush()
        assert read(group, graph, any_root) == ["ann", "bob"]
        assert read(group, graph, any_root, columns=["name"], where="name = 'bob'") == ["bob"]


def test_an_empty_table_has_no_groups(disk: Root) -> None:
    with new_graph(disk) as graph:
        assert graph.snapshot().groups("Person") == []


def test_whoever_cuts_or_reads_a_group_needs_no_final_name_and_reads_the_same_after_it(disk: Root) -> None:
    with new_graph(disk) as graph:
        gate = Gate()
        with armed({Point.D_BEFORE_NAME: Action(gate.hold)}):
            insert(graph, "ann")
            gate.wait_until_reached()
            with reopen(graph, disk, read_only=True) as reader:
                (group,) = reader.snapshot().groups("Person")
            assert graph.snapshot().groups("Person") == [group]
            assert read(group, graph, disk) == ["ann"]
            gate.open()
        graph.flush()
        assert read(group, graph, disk) == ["ann"]
