"""Processes that may be killed, for the price of a fork.

A process takes more than a second to import everything, and a matrix of kills needs hundreds of them. So one process
imports all of it, opens nothing (the threads of Lance and of S3 clients would not survive a fork), and forks a child
for each task. What a child reports before it dies arrives, as an acknowledgement to a caller would.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

TASK_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
KILLED = -signal.SIGKILL

_spawn = multiprocessing.get_context("spawn")

Report = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code, negative for a signal; what it reported; the error that it ended with."""

    exit_code: int
    reports: tuple[Any, ...]
    error: str = ""

    def __str__(self) -> str:
        return f"exit code {self.exit_code}, reported {list(self.reports)}\n{self.error}"


@dataclass(frozen=True, slots=True)
class _Failure:
    trace: str


class Zygote:
    """The process that is forked, as the test holds it."""

    def __init__(self) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, task: Callable[..., None], *arguments: Any) -> Ended:
        """Run a function of a module in a child of its own, with a function to report by before its arguments."""
        self._pipe.send((task, arguments))
        ended: Ended = self._pipe.recv()
        return ended

    def close(self) -> None:
        self._pipe.close()
        self._process.join(STOP_TIMEOUT_S)


@contextmanager
def zygote() -> Iterator[Zygote]:
    found = Zygote()
    try:
        yield found
    finally:
        found.close()


def _serve(pipe: Connection) -> None:
    warnings.filterwarnings("ignore", "lance is not fork-safe")
    logging.disable(logging.CRITICAL)
    from tests.recovery.scenarios import warm_up

    warm_up()
    while True:
        try:
            task, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_fork(task, arguments))


def _fork(task: Callable[..., None], arguments: tuple[Any, ...]) -> Ended:
    mine, theirs = _spawn.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        mine.close()
        _live(theirs, task, arguments)
    theirs.close()
    with mine:
        received = list(_received(mine, pid))
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    errors = [one.trace for one in received if isinstance(one, _Failure)]
    return Ended(exit_code, tuple(one for one in received if not isinstance(one, _Failure)), "".join(errors))


def _live(pipe: Connection, task: Callable[..., None], arguments: tuple[Any, ...]) -> NoReturn:
    exit_code = 1
    try:
        faulthandler.enable()
        task(pipe.send, *arguments)
        exit_code = 0
    except BaseException:
        pipe.send(_Failure(traceback.format_exc()))
    finally:
        os._exit(exit_code)


def _received(pipe: Connection, pid: int) -> Iterator[Any]:
    """What a child reports, until it ends; one that hangs is aborted, which prints where it hangs."""
    while True:
        if not pipe.poll(TASK_TIMEOUT_S):
            os.kill(pid, signal.SIGABRT)
        try:
            yield pipe.recv()
        except (EOFError, OSError):  # the latter where it was killed in the middle of a report
            return
