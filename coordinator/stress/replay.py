"""The rules about the content of the graph: all commits are replayed, in their order, on a plain model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from omniray.coordinator.stress.evidence import Attempt, Evidence, Submission
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import Failed, Read, Succeeded
from omniray.coordinator.stress.model import Affected, Model, digest_of
from omniray.coordinator.stress.operation import ENDS, ROW_TYPES, Row, TypeName, row_of
from omniray.coordinator.stress.violation import Rule, Violation
from omniray.engine.base.errors import ConstraintViolation, KeyConflict
from omniray.engine.history.lineage_entry import LineageEntry

MODELLED_KINDS = (KeyConflict.kind, ConstraintViolation.kind)
"""The kinds of refusal that the model can check."""


def replay_violations(evidence: Evidence) -> Iterator[Violation]:
    """The violations that the content of the graph shows, at each commit and at the end."""
    model = Model()
    questions = _Questions(evidence)
    reads = _reads_by_state(evidence)
    for state in range(len(evidence.lineage) + 1):
        if state > 0:
            yield from _redo(evidence, state - 1, model)
        for read in reads.get(state, ()):
            yield from _compare_read(evidence, read, model)
        questions.ask(state, model)
    yield from questions.unanswered()
    yield from _compare_rows(evidence, model)
    yield from _look_for_loose_ends(evidence)


def _redo(evidence: Evidence, position: int, model: Model) -> Iterator[Violation]:
    submission = evidence.submission_at(position)
    if submission is None:
        return
    entry = evidence.lineage[position]
    for rule, fault in _commit_faults(entry, submission, model):
        yield Violation(rule, f"{entry.commit_id} {fault}", evidence.of_names(submission.write.names))


def _commit_faults(entry: LineageEntry, submission: Submission, model: Model) -> Iterator[tuple[Rule, str]]:
    """Apply a commit to the model; a commit that the model would refuse is reported and still applied."""
    write = submission.write
    if refusals := model.refusals(write):
        yield Rule.UNLAWFUL_COMMIT, f"landed and deserved {' or '.join(sorted(refusals))}"
    if not model.has_effect(write):
        yield Rule.UNLAWFUL_COMMIT, "landed and matched nothing"
    done = model.apply(write)
    answers = [a.outcome for a in submission.attempts if isinstance(a.outcome, Succeeded) and a.committed]
    told = {Affected(entry.nodes, entry.edges), *(Affected(answer.nodes, answer.edges) for answer in answers)}
    for wrong in told - {done}:
        yield Rule.WRONG_ANSWER, f"touched {done}, and was told as {wrong}"


# Refusals


@dataclass(frozen=True, slots=True)
class _Question:
    """A refusal, and the states of which at least one must justify it."""

    attempt: Attempt
    first_state: int
    last_state: int

    def is_answered(self, model: Model) -> bool:
        write, outcome = self.attempt.write, self.attempt.outcome
        if isinstance(outcome, Failed):
            return outcome.kind in model.refusals(write)
        return not model.has_effect(write)

    def violation(self, evidence: Evidence) -> Violation:
        write, outcome = self.attempt.write, self.attempt.outcome
        if isinstance(outcome, Failed):
            rule, told = Rule.GROUNDLESS_REFUSAL, f"was refused with {outcome.kind}"
        else:
            rule, told = Rule.WRONGLY_EMPTY, "was told to have no effect"
        states = f"in no state from {self.first_state} to {self.last_state} was there a reason"
        return Violation(rule, f"{write.txn_id} {told}: {states}", evidence.of_names(write.names))


class _Questions:
    """The refusals that no state of the replay has justified yet."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._coming: defaultdict[int, list[_Question]] = defaultdict(list)
        self._open: list[_Question] = []
        self._unanswered: list[_Question] = []
        for attempt in _doubtful(evidence):
            first = evidence.earliest_state(attempt.began_ns)
            last = max(first, evidence.latest_state(attempt.ended_ns))
            self._coming[first].append(_Question(attempt, first, last))

    def ask(self, state: int, model: Model) -> None:
        self._open += self._coming.pop(state, [])
        waiting = [question for question in self._open if not question.is_answered(model)]
        self._unanswered += [question for question in waiting if question.last_state <= state]
        self._open = [question for question in waiting if question.last_state > state]

    def unanswered(self) -> Iterator[Violation]:
        return (question.violation(self._evidence) for question in self._unanswered)


def _doubtful(evidence: Evidence) -> Iterator[Attempt]:
    """The attempts that committed nothing, where the model can check that."""
    for submission in evidence.submissions.values():
        for attempt in submission.attempts:
            modelled = not isinstance(attempt.outcome, Failed) or attempt.outcome.kind in MODELLED_KINDS
            if attempt.refused and modelled:
                yield attempt


# Snapshots


def _reads_by_state(evidence: Evidence) -> dict[int, list[Read]]:
    reads: defaultdict[int, list[Read]] = defaultdict(list)
    for read in evidence.reads:
        if (state := evidence.state_of(read.commit_id)) is not None:
            reads[state].append(read)
    return reads


def _compare_read(evidence: Evidence, read: Read, model: Model) -> Iterator[Violation]:
    """Compare a snapshot with the model at its commit."""
    where = f"a snapshot of writer {read.writer} at {read.commit_id}"
    for type in ROW_TYPES:
        if read.counts[type] != len(model.tables[type]):
            rows = f"{read.counts[type]} rows of {type}, it had {len(model.tables[type])}"
            yield Violation(Rule.INCONSISTENT_SNAPSHOT, f"{where} counts {rows}", evidence.of_ids([read.commit_id]))
        for name in read.names:
            rows_then = model.found(type, name)
            expected = digest_of(rows_then) if rows_then else None
            if read.digests[type].get(name) != expected:
                yield Violation(
                    Rule.INCONSISTENT_SNAPSHOT,
                    f"{where} shows other rows of {type} at {name!r} than there were",
                    evidence.of_names([name]),
                )


# The end


def _compare_rows(evidence: Evidence, model: Model) -> Iterator[Violation]:
    """Compare every row of the final graph with the model."""
    for type in ROW_TYPES:
        found = _rows(evidence.final, type)
        keys = Counter(row.key for row in found)
        by_key = {row.key: row for row in found}
        expected = model.tables[type]
        for key in sorted(keys.keys() | expected.keys()):
            rule = _difference(by_key.get(key), expected.get(key))
            if rule is not None:
                yield _row_violation(evidence, rule, type, by_key.get(key), expected.get(key))
            if keys[key] > 1:
                yield _row_violation(evidence, Rule.DOUBLED_ROW, type, by_key[key], by_key[key])
        yield from _doubled_ids(evidence.final, type)


def _doubled_ids(final: FinalGraph, type: TypeName) -> Iterator[Violation]:
    ids = Counter(row["id"] for row in final.rows[type])
    for id, count in ids.items():
        if count > 1:
            yield Violation(Rule.DOUBLED_ROW, f"{type} has {count} rows with the id {id!r}")


def _difference(found: Row | None, expected: Row | None) -> Rule | None:
    if found == expected:
        return None
    if found is None:
        return Rule.LOST_ROW
    return Rule.PHANTOM_ROW if expected is None else Rule.WRONG_ROW


def _row_violation(
    evidence: Evidence, rule: Rule, type: TypeName, found: Row | None, expected: Row | None
) -> Violation:
    row = found or expected
    assert row is not None
    names = [getattr(row, column) for column in ENDS.get(type, ("name",))]
    message = f"{type} {row.key!r}: the graph has {found}, the commits make {expected}"
    return Violation(rule, message, evidence.of_names(names))


def _look_for_loose_ends(evidence: Evidence) -> Iterator[Violation]:
    """Check in the graph alone that both ends of every edge exist."""
    nodes = {type: {row.key for row in _rows(evidence.final, type)} for type in ROW_TYPES if type not in ENDS}
    for type, ends in ENDS.items():
        for row in _rows(evidence.final, type):
            for column, node in ends.items():
                name = getattr(row, column)
                if name not in nodes[node]:
                    message = f"{type} {row.key!r}: its {column} {name!r} is no {node}"
                    yield Violation(Rule.DANGLING_EDGE, message, evidence.of_names([name]))


def _rows(final: FinalGraph, type: TypeName) -> list[Row]:
    return [row_of(type, columns) for columns in final.rows[type]]
