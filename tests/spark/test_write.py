"""Frames become commits: one for each write, of all partitions, once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import omniray
from omniray.engine.base.errors import GraphGone
from omniray.spark import connect, transaction
from tests.graphs import files_below, new_graph
from tests.spark.watching import FORMAT, WatchingSource
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def people(spark: SparkSession, count: int, *, first: int = 0, partitions: int = 3) -> DataFrame:
    numbers = spark.range(first, first + count, numPartitions=partitions)
    return numbers.selectExpr("concat('p', id) as name", "cast(id % 100 as int) as age")


def options(root: Root, uri: str) -> dict[str, str]:
    return {"uri": uri, **{f"storage.{name}": value for name, value in root.storage_options.items()}}


def saved(frame: DataFrame, root: Root, uri: str, type: str, **more: str) -> None:
    frame.write.format("omniray").options(**options(root, uri), type=type, **more).mode("append").save()


def names(graph: omniray.Graph) -> list[str]:
    found: list[str] = sorted(graph.snapshot().table("Person", ["name"])["name"].to_pylist())
    return found


def test_a_frame_of_few_rows_is_one_commit_of_all_partitions(spark: SparkSession, any_root: Root) -> None:
    with new_graph(any_root) as graph:
        saved(people(spark, 10), any_root, graph.uri, "Person")
        assert names(graph) == sorted(f"p{n}" for n in range(10))
        assert [entry.actor for entry in graph.history(1)] == ["spark"]


def test_a_frame_of_many_rows_is_staged_by_the_executors(spark: SparkSession, any_root: Root) -> None:
    with new_graph(any_root) as graph:
        saved(people(spark, 9_000), any_root, graph.uri, "Person")
        assert names(graph) == sorted(f"p{n}" for n in range(9_000))
        assert len(graph.history()) == 2
        graph.flush()
        assert sum(table.deleted.files for table in graph.sweep(older_than_s=0, dry_run=True).tables) == 0


def test_a_frame_of_large_and_small_partitions_lands_whole(spark: SparkSession, disk: Root) -> None:
    with new_graph(disk) as graph:
        frame = people(spark, 5_000, partitions=1).union(people(spark, 5, first=5_000, partitions=1))
        saved(frame, disk, graph.uri, "Person")
        assert names(graph) == sorted(f"p{n}" for n in range(5_005))


@pytest.mark.parametrize("count", [6, 6_000])
def test_a_key_that_two_partitions_have_refuses_the_whole_frame(spark: SparkSession, disk: Root, count: int) -> None:
    with new_graph(disk) as graph:
        twice = people(spark, count, partitions=2).union(people(spark, count, first=count - 1, partitions=2))
        with pytest.raises(Exception, match=f"p{count - 1}"):
            saved(twice, disk, graph.uri, "Person")
        assert names(graph) == []


@pytest.mark.parametrize("count", [6, 6_000])
def test_a_row_that_does_not_fit_refuses_the_whole_frame_and_is_named(
    spark: SparkSession, disk: Root, count: int
) -> None:
    with new_graph(disk) as graph:
        frame = people(spark, count).selectExpr("name", "case when name = 'p4' then 5000000000 else 7 end as age")
        with pytest.raises(
            Exception, match=r"partition \d record \d+: invalid value for Person.age: 5000000000 is not"
        ):
            saved(frame, disk, graph.uri, "Person")
        assert names(graph) == []


def test_merge_replaces_and_overwrite_empties(spark: SparkSession, disk: Root) -> None:
    with new_graph(disk) as graph:
        saved(people(spark, 6), disk, graph.uri, "Person")
        saved(people(spark, 6, first=3).selectExpr("name", "99 as age"), disk, graph.uri, "Person", load_mode="merge")
        ages = dict(zip(*graph.snapshot().table("Person", ["name", "age"]).to_pydict().values(), strict=True))
        assert ages == {f"p{n}": n if n < 3 else 99 for n in range(9)}
        saved(people(spark, 6).where("false"), disk, graph.uri, "Person", load_mode="overwrite")
        assert names(graph) == []


def test_frames_of_a_transaction_land_at_once(spark: SparkSession, any_root: Root) -> None:
    with new_graph(any_root) as graph:
        knows = people(spark, 9).selectExpr("name as `from`", "'p0' as `to`")
        with transaction(graph, actor="etl") as tx:
            assert tx.write(people(spark, 9), "Person") == 9
            assert tx.write(knows, "Knows") == 9
        assert (tx.result.affected_nodes, tx.result.affected_edges) == (9, 9)
        assert [(e.actor, e.tables) for e in graph.history(1)] == [("etl", ("edge:Knows", "node:Person"))]


def test_a_transaction_that_is_left_by_an_error_commits_nothing(spark: SparkSession, disk: Root) -> None:
    with new_graph(disk) as graph:
        tx = transaction(graph)
        tx.write(people(spark, 9), "Person")
        with pytest.raises(RuntimeError, match="changed my mind"), tx:
            raise RuntimeError("changed my mind")
        assert names(graph) == []


def test_a_frame_that_does_not_fit_is_told_when_it_is_written_and_its_transaction_never_lands(
    spark: SparkSession, disk: Root
) -> None:
    with new_graph(disk) as graph:
        unfit = people(spark, 9).selectExpr("name", "5000000000 as age")
        tx = transaction(graph)
        tx.write(people(spark, 9_000), "Person")
        with pytest.raises(omniray.RecordError, match="5000000000 is not"):
            tx.write(unfit, "Person")
        with pytest.raises(omniray.RecordError, match="5000000000 is not"), tx:
            """Who goes on all the same is told again."""
        assert names(graph) == []
        assert list((Path(graph.uri) / "__recovery").iterdir()) == []


def test_a_write_with_the_same_id_is_applied_once(spark: SparkSession, disk: Root) -> None:
    with new_graph(disk) as graph:
        for _ in range(2):
            with transaction(graph, txn_id="01ARZ3NDEKTSV4RRFFQ69G5FAV") as tx:
                tx.write(people(spark, 9), "Person")
        assert tx.result.repeated
        assert len(names(graph)) == 9


def test_an_edge_without_an_id_replaces_the_one_between_the_same_nodes(spark: SparkSession, disk: Root) -> None:
    schema = "node Person { name: String @key }\nedge Knows: Person -> Person { since: I32? @unique(src, dst) }"
    with omniray.init(f"{disk.uri}/ends", schema=schema) as graph:
        graph.load([{"type": "Person", "data": {"name": f"p{n}"}} for n in range(5_000)])
        edges = people(spark, 5_000).selectExpr("name as src", "'p0' as dst", "age as since")
        for _ in range(2):
            saved(edges, disk, graph.uri, "Knows", load_mode="merge")
        assert graph.snapshot().table("Knows").num_rows == 5_000


def test_a_job_for_a_graph_that_was_created_anew_meanwhile_writes_nothing(spark: SparkSession, disk: Root) -> None:
    """Fault: the graph is replaced between two frames of a transaction. Oracle: every file of the other graph."""
    with new_graph(disk) as graph:
        tx = transaction(graph)
        tx.write(people(spark, 9_000), "Person")
        shutil.rmtree(graph.uri)
        with new_graph(disk) as other:
            saved(people(spark, 3), disk, other.uri, "Person")
        before = {file: (Path(graph.uri) / file).read_bytes() for file in files_below(graph.uri)}
        with pytest.raises(GraphGone):
            tx.write(people(spark, 9_000, first=9_000), "Person")
        with pytest.raises(GraphGone), tx:
            """Who goes on all the same is told again."""
    assert {file: (Path(graph.uri) / file).read_bytes() for file in files_below(graph.uri)} == before


def test_no_process_of_spark_imports_ray_to_write_or_to_read(spark: SparkSession, disk: Root, tmp_path: Path) -> None:
    """Executors of a cluster have no Ray, and one that is there must not be started by an import."""
    notes = tmp_path / "notes"
    notes.mkdir()
    spark.dataSource.register(type("WatchingSource", (WatchingSource,), {"connect": staticmethod(connect)}))
    with new_graph(disk) as graph:
        given = {**options(disk, graph.uri), "type": "Person", "notes": str(notes)}
        people(spark, 3_000).write.format(FORMAT).options(**given).mode("append").save()
        assert spark.read.format(FORMAT).options(**given).load().count() == 3_000
    told = {note.name.partition("-")[0]: note.read_text() for note in notes.iterdir()}
    assert told == dict.fromkeys(("wrote", "committed", "read"), "without Ray")
    assert not any(note.name.endswith(f"-{os.getpid()}") for note in notes.iterdir()), "none of them is this process"
    assert {note.read_text() for note in notes.iterdir()} == {"without Ray"}
