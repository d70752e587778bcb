"""The change stream: replayed from the beginning it gives the graph as of every commit, and nothing else is told."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omniray
from omniray.engine.base.errors import BranchGone
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.history import lineage
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.prune import prune
from omniray.engine.reading import table_diff as difference
from omniray.engine.reading.change_feed import BEGINNING, Change, Changes
from omniray.engine.reading.table_diff import Kind
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import storage as tables
from tests.coordination import Gate, serving
from tests.graphs import create_store, insert, new_graph, opened, parts_of
from tests.stores import Root

SCHEMA = """
node Item {
    name: String @key
    n: I64?
    x: F64?
    half: F32?
    tags: [String]?
    scores: [F64]?
    place: Vector(2)?
    data: Blob?
    day: Date?
}
edge Near: Item -> Item { weight: F32? }
"""
NAMES = [f"item{n}" for n in range(12)]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.sampled_from([None, 0, 1]),
    "x": st.sampled_from([None, 0.0, -0.0, float("nan")]),
    "half": st.sampled_from([None, 0.5, float("inf")]),
    "tags": st.sampled_from([None, [], ["a"], ["b"], ["a", "b"], [""]]),
    "scores": st.sampled_from([None, [], [0.0], [float("nan")], [-0.0]]),
    "place": st.sampled_from([None, [0.0, 1.0], [1.0, 1.0]]),
    "data": st.sampled_from([None, b"", b"\x00"]),
    "day": st.sampled_from([None, "2024-05-31", "2024-06-01"]),
}
ITEMS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(NAMES), **VALUES}), max_size=8, unique_by=lambda r: r["name"]
)
WRITES = st.one_of(
    st.tuples(st.sampled_from(["append", "merge", "merge", "overwrite"]), ITEMS),
    st.tuples(st.just("link"), st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=3)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("update"), st.sampled_from(NAMES)),
)
DELETE = "query remove($name: String) { delete Item where name = $name }"
UPDATE = "query touch($name: String) { update Item set { n: 7 } where name = $name }"

Rows = dict[str, dict[str, str]]


def apply(graph: omniray.Graph, write: tuple[str, Any]) -> None:
    """One write; what the graph refuses (a key that is there, an end that is not) is no commit."""
    verb, what = write
    try:
        if verb == "link":
            edges = [{"id": f"{a}-{b}", "from": a, "to": b, "weight": 1.0} for a, b in set(what)]
            graph.load(edges, type="Near", mode="merge")
        elif verb in ("delete", "update"):
            graph.mutate(DELETE if verb == "delete" else UPDATE, {"name": what})
        else:
            graph.load(what, type="Item", mode=verb)
    except (omniray.InputError, omniray.Conflict):
        pass


def rows_of(table: Any) -> dict[str, str]:
    """Rows by id, so written that NaN is itself and 0.0 is not -0.0."""
    return {row["id"]: repr(row) for row in table.to_pylist()}


def state(graph: omniray.Graph, commit_id: str) -> Rows:
    snapshot = graph.snapshot(at=commit_id)
    return {type.table_key: rows_of(snapshot.table(type.name)) for type in snapshot.schema}


def replay(rows: dict[str, str], change: Change) -> None:
    """Apply a change to plain rows; it must be one that can happen to them, and not an idle one."""
    for id, row in rows_of(change.rows).items():
        match change.kind:
            case Kind.INSERT:
                assert id not in rows
                rows[id] = row
            case Kind.UPDATE:
                assert rows[id] != row
                rows[id] = row
            case Kind.DELETE:
                assert rows.pop(id) == row


def assert_replays(graph: omniray.Graph, changes: Changes, *, after: int = BEGINNING) -> None:
    """Step by step the stream gives what the snapshots show."""
    commits = {entry.seq: entry.commit_id for entry in reversed(graph.history())}
    start = max((seq for seq in commits if seq <= after), default=None)
    replayed: Rows = state(graph, commits[start]) if start else {type.table_key: {} for type in graph.schema}
    told: dict[int, list[Change]] = {}
    for change in changes.between(after, changes.newest_seq()):
        assert change.rows.num_rows > 0
        assert change.commit_ids[-1] == commits[change.seq]
        told.setdefault(change.seq, []).append(change)
    assert list(told) == sorted(told)
    for seq, commit_id in commits.items():
        for change in told.get(seq, []) if seq > after else []:
            replay(replayed[change.table_key], change)
        if seq >= after:
            assert replayed == state(graph, commit_id)


@contextmanager
def small_pieces(tail_rows: int, rows_at_once: int) -> Iterator[None]:
    """Few rows seal a fragment, and few are compared at once: what large tables do, in small ones."""
    with (
        mock.patch.object(tables, "TAIL_ROWS_MAX", tail_rows),
        mock.patch.object(difference, "ROWS_AT_ONCE", rows_at_once),
        mock.patch.object(difference, "_TAKE_ROWS", 2),
        mock.patch.object(lineage, "STEPS_AT_ONCE", 2),
    ):
        yield


@settings(max_examples=12)
@given(
    writes=st.lists(WRITES, min_size=4, max_size=14),
    tail_rows=st.sampled_from([2, 6, 1024]),
    rows_at_once=st.sampled_from([3, 1 << 18]),
    data=st.data(),
)
def test_the_stream_replays_to_every_snapshot(
    writes: list[tuple[str, Any]], tail_rows: int, rows_at_once: int, data: st.DataObject
) -> None:
    """From the beginning and from the middle, with the line folded up to any point."""
    with (
        TemporaryDirectory() as folder,
        small_pieces(tail_rows, rows_at_once),
        omniray.init(f"{folder}/graph", schema=SCHEMA) as graph,
    ):
        flush_after = data.draw(st.integers(0, len(writes)))
        for count, write in enumerate(writes):
            apply(graph, write)
            if count == flush_after:
                graph.flush()
        changes = Changes(opened(open_store(graph.uri)))
        assert_replays(graph, changes)
        assert_replays(graph, changes, after=data.draw(st.integers(1, changes.newest_seq())))


def changes_of(graph: omniray.Graph, root: Root) -> Changes:
    return Changes(opened(open_store(graph.uri, root.storage_options)))


def told(changes: Changes, after: int, **options: Any) -> list[tuple[str, str]]:
    found = changes.between(after, changes.newest_seq(), **options)
    return [(str(change.kind), id) for change in found for id in change.rows["id"].to_pylist()]


def test_a_row_that_a_folded_tail_merely_moves_is_no_change(any_root: Root) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
        before = graph.snapshot().commit_id
        insert(graph, "cid")
        graph.flush()
        changes = changes_of(graph, any_root)
        assert told(changes, changes.seq_of(before)) == [("insert", "cid")]


def test_a_value_is_other_than_before_by_its_bits(disk: Root) -> None:
    nan = float("nan")
    same = [{"x": nan}, {"x": None}, {"half": 0.5}, {"scores": [nan]}, {"tags": []}, {"place": [1.0, 2.0]}]
    other = [
        ({"n": 1}, {"n": 2}),
        ({"x": 0.0}, {"x": -0.0}),
        ({"x": nan}, {"x": None}),
        ({"tags": None}, {"tags": []}),
        ({"tags": []}, {"tags": [""]}),
        ({"tags": ["a", "b"]}, {"tags": ["a", "c"]}),
        ({"scores": [0.0]}, {"scores": [-0.0]}),
        ({"place": [1.0, 2.0]}, {"place": [1.0, 3.0]}),
        ({"place": [1.0, 2.0]}, {"place": None}),
        ({"data": b""}, {"data": None}),
    ]
    before = [{"name": f"same{n}", **row} for n, row in enumerate(same)]
    before += [{"name": f"other{n}", **old} for n, (old, _) in enumerate(other)]
    after = [*before[: len(same)], *({"name": f"other{n}", **new} for n, (_, new) in enumerate(other))]
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        graph.load(before, type="Item")
        graph.load(after[::-1], type="Item", mode="overwrite")
        graph.flush()
        found = told(changes_of(graph, disk), 2)
        assert sorted(found) == sorted(("update", f"other{n}") for n in range(len(other)))


def test_a_delete_takes_the_edges_along_and_both_tell_the_old_row(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann", "bob")
        graph.load([{"id": "ab", "from": "ann", "to": "bob"}], type="Knows")
        before = graph.snapshot().commit_id
        graph.mutate('query q() { delete Person where name = "ann" }')
        changes = changes_of(graph, disk)
        found = list(changes.between(changes.seq_of(before), changes.newest_seq()))
        assert {(c.table_key, c.kind): c.rows.to_pylist() for c in found} == {
            ("edge:Knows", "delete"): [{"id": "ab", "src": "ann", "dst": "bob"}],
            ("node:Person", "delete"): [{"id": "ann", "name": "ann", "age": None}],
        }


def test_the_stream_of_some_types_tells_nothing_of_the_others(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.load([{"name": "Rome"}], type="City")
        assert told(changes_of(graph, disk), BEGINNING, types=["City"]) == [("insert", "Rome")]


def test_a_round_of_several_commits_is_one_step_under_the_last_of_them(disk: Root) -> None:
    store = create_store(disk)
    with serving(store) as service:
        writes = [service.load_request([{"name": name}], type="Person") for name in ("ann", "bob", "cid")]
        service.in_one_round(writes)
    changes = Changes(opened(store))
    (change,) = changes.between(BEGINNING, changes.newest_seq())
    assert change.commit_ids == tuple(write.header.commit_id for write in writes)
    assert change.rows["id"].to_pylist() == ["ann", "bob", "cid"]
    assert {changes.seq_of(commit_id) for commit_id in change.commit_ids} == {change.seq}


def test_what_was_pruned_from_the_line_and_moved_to_the_history_is_told_all_the_same(disk: Root) -> None:
    with new_graph(disk) as graph:
        names = [f"p{n:02}" for n in range(30)]
        insert(graph, *names)
        graph.flush()
        parts = parts_of(open_store(graph.uri))
        newest: CommitObject = parts.newest()
        long_after_us = time.time_ns() // 1000 + 10**15
        assert prune(parts.store, parts.log, newest, newest.seq, now_us=long_after_us, keep=2) > 20
        graph._finaliser.tidy()
        changes = changes_of(graph, disk)
        assert told(changes, BEGINNING) == [("insert", name) for name in names]
        assert_replays(graph, changes, after=7)


def test_a_commit_that_is_not_in_the_history_is_named(disk: Root) -> None:
    with new_graph(disk) as graph:
        changes = changes_of(graph, disk)
        with pytest.raises(omniray.NotFound, match="no commit 01J0000000000000000000000X in the history"):
            changes.seq_of("01J0000000000000000000000X")
        with pytest.raises(omniray.InputError, match="'yesterday' is not a commit id"):
            changes.seq_of("yesterday")


def test_a_reader_that_has_been_further_than_the_line_goes_is_refused(disk: Root) -> None:
    with new_graph(disk) as graph:
        changes = changes_of(graph, disk)
        with pytest.raises(omniray.InputError, match="the line ends at 1, and a reader has been at 9"):
            list(changes.between(1, 9))
        with pytest.raises(omniray.InputError, match="has been at 9"):
            changes.newest_seq(9)


def test_a_step_is_small_and_another_process_can_read_it(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.flush()
        (step,) = changes_of(graph, disk).steps(1, 2)
        packed = pickle.dumps(step)
        assert len(packed) < 1000
        ((kind, rows),) = changes_of(graph, disk).read(pickle.loads(packed))
        assert (kind, rows["id"].to_pylist()) == ("insert", ["ann"])


def test_a_step_is_told_before_and_after_it_has_its_final_name(disk: Root) -> None:
    with new_graph(disk) as graph:
        gate = Gate()
        with armed({Point.D_BEFORE_NAME: Action(gate.hold)}):
            insert(graph, "ann")
            gate.wait_until_reached()
            changes = changes_of(graph, disk)
            (step,) = changes.steps(1, 2)
            assert told(changes, 1) == [("insert", "ann")]
            gate.open()
        graph.flush()
        assert told(changes_of(graph, disk), 1) == [("insert", "ann")]
        ((kind, rows),) = changes_of(graph, disk).read(step)
        assert (kind, rows["id"].to_pylist()) == ("insert", ["ann"]), "who got it before reads it after, too"


# Branches


def changes_on(graph: omniray.Graph, branch: str, root: Root) -> Changes:
    return Changes(open_branch(open_store(graph.uri, root.storage_options), branch, read_only=True))


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
def test_the_stream_of_a_branch_begins_with_its_rows_and_replays_to_it(any_root: Root, folded: bool) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
        graph.create_branch("trial")
        start = graph.snapshot(branch="trial").commit_id
        assert told(changes_on(graph, "trial", any_root), BEGINNING) == [("insert", "ann"), ("insert", "bob")]
        graph.mutate('query q() { delete Person where name = "ann" }', branch="trial")
        insert(graph, "late")
        graph.load([{"name": "cid"}], type="Person", branch="trial")
        if folded:
            graph.flush()
        changes = changes_on(graph, "trial", any_root)
        found = list(changes.between(BEGINNING, changes.newest_seq()))
        assert [(change.seq, change.commit_ids[-1] == start) for change in found] == [(1, True), (2, False), (3, False)]
        rows: dict[str, str] = {}
        for change in found:
            replay(rows, change)
        assert rows == rows_of(graph.snapshot(branch="trial").table("Person"))
        assert told(changes, changes.seq_of(start.lower())) == [("delete", "ann"), ("insert", "cid")]


def test_the_stream_of_a_branch_tells_nothing_of_types_that_nobody_asked_for(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.load([{"name": "Rome"}], type="City")
        graph.create_branch("trial")
        changes = changes_on(graph, "trial", disk)
        assert told(changes, BEGINNING, types=["City"]) == [("insert", "Rome")]
        assert list(changes.steps(BEGINNING, 1, ["Knows"])) == []
        assert list(changes.steps(BEGINNING, BEGINNING)) == []


def test_the_stream_of_a_branch_begins_at_no_commit_of_its_parents_but_the_last(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        early = graph.snapshot().commit_id
        insert(graph, "bob")
        graph.create_branch("trial")
        changes, start = changes_on(graph, "trial", disk), graph.snapshot(branch="trial").commit_id
        assert changes.seq_of(start) == 1
        with pytest.raises(omniray.NotFound, match=f"no commit {early} was made on this branch.*{start}"):
            changes.seq_of(early)


def test_the_stream_of_a_deleted_branch_ends(disk: Root) -> None:
    with new_graph(disk) as graph:
        graph.create_branch("trial")
        changes = changes_on(graph, "trial", disk)
        graph.delete_branch("trial")
        graph.create_branch("trial")
        for use in (changes.newest_seq, lambda: list(changes.between(0, 1))):
            with pytest.raises(BranchGone):
                use()
