"""Reverts: what a commit changed is taken back by a new commit, what came later stays, and what disagrees conflicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import omniray
from omniray.engine.base.errors import InputError, MergeConflicts, NotFound, PayloadMismatch
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.merge_result import MergeOutcome
from omniray.engine.branches.table_merge import How
from tests.merging import (
    ages,
    committed_together,
    conflicts_of,
    move,
    people,
    remove,
    seeded,
    set_age,
    state_of,
    unchanged,
)
from tests.stores import Root

SIDE = "side"


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    with seeded(disk) as graph:
        graph.create_branch(SIDE)
        yield graph


def head(graph: omniray.Graph, branch: str = "main") -> str:
    return graph.snapshot(branch=branch).commit_id


def test_the_newest_commit_is_taken_back_without_a_row_written(graph: omniray.Graph) -> None:
    before = state_of(graph)
    remove(graph, "ann")
    result = graph.revert(head(graph), actor="ann", message="by mistake")
    assert state_of(graph) == before
    assert (result.outcome, {one.how for one in result.tables}) == (MergeOutcome.REVERTED, {How.ADOPT})
    entry = graph.history(1)[0]
    assert (entry.kind, entry.actor, entry.message, entry.merged) == ("Revert", "ann", "by mistake", ())
    assert entry.commit_id == result.commit_id


def test_what_came_after_the_commit_stays(graph: omniray.Graph) -> None:
    graph.load(people("eve"), type="Person")
    set_age(graph, "ann", 41)
    wrong = head(graph)
    move(graph, "ann", "Rome")
    set_age(graph, "bob", 42)
    graph.revert(wrong)
    assert state_of(graph)["Person"]["ann"] == {"name": "ann", "age": 30, "city": "Rome"}
    assert ages(graph) == {"ann": 30, "bob": 42, "cid": 30, "dan": 30, "eve": None}


def test_a_property_that_was_changed_again_conflicts(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41)
    wrong = head(graph)
    set_age(graph, "ann", 42)
    with unchanged(graph), pytest.raises(MergeConflicts, match="can't revert commit") as refused:
        graph.revert(wrong)
    assert conflicts_of(refused.value) == [("divergent_update", "Person", "ann", ("age",))]
    (conflict,) = refused.value.facts["conflicts"]
    assert conflict["values"] == {"source": {"age": 30}, "target": {"age": 42}}
    assert conflict["commits"] == {"source": wrong, "target": head(graph)}
    foretold = graph.revert(wrong, preview=True)
    assert (foretold.outcome, conflicts_of(foretold)) == (MergeOutcome.CONFLICTS, conflicts_of(refused.value))
    graph.revert(wrong, on_conflict="theirs")
    assert ages(graph)["ann"] == 30


def test_a_node_that_edges_need_since_is_not_taken_back(graph: omniray.Graph) -> None:
    graph.load(people("eve"), type="Person")
    wrong = head(graph)
    graph.load([{"id": "k9", "from": "eve", "to": "ann"}], type="Knows")
    with pytest.raises(MergeConflicts) as refused:
        graph.revert(wrong)
    assert conflicts_of(refused.value) == [("orphan_edge", "Knows", "k9", ("src",))]


def test_a_revert_is_reverted(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41)
    first = graph.revert(head(graph))
    set_age(graph, "bob", 42)
    assert first.commit_id is not None
    graph.revert(first.commit_id)
    assert ages(graph) == {"ann": 41, "bob": 42, "cid": 30, "dan": 30}


def test_a_merge_is_reverted_and_its_branch_stays_merged(graph: omniray.Graph) -> None:
    """As after a revert in git: the branch's commits are part of the target, and so is the decision against them."""
    set_age(graph, "ann", 41, SIDE)
    set_age(graph, "bob", 42)
    merge = graph.merge(SIDE)
    assert merge.commit_id is not None
    graph.revert(merge.commit_id)
    assert ages(graph) == {"ann": 30, "bob": 42, "cid": 30, "dan": 30}
    assert graph.merge(SIDE).outcome is MergeOutcome.ALREADY_UP_TO_DATE
    set_age(graph, "cid", 43, SIDE)
    graph.merge(SIDE)
    assert ages(graph) == {"ann": 30, "bob": 42, "cid": 43, "dan": 30}


def test_a_revert_on_a_branch_is_merged_like_any_change(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41)
    wrong = head(graph)
    graph.merge("main", SIDE)
    graph.revert(wrong, branch=SIDE)
    assert (ages(graph)["ann"], ages(graph, SIDE)["ann"]) == (41, 30)
    set_age(graph, "bob", 42)
    assert graph.merge(SIDE).outcome is MergeOutcome.MERGED
    assert ages(graph) == {"ann": 30, "bob": 42, "cid": 30, "dan": 30}


def test_a_commit_that_came_with_a_merge_is_reverted_alone(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41, SIDE)
    wrong = head(graph, SIDE)
    set_age(graph, "cid", 43, SIDE)
    graph.merge(SIDE)
    graph.revert(wrong)
    assert ages(graph) == {"ann": 30, "bob": 30, "cid": 43, "dan": 30}


def test_a_commit_of_the_parent_is_reverted_on_the_branch_that_began_after_it(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41)
    wrong = head(graph)
    graph.create_branch("late")
    graph.revert(wrong, branch="late")
    assert (ages(graph)["ann"], ages(graph, "late")["ann"]) == (41, 30)


def test_a_commit_of_a_group_is_reverted_with_its_group(disk: Root) -> None:
    with seeded(disk) as graph:
        before = ages(graph)
    group = committed_together(graph.uri, "eve", "fay")
    with omniray.open(graph.uri) as graph:
        result = graph.revert(group[0])
        assert (result.source_commit, result.source_group) == (group[0], group)
        assert ages(graph) == before


def test_a_revert_that_is_sent_again_is_applied_once(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41)
    wrong, txn_id = head(graph), new_ulid()
    first = graph.revert(wrong, txn_id=txn_id)
    with unchanged(graph):
        second = graph.revert(wrong, txn_id=txn_id)
    assert (second.commit_id, second.repeated, second.versions) == (txn_id, True, first.versions)
    set_age(graph, "ann", 42)
    with pytest.raises(PayloadMismatch):
        graph.revert(head(graph), txn_id=txn_id)


def test_a_commit_without_an_effect_leaves_nothing_to_revert(graph: omniray.Graph) -> None:
    created = head(graph)
    with unchanged(graph):
        assert graph.revert(created).outcome is MergeOutcome.ALREADY_UP_TO_DATE


def test_a_commit_that_can_t_be_reverted_is_named(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41, SIDE)
    with pytest.raises(NotFound, match="no part of the branch main"):
        graph.revert(head(graph, SIDE))
    with pytest.raises(InputError, match="created the graph"):
        graph.revert(graph.history()[-1].commit_id)
    with pytest.raises(InputError, match="not a commit id"):
        graph.revert("main")
    with pytest.raises(NotFound, match="no branch and no commit"):
        graph.revert(new_ulid())
