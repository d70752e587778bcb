"""Faults of requests to a store, as data: for a share of the requests, or for a certain one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class StoreFault(StrEnum):
    """The fault of a request."""

    INTERNAL_ERROR = "internal_error"  # 500, not applied
    SLOW_DOWN = "slow_down"  # 503, not applied
    TIME_OUT = "time_out"  # not applied, no answer: cut when the client gives up, or after the wait
    CUT = "cut"  # not applied, the connection breaks
    DELAY = "delay"  # applied and answered after the wait: too late if the client does not wait as long
    CUT_BODY = "cut_body"  # applied, and half of the answer's body arrives; of its head, if there is no body
    LOST_ANSWER = "lost_answer"  # applied, and the connection breaks instead of an answer
    FALSE_ERROR = "false_error"  # applied, yet the answer is 500
    TWICE = "twice"  # applied twice, and answered as the second time


@dataclass(frozen=True, slots=True)
class Weather:
    """The current fault, and the share of requests that get it."""

    fault: StoreFault
    share: float

    def __str__(self) -> str:
        return f"{self.fault} of {self.share:.0%} of the requests"


@dataclass(frozen=True, slots=True)
class RequestFault:
    """The fault of the `nth` request since arming whose "METHOD /path?query" matches a pattern.

    SDKs repeat a failed request by themselves. Of this one and its repetitions (the same method, path and query)
    the first `times` get the fault; 0 stands for all of them.
    """

    fault: StoreFault
    pattern: str = ""
    nth: int = 1
    times: int = 1
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, decoded, and its fault, if any."""

    method: str
    path: str
    query: str
    is_conditional: bool
    fault: StoreFault | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(slots=True)
class Armed:
    """A request fault that is armed, and its counts so far."""

    fault: RequestFault
    matches: int = 0
    victim: str | None = None
    hits: int = 0

    def meets(self, line: str) -> bool:
        """Count a request; returns whether it gets the fault, as the chosen request or a repetition of it."""
        if self.victim is None and re.search(self.fault.pattern, line):
            self.matches += 1
            if self.matches == self.fault.nth:
                self.victim = line
        if line != self.victim or self.hits == (self.fault.times or -1):
            return False
        self.hits += 1
        return True
