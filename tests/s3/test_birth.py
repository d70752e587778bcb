"""Creating a graph, on S3."""

from __future__ import annotations

import pytest

from tests.graphs import insert, new_graph, people
from tests.kit.s3server import Fault, S3Server
from tests.stores import Root
from tests.unit.test_birth import *  # noqa: F403


@pytest.mark.parametrize("place", ["probe", "recovery", "commits", "schema_state"])
def test_a_lost_answer_at_birth_is_not_taken_for_somebody_else(server: S3Server, place: str) -> None:
    """Fault: the put took effect and its answer is lost; asked again, the store refuses. Oracle: the graph is there."""
    server.reset()
    server.add_fault(Fault("PUT", f"__{place}", "cut_after"))
    with new_graph(Root("s3://bucket", server.storage_options), f"born-{place}") as graph:
        assert any(f"__{place}" in request.target and request.status == 0 for request in server.requests())
        insert(graph, "ann")
        assert people(graph) == ["ann"]
