"""Writes in the background: few threads carry many, and one that is given up still cleans up."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from omniray.coordinator.client import under_way as under_way_module
from omniray.coordinator.client.under_way import AT_ONCE, THREADS, UnderWay
from omniray.coordinator.client.waits import Nothing, Pause, Readable, Waits, Work, Writable, deadline_in

TIMEOUT_S = 60.0


@pytest.fixture
def under_way() -> Iterator[UnderWay]:
    one = UnderWay()
    yield one
    one.close()


class Line:
    """A connection; its write waits until something is said to it."""

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()
        self.socket.setblocking(False)
        self.waits = threading.Event()
        self.cleaned_up: list[str] = []

    def say(self, text: bytes) -> None:
        self._other.send(text)

    def heard(self, timeout_s: float = TIMEOUT_S) -> Waits[bytes]:
        try:
            yield Nothing()
            self.waits.set()
            yield Readable(self.socket, deadline_in(timeout_s))
            return self.socket.recv(100)
        except BaseException as error:
            self.cleaned_up.append(type(error).__name__)
            raise
        finally:
            self.socket.close()
            self._other.close()


def begun(under_way: UnderWay) -> tuple[Line, Future[bytes]]:
    """A write that waits for its answer."""
    line = Line()
    future = under_way.submit(line.heard())
    assert line.waits.wait(TIMEOUT_S)
    return line, future


def giving(value: Any) -> Waits[Any]:
    yield Nothing()
    return value


def threads() -> set[threading.Thread]:
    """Those that carry writes."""
    names = ("omniray-client", "omniray-waits", "omniray-find")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


# Carried out


def test_many_writes_wait_without_a_thread_for_each(under_way: UnderWay) -> None:
    before = threads()
    lines = [begun(under_way) for _ in range(AT_ONCE)]
    assert len(threads() - before) <= THREADS + 1
    for number, (line, _) in enumerate(lines):
        line.say(b"%d" % number)
    assert [future.result(TIMEOUT_S) for _, future in lines] == [b"%d" % number for number in range(AT_ONCE)]


def test_what_a_write_waits_for_is_given_to_it(under_way: UnderWay) -> None:
    one, other = socket.socketpair()

    def write() -> Waits[list[Any]]:
        deadline = deadline_in(TIMEOUT_S)
        return [(yield Pause(0)), (yield Writable(one, deadline)), (yield Work(lambda left_s: left_s > 0, deadline))]

    with one, other:
        assert under_way.submit(write()).result(TIMEOUT_S) == [None, None, True]


def test_errors_are_raised_where_they_are_waited_for_and_end_in_the_future(under_way: UnderWay) -> None:
    def fail(left_s: float) -> None:
        raise ZeroDivisionError

    def write() -> Waits[None]:
        with pytest.raises(ZeroDivisionError):
            yield Work(fail, deadline_in(TIMEOUT_S))
        raise KeyError("its own")

    with pytest.raises(KeyError):
        under_way.submit(write()).result(TIMEOUT_S)


def test_who_waits_too_long_is_told_so(under_way: UnderWay) -> None:
    line = Line()
    with pytest.raises(TimeoutError):
        under_way.submit(line.heard(0.01)).result(TIMEOUT_S)
    assert line.cleaned_up == ["TimeoutError"]


def test_work_that_takes_too_long_is_no_longer_waited_for_and_what_comes_after_it_is_not_begun(
    under_way: UnderWay,
) -> None:
    """All of it is done one after the other: what has waited too long for its turn would hold up the rest."""
    goes_on, done = threading.Event(), list[str]()

    def hold(left_s: float) -> None:
        goes_on.wait(TIMEOUT_S)
        done.append("held")

    def write(do: Callable[[float], Any], seconds: float) -> Waits[Any]:
        return (yield Work(do, deadline_in(seconds)))

    held, late = under_way.submit(write(hold, 0.01)), under_way.submit(write(lambda _: done.append("late"), 0.01))
    for future in (held, late):
        with pytest.raises(TimeoutError):
            future.result(TIMEOUT_S)
    goes_on.set()
    assert under_way.submit(write(lambda _: "in time", TIMEOUT_S)).result(TIMEOUT_S) == "in time"
    assert done == ["held"]


def test_so_many_are_under_way_at_a_time_and_the_others_begin_in_their_order(under_way: UnderWay) -> None:
    lines = [begun(under_way) for _ in range(AT_ONCE)]
    order = list[int]()

    def note(number: int) -> Waits[None]:
        order.append(number)
        yield Nothing()

    futures = [under_way.submit(note(number)) for number in range(5)]
    assert order == []
    lines[0][0].say(b"x")
    assert not wait(futures, TIMEOUT_S).not_done
    assert order == [0, 1, 2, 3, 4]
    for line, _ in lines[1:]:
        line.say(b"x")


# Given up


def test_a_write_that_is_cancelled_while_it_waits_is_given_up_and_cleans_up(under_way: UnderWay) -> None:
    line, future = begun(under_way)
    cleaned_up = threading.Event()

    def write() -> Waits[None]:
        try:
            yield from line.heard()
        except asyncio.CancelledError:
            yield Pause(0)  # it may wait for what it has to do yet
            yield Work(lambda _: cleaned_up.set(), deadline_in(TIMEOUT_S))
            raise

    line.say(b"x")
    future.result(TIMEOUT_S)
    line = Line()
    future = under_way.submit(write())  # type: ignore[assignment]
    assert line.waits.wait(TIMEOUT_S)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(TIMEOUT_S)
    assert cleaned_up.wait(TIMEOUT_S)
    assert line.cleaned_up == ["CancelledError"]


def test_a_write_that_is_cancelled_while_it_runs_is_given_up_before_it_waits(under_way: UnderWay) -> None:
    runs, goes_on, sent = threading.Event(), threading.Event(), list[str]()

    def write() -> Waits[None]:
        runs.set()
        goes_on.wait(TIMEOUT_S)
        yield Nothing()
        sent.append("it was sent")

    future = under_way.submit(write())
    assert runs.wait(TIMEOUT_S)
    future.cancel()
    goes_on.set()
    under_way.submit(giving(1)).result(TIMEOUT_S)
    under_way.close()
    assert sent == []


def test_a_write_that_is_cancelled_just_before_it_waits_does_not_wait(under_way: UnderWay) -> None:
    runs, goes_on, line = threading.Event(), threading.Event(), Line()

    def write() -> Waits[None]:
        runs.set()
        goes_on.wait(TIMEOUT_S)
        try:
            yield Readable(line.socket, deadline_in(TIMEOUT_S))
        except asyncio.CancelledError:
            line.waits.set()
            raise

    future = under_way.submit(write())
    assert runs.wait(TIMEOUT_S)
    future.cancel()
    goes_on.set()
    assert line.waits.wait(TIMEOUT_S / 4)
    for _ in line.heard(0):
        line.say(b"x")


def test_a_write_that_is_cancelled_before_its_turn_does_not_begin(under_way: UnderWay) -> None:
    lines = [begun(under_way) for _ in range(AT_ONCE)]
    began = list[str]()

    def write() -> Waits[None]:
        began.append("it began")
        yield Nothing()

    future, behind = under_way.submit(write()), under_way.submit(giving("its turn"))
    assert future.cancel()
    for line, _ in lines:
        line.say(b"x")
    assert behind.result(TIMEOUT_S) == "its turn"
    assert began == []


def test_a_write_that_is_over_can_not_be_cancelled(under_way: UnderWay) -> None:
    future = under_way.submit(giving(1))
    assert future.result(TIMEOUT_S) == 1
    assert not future.cancel()


# Threads and loops


def test_writes_are_awaited_on_several_event_loops_at_once_and_one_after_another(under_way: UnderWay) -> None:
    async def several() -> list[int]:
        return await asyncio.gather(*(asyncio.wrap_future(under_way.submit(giving(n))) for n in range(20)))

    assert asyncio.run(several()) == asyncio.run(several()) == list(range(20))
    found = list[list[int]]()
    others = [threading.Thread(target=lambda: found.append(asyncio.run(several()))) for _ in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(TIMEOUT_S)
    assert found == [list(range(20))] * 4


def test_who_is_told_of_a_write_may_wait_for_another_one_or_close_the_client(under_way: UnderWay) -> None:
    """It is not told on the loop, or nothing would go on there."""
    told, goes_on = Future[int](), threading.Event()

    def write() -> Waits[None]:
        goes_on.wait(TIMEOUT_S)
        yield Nothing()

    first = under_way.submit(write())

    def wait_and_close(_: object) -> None:
        told.set_result(under_way.submit(giving(7)).result(TIMEOUT_S))
        under_way.close()

    first.add_done_callback(wait_and_close)
    goes_on.set()
    assert told.result(TIMEOUT_S) == 7


# Ending


def test_closing_waits_for_all_writes_and_leaves_no_thread() -> None:
    one = UnderWay()
    line, future = begun(one)
    waiter = one._waiter
    assert waiter is not None
    closing = threading.Thread(target=one.close)
    closing.start()
    assert not future.done()
    line.say(b"x")
    closing.join(TIMEOUT_S)
    assert future.result(0) == b"x"
    assert not waiter.is_alive()
    one.close()


def test_nothing_runs_before_the_first_write() -> None:
    before = threads()
    UnderWay().close()
    assert threads() == before


def test_the_loop_of_a_client_that_was_forgotten_ends() -> None:
    one = UnderWay()
    one.submit(giving(1)).result(TIMEOUT_S)
    waiter = one._waiter
    assert waiter is not None
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    waiter.join(TIMEOUT_S)
    assert not waiter.is_alive()


def test_a_forked_child_does_not_wait_for_the_writes_of_its_parent(
    under_way: UnderWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, _ = begun(under_way)
    with monkeypatch.context() as child:
        child.setattr(under_way_module.os, "getpid", lambda: os.getppid())
        under_way.close()
    line.say(b"x")
