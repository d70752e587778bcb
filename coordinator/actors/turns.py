"""Shares a number of turns among branches: the next turn goes to the next branch in a ring, not to the next call.

So a branch with many calls waiting, or with calls that take long, gets no more turns than one that asks for little.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator


class Turns:
    """At most `at_once` calls run at a time, and of one branch at most `each`. Threads may share it."""

    def __init__(self, at_once: int, each: int) -> None:
        self._free, self._each = at_once, each
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[threading.Event]] = {}  # in the order of the ring; none is empty
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, line: str) -> Iterator[None]:
        """Wait for a turn of a branch, and give it back in the end."""
        turn = threading.Event()
        with self._lock:
            self._waiting.setdefault(line, deque()).append(turn)
            self._grant()
        turn.wait()
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                self._running[line] -= 1
                if not self._running[line]:
                    del self._running[line]
                self._grant()

    def _grant(self) -> None:
        """Give free turns to those who wait, one to a branch before the next one has its second."""
        while self._free and (line := next(filter(self._may_run, self._waiting), None)) is not None:
            waiting = self._waiting.pop(line)
            waiting.popleft().set()
            if waiting:
                self._waiting[line] = waiting  # behind all others
            self._free -= 1
            self._running[line] += 1

    def _may_run(self, line: str) -> bool:
        return self._running.get(line, 0) < self._each
