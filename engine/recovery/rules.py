"""The rules of recovery: pure functions from the durable facts of an operation to one decision.

    facts      the state of a sidecar's operation and its tables in the store (`recoverer.py` observes it)
    classify   the state of each table
    decide     the action for the operation as a whole

`IncompletePhaseB`, which other systems know, cannot occur: one object commits all tables, so either all of the
operation's versions are in the line or none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from omniray.engine.tables.final_names import FinalName


class TableClass(StrEnum):
    """The state of one table of an operation."""

    NO_MOVEMENT = "NoMovement"  # no object names the operation: it did not land
    ROLLED_PAST_EXPECTED = "RolledPastExpected"  # an object names it: it landed, Phase D may be unfinished
    UNEXPECTED_AT_P1 = "UnexpectedAtP1"  # HEAD is one past the pin, by a transaction that no object names
    UNEXPECTED_MULTISTEP = "UnexpectedMultistep"  # HEAD is several past it
    FINAL_NAME_TAKEN = "FinalNameTaken"  # the pinned version's final name holds another transaction
    INVARIANT_VIOLATION = "InvariantViolation"  # the pinned version has neither a final name nor one of its own


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table: the version that the newest object pins, the names of that version, and HEAD, read before the line."""

    pin: int
    head: int
    final_name: FinalName
    has_own_name: bool


class Epoch(StrEnum):
    """The sidecar's epoch, relative to the line's."""

    PAST = "past"  # its owner is fenced
    CURRENT = "current"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """One operation, as the line and its sidecar show it."""

    named: bool  # by an object of the line, or in the lineage
    gone: bool  # its owner is known to be dead, or the grace period has passed
    epoch: Epoch
    may_put: bool  # whether the line is ours to extend: it is shared, or we own it
    own: bool  # the sidecar belongs to our owner, in its current epoch
    staging_only: bool  # a load that staged files and had not begun to commit
    orphaned: bool = False  # its branch was deleted: nothing follows on that line, and main's owner sees to it


class Decision(StrEnum):
    LEAVE = "leave"  # to its owner, or to the line's owner
    FORGET = "forget"  # nothing to undo and nothing to record
    RAISE_FIRST = "raise_first"  # fence its owner, then read the line and decide again
    ROLL_FORWARD = "roll_forward"
    ROLL_BACK = "roll_back"
    DISCARD = "discard"  # its branch was deleted, so it does not matter what became of it
    AWAIT_REPAIR = "await_repair"  # it landed, and a foreign writer blocks Phase D
    ABORT = "abort"  # a pinned version or an object of the line is lost: keep everything


RECORDED_AS: Mapping[Decision, str] = {
    Decision.ROLL_FORWARD: "RolledForward",
    Decision.ROLL_BACK: "RolledBack",
    Decision.DISCARD: "OrphanedBranchDiscarded",
}


def classify(named: bool, table: TableFacts) -> TableClass:
    """The state of one table; loss and drift come before the outcome of the operation."""
    if table.final_name is FinalName.ABSENT and not table.has_own_name:
        return TableClass.INVARIANT_VIOLATION
    if table.final_name is FinalName.FOREIGN:
        return TableClass.FINAL_NAME_TAKEN
    if table.head == table.pin + 1:
        return TableClass.UNEXPECTED_AT_P1
    if table.head > table.pin:
        return TableClass.UNEXPECTED_MULTISTEP
    return TableClass.ROLLED_PAST_EXPECTED if named else TableClass.NO_MOVEMENT


def decide(operation: OperationFacts, classes: Iterable[TableClass]) -> Decision:
    """One decision for the whole operation. A foreign writer ahead of a pin only matters to later writes."""
    found = set(classes)
    if not operation.gone or not operation.may_put or operation.own:
        return Decision.LEAVE
    if operation.staging_only:
        return Decision.FORGET
    if operation.orphaned:
        return Decision.DISCARD
    if TableClass.INVARIANT_VIOLATION in found or operation.epoch is Epoch.FUTURE:
        return Decision.ABORT
    if operation.named:
        return Decision.AWAIT_REPAIR if TableClass.FINAL_NAME_TAKEN in found else Decision.ROLL_FORWARD
    return Decision.RAISE_FIRST if operation.epoch is Epoch.CURRENT else Decision.ROLL_BACK


def epoch_of(sidecar_epoch: int, line_epoch: int) -> Epoch:
    if sidecar_epoch == line_epoch:
        return Epoch.CURRENT
    return Epoch.PAST if sidecar_epoch < line_epoch else Epoch.FUTURE
