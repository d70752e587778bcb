"""The report of a run over lists: the figures of any other run, counted from its transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from omniray.coordinator.stress import history
from omniray.coordinator.stress.evidence import USER_KINDS
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.report import NS_PER_MS, NS_PER_S, Report, counts, disturbances, groups_of, latency_of
from omniray.coordinator.stress.transactions import Event, Transaction, transactions_of
from omniray.coordinator.stress.violation import Verdict


def summarise_lists(
    events: Sequence[Event], chaos: Sequence[history.Event], final: FinalGraph, verdict: Verdict, *, seed: int
) -> Report:
    """Count the transactions of a run, and add the checker's verdict; the last read is no writer's."""
    run = transactions_of(events)[:-1]
    writes = [one for one in run if one.appends]
    landed = [one for one in writes if one.outcome == "ok"]
    reads = [one for one in run if not one.appends]
    commits = [entry for entry in final.lineage if entry.kind in USER_KINDS]
    seconds = _seconds(run)
    return Report(
        seed=seed,
        writers=len({one.writer for one in run}),
        seconds=seconds,
        sent=len(writes),
        commits=len(commits),
        commits_per_s=len(commits) / seconds if seconds else 0.0,
        without_effect=0,
        repeated=0,
        unknown=sum(one.outcome == "info" for one in writes),
        refusals=_kinds(one for one in writes if one.outcome == "fail"),
        reads=sum(one.outcome == "ok" for one in reads),
        failed_reads=_kinds(one for one in reads if one.outcome != "ok"),
        kills=disturbances(chaos, "kill"),
        faults=disturbances(chaos, "fault"),
        recoveries=counts(recovery.recovery_kind for recovery in final.recoveries),
        latency=latency_of((one.ended_ns - one.began_ns) / NS_PER_MS for one in landed),
        groups=groups_of(Counter(entry.seq for entry in commits)),
        violations=verdict.violations,
    )


def _kinds(transactions: Iterable[Transaction]) -> dict[str, int]:
    """The kinds of the errors with which transactions ended; those that a dead writer left open have none."""
    return counts(one.completed.kind for one in transactions if one.completed is not None)


def _seconds(run: Sequence[Transaction]) -> float:
    last_ns = max((event.at_ns for one in run for event in (one.invoked, one.completed) if event), default=0)
    return (last_ns - run[0].invoked.at_ns) / NS_PER_S if run else 0.0
