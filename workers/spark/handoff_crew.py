"""Staging workers that outlive a handoff: the next one of this process finds them started, with all of it imported.

To start a process on Ray and to import Lance there takes some two seconds, however few rows there are. So workers wait
a while for another handoff. They belong to this process and end with it. A handoff that failed takes its workers with
it: nobody knows what they are still at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from omniray.engine.errors import Unreachable
from omniray.workers.flight_client import first_line
from omniray.workers.spark.handoff_workers import StagingWorker

IDLE_S_MAX = 120.0
START_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 5.0


class Crew:
    """The workers that wait, of one connection to one cluster: those of another are gone with it."""

    def __init__(self, idle_s_max: float = IDLE_S_MAX) -> None:
        self._idle_s_max = idle_s_max
        self._lock = threading.Lock()
        self._connection = ""
        self._waiting: list[Any] = []
        self._dismissal: threading.Timer | None = None

    @contextmanager
    def hired(self, count: int) -> Iterator[list[Any]]:
        """So many workers, all of which have answered; those that have waited come first."""
        connection = _connection()
        workers = _alive(self._taken(connection, count))
        try:
            workers += _started(count - len(workers))
            yield workers
        except BaseException:
            _end(workers)
            raise
        self._keep(connection, workers)

    def dismiss(self) -> None:
        """End the workers that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if self._connection == _connection():
            _end(waiting)

    def _taken(self, connection: str, count: int) -> list[Any]:
        with self._lock:
            self._put_off_dismissal(None)
            if self._connection != connection:
                self._connection, self._waiting = connection, []
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _keep(self, connection: str, workers: Sequence[Any]) -> None:
        for worker in workers:
            worker.rest.remote()
        with self._lock:
            if self._connection == connection:
                self._waiting += workers
            self._put_off_dismissal(threading.Timer(self._idle_s_max, self.dismiss))

    def _put_off_dismissal(self, timer: threading.Timer | None) -> None:
        if self._dismissal is not None:
            self._dismissal.cancel()
        self._dismissal = timer
        if timer is not None:
            timer.daemon = True
            timer.start()


CREW = Crew()
"""The one of this process."""


def _connection() -> str:
    """What tells one connection of this process to a cluster from any other; nothing while there is none."""
    import ray

    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else ""


def _started(count: int) -> list[Any]:
    import ray

    # No processor is reserved: a cluster that is full would never start them, and they mostly wait.
    shell = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(StagingWorker)
    workers = [shell.remote() for _ in range(count)]
    try:
        ray.get([worker.is_ready.remote() for worker in workers], timeout=START_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        _end(workers)
        raise Unreachable(
            f"no staging server could be started on Ray, and nothing was written: {first_line(error)}"
        ) from error
    return workers


def _alive(workers: Sequence[Any]) -> list[Any]:
    """Those that answer; the others have died while they waited, or their node has."""
    import ray

    alive = []
    for worker, answer in [(worker, worker.is_ready.remote()) for worker in workers]:
        try:
            ray.get(answer, timeout=_ANSWER_TIMEOUT_S)
            alive.append(worker)
        except ray.exceptions.RayError:
            _end([worker])
    return alive


def _end(workers: Sequence[Any]) -> None:
    import ray

    for worker in workers:
        ray.kill(worker)
