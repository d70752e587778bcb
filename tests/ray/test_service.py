"""What clients of a coordinator on a real Ray may count on, and what misuse comes to."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import omniray
from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.cluster import ray
from omniray.coordinator.actors.hosting import QUEUE_OWNERS_MAX
from omniray.engine.base.errors import GraphGone, LineOwned, SchemaChanged, Unreachable
from omniray.engine.base.failpoints import Point
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.writes.row_sink import INLINE_ROWS_MAX
from omniray.engine.writes.write_requests import Header, MutationRequest
from tests.graphs import INSERT, PERSON, SCHEMA, files_below
from tests.processes.crew import Member
from tests.ray.drivers import PROCESSES, all_at_once, connected, killed_while_loading
from tests.ray.world import Gate, Served, add, hand_back, is_leaving, served, shrink
from tests.stores import Root

WRITES = 4
SIGKILLED = -9

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


# Many at once


def test_writes_of_several_processes_all_land_in_groups_with_one_version_per_round(
    any_root: Root, ray_address: str, members: Sequence[Member]
) -> None:
    """No fault. Oracle: every commit id once in the line, all rows by a full scan, versions rise by one per object."""
    with served(any_root, ray_address) as graph:
        commits = [commit for each in all_at_once(connected(members, graph), "mix", WRITES) for commit in each]
        line = graph.line()
        in_line = [commit.commit_id for obj in line for commit in obj.commits if commit.kind != "Init"]
        assert sorted(in_line) == sorted(commits)
        assert len(commits) == PROCESSES * WRITES * 4
        own = [f"driver-{p}-{n}" for p in range(PROCESSES) for n in range(WRITES)]
        assert graph.people() == sorted(["hot", *own, *(f"{name}-merged" for name in own)])
        assert max(len(obj.commits) for obj in line) > 1, "some rounds are groups"
        versions = [obj.pins[PERSON].version for obj in line]
        assert {after - before for before, after in pairwise(versions)} <= {0, 1}
        with graph.open(read_only=True) as reader:
            snapshot = reader.snapshot()
            assert sorted(snapshot.table("City", ["name"])["name"].to_pylist()) == sorted(own)
            assert sorted(snapshot.table("Knows", ["id"])["id"].to_pylist()) == sorted(own)
            assert len(reader.history()) == len(commits) + 1


def test_of_many_strict_processes_exactly_one_wins_every_time(graph: Served, members: Sequence[Member]) -> None:
    sixteen = connected(members[:16], graph)
    for number in range(5):
        version = graph.newest().pins[PERSON].version
        assert sum(all_at_once(sixteen, "add_strictly", f"strict-{number}", version)) == 1


def test_what_one_client_was_answered_every_other_client_sees(graph: Served, members: Sequence[Member]) -> None:
    writer, reader, *_ = connected(members, graph)
    for number in range(10):
        writer.ask("add_city", f"seen-{number}")
        assert f"seen-{number}" in reader.ask("cities")


def test_a_second_client_joins_the_coordinator_that_serves(graph: Served) -> None:
    with graph.connect() as first, graph.connect() as second:
        assert first.status().owner == second.status().owner == graph.newest().owner


# Ways to write


def test_many_writes_of_one_client_are_under_way_at_once(graph: Served) -> None:
    with graph.connect() as client:
        futures = [client.submit_load([{"name": f"future-{n}"}], type="Person") for n in range(20)]
        futures += [client.submit_mutate(INSERT, {"name": f"future-{n}", "age": 1}) for n in range(20, 30)]
        results = [future.result() for future in futures]
    assert len({result.versions[PERSON] for result in results}) < len(results), "several share a version"


def test_asyncio_clients_await_their_writes(graph: Served) -> None:
    async def write(client: omniray.Client) -> list[omniray.WriteResult]:
        return await asyncio.gather(
            client.load_async([{"name": "async-1"}], type="Person"),
            client.mutate_async(INSERT, {"name": "async-2", "age": None}),
        )

    with graph.connect() as client:
        results = asyncio.run(write(client))
    assert [result.affected_nodes for result in results] == [1, 1]


def test_a_client_is_pickled_into_a_ray_task(graph: Served) -> None:
    def task(client: omniray.Client) -> int:
        with client:
            return client.mutate(INSERT, {"name": "from-a-task", "age": None}).affected_nodes

    with graph.connect(actor="ann", tenant="acme") as client:
        assert ray().get(ray().remote(num_cpus=0)(task).remote(client)) == 1
        assert client.history(1)[0].actor == "ann", "it is the same client there"
        assert client.history(1)[0].tenant == "acme"
        with pickle.loads(pickle.dumps(client)) as copy:
            assert "from-a-task" in copy.snapshot().table("Person", ["name"])["name"].to_pylist()


def test_a_load_of_more_rows_than_travel_inline_is_staged_by_its_client(
    graph: Served, members: Sequence[Member]
) -> None:
    """Small writes go on meanwhile: the load is judged again when its table moved, and lands once."""
    rows = INLINE_ROWS_MAX + 1
    table = pa.table({"name": [f"large-{n}" for n in range(rows)]})
    other, *_ = connected(members, graph)
    with graph.connect() as client:
        other.tell("add_all", "beside", 10)
        result = client.load(table, type="Person", txn_id=(txn_id := new_ulid()))
        other.answer()
        assert result.affected_nodes == rows
        again = client.load(table, type="Person", txn_id=txn_id)
        assert (again.repeated, again.affected_nodes) == (True, rows)
    assert sum(name.startswith("large-") for name in graph.people()) == rows


# Misuse


def test_errors_arrive_as_what_they_are(graph: Served) -> None:
    with graph.connect() as client:
        first = client.load([{"name": "twice"}], type="Person")
        with pytest.raises(omniray.KeyConflict) as refusal:
            client.load([{"name": "twice"}], type="Person")
        assert refusal.value.facts["key"] == "twice"
        with pytest.raises(omniray.ConstraintViolation):
            client.load([{"edge": "Knows", "from": "twice", "to": "nobody"}])
        with pytest.raises(omniray.ExpectedVersionMismatch):
            add(client, "late", expected_versions={PERSON: first.versions[PERSON] - 1})


def test_a_client_with_another_schema_is_refused(graph: Served) -> None:
    header = Header(new_ulid(), "Mutation", Author(), {}, "", schema_hash="of another schema")
    request = MutationRequest(header, INSERT, {"name": "stranger", "age": None}, None, datetime.now(UTC))
    with graph.connect() as client, pytest.raises(SchemaChanged):
        client._link.wire.write(request, 60)


def test_a_closed_client_says_so(graph: Served) -> None:
    client = graph.connect()
    client.close()
    client.close()
    for write in (client.load, client.submit_load):
        with pytest.raises(omniray.InputError, match="closed"):
            write([{"name": "nobody"}], type="Person")
    for write in (client.mutate, client.submit_mutate):
        with pytest.raises(omniray.InputError, match="closed"):
            write(INSERT, {"name": "nobody", "age": None})


def test_a_client_that_vanishes_while_it_loads_leaves_nothing(graph: Served) -> None:
    """Fault: killed when its rows are staged. Expected: others go on, and no row of it is seen."""
    with graph.connect() as client:
        assert killed_while_loading(graph, INLINE_ROWS_MAX + 1) == SIGKILLED
        assert graph.sidecars() != [], "it had announced what it staged"
        add(client, "after-the-vanished")
    assert not [name for name in graph.people() if "lost" in name]


def test_the_lease_of_a_client_that_vanished_is_consumed(graph: Served) -> None:
    with graph.connect() as client:
        assert killed_while_loading(graph, INLINE_ROWS_MAX + 1) == SIGKILLED
        assert client.recover().left == ()


def test_a_write_that_is_not_answered_in_time_is_asked_for_again_with_its_id(graph: Served, tmp_path: Path) -> None:
    """Fault: Phase C hangs. Expected: `OutcomeUnknown` with the id; the same write again joins the first try."""
    with graph.connect() as client:
        gate = Gate(tmp_path / "gate", graph, graph.place.publisher, Point.C_BEFORE_PUT)
        with pytest.raises(omniray.OutcomeUnknown) as unknown:
            add(client, "slow", timeout_s=1.0)
        gate.open()
        again = add(client, "slow", txn_id=unknown.value.facts["txn_id"])
        assert again.commit_id == unknown.value.facts["txn_id"]
        assert client.outcome(again.commit_id).committed
        assert not client.outcome(new_ulid()).committed
    assert graph.people().count("slow") == 1


def test_a_full_queue_refuses_with_a_time_to_come_back_and_then_takes_again(graph: Served, tmp_path: Path) -> None:
    with graph.connect() as client:
        publisher = graph.place.publisher
        gate = Gate(tmp_path / "gate", graph, publisher, Point.C_BEFORE_PUT)
        graph.inside(publisher, shrink, 1)
        first = client.submit_mutate(INSERT, {"name": "fills", "age": None})
        gate.wait_until_reached()
        with pytest.raises(omniray.Overloaded) as refusal:
            add(client, "too-many", timeout_s=0.5)
        assert refusal.value.facts["retry_after_s"] > 0
        second = client.submit_mutate(INSERT, {"name": "patient", "age": None})
        gate.open()
        assert (first.result().affected_nodes, second.result().affected_nodes) == (1, 1)
        graph.inside(publisher, shrink, 1000)
    assert "too-many" not in graph.people()


# Beside embedded writers


def test_embedded_writers_are_told_the_address_while_a_coordinator_serves(graph: Served) -> None:
    with graph.open() as embedded, pytest.raises(LineOwned) as refusal:
        add(embedded, "embedded")
    assert refusal.value.facts["address"] == graph.address


def test_a_coordinator_that_is_taken_down_under_load_has_written_what_it_accepted_and_nothing_else(
    disk: Root, ray_address: str, members: Sequence[Member], tmp_path: Path
) -> None:
    """Fault: `down` while processes write. Expected: each is told, none starts it again, embedded writers go on.

    Oracle: the people in the graph are exactly those whose writes were answered.
    """
    with served(disk, ray_address) as graph, graph.connect() as late:
        for member in connected(members, graph):
            member.tell("add_until_refused")
        graph.wait_until(lambda: len(graph.newest().commits) > 1, "all write")
        gate = Gate(tmp_path / "gate", graph, graph.place.publisher, Point.C_BEFORE_PUT)
        gate.wait_until_reached()
        with ThreadPoolExecutor() as pool:
            down = pool.submit(graph.down)
            graph.wait_until(lambda: graph.inside(graph.place.publisher, is_leaving), "it is being taken down")
            with pytest.raises(Unreachable, match="nothing was written"):
                add(late, "late")
            gate.open()
            down.result()
        told = [member.answer() for member in members]
        assert all(isinstance(error, LineOwned | Unreachable | omniray.OutcomeUnknown) for _, error in told), told
        assert graph.people() == sorted(name for accepted, _ in told for name in accepted)
        with pytest.raises((LineOwned, Unreachable), match="taken down"):
            add(late, "late")
        with graph.open() as embedded:
            assert embedded.owner == EMBEDDED, "no client has started it again"
            add(embedded, "after-down")
        assert graph.sidecars() == []


def test_a_publisher_that_is_killed_after_it_has_handed_the_line_back_does_not_take_it_again(
    disk: Root, ray_address: str
) -> None:
    """Fault: it is killed between that and its own end, and Ray starts it again. Oracle: the line's owner."""
    with served(disk, ray_address) as graph:
        name = graph.place.publisher
        graph.inside(name, hand_back)
        graph.kill(name)
        graph.wait_until(lambda: cluster.find(name) is None, "Ray gives it up")
        with graph.open() as embedded:
            assert embedded.owner == EMBEDDED
            add(embedded, "ann")
        with served_again(graph) as client:
            add(client, "bob")
    assert graph.people() == ["ann", "bob"]


# Graphs that are gone


def test_a_client_of_a_graph_that_was_created_anew_is_told_so_and_nothing_is_written(
    tmp_path: Path, ray_address: str
) -> None:
    """Fault: the graph is deleted under a coordinator that serves it, and another one created there. Oracle: its files.

    The publisher of the first one stays to tell its clients, and nothing leads to it from the new graph; its other
    actors have ended, and are not created again.
    """
    uri = f"{tmp_path}/graph"
    omniray.init(uri, schema=SCHEMA).close()
    first = Served(Root(str(tmp_path), {}), uri, ray_address)
    hosted = first.host()
    with first.connect() as client:
        add(client, "ann")
        client.flush()
        shutil.rmtree(uri)
        with omniray.init(uri, schema=SCHEMA) as other:
            add(other, "zoe")
        before = {file: (tmp_path / "graph" / file).read_bytes() for file in files_below(uri)}
        for name in ("bob", "cid"):
            with pytest.raises(GraphGone):
                add(client, name)
        others = (hosted.place.reconciler, *(hosted.place.queues(number) for number in range(QUEUE_OWNERS_MAX)))
        first.wait_until(lambda: not any(map(cluster.find, others)), "the other actors have ended")
        hosted.end()
        # Unknown, if the publisher ended while the write was on its way; a client that finds nobody reads it itself.
        with pytest.raises((omniray.OutcomeUnknown, GraphGone), match="another one was created in its place"):
            add(client, "dan")
        first.wait_until(lambda: cluster.find(hosted.place.publisher) is None, "it is not created again")
    assert {file: (tmp_path / "graph" / file).read_bytes() for file in files_below(uri)} == before
    with served_again(first) as client:
        add(client, "ann")
    assert first.people() == ["ann", "zoe"]


@contextmanager
def served_again(graph: Served) -> Iterator[omniray.Client]:
    """A client of the graph that is there now, whose coordinator is taken down in the end."""
    graph.host()
    with graph.connect() as client:
        yield client
    graph.down()
