"""One round on its way: resolved, announced, staged, committed. Each step says what has come of it as an event.

Phase A   the round's sidecar, with all of its writes
Phase B   the owners of the queues stage its tables, beside the sidecar
Phase C   one put-if-absent of the commit object
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from omniray.coordinator.actors.executor import StepExecutor
from omniray.coordinator.actors.facts import Reader, RoundState
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.table_queues import Base, Cold, StagedPin, TableStage, Taken
from omniray.coordinator.rounds.conflicts import JudgedRound, WriteAnswer, judge_round
from omniray.coordinator.rounds.events import Ended, Event, Failed, Judged, Landed, Overtaken, Staged
from omniray.engine.base.errors import (
    Fenced,
    OmnirayError,
    PayloadMismatch,
    StorageError,
    TableDrift,
)
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import this_process
from omniray.engine.commit.first_outcome import first_outcome
from omniray.engine.commit.staging import announce
from omniray.engine.history.lineage import Lineage
from omniray.engine.judge.resolution import Resolution, refuse_swept
from omniray.engine.line.commit_object import Commit as LineCommit
from omniray.engine.line.commit_object import CommitObject, Fate, Recovery, follow
from omniray.engine.line.line_end import Tip
from omniray.engine.line.sidecar import Sidecar, SidecarIntent, Sidecars
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.final_names import DRIFT_ADVICE
from omniray.engine.writes.write_requests import Request

log = logging.getLogger("omniray")


class Queues(Reader, Protocol):
    """The owners of the write queues, wherever they are."""

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[StagedPin | Taken | OmnirayError]: ...

    def drop(self, table_keys: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to be recorded in the line that changes no table; only the publisher may put it there."""

    remark_id: str
    recoveries: tuple[Recovery, ...] = ()
    swept_before_us: int = 0


@dataclass(slots=True)
class Round:
    """What a round has come to so far."""

    number: int
    asked: tuple[Request | Remark, ...]
    base: CommitObject
    began: float
    judged: JudgedRound = field(default_factory=JudgedRound)
    sidecar: Sidecar | None = None
    staged: dict[str, StagedPin] = field(default_factory=dict)
    ours: CommitObject | None = None
    is_void: bool = False

    @property
    def requests(self) -> list[Request]:
        return [one for one in self.asked if not isinstance(one, Remark)]

    @property
    def remarks(self) -> list[Remark]:
        return [one for one in self.asked if isinstance(one, Remark)]


class RoundSteps:
    """The steps of a publisher's rounds. `lock` guards what a step and the publisher both look at."""

    def __init__(
        self,
        store: ObjectStore,
        tip: Tip,
        lineage: Lineage,
        sidecars: Sidecars,
        schema: Schema,
        queues: Queues,
        on_landed: Callable[[CommitObject, str], None],
        executor: StepExecutor,
        lock: threading.RLock,
        gauges: Gauges,
        *,
        branch: str,
        owner: str,
    ) -> None:
        self._store, self._tip, self._lineage, self._sidecars = store, tip, lineage, sidecars
        self._schema, self._queues, self._on_landed = schema, queues, on_landed
        self._executor, self._lock, self._gauges = executor, lock, gauges
        self._branch, self._owner = branch, owner
        self._process = this_process()
        self.committed = set(lineage.commit_ids(tip.newest))
        self.drifted: dict[str, TableDrift] = {}
        self.finalised_through = 0

    # Judging

    def judge(self, work: Round) -> Event:
        base = work.base
        if base.owner != self._owner:
            return Ended(_fenced(base))
        requests = work.requests
        repeated = {r.header.commit_id: self._first_outcome(r, base) for r in requests if self._is_known(r)}
        fresh = [r for r in requests if r.header.commit_id not in repeated]
        state = RoundState(self._base(base), self._queues)
        try:
            state.look_up(fresh, self._schema)
        except TableDrift as drift:
            return Failed(work.number, drift, self._asking(fresh, drift.facts.get("table_key", "")))
        judged = judge_round(fresh, state, self._schema)
        work.judged = replace(judged, answers={**judged.answers, **repeated})
        self._gauges.judged(time.perf_counter() - work.began)
        return Judged(work.number, changes=bool(judged.accepted) or bool(work.remarks))

    def _asking(self, requests: Iterable[Request], table_key: str) -> frozenset[str]:
        """The writes that ask for ids of a table."""
        return frozenset(
            request.header.commit_id
            for request in requests
            if any(table_key == key for key, _ in request.ids_asked(self._schema))
        )

    def _base(self, base: CommitObject) -> Base:
        return Base.on(base, self._tip.newest)

    def _is_known(self, request: Request) -> bool:
        return request.header.commit_id in self.committed

    def _first_outcome(self, request: Request, base: CommitObject) -> WriteAnswer | OmnirayError:
        found = self._lineage.find(request.header.commit_id, base)
        if found is None:
            raise StorageError(f"commit {request.header.commit_id} is known and not in the lineage; try again")
        try:
            return WriteAnswer(first_outcome(*found, request.header.payload_hash))
        except PayloadMismatch as mismatch:
            return mismatch

    # Staging

    def stage(self, work: Round) -> Event:
        """Phases A and B: the sidecar beside the tables."""
        began = time.perf_counter()
        writes = work.judged.writes
        if refused := self._refused(work):
            return refused
        intents = [SidecarIntent(r.header.commit_id, r.header.author.actor) for r, _ in work.judged.accepted]
        kind = "Load" if all(r.header.kind == "Load" for r, _ in work.judged.accepted) else "Mutation"
        work.sidecar = announce(work.base, self._branch, self._process, kind, intents, self._schema, writes)
        announced = self._executor.submit(self._announce, work.sidecar) if writes else None
        stages = [TableStage(table, writes[table.table_key]) for table in work.sidecar.tables]
        outcomes: list[StagedPin | Taken | OmnirayError] = []
        try:
            outcomes = self._queues.stage(self._base(work.base), stages) if stages else []
        finally:  # a sidecar that is put after the round was cleared away would be nobody's
            unannounced = announced.exception() if announced is not None else None
            with self._lock:
                staged = zip(stages, outcomes, strict=False)
                work.staged = {s.announced.table_key: pin for s, pin in staged if isinstance(pin, StagedPin)}
                is_void = work.is_void
            if is_void:  # given up meanwhile: nobody else knows what has been staged since
                self._delete(self._made_for(work))
        if is_void:
            return Overtaken(work.number)
        if unannounced is not None:
            raise unannounced
        if failures := [outcome for outcome in outcomes if not isinstance(outcome, StagedPin)]:
            return self._staging_failed(work, failures)
        work.ours = self._object(work)
        self._gauges.staged(time.perf_counter() - began)
        return Staged(work.number)

    def _announce(self, sidecar: Sidecar) -> None:
        reach(Point.A_BEFORE_SIDECAR)
        self._sidecars.put(sidecar)
        reach(Point.A_AFTER_SIDECAR)

    def _refused(self, work: Round) -> Failed | None:
        """Writes that may not be staged: on tables that drifted, or with files that a sweep may have taken."""
        if drifted := self.drifted.keys() & work.judged.writes.keys():
            return _drifted(work, min(drifted), self.drifted[min(drifted)])
        try:
            refuse_swept(work.judged.writes, work.base)
        except StorageError as error:
            return Failed(work.number, error, frozenset(r.header.commit_id for r, _ in work.judged.accepted))
        return None

    def _staging_failed(self, work: Round, failures: Sequence[Taken | OmnirayError]) -> Event:
        """Say whose fault it is that a table could not be staged: a foreign writer's, or nobody's."""
        taken = [failure for failure in failures if isinstance(failure, Taken)]
        # By a look of its own: the round below may be in Phase C, and knows its place in the line better.
        if taken and (newest := self._tip.another().refresh()).owner != self._owner:
            return Ended(_fenced(newest))
        if taken:
            error = TableDrift(
                f"{taken[0].table_key} was changed by something other than omniray: its next version should be "
                f"{taken[0].expected} and that is taken; {DRIFT_ADVICE}",
                table_key=taken[0].table_key, expected=taken[0].expected,
            )  # fmt: skip
            return _drifted(work, taken[0].table_key, error)
        if drifts := [failure for failure in failures if isinstance(failure, TableDrift)]:
            return _drifted(work, drifts[0].facts.get("table_key", ""), drifts[0])
        errors = [failure for failure in failures if isinstance(failure, OmnirayError)]
        if all(isinstance(error, Cold) for error in errors):
            return Overtaken(work.number)
        return Failed(work.number, errors[0])

    def _object(self, work: Round) -> CommitObject:
        at_us = max(time.time_ns() // 1000, work.base.head_at_us)
        assert work.sidecar is not None, "an object is made of what was staged"
        ours = follow(
            work.base,
            op_id=work.sidecar.operation_id,
            changed={key: staged.pin for key, staged in work.staged.items()},
            commits=tuple(_line_commit(request, resolution, at_us) for request, resolution in work.judged.accepted),
            recoveries=tuple(recovery for remark in work.remarks for recovery in remark.recoveries),
            finalised_through=self.finalised_through,
        )
        swept = max((remark.swept_before_us for remark in work.remarks), default=0)
        return replace(ours, swept_before_us=max(ours.swept_before_us, swept))

    # Committing

    def commit(self, work: Round) -> Event:
        """Phase C."""
        assert work.ours is not None, "only a staged round is committed"
        began = time.perf_counter()
        reach(Point.C_BEFORE_PUT)
        fate = self._tip.put(work.ours)
        reach(Point.C_AFTER_PUT)
        if fate is Fate.FENCED:
            return Ended(_fenced(self._tip.refresh()))
        if fate is not Fate.LANDED:
            self._tip.refresh()
            return Overtaken(work.number)
        self.committed.update(commit.commit_id for commit in work.ours.commits)
        self._on_landed(work.ours, work.ours.op_id)
        put_s, round_s = time.perf_counter() - began, time.perf_counter() - work.began
        self._gauges.landed(len(work.ours.commits), put_s, round_s)
        log.info(
            "event=round branch=%s op=%s epoch=%d seq=%d commits=%d refused=%d tables=%d ms=%.1f",
            self._branch, work.ours.op_id, work.ours.epoch, work.ours.seq, len(work.ours.commits),
            len(work.judged.answers), len(work.staged), round_s * 1e3,
        )  # fmt: skip
        return Landed(work.number)

    def confirm(self, work: Round) -> Event:
        newest = self._tip.refresh()
        if newest.owner != self._owner:
            return Ended(_fenced(newest))
        return Landed(work.number) if newest.op_id == work.base.op_id else Overtaken(work.number)

    # Giving up

    def discard(self, work: Round) -> None:
        """A round came to nothing: its handles show rows that never happened."""
        work.is_void = True
        self._queues.drop(list(work.judged.writes))
        self._executor.submit(self._delete, self._made_for(work))

    def _made_for(self, work: Round) -> list[str]:
        """The files that a round has made for itself alone."""
        files = [file for staged in work.staged.values() for file in staged.files]
        return files if work.sidecar is None else [*files, self._sidecars.path(work.sidecar.operation_id)]

    def _delete(self, files: list[str]) -> None:
        """What can't be deleted now is the next recovery's."""
        try:
            self._store.delete_all(files)
        except StorageError as error:
            log.warning("event=discard_failed error=%s", error)


def _line_commit(request: Request, resolution: Resolution, at_us: int) -> LineCommit:
    header = request.header
    return LineCommit(
        commit_id=header.commit_id,
        kind=header.kind,
        actor=header.author.actor,
        tenant=header.author.tenant,
        at_us=at_us,
        tables=tuple(sorted(resolution.tables)),
        payload_hash=header.payload_hash,
        nodes=resolution.affected.nodes,
        edges=resolution.affected.edges,
        rejected=resolution.rejected,
    )


def _drifted(work: Round, table_key: str, error: TableDrift) -> Failed:
    """Blame the writes that touch this table: whoever touches another one that drifted is told so in the next round."""
    touching = (r.header.commit_id for r, resolution in work.judged.accepted if table_key in resolution.tables)
    return Failed(work.number, error, frozenset(touching))


def _fenced(newest: CommitObject) -> Fenced:
    return Fenced(
        f"the branch was taken over in epoch {newest.epoch}: this publisher's life has ended, and what it had not "
        "answered may be sent again with the same id",
        epoch=newest.epoch, owner=newest.owner,
    )  # fmt: skip
