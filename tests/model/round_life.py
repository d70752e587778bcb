"""One life of a real publisher in the random world, and what must hold at each of its steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.steps import Round
from omniray.coordinator.rounds import machine as r
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.coordinator.rounds.fairness import QUANTUM, Ticket
from omniray.engine.base.errors import (
    Fenced,
    InvariantViolation,
    Moved,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    RecoveryRequired,
    StorageError,
    TableDrift,
    Withdrawn,
)
from omniray.engine.history.accepted_schema import AcceptedSchema
from omniray.engine.history.ancestry import Ancestry
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line import owner
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.line_end import UNCLEAR_TIMEOUT_S, Tip
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.writes.write_requests import Request
from tests.model.round_queues import ProcessQueues, QueueOwners
from tests.model.round_storage import ProcessStore
from tests.model.round_tasks import TaskExecutor
from tests.model.round_terms import BRANCH, BYTES_PER_ROW, COST_MAX, SCHEMA, Told, Violation, Write

if TYPE_CHECKING:
    from tests.model.round_world import World

STEP_S = 0.01
DAY_S = 24 * 3600.0


@dataclass(eq=False, slots=True)
class Waiting:
    write: Write
    asked_at: int  # the moment of the line when it was sent
    arrival: int
    rounds: int = 0

    @property
    def size_bytes(self) -> int:
        return BYTES_PER_ROW * self.write.rows


class _OneByOne(CommitLog):
    """A log that reads objects one after the other: no other thread may switch to the task that reads."""

    def down_to(self, newest: CommitObject, seq: int, *, at_once: int = 1) -> tuple[CommitObject, ...]:
        return super().down_to(newest, seq)


class Folders:
    """Stands in for the tables' storage: all that an attempt asks of it is where versions were staged alone."""

    def own_folder(self, table_path: str, transaction: str) -> str:
        return f"{table_path}/staged"


class Life:
    """A process that serves as the branch's publisher until it is fenced, ends or is killed."""

    publisher: Publisher

    def __init__(self, world: World, name: str, owners: QueueOwners) -> None:
        self.world, self.name = world, name
        self.is_alive, self.is_ready, self.has_ended = True, False, False
        self.has_favoured = False  # a write that tables stood still for went first: from then on the order is its own
        self.has_charged = False  # for more than was known when a write was taken: from then on shares differ for that
        self.waiting: dict[str, Waiting] = {}
        self.leads: Counter[tuple[str, str]] = Counter()  # by two tenants: by how much the first was served more
        self._arrivals = itertools.count()
        self._late_s = 0.0  # by how much this process was suspended
        self._store = ProcessStore(world.storage, world.tasks, world, world.rng, name)
        self._queues = ProcessQueues(owners, world.tasks, lambda: world.weather, world.rng, name)
        self._log = _OneByOne(self._store, BRANCH)
        world.tasks.start(self, self._begin)

    @property
    def is_over(self) -> bool:
        return self.has_ended or not self.is_alive

    @property
    def serves(self) -> bool:
        return self.is_ready and not self.is_over

    @property
    def known_seq(self) -> int:
        """The number up to which this process knows the line, in all that it has under way."""
        if not self.is_ready:
            return 0
        bases = [work.base for work in self.publisher._under_way.values()]
        known = [base.seq if base.op_id in self.world.in_line else base.seq - 1 for base in bases]
        return min([self.publisher.newest.seq, *known])

    # The only place that builds what is under test

    def _open(self) -> None:
        read_at = self._clock()
        newest = self._log.newest()
        assert newest is not None, "a line is born with its first object"
        tip = Tip(
            self._log, newest, is_folded=self.world.folded.is_folded, read_at=read_at,
            clock=self._clock, sleep=self._sleep,
        )  # fmt: skip
        owner.take_over(tip, self.name)
        folded: Any = self.world.folded
        folders: Any = Folders()
        nothing: Any = None  # a publisher without Lance: its tables are the queues'
        lineage = Lineage(self._log, folded, tip.refresh)
        branch = OpenBranch(
            self._store, BRANCH.ulid, BRANCH, AcceptedSchema(SCHEMA, "", newest.schema), self._log, folded, tip,
            lineage, Ancestry(self._store, BRANCH.ulid, self._log, lineage), Sidecars(self._store), folders, nothing,
        )  # fmt: skip
        self.publisher = Publisher(
            branch, tip, self._queues, self._landed, owner=self.name, on_ended=self._ended,
            limits=self.world.limits, executor=TaskExecutor(self.world.tasks, self, self.world.steps),
        )  # fmt: skip

    def _begin(self) -> None:
        while not self.is_ready:
            try:
                self._open()
                self._watch()
                self.is_ready = True
            except InvariantViolation as error:
                self.world.notice(error)
                return
            except OmnirayError:
                self.world.tasks.pause("begin", after=5)

    def _watch(self) -> None:
        """Look at every event before the machine does, and at every instruction before it is carried out."""
        rounds = self.publisher._rounds
        rounds._gathers = self.world.rng.random() < 0.5
        handle, carry_out = rounds.handle, self.publisher._carry_out
        self.publisher._rounds.handle = lambda event: self._handled(event, handle)  # type: ignore[method-assign]
        self.publisher._carry_out = lambda one: self._carried_out(one, carry_out)  # type: ignore[method-assign]

    # As its clients see it

    def submit(self, write: Write, request: Request) -> None:
        if write.write_id not in self.waiting:  # else it is under way, and this try waits for the same answer
            waiting = Waiting(write, len(self.world.moments) - 1, next(self._arrivals))
            self.waiting[write.write_id] = waiting
            self.publisher.submit(request).add_done_callback(lambda future: self._answered(waiting, future))
            self._check_bounds()

    def _answered(self, waiting: Waiting, future: Future[WriteAnswer]) -> None:
        if not self.is_alive:
            return
        try:
            del self.waiting[waiting.write.write_id]
            error = future.exception()
            told = _told(error) if error is not None else _result(future.result())
            self.world.tally["repeated"] += error is None and future.result().result.repeated
            if isinstance(error, Overloaded):
                self._check_overload(waiting)
            if type(error) is StorageError and waiting.rounds < r.ATTEMPTS_MAX:
                raise Violation(f"{waiting.write.write_id} is given up after {waiting.rounds} attempts: {error}")
            if isinstance(error, TableDrift):
                self._check_blame(waiting.write, error)
            self.world.answered(self, waiting, told)
        except AssertionError as violation:  # whoever calls back when a future is done swallows it
            self.world.notice(violation)

    # As the world sees it

    def check_pause(self, kind: str) -> None:
        if self.is_ready and self.publisher._lock._is_owned():  # type: ignore[attr-defined]
            raise Violation(f"{self.name} holds its lock and everybody up while it waits: {kind}")

    def _clock(self) -> float:
        return self.world.tasks.now * STEP_S + self._late_s

    def _sleep(self, seconds: float) -> None:
        if self.world.weather.store:
            luck = self.world.rng.random()
            self._late_s += DAY_S if luck < 0.05 else 2 * UNCLEAR_TIMEOUT_S if luck < 0.4 else 0.0
        self.world.tasks.pause("sleep", after=self.world.steps(seconds))

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        if landed.op_id not in self.world.in_line:
            raise Violation(f"Phase D of {landed.op_id} begins, which is not in the line")

    def _ended(self, error: OmnirayError) -> None:
        self.has_ended = True
        if self.is_alive and self.waiting:
            raise Violation(f"{self.name} has ended, and {sorted(self.waiting)} were not told")

    # What must hold at every step

    def _handled(self, event: r.Event, handle: Callable[[r.Event], list[r.Instruction]]) -> list[r.Instruction]:
        self.world.tally[type(event).__name__] += 1
        self.has_favoured = self.has_favoured or isinstance(event, r.Reserved)
        instructions = handle(event)
        news = getattr(event, "round_no", None) if not isinstance(event, r.Gathered) else None
        if instructions and news not in (None, *self.publisher._under_way):
            raise Violation(f"{event} is about a round that is no more, and {instructions} come of it")
        if isinstance(event, r.Failed) and any(isinstance(one, r.Refuse) for one in instructions):
            self._check_refusals(event, self.publisher._under_way[event.round_no], instructions)
        if isinstance(event, r.Judged):
            self.has_charged = self.has_charged or bool(event.matched)
            self.world.tally["unjudged"] += len(event.unjudged)
        self.publisher._rounds.validate()
        return instructions

    def _carried_out(self, instruction: r.Instruction, carry_out: Callable[[r.Instruction], None]) -> None:
        match instruction:
            case r.Judge(_, tickets, on):
                self.world.tally["rounds on top of another"] += on is not None
                self._check_turns(tickets)
            case r.Release(number):
                self._check_release(self.publisher._under_way[number])
            case r.Gather():
                self.world.tally["gatherings"] += 1
        carry_out(instruction)

    def _check_release(self, work: Round) -> None:
        for obj in (work.base, work.ours):
            if obj is not None and obj.op_id not in self.world.in_line:
                raise Violation(f"answers leave that were judged on {obj.op_id}, which is not in the line")

    def _check_refusals(self, event: r.Failed, work: Round, instructions: list[r.Instruction]) -> None:
        if not event.blamed:
            return
        if work.base.op_id not in self.world.in_line:
            raise Violation(f"{sorted(event.blamed)} are blamed for what they would do to a graph that never was")
        refused = {one.intent_id for one in instructions if isinstance(one, r.Refuse)}
        if refused - event.blamed:
            raise Violation(f"{sorted(refused - event.blamed)} are refused for what is the fault of others")

    def _check_blame(self, write: Write, drift: TableDrift) -> None:
        table_key = drift.facts["table_key"]
        if table_key not in write.tables:
            raise Violation(f"{write.write_id} is refused for {table_key}, which it does not touch")
        if table_key not in self.world.ever_drifted:
            raise Violation(f"{write.write_id} is refused for {table_key}, which nobody else wrote to")

    def _check_bounds(self) -> None:
        limits, held = self.world.limits, list(self.waiting.values())
        tenants = Counter(one.write.tenant for one in held)
        sizes = Counter[str]()
        for one in held:
            sizes[one.write.tenant] += one.size_bytes
        if len(held) > limits.waiting_intents or sizes.total() > limits.waiting_bytes:
            raise Violation(f"{len(held)} writes with {sizes.total()} bytes are held, more than may be")
        if held and (max(tenants.values()) > limits.tenant_intents or max(sizes.values()) > limits.tenant_bytes):
            raise Violation(f"a tenant holds more than it may: {tenants}, {sizes}")

    def _check_overload(self, waiting: Waiting) -> None:
        limits, held = self.world.limits, list(self.waiting.values())
        of_tenant = [one for one in held if one.write.tenant == waiting.write.tenant]
        for count_max, size_max, among in (
            (limits.waiting_intents, limits.waiting_bytes, held),
            (limits.tenant_intents, limits.tenant_bytes, of_tenant),
        ):
            size = sum(one.size_bytes for one in among) + waiting.size_bytes
            if len(among) >= count_max or size > size_max:
                return
            if of_tenant and (2 * len(among) >= count_max or 2 * size > size_max):
                return  # only a newcomer may be sure of its place while room is scarce
        raise Violation(f"{waiting.write.write_id} was not taken, and there was room")

    def _check_turns(self, tickets: tuple[Ticket, ...]) -> None:
        """A tenant's writes keep their order, and of tenants that all have more waiting none is far ahead."""
        under_way = {
            request.header.commit_id for work in self.publisher._under_way.values() for request in work.requests
        }
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
        if (
            self.has_favoured or self.has_charged or any(ticket.alone for ticket in tickets)
        ):  # a round of one's own is a turn
            backlogged = set()
        costs = Counter[str]()
        for ticket in tickets:
            costs[ticket.tenant] += ticket.cost
        pairs = list(itertools.combinations(sorted(backlogged), 2))
        self.leads = Counter({(a, b): self.leads[a, b] + costs[a] - costs[b] for a, b in pairs})
        bound = 2 * (QUANTUM + COST_MAX)
        if unfair := [pair for pair, lead in self.leads.items() if abs(lead) > bound]:
            raise Violation(f"{unfair[0]} have both been waiting, and one was served {bound} more than the other")


def _result(answer: WriteAnswer) -> Told:
    return Told.NOTHING if answer.result.commit_id is None else Told.COMMITTED


def _told(error: BaseException) -> Told:
    match error:
        case Overloaded():
            return Told.OVERLOADED
        case Withdrawn():
            return Told.WITHDRAWN
        case Moved():
            return Told.MOVED
        case Fenced() | OutcomeUnknown():
            return Told.ENDED
        case StorageError() | RecoveryRequired():
            return Told.FAILED
        case _:
            return Told.REFUSED
