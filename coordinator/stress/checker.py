"""The checker: from the histories of all writers and the final graph it finds every broken rule.

Pure, and independent of how commits are made. The lineage claims one order of all commits. It must hold every
acknowledged write once and no refused one, in an order that agrees with the clock; and replayed in that order on a
plain model, the writes must give the final rows, every snapshot that was seen, and every refusal (`replay.py`). Then
each key is linearizable, and so is the whole graph.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from omniray.coordinator.stress.evidence import USER_KINDS, Attempt, Evidence, Submission
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import UNTYPED, Event, Failed, Succeeded, Unclear, Unread
from omniray.coordinator.stress.operation import TABLE_KEYS, Delete, Update
from omniray.coordinator.stress.replay import MODELLED_KINDS, replay_violations
from omniray.coordinator.stress.violation import Rule, Verdict, Violation
from omniray.engine.base.errors import ExpectedVersionMismatch, Fenced
from omniray.engine.recovery.rules import RECORDED_AS, Decision


def check(events: Sequence[Event], final: FinalGraph) -> Verdict:
    """Check a run: the events of all writers in the order of time, and the graph after it."""
    evidence = Evidence(events, final)
    return Verdict(
        (
            *_lineage_violations(evidence),
            *_answer_violations(evidence),
            *_error_violations(evidence),
            *_order_violations(evidence),
            *_strict_violations(evidence),
            *_snapshot_violations(evidence),
            *_recovery_violations(evidence),
            *replay_violations(evidence),
        )
    )


def _lineage_violations(evidence: Evidence) -> Iterator[Violation]:
    """The lineage is one line, holds no commit twice, and only commits that a writer sent."""
    for before, after in pairwise(evidence.lineage):
        same_object = (before.seq == after.seq, before.op_id == after.op_id)
        if after.parent != before.commit_id or after.seq < before.seq or len(set(same_object)) > 1:
            yield Violation(
                Rule.BROKEN_LINEAGE,
                f"{after.commit_id} (seq {after.seq}, op {after.op_id}, parent {after.parent}) does not follow "
                f"{before.commit_id} (seq {before.seq}, op {before.op_id})",
            )
    for commit_id, count in Counter(entry.commit_id for entry in evidence.lineage).items():
        if count > 1:
            told = evidence.of_ids([commit_id])
            yield Violation(Rule.DOUBLED_COMMIT, f"{commit_id} is in the lineage {count} times", told)
    for entry in evidence.lineage:
        if entry.kind in USER_KINDS and entry.commit_id not in evidence.submissions:
            yield Violation(Rule.PHANTOM_COMMIT, f"{entry.commit_id} is in the lineage, and nobody sent it")


def _answer_violations(evidence: Evidence) -> Iterator[Violation]:
    """The answers to writers agree with the lineage."""
    for txn_id, submission in evidence.submissions.items():
        attempt_faults = (fault for attempt in submission.attempts for fault in _attempt_faults(submission, attempt))
        for rule, fault in (*_landing_faults(submission, txn_id in evidence.position), *attempt_faults):
            yield Violation(rule, f"{txn_id} {fault}", evidence.of_ids([txn_id]))


def _landing_faults(submission: Submission, landed: bool) -> Iterator[tuple[Rule, str]]:
    if submission.acknowledged_ns < math.inf and not landed:
        yield Rule.LOST_COMMIT, "was acknowledged and is not in the lineage"
    if landed and all(attempt.refused for attempt in submission.attempts):
        yield Rule.REFUSED_YET_COMMITTED, "was refused and is in the lineage"


def _attempt_faults(submission: Submission, attempt: Attempt) -> Iterator[tuple[Rule, str]]:
    outcome = attempt.outcome
    if isinstance(outcome, Succeeded) and outcome.commit_id not in (None, outcome.txn_id):
        yield Rule.WRONG_ANSWER, f"was answered with commit {outcome.commit_id}"
    if attempt.began_ns <= submission.acknowledged_ns:
        return
    match outcome:
        case Succeeded(repeated=False):
            yield Rule.NOT_REPEATED, "was committed, and is told as new when sent again"
        case Failed() if not _is_excused(outcome):
            yield Rule.NOT_REPEATED, "was committed, and is refused when sent again"


def _error_violations(evidence: Evidence) -> Iterator[Violation]:
    """Every error is one that the workload, or a disturbance, can cause."""
    deserved = (*MODELLED_KINDS, ExpectedVersionMismatch.kind)
    for event in evidence.events:
        match event:
            case Failed() if event.kind in deserved or _is_excused(event):
                continue
            case Unread() if _is_excused(event):
                continue
            case Unclear() if event.kind != UNTYPED:
                continue
            case Failed() | Unclear():
                told = evidence.of_ids([event.txn_id])
                yield Violation(Rule.UNEXPECTED_ERROR, f"{event.txn_id} got {event.kind}: {event.message}", told)
            case Unread():
                message = f"a read of writer {event.writer} got {event.kind}: {event.message}"
                yield Violation(Rule.UNEXPECTED_ERROR, message)


def _is_excused(event: Failed | Unread) -> bool:
    """Whether no write caused the error: the store failed, a queue was full, an owner lost its line."""
    return event.retry == "safe" or event.kind == Fenced.kind


def _order_violations(evidence: Evidence) -> Iterator[Violation]:
    """A commit that was known before another one was sent comes before it in the line."""
    newest = 0  # the position of the commit that was sent last, so far
    for position, known_ns in enumerate(evidence.known_ns):
        if known_ns < evidence.began_ns[newest]:
            earlier, later = evidence.lineage[position].commit_id, evidence.lineage[newest].commit_id
            message = f"{earlier} was known before {later} was sent, and comes after it in the lineage"
            yield Violation(Rule.OUT_OF_ORDER, message, evidence.of_ids([earlier, later]))
        if evidence.began_ns[position] > evidence.began_ns[newest]:
            newest = position


# Strict writes


def _strict_violations(evidence: Evidence) -> Iterator[Violation]:
    """A strict write lands only if no table that it names moved, and is refused only if one did."""
    winners: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for txn_id, submission in evidence.submissions.items():
        for attempt in submission.attempts:
            yield from _groundless_mismatch(evidence, attempt)
        position, basis = evidence.position.get(txn_id), submission.write.basis
        if position is None or basis is None:
            continue
        changed = evidence.lineage[position].tables
        for named in basis.versions.items():
            winners[named] += [txn_id] if named[0] in changed else []
        yield from _stale_winner(evidence, submission, position)
    for (table_key, version), txn_ids in winners.items():
        if len(txn_ids) > 1:
            message = f"{' and '.join(txn_ids)} named version {version} of {table_key}, and all of them changed it"
            yield Violation(Rule.TWO_WINNERS, message, evidence.of_ids(txn_ids))


def _stale_winner(evidence: Evidence, submission: Submission, position: int) -> Iterator[Violation]:
    basis = submission.write.basis
    decided_in = None if basis is None else evidence.state_of(basis.commit_id)
    if basis is None or decided_in is None:
        return
    for table_key in basis.versions:
        if (moved := evidence.moved_between(table_key, decided_in, position)) is not None:
            txn_id, other = submission.write.txn_id, evidence.lineage[moved].commit_id
            message = f"{txn_id} was decided on {basis.commit_id}, and {other} changed {table_key} in between"
            yield Violation(Rule.STALE_WINNER, message, evidence.of_ids([txn_id, other]))


def _groundless_mismatch(evidence: Evidence, attempt: Attempt) -> Iterator[Violation]:
    """A version mismatch needs a change between the write's snapshot and its answer."""
    outcome, write = attempt.outcome, attempt.write
    if not isinstance(outcome, Failed) or outcome.kind != ExpectedVersionMismatch.kind:
        return
    first = evidence.earliest_state(attempt.began_ns)
    if write.basis is not None:
        first = min(first, evidence.state_of(write.basis.commit_id) or 0)
    strict = write.basis is not None or isinstance(write, Update | Delete)
    last = evidence.latest_state(attempt.ended_ns)
    tables = [TABLE_KEYS[type] for type in write.types]
    if not strict or all(evidence.moved_between(table_key, first, last) is None for table_key in tables):
        message = f"{write.txn_id} was told that {', '.join(tables)} had moved, and none had"
        yield Violation(Rule.GROUNDLESS_REFUSAL, message, evidence.of_ids([write.txn_id]))


# Snapshots and recoveries


def _snapshot_violations(evidence: Evidence) -> Iterator[Violation]:
    """A snapshot is of a commit in the lineage, and neither older nor newer than its time allows."""
    for read in evidence.reads:
        state = evidence.state_of(read.commit_id)
        where = f"a snapshot of writer {read.writer} at {read.commit_id}"
        if state is None:
            yield Violation(Rule.PHANTOM_SNAPSHOT, f"{where}, which is not in the lineage")
            continue
        first, last = evidence.earliest_state(read.began_ns), evidence.latest_state(read.at_ns)
        if not first <= state <= last:
            message = f"{where} shows state {state}, and then the graph was in one from {first} to {last}"
            yield Violation(Rule.UNTIMELY_SNAPSHOT, message, evidence.of_ids([read.commit_id]))


def _recovery_violations(evidence: Evidence) -> Iterator[Violation]:
    """An operation is recovered once, and its recovery agrees with the lineage."""
    committed = {entry.op_id for entry in evidence.lineage}
    recoveries = evidence.final.recoveries
    for operation_id, count in Counter(recovery.operation_id for recovery in recoveries).items():
        if count > 1:
            yield Violation(Rule.RECOVERED_TWICE, f"operation {operation_id} was recovered {count} times")
    for recovery in recoveries:
        landed = recovery.operation_id in committed
        back = recovery.recovery_kind == RECORDED_AS[Decision.ROLL_BACK]
        forward = recovery.recovery_kind == RECORDED_AS[Decision.ROLL_FORWARD]
        if (back and landed) or (forward and not landed and recovery.sidecar_writer_kind in USER_KINDS):
            lineage = "in the lineage" if landed else "not in the lineage"
            message = f"operation {recovery.operation_id} was {recovery.recovery_kind}, and is {lineage}"
            yield Violation(Rule.FALSE_RECOVERY, message)
