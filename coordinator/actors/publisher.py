"""The publisher of one branch: takes writes, makes rounds of them, and commits each round as one object of the line.

It carries out what `rounds/machine.py` decides: every instruction is a job of its executor, and the job's result is the
next event. It owns the line: it takes the line over when it begins, and ends when another owner takes the line over.
Nothing that it holds in memory is needed after its death.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from omniray.coordinator.actors.executor import StepExecutor, ThreadedExecutor
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.steps import Queues, Round, RoundSteps, reported
from omniray.coordinator.rounds.admission import Limits
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.coordinator.rounds.events import (
    Abandoned,
    Commit,
    Confirm,
    Discard,
    Ended,
    Event,
    Failed,
    Freed,
    Gather,
    Gathered,
    Held,
    Instruction,
    Judge,
    Overtaken,
    Pause,
    Refuse,
    Release,
    Reserved,
    Resumed,
    Stage,
    Submitted,
    Unreserved,
)
from omniray.coordinator.rounds.fairness import Ticket
from omniray.coordinator.rounds.machine import Rounds
from omniray.engine.base.errors import (
    BranchGone,
    GraphGone,
    Moved,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    PayloadMismatch,
    TableDrift,
)
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.staging import Cold
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.resolution import Resolution, WriteResult
from omniray.engine.line.commit_object import CommitObject, Remark
from omniray.engine.line.line_end import Tip
from omniray.engine.writes.write_requests import PreparedRequest, Request

log = logging.getLogger("omniray")

GATHER_SHARE = 0.25
GATHER_S_MIN, GATHER_S_MAX = 0.004, 0.1
STANDSTILL_LOOK_S = 5.0
STANDSTILL_LOOKS_MAX = 12
HELD_LOOK_S = 0.005


@dataclass(slots=True)
class _Waiting:
    """A write or remark whose caller waits for the answer."""

    what: Request | Remark
    answer: Future[WriteAnswer] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.answer.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel its write


@dataclass(slots=True)
class _Standstill:
    """The prepared load whose tables are reserved, and whether its client was heard from since the last look."""

    commit_id: str
    looks: int = 0
    heard: bool = False


class Publisher:
    """Commits the writes of all clients on one branch. Threads may share it."""

    def __init__(
        self,
        branch: OpenBranch,
        tip: Tip,
        queues: Queues,
        on_landed: Callable[[CommitObject, str], None],
        *,
        owner: str,
        on_ended: Callable[[OmnirayError], None] = lambda error: None,
        limits: Limits | None = None,
        gauges: Gauges | None = None,
        executor: StepExecutor | None = None,
    ) -> None:
        self._tip, self._on_ended = tip, on_ended
        self._lock, self._holding = threading.RLock(), threading.Lock()
        self._executor = executor or ThreadedExecutor()
        self.gauges = gauges or Gauges()
        limits = limits or Limits()
        self._rounds = Rounds(limits, gathers=True)
        self.steps = RoundSteps(
            branch, tip, queues, self._executor, self.gauges, on_landed, owner=owner, limits=limits.round
        )
        self._waiting: dict[str, _Waiting] = {}
        self._under_way: dict[int, Round] = {}
        self._standstill: _Standstill | None = None
        self._is_resting = False

    # From outside

    def submit(self, request: Request) -> Future[WriteAnswer]:
        """Take a write; the future is done when its answer may be sent. A write already under way shares its future."""
        header = request.header
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
        """Record a remark in the line, with the next round or as a round of its own."""
        with self._lock:
            waiting = self._waiting[remark.remark_id] = _Waiting(remark)
            self._dispatch(Submitted(Ticket(remark.remark_id, "", 0, 0, tables=frozenset())))
            return waiting.answer

    def hold(self, commit_id: str) -> None:
        """The client of a prepared load that others wait for is still judging it."""
        with self._lock:
            if self._standstill is not None and self._standstill.commit_id == commit_id:
                self._standstill.heard = True

    def abandon(self, commit_id: str) -> None:
        """The caller of a write has stopped waiting: drop the write if it is not in a round yet."""
        with self._lock:
            self._dispatch(Abandoned(commit_id))

    def finalised(self, through: int, drifted: dict[str, TableDrift]) -> None:
        """Phase D is finished up to a number of the line, except for tables that a foreign writer wrote to."""
        with self._lock:
            self.steps.finalised_through = max(self.steps.finalised_through, through)
            self.steps.drifted = drifted

    def is_committed(self, commit_id: str) -> bool:
        """Whether a write is in the line; an old one is looked up in storage."""
        return self.steps.recent.is_committed(commit_id, self._tip.newest)

    def settle(self, commit_id: str) -> bool:
        """Whether a write was committed; if not, no try of it that began before this answer can be.

        A try that waits is given up, one that is in a round is waited for. Raises `OutcomeUnknown` if this publisher
        ends meanwhile: then nobody has settled it.
        """
        if (under_way := self.under_way(commit_id)) is not None:
            self.abandon(commit_id)
            with contextlib.suppress(OmnirayError):
                under_way.result()
        if not self.is_committed(commit_id):
            try:
                self.remark(Remark(new_ulid(), withdrawn=(commit_id,))).result()
            except OutcomeUnknown as error:  # it names the remark, of which the caller knows nothing
                raise _unknown(commit_id) from error
        return self.is_committed(commit_id)

    def refuse_withdrawn(self, commit_id: str, began: int) -> None:
        """Raise if what the holder of the line is about to commit was reported as not committed since it began."""
        if self.steps.is_withdrawn(commit_id, began) and not self.is_committed(commit_id):
            raise reported(commit_id)

    def under_way(self, commit_id: str) -> Future[WriteAnswer] | None:
        waiting = self._waiting.get(commit_id)
        return None if waiting is None else waiting.answer

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep rounds from beginning, once those under way are through, while the caller extends the line itself."""
        with self._holding:
            self._dispatch(Held())
            try:
                while not self._rounds.is_at_rest:
                    time.sleep(HELD_LOOK_S)
                yield
            finally:
                self._dispatch(Freed())

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
        """Answer every waiting write with an error, and take no more writes."""
        with self._lock:
            self._dispatch(Ended(error))

    def end_closed(self, closed: CommitObject, gone: BranchGone) -> None:
        """End because this object has closed the line: what is being put is in the line by now, or never will be."""
        with self._lock:
            number = self._rounds.putting
            work = None if number is None else self._under_way[number]
        ended = Ended(gone)
        if work is not None:
            with contextlib.suppress(OmnirayError):  # else the fate of its writes stays open
                ended = Ended(gone, settled=number, landed=self.steps.is_in(closed, work))
        self._dispatch(ended)

    def close(self) -> None:
        self._executor.close()

    def _join(self, known: _Waiting, request: Request) -> Future[WriteAnswer]:
        """The future of the first try, which is still under way, if it is the same write."""
        joined: Future[WriteAnswer] = known.answer
        # A write whose id was generated has no hash: no other caller can know the id.
        first_hash = "" if isinstance(known.what, Remark) else known.what.header.payload_hash
        if isinstance(known.what, Remark) or first_hash not in ("", request.header.payload_hash):
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
                asked = tuple(self._waiting[ticket.intent_id].what for ticket in tickets)
                below = self._under_way[on].ours if on is not None else None
                round = Round(number, asked, below or self._tip.newest, time.perf_counter())
                self._under_way[number] = round
                self._start(self.steps.judge, round)
            case Stage(number):
                self._start(self.steps.stage, self._under_way[number])
            case Commit(number):
                self._start(self.steps.commit, self._under_way[number])
            case Confirm(number):
                self._start(self.steps.confirm, self._under_way[number])
            case Release(number):
                self._release(self._under_way.pop(number))
            case Discard(number):
                self.steps.discard(self._under_way.pop(number))
            case Refuse(intent_id, error, overload):
                refusal = error or _overloaded(overload, self.gauges.retry_after_s)
                self._answer(intent_id, _unknown(intent_id) if isinstance(error, OutcomeUnknown) else refusal)
            case Pause(seconds):
                self._later(seconds, Resumed())
            case Gather(number):
                moment_s = GATHER_SHARE * self.gauges.last_round_s
                self._later(min(max(moment_s, GATHER_S_MIN), GATHER_S_MAX), Gathered(number))

    def _later(self, seconds: float, event: Event) -> None:
        self._executor.later(seconds, lambda: self._dispatch(event))

    def _start(self, step: Callable[[Round], Event], round: Round) -> None:
        def run() -> None:
            try:
                event = step(round)
            except (OutcomeUnknown, GraphGone, BranchGone) as error:  # a retry can't land either
                event = Ended(error)
            except Cold:
                event = Overtaken(round.number)
            except OmnirayError as error:
                event = Failed(round.number, error)
            except BaseException as error:  # a bug: answer the waiting callers, or they would wait for ever
                log.exception("event=publisher_failed round=%d", round.number)
                event = Ended(_bug(error))
            try:
                self._dispatch(event)
            except BaseException as error:
                log.exception("event=publisher_failed round=%d", round.number)
                self._dispatch(Ended(_bug(error)))

        self._executor.submit(run)

    # Answering

    def _release(self, round: Round) -> None:
        for request, resolution in round.judged.accepted:
            self._answer(request.header.commit_id, _accepted(request, resolution, round.ours))
        for commit_id, answer in round.judged.answers.items():
            if isinstance(answer, Moved):
                self._let_stand_still(commit_id)
            self._answer(commit_id, answer)
        for remark in round.remarks:
            self._answer(remark.remark_id, WriteAnswer(WriteResult(None, 0, 0)))

    def _let_stand_still(self, commit_id: str) -> None:
        """A prepared load was overtaken: reserve its tables while it is judged again, or it might never land.

        For one load at a time, as long as its client is heard from, and no longer than it is left alone afterwards: so
        half of the time is everybody's, whatever clients do.
        """
        request = self._waiting[commit_id].what
        if not isinstance(request, PreparedRequest):
            return
        if self._standstill is None and not self._is_resting:
            self._standstill = _Standstill(commit_id)
            self._dispatch(Reserved(commit_id, frozenset(request.judged_on)))
            self._executor.later(STANDSTILL_LOOK_S, partial(self._look_at, self._standstill))
        else:
            self.hold(commit_id)

    def _look_at(self, standstill: _Standstill) -> None:
        with self._lock:
            if self._standstill is not standstill:
                return
            standstill.looks += 1
            if standstill.heard and standstill.looks < STANDSTILL_LOOKS_MAX:
                standstill.heard = False
                self._executor.later(STANDSTILL_LOOK_S, partial(self._look_at, standstill))
            else:
                self._end_standstill(standstill)

    def _end_standstill(self, standstill: _Standstill) -> None:
        self._standstill, self._is_resting = None, True
        self._dispatch(Unreserved(standstill.commit_id))
        self._executor.later((standstill.looks + 1) * STANDSTILL_LOOK_S, self._rested)

    def _rested(self) -> None:
        self._is_resting = False

    def _answer(self, intent_id: str, answer: WriteAnswer | OmnirayError) -> None:
        future = self._waiting.pop(intent_id).answer
        standstill = self._standstill
        if standstill is not None and standstill.commit_id == intent_id and not isinstance(answer, Moved):
            self._end_standstill(standstill)
        if isinstance(answer, OmnirayError):
            self.gauges.refused(answer.kind)
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _accepted(request: Request, resolution: Resolution, landed: CommitObject | None) -> WriteAnswer:
    assert landed is not None, "a round is released when its object is in the line"
    versions = {key: pin.version for key, pin in landed.introduced().items() if key in resolution.tables}
    affected = resolution.affected
    result = WriteResult(
        request.header.commit_id, affected.nodes, affected.edges, resolution.rejected, versions=versions
    )
    return WriteAnswer(result, resolution.unfit)


def _unknown(commit_id: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the publisher ended while write {commit_id} was under way: it may have landed; send it again with this id",
        txn_id=commit_id,
    )


def _bug(error: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(f"a bug in omniray ended the publisher: {error!r}", txn_id="")


def _overloaded(reason: str, retry_after_s: float) -> Overloaded:
    return Overloaded(
        f"too much at once: {reason}; try again in {retry_after_s:.1f} s, or send less at a time",
        retry_after_s=retry_after_s,
    )


def _other_payload(commit_id: str) -> PayloadMismatch:
    return PayloadMismatch(
        f"transaction {commit_id} is under way with other data; use a new id for another write", txn_id=commit_id
    )
