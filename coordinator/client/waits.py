"""What a request waits for, apart from how it is waited for.

A request to a coordinator, and a whole write, is a generator of waits: it yields what it needs before it can go on. So
one description of it serves a thread that waits for its answer (`carried_out`) and a client that has many writes under
way without a thread for each (`under_way.py`). A wait that fails or ends too late is an error at its `yield`.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readable:
    """Until the socket has something to be read; `TimeoutError` after the deadline, on the monotonic clock."""

    socket: socket.socket
    deadline: float


@dataclass(frozen=True, slots=True)
class Writable:
    """Until the socket takes more; `TimeoutError` after the deadline."""

    socket: socket.socket
    deadline: float


@dataclass(frozen=True, slots=True)
class Pause:
    """For a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """For the result of a function that holds a thread; it is given the seconds that are left when it begins.

    It keeps to them by itself. Who waits for it until then in vain gets `TimeoutError`.
    """

    do: Callable[[float], Any]
    deadline: float


@dataclass(frozen=True, slots=True)
class Nothing:
    """For nothing: a moment at which a write may still be given up, since nothing of it was sent."""


Wait: TypeAlias = Readable | Writable | Pause | Work | Nothing
Waits: TypeAlias = Generator[Wait, Any, T]


def carried_out(waits: Waits[T]) -> T:
    """The result of a request that this thread waits for."""
    try:
        wait = next(waits)
        while True:
            try:
                given = _waited(wait)
            except BaseException as error:
                wait = waits.throw(error)
            else:
                wait = waits.send(given)
    except StopIteration as end:
        result: T = end.value
        return result


def deadline_in(seconds: float) -> float:
    return time.monotonic() + seconds


def is_readable(one: socket.socket) -> bool:
    """Whether there is something to be read, or the other side has closed."""
    return _polled(one, select.POLLIN, 0.0)


def _waited(wait: Wait) -> Any:
    match wait:
        case Readable(one, deadline):
            _poll(one, select.POLLIN, deadline)
        case Writable(one, deadline):
            _poll(one, select.POLLOUT, deadline)
        case Pause(seconds):
            time.sleep(seconds)
        case Work(do, deadline):
            return do(deadline - time.monotonic())
    return None


def _poll(one: socket.socket, event: int, deadline: float) -> None:
    left_s = deadline - time.monotonic()
    if left_s <= 0 or not _polled(one, event, left_s):
        raise TimeoutError


def _polled(one: socket.socket, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(one, event)
    return bool(poll.poll(seconds * 1e3))
