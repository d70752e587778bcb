"""The rounds of one publisher, as a state machine: events in, instructions out, no I/O and no clock.

Writes gather while a round is under way, and form the next round: a lone write does not wait, and rounds grow with the
load. A round goes

    judging -> staging -> staged -> committing -> through
                                 -> confirming -> through      nothing to commit: a read shows that the base is newest

and the next one begins when this one is staged: it is judged and staged on top of it while this one is committed. Why
that is correct:

- an object is put only when the one before it is known to be ours; if that one is lost, every round on top is void;
- no answer leaves before every object that it was judged on is known to be in the line, refusals included. So the
  answers of a round are released together, when it is through;
- a write of a void round is judged again, in its old order, in a new attempt;
- an unknown outcome ends the publisher: its successor reads the outcome from the line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from omniray.coordinator.rounds.admission import Admission, Holding, Limits
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
    Judged,
    Landed,
    Overtaken,
    Pause,
    Refuse,
    Release,
    Reserved,
    Resumed,
    Stage,
    Staged,
    Submitted,
    Unreserved,
)
from omniray.coordinator.rounds.fairness import ROW_COST, TenantQueue, Ticket
from omniray.engine.base.errors import OmnirayError, OutcomeUnknown, Withdrawn

UNDER_WAY_MAX = 2
CROWD = 2
GATHER_LOOKS_MAX = 8
ATTEMPTS_MAX = 5
PAUSE_S = 0.1
PAUSE_DOUBLINGS_MAX = 6


class _Phase(StrEnum):
    JUDGING = "judging"
    STAGING = "staging"
    STAGED = "staged"
    COMMITTING = "committing"  # or confirming


@dataclass(slots=True)
class _Round:
    number: int
    tickets: tuple[Ticket, ...]
    on: int | None
    phase: _Phase = _Phase.JUDGING
    changes: bool = False


@dataclass(frozen=True, slots=True)
class _Gathering:
    """No round begins until `wanted` writes wait, or no more come; `waiting` is the count at the last look."""

    after_round: int
    wanted: int
    waiting: int
    looks: int = 0


class Rounds:
    """Decides what a publisher does next: `handle` takes one event and returns the instructions to carry out."""

    def __init__(self, limits: Limits | None = None, *, gathers: bool = False) -> None:
        self._limits = limits or Limits()
        self._gathers = gathers
        self._gathering: _Gathering | None = None
        self._reserved: dict[str, frozenset[str]] = {}  # by the write that they are reserved for: tables
        self._queue = TenantQueue()
        self._under_way: list[_Round] = []  # oldest first
        self._admission = Admission(self._limits)
        self._next_number = 1
        self._failures = 0  # in a row
        self._paused = self._is_held = False
        self._ended: OmnirayError | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._under_way

    @property
    def is_at_rest(self) -> bool:
        """Whether no round is under way."""
        return not self._under_way

    @property
    def putting(self) -> int | None:
        """The round whose object is on its way into the line, if there is one."""
        oldest = next(iter(self._under_way), None)
        if oldest is None or oldest.phase is not _Phase.COMMITTING or not oldest.changes:
            return None
        return oldest.number

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case Submitted(ticket):
                return self._submitted(ticket)
            case Abandoned(intent_id):
                return self._abandoned(intent_id)
            case Judged():
                return self._judged(event)
            case Staged(number):
                return self._staged(number)
            case Landed(number):
                return self._landed(number)
            case Overtaken(number):
                return self._overtaken(number)
            case Failed(number, error, blamed):
                return self._failed(number, error, blamed)
            case Ended():
                return self._end(event)
            case Resumed():
                self._paused = False
                return self._begin()
            case Gathered(number):
                return self._gathered(number)
            case Held():
                self._is_held = True
                return []
            case Freed():
                self._is_held = False
                return self._begin()
            case Reserved(intent_id, tables):
                self._reserved[intent_id] = tables
                return []
            case Unreserved(intent_id):
                self._reserved.pop(intent_id, None)
                return self._begin()

    # Events

    def _submitted(self, ticket: Ticket) -> list[Instruction]:
        if self._ended is not None:
            return [Refuse(ticket.intent_id, self._ended)]
        if reason := self._admission.refusal(ticket):
            return [Refuse(ticket.intent_id, None, overload=reason)]
        self._admission.add(ticket)
        self._queue.push(ticket)
        return self._begin()

    def _abandoned(self, intent_id: str) -> list[Instruction]:
        """Remove a waiting write and answer it: a caller that sent it again meanwhile waits for this answer."""
        if (ticket := self._queue.remove(intent_id)) is None:
            return []
        self._admission.remove(ticket)
        return [Refuse(intent_id, _given_up(intent_id))]

    def _judged(self, event: Judged) -> list[Instruction]:
        if (round := self._find(event.round_no)) is None:
            return []
        self._charge(round, event)
        round.changes = event.changes
        if event.changes:
            round.phase = _Phase.STAGING
            return [Stage(round.number)]
        round.phase = _Phase.STAGED
        return self._advance()

    def _charge(self, round: _Round, event: Judged) -> None:
        """Charge what the writes have really met; those that were not judged cost nothing, and wait again."""
        unjudged = [ticket for ticket in round.tickets if ticket.intent_id in event.unjudged]
        round.tickets = tuple(ticket for ticket in round.tickets if ticket.intent_id not in event.unjudged)
        self._queue.put_back(unjudged)
        for ticket in unjudged:
            self._queue.charge(ticket.tenant, -ticket.cost)
        for ticket in round.tickets:
            if ticket.intent_id in event.matched:
                self._queue.charge(ticket.tenant, ROW_COST * event.matched[ticket.intent_id])

    def _staged(self, number: int) -> list[Instruction]:
        if (round := self._find(number)) is None:
            return []
        round.phase = _Phase.STAGED
        return self._advance()

    def _landed(self, number: int) -> list[Instruction]:
        if self._find(number) is None:
            return []
        assert self._under_way[0].number == number, "objects land in the order of their rounds"
        self._failures = 0
        landed = self._under_way.pop(0)
        for ticket in landed.tickets:
            self._admission.remove(ticket)
        # A round on top that changes nothing is still confirmed: a successor may have taken over and committed since
        # this object landed.
        return [Release(number), *self._gather(landed), *self._advance()]

    def _gather(self, landed: _Round) -> list[Instruction]:
        """Wait a moment for the next writes of the writers that are answered now, so that they share one round.

        Writers that wait for an answer before they send the next write come back all at once. A round that begins with
        the first of them leaves the others to the next round, and from then on two groups take turns.
        """
        wanted = len(self._queue) + len(landed.tickets)
        if not self._gathers or self._under_way or wanted < 2:
            return []
        self._gathering = _Gathering(landed.number, wanted, len(self._queue))
        return [Gather(landed.number)]

    def _gathered(self, number: int) -> list[Instruction]:
        """Wait on while more writes come or none waits, for at most `GATHER_LOOKS_MAX` looks; then begin a round."""
        gathering = self._gathering
        if gathering is None or gathering.after_round != number:
            return []
        goes_on = not self._queue or len(self._queue) > gathering.waiting
        if goes_on and gathering.looks < GATHER_LOOKS_MAX:
            self._gathering = replace(gathering, waiting=len(self._queue), looks=gathering.looks + 1)
            return [Gather(number)]
        self._gathering = None
        return self._begin()

    def _overtaken(self, number: int) -> list[Instruction]:
        if self._find(number) is None:
            return []
        return self._void_from(number, failures=1)

    def _failed(self, number: int, error: OmnirayError, blamed: frozenset[str]) -> list[Instruction]:
        if (round := self._find(number)) is None:
            return []
        if blamed and round is self._under_way[0]:
            return self._void_from(number, 0, blamed, error)
        self._failures += 1
        # Blame on top of a round that may yet be lost is no answer: the writes are judged again. And no write is
        # refused, after however many attempts, with an error that another write caused.
        refused = () if blamed else (t.intent_id for t in round.tickets if t.attempts + 1 >= ATTEMPTS_MAX)
        return self._void_from(number, self._failures, refused, error)

    def _end(self, ended: Ended) -> list[Instruction]:
        """Refuse every write; staged files are left to recovery, since a put may still be on its way.

        The writes whose object is on its way may have landed: no error may say that they have not.
        """
        self._ended = ended.error
        instructions: list[Instruction] = []
        for round in self._under_way:
            if round.number == ended.settled and ended.landed:
                instructions.append(Release(round.number))
                continue
            is_open = round.number == self.putting and round.number != ended.settled
            error = _open_fate(round.number) if is_open else ended.error
            instructions += [Refuse(ticket.intent_id, error) for ticket in round.tickets]
        instructions += [Refuse(ticket.intent_id, ended.error) for ticket in self._queue]
        self._under_way, self._queue, self._admission = [], TenantQueue(), Admission(self._limits)
        return instructions

    # Steps

    def _begin(self) -> list[Instruction]:
        """Begin a round if one may begin now."""
        last = self._under_way[-1] if self._under_way else None
        if (
            self._paused
            or self._is_held
            or self._ended is not None
            or not self._queue
            or len(self._under_way) >= UNDER_WAY_MAX
        ):
            return []
        if last is not None and (last.phase in (_Phase.JUDGING, _Phase.STAGING) or not self._is_crowded(last)):
            return []
        if self._gathering is not None and len(self._queue) < self._gathering.wanted:
            return []
        self._gathering = None
        tickets = tuple(self._queue.take(self._limits.round, self._is_blocked))
        if not tickets:
            return []
        round = _Round(self._next_number, tickets, last.number if last is not None else None)
        self._next_number += 1
        self._under_way.append(round)
        return [Judge(round.number, round.tickets, round.on)]

    def _is_blocked(self, ticket: Ticket) -> bool:
        """Whether a write has to wait because it may touch tables that are reserved for another write.

        The first reservation goes first: two writes that reserve each other's tables would deadlock.
        """
        for intent_id, tables in self._reserved.items():
            if intent_id == ticket.intent_id:
                return False
            if ticket.tables is None or not tables.isdisjoint(ticket.tables):
                return True
        return False

    def _is_crowded(self, last: _Round) -> bool:
        """Whether so many writes wait that a round should begin before the last round's writers come back."""
        return not self._gathers or len(self._queue) >= CROWD * len(last.tickets)

    def _advance(self) -> list[Instruction]:
        """Commit the oldest round if it is staged, then begin another."""
        instructions: list[Instruction] = []
        if self._under_way and self._under_way[0].phase is _Phase.STAGED:
            oldest = self._under_way[0]
            oldest.phase = _Phase.COMMITTING
            instructions.append(Commit(oldest.number) if oldest.changes else Confirm(oldest.number))
        return [*instructions, *self._begin()]

    def _void_from(
        self, number: int, failures: int, refused: Iterable[str] = (), error: OmnirayError | None = None
    ) -> list[Instruction]:
        """Give up a round and all rounds on top of it; their writes wait again, except for the refused ones."""
        void = [round for round in self._under_way if round.number >= number]
        self._under_way = [round for round in self._under_way if round.number < number]
        refused = frozenset(refused)
        tickets = [ticket for round in void for ticket in round.tickets]
        instructions: list[Instruction] = [Discard(round.number) for round in reversed(void)]
        for ticket in tickets:
            if ticket.intent_id in refused:
                self._admission.remove(ticket)
                instructions.append(Refuse(ticket.intent_id, error))
        left = (replace(t, attempts=t.attempts + 1) for t in tickets if t.intent_id not in refused)
        self._queue.put_back(left)
        if failures:
            self._paused = True
            return [*instructions, Pause(_pause_s(failures))]
        return [*instructions, *self._begin()]

    def _find(self, number: int) -> _Round | None:
        """The round of an event; None if it is void by now."""
        return next((round for round in self._under_way if round.number == number), None)

    def validate(self) -> None:
        """Raise if an invariant does not hold; for tests."""
        numbers = [round.number for round in self._under_way]
        assert numbers == sorted(set(numbers)), "rounds are in order"
        assert len(self._under_way) <= UNDER_WAY_MAX, "no more rounds than may be under way"
        for before, after in zip(self._under_way, self._under_way[1:], strict=False):
            assert after.on == before.number, "a round builds on the one before it"
            assert before.phase in (_Phase.STAGED, _Phase.COMMITTING), "a round begins when the one before is staged"
            assert after.phase is not _Phase.COMMITTING, "objects are put one after the other"
        tickets = [*self._queue, *(ticket for round in self._under_way for ticket in round.tickets)]
        ids = [ticket.intent_id for ticket in tickets]
        assert len(ids) == len(set(ids)), "a write is in one place at a time"
        held = Holding(len(ids), sum(ticket.size_bytes for ticket in tickets))
        assert self._admission.total == held, "all that is held is somewhere"
        assert not self._under_way or self._under_way[0].phase is not _Phase.STAGED, "nothing keeps the oldest round"
        waits = self._under_way or self._paused or self._is_held or self._gathering or self._reserved or self._ended
        assert waits or not self._queue, "nobody waits for nothing"


def _pause_s(failures: int) -> float:
    """The pause, doubled after each failure in a row, up to some seconds."""
    return float(PAUSE_S * 2 ** min(failures - 1, PAUSE_DOUBLINGS_MAX))


def _open_fate(number: int) -> OutcomeUnknown:
    return OutcomeUnknown(f"the publisher ended while the object of round {number} was being put", txn_id="")


def _given_up(intent_id: str) -> Withdrawn:
    return Withdrawn(
        f"write {intent_id} was given up before its turn came, and nothing was written; send it again with this id",
        txn_id=intent_id,
    )
