"""The status of a coordinator, as it tells it to anybody who may write through it."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.line.branch_id import MAIN


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a publisher over its last seconds; `…_ms` are medians, `…_ms_p99` the 99th percentile."""

    rounds_per_s: float = 0.0
    commits_per_s: float = 0.0
    group_size: float = 0.0
    round_ms: float = 0.0
    round_ms_p99: float = 0.0
    judge_ms: float = 0.0
    stage_ms: float = 0.0
    put_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a coordinator at one moment, and of one branch that it serves: what it counts is of that alone."""

    uri: str
    url: str
    address: str
    owner: str
    epoch: int
    seq: int
    head: str
    waiting: int
    rounds: int
    commits: int
    refusals: dict[str, int]
    rates: Rates
    finalised_through: int
    drifted: tuple[str, ...]
    recovered: int
    trouble: str  # the error that stops the reconciler's recovery, if any
    queue_owners: int
    branch: str = MAIN
    hosted: tuple[str, ...] = ()  # the other branches that are open to writes now

    @property
    def pending_finalisations(self) -> int:
        return self.seq - self.finalised_through
