"""Several clusters and several nodes: a graph has one coordinator, and losing a machine loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import omniray
from omniray.coordinator.actors import cluster
from omniray.engine.base.errors import LineOwned
from omniray.engine.line.owner import Incarnation
from tests.graphs import SCHEMA
from tests.processes.crew import Member
from tests.ray.callers import callers
from tests.ray.drivers import TORTURE, other_cluster
from tests.ray.world import Served, add, served
from tests.stores import Root

WRITES = 10

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

    Oracle: epochs and owners of the line; clients of the first follow to where the graph is served now; the restarted
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
        assert not add(client, "followed").repeated
        with graph.connect() as other:
            assert client.status().address == other.status().address == keeper.ask("address")

        taken = graph.newest()
        graph.kill(graph.place.publisher)
        graph.wait_until(lambda: cluster.find(graph.place.publisher) is None, "the restarted one gives up")
        keeper.ask("add_all", "second", 2)
        assert (graph.newest().epoch, graph.newest().owner) == (taken.epoch, taken.owner)
        assert Incarnation.parse(taken.owner).process.pid != victim
        assert graph.people() == ["first", "first-again", "followed", "keeper-second-0", "keeper-second-1"]
        keeper.ask("down")


@contextmanager
def served_by_three_nodes(disk: Root, ray_address: str, keeper: Member) -> Iterator[Served]:
    """A graph whose publisher is not on the first node, which the driver is connected to."""
    graph = Served(disk, f"{disk.uri}/graph", ray_address)
    omniray.init(graph.uri, schema=SCHEMA).close()
    keeper.ask("grow_to", 3)
    keeper.ask("serve", graph.uri, {}, False)
    keeper.ask("leave_first_node")
    yield graph
    keeper.ask("down")


def test_writes_go_on_after_the_node_of_the_publisher_is_lost(disk: Root, ray_address: str, keeper: Member) -> None:
    """Fault: the publisher's node is killed while four clients write.

    Oracle: every commit once in the line, every row once, and a coordinator of a later epoch.
    """
    with served_by_three_nodes(disk, ray_address, keeper) as graph:
        epoch = graph.newest().epoch
        commits, silence_s = keeper.ask("add_while_the_node_is_lost", 4, WRITES)
        print(f"for {silence_s:.1f} s no write was answered")
        in_line = [commit.commit_id for obj in graph.line() for commit in obj.commits if commit.kind != "Init"]
        assert set(commits) <= set(in_line)
        assert len(in_line) == len(set(in_line)) == len(commits) + 1
        assert graph.people() == sorted(["first", *(f"node-{c}-{n}" for c in range(4) for n in range(WRITES))])
        assert graph.newest().epoch > epoch


def test_a_door_is_found_again_on_another_node(disk: Root, ray_address: str, keeper: Member) -> None:
    """Fault: the publisher's node is lost. Expected: a process outside of the cluster finds the door on another node.

    Oracle: another address of the door, a later epoch, and a scan.
    """
    with served_by_three_nodes(disk, ray_address, keeper) as graph, callers(1) as (caller,):
        caller.ask("connect", graph.uri)
        caller.ask("add", graph.uri, "before")
        door, (_, _, epoch) = caller.ask("url", graph.uri), caller.ask("status", graph.uri)
        keeper.ask("lose_publisher")
        caller.ask("add", graph.uri, "after")
        assert caller.ask("url", graph.uri) != door
        assert caller.ask("status", graph.uri)[2] > epoch
        assert graph.people() == ["after", "before"]


@pytest.mark.skipif(not TORTURE, reason="Ray takes half a minute to give up a node that is silent; OMNIRAY_TORTURE=1")
def test_a_node_that_was_frozen_is_fenced_when_it_thaws(disk: Root, ray_address: str, keeper: Member) -> None:
    """Fault: everything on the publisher's node is stopped under load, given up by the cluster, and goes on later.

    Oracle: the line has nothing of the frozen coordinator after its successor's first object, every row is there once.
    """
    with served_by_three_nodes(disk, ray_address, keeper) as graph:
        frozen = graph.newest()
        commits = keeper.ask("add_while_the_node_is_frozen", WRITES)
        line = graph.line()
        in_line = [commit.commit_id for obj in line for commit in obj.commits if commit.kind != "Init"]
        assert sorted(in_line) == sorted(commits)
        assert graph.people() == sorted(["last", *(f"node-{n}" for n in range(WRITES))])
        assert line[-1].epoch > frozen.epoch
        assert [obj.epoch for obj in line] == sorted(obj.epoch for obj in line)
        assert line[-1].owner != frozen.owner
