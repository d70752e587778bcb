"""Staging workers that outlive a handoff, so that the next one of this process finds them started.

Starting a process on Ray and importing Lance there takes about two seconds, however few rows there are. So workers wait
a while for another handoff. They belong to this process and end with it. A handoff that failed ends its workers, since
they may still be working; so does one in which a task was tried twice, since the lease of the other try's files belongs
to the worker, and every sweep spares them while the worker lives.
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
    """The idle workers of one connection to one cluster; they end with the connection."""

    def __init__(self, idle_s_max: float = IDLE_S_MAX) -> None:
        self._idle_s_max = idle_s_max
        self._lock = threading.Lock()
        self._connection = ""
        self._waiting: list[tuple[float, Any]] = []  # (deadline, worker); the last one has waited least
        self._timer: threading.Timer | None = None

    @contextmanager
    def hired(self, count: int) -> Iterator[list[Any]]:
        """`count` workers, all of which have answered. A worker that the caller takes off the list is ended."""
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
        """Take the workers that have waited least, so that the others reach their deadline."""
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
        """End the workers whose deadline has passed."""
        with self._lock:
            if self._connection != _connection():  # they ended with their connection
                self._waiting = []
            now = time.monotonic()
            _end([worker for until, worker in self._waiting if until <= now])
            self._waiting = [(until, worker) for until, worker in self._waiting if until > now]
            self._set_timer()


CREW = Crew()
"""The crew of this process."""


def all_counted(workers: Sequence[Any], parts: int) -> bool:
    """Whether every stream that the workers began in this run is one of its parts."""
    import ray

    try:
        begun: list[int] = ray.get([worker.streams.remote() for worker in workers], timeout=_ANSWER_TIMEOUT_S)
    except ray.exceptions.RayError:
        return False
    return sum(begun) == parts


def _connection() -> str:
    """The id of this process's connection to a cluster; empty if there is none."""
    import ray

    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else ""


def _started(count: int) -> list[Any]:
    import ray

    # No processor is reserved: a full cluster would never start them, and they mostly wait.
    shell = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(StagingWorker)
    workers = [shell.remote() for _ in range(count)]
    try:
        ray.get([worker.is_ready.remote() for worker in workers], timeout=START_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        _end(workers)
        raise Unreachable(
            f"no staging server could be started on Ray; nothing was written: {first_line(error)}"
        ) from error
    return workers


def _alive(workers: Sequence[Any]) -> list[Any]:
    """The workers that answer; the others, or their nodes, died while they waited."""
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
