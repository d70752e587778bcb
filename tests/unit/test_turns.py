"""Turns among branches: who asks for much gets no more of them than who asks for little."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from omniray.coordinator.actors.turns import Turns
from tests.coordination import TIMEOUT_S


class Calls:
    """Calls that take a turn each, say so, and give it back when the test says so."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.order = turns, list[str]()
        self._pool = ThreadPoolExecutor(64)
        self._over: dict[str, threading.Event] = {}
        self._has_turn = threading.Condition()

    def begin(self, name: str) -> Future[None]:
        """A call of the branch that its name begins with; it is in the queue when this returns."""
        self._over[name] = threading.Event()
        before = self._asked()
        future = self._pool.submit(self._run, name)
        while self._asked() == before:
            threading.Event().wait(0.001)
        return future

    def end(self, name: str) -> None:
        self._over[name].set()

    def wait_for(self, count: int) -> list[str]:
        """The calls that have had a turn, once they are so many."""
        with self._has_turn:
            assert self._has_turn.wait_for(lambda: len(self.order) >= count, TIMEOUT_S), self.order
            return list(self.order)

    def close(self) -> None:
        for over in self._over.values():
            over.set()
        self._pool.shutdown()

    def _asked(self) -> int:
        with self.turns._lock:
            return sum(map(len, self.turns._waiting.values())) + sum(self.turns._running.values())

    def _run(self, name: str) -> None:
        with self.turns.taken(name[0]):
            with self._has_turn:
                self.order.append(name)
                self._has_turn.notify_all()
            assert self._over[name].wait(TIMEOUT_S)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls(Turns(2, 2))
    yield calls
    calls.close()


def test_a_branch_with_one_call_waits_for_no_more_than_one_of_another_s_many(calls: Calls) -> None:
    for name in ("a1", "a2", "a3", "a4", "a5", "b1"):
        calls.begin(name)
    assert calls.wait_for(2) == ["a1", "a2"]
    calls.end("a1")
    assert calls.wait_for(3)[2] == "a3", "it asked first, and b had not waited for a turn before"
    calls.end("a2")
    assert calls.wait_for(4)[3] == "b1"
    calls.end("a3")
    assert calls.wait_for(5)[4] == "a4"


def test_branches_that_all_ask_for_much_take_turns(calls: Calls) -> None:
    for name in ("a1", "a2", *(f"{line}{n}" for n in range(3, 6) for line in "abc")):
        calls.begin(name)
    for number in range(2, 11):
        calls.end(calls.wait_for(number)[number - 2])
    later = calls.wait_for(11)[2:]
    assert [name[0] for name in later] == ["a", "b", "c"] * 3


def test_one_branch_never_has_all_turns_if_it_may_have_fewer() -> None:
    calls = Calls(Turns(3, 2))
    try:
        for name in ("a1", "a2", "a3"):
            calls.begin(name)
        assert calls.wait_for(2) == ["a1", "a2"]
        calls.begin("b1")
        assert calls.wait_for(3) == ["a1", "a2", "b1"]
        calls.end("b1")
        calls.end("a1")
        assert calls.wait_for(4)[3] == "a3"
    finally:
        calls.close()


def test_a_turn_is_given_back_by_a_call_that_fails() -> None:
    turns = Turns(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turns.taken("a"):
            raise ZeroDivisionError
    with turns.taken("b"):
        pass
    assert not turns._running
