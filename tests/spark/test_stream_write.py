"""A stream into a graph: each micro-batch is one commit, made once however often Spark runs it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.graphs import new_graph
from tests.spark.faulty import FORMAT, FaultySource
from tests.spark.test_change_stream import Stream, people, replayed
from tests.spark.test_write import names, options
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")

BATCHES = 5
ROWS_EACH = 4


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return written_files(tmp_path / "files", BATCHES)


def written_files(folder: Path, batches: int) -> Path:
    """A folder with the rows of each batch in a file of its own."""
    folder.mkdir()
    for batch in range(batches):
        rows = [{"name": f"p{batch}-{n}", "age": batch} for n in range(ROWS_EACH)]
        (folder / f"{batch:03}.json").write_text("\n".join(map(json.dumps, rows)))
    return folder


def started(
    spark: SparkSession, files: Path, place: Path, given: dict[str, str], format: str = "omniray"
) -> StreamingQuery:
    frame = spark.readStream.schema("name string, age int").option("maxFilesPerTrigger", 1).json(str(files))
    stream = frame.writeStream.format(format).options(**given, type="Person")
    return stream.option("checkpointLocation", str(place)).trigger(availableNow=True).start()


def everybody(batches: int = BATCHES) -> list[str]:
    return sorted(f"p{batch}-{n}" for batch in range(batches) for n in range(ROWS_EACH))


def test_each_batch_of_a_stream_is_one_commit(spark: SparkSession, s3: Root, files: Path, tmp_path: Path) -> None:
    with new_graph(s3) as graph:
        started(spark, files, tmp_path / "checkpoint", options(s3, graph.uri)).awaitTermination()
        assert names(graph) == everybody()
        assert len(graph.history()) == 1 + BATCHES


def test_batches_that_fail_before_or_after_their_commit_land_once(
    spark: SparkSession, disk: Root, files: Path, tmp_path: Path
) -> None:
    faults = ["before 0", "after 1", "before 3", "after 3"]
    notes = tmp_path / "notes"
    notes.mkdir()
    spark.dataSource.register(FaultySource)
    with new_graph(disk) as graph:
        given = options(disk, graph.uri) | {"fault": ",".join(faults), "notes": str(notes)}
        for fault in faults:
            with pytest.raises(Exception, match=f"a fault {fault}"):
                started(spark, files, tmp_path / "checkpoint", given, FORMAT).awaitTermination()
        started(spark, files, tmp_path / "checkpoint", given, FORMAT).awaitTermination()
        assert sorted(note.name for note in notes.iterdir()) == sorted(faults)
        assert names(graph) == everybody()
        assert len(graph.history()) == 1 + BATCHES


@pytest.mark.parametrize(
    ("given", "message"),
    [({"load_mode": "overwrite"}, "a stream can't overwrite"), ({"txn_id": "x"}, "leave out the option 'txn_id'")],
)
def test_what_a_stream_can_not_do_is_refused_before_it_begins(
    spark: SparkSession, disk: Root, files: Path, tmp_path: Path, given: dict[str, str], message: str
) -> None:
    with new_graph(disk) as graph, pytest.raises(Exception, match=message):
        started(spark, files, tmp_path / "checkpoint", options(disk, graph.uri) | given).awaitTermination()


_DRIVER = """
import sys
from omniray.spark import session
from pathlib import Path
from tests.spark.conftest import SETTINGS
from tests.spark.test_stream_write import started
uri, files, place = sys.argv[1:]
started(session("stream", SETTINGS), Path(files), Path(place), {"uri": uri}).awaitTermination()
"""


@pytest.mark.skipif("OMNIRAY_TORTURE" not in os.environ, reason="starts a JVM for each kill")
@pytest.mark.timeout(3600)
def test_a_stream_that_is_killed_again_and_again_lands_each_batch_once_and_is_replayed_by_its_changes(
    spark: SparkSession, disk: Root, tmp_path: Path
) -> None:
    batches, kills = 50, 10
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    files = written_files(tmp_path / "files", batches)
    with new_graph(disk) as graph:
        for landed in sorted(random.Random(seed).sample(range(1, batches), kills)):
            with running(graph.uri, files, tmp_path / "checkpoint") as driver:
                while len(graph.history()) - 1 < landed:
                    assert driver.poll() is None, "the stream has ended before its time"
                    time.sleep(0.2)
                os.killpg(driver.pid, signal.SIGKILL)
        with running(graph.uri, files, tmp_path / "checkpoint") as driver:
            assert driver.wait() == 0
        assert names(graph) == everybody(batches)
        # One commit for each batch. A kill between two of Spark's own notes makes one batch of the files of two.
        assert len(graph.history()) == 1 + batches_of(tmp_path / "checkpoint") > kills
        changes = Stream(spark, graph, disk, tmp_path / "changes")
        changes.run(steps_per_batch="7", **{"from": "beginning"})
        assert replayed(changes.rows) == people(graph)
        assert len(changes.rows) == batches * ROWS_EACH


def batches_of(checkpoint: Path) -> int:
    """How many batches Spark has planned; it numbers them from 0."""
    return 1 + max(int(note.name) for note in (checkpoint / "offsets").iterdir() if note.name.isdigit())


def running(uri: str, files: Path, place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _DRIVER, uri, str(files), str(place)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, start_new_session=True)
