"""The scenarios: which writes, on which store, with how many writers, and omniray's goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.measure import Target
from bench.peers.goals import AtLeast, Bounded, Faster, Goal, times_at_least
from bench.peers.rows import TABLES, Workload
from bench.peers.systems import DUCKLAKE, LANCEDB, OURS, PYLANCE

HOT_KEYS = 50
SHARED_KEYS = 5
IN_FLIGHT = 64
MERGED_INTO_ROWS = 100_000
NONE_OF_THEM = Target(0)
BELOW_ONE = 0.999


def _intact(writers: int) -> tuple[Goal, ...]:
    return (
        Bounded("failed writes", writers, lambda run: run.failures, NONE_OF_THEM),
        Bounded("rows lost", writers, lambda run: run.lost, NONE_OF_THEM),
        Bounded("ids doubled", writers, lambda run: run.doubled, NONE_OF_THEM),
    )


def _merged(writers: int, times: float) -> tuple[Goal, ...]:
    return (
        Faster(PYLANCE, writers, times_at_least(times)),
        Faster(LANCEDB, writers, times_at_least(times)),
        Bounded("share of the busiest writer", writers, lambda run: run.share_max, Target(2, unit=" of a fair one")),
        *_intact(writers),
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, the numbers of writers that race, and the goals."""

    title: str
    work: Workload
    goals: tuple[Goal, ...]
    writers: tuple[int, ...] = (1, 4, 16, 32)
    on_disk: bool = False
    systems: tuple[str, ...] | None = None  # None: all of them


SCENARIOS: Mapping[str, Scenario] = {
    "same-table": Scenario(
        "Appends to one table",
        Workload(),
        (
            Faster(PYLANCE, 32, times_at_least(28)),
            Faster(DUCKLAKE, 32, times_at_least(5)),
            Bounded("p99", 32, lambda run: run.p99_s, Target(0.5, unit=" s")),
            Bounded("CPU per commit, over all processes", 32, lambda run: run.cpu_ms, Target(4, unit=" ms")),
            Bounded("requests per commit", 32, lambda run: run.requests_per_commit, Target(BELOW_ONE)),
            *_intact(32),
        ),
        writers=(1, 4, 16, 32, 64),
    ),
    "three-tables": Scenario(
        "Appends to three tables at once; only ours and DuckLake's are atomic",
        Workload(tables=TABLES),
        (
            Faster(PYLANCE, 32, times_at_least(15)),
            Faster(None, 32, times_at_least(0.85), scenario="same-table"),
            *_intact(32),
        ),
    ),
    "merge": Scenario(
        f"Merges, {HOT_KEYS} hot keys in each batch, and {SHARED_KEYS} new ones that two writers both insert",
        Workload(merge=True, hot=HOT_KEYS, shared=SHARED_KEYS, base_rows=MERGED_INTO_ROWS),
        _merged(16, 20),
        writers=(1, 16),
    ),
    "merge-new": Scenario(
        f"Merges of new keys alone, {SHARED_KEYS} in each batch that two writers both insert",
        Workload(merge=True, shared=SHARED_KEYS, base_rows=MERGED_INTO_ROWS),
        _merged(16, 16),
        writers=(1, 16),
    ),
    "disk": Scenario(
        "Appends to one table on a disk",
        Workload(),
        (Faster(PYLANCE, 32, times_at_least(12)), *_intact(32)),
        on_disk=True,
    ),
    "in-flight": Scenario(
        f"Appends of one row, {IN_FLIGHT} of each writer awaited at a time",
        Workload(rows=1, in_flight=IN_FLIGHT, awaited=True),
        (Bounded("commits/s", 4, lambda run: run.commits_per_s, AtLeast(900, unit="/s")), *_intact(4)),
        writers=(4,),
        systems=(OURS,),  # the others' writers take one write at a time
    ),
    "in-threads": Scenario(
        f"Appends of one row, {IN_FLIGHT} of each writer under way at a time, each in a thread",
        Workload(rows=1, in_flight=IN_FLIGHT),
        (*_intact(4),),
        writers=(4,),
        systems=(OURS,),
    ),
}
