"""Frames through a coordinator: found by the graph itself, and killed while it commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import omniray
from omniray.engine.base.failpoints import Point
from omniray.spark import transaction
from tests.ray.world import Served, served
from tests.spark.test_write import people, saved
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

SIZES = [6, 9_000]  # few rows travel to the coordinator, many are staged and judged by the driver


@pytest.fixture(scope="module")
def graph(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A graph on disk, served once for all of these tests: each empties it first."""
    with served(Root(str(tmp_path_factory.mktemp("root")), {}), ray_address) as one:
        yield one


@pytest.fixture
def client(graph: Served) -> Iterator[omniray.Client]:
    with graph.connect(actor="etl", tenant="acme") as client:
        client.load([], type="Person", mode="overwrite")
        yield client


@pytest.mark.parametrize("count", SIZES)
def test_a_frame_is_committed_by_the_coordinator_that_serves_the_graph(
    spark: SparkSession, graph: Served, client: omniray.Client, count: int
) -> None:
    saved(people(spark, count), graph.root, graph.uri, "Person", actor="job", tenant="acme")
    assert graph.people() == sorted(f"p{n}" for n in range(count))
    assert [(entry.actor, entry.tenant) for entry in client.history(1)] == [("job", "acme")]
    assert graph.newest().owner == client.status().owner


@pytest.mark.parametrize("point", [Point.C_BEFORE_PUT, Point.C_AFTER_PUT])
@pytest.mark.parametrize("count", SIZES)
def test_a_coordinator_that_is_killed_while_it_commits_a_frame_is_asked_again(
    spark: SparkSession, graph: Served, client: omniray.Client, count: int, point: Point
) -> None:
    graph.arm(graph.place.publisher, f"{point}=kill")
    epoch = graph.newest().epoch
    with transaction(client) as tx:
        tx.write(people(spark, count), "Person")
    assert graph.people() == sorted(f"p{n}" for n in range(count))
    assert graph.newest().epoch == epoch + 1
    assert [commit.commit_id for obj in graph.line() for commit in obj.commits].count(tx.txn_id) == 1
    graph.wait_until_healed()


@pytest.mark.parametrize("count", SIZES)
def test_frames_land_on_a_branch_of_a_graph_that_is_served(
    spark: SparkSession, graph: Served, client: omniray.Client, count: int
) -> None:
    branch = f"trial-{count}"
    client.create_branch(branch)
    saved(people(spark, count), graph.root, graph.uri, "Person", branch=branch)
    with transaction(client, branch=branch) as tx:
        tx.write(people(spark, count, first=count), "Person")
    found = client.snapshot(branch=branch).table("Person", ["name"])["name"].to_pylist()
    assert sorted(found) == sorted(f"p{n}" for n in range(2 * count))
    assert graph.people() == []
    assert client.outcome(tx.txn_id, branch=branch).committed
