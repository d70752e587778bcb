"""Stories of merges that went wrong elsewhere: each ends as its user would expect."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import omniray
from omniray.engine.base.errors import Conflict, MergeConflicts, NotFound
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.branches.merge_result import MergeOutcome
from tests.merging import ages, conflicts_of, people, seeded, set_age, state_of, unchanged
from tests.stores import Root

FAST_FORWARD, MERGED = MergeOutcome.FAST_FORWARD, MergeOutcome.MERGED


@pytest.fixture
def again(any_root: Root) -> Callable[[omniray.Graph], omniray.Graph]:
    """Closes a graph and opens it as another process would."""

    def reopen(graph: omniray.Graph) -> omniray.Graph:
        graph.close()
        return omniray.open(graph.uri, storage_options=any_root.storage_options)

    return reopen


def test_values_that_went_back_and_forth_stay_the_newest(
    any_root: Root, again: Callable[[omniray.Graph], omniray.Graph]
) -> None:
    """A branch is merged, its target edits the same row, that comes back to the branch, which then writes elsewhere."""
    graph = seeded(any_root)
    graph.create_branch("side")
    for value in range(40, 48):
        set_age(graph, "ann", value, "side")
    assert graph.merge("side").outcome is FAST_FORWARD
    set_age(graph, "ann", 50)
    assert graph.merge("main", "side").outcome is FAST_FORWARD
    assert ages(graph, "side")["ann"] == 50
    graph = again(graph)
    graph.load([{"name": "coil"}], type="Company", branch="side")
    assert graph.merge("side").outcome is FAST_FORWARD
    graph = again(graph)
    assert ages(graph)["ann"] == 50
    assert set(state_of(graph)["Company"]) == {"acme", "bolt", "coil"}
    assert state_of(graph) == state_of(graph, "side")
    graph.close()


def test_a_branch_that_conflicts_is_deleted_and_the_merged_one_stays(any_root: Root) -> None:
    """Two branches one after the other: inserts on both sides land, edits of one cell do not, and names are freed."""
    with seeded(any_root) as graph:
        graph.create_branch("first")
        graph.load(people("eve", age=41), type="Person", branch="first")
        graph.load(people("fay", age=52), type="Person")
        assert graph.merge("first").outcome is MERGED
        assert {"eve", "fay"} <= ages(graph).keys()
        graph.create_branch("second")
        set_age(graph, "ann", 31, "second")
        set_age(graph, "ann", 32)
        with unchanged(graph), pytest.raises(MergeConflicts) as refused:
            graph.merge("second")
        assert conflicts_of(refused.value) == [("divergent_update", "Person", "ann", ("age",))]
        (conflict,) = refused.value.facts["conflicts"]
        assert conflict["values"] == {"source": {"age": 31}, "target": {"age": 32}}
        graph.delete_branch("second")
        assert [info.name for info in graph.branches()] == ["main", "first"]
        with pytest.raises(NotFound):
            graph.snapshot(branch="second")


def test_writers_on_a_branch_are_overtaken_and_land(any_root: Root) -> None:
    """A write waits between its staging and its commit while another one commits, to another table or to its own."""
    with seeded(any_root) as graph, ThreadPoolExecutor(1) as pool:
        graph.create_branch("side")
        other = omniray.open(graph.uri, branch="side", storage_options=any_root.storage_options)
        overtakers = iter(
            (
                lambda: other.load([{"name": "coil"}], type="Company"),
                lambda: other.load(people("fay"), type="Person"),
            )
        )
        for name in ("eve", "gil"):
            by = next(overtakers)
            with armed({Point.C_BEFORE_PUT: Action(lambda by=by: pool.submit(by).result(), nth=1)}):
                graph.load(people(name), type="Person", branch="side")
        other.close()
        assert {"eve", "fay", "gil"} <= ages(graph, "side").keys()
        assert "coil" in state_of(graph, "side")["Company"]
        assert "eve" not in ages(graph)
        assert graph.merge("side").outcome is FAST_FORWARD


def test_a_branch_that_holds_the_work_of_a_deleted_one_merges(
    any_root: Root, again: Callable[[omniray.Graph], omniray.Graph]
) -> None:
    """A branch with children is not deleted; one whose work another took in is, and that one merges all the same."""
    graph = seeded(any_root)
    graph.create_branch("ground")
    graph.create_branch("middle", "ground")
    set_age(graph, "bob", 3, "middle")
    graph.create_branch("child", "middle")
    with pytest.raises(Conflict, match="child"):
        graph.delete_branch("middle")
    graph.delete_branch("child")
    graph.create_branch("top", "ground")
    assert graph.merge("middle", "top").outcome is FAST_FORWARD
    set_age(graph, "cid", 5, "top")
    for value in range(1, 5):
        set_age(graph, "ann", value, "ground")
    graph.delete_branch("middle")
    graph = again(graph)
    assert graph.merge("top", "ground").outcome is MERGED
    assert ages(graph, "ground") == {"ann": 4, "bob": 3, "cid": 5, "dan": 30}
    graph.close()


def test_a_base_that_lies_on_a_deleted_branch_is_still_the_base(
    any_root: Root, again: Callable[[omniray.Graph], omniray.Graph]
) -> None:
    """Two branches took in a third one's work, which is what they have in common now; then it was deleted."""
    graph = seeded(any_root)
    for name in ("one", "two", "shared"):
        graph.create_branch(name)
    set_age(graph, "bob", 3, "shared")
    for name in ("one", "two"):
        set_age(graph, "dan", 70 if name == "one" else 80, name)
        graph.merge("shared", name)
    graph.delete_branch("shared")
    graph = again(graph)
    set_age(graph, "bob", 4, "one")
    with unchanged(graph, "two"), pytest.raises(MergeConflicts) as refused:
        graph.merge("one", "two")
    assert conflicts_of(refused.value) == [("divergent_update", "Person", "dan", ("age",))]
    set_age(graph, "dan", 70, "two")
    assert graph.merge("one", "two").outcome is MERGED
    assert ages(graph, "two") == {"ann": 30, "bob": 4, "cid": 30, "dan": 70}
    graph.close()


def test_a_branch_whose_changes_undo_each_other_merges_and_leaves_no_trace(
    any_root: Root, again: Callable[[omniray.Graph], omniray.Graph]
) -> None:
    graph = seeded(any_root)
    graph.create_branch("side")
    graph.load([{"id": "k2", "from": "bob", "to": "cid"}], type="Knows", branch="side")
    graph.mutate('query q() { delete Knows where from = "bob" }', branch="side")
    before = state_of(graph)
    assert graph.merge("side").outcome is FAST_FORWARD
    graph = again(graph)
    assert state_of(graph) == before
    assert graph.merge("side").outcome is MergeOutcome.ALREADY_UP_TO_DATE
    graph.close()


def test_an_edge_that_both_sides_inserted_equally_is_there_once(any_root: Root) -> None:
    """The edge type allows one edge between two nodes, and each side gave the edge an id of its own."""
    with seeded(any_root) as graph:
        graph.create_branch("side")
        for branch in ("side", "main"):
            graph.load([{"from": "bob", "to": "bolt", "role": "ops"}], type="WorksAt", branch=branch)
        (mine,) = state_of(graph)["WorksAt"].keys() - {"w1"}
        assert graph.merge("side").outcome is MERGED
        assert set(state_of(graph)["WorksAt"]) == {"w1", mine}
        assert state_of(graph)["WorksAt"][mine] == {"src": "bob", "dst": "bolt", "role": "ops"}
        graph.merge("main", "side")
        assert state_of(graph, "side") == state_of(graph)


def test_the_second_merge_after_a_fast_forward_finds_every_row(any_root: Root) -> None:
    """Two branches of one state, each with a new row, merged into a third one after the other."""
    with seeded(any_root) as graph:
        many = [{"name": f"p{n:03}", "age": n, "place": [float(n), 0.0]} for n in range(32)]
        graph.load(many, type="Person")
        for name in ("target", "one", "two"):
            graph.create_branch(name)
        graph.load(people("a1", age=1000, place=[1000.0, 0.0]), type="Person", branch="one")
        assert graph.merge("one", "target").outcome is FAST_FORWARD
        graph.load(people("b1", age=3000, place=[3000.0, 0.0]), type="Person", branch="two")
        assert graph.merge("two", "target").outcome is MERGED
        on_target = graph.snapshot(branch="target")
        assert on_target.table("Person", ["name"], "age = 0")["name"].to_pylist() == ["p000"]
        assert on_target.table("Person", ["name"], "name in ('a1', 'b1')").num_rows == 2
        assert on_target.count("Person") == 4 + 32 + 2
