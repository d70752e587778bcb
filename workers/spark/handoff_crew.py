"""Staging workers that outlive a handoff: the next one of this process finds them started, with all of it imported.

To start a process on Ray and to import Lance there takes some two seconds, however few rows there are. So workers wait
a while for another handoff. They belong to this process and end with it. A handoff that failed takes its workers with
it, since nobody knows what they are still at; so does one in which a task was tried twice, since what the other try
staged is announced in the name of the worker, and is spared by every sweep as long as that lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from omniray.engine.base.errors import Unreachable
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
        self._waiting: list[tuple[float, Any]] = []  # until when, and who; the last one has waited least
        self._timer: threading.Timer | None = None

    @contextmanager
    def hired(self, count: int) -> Iterator[list[Any]]:
        """So many workers, all of which have answered. Those that are taken off the list don't wait for another run."""
        connection = _connection()
        workers = _alive(self._taken(connection, count))
        hired: list[Any] = []
        try:
            workers += _started(count - len(workers))
            hired = list(workers)
            yield hired
        except BaseException:
            hired = []
            raise
        finally:
            _end([worker for worker in workers if worker not in hired])
            self._keep(connection, hired)

    def _taken(self, connection: str, count: int) -> list[Any]:
        """Those that have waited least, so that the others come to their end."""
        with self._lock:
            if self._connection != connection:
                self._connection, self._waiting = connection, []
            first = max(0, len(self._waiting) - count)
            taken, self._waiting = self._waiting[first:], self._waiting[:first]
        return [worker for _, worker in taken]

    def _keep(self, connection: str, workers: Sequence[Any]) -> None:
        for worker in workers:
            worker.rest.remote()
        with self._lock:
            if self._connection == connection:
                until = time.monotonic() + self._idle_s_max
                self._waiting += [(until, worker) for worker in workers]
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = threading.Timer(max(0.0, self._waiting[0][0] - time.monotonic()), self._dismiss)
            self._timer.daemon = True
            self._timer.start()

    def _dismiss(self) -> None:
        """End those that have waited long enough."""
        with self._lock:
            if self._connection != _connection():  # and with it they have ended
                self._waiting = []
            now = time.monotonic()
            _end([worker for until, worker in self._waiting if until <= now])
            self._waiting = [(until, worker) for until, worker in self._waiting if until > now]
            self._set_timer()


CREW = Crew()
"""The one of this process."""


def all_counted(workers: Sequence[Any], parts: int) -> bool:
    """Whether all that the workers began to stage in this run are the parts that it has taken."""
    import ray

    try:
        begun: list[int] = ray.get([worker.streams.remote() for worker in workers], timeout=_ANSWER_TIMEOUT_S)
    except ray.exceptions.RayError:
        return False
    return sum(begun) == parts


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
