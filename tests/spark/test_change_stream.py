"""The change stream on a real Spark: replayed it gives the graph, and a query goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import omniray
from tests.graphs import AGE, DELETE, insert, new_graph
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


class Stream:
    """A query over the changes of people that keeps what it is given, batch by batch."""

    def __init__(self, spark: SparkSession, graph: omniray.Graph, root: Root, checkpoint: Path) -> None:
        self._spark, self._graph, self._root = spark, graph, root
        self._checkpoint = checkpoint
        self.batches: list[list[Row]] = []

    def run(self, *, fail_after: int | None = None, **options: str) -> None:
        """Read all that there is, batch by batch; `fail_after` so many, the next one fails when it was seen."""
        stream = self._spark.readStream.format("omniray").option("uri", self._graph.uri).option("type", "Person")
        storage = {f"storage.{name}": value for name, value in self._root.storage_options.items()}
        frame = stream.option("changes", "true").options(**storage, **options).load()
        begun = len(self.batches)

        def keep(batch: Any, epoch: int) -> None:
            self.batches.append(batch.collect())
            if fail_after is not None and len(self.batches) - begun > fail_after:
                self.batches.pop()
                raise RuntimeError("killed before the batch was through")

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def changes(self) -> list[tuple[str, str, int | None]]:
        return [(row["_change"], row["name"], row["age"]) for row in sorted(self.rows, key=lambda row: row["_seq"])]


def replayed(rows: list[Row]) -> dict[str, int | None]:
    people: dict[str, int | None] = {}
    for row in sorted(rows, key=lambda row: row["_seq"]):
        if row["_change"] == "delete":
            assert people.pop(row["name"]) == row["age"]
        else:
            assert (row["name"] in people) == (row["_change"] == "update")
            people[row["name"]] = row["age"]
    return people


def people(graph: omniray.Graph) -> dict[str, int | None]:
    table = graph.snapshot().table("Person", ["name", "age"])
    return dict(zip(table["name"].to_pylist(), table["age"].to_pylist(), strict=True))


def test_the_stream_replays_to_the_graph_over_restarts_at_any_point(
    spark: SparkSession, s3: Root, tmp_path: Path
) -> None:
    with new_graph(s3) as graph:
        stream = Stream(spark, graph, s3, tmp_path / "checkpoint")
        start: dict[str, str] = {"from": "beginning"}
        insert(graph, "ann", "bob", "cid")
        graph.mutate(AGE, {"name": "ann", "age": 30})
        graph.load([{"name": "Rome"}], type="City")
        with pytest.raises(Exception, match="killed before the batch was through"):
            stream.run(fail_after=1, steps_per_batch="2", **start)
        assert 0 < len(replayed(stream.rows)) < 3
        graph.mutate(DELETE, {"name": "bob"})
        stream.run(steps_per_batch="2", **start)
        assert replayed(stream.rows) == people(graph) == {"ann": 30, "cid": None}
        graph.load([{"name": "dan", "age": 1}, {"name": "cid", "age": None}], type="Person", mode="overwrite")
        stream.run(**start)
        assert replayed(stream.rows) == people(graph)
        assert sorted(stream.changes()[-2:]) == [("delete", "ann", 30), ("insert", "dan", 1)]
        commits = {row["_seq"]: row["_commit_id"] for row in stream.rows}
        history = {entry.seq: entry.commit_id for entry in graph.history() if entry.tables == ("node:Person",)}
        assert commits == history


def test_a_stream_goes_on_from_the_commit_of_a_snapshot_and_else_from_the_head(
    spark: SparkSession, disk: Root, tmp_path: Path
) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        known = graph.snapshot().commit_id
        insert(graph, "bob")
        after = Stream(spark, graph, disk, tmp_path / "after")
        after.run(**{"from": known.lower()})
        assert after.changes() == [("insert", "bob", None)]
        head = Stream(spark, graph, disk, tmp_path / "head")
        head.run()
        insert(graph, "cid")
        head.run()
        assert head.changes() == [("insert", "cid", None)]
