"""Where a job that may run beside its caller runs: in a thread of a pool, or at once in the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Jobs(Protocol):
    """Runs jobs beside the caller, who may wait for them."""

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...


class AtOnce:
    """Runs each job before `submit` returns: for jobs that take less time than it takes to hand them to a thread.

    A job's error is in its future, as in a pool, so that the caller can deal with all of its jobs alike.
    """

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(job(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done
