"""What differs between two states of a graph: rows and properties, in any direction and between any two branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.branches.diff import GraphDiff, diff_schema
from omniray.engine.reading import table_diff
from omniray.engine.tables import storage, table
from tests.merging import committed_together, move, people, remove, seeded, set_age
from tests.stores import Root

SIDE = "side"


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    with seeded(disk) as graph:
        graph.create_branch(SIDE)
        yield graph


Told = tuple[str, str, list[str], dict[str, Any] | None, dict[str, Any] | None]


def rows_of(diff: GraphDiff, type: str) -> list[Told]:
    """The changes of a type by id, without the values that are null."""

    def given(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if row is None else {name: value for name, value in row.items() if value is not None}

    found = diff.table(type).to_pylist()
    return sorted(
        ((row["kind"], row["id"], row["changed"], given(row["before"]), given(row["after"])) for row in found),
        key=lambda row: row[1],
    )


def test_a_diff_tells_rows_and_the_properties_that_changed(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41, SIDE)
    move(graph, "ann", None, SIDE)
    remove(graph, "dan", SIDE)
    graph.load(people("eve", tags=["a"], place=[1.0, 2.0], photo=b"\x00"), type="Person", branch=SIDE)
    with graph.diff("main", SIDE) as diff:
        assert diff.types == ("Person",)
        assert rows_of(diff, "Person") == [
            ("update", "ann", ["age", "city"], {"name": "ann", "age": 30, "city": "Bonn"}, {"name": "ann", "age": 41}),
            ("delete", "dan", [], {"name": "dan", "age": 30, "city": "Bonn"}, None),
            ("insert", "eve", [], None, {"name": "eve", "tags": ["a"], "place": [1.0, 2.0], "photo": b"\x00"}),
        ]
        assert diff.counts() == {"Person": {"insert": 1, "update": 1, "delete": 1}}
        assert diff.table("Company").num_rows == 0
        assert diff.table("Person").schema == diff_schema(graph.schema.type("Person"))
    with graph.diff(SIDE, "main") as back:
        assert [row[0] for row in rows_of(back, "Person")] == ["update", "insert", "delete"]


def test_edges_are_told_with_their_ends(graph: omniray.Graph) -> None:
    graph.load([{"id": "k1", "from": "ann", "to": "cid", "since": 1}], type="Knows", mode="merge", branch=SIDE)
    with graph.diff("main", SIDE) as diff:
        before, after = {"src": "ann", "dst": "bob", "since": 1}, {"src": "ann", "dst": "cid", "since": 1}
        assert rows_of(diff, "Knows") == [("update", "k1", ["dst"], before, after)]


def test_commits_are_compared_like_branches_and_equal_states_do_not_differ(graph: omniray.Graph) -> None:
    first = graph.snapshot().commit_id
    set_age(graph, "ann", 1)
    second = graph.snapshot().commit_id
    set_age(graph, "ann", 30)
    with graph.diff(first, second) as diff:
        assert diff.as_json()["types"] == {"Person": {"insert": 0, "update": 1, "delete": 0}}
        assert repr(diff) == f"GraphDiff({first!r}, {second!r}, types=['Person'])"
    with graph.diff(SIDE, "main") as diff:
        assert (diff.types, diff.counts()["Person"]) == (("Person",), {"insert": 0, "update": 0, "delete": 0})
    with graph.diff(first, SIDE) as diff:
        assert diff.types == ()


def test_a_merge_leaves_two_branches_that_do_not_differ(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    graph.merge(SIDE)
    graph.merge("main", SIDE)
    with graph.diff(SIDE, "main") as diff:
        assert diff.types == ()


def test_a_large_diff_is_a_stream_that_tells_the_same(graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(12):
        graph.load(people(f"p{n:02}", age=n), type="Person", branch=SIDE)
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    with graph.diff("main", SIDE) as diff:
        whole = rows_of(diff, "Person")
        monkeypatch.setattr(table_diff, "ROWS_AT_ONCE", 4)
        reader = diff.reader("Person")
        assert isinstance(reader, pa.RecordBatchReader)
        assert len(list(reader)) > 3
        assert rows_of(diff, "Person") == whole
    assert len(whole) == 14


def test_changed_rows_are_counted_without_those_that_were_merely_moved(graph: omniray.Graph) -> None:
    """The tail that a small write rewrites has unchanged rows in it; of very many they are not told apart."""
    before = graph._branch.newest()
    graph.load(people("eve"), type="Person")
    set_age(graph, "ann", 1)
    after = graph._branch.newest()
    one, other = (graph._branch.cache.open("node:Person", state.pins["node:Person"]) for state in (before, after))
    assert table_diff.count_changed(one, other) == 2
    assert table_diff.count_changed(other, one) == 2
    assert table_diff.count_changed(one, one) == 0
    assert table_diff.count_changed(one, other, read_rows_max=0) == 5


def test_a_commit_of_a_group_stands_for_its_group(disk: Root) -> None:
    """Writes that a coordinator commits together land in one object: no state lies between them."""
    with seeded(disk) as graph:
        first = graph.snapshot().commit_id
    group = committed_together(graph.uri, "eve", "fay")
    with omniray.open(graph.uri) as graph, graph.diff(first, group[0]) as diff:
        assert {row[1] for row in rows_of(diff, "Person")} == {"eve", "fay"}
        assert diff.groups == {group[0]: group}


@pytest.mark.parametrize(("before", "after"), [("nowhere", "main"), ("main", "01M70000000000000000000000")])
def test_a_state_that_is_not_there_is_refused(graph: omniray.Graph, before: str, after: str) -> None:
    with pytest.raises(NotFound):
        graph.diff(before, after)


def test_a_type_that_is_not_there_is_refused(graph: omniray.Graph) -> None:
    with graph.diff("main", SIDE) as diff, pytest.raises(InputError, match="no type 'Nobody'"):
        diff.table("Nobody")


def test_a_range_of_ids_is_read_from_the_fragments_that_may_have_it(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TAIL_ROWS_MAX", 0)
    monkeypatch.setattr(table, "TAIL_ROWS_MAX", 0)
    before = graph._branch.newest()
    for letter in "pqrs":
        graph.load(people(*(f"{letter}{n}" for n in range(3))), type="Person")
    remove(graph, "q1")
    after = graph._branch.newest()
    old, new = (graph._branch.cache.open("node:Person", state.pins["node:Person"]) for state in (before, after))
    _, come = table_diff.apart(old, new)
    read: list[int] = []
    scan = table.Table.scan

    def noted(self: table.Table, *args: Any, fragments: Any = None, **options: Any) -> pa.RecordBatchReader:
        read.append(len(fragments))
        return scan(self, *args, fragments=fragments, **options)

    monkeypatch.setattr(table.Table, "scan", noted)
    for low, high, ids, fragments in (
        ("q", "r", ["q0", "q2"], 1),
        ("q2", "s", ["q2", "r0", "r1", "r2"], 2),
        (None, "p1", ["p0"], 1),
        ("s2", None, ["s2"], 1),
    ):
        assert come.read_all(table_diff.Ids(low, high))["id"].to_pylist() == ids
        assert read.pop() == fragments
    assert come.read_all(table_diff.Ids("t", None)).num_rows == 0
    assert read == [4]  # for their bounds
