"""The handoff to Ray, with a real Spark and a real Ray: each row once, whatever dies on the way.

Rows are counted by full scans. Spark tries a task three times here, as the session's fixture says.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omniray
from omniray.engine.base.errors import RecordError, StorageError, Unreachable
from omniray.engine.base.ulids import new_ulid
from omniray.engine.writes.part import KeysInRows, Minted, Part
from omniray.engine.writes.part_message import decode_part, encode_part
from omniray.spark import to_ray
from omniray.workers.flight_client import Route
from omniray.workers.spark import handoff
from omniray.workers.spark.commit import commit_on
from omniray.workers.spark.handoff_crew import Crew
from omniray.workers.spark.handoff_workers import stage_file
from omniray.workers.spark.options import Target
from omniray.workers.spark.stage import begin
from tests.ray.world import Served, served
from tests.spark import handoff_faults
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

MANY = 20_000  # so many are staged as data files, and not sent along


@pytest.fixture(autouse=True)
def _one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts is most of what a small handoff costs."""
    monkeypatch.setattr(handoff, "SERVERS_PER_NODE", 1)


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A graph for all tests, which write under names of their own."""
    with served(Root(str(tmp_path_factory.mktemp("root")), {}), ray_address) as one:
        yield one


@pytest.fixture(scope="module")
def client(shared: Served) -> Iterator[omniray.Client]:
    with shared.connect() as one:
        yield one


def frame(spark: SparkSession, prefix: str, count: int = MANY, partitions: int = 2) -> DataFrame:
    rows = spark.range(0, count, numPartitions=partitions)
    return rows.selectExpr(f"concat('{prefix}', id) as name", "cast(id % 100 as int) as age")


def rows_of(shared: Served, prefix: str) -> list[str]:
    return [name for name in shared.people() if name.startswith(prefix)]


def expected(prefix: str, count: int = MANY) -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(count))


# Rows


def test_a_frame_is_one_commit_of_all_partitions(spark: SparkSession, shared: Served, client: omniray.Client) -> None:
    commits = len(client.history())
    result = to_ray(frame(spark, "few", 50, partitions=3), client, "Person", actor="etl")
    assert (result.affected_nodes, len(client.history())) == (50, commits + 1)
    assert client.history(1)[0].actor == "etl"
    assert rows_of(shared, "few") == expected("few", 50)


@pytest.mark.parametrize("via", ["flight", "files"])
def test_a_frame_is_handed_over_to_a_branch(
    spark: SparkSession, shared: Served, client: omniray.Client, tmp_path: Path, via: str
) -> None:
    branch, txn_id = f"by-{via}", new_ulid()
    client.create_branch(branch)
    options: dict[str, Any] = {"via": via, "shared_path": str(tmp_path) if via == "files" else None}
    first = to_ray(frame(spark, via), client, "Person", branch=branch, txn_id=txn_id, **options)
    fails = frame(spark, via).selectExpr("cast(raise_error('a task has run') as string) as name")
    second = to_ray(fails, client, "Person", branch=branch, txn_id=txn_id, **options)
    assert (second.commit_id, second.repeated) == (first.commit_id, True), "asked on that branch"
    found = client.snapshot(branch=branch).table("Person", ["name"])["name"].to_pylist()
    assert sorted(name for name in found if name.startswith(via)) == expected(via)
    assert rows_of(shared, via) == []


def test_the_same_id_again_is_the_first_outcome_and_no_task_runs(
    spark: SparkSession, shared: Served, client: omniray.Client
) -> None:
    txn_id = new_ulid()
    first = to_ray(frame(spark, "again"), client, "Person", txn_id=txn_id)
    fails = frame(spark, "again").selectExpr("cast(raise_error('a task has run') as string) as name")
    second = to_ray(fails, client, "Person", txn_id=txn_id)
    assert (second.commit_id, second.repeated) == (first.commit_id, True)
    assert rows_of(shared, "again") == expected("again")


def test_the_same_id_while_the_first_is_not_known_to_be_committed_is_applied_once(
    spark: SparkSession, shared: Served, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stage everything: the coordinator knows the id."""
    monkeypatch.setattr(handoff, "_is_committed", lambda graph, txn_id: False)
    txn_id = new_ulid()
    results = [to_ray(frame(spark, "twice"), client, "Person", txn_id=txn_id) for _ in range(2)]
    assert [result.repeated for result in results] == [False, True]
    assert rows_of(shared, "twice") == expected("twice")


def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(
    spark: SparkSession, shared: Served, client: omniray.Client
) -> None:
    rows = frame(spark, "unfit", 10).selectExpr("name", "if(name = 'unfit7', 3000000000, 7) as age")
    with pytest.raises(RecordError, match=r"partition 1 record 3: invalid value for Person\.age: 3000000000"):
        to_ray(rows, client, "Person")
    assert rows_of(shared, "unfit") == []


# Workers that wait


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The process ids of the servers of each handoff."""
    found, noted = handoff._locations, []

    def note(workers: Any, *run: Any) -> tuple[str, ...]:
        import ray

        noted.append(ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in workers]))
        return found(workers, *run)

    monkeypatch.setattr(handoff, "_locations", note)
    return noted


def test_workers_serve_the_next_handoff_too_with_another_token(
    spark: SparkSession, shared: Served, client: omniray.Client, pids: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_ray(frame(spark, "former"), client, "Person")
    routes: list[Route] = []
    monkeypatch.setattr(handoff, "Route", lambda *given: routes.append(Route(*given)) or routes[-1])
    to_ray(frame(spark, "latter"), client, "Person")
    assert pids[0] == pids[1]
    assert rows_of(shared, "latter") == expected("latter")
    shared.wait_until(partial(_is_gone, routes[0]), "the server of the run has ended")


def _is_gone(route: Route) -> bool:
    (server,) = map(urlsplit, route.locations)
    return _is_closed(server.hostname, server.port)


def test_a_worker_that_died_while_it_waited_is_replaced(
    spark: SparkSession, shared: Served, client: omniray.Client, pids: list[list[int]]
) -> None:
    to_ray(frame(spark, "alive", 10), client, "Person")
    os.kill(pids[0][0], signal.SIGKILL)
    to_ray(frame(spark, "dead"), client, "Person")
    assert pids[0] != pids[1]
    assert rows_of(shared, "dead") == expected("dead")


def test_a_handoff_that_failed_leaves_no_worker_behind(
    spark: SparkSession, shared: Served, client: omniray.Client, pids: list[list[int]]
) -> None:
    with pytest.raises(RecordError):
        to_ray(frame(spark, "unfit", 10).selectExpr("name", "3000000000 as age"), client, "Person")
    to_ray(frame(spark, "next", 10), client, "Person")
    assert pids[0] != pids[1]


def has_ended(worker: Any) -> bool:
    import ray

    try:
        ray.get(worker.is_ready.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


def test_a_worker_that_nobody_needs_ends_though_others_go_on(
    spark: SparkSession, shared: Served, client: omniray.Client
) -> None:
    crew = Crew(idle_s_max=1.0)
    with crew.hired(2) as (idle, busy):
        pass

    def is_the_other_one_through() -> bool:
        with crew.hired(1) as workers:
            assert workers == [busy], "the one that has waited least"
        return has_ended(idle)

    shared.wait_until(is_the_other_one_through, "the worker has ended")
    shared.wait_until(partial(has_ended, busy), "the other one has ended")


def test_workers_wait_no_longer_when_a_later_run_has_failed(
    spark: SparkSession, shared: Served, client: omniray.Client
) -> None:
    crew = Crew(idle_s_max=0.2)
    with crew.hired(2) as (idle, failing):
        pass
    with pytest.raises(ZeroDivisionError), crew.hired(1):
        raise ZeroDivisionError
    shared.wait_until(partial(has_ended, failing), "the one that failed has ended")
    shared.wait_until(partial(has_ended, idle), "the worker has ended")


# Faults


@pytest.fixture
def server_pids(tmp_path: Path, pids: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the process ids of the next handoff's servers will be, for whoever kills them."""
    found = handoff._locations

    def noted(*run: Any) -> tuple[str, ...]:
        locations = found(*run)
        (tmp_path / "pids").write_text(json.dumps(pids[-1]))
        return locations

    monkeypatch.setattr(handoff, "_locations", noted)
    return tmp_path


def long_frame(spark: SparkSession, prefix: str, folder: Path, which: slice) -> DataFrame:
    """Some batches in each partition, in the middle of which servers are killed."""
    rows = frame(spark, prefix, 8 * 65_536)
    return rows.mapInArrow(partial(handoff_faults.kill_servers, folder, which), rows.schema)


@pytest.mark.parametrize(("prefix", "cores_per_server"), [("equal", 1), ("spare", 1000)])
def test_a_server_that_is_killed_in_a_stream_costs_a_further_try_and_no_row(
    spark: SparkSession,
    shared: Served,
    client: omniray.Client,
    server_pids: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    cores_per_server: int,
) -> None:
    """Fault: SIGKILL of one of two servers in the middle of a stream; the other one is as good, or a spare. Expected:
    Spark begins the partition anew with the other one. Oracle: a full scan finds each row once."""
    monkeypatch.setattr(handoff, "SERVERS_PER_NODE", 2)
    monkeypatch.setattr(handoff, "CORES_PER_SERVER", cores_per_server)
    to_ray(long_frame(spark, prefix, server_pids, slice(1)), client, "Person")
    assert (server_pids / "killed").exists()
    assert rows_of(shared, prefix) == expected(prefix, 8 * 65_536)


def test_all_servers_killed_is_one_clear_line_and_no_row(
    spark: SparkSession, shared: Served, client: omniray.Client, server_pids: Path
) -> None:
    with pytest.raises(Unreachable, match="no staging server takes Person partition") as caught:
        to_ray(long_frame(spark, "alone", server_pids, slice(None)), client, "Person")
    assert "\n" not in str(caught.value)
    assert rows_of(shared, "alone") == []


def test_rows_that_two_tries_of_a_task_staged_count_once_and_their_workers_end(
    spark: SparkSession,
    shared: Served,
    client: omniray.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pids: list[list[int]],
) -> None:
    """Fault: a Python worker dies after its rows were staged. Expected: they are staged again, and one part counts."""
    task = partial(handoff_faults.lose_the_first_result, tmp_path / "lost")
    monkeypatch.setattr(handoff, "hand_over_partition", task)
    to_ray(frame(spark, "retried"), client, "Person")
    assert (tmp_path / "lost").exists()
    assert rows_of(shared, "retried") == expected("retried")
    assert pids[0], "there were workers"
    monkeypatch.undo()
    shared.wait_until(partial(_are_gone, pids[0]), "what the other try has announced is nobody's any more")


def _are_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_part_that_a_task_made_up_is_refused_unread(
    spark: SparkSession, shared: Served, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a task answers with a part of its own, as well-formed as any. Expected: it has no seal, so it is none."""
    row = pa.table([["forged"], ["forged"], [1]], schema=client.schema.type("Person").arrow)
    made_up = encode_part(Part({"node:Person": row}, KeysInRows("partition 0", Minted())))
    assert isinstance(decode_part(made_up, client.schema), Part)
    monkeypatch.setattr(handoff, "hand_over_partition", partial(handoff_faults.forge, made_up))
    with pytest.raises(StorageError, match="not made by the staging servers of this run"):
        to_ray(frame(spark, "forged", 10), client, "Person")
    assert rows_of(shared, "forged") == []


def test_two_results_of_one_partition_are_refused() -> None:
    assert handoff.one_part_each([(1, b"b"), (0, b"a")]) == [b"a", b"b"]
    with pytest.raises(StorageError, match="two results for partition 1"):
        handoff.one_part_each([(1, b"b"), (0, b"a"), (1, b"b")])


def rerouted(monkeypatch: pytest.MonkeyPatch, **instead: Any) -> None:
    """Let tasks know something else than what is true."""

    def route(*given: Any) -> Route:
        return replace(Route(*given), **instead)

    monkeypatch.setattr(handoff, "Route", route)


def test_a_wrong_token_is_one_clear_line_and_no_row(
    spark: SparkSession, shared: Served, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rerouted(monkeypatch, token="guessed")
    with pytest.raises(Unreachable, match="refuses the token") as caught:
        to_ray(frame(spark, "token", 10), client, "Person")
    assert "\n" not in str(caught.value)
    assert rows_of(shared, "token") == []


def test_a_server_that_spark_does_not_reach_is_one_clear_line_and_no_row(
    spark: SparkSession, shared: Served, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rerouted(monkeypatch, locations=("grpc://127.0.0.1:9",))
    with pytest.raises(Unreachable, match=r"no staging server takes .* grpc://127\.0\.0\.1:9 .* hand over again"):
        to_ray(frame(spark, "lonely", 10), client, "Person")
    assert rows_of(shared, "lonely") == []


def test_an_error_of_the_frame_itself_stays_what_it_is_and_the_servers_end(
    spark: SparkSession, shared: Served, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    locations = handoff._locations

    def noted(*of_run: Any) -> tuple[str, ...]:
        found.extend(locations(*of_run))
        return tuple(found)

    monkeypatch.setattr(handoff, "_locations", noted)
    rows = frame(spark, "broken", 10).selectExpr("cast(raise_error('broken by its user') as string) as name")
    with pytest.raises(Exception, match="broken by its user"):
        to_ray(rows, client, "Person")
    (server,) = map(urlsplit, found)
    assert server.hostname == shared.address.rpartition(":")[0]
    shared.wait_until(partial(_is_closed, server.hostname, server.port), "the server has ended")


def _is_closed(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) != 0


def test_a_task_knows_no_storage_and_no_credentials(
    spark: SparkSession, ray_address: str, s3: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "hand_over_partition", partial(handoff_faults.note_what_is_known, tmp_path))
    with served(s3, ray_address) as one:
        with one.connect() as client:
            to_ray(frame(spark, "p"), client, "Person")
        assert one.people() == expected("p")
    known = (tmp_path / "known").read_bytes()
    secrets = (s3.storage_options[name] for name in ("aws_endpoint", "aws_access_key_id", "aws_secret_access_key"))
    for secret in (s3.uri, *secrets):  # the other options are words that any environment may have
        assert secret.encode() not in known


# Files


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_by_files_all_rows_land_in_one_commit_and_the_files_go(
    spark: SparkSession, shared: Served, client: omniray.Client, tmp_path: Path
) -> None:
    commits = len(client.history())
    to_ray(frame(spark, "files"), client, "Person", via="files", shared_path=str(tmp_path))
    assert len(client.history()) == commits + 1
    assert rows_of(shared, "files") == expected("files")
    assert list(tmp_path.iterdir()) == []


def test_by_files_an_odd_name_and_a_frame_without_rows_are_no_trouble(
    spark: SparkSession, shared: Served, client: omniray.Client, tmp_path: Path
) -> None:
    by_files = partial(to_ray, graph=client, type="Person", via="files", shared_path=str(tmp_path / "x[1]"))
    assert by_files(frame(spark, "odd", 20)).affected_nodes == 20
    assert by_files(frame(spark, "none", 0)).affected_nodes == 0
    assert by_files(frame(spark, "none", 0).limit(0)).affected_nodes == 0
    assert rows_of(shared, "odd") == expected("odd", 20)


def test_by_files_a_folder_without_files_is_no_frame_without_rows(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Spark wrote no Parquet file"):
        handoff._written(str(tmp_path))


def test_a_worker_that_dies_begins_its_file_anew(
    spark: SparkSession, shared: Served, client: omniray.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a Ray worker is killed before its part is out. Expected: Ray runs the task again, without Spark."""
    task = handoff_faults.DiesAtFirst(tmp_path / "died")
    monkeypatch.setattr(handoff, "stage_file", lambda *arguments: task(*arguments))
    to_ray(frame(spark, "worker"), client, "Person", via="files", shared_path=f"file://{tmp_path}/shared")
    assert (tmp_path / "died").exists()
    assert rows_of(shared, "worker") == expected("worker")


def test_files_of_a_write_that_failed_stay_until_its_id_has_succeeded(
    spark: SparkSession, shared: Served, client: omniray.Client, tmp_path: Path
) -> None:
    txn_id = new_ulid()
    by_files = partial(to_ray, graph=client, type="Person", txn_id=txn_id, via="files", shared_path=str(tmp_path))
    with pytest.raises(RecordError, match="invalid value for Person"):
        by_files(frame(spark, "later", 10).selectExpr("name", "3000000000 as age"))
    assert files_below(tmp_path) != []
    by_files(frame(spark, "later"))
    assert rows_of(shared, "later") == expected("later")
    assert list(tmp_path.iterdir()) == []


def test_times_in_files_of_spark_are_read_as_they_were_written(disk: Root, tmp_path: Path) -> None:
    """Spark writes INT96, and a time beyond the reach of nanoseconds is one like any other."""
    times = [datetime(1066, 10, 14, 9, tzinfo=UTC), datetime(2800, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]
    table = pa.table({"name": ["old", "new"], "at": pa.array(times, pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "part-0.parquet", use_deprecated_int96_timestamps=True)
    with omniray.init(f"{disk.uri}/graph", schema="node Event { name: String @key  at: DateTime }") as graph:
        ticket = begin(Target(graph.uri), graph.graph_id, "append", None)
        commit_on(graph, ticket, ["Event"], [stage_file(ticket, "Event", str(tmp_path / "part-0.parquet"))])
        assert graph.snapshot().table("Event", ["at"])["at"].to_pylist() == times


# Refused before any task


def test_a_frame_whose_columns_do_not_fit_is_refused_before_any_task(
    spark: SparkSession, client: omniray.Client
) -> None:
    rows = frame(spark, "").selectExpr("raise_error('a task has run') as nmae", "1 as age")
    with pytest.raises(omniray.InputError, match=r"the frame does not fit Person: .*nmae"):
        to_ray(rows, client, "Person")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"via": "pigeon"}, "invalid via 'pigeon'"),
        ({"via": "files"}, "give both or neither"),
        ({"shared_path": "/shared"}, "give both or neither"),
        ({"mode": "upsert"}, "invalid mode 'upsert'"),
        ({"timeout_s": 0}, "timeout_s is 0: give seconds"),
        ({"type": "Persona"}, "Persona"),
        ({"txn_id": "7"}, "ULID"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    spark: SparkSession, client: omniray.Client, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(omniray.InputError, match=message):
        to_ray(frame(spark, ""), client, **{"type": "Person", **options})


def test_an_embedded_graph_has_no_ray_to_hand_to(spark: SparkSession, disk: Root) -> None:
    from tests.graphs import new_graph

    with new_graph(disk) as graph, pytest.raises(omniray.InputError, match=r"omniray\.connect"):
        to_ray(frame(spark, ""), graph, "Person")
