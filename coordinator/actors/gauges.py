"""Counts and times of a publisher: for `omniray status`, for `/metrics`, and for the `retry_after_s` of overload."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omniray.coordinator.door.status import Rates

RECENT_ROUNDS = 512
RECENT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Round:
    at: float
    commits: int
    put_s: float
    round_s: float


@dataclass(frozen=True, slots=True)
class _Step:
    at: float
    seconds: float


class Gauges:
    """Counts since the publisher began, and its last rounds; each is counted in the `total` of all branches, too."""

    def __init__(self, total: Gauges | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self.rounds = 0
        self.commits = 0
        self.refusals: Counter[str] = Counter()
        self._rounds: deque[_Round] = deque(maxlen=RECENT_ROUNDS)
        self._judged: deque[_Step] = deque(maxlen=RECENT_ROUNDS)
        self._staged: deque[_Step] = deque(maxlen=RECENT_ROUNDS)
        self._lock = threading.Lock()

    def judged(self, seconds: float) -> None:
        with self._lock:
            self._judged.append(_Step(self._clock(), seconds))
        if self._total is not None:
            self._total.judged(seconds)

    def staged(self, seconds: float) -> None:
        with self._lock:
            self._staged.append(_Step(self._clock(), seconds))
        if self._total is not None:
            self._total.staged(seconds)

    def landed(self, commits: int, put_s: float, round_s: float) -> None:
        with self._lock:
            self.rounds += 1
            self.commits += commits
            self._rounds.append(_Round(self._clock(), commits, put_s, round_s))
        if self._total is not None:
            self._total.landed(commits, put_s, round_s)

    def refused(self, kind: str) -> None:
        with self._lock:
            self.refusals[kind] += 1
        if self._total is not None:
            self._total.refused(kind)

    @property
    def last_round_s(self) -> float:
        with self._lock:
            return self._rounds[-1].round_s if self._rounds else 0.0

    @property
    def retry_after_s(self) -> float:
        """About the time of two rounds."""
        return max(0.1, 2 * self.rates().round_ms / 1e3)

    def rates(self) -> Rates:
        with self._lock:
            since = self._clock() - RECENT_S
            judged, staged = (
                [one.seconds for one in steps if one.at >= since] for steps in (self._judged, self._staged)
            )
            recent = [one for one in self._rounds if one.at >= since]
            if not recent:
                return Rates(judge_ms=_percentile(judged, 50), stage_ms=_percentile(staged, 50))
            span_s = max(recent[-1].at - recent[0].at, recent[-1].round_s)
            commits = sum(one.commits for one in recent)
            return Rates(
                rounds_per_s=len(recent) / span_s,
                commits_per_s=commits / span_s,
                group_size=commits / len(recent),
                round_ms=_percentile([one.round_s for one in recent], 50),
                round_ms_p99=_percentile([one.round_s for one in recent], 99),
                judge_ms=_percentile(judged, 50),
                stage_ms=_percentile(staged, 50),
                put_ms=_percentile([one.put_s for one in recent], 50),
            )


def _percentile(seconds: Sequence[float], percent: int) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1e3 if ordered else 0.0
