"""Edges that both sides of a merge inserted under different ids: where only one may be there, equal ones agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import omniray
from omniray.engine.branches.merge_result import MergeOutcome
from tests.merging import seeded, state_of
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


def roles(graph: omniray.Graph, branch: str = "main") -> dict[str, tuple[str, str | None]]:
    """The jobs by id: who has one, and which."""
    return {id: (edge["src"], edge.get("role")) for id, edge in state_of(graph, branch)["WorksAt"].items()}


def test_an_edge_that_was_deleted_and_inserted_anew_on_one_side_stays(graph: omniray.Graph) -> None:
    """The base's edge goes, since the source has deleted it: it can't stand in for the new one."""
    graph.mutate('query q() { delete WorksAt where from = "ann" }', branch=SIDE)
    graph.load([{"id": "w9", "from": "ann", "to": "acme", "role": "dev"}], type="WorksAt", branch=SIDE)
    set_role(graph, "bob", "lead")
    assert graph.merge(SIDE).outcome is MergeOutcome.MERGED
    assert roles(graph) == {"w9": ("ann", "dev"), "w2": ("bob", "lead"), "w3": ("cid", None)}


def test_edges_that_were_all_loaded_anew_on_one_side_stay(graph: omniray.Graph) -> None:
    jobs = state_of(graph)["WorksAt"].values()
    same = [{"from": edge["src"], "to": edge["dst"], "role": edge.get("role")} for edge in jobs]
    graph.load(same, type="WorksAt", mode="overwrite", branch=SIDE)
    graph.load([{"id": "w8", "from": "dan", "to": "bolt"}], type="WorksAt")
    graph.merge(SIDE)
    assert roles(graph) == {**roles(graph, SIDE), "w8": ("dan", None)}
