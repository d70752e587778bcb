"""Runs the steps of a publisher on threads and timers; a test passes its own executor to control the interleaving."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

THREADS = 8

P = ParamSpec("P")
T = TypeVar("T")


class StepExecutor(Protocol):
    """Runs the jobs of one publisher concurrently. A job may wait for the future of another job."""

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job as soon as possible."""

    def later(self, seconds: float, job: Callable[[], None]) -> None:
        """Run a job after a delay, if this process still lives then."""

    def close(self) -> None:
        """Wait for the jobs under way, and take no more jobs."""


class ThreadedExecutor:
    """A thread pool for jobs, and a timer for each delayed job; timers don't keep the process alive."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-publish")

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(job, *args, **kwargs)

    def later(self, seconds: float, job: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, job)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        self._pool.shutdown()
