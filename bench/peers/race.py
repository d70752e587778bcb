"""One race: some writers of one system write one workload from a common start; a full scan checks the result."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.check import Findings
from bench.peers.crew import Member, crew, heard_by, member
from bench.peers.processor import spent_between, spent_by
from bench.peers.rows import Workload
from bench.peers.systems import Place, serving
from tests.kit.s3server import S3Server, running_server

START_MARGIN_S = 0.5
DRAIN_S = 60.0
STUCK = "no answer"


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one system with some writers; only commits that were answered by the end count for the rate."""

    scenario: str
    system: str
    writers: int
    seconds: float
    commits: int
    commits_per_s: float
    p50_s: float | None
    p99_s: float | None
    failures: int
    requests_per_commit: float | None
    share_max: float | None
    lost: int
    doubled: int
    torn: int
    cpu_ms_per_commit: Mapping[str, float] = field(default_factory=dict)  # by kind of process
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def cpu_ms(self) -> float | None:
        """The processor time of a commit, over all processes."""
        return sum(self.cpu_ms_per_commit.values()) if self.cpu_ms_per_commit else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that this percentage of the values does not exceed."""
    if not values:
        return None
    rank = -(-len(values) * percent // 100)  # rounded up
    return sorted(values)[max(1, int(rank)) - 1]


def largest_share(commits: Sequence[int]) -> float | None:
    """The busiest writer's commits, as a multiple of its fair share."""
    return max(commits) * len(commits) / sum(commits) if sum(commits) else None


@dataclass(frozen=True, slots=True)
class Store:
    """Where a run's tables go, and the server that counts its requests if it is S3."""

    root: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    server: S3Server | None = None

    def place(self, name: str) -> Place:
        return Place(f"{self.root}/{name}", self.storage_options)

    def set_delay(self, delay_ms: float) -> None:
        if self.server is not None:
            self.server.set_delay(delay_ms)

    def forget_requests(self) -> None:
        if self.server is not None:
            self.server.reset()

    def requests(self) -> int | None:
        return None if self.server is None else int(self.server.stats()["requests"])


@contextmanager
def fresh_store(*, on_disk: bool) -> Iterator[Store]:
    """A new directory or server, so that one run does not slow another."""
    if on_disk:
        with TemporaryDirectory(prefix="omniray-bench-") as directory:
            yield Store(str(Path(directory)))
        return
    with running_server() as server:
        yield Store(server.create_bucket("bench"), server.storage_options, server)


def race(
    scenario: str, system: str, work: Workload, *, writers: int, seconds: float, delay_ms: float, on_disk: bool
) -> Run:
    """Prepare the tables, let the writers write, and scan the result."""
    with fresh_store(on_disk=on_disk) as store:
        place = store.place(f"{system}-{token_hex(4)}")  # new each time: DuckLake's catalog outlives its store
        with member(system, place, work) as witness:
            witness.ask(do="prepare")
            with serving(system, place):
                store.set_delay(delay_ms)
                outcomes, requests, spent_s = _raced(store, system, place, work, writers, seconds)
            store.set_delay(0)
            findings = _scanned(witness, outcomes)
    return summary(scenario, system, seconds, outcomes, requests, findings, spent_s)


def _raced(
    store: Store, system: str, place: Place, work: Workload, writers: int, seconds: float
) -> tuple[list[dict[str, Any] | None], int | None, dict[str, float]]:
    """Each writer's outcome, the number of requests until the last writer has closed, and the processor time spent."""
    with crew(system, place, work, writers) as members:
        store.forget_requests()
        before = spent_by(os.getpid())
        start_s = time.monotonic() + START_MARGIN_S
        _tell(members, do="race", start_s=start_s, seconds=seconds)
        outcomes = heard_by(members, start_s + seconds + DRAIN_S)
        spent_s = spent_between(before, spent_by(os.getpid()))
        alive = [one for one, outcome in zip(members, outcomes, strict=True) if outcome is not None]
        _tell(alive, do="close")
        heard_by(alive, time.monotonic() + DRAIN_S)
        return outcomes, store.requests(), spent_s


def _tell(members: Sequence[Member], **command: Any) -> None:
    for one in members:
        one.tell(**command)


def _scanned(witness: Member, outcomes: Sequence[dict[str, Any] | None]) -> Findings:
    def named(what: str) -> list[tuple[int, int]]:
        return [(number, sequence) for number, seen in enumerate(outcomes) if seen for sequence in seen[what]]

    return Findings(**witness.ask(do="check", acknowledged=named("acknowledged"), failed=named("failed")))


def summary(
    scenario: str,
    system: str,
    seconds: float,
    outcomes: Sequence[Mapping[str, Any] | None],
    requests: int | None,
    findings: Findings,
    spent_s: Mapping[str, float] | None = None,
) -> Run:
    """The figures of a run, from its writers' outcomes."""
    seen = [outcome for outcome in outcomes if outcome is not None]
    latencies_s = list(chain.from_iterable(outcome["latencies_s"] for outcome in seen))
    in_time = [sum(end_s <= seconds for end_s in outcome["ends_s"]) for outcome in seen]
    errors = sum((Counter(outcome["errors"]) for outcome in seen), Counter[str]())
    errors += Counter({STUCK: len(outcomes) - len(seen)})
    return Run(
        scenario=scenario,
        system=system,
        writers=len(outcomes),
        seconds=seconds,
        commits=len(latencies_s),
        commits_per_s=sum(in_time) / seconds,
        p50_s=percentile(latencies_s, 50),
        p99_s=percentile(latencies_s, 99),
        failures=errors.total(),
        requests_per_commit=None if requests is None or not latencies_s else requests / len(latencies_s),
        share_max=largest_share(in_time),
        lost=findings.lost,
        doubled=findings.doubled,
        torn=findings.torn,
        cpu_ms_per_commit={kind: 1e3 * s / len(latencies_s) for kind, s in (spent_s or {}).items()}
        if latencies_s
        else {},
        errors=dict(errors),
    )
