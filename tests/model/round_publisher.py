"""A publisher in the random world: it carries out the real decisions, each as a job of several steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omniray.coordinator.rounds import machine as r
from omniray.coordinator.rounds.fairness import QUANTUM, Ticket
from omniray.engine.base.errors import Fenced, OmnirayError, OutcomeUnknown, StorageError, TableDrift, Withdrawn
from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import CommitObject, Fate
from omniray.engine.store.object_store import Answer
from tests.model.round_terms import (
    BIRTH,
    COST_MAX,
    TABLE,
    Content,
    Doubt,
    Steps,
    Told,
    Violation,
    Write,
    judge,
    object_on,
)

if TYPE_CHECKING:
    from tests.model.round_world import World


@dataclass(slots=True)
class Waiting:
    write: Write
    asked_at: int  # the moment of the line when it was sent
    arrival: int
    rounds: int = 0


@dataclass(slots=True)
class Work:
    waiting: tuple[Waiting, ...]
    base: CommitObject
    verdicts: dict[str, Told] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    after: Content = field(default_factory=Content)
    ours: CommitObject | None = None

    @property
    def accepted(self) -> list[Write]:
        return [one.write for one in self.waiting if self._commits(one.write.write_id)]

    def _commits(self, write_id: str) -> bool:
        return self.verdicts[write_id] is Told.COMMITTED and write_id not in self.repeated


class Publisher:
    """One life of a publisher: what `actors.publisher` does with instructions, without the storage."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rounds = r.Rounds(world.limits, gathers=world.rng.random() < 0.5)
        self.is_alive, self.is_ready, self.has_ended = True, False, False
        self.has_favoured = False  # a write that tables stood still for went first: from then on the order is its own
        self.tip = BIRTH
        self.known: set[str] = set()  # operations that it has seen in the line
        self.committed: set[str] = set()
        self.waiting: dict[str, Waiting] = {}
        self.works: dict[int, Work] = {}
        self.in_flight: list[CommitObject] = []
        self.leads: Counter[tuple[str, str]] = Counter()  # by two tenants: by how much the first was served more
        self._arrivals = itertools.count()

    @property
    def serves(self) -> bool:
        return self.is_alive and self.is_ready and not self.has_ended

    def submit(self, write: Write) -> None:
        if write.write_id in self.waiting:
            return  # it is under way, and this try waits for the same answer
        waiting = Waiting(write, len(self.world.moments) - 1, next(self._arrivals))
        self.waiting[write.write_id] = waiting
        self.dispatch(r.Submitted(write.ticket))

    def reserve(self, write_id: str) -> None:
        self.has_favoured = True
        self.dispatch(r.Reserved(write_id, frozenset({TABLE})))
        self.world.start(self, _after_a_while(r.Unreserved(write_id)))

    def dispatch(self, event: r.Event) -> None:
        self.has_ended = self.has_ended or isinstance(event, r.Ended)
        self.world.tally[type(event).__name__] += 1
        instructions = self.rounds.handle(event)
        news = getattr(event, "round_no", None) if not isinstance(event, r.Gathered) else None
        if instructions and news not in (None, *self.works):
            raise Violation(f"{event} is about a round that is no more, and {instructions} come of it")
        for instruction in instructions:
            self._carry_out(instruction)
        self.rounds.validate()
        if self.has_ended and self.waiting:
            raise Violation(f"{self.name} has ended, and {sorted(self.waiting)} were not told")
        if isinstance(event, r.Submitted):
            self._check_bounds()

    def _carry_out(self, instruction: r.Instruction) -> None:
        match instruction:
            case r.Judge(number, tickets, on):
                self._check_turns(tickets)
                self.world.tally["rounds on top of another"] += on is not None
                work = Work(tuple(self.waiting[ticket.intent_id] for ticket in tickets), self._base(on))
                self.works[number] = work
                self.world.start(self, self._judge(number, work))
            case r.Stage(number):
                self.world.start(self, self._stage(number, self.works[number]))
            case r.Commit(number):
                self.world.start(self, self._commit(number, self.works[number]))
            case r.Confirm(number):
                self.world.start(self, self._confirm(number, self.works[number]))
            case r.Release(number):
                self._release(self.works.pop(number))
            case r.Discard(number):
                if (ours := self.works.pop(number).ours) is not None:
                    self.world.discard(ours.op_id)
            case r.Refuse(intent_id, error, overload):
                self._refuse(self.waiting.pop(intent_id), error, overload)
            case r.Pause():
                self.world.start(self, _after_a_while(r.Resumed()))
            case r.Gather(number):
                self.world.tally["gatherings"] += 1
                self.world.start(self, _after_a_while(r.Gathered(number)))

    def _base(self, on: int | None) -> CommitObject:
        below = self.works[on].ours if on is not None else None
        return below or self.tip

    # Jobs

    def take_over(self) -> Steps:
        while True:
            newest = self._refresh()
            yield
            ours = line.change_owner(newest, op_id=self.world.new_operation(), owner=self.name)
            try:
                if (yield from self._put(ours)) is Fate.LANDED:
                    break
            except Doubt:
                yield
        self.committed = {commit.commit_id for obj in self.world.line[: ours.seq] for commit in obj.commits}
        self.is_ready = True
        return None

    def _judge(self, number: int, work: Work) -> Steps:
        yield
        if not self._owns(work.base):
            return r.Ended(Fenced("taken over"))
        if self.world.is_unlucky(self.world.weather.store):
            return r.Failed(number, StorageError("a look-up failed"))
        work.repeated = self._repeated(work)
        fresh = [one.write for one in work.waiting if one.write.write_id not in work.repeated]
        verdicts, work.after = judge(self.world.contents[work.base.op_id], fresh)
        work.verdicts = {**verdicts, **dict.fromkeys(work.repeated, Told.COMMITTED)}
        self.world.tally["repeated"] += len(work.repeated)
        yield
        return r.Judged(number, changes=bool(work.accepted))

    def _owns(self, newest: CommitObject) -> bool:
        return newest.owner == self.name

    def _repeated(self, work: Work) -> frozenset[str]:
        return frozenset(one.write.write_id for one in work.waiting) & self.committed

    def _stage(self, number: int, work: Work) -> Steps:
        yield
        yield
        weather = self.world.weather
        if self.world.is_unlucky(weather.cold):
            return r.Overtaken(number)
        if self.world.is_unlucky(weather.store):
            return r.Failed(number, StorageError("a table could not be staged"))
        if self.world.is_unlucky(weather.drift):
            blamed = self.world.rng.sample(work.accepted, self.world.rng.randint(1, len(work.accepted)))
            ids = frozenset(write.write_id for write in blamed)
            return r.Failed(number, TableDrift("drift", blamed=ids, judged_on=work.base.op_id), ids)
        operation = self.world.new_operation()
        work.ours = object_on(work.base, operation, work.accepted, work.after.version)
        self.world.contents[operation] = work.after
        return r.Staged(number)

    def _commit(self, number: int, work: Work) -> Steps:
        assert work.ours is not None
        self.in_flight.append(work.ours)
        yield
        self.in_flight.remove(work.ours)
        if self.world.is_unlucky(self.world.weather.store):
            return r.Failed(number, StorageError("the store refused the object"))
        try:
            fate = yield from self._put(work.ours)
        except Doubt:
            return self._in_doubt(number)
        yield
        return self._outcome(number, work.ours, fate)

    def _in_doubt(self, number: int) -> r.Event:
        return r.Ended(OutcomeUnknown("no clear answer"))

    def _outcome(self, number: int, ours: CommitObject, fate: Fate) -> r.Event:
        if fate is Fate.FENCED:
            return r.Ended(Fenced("taken over"))
        if fate is not Fate.LANDED:
            self._refresh()
            return r.Overtaken(number)
        self.committed.update(commit.commit_id for commit in ours.commits)
        return r.Landed(number)

    def _confirm(self, number: int, work: Work) -> Steps:
        yield
        newest = self._refresh()
        yield
        if not self._owns(newest):
            return r.Ended(Fenced("taken over"))
        return r.Landed(number) if newest.op_id == work.base.op_id else r.Overtaken(number)

    def _refresh(self) -> CommitObject:
        self.tip = self.world.newest
        self.known.update(self.world.in_line)
        return self.tip

    def _put(self, ours: CommitObject) -> Generator[None, None, Fate]:
        """Phase C: until its fate is clear, or for too long."""
        if ours.prev_op_id not in self.known:
            raise Violation(f"{ours.op_id} is put, and what it stands on is not known to be in the line")
        while True:
            answer = self.world.put(ours, self.name)
            yield
            is_blind = answer is not Answer.CREATED and self.world.is_unlucky(5 * self.world.weather.store)
            fate = Fate.PUT_AGAIN if is_blind else line.fate(ours, answer, self.world.read(ours.seq))
            if fate is Fate.LANDED:
                self.tip = ours
                self.known.add(ours.op_id)
            if fate is not Fate.PUT_AGAIN:
                return fate
            if self.world.rng.random() < 0.5:
                raise Doubt
            yield

    # Answers

    def _release(self, work: Work) -> None:
        judged_on = (work.base, work.ours) if work.ours is not None else (work.base,)
        for obj in judged_on:
            if obj.op_id not in self.world.in_line:
                raise Violation(f"answers leave that were judged on {obj.op_id}, which is not in the line")
        for one in work.waiting:
            del self.waiting[one.write.write_id]
            self.world.answered(self, one, work.verdicts[one.write.write_id])

    def _refuse(self, waiting: Waiting, error: OmnirayError | None, overload: str) -> None:
        write_id = waiting.write.write_id
        if error is None:
            self._check_overload(waiting.write)
        elif isinstance(error, TableDrift):
            if write_id not in error.facts["blamed"]:
                raise Violation(f"{write_id} is refused for what is the fault of others")
            if error.facts["judged_on"] not in self.world.in_line:
                raise Violation(f"{write_id} is blamed for what it would do to a graph that never was")
        elif type(error) is StorageError and waiting.rounds < r.ATTEMPTS_MAX:
            raise Violation(f"{write_id} is given up after {waiting.rounds} attempts")
        self.world.answered(self, waiting, _told(error))

    # What must hold at every step

    def _check_bounds(self) -> None:
        limits, held = self.world.limits, [one.write for one in self.waiting.values()]
        tenants = Counter(write.tenant for write in held)
        sizes = Counter[str]()
        for write in held:
            sizes[write.tenant] += write.ticket.size_bytes
        if len(held) > limits.waiting_intents or sizes.total() > limits.waiting_bytes:
            raise Violation(f"{len(held)} writes with {sizes.total()} bytes are held, more than may be")
        if held and (max(tenants.values()) > limits.tenant_intents or max(sizes.values()) > limits.tenant_bytes):
            raise Violation(f"a tenant holds more than it may: {tenants}, {sizes}")

    def _check_overload(self, write: Write) -> None:
        limits, held = self.world.limits, [one.write for one in self.waiting.values()]
        of_tenant = [one for one in held if one.tenant == write.tenant]
        for count_max, size_max, among in (
            (limits.waiting_intents, limits.waiting_bytes, held),
            (limits.tenant_intents, limits.tenant_bytes, of_tenant),
        ):
            size = sum(one.ticket.size_bytes for one in among) + write.ticket.size_bytes
            if len(among) >= count_max or size > size_max:
                return
        raise Violation(f"{write.write_id} was not taken, and there was room")

    def _check_turns(self, tickets: tuple[Ticket, ...]) -> None:
        """A tenant's writes keep their order, and of tenants that all have more waiting none is far ahead."""
        under_way = {one.write.write_id for work in self.works.values() for one in work.waiting}
        taken = [self.waiting[ticket.intent_id] for ticket in tickets]
        left = [w for i, w in self.waiting.items() if i not in under_way and w not in taken]
        for tenant in {one.write.tenant for one in taken}:
            arrivals = [one.arrival for one in taken if one.write.tenant == tenant]
            behind = [one.arrival for one in left if one.write.tenant == tenant]
            is_late = behind and min(behind) < max(arrivals)
            if (arrivals != sorted(arrivals) or is_late) and not self.has_favoured:
                raise Violation(f"the writes of {tenant} are taken in the order {arrivals}, and {behind} wait")
        if any(ticket.alone for ticket in tickets) and len(tickets) > 1:
            raise Violation(f"{[ticket.intent_id for ticket in tickets]} share a round that one wants for itself")
        for one in taken:
            one.rounds += 1
        self._check_shares(tickets, {one.write.tenant for one in left})

    def _check_shares(self, tickets: tuple[Ticket, ...], backlogged: set[str]) -> None:
        if self.has_favoured or any(ticket.alone for ticket in tickets):  # a round of one's own is a turn
            backlogged = set()
        costs = Counter[str]()
        for ticket in tickets:
            costs[ticket.tenant] += ticket.cost
        pairs = list(itertools.combinations(sorted(backlogged), 2))
        self.leads = Counter({(a, b): self.leads[a, b] + costs[a] - costs[b] for a, b in pairs})
        bound = 2 * (QUANTUM + COST_MAX)
        if unfair := [pair for pair, lead in self.leads.items() if abs(lead) > bound]:
            raise Violation(f"{unfair[0]} have both been waiting, and one was served {bound} more than the other")


def _told(error: OmnirayError | None) -> Told:
    if error is None:
        return Told.OVERLOADED
    if isinstance(error, Withdrawn):
        return Told.WITHDRAWN
    return Told.ENDED if isinstance(error, Fenced | OutcomeUnknown) else Told.FAILED


def _after_a_while(event: r.Event) -> Steps:
    yield
    yield
    return event
