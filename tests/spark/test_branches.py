"""A real Spark on a branch: frames, streams and pipelines, and what becomes of them when the branch is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import omniray
from omniray.spark import run_pipeline, transaction
from tests.graphs import insert, new_graph
from tests.spark.test_change_stream import Stream, people, replayed
from tests.spark.test_pipeline import Project, counts, person
from tests.spark.test_stream_write import written_files
from tests.spark.test_write import options, saved
from tests.spark.test_write import people as frame
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")

ON_TRIAL = {"branch": "trial"}


def names(graph: omniray.Graph, branch: str = "trial") -> list[str]:
    """Who is on the branch that has the name now: a handle keeps the one that it found."""
    with omniray.open(graph.uri, branch=branch, storage_options=graph.storage_options or None, read_only=True) as now:
        return sorted(now.snapshot().table("Person", ["name"])["name"].to_pylist())


@pytest.mark.parametrize("count", [6, 6_000])
def test_frames_are_written_to_a_branch_and_read_from_it(spark: SparkSession, any_root: Root, count: int) -> None:
    with new_graph(any_root) as graph:
        graph.create_branch("trial")
        saved(frame(spark, count), any_root, graph.uri, "Person", **ON_TRIAL)
        with transaction(graph, branch="trial") as tx:
            tx.write(frame(spark, count, first=count), "Person")
        expected = sorted(f"p{n}" for n in range(2 * count))
        assert (names(graph), names(graph, "main")) == (expected, [])
        read = spark.read.format("omniray").options(**options(any_root, graph.uri), type="Person")
        assert sorted(row["name"] for row in read.options(**ON_TRIAL).load().collect()) == expected
        assert read.option("branch", "main").load().collect() == []
        pinned = read.options(**ON_TRIAL).load()
        graph.delete_branch("trial")
        assert pinned.count() == 2 * count, "the frame shows the snapshot that was chosen for it"
        with pytest.raises(Exception, match="no branch 'trial'"):
            read.options(**ON_TRIAL).load()


def test_the_changes_of_a_branch_replay_to_it_over_restarts_and_a_namesake_is_refused(
    spark: SparkSession, any_root: Root, tmp_path: Path
) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann", "bob")
        graph.create_branch("trial")
        stream = Stream(spark, graph, any_root, tmp_path / "checkpoint")
        given = {"from": "beginning", **ON_TRIAL}
        stream.run(**given)
        graph.load([{"name": "cid", "age": 7}], type="Person", branch="trial")
        insert(graph, "only on main")
        stream.run(**given)
        with omniray.open(graph.uri, branch="trial", storage_options=graph.storage_options or None) as trial:
            assert replayed(stream.rows) == people(trial) == {"ann": None, "bob": None, "cid": 7}
        assert stream.changes()[-1] == ("insert", "cid", 7)
        graph.delete_branch("trial")
        graph.create_branch("trial")
        count = len(stream.rows)
        with pytest.raises(Exception, match=r"BranchGone: the checkpoint of this stream is of the branch with the id"):
            stream.run(**given)
        assert len(stream.rows) == count


def test_a_change_stream_ends_when_its_branch_is_deleted_under_it(
    spark: SparkSession, disk: Root, tmp_path: Path
) -> None:
    with new_graph(disk) as graph:
        graph.create_branch("trial")
        changes = spark.readStream.format("omniray").options(**options(disk, graph.uri), type="Person", **ON_TRIAL)
        seen: list[str] = []

        def keep(batch: Any, epoch: int) -> None:
            seen.extend(row["name"] for row in batch.collect())

        query = changes.option("changes", "true").load().writeStream.foreachBatch(keep)
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        running.processAllAvailable()
        graph.load([{"name": "ann"}], type="Person", branch="trial")
        running.processAllAvailable()
        assert seen == ["ann"]
        graph.delete_branch("trial")
        graph.create_branch("trial")
        with pytest.raises(Exception, match=r"BranchGone: the branch with the id .* was deleted"):
            running.awaitTermination()


def test_a_stream_into_a_branch_ends_when_that_is_deleted_under_it_and_writes_to_no_namesake(
    spark: SparkSession, disk: Root, tmp_path: Path
) -> None:
    with new_graph(disk) as graph:
        graph.create_branch("trial")
        files = written_files(tmp_path / "files", 1)
        rows = spark.readStream.schema("name string, age int").json(str(files))
        stream = rows.writeStream.format("omniray").options(**options(disk, graph.uri), type="Person", **ON_TRIAL)
        running: StreamingQuery = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        running.processAllAvailable()
        assert names(graph) == [f"p0-{n}" for n in range(4)]
        graph.delete_branch("trial")
        graph.create_branch("trial")
        written_files(tmp_path / "more", 2)
        (tmp_path / "more" / "001.json").rename(files / "001.json")
        with pytest.raises(Exception, match="BranchGone"):
            running.awaitTermination()
        assert (names(graph), names(graph, "main")) == ([], [])


@pytest.mark.parametrize("told", ["file", "argument"])
def test_a_pipeline_is_judged_on_its_branch_and_committed_there(
    spark: SparkSession, any_root: Root, tmp_path: Path, told: str
) -> None:
    project = Project(any_root, tmp_path, spark)
    with project.open() as graph:
        graph.create_branch("trial")
        graph.load([{"name": "ann"}], type="Person", branch="trial")
        graph.load([{"name": "bob"}], type="Person")
        file = project.write([person("ann"), person("bob")])
        if told == "file":
            file.write_text(file.read_text().replace('"mode"', '"branch": "trial", "mode"', 1))
        report = run_pipeline(file, spark, branch="trial" if told == "argument" else None)
        assert counts(report, "Person") == (2, 1, {"exists": 1}, 1)
        assert str(report) == f"run {report.run_id}: committed as {report.run_id} on trial"
        assert (names(graph), names(graph, "main")) == (["ann", "bob"], ["bob"])
        again = run_pipeline(file, spark, branch="trial", run_id=report.run_id)
        assert (again.repeated, again.branch) == (True, "trial")
        with pytest.raises(omniray.NotFound, match="no branch 'trail': did you mean 'trial'"):
            run_pipeline(file, spark, branch="trail")
