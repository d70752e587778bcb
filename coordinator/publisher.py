"""The publisher of one branch: takes writes, makes rounds of them, and commits each round as one object of the line.

It carries out what `rounds.py` decides: every instruction is a job of a thread, and what comes of it is the next event.
It owns the line: it takes it over when it begins, and its life ends when somebody else does. Nothing that it holds in
memory is needed after its death.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from omniray.coordinator.conflicts import JudgedRound, WriteAnswer, judge_round
from omniray.coordinator.facts import Reader, RoundState
from omniray.coordinator.fairness import Ticket
from omniray.coordinator.gauges import Gauges
from omniray.coordinator.rounds import (
    Abandoned,
    Commit,
    Confirm,
    Discard,
    Ended,
    Event,
    Failed,
    Gather,
    Gathered,
    Instruction,
    Judge,
    Judged,
    Landed,
    Limits,
    Overtaken,
    Pause,
    Refuse,
    Release,
    Reserved,
    Resumed,
    Rounds,
    Stage,
    Staged,
    Submitted,
    Unreserved,
)
from omniray.coordinator.table_queues import Base, Cold, StagedPin, TableStage, Taken
from omniray.engine.errors import (
    Fenced,
    Moved,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    PayloadMismatch,
    SchemaMismatch,
    StorageError,
    TableDrift,
)
from omniray.engine.failpoints import Point, reach
from omniray.engine.finalise import DRIFT_ADVICE
from omniray.engine.line import Commit as LineCommit
from omniray.engine.line import CommitObject, Fate, Recovery, follow
from omniray.engine.lineage import Lineage
from omniray.engine.process import this_process
from omniray.engine.request import PreparedRequest, Request
from omniray.engine.schema import Schema
from omniray.engine.sidecar import Sidecar, SidecarIntent, Sidecars
from omniray.engine.staging import announce
from omniray.engine.store import ObjectStore
from omniray.engine.tip import Tip
from omniray.engine.write import Resolution, WriteResult, first_outcome, refuse_swept

log = logging.getLogger("omniray")

THREADS = 8
GATHER_SHARE = 0.25
GATHER_S_MAX = 0.05
STANDSTILL_S = 60.0


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
class _Waiting:
    """A write or remark that somebody waits for."""

    what: Request | Remark
    answer: Future[WriteAnswer] = field(default_factory=Future)


@dataclass(slots=True)
class _Work:
    """What a round has come to so far."""

    number: int
    waiting: tuple[_Waiting, ...]
    base: CommitObject
    began: float
    judged: JudgedRound = field(default_factory=JudgedRound)
    sidecar: Sidecar | None = None
    staged: dict[str, StagedPin] = field(default_factory=dict)
    ours: CommitObject | None = None
    is_void: bool = False


class Publisher:
    """Commits the writes of everybody on one branch. Threads may share it."""

    def __init__(
        self,
        store: ObjectStore,
        tip: Tip,
        lineage: Lineage,
        sidecars: Sidecars,
        schema: Schema,
        schema_hash: str,
        queues: Queues,
        on_landed: Callable[[CommitObject, str], None],
        *,
        branch: str,
        owner: str,
        on_ended: Callable[[OmnirayError], None] = lambda error: None,
        limits: Limits | None = None,
        gauges: Gauges | None = None,
    ) -> None:
        self._store, self._tip, self._lineage, self._sidecars = store, tip, lineage, sidecars
        self._schema, self._schema_hash, self._queues, self._on_landed = schema, schema_hash, queues, on_landed
        self._branch, self._owner, self._on_ended = branch, owner, on_ended
        self._rounds = Rounds(limits, gathers=True)
        self._process = this_process()
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-publish")
        self._waiting: dict[str, _Waiting] = {}
        self._works: dict[int, _Work] = {}
        self._standing_still: set[str] = set()
        self._committed = set(lineage.commit_ids(tip.newest))
        self._drifted: dict[str, TableDrift] = {}
        self._finalised_through = 0
        self.gauges = gauges or Gauges()

    # From outside

    def submit(self, request: Request) -> Future[WriteAnswer]:
        """Take a write; the future is done when its answer may leave. A write that is under way is joined."""
        header = request.header
        if header.schema_hash != self._schema_hash:
            raise SchemaMismatch(
                "the client's schema is not the one of this graph; connect again to read the current one",
                client=header.schema_hash, graph=self._schema_hash,
            )  # fmt: skip
        with self._lock:
            known = self._waiting.get(header.commit_id)
            if known is not None:
                return self._join(known, request)
            waiting = self._waiting[header.commit_id] = _Waiting(request)
            ticket = Ticket(
                header.commit_id, header.author.tenant, request.rows, request.size_bytes, request.alone, request.touched
            )
            self._dispatch(Submitted(ticket))
            return waiting.answer

    def remark(self, remark: Remark) -> Future[WriteAnswer]:
        """Record something in the line, with the next round or as one."""
        with self._lock:
            waiting = self._waiting[remark.remark_id] = _Waiting(remark)
            self._dispatch(Submitted(Ticket(remark.remark_id, "", 0, 0, tables=frozenset())))
            return waiting.answer

    def abandon(self, commit_id: str) -> None:
        """Nobody waits for a write any more: if it is not in a round yet, it never will be."""
        with self._lock:
            self._dispatch(Abandoned(commit_id))

    def finalised(self, through: int, drifted: dict[str, TableDrift]) -> None:
        """Phase D is through up to a number of the line, but for tables that somebody else wrote to."""
        with self._lock:
            self._finalised_through = max(self._finalised_through, through)
            self._drifted = drifted

    def is_committed(self, commit_id: str) -> bool:
        """Whether a write is in the line, as far as this owner of it knows, which is all there is."""
        return commit_id in self._committed

    def under_way(self, commit_id: str) -> Future[WriteAnswer] | None:
        waiting = self._waiting.get(commit_id)
        return None if waiting is None else waiting.answer

    @property
    def newest(self) -> CommitObject:
        return self._tip.newest

    @property
    def waiting(self) -> int:
        return self._rounds.waiting

    @property
    def is_idle(self) -> bool:
        return self._rounds.is_idle

    def end(self, error: OmnirayError) -> None:
        """Answer everybody with an error, and take nothing more."""
        with self._lock:
            self._dispatch(Ended(error))

    def close(self) -> None:
        self._pool.shutdown()

    def _join(self, known: _Waiting, request: Request) -> Future[WriteAnswer]:
        """The answer of the first try that is still under way, if it is the same write."""
        joined: Future[WriteAnswer] = known.answer
        if isinstance(known.what, Remark) or known.what.header.payload_hash != request.header.payload_hash:
            joined = Future()
            joined.set_exception(_other_payload(request.header.commit_id))
        return joined

    # Carrying out

    def _dispatch(self, event: Event) -> None:
        with self._lock:
            for instruction in self._rounds.handle(event):
                self._carry_out(instruction)
        if isinstance(event, Ended):
            self._on_ended(event.error)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Judge(number, tickets, on):
                waiting = tuple(self._waiting[ticket.intent_id] for ticket in tickets)
                below = self._works[on].ours if on is not None else None
                work = self._works[number] = _Work(number, waiting, below or self._tip.newest, time.perf_counter())
                self._start(number, self._judge, work)
            case Stage(number):
                self._start(number, self._stage, self._works[number])
            case Commit(number):
                self._start(number, self._commit, self._works[number])
            case Confirm(number):
                self._start(number, self._confirm, self._works[number])
            case Release(number):
                self._release(self._works.pop(number))
            case Discard(number):
                self._discard(self._works.pop(number, None))
            case Refuse(intent_id, error, overload):
                self._answer(intent_id, error or _overloaded(overload, self.gauges.retry_after_s))
            case Pause(seconds):
                self._later(seconds, Resumed())
            case Gather(number):
                self._later(min(GATHER_SHARE * self.gauges.last_round_s, GATHER_S_MAX), Gathered(number))

    def _later(self, seconds: float, event: Event) -> None:
        timer = threading.Timer(seconds, self._dispatch, (event,))
        timer.daemon = True
        timer.start()

    def _start(self, number: int, job: Callable[..., Event], *arguments: object) -> None:
        def run() -> None:
            try:
                event = job(*arguments)
            except OutcomeUnknown as error:
                event = Ended(error)
            except OmnirayError as error:
                event = Failed(number, error)
            except BaseException as error:  # a bug: tell those who wait, rather than let them wait for ever
                log.exception("event=publisher_failed round=%d", number)
                event = Ended(StorageError(f"a bug in omniray ended the publisher: {error!r}; nothing more is known"))
            self._dispatch(event)

        self._pool.submit(run)

    # Judging

    def _judge(self, work: _Work) -> Event:
        base = work.base
        if base.owner != self._owner:
            return Ended(_fenced(base))
        requests = [one.what for one in work.waiting if not isinstance(one.what, Remark)]
        repeated = {r.header.commit_id: self._first_outcome(r, base) for r in requests if self._is_known(r)}
        fresh = [r for r in requests if r.header.commit_id not in repeated]
        state = RoundState(self._base(base), self._queues)
        state.look_up(fresh, self._schema)
        judged = judge_round(fresh, state, self._schema)
        work.judged = replace(judged, answers={**judged.answers, **repeated})
        self.gauges.judged(time.perf_counter() - work.began)
        return Judged(work.number, changes=bool(judged.accepted) or len(requests) < len(work.waiting))

    def _base(self, base: CommitObject) -> Base:
        return Base(base.pins, self._tip.newest.seq)

    def _is_known(self, request: Request) -> bool:
        return request.header.commit_id in self._committed

    def _first_outcome(self, request: Request, base: CommitObject) -> WriteAnswer | OmnirayError:
        found = self._lineage.find(request.header.commit_id, base)
        if found is None:
            raise StorageError(f"commit {request.header.commit_id} is known and not in the lineage; try again")
        try:
            return WriteAnswer(first_outcome(*found, request.header.payload_hash))
        except PayloadMismatch as mismatch:
            return mismatch

    # Staging

    def _stage(self, work: _Work) -> Event:
        """Phases A and B: the sidecar beside the tables."""
        began = time.perf_counter()
        writes = work.judged.writes
        if refused := self._refused(work):
            return refused
        intents = [SidecarIntent(r.header.commit_id, r.header.author.actor) for r, _ in work.judged.accepted]
        kind = "Load" if all(r.header.kind == "Load" for r, _ in work.judged.accepted) else "Mutation"
        work.sidecar = announce(work.base, self._branch, self._process, kind, intents, self._schema, writes)
        announced = self._pool.submit(self._announce, work.sidecar) if writes else None
        stages = [TableStage(table, writes[table.table_key]) for table in work.sidecar.tables]
        try:
            outcomes = self._queues.stage(self._base(work.base), stages) if stages else []
        finally:  # a sidecar that is put after the round was cleared away would be nobody's
            if announced is not None:
                announced.result()
        for stage, outcome in zip(stages, outcomes, strict=True):
            if isinstance(outcome, StagedPin):
                work.staged[stage.announced.table_key] = outcome
        if failures := [outcome for outcome in outcomes if not isinstance(outcome, StagedPin)]:
            return self._staging_failed(work, failures)
        with self._lock:
            if work.is_void:
                self._clear_away(work)
            work.ours = self._object(work)
        self.gauges.staged(time.perf_counter() - began)
        return Staged(work.number)

    def _announce(self, sidecar: Sidecar) -> None:
        reach(Point.A_BEFORE_SIDECAR)
        self._sidecars.put(sidecar)
        reach(Point.A_AFTER_SIDECAR)

    def _refused(self, work: _Work) -> Failed | None:
        """Writes that may not be staged: on tables that drifted, or with files that a sweep may have taken."""
        drifted = self._drifted.keys() & work.judged.writes.keys()
        if drifted:
            return Failed(work.number, self._drifted[min(drifted)], _touching(work, drifted))
        try:
            refuse_swept(work.judged.writes, work.base)
        except StorageError as error:
            return Failed(work.number, error, frozenset(r.header.commit_id for r, _ in work.judged.accepted))
        return None

    def _staging_failed(self, work: _Work, failures: Sequence[Taken | OmnirayError]) -> Event:
        """Say whose fault it is that a table could not be staged: a foreign writer's, or nobody's."""
        taken = [failure for failure in failures if isinstance(failure, Taken)]
        if taken and self._tip.refresh().owner != self._owner:
            return Ended(_fenced(self._tip.newest))
        if taken:
            error: OmnirayError = TableDrift(
                f"{taken[0].table_key} was changed by something other than omniray: its next version should be "
                f"{taken[0].expected} and that is taken; {DRIFT_ADVICE}",
                table_key=taken[0].table_key, expected=taken[0].expected,
            )  # fmt: skip
            return Failed(work.number, error, _touching(work, {one.table_key for one in taken}))
        errors = [failure for failure in failures if isinstance(failure, OmnirayError)]
        if all(isinstance(error, Cold) for error in errors):
            return Overtaken(work.number)
        return Failed(work.number, errors[0])

    def _object(self, work: _Work) -> CommitObject:
        remarks = [one.what for one in work.waiting if isinstance(one.what, Remark)]
        at_us = max(time.time_ns() // 1000, work.base.head_at_us)
        assert work.sidecar is not None, "an object is made of what was staged"
        ours = follow(
            work.base,
            op_id=work.sidecar.operation_id,
            changed={key: staged.pin for key, staged in work.staged.items()},
            commits=tuple(_line_commit(request, resolution, at_us) for request, resolution in work.judged.accepted),
            recoveries=tuple(recovery for remark in remarks for recovery in remark.recoveries),
            finalised_through=self._finalised_through,
        )
        swept = max((remark.swept_before_us for remark in remarks), default=0)
        return replace(ours, swept_before_us=max(ours.swept_before_us, swept))

    # Committing

    def _commit(self, work: _Work) -> Event:
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
        self._committed.update(commit.commit_id for commit in work.ours.commits)
        self._on_landed(work.ours, work.ours.op_id)
        put_s, round_s = time.perf_counter() - began, time.perf_counter() - work.began
        self.gauges.landed(len(work.ours.commits), put_s, round_s)
        log.info(
            "event=round branch=%s op=%s epoch=%d seq=%d commits=%d refused=%d tables=%d ms=%.1f",
            self._branch, work.ours.op_id, work.ours.epoch, work.ours.seq, len(work.ours.commits),
            len(work.judged.answers), len(work.staged), round_s * 1e3,
        )  # fmt: skip
        return Landed(work.number)

    def _confirm(self, work: _Work) -> Event:
        newest = self._tip.refresh()
        if newest.owner != self._owner:
            return Ended(_fenced(newest))
        return Landed(work.number) if newest.op_id == work.base.op_id else Overtaken(work.number)

    # Answering

    def _release(self, work: _Work) -> None:
        for request, resolution in work.judged.accepted:
            self._answer(request.header.commit_id, _accepted(request, resolution, work.ours))
        for commit_id, answer in work.judged.answers.items():
            if isinstance(answer, Moved):
                self._let_stand_still(commit_id)
            self._answer(commit_id, answer)
        for one in work.waiting:
            if isinstance(one.what, Remark):
                self._answer(one.what.remark_id, WriteAnswer(WriteResult(None, 0, 0)))

    def _let_stand_still(self, commit_id: str) -> None:
        """A prepared load was overtaken: while it is judged again, its tables wait for it, or it might never land."""
        request = self._waiting[commit_id].what
        if isinstance(request, PreparedRequest) and commit_id not in self._standing_still:
            self._standing_still.add(commit_id)
            self._dispatch(Reserved(commit_id, frozenset(request.judged_on)))
            self._later(STANDSTILL_S, Unreserved(commit_id))

    def _answer(self, intent_id: str, answer: WriteAnswer | OmnirayError) -> None:
        future = self._waiting.pop(intent_id).answer
        if intent_id in self._standing_still and not isinstance(answer, Moved):
            self._standing_still.discard(intent_id)
            self._dispatch(Unreserved(intent_id))
        if isinstance(answer, OmnirayError):
            self.gauges.refused(answer.kind)
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _discard(self, work: _Work | None) -> None:
        """A round came to nothing: its handles show rows that never happened."""
        if work is None:
            return
        work.is_void = True
        self._queues.drop(list(work.judged.writes))
        if work.sidecar is not None:
            self._clear_away(work)

    def _clear_away(self, work: _Work) -> None:
        """Delete what a void round staged; what can't be deleted now is the next recovery's."""
        files = [file for staged in work.staged.values() for file in staged.files]
        if work.sidecar is not None:
            files.append(self._sidecars.path(work.sidecar.operation_id))
        self._pool.submit(self._delete, files)

    def _delete(self, files: list[str]) -> None:
        try:
            self._store.delete_all(files)
        except StorageError as error:
            log.warning("event=discard_failed error=%s", error)


def _accepted(request: Request, resolution: Resolution, landed: CommitObject | None) -> WriteAnswer:
    assert landed is not None, "a round is released when its object is in the line"
    versions = {key: pin.version for key, pin in landed.introduced().items() if key in resolution.tables}
    affected = resolution.affected
    result = WriteResult(
        request.header.commit_id, affected.nodes, affected.edges, resolution.rejected, versions=versions
    )
    return WriteAnswer(result, resolution.unfit)


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


def _touching(work: _Work, tables: set[str]) -> frozenset[str]:
    return frozenset(r.header.commit_id for r, resolution in work.judged.accepted if tables & resolution.tables.keys())


def _fenced(newest: CommitObject) -> Fenced:
    return Fenced(
        f"the branch was taken over in epoch {newest.epoch}: this publisher's life has ended, and what it had not "
        "answered may be sent again with the same id",
        epoch=newest.epoch, owner=newest.owner,
    )  # fmt: skip


def _overloaded(reason: str, retry_after_s: float) -> Overloaded:
    return Overloaded(
        f"too much at once: {reason}; try again in {retry_after_s:.1f} s, or send less at a time",
        retry_after_s=retry_after_s,
    )


def _other_payload(commit_id: str) -> PayloadMismatch:
    return PayloadMismatch(
        f"transaction {commit_id} is under way with other data; use a new id for another write", txn_id=commit_id
    )
