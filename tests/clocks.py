"""Clocks that tests own: a module's `time` is replaced by one."""

from __future__ import annotations


class SleepersClock:
    """A time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
