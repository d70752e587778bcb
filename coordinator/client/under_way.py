"""The writes of a client that are under way in the background, without a thread for each.

A write is a generator of waits (`waits.py`). It runs on one of a few threads, which read, check and pack its rows,
until it has to wait; all of them wait on one event loop, in a thread of its own. So it does not matter from which
thread or event loop a write was begun, and what waits for its future is never called on that loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from omniray.coordinator.client.waits import Nothing, Pause, Readable, Wait, Waits, Work, Writable

T = TypeVar("T")

THREADS = 4
AT_ONCE = 128
"""How many writes are under way at a time; of the others nothing was read yet, and they begin in their order."""


class UnderWay:
    """Carries out writes in the background. Threads may share it; nothing is started before the first write."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-client")
        self._finder = ThreadPoolExecutor(1, thread_name_prefix="omniray-find")
        self._changed = threading.Condition()
        self._count, self._queued = 0, deque[_Write[Any]]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: threading.Thread | None = None
        self._pid = os.getpid()

    def submit(self, waits: Waits[T]) -> Future[T]:
        """Begin a write, after those that were submitted before; to cancel its future gives it up."""
        write = _Write(self, waits)
        with self._changed:
            if self._loop is None:
                self._start()
            if self._count >= AT_ONCE:
                self._queued.append(write)
                return write.future
            self._count += 1
        self.run(write.go_on)
        return write.future

    def close(self) -> None:
        """Wait for all writes, and end; nothing is submitted any more."""
        if os.getpid() != self._pid:  # nothing of it runs in a forked child
            return
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)
            loop, self._loop, waiter, self._waiter = self._loop, None, self._waiter, None
        if loop is not None and waiter is not None:
            loop.call_soon_threadsafe(loop.stop)
            waiter.join()
        self._threads.shutdown(wait=False)
        self._finder.shutdown(wait=False)

    def _start(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._waiter = threading.Thread(target=_serve, args=(self._loop,), name="omniray-waits", daemon=True)
        self._waiter.start()
        weakref.finalize(self, _stop, self._loop, self._pid).atexit = False
        _STARTED.add(self)

    # For its writes

    def run(self, job: Callable[[], object]) -> None:
        """Run a part of a write on one of the threads."""
        _run(self._threads, job)

    def find(self, job: Callable[[], object]) -> None:
        """Run what may hold a thread for long, one after the other: all writes wait for the same coordinator."""
        _run(self._finder, job)

    def on_loop(self, job: Callable[..., object], *arguments: Any) -> None:
        loop = self._loop
        if loop is not None:  # else all writes are over
            loop.call_soon_threadsafe(job, *arguments)

    def one_is_over(self) -> None:
        """A write has ended: the next one may begin."""
        with self._changed:
            if not self._queued:
                self._count -= 1
                self._changed.notify_all()
                return
            following = self._queued.popleft()
        self.run(following.go_on)


class _Write(Generic[T]):
    """A write: at any time it either runs, on one thread, or waits, on the loop."""

    def __init__(self, among: UnderWay, waits: Waits[T]) -> None:
        self._among, self._waits = among, waits
        self._is_given_up = False
        self._number = 0  # of its wait: work for an earlier one comes too late
        self._stop_waiting: Callable[[], object] | None = None
        self.future: Future[T] = Future()
        self.future.add_done_callback(self._done)

    def go_on(self, given: Any = None, error: BaseException | None = None) -> None:
        """Run until the next wait, or to the end."""
        wait: Wait = Nothing()
        try:
            while isinstance(wait, Nothing):
                if self._is_to_be_given_up:
                    self._is_given_up, error = True, asyncio.CancelledError()
                wait = self._waits.send(given) if error is None else self._waits.throw(error)
                given = error = None
        except StopIteration as end:
            self._end(partial(self.future.set_result, end.value))
        except BaseException as failed:
            self._end(partial(self.future.set_exception, failed))
        else:
            self._among.on_loop(self._wait, wait)

    @property
    def _is_to_be_given_up(self) -> bool:
        return not self._is_given_up and self.future.cancelled()

    def _end(self, tell: Callable[[], object]) -> None:
        self._among.one_is_over()  # first: who is told may close the client
        if self.future.set_running_or_notify_cancel():
            tell()

    def _done(self, future: Future[T]) -> None:
        if future.cancelled():
            self._among.on_loop(self._cancelled)

    # On the loop

    def _wait(self, wait: Wait) -> None:
        loop = asyncio.get_running_loop()
        match wait:
            case Readable(one, deadline):
                loop.add_reader(one, self._resume)
                stop: Callable[[], object] = partial(loop.remove_reader, one)
            case Writable(one, deadline):
                loop.add_writer(one, self._resume)
                stop = partial(loop.remove_writer, one)
            case Work(_, deadline):
                self._among.find(partial(self._work, wait, self._number, loop))
                stop = _nothing
            case Pause(seconds):
                self._stop_waiting = loop.call_later(seconds, self._resume).cancel
                return
            case Nothing():
                raise AssertionError("for nothing nobody waits")
        late = loop.call_at(deadline, self._resume, None, TimeoutError())
        self._stop_waiting = partial(_each, stop, late.cancel)
        if self._is_to_be_given_up:  # it was cancelled before it waited
            self._resume()

    def _cancelled(self) -> None:
        if self._stop_waiting is not None and self._is_to_be_given_up:
            self._resume()

    def _resume(self, given: Any = None, error: BaseException | None = None) -> None:
        assert self._stop_waiting is not None, "what would resume it a second time has been stopped"
        self._stop_waiting()
        self._stop_waiting = None
        self._number += 1
        self._among.run(partial(self.go_on, given, error))

    def _work(self, work: Work, number: int, loop: asyncio.AbstractEventLoop) -> None:
        """Do the work on this thread, unless it would come too late."""
        given, error = None, None
        try:
            if (left_s := work.deadline - time.monotonic()) > 0:
                given = work.do(left_s)
        except BaseException as failed:
            error = failed
        loop.call_soon_threadsafe(self._worked, number, given, error)

    def _worked(self, number: int, given: Any, error: BaseException | None) -> None:
        if number == self._number:
            self._resume(given, error)


def _nothing() -> None:
    pass


def _each(*jobs: Callable[[], object]) -> None:
    for job in jobs:
        job()


def _run(pool: ThreadPoolExecutor, job: Callable[[], object]) -> None:
    try:
        pool.submit(job)
    except RuntimeError:  # the interpreter ends, and has no other threads any more
        job()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """End a loop whose client was not closed; that of a parent process goes on."""
    if os.getpid() == pid and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


_STARTED: weakref.WeakSet[UnderWay] = weakref.WeakSet()


@atexit.register
def _wait_for_all() -> None:
    """What was submitted is still carried out when the interpreter ends."""
    for one in list(_STARTED):
        one.close()
