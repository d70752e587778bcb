"""What a test does inside Spark's tasks and Ray's workers while a handoff is under way.

Each fault leaves a file, so that it happens once, whoever tries again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from omniray.workers.flight_client import Route
from omniray.workers.spark.handoff_task import hand_over_partition


def first_time(mark: Path) -> bool:
    """Whether nobody was here before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_servers(folder: Path, which: slice, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in the middle of which the staging servers die whose ids are in the folder."""
    for number, batch in enumerate(batches):
        if number == 3 and first_time(folder / "killed"):
            for pid in json.loads((folder / "pids").read_text())[which]:
                os.kill(pid, signal.SIGKILL)
        yield batch


def lose_the_first_result(
    mark: Path, route: Route, type_name: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task that dies when its rows are staged and before anybody knows."""
    results = list(hand_over_partition(route, type_name, batches))
    if results and first_time(mark):
        os.kill(os.getpid(), signal.SIGKILL)
    yield from results


def note_what_is_known(
    folder: Path, route: Route, type_name: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task that writes down everything that it was given."""
    (folder / "known").write_bytes(pickle.dumps((route, type_name, dict(os.environ))))
    return hand_over_partition(route, type_name, batches)


def forge(part: bytes, route: Route, type_name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task whose result is a part of its own, with the length of a seal before it."""
    for result in hand_over_partition(route, type_name, batches):
        yield result.set_column(1, "part", pa.array([bytes(32) + part], pa.binary()))


class DiesAtFirst:
    """Staging of a file by a Ray worker whose first try kills its process."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, *arguments: object) -> bytes:
        from omniray.workers.spark.handoff_workers import stage_file

        if first_time(self._mark):
            os.kill(os.getpid(), signal.SIGKILL)
        return stage_file(*arguments)  # type: ignore[arg-type]
