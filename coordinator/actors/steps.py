"""The steps of a round: judge, stage, commit. Each step returns its result as an event.

Phase A   the round's sidecar, with all of its writes
Phase B   the owners of the table queues stage its tables, in parallel with Phase A
Phase C   one put-if-absent of the commit object
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from omniray.coordinator.actors.executor import StepExecutor
from omniray.coordinator.actors.facts import Reader, RoundState
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.rounds.conflicts import JudgedRound, WriteAnswer, judge_round, not_judged
from omniray.coordinator.rounds.events import Ended, Event, Failed, Judged, Landed, Overtaken, Staged
from omniray.coordinator.rounds.fairness import RoundLimits
from omniray.engine.base.errors import (
    BranchGone,
    Fenced,
    GraphGone,
    InputError,
    NotFound,
    OmnirayError,
    PayloadMismatch,
    SchemaChanged,
    StorageError,
    TableDrift,
    Withdrawn,
)
from omniray.engine.commit.attempt import Attempt, Attempts, commit_of, commit_time_us
from omniray.engine.commit.first_outcome import first_outcome
from omniray.engine.commit.staging import Base, Cold, Stager, Taken, drifted
from omniray.engine.history.lineage import LandedCommit
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.history.withdrawals import Withdrawals
from omniray.engine.judge.resolution import refuse_swept
from omniray.engine.line.commit_object import CommitObject, Fate, Remark, landed_in
from omniray.engine.line.line_end import Tip, refuse_closed
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.writes.lease import as_announced
from omniray.engine.writes.write_requests import Header, Request

log = logging.getLogger("omniray")


class Queues(Reader, Stager, Protocol):
    """The owners of the table queues, in this process or in Ray actors."""


@dataclass(slots=True)
class Round:
    """A round and the results of its steps so far."""

    number: int
    asked: tuple[Request | Remark, ...]
    base: CommitObject
    began: float
    judged: JudgedRound = field(default_factory=JudgedRound)
    attempt: Attempt | None = None
    is_void: bool = False

    @property
    def requests(self) -> list[Request]:
        return [one for one in self.asked if not isinstance(one, Remark)]

    @property
    def remarks(self) -> list[Remark]:
        return [one for one in self.asked if isinstance(one, Remark)]

    def leave(self, unjudged: frozenset[str]) -> None:
        """Leave writes to a later round."""
        if unjudged:
            kept = (one for one in self.asked if isinstance(one, Remark) or one.header.commit_id not in unjudged)
            self.asked = tuple(kept)

    @property
    def ours(self) -> CommitObject | None:
        return None if self.attempt is None else self.attempt.ours


class RoundSteps:
    """Carries out the steps of a publisher's rounds."""

    def __init__(
        self,
        branch: OpenBranch,
        tip: Tip,
        queues: Queues,
        executor: StepExecutor,
        gauges: Gauges,
        on_landed: Callable[[CommitObject, str], None],
        *,
        owner: str,
        limits: RoundLimits,
    ) -> None:
        self._limits = limits
        self._branch, self._tip, self._lineage, self._schema = branch, tip, branch.lineage, branch.schema
        self._queues, self._gauges, self._on_landed, self._owner = queues, gauges, on_landed, owner
        self.attempts = Attempts(branch, queues, executor)
        self.recent = RecentCommits(branch.lineage, tip.newest)
        self._withdrawals = Withdrawals(branch.log, tip.newest)
        self.drifted: dict[str, TableDrift] = {}
        self.finalised_through = 0

    # Judging

    def judge(self, work: Round) -> Event:
        base = work.base
        if base.owner != self._owner:
            return Ended(_fenced(base))
        requests = work.requests
        known = self.recent.known({r.header.commit_id: r.header.fresh for r in requests}, base)
        repeated = {
            r.header.commit_id: _first(r, known[r.header.commit_id]) for r in requests if r.header.commit_id in known
        }
        # Only now: a write that is committed has its first answer, whatever became of the schema since.
        others = [r for r in requests if r.header.commit_id not in repeated]
        stale = {
            r.header.commit_id: _schema_changed(r, self._branch.schema_hash)
            for r in others
            if r.header.schema_hash != self._branch.schema_hash
        }
        answered = {**repeated, **stale, **self._withdrawn(others, work)}
        fresh = [r for r in requests if r.header.commit_id not in answered]
        state = RoundState(self._base(base), self._queues, self._schema)
        try:
            fresh, unfit = self._looked_up(state, fresh)
        except TableDrift as drift:
            blamed = self._asking(fresh, drift.facts.get("table_key", ""))
            return self._unless_fenced(Failed(work.number, drift, blamed))
        judged = judge_round(fresh, state, self._schema, self._limits)
        work.judged = replace(judged, answers={**judged.answers, **answered, **unfit})
        work.leave(judged.unjudged)
        self._gauges.judged(time.perf_counter() - work.began)
        changes = bool(judged.accepted) or bool(work.remarks)
        return Judged(work.number, changes, judged.matched, judged.unjudged)

    def _withdrawn(self, requests: Sequence[Request], work: Round) -> dict[str, WriteAnswer | OmnirayError]:
        """The refusals of writes that were reported as not committed, here, below this round or in it."""
        began = {r.header.commit_id: self._began(r.header) for r in requests}
        self._withdrawals.look_back(*began.values())
        below = dict.fromkeys(work.base.withdrawn, work.base.seq)  # it may not have landed yet
        ours = {commit_id: work.base.seq + 1 for remark in work.remarks for commit_id in remark.withdrawn}
        recorded = {**below, **ours}
        return {
            commit_id: reported(commit_id)
            for commit_id, number in began.items()
            if number < recorded.get(commit_id, 0) or self._withdrawals.voids(commit_id, number)
        }

    def is_withdrawn(self, commit_id: str, began: int) -> bool:
        """Whether what began at a number was reported as not committed since; while no round is under way."""
        number = began or self._withdrawals.earliest
        self._withdrawals.look_back(number)
        return self._withdrawals.voids(commit_id, number)

    def _began(self, header: Header) -> int:
        """The number at which a try began. One that doesn't say it began as early as is known, unless its id is new."""
        return header.began or (0 if header.fresh else self._withdrawals.earliest)

    def _looked_up(
        self, state: RoundState, requests: list[Request]
    ) -> tuple[list[Request], dict[str, WriteAnswer | OmnirayError]]:
        """Look up the ids that judging the requests needs; a request whose look-up hits a bug is refused alone."""
        try:
            state.look_up(requests)
        except OmnirayError:
            raise
        except Exception:
            log.exception("event=look_up_failed writes=%d", len(requests))
        else:
            return requests, {}
        unfit: dict[str, WriteAnswer | OmnirayError] = {}
        for request in requests:
            try:
                state.look_up([request])
            except OmnirayError:
                raise
            except Exception as error:
                unfit[request.header.commit_id] = not_judged(request, error)
        return [request for request in requests if request.header.commit_id not in unfit], unfit

    def _asking(self, requests: Iterable[Request], table_key: str) -> frozenset[str]:
        """The ids of the writes that look up ids in a table."""
        return frozenset(
            request.header.commit_id
            for request in requests
            if any(table_key == key for key, _ in request.ids_asked(self._schema))
        )

    def _base(self, base: CommitObject) -> Base:
        return Base.on(base, self._tip.newest)

    # Staging

    def stage(self, work: Round) -> Event:
        """Phases A and B: put the sidecar and stage the tables, in parallel."""
        began = time.perf_counter()
        if refused := self._refused(work):
            return refused
        accepted = work.judged.accepted
        intents = [SidecarIntent(r.header.commit_id, r.header.author.actor) for r, _ in accepted]
        kind = "Load" if all(r.header.kind == "Load" for r, _ in accepted) else "Mutation"
        work.attempt = attempt = self.attempts.announce(work.base, kind, intents, work.judged.writes)
        if work.is_void:  # discarded before this step began: no later step would clean up what it stages
            return Overtaken(work.number)
        try:
            failures = self.attempts.stage(attempt, self._base(work.base))
        except (GraphGone, BranchGone) as gone:  # a retry can't land either
            self.attempts.give_up(attempt)
            return Ended(gone)
        if attempt.is_void:
            return Overtaken(work.number)
        if failures:
            return self._staging_failed(work, failures)
        at_us = commit_time_us(work.base)
        commits = tuple(
            commit_of(request.header, at_us, resolution.tables, resolution.affected, resolution.rejected)
            for request, resolution in accepted
        )
        through = self.finalised_through
        self.attempts.follow(attempt, commits, finalised_through=through, remarks=work.remarks)
        self._gauges.staged(time.perf_counter() - began)
        return Staged(work.number)

    def _refused(self, work: Round) -> Event | None:
        """The failure of writes that may not be staged: a table drifted, or a sweep may have deleted their files."""
        if drifted_here := self.drifted.keys() & work.judged.writes.keys():
            return self._unless_fenced(_blaming(work, min(drifted_here), self.drifted[min(drifted_here)]))
        for request, resolution in work.judged.accepted:
            commit_id = request.header.commit_id
            tables = as_announced(resolution.tables, commit_id, self._branch.sidecars, work.base)
            try:
                refuse_swept(tables, work.base)
            except StorageError as error:
                return Failed(work.number, error, frozenset({commit_id}))
        return None

    def _staging_failed(self, work: Round, failures: Sequence[Taken | OmnirayError]) -> Event:
        """Decide why a table could not be staged: fenced, drift by a foreign writer, or an error to retry."""
        if taken := [failure for failure in failures if isinstance(failure, Taken)]:
            error = drifted(taken[0].table_key, taken[0].expected)
            return self._unless_fenced(_blaming(work, taken[0].table_key, error))
        if drifts := [failure for failure in failures if isinstance(failure, TableDrift)]:
            return self._unless_fenced(_blaming(work, drifts[0].facts.get("table_key", ""), drifts[0]))
        # Files that a load has brought along and that are unfit now would be so each time.
        if unfit := [one for one in failures if isinstance(one, InputError) and not isinstance(one, NotFound)]:
            return _blaming(work, unfit[0].facts.get("table_key", ""), unfit[0])
        errors = [failure for failure in failures if isinstance(failure, OmnirayError)]
        if all(isinstance(error, Cold) for error in errors):
            return Overtaken(work.number)
        return Failed(work.number, errors[0])

    def _unless_fenced(self, drift: Failed) -> Event:
        """A failure for drift, if the line is still ours.

        To a publisher that was replaced, its successor's versions look foreign, and it never hears of a repair. It
        would refuse writes for ever: with no round that gets as far as the line, it would not find out.
        """
        # On a separate line end: the round below may be in Phase C, which moves the shared one.
        newest = self._tip.another().refresh()
        return drift if newest.owner == self._owner else Ended(_fenced(newest))

    # Committing

    def commit(self, work: Round) -> Event:
        """Phase C."""
        attempt = work.attempt
        assert attempt is not None, "only a staged round is committed"
        began = time.perf_counter()
        fate = self.attempts.put(attempt, self._tip)
        if fate is Fate.FENCED:
            return Ended(_fenced(self._tip.refresh()), settled=work.number)
        if fate is not Fate.LANDED:
            self._tip.refresh()
            return Overtaken(work.number)
        ours = self._tip.newest
        self.notice(ours, ours.op_id)
        put_s, round_s = time.perf_counter() - began, time.perf_counter() - work.began
        self._gauges.landed(len(ours.commits), put_s, round_s)
        log.info(
            "event=round branch=%s op=%s epoch=%d seq=%d commits=%d refused=%d tables=%d ms=%.1f",
            self._branch.branch, ours.op_id, ours.epoch, ours.seq, len(ours.commits),
            len(work.judged.answers), len(attempt.staged), round_s * 1e3,
        )  # fmt: skip
        return Landed(work.number)

    def notice(self, landed: CommitObject, operation_id: str | None = None) -> None:
        """Remember what has landed, and have its Phase D begun."""
        self.recent.advance(landed)
        self._withdrawals.advance(landed)
        self._on_landed(landed, operation_id or landed.op_id)

    def confirm(self, work: Round) -> Event:
        newest = self._tip.refresh()
        if newest.owner != self._owner:
            return Ended(_fenced(newest))
        return Landed(work.number) if newest.op_id == work.base.op_id else Overtaken(work.number)

    def is_in(self, closed: CommitObject, work: Round) -> bool:
        """Whether a round's object is in a line that this object has closed; it never will be if it is not."""
        assert work.ours is not None, "an object that is being put"
        line = self._branch.log.down_to(closed, work.ours.seq)
        if line[-1].seq > work.ours.seq:
            raise StorageError(f"object {work.ours.seq} of the line {closed.line} was pruned")
        return landed_in(line, work.ours)

    # Giving up

    def discard(self, work: Round) -> None:
        """Drop what a void round staged: its table handles show rows that were never committed."""
        work.is_void = True  # first, because its staging may be about to begin
        if work.attempt is not None:
            self.attempts.give_up(work.attempt)


def _first(request: Request, found: LandedCommit) -> WriteAnswer | OmnirayError:
    """The answer to a write that was already committed."""
    try:
        return WriteAnswer(first_outcome(*found, request.header.payload_hash))
    except PayloadMismatch as mismatch:
        return mismatch


def reported(commit_id: str) -> Withdrawn:
    return Withdrawn(
        f"write {commit_id} was withdrawn: outcome() reported it as not committed. Nothing was written; submit it "
        "again",
        txn_id=commit_id, reported=True,
    )  # fmt: skip


def _schema_changed(request: Request, schema_hash: str) -> SchemaChanged:
    return SchemaChanged(
        "the client's schema is not the one of this graph; connect again to read the current one",
        client=request.header.schema_hash, graph=schema_hash,
    )  # fmt: skip


def _blaming(work: Round, table_key: str, error: OmnirayError) -> Failed:
    """Blame the writes that touch this table; what is wrong with another one is reported in the next round."""
    touching = (r.header.commit_id for r, resolution in work.judged.accepted if table_key in resolution.tables)
    return Failed(work.number, error, frozenset(touching))


def _fenced(newest: CommitObject) -> Fenced | BranchGone:
    """The error for a publisher that does not own the line any more: somebody else does, or it was closed."""
    try:
        refuse_closed(newest)
    except BranchGone as gone:
        return gone
    return Fenced(
        f"the branch was taken over in epoch {newest.epoch}: this publisher's life has ended, and what it had not "
        "answered may be sent again with the same id",
        epoch=newest.epoch, owner=newest.owner,
    )  # fmt: skip
