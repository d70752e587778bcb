"""The report of a run: counts of writes and refusals, latencies, and every broken rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from omniray.coordinator.stress.evidence import USER_KINDS, Attempt, submissions_of
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import Disturbed, Event, Failed, Read, Succeeded, Unread
from omniray.coordinator.stress.violation import Verdict, Violation
from omniray.engine.base.printable import printable

if TYPE_CHECKING:  # imported only to draw for a person
    from rich.console import Console

VIOLATIONS_SHOWN_MAX = 10
NS_PER_S = 1e9
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of commits, from sending to answer."""

    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The number of commits in one object of the line."""

    mean: float
    max: int


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a run, its violations, and the seed that repeats it."""

    seed: int
    writers: int
    seconds: float
    sent: int
    commits: int
    commits_per_s: float
    without_effect: int
    repeated: int
    unknown: int
    refusals: Mapping[str, int]
    reads: int
    failed_reads: Mapping[str, int]
    kills: int
    faults: int
    recoveries: Mapping[str, int]
    latency: Latency | None
    groups: GroupSizes | None
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return {"ok": self.ok, **document}


def summarise(events: Sequence[Event], final: FinalGraph, verdict: Verdict, *, seed: int) -> Report:
    """Count the events of a run, and add the checker's verdict."""
    attempts = [a for s in submissions_of(events).values() for a in s.attempts]
    answers = [a.outcome for a in attempts if isinstance(a.outcome, Succeeded)]
    commits = [entry for entry in final.lineage if entry.kind in USER_KINDS]
    seconds = _seconds(events)
    return Report(
        seed=seed,
        writers=len({attempt.invoked.writer for attempt in attempts}),
        seconds=seconds,
        sent=len(attempts),
        commits=len(commits),
        commits_per_s=len(commits) / seconds if seconds else 0.0,
        without_effect=sum(answer.commit_id is None for answer in answers),
        repeated=sum(answer.repeated for answer in answers),
        unknown=sum(not attempt.committed and not attempt.refused for attempt in attempts),
        refusals=counts(a.outcome.kind for a in attempts if isinstance(a.outcome, Failed)),
        reads=sum(isinstance(event, Read) for event in events),
        failed_reads=counts(event.kind for event in events if isinstance(event, Unread)),
        kills=disturbances(events, "kill"),
        faults=disturbances(events, "fault"),
        recoveries=counts(recovery.recovery_kind for recovery in final.recoveries),
        latency=latency_of(_took_ms(attempts)),
        groups=groups_of(Counter(entry.seq for entry in commits)),
        violations=verdict.violations,
    )


def show(report: Report, console: Console) -> None:
    """Print the report for a person: the figures, then the first violations with their lines of the history."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=False)
    for name, figure in _figures(report):
        table.add_row(name, Text(printable(figure)))
    console.print(table)
    for line in _judgement(report):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _judgement(report: Report) -> Iterator[str]:
    for violation in report.violations[:VIOLATIONS_SHOWN_MAX]:
        yield f"violation {violation}"
        yield from (f"    {line}" for line in violation.excerpt)
    if (more := len(report.violations) - VIOLATIONS_SHOWN_MAX) > 0:
        yield f"{more} more violations are not shown; --json shows all"
    yield "0 violations" if report.ok else f"{len(report.violations)} violations; --seed {report.seed} tries it again"


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    yield "writers", f"{report.writers} for {report.seconds:.1f} s, seed {report.seed}"
    yield "commits", f"{report.commits:,} of {report.sent:,} writes sent, {report.commits_per_s:,.1f} a second"
    yield (
        "answers",
        f"{report.repeated:,} repeated, {report.without_effect:,} without effect, {report.unknown:,} unknown",
    )
    yield "refusals", _listed(report.refusals)
    yield "snapshots", f"{report.reads:,} read, {sum(report.failed_reads.values()):,} failed"
    yield "disturbances", f"{report.kills:,} kills, {report.faults:,} faults"
    yield "recoveries", _listed(report.recoveries)
    if report.latency is not None:
        latency = report.latency
        yield "latency", f"p50 {latency.p50_ms:.0f} ms, p99 {latency.p99_ms:.0f} ms, max {latency.max_ms:.0f} ms"
    if report.groups is not None:
        yield "group size", f"mean {report.groups.mean:.1f}, max {report.groups.max}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "none"


def counts(kinds: Iterable[str]) -> dict[str, int]:
    """The count of each kind, the most frequent first."""
    return dict(Counter(kinds).most_common())


def _seconds(events: Sequence[Event]) -> float:
    return (events[-1].at_ns - events[0].at_ns) / NS_PER_S if events else 0.0


def disturbances(events: Iterable[Event], what: str) -> int:
    """How often the chaos did this."""
    return sum(isinstance(event, Disturbed) and event.what == what for event in events)


def latency_of(took_ms: Iterable[float]) -> Latency | None:
    """The latency of commits that took so long; None if there was none."""
    ascending = sorted(took_ms)
    if not ascending:
        return None
    return Latency(_percentile(ascending, 0.50), _percentile(ascending, 0.99), ascending[-1])


def _took_ms(attempts: Iterable[Attempt]) -> Iterator[float]:
    """The time of attempts that committed; repetitions are left out, since their answer is ready."""
    for attempt in attempts:
        if isinstance(attempt.outcome, Succeeded) and attempt.committed and not attempt.outcome.repeated:
            yield (attempt.ended_ns - attempt.began_ns) / NS_PER_MS


def _percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def groups_of(commits_by_seq: Mapping[int, int]) -> GroupSizes | None:
    """How many commits an object of the line had; None if there was none."""
    if not commits_by_seq:
        return None
    sizes = commits_by_seq.values()
    return GroupSizes(sum(sizes) / len(sizes), max(sizes))
