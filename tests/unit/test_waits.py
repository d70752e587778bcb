"""Waits, as a thread waits: what they bring, and which errors they raise where they are waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from omniray.coordinator.client import waits as waits_module
from omniray.coordinator.client.waits import (
    Nothing,
    Pause,
    Readable,
    Wait,
    Waits,
    Work,
    Writable,
    carried_out,
    deadline_in,
    is_readable,
)
from tests.clocks import SleepersClock

TIMEOUT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other


def after(*waits: Wait) -> Waits[list[object]]:
    """What each wait brings, in their order."""
    brought = []
    for wait in waits:
        brought.append((yield wait))
    return brought


def test_a_socket_is_waited_for_until_it_is_ready(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    assert not is_readable(one)
    other.send(b"x")
    deadline = deadline_in(TIMEOUT_S)
    assert carried_out(after(Readable(one, deadline), Writable(one, deadline), Nothing())) == [None, None, None]
    assert is_readable(one)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_a_socket_that_is_not_ready_in_time_is_an_error_where_it_is_waited_for(
    pair: tuple[socket.socket, socket.socket], seconds: float
) -> None:
    def wait() -> Waits[str]:
        with pytest.raises(TimeoutError):
            yield Readable(pair[0], deadline_in(seconds))
        return "it went on"

    assert carried_out(wait()) == "it went on"
    with pytest.raises(TimeoutError):
        carried_out(after(Readable(pair[0], deadline_in(seconds))))


def test_a_socket_that_the_other_side_has_closed_is_readable(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    other.close()
    assert is_readable(one)


def test_pauses_are_slept_and_work_is_given_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepersClock()
    monkeypatch.setattr(waits_module, "time", clock)
    assert carried_out(after(Pause(7), Work(lambda left_s: left_s, 10.0))) == [None, 3.0]
    assert clock.now_s == 7


def test_the_error_of_work_is_raised_where_it_is_waited_for() -> None:
    def fail(left_s: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        carried_out(after(Work(fail, deadline_in(TIMEOUT_S))))
