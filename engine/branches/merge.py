"""Merges a state of one branch into another branch, as one commit of the target with two parents.

    plan      beside the target's writers: bases, what to do with each table, the rows, all conflicts judge     on the
    newest head of the target, while the other writers of this process wait: what moved is planned again commit
    through the commit kernel, as any write: a sidecar, the tables' next versions, one object

The source stays the state that was named. A merge has an id like any write and is applied exactly once. A revert is the
merge of a commit's predecessor with that commit as the base.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import Conflict, InputError, PayloadMismatch, StorageError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.branches.bases import Place, Vector, includes
from omniray.engine.branches.merge_lease import MergeLease
from omniray.engine.branches.merge_plan import MergePlan, Progress, Verdict, no_progress
from omniray.engine.branches.merge_result import MergeOutcome, MergeResult, MergeTerms, conflicts_error
from omniray.engine.branches.states import LineState, States
from omniray.engine.commit.attempt import Attempts, SystemWrite, commit_of, commit_time_us
from omniray.engine.commit.staging import Base, Taken, drifted
from omniray.engine.history.lineage import LandedCommit
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.history.withdrawals import refuse_withdrawn
from omniray.engine.judge.pinned_state import moved
from omniray.engine.judge.resolution import TableWrite, refuse_swept
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_object import (
    EMBEDDED,
    NOTHING_MORE,
    CommitObject,
    Fate,
    MergedParent,
    Remark,
    explain_version,
    may_answer,
)
from omniray.engine.line.line_end import Tip, refuse_closed
from omniray.engine.line.owner import refuse_stranger
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.rows.payload import hash_of
from omniray.engine.tables.row_stream import RowStream
from omniray.engine.tables.table import Table

log = logging.getLogger("omniray")

KIND = "BranchMerge"
TIMEOUT_S = 300.0
LOSSES_MIN = 3
CATCH_UPS_MAX = 10
NOTHING_NEW = ("", "", "")
BACKOFF_S_MAX = 1.0


class PhaseD(Protocol):
    """Finishes what has landed, in this process or in another one."""

    @property
    def finalised_through(self) -> int: ...

    def notice(self, landed: CommitObject, operation_id: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Operation:
    """A merge, or a revert: which state goes into the target, and how its commit is recorded.

    `contains` is what the target includes afterwards; `bases` are given where they do not follow from the vectors.
    """

    kind: str
    what: str  # for messages
    source: LineState
    named: LineState  # the state that the caller named
    merged: tuple[MergedParent, ...] = ()
    contains: Vector = field(default_factory=lambda: NOTHING_MORE)
    bases: tuple[Place, ...] | None = None

    def result(self, outcome: MergeOutcome, verdict: Verdict | None = None) -> MergeResult:
        """A result without a commit."""
        line = self.named.place.line
        result = MergeResult(outcome, None, self.named.commit_id, self.named.group, source_line=line)
        if verdict is None:
            return result
        nodes, edges = verdict.affected.nodes, verdict.affected.edges
        return replace(result, affected_nodes=nodes, affected_edges=edges, tables=verdict.tables)

    def is_included(self, head: CommitObject) -> bool:
        """Whether a head of the target includes the source already."""
        return self.bases is None and includes(head.contains, self.source.place)

    def payload_hash(self, target: str, terms: MergeTerms, seq: int) -> str:
        """The hash by which a repetition is known; a branch that was named by its head may have gone on since."""
        named = self.named.place
        return hash_of([self.kind, named.line, named.seq if self.named.is_named else seq, target, terms.on_conflict])


def merge_of(target: BranchId, source: LineState) -> Operation:
    """The merge of a state into a branch."""
    line, seq = source.place
    if line == target.ulid:
        raise InputError(
            f"can't merge the branch {target} into itself: name another branch, or a commit of one", branch=target.name
        )
    what = f"can't merge commit {source.commit_id} into {target}"
    parent = MergedParent(line, seq, source.commit_id)
    return Operation(KIND, what, source, source, (parent,), source.contains)


def foretell(branch: OpenBranch, head: CommitObject, operation: Operation, terms: MergeTerms) -> MergeResult:
    """What an operation on a branch with this head would do, conflicts included; nothing is written."""
    if operation.is_included(head):
        return operation.result(MergeOutcome.ALREADY_UP_TO_DATE)
    with closing(States(branch)) as states:
        plan = MergePlan(branch, states, operation.source, terms.on_conflict, staging=None, bases=operation.bases)
        with closing(plan):
            return _foretold(operation, plan.on(head))


class Merger:
    """Merges into one branch on behalf of an owner of its line; the line end is not shared.

    `held` keeps the target's other writers waiting, where this process has some.
    """

    def __init__(
        self,
        branch: OpenBranch,
        tip: Tip,
        finaliser: PhaseD,
        attempts: Attempts,
        *,
        owner: str = EMBEDDED,
        held: Callable[[], AbstractContextManager[None]] = nullcontext,
        progress: Progress = no_progress,
        clock: Callable[[], float] = suspension_aware_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._branch, self._tip, self._finaliser, self._attempts = branch, tip, finaliser, attempts
        self._progress = progress
        self._owner, self._held, self._clock, self._sleep = owner, held, clock, sleep

    def merge(self, source: LineState, terms: MergeTerms) -> MergeResult:
        """Merge a state into the branch; raises `MergeConflicts` if both sides disagree: then nothing is written."""
        return self.carry_out(merge_of(self._branch.branch, source), terms)

    def carry_out(self, operation: Operation, terms: MergeTerms) -> MergeResult:
        """Carry out an operation exactly once."""
        commit_id = new_ulid() if terms.txn_id is None else checked_txn_id(terms.txn_id)
        write = SystemWrite(commit_id, operation.kind, terms.author, message=terms.message)
        if terms.txn_id is not None:
            seq = operation.named.place.seq
            write = replace(write, payload_hash=operation.payload_hash(self._branch.branch.ulid, terms, seq))
        head = refuse_closed(self._tip.refresh())
        if (known := self._known(operation, terms, write, head)) is not None:
            return known
        refuse_stranger(self._owner, head)
        if operation.is_included(head):
            return operation.result(MergeOutcome.ALREADY_UP_TO_DATE)
        with closing(States(self._branch)) as states:
            work = _Work(self._branch, states, operation, terms, write, head, self._progress)
            try:
                if (answer := self._catch_up(work, head)) is not None:
                    return answer
                with self._held():
                    return self._commit(work)
            finally:
                work.close()

    def _catch_up(self, work: _Work, head: CommitObject) -> MergeResult | None:
        """Plan beside the target's writers until there is little left to plan while they wait; an answer, if any."""
        for _ in range(CATCH_UPS_MAX):
            work.lease(head)
            verdict = work.plan.on(head)
            if not verdict.is_committable and (answer := self._answer(work, head, verdict)) is not None:
                return answer
            newest = refuse_closed(self._tip.refresh())
            if newest.op_id == head.op_id or not work.plan.is_anew:
                return None
            if (ended := self._ended(work, newest)) is not None:
                return ended
            head = newest
        return None

    def _commit(self, work: _Work) -> MergeResult:
        """Judge on the newest head and commit, until that succeeds or conflicts."""
        operation, deadline, losses, is_claimed = work.operation, self._clock() + TIMEOUT_S, 0, False
        while self._clock() < deadline or losses < LOSSES_MIN:
            head = refuse_closed(self._tip.refresh())
            if (ended := self._ended(work, head)) is not None:
                return ended
            work.lease(head)
            verdict = work.plan.on(head)
            if not verdict.is_committable:
                if (answer := self._answer(work, head, verdict)) is not None:
                    return answer
                continue
            if losses >= LOSSES_MIN and not is_claimed:
                is_claimed = self._claim()
                continue
            started = self._clock()
            if (landed := self._attempt(work, head, verdict)) is not None:
                return _result(operation, verdict, landed)
            losses, is_claimed = losses + 1, False
            if losses < LOSSES_MIN:
                self._sleep(min(random.random() * losses * (self._clock() - started), BACKOFF_S_MAX))
        raise Conflict(
            f"{operation.kind} {work.write.commit_id} lost every race for {TIMEOUT_S:.0f} s and was not applied: too "
            "many other processes write to the branch; try again, or let fewer of them write",
        )

    def _ended(self, work: _Work, head: CommitObject) -> MergeResult | None:
        """The outcome that the merge has on a head without being carried out; raises if it can't be any more."""
        if (known := self._known(work.operation, work.terms, work.write, head)) is not None:
            return known
        if work.terms.txn_id is not None:
            refuse_withdrawn(work.write.commit_id, self._branch.lineage, work.submitted_at, head)
        refuse_stranger(self._owner, head)
        return work.operation.result(MergeOutcome.ALREADY_UP_TO_DATE) if work.operation.is_included(head) else None

    def _claim(self) -> bool:
        """Put an object that changes nothing: whoever is staging now loses a try, and starts again no sooner than us.

        A merge stages more than most writes, and would lose to one process that writes without a pause for ever. No
        write is refused for it.
        """

        def build(newest: CommitObject) -> Remark:
            refuse_stranger(self._owner, newest)
            return Remark(new_ulid())

        return self._tip.record(build) is not None

    def _answer(self, work: _Work, head: CommitObject, verdict: Verdict) -> MergeResult | None:
        """Say that there is nothing to merge, or raise the conflicts; None if that may be over by now.

        It may not where the head is still the newest, or where one of the conflicts was there on the head before too.
        """
        found = {(str(one.kind), one.type, one.id) for one in verdict.conflicts.listed} or {NOTHING_NEW}
        stood, work.found = found & work.found, found
        if not stood and not may_answer(head, self._tip.refresh()):
            return None
        if verdict.conflicts.count:
            raise conflicts_error(_foretold(work.operation, verdict), work.operation.what)
        return work.operation.result(MergeOutcome.ALREADY_UP_TO_DATE)

    def _attempt(self, work: _Work, base: CommitObject, verdict: Verdict) -> CommitObject | None:
        """One attempt to commit as the object after `base`; None if another writer was faster."""
        refuse_swept({key: one for key, one in verdict.changes.items() if isinstance(one, TableWrite)}, base)
        write, operation = work.write, work.operation
        intents = [SidecarIntent(write.commit_id, write.author.actor)]
        attempt = self._attempts.announce(base, operation.kind, intents, verdict.changes)
        try:
            failures = self._attempts.stage(attempt, Base.on(base, base))
        except BaseException:
            self._attempts.give_up(attempt).result()
            raise
        if failures:
            self._attempts.give_up(attempt).result()
            for failure in failures:
                self._explain(failure, base, set(verdict.changes))
            return None
        commit = commit_of(
            write, commit_time_us(base), verdict.changes, verdict.affected,
            merged=operation.merged, outcome=_outcome(operation, verdict),
        )  # fmt: skip
        through = self._finaliser.finalised_through
        ours = self._attempts.follow(attempt, (commit,), finalised_through=through, contains=operation.contains)
        work.is_used = True  # from here on, unless another object has the number for sure
        if self._attempts.put(attempt, self._tip) is not Fate.LANDED:
            work.is_used = False
            self._attempts.give_up(attempt).result()
            return None
        self._finaliser.notice(ours, ours.op_id)
        log.info(
            "event=merge kind=%s branch=%s op=%s seq=%d commit=%s tables=%d",
            operation.kind, self._branch.branch, ours.op_id, ours.seq, write.commit_id, len(verdict.changes),
        )  # fmt: skip
        return ours

    def _explain(self, failure: Taken | Exception, base: CommitObject, tables: set[str]) -> None:
        """Raise what kept a table from being staged, unless another writer was merely faster."""
        newest = self._tip.refresh()
        if isinstance(failure, Taken):
            found = failure.found if failure.found is not None else failure.expected + 1
            if explain_version(found, failure.expected, newest, failure.table_key, base) == "drift":
                raise drifted(failure.table_key, failure.expected)
        elif not isinstance(failure, StorageError) or not moved(tables, base, newest):
            raise failure

    def first_outcome(self, txn_id: str) -> MergeResult | None:
        """The first outcome of a merge that has this id, for a caller whose source is not there any more."""
        found = self._branch.lineage.commit(checked_txn_id(txn_id))
        if found is None or found.entry.kind != KIND:
            return None
        return _repeated(MergeResult(MergeOutcome.MERGED, None, ""), found)

    def _known(
        self, operation: Operation, terms: MergeTerms, write: SystemWrite, head: CommitObject
    ) -> MergeResult | None:
        """The first outcome, if the id is in the line as of this head."""
        if terms.txn_id is None:
            return None
        found = self._branch.lineage.find(write.commit_id, head)
        if found is None:
            return None
        entry = found.entry
        if entry.payload_hash not in ("", self._hash_of_first(operation, terms, entry)) or entry.kind != write.kind:
            raise PayloadMismatch(
                f"transaction {entry.commit_id} was committed with other arguments; use a new id for another write",
                txn_id=entry.commit_id,
            )
        return _repeated(operation.result(MergeOutcome.MERGED), found)

    def _hash_of_first(self, operation: Operation, terms: MergeTerms, entry: LineageEntry) -> str:
        """The hash that the first try had, if it was the same: its branch stood where the commit says."""
        seq = entry.merged[0].seq if entry.merged else operation.named.place.seq
        return operation.payload_hash(self._branch.branch.ulid, terms, seq)


class _Work:
    """One merge under way: its plan, and the lease on what it reads and stages."""

    def __init__(
        self,
        branch: OpenBranch,
        states: States,
        operation: Operation,
        terms: MergeTerms,
        write: SystemWrite,
        submitted_at: CommitObject,
        progress: Progress,
    ) -> None:
        self.operation, self.terms, self.write, self.submitted_at = operation, terms, write, submitted_at
        self.is_used = False  # whether the graph refers to the staged files, or may do so
        self.found: set[tuple[str, str, str]] = set()  # the conflicts of the last head, or that there is nothing new
        self._branch, self._states, self._lease = branch, states, None
        self.plan = MergePlan(
            branch, states, operation.source, terms.on_conflict, self._stream, operation.bases, progress
        )

    _lease: MergeLease | None

    def lease(self, head: CommitObject) -> None:
        """Hold a lease of the target's epoch: whoever raised it may have taken an older one for a dead writer's."""
        if self._lease is not None and self._lease.epoch == head.epoch:
            return
        bases = (self._states.at(place) for place in self.plan.bases(head))
        intent = SidecarIntent(self.write.commit_id, self.write.author.actor)
        before, self._lease = self._lease, None
        self._lease = MergeLease(self._branch.sidecars, intent, head, (self.operation.source, *bases))
        if before is not None:
            before.release()
        self._lease.refuse_going(self._states.main_head())

    def close(self) -> None:
        try:
            self.plan.close(used=self.is_used)
        finally:
            if self._lease is not None:
                self._lease.release()

    def _stream(self, table: Table) -> RowStream:
        """Begin to stage the rows of a table, under the lease."""
        assert self._lease is not None, "a lease is taken before anything is planned"
        return RowStream(self._branch.storage, table, self._lease.since_us)


def _outcome(operation: Operation, verdict: Verdict) -> MergeOutcome:
    if operation.bases is not None:
        return MergeOutcome.REVERTED
    return MergeOutcome.FAST_FORWARD if verdict.is_fast_forward else MergeOutcome.MERGED


def _foretold(operation: Operation, verdict: Verdict) -> MergeResult:
    if verdict.conflicts.count:
        return operation.result(MergeOutcome.CONFLICTS, verdict).with_conflicts(verdict.conflicts)
    if not verdict.is_new:
        return operation.result(MergeOutcome.ALREADY_UP_TO_DATE)
    return operation.result(_outcome(operation, verdict), verdict)


def _result(operation: Operation, verdict: Verdict, landed: CommitObject) -> MergeResult:
    versions = {key: pin.version for key, pin in landed.introduced().items()}
    return replace(operation.result(_outcome(operation, verdict), verdict), commit_id=landed.head, versions=versions)


def _repeated(result: MergeResult, found: LandedCommit) -> MergeResult:
    """The result of the first try, by the commit that it left: the source may have gone on since."""
    entry = found.entry
    source = entry.merged[0] if entry.merged else None
    if source is not None and source.commit_id != result.source_commit:
        result = replace(result, source_commit=source.commit_id, source_line=source.line, source_group=())
    outcome = MergeOutcome(entry.outcome) if entry.outcome in tuple(MergeOutcome) else MergeOutcome.MERGED
    return replace(
        result,
        outcome=outcome,
        commit_id=entry.commit_id,
        affected_nodes=entry.nodes,
        affected_edges=entry.edges,
        versions=found.versions,
        repeated=True,
    )
