"""Edges that both sides of a merge inserted under different ids: where only one may be there, equal ones agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import omniray
from omniray.engine.branches.merge_result import MergeOutcome
from tests.merging import conflicts_of, seeded, state_of
from tests.stores import Root

SIDE = "side"
JOBS = [{"id": "w2", "from": "bob", "to": "acme", "role": "ops"}, {"id": "w3", "from": "cid", "to": "acme"}]


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    """A graph with three jobs, and a branch of it."""
    with seeded(disk) as graph:
        graph.load(JOBS, type="WorksAt")
        graph.create_branch(SIDE)
        yield graph


def set_role(graph: omniray.Graph, person: str, role: str, branch: str = "main") -> None:
    query = "query q($who: String, $role: String) { update WorksAt set { role: $role } where from = $who }"
    graph.mutate(query, {"who": person, "role": role}, branch=branch)


def roles(graph: omniray.Graph, branch: str = "main") -> dict[str, tuple[str, str]]:
    """The jobs by id: who has one, and which."""
    return {id: (edge["src"], edge.get("role", "")) for id, edge in state_of(graph, branch)["WorksAt"].items()}


def test_an_edge_that_was_deleted_and_inserted_anew_on_one_side_stays(graph: omniray.Graph) -> None:
    """The base's edge goes, since the source has deleted it: it can't stand in for the new one."""
    graph.mutate('query q() { delete WorksAt where from = "ann" }', branch=SIDE)
    graph.load([{"id": "w9", "from": "ann", "to": "acme", "role": "dev"}], type="WorksAt", branch=SIDE)
    set_role(graph, "bob", "lead")
    assert graph.merge(SIDE).outcome is MergeOutcome.MERGED
    assert roles(graph) == {"w9": ("ann", "dev"), "w2": ("bob", "lead"), "w3": ("cid", "")}


def test_edges_that_were_all_loaded_anew_on_one_side_stay(graph: omniray.Graph) -> None:
    jobs = state_of(graph)["WorksAt"].values()
    same = [{"from": edge["src"], "to": edge["dst"], "role": edge.get("role")} for edge in jobs]
    graph.load(same, type="WorksAt", mode="overwrite", branch=SIDE)
    graph.load([{"id": "w8", "from": "dan", "to": "bolt"}], type="WorksAt")
    graph.merge(SIDE)
    assert roles(graph) == {**roles(graph, SIDE), "w8": ("dan", "")}


OPS = {"from": "dan", "to": "bolt", "role": "ops"}


@pytest.fixture
def agreed(graph: omniray.Graph) -> omniray.Graph:
    """Both sides inserted the same job, and were merged: each has it under its own id."""
    for branch in (SIDE, "main"):
        graph.load([{"id": f"w-{branch}", **OPS}], type="WorksAt", branch=branch)
    graph.merge(SIDE)
    assert {"w-main"} == roles(graph).keys() - {"w1", "w2", "w3"}
    return graph


def remove_job(graph: omniray.Graph, branch: str = "main") -> None:
    graph.mutate('query q() { delete WorksAt where from = "dan" }', branch=branch)


@pytest.mark.parametrize("source", [SIDE, "main"])
def test_an_edge_that_agreed_takes_later_edits_of_the_other_side(agreed: omniray.Graph, source: str) -> None:
    target = "main" if source == SIDE else SIDE
    set_role(agreed, "dan", "lead", source)
    set_role(agreed, "ann", "cook", target)
    assert agreed.merge(source, target).outcome is MergeOutcome.MERGED
    assert sorted(roles(agreed, target).values())[-1] == ("dan", "lead")
    set_role(agreed, "dan", "chief", source)
    agreed.merge(source, target)
    assert sorted(roles(agreed, target).values())[-1] == ("dan", "chief")
    assert len(roles(agreed, target)) == 4


@pytest.mark.parametrize("how", ["fail", "ours", "theirs"])
@pytest.mark.parametrize("source", [SIDE, "main"])
def test_an_edge_that_agreed_conflicts_where_both_sides_edit_it(agreed: omniray.Graph, source: str, how: str) -> None:
    target = "main" if source == SIDE else SIDE
    set_role(agreed, "dan", "lead", source)
    set_role(agreed, "dan", "cook", target)
    if how == "fail":
        found = agreed.merge(source, target, preview=True)
        assert conflicts_of(found) == [("divergent_update", "WorksAt", f"w-{SIDE}", ("role",))]
        assert found.conflicts[0].source == {"role": "lead"}
        assert found.conflicts[0].target == {"role": "cook"}
    else:
        agreed.merge(source, target, on_conflict=how)
        assert roles(agreed, target)[f"w-{target}"] == ("dan", "lead" if how == "theirs" else "cook")
        assert len(roles(agreed, target)) == 4


@pytest.mark.parametrize("source", [SIDE, "main"])
def test_an_edge_that_agreed_goes_if_either_side_deletes_it(agreed: omniray.Graph, source: str) -> None:
    target = "main" if source == SIDE else SIDE
    remove_job(agreed, source)
    set_role(agreed, "ann", "cook", target)
    agreed.merge(source, target)
    assert roles(agreed, target).keys() == {"w1", "w2", "w3"}


def test_an_edge_that_agreed_stays_gone_where_it_was_deleted(agreed: omniray.Graph) -> None:
    remove_job(agreed, SIDE)
    set_role(agreed, "ann", "cook")
    agreed.merge("main", SIDE)
    assert roles(agreed, SIDE).keys() == {"w1", "w2", "w3"}


def test_edges_that_both_sides_loaded_anew_stay_once(graph: omniray.Graph) -> None:
    """Each side has deleted every edge of the base, and no edge goes for that."""
    jobs = state_of(graph)["WorksAt"].values()
    same = [{"from": edge["src"], "to": edge["dst"], "role": edge.get("role")} for edge in jobs]
    for branch in (SIDE, "main"):
        graph.load(same, type="WorksAt", mode="overwrite", branch=branch)
    before = roles(graph)
    graph.merge(SIDE)
    assert roles(graph) == before
