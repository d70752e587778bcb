"""What goes wrong with requests to a store, as data: with a share of them, or with a certain one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class StoreFault(StrEnum):
    """What goes wrong with a request."""

    INTERNAL_ERROR = "internal_error"  # 500, and nothing happened
    SLOW_DOWN = "slow_down"  # 503, and nothing happened
    TIME_OUT = "time_out"  # nothing happened and nothing is answered: cut when the client gives up, or after the wait
    CUT = "cut"  # the connection breaks before anything happened
    DELAY = "delay"  # it happens, and is answered, after the wait: too late, if the client does not wait as long
    CUT_BODY = "cut_body"  # it happened, and half of the answer's body arrives; of its head, where there is no body
    LOST_ANSWER = "lost_answer"  # it happened, and the connection breaks instead of an answer
    FALSE_ERROR = "false_error"  # it happened, yet the answer is 500


@dataclass(frozen=True, slots=True)
class Weather:
    """What goes wrong at the moment, and with which share of the requests."""

    fault: StoreFault
    share: float

    def __str__(self) -> str:
        return f"{self.fault} of {self.share:.0%} of the requests"


@dataclass(frozen=True, slots=True)
class RequestFault:
    """What goes wrong with the `nth` request, since arming, whose "METHOD /path?query" a pattern is found in.

    SDKs repeat a failed request by themselves. Of the repetitions of this one (the same method, path and query) the
    fault meets the first `times`, counting itself; 0 stands for all of them.
    """

    fault: StoreFault
    pattern: str = ""
    nth: int = 1
    times: int = 1
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, decoded, and the fault that it met."""

    method: str
    path: str
    query: str
    is_conditional: bool
    fault: StoreFault | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(slots=True)
class Armed:
    """A fault of a request, and how far it has come."""

    fault: RequestFault
    matches: int = 0
    victim: str | None = None
    hits: int = 0

    def meets(self, line: str) -> bool:
        """Count a request; whether it is the one to break, or a repetition of it."""
        if self.victim is None and re.search(self.fault.pattern, line):
            self.matches += 1
            if self.matches == self.fault.nth:
                self.victim = line
        if line != self.victim or self.hits == (self.fault.times or -1):
            return False
        self.hits += 1
        return True
