"""Whatever dies or is lost while a frame is written: exactly the right rows, by a full scan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.graphs import new_graph
from tests.spark.faulty import FORMAT, FaultySource
from tests.spark.test_write import names, options, people, saved
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 150_000  # so that a partition has several batches
LOOK_EVERY_S = 0.1
TXN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def save_with(fault: str, frame: DataFrame, root: Root, uri: str, notes: Path) -> None:
    frame.sparkSession.dataSource.register(FaultySource)
    given = options(root, uri) | {"type": "Person", "fault": fault, "notes": str(notes)}
    frame.write.format(FORMAT).options(**given).mode("append").save()


@pytest.mark.parametrize("fault", ["killed while staging", "killed after staging"])
def test_a_worker_that_is_killed_is_replaced_and_no_row_is_doubled(
    spark: SparkSession, disk: Root, notes: Path, fault: str
) -> None:
    with new_graph(disk) as graph:
        save_with(fault, people(spark, ROWS, partitions=1), disk, graph.uri, notes)
        assert [note.name for note in notes.iterdir()] == ["killed"]
        assert names(graph) == sorted(f"p{n}" for n in range(ROWS))


def test_an_answer_that_is_lost_after_the_commit_deletes_nothing(spark: SparkSession, disk: Root, notes: Path) -> None:
    with new_graph(disk) as graph:
        with pytest.raises(Exception, match="the answer to the commit was lost"):
            save_with("answer lost", people(spark, ROWS), disk, graph.uri, notes)
        assert names(graph) == sorted(f"p{n}" for n in range(ROWS))
        graph.sweep(older_than_s=0)
        assert names(graph) == sorted(f"p{n}" for n in range(ROWS))


_DRIVER = """
import sys
from omniray.spark import session
from tests.spark.conftest import SETTINGS
from tests.spark.faulty import FORMAT, FaultySource
from tests.spark.test_write import people
uri, notes, txn_id = sys.argv[1:]
spark = session("dies", SETTINGS)
spark.dataSource.register(FaultySource)
given = {"uri": uri, "type": "Person", "txn_id": txn_id, "fault": "driver stops after the commit", "notes": notes}
people(spark, 9000).write.format(FORMAT).options(**given).mode("append").save()
"""


def test_a_driver_that_is_killed_after_the_commit_is_run_again_without_effect(
    spark: SparkSession, disk: Root, notes: Path
) -> None:
    with new_graph(disk) as graph:
        command = [sys.executable, "-c", _DRIVER, graph.uri, str(notes), TXN_ID]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment, start_new_session=True) as first:
            while not (notes / "stopped").exists():
                with pytest.raises(subprocess.TimeoutExpired):
                    first.wait(LOOK_EVERY_S)
            os.killpg(first.pid, signal.SIGKILL)
        assert graph.outcome(TXN_ID).committed
        saved(people(spark, 9_000), disk, graph.uri, "Person", txn_id=TXN_ID)
        assert names(graph) == sorted(f"p{n}" for n in range(9_000))
        assert [entry.commit_id for entry in graph.history(1)] == [TXN_ID]
