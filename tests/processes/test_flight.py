"""The handoff's stream between processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from omniray.workers.flight_messages import Answer, Stream, encode_stream
from tests.unit.test_flight import STREAM, TIMEOUT_S, TOKEN, keep_all, server


def test_a_sender_that_is_killed_does_not_look_like_one_that_is_through() -> None:
    """Fault: SIGKILL after one batch. Expected: staging fails, though Flight shows it the end of the stream."""
    outcomes: list[str] = []
    is_over = threading.Event()

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        try:
            return keep_all(stream, batches)
        except flight.FlightError as error:
            outcomes.append(str(error))
            raise
        finally:
            is_over.set()

    with server(stage) as location:
        told = [location, encode_stream(STREAM).hex(), TOKEN]
        sender = subprocess.run([sys.executable, "-c", _KILLED, *told], check=False)
        assert sender.returncode == -9
        assert is_over.wait(TIMEOUT_S)
    assert outcomes == ["Person partition 0 (task 0) ended before it said how many rows it has"]


_KILLED = """
import os, signal, sys
import pyarrow as pa, pyarrow.flight as flight
location, stream, token = sys.argv[1:]
options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
batch = pa.record_batch({"n": pa.array([1], pa.int64())})
descriptor = flight.FlightDescriptor.for_command(bytes.fromhex(stream))
writer, reader = flight.FlightClient(location).do_put(descriptor, batch.schema, options)
reader.read()
writer.write_batch(batch)
reader.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_sending_end_imports_neither_ray_nor_lance() -> None:
    code = (
        "import sys; sys.modules['ray'] = sys.modules['lance'] = sys.modules['duckdb'] = None\n"
        "import omniray.workers.flight_client, omniray.workers.spark.handoff_task"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("staged", ["handoff_workers.staged", "stage.stage_batches"])
def test_a_worker_loads_lance_only_with_the_graph(staged: str) -> None:
    """One thread opens the graph for all; threads that load Lance beside it find it half loaded, and fail."""
    subprocess.run([sys.executable, "-c", f"{_NO_GRAPH}{staged}(None, 'Person', iter(()), 'partition 0')"], check=True)


_NO_GRAPH = """
import sys
from omniray.engine.base.errors import InputError
from omniray.workers.spark import handoff_workers, stage

def opened(ticket):
    assert "lance" not in sys.modules, "it is loaded here"
    raise InputError("no graph")

stage._target_graph = opened
"""
