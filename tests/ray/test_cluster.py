"""Several clusters and several nodes: a graph has one coordinator, and losing a machine loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import omniray
from omniray.coordinator import cluster
from omniray.engine.errors import LineOwned
from omniray.engine.owner import Incarnation
from tests.graphs import SCHEMA
from tests.processes.crew import Member
from tests.ray.drivers import other_cluster
from tests.ray.world import Served, add, served
from tests.stores import Root

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def keeper(ray_address: str) -> Iterator[Member]:
    """The driver of another cluster."""
    with other_cluster() as member:
        yield member


def test_a_second_cluster_is_refused_or_takes_over_but_never_serves_beside_the_first(
    disk: Root, ray_address: str, keeper: Member
) -> None:
    """Fault: a coordinator on another cluster, first asked politely, then told to take over; then the first one's
    publisher is killed, so that Ray restarts it.

    Oracle: epochs and owners of the line; clients of the first are told where the graph is served now; the restarted
    publisher does not take the line back.
    """
    with served(disk, ray_address) as graph, graph.connect() as client:
        add(client, "first")
        with pytest.raises(LineOwned) as refusal:
            keeper.ask("serve", graph.uri, {}, False)
        assert refusal.value.facts["address"] == ray_address
        add(client, "first-again")

        victim = graph.publisher_pid
        keeper.ask("serve", graph.uri, {}, True)
        with pytest.raises(omniray.OutcomeUnknown) as told:
            add(client, "too-late")
        assert told.value.facts["address"] == keeper.ask("address")
        with pytest.raises(LineOwned):
            graph.connect()

        taken = graph.newest()
        graph.kill(graph.place.publisher)
        graph.wait_until(lambda: cluster.find(graph.place.publisher) is None, "the restarted one gives up")
        keeper.ask("add_all", "second", 2)
        assert (graph.newest().epoch, graph.newest().owner) == (taken.epoch, taken.owner)
        assert Incarnation.parse(taken.owner).process.pid != victim
        assert graph.people() == ["first", "first-again", "keeper-second-0", "keeper-second-1"]
        keeper.ask("down")


def test_writes_go_on_after_the_node_of_the_publisher_is_lost(disk: Root, ray_address: str, keeper: Member) -> None:
    """Fault: the publisher's node is killed while it writes. Oracle: every commit once in the line, every row once."""
    graph = Served(disk, f"{disk.uri}/graph", ray_address)
    omniray.init(graph.uri, schema=SCHEMA).close()
    keeper.ask("add_node")
    keeper.ask("serve", graph.uri, {}, False)
    keeper.ask("leave_first_node")
    epoch = graph.newest().epoch
    commits = keeper.ask("add_while_the_node_is_lost", 10)
    in_line = [commit.commit_id for obj in graph.line() for commit in obj.commits if commit.kind != "Init"]
    assert sorted(in_line) == sorted(commits)
    assert graph.people() == sorted(f"node-{n}" for n in range(10))
    assert graph.newest().epoch > epoch
    keeper.ask("down")
