"""A random world around the rounds: publishers that come, are fenced and die, clients that ask until they know.

No Lance, no files, no threads: a list is the line. The decisions are the real ones of `omniray.coordinator.rounds` and
`omniray.engine.line`; a publisher here carries out its instructions as the real one does, each as a job whose steps a
seeded schedule interleaves with all the others, crashes, delays, lost answers and other owners of the line. Beside
stands the truth that none of them can see, and every answer is held against it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from omniray.coordinator import rounds as r
from omniray.coordinator.fairness import QUANTUM, ROW_COST, WRITE_COST, RoundLimits, Ticket
from omniray.engine import line
from omniray.engine.errors import Fenced, OmnirayError, OutcomeUnknown, StorageError, TableDrift, Withdrawn
from omniray.engine.line import EMBEDDED, Answer, Commit, CommitObject, Fate, Pin

TURMOIL_STEPS = 220
DRAIN_STEPS = 20_000
LIVES_MAX = 7
ROWS_MAX = 900
COST_MAX = WRITE_COST + ROW_COST * ROWS_MAX
KEYS = ("a", "b")
TABLE = "T"
BIRTH = CommitObject(1, "", "birth", 1, EMBEDDED, {TABLE: Pin(1, "t1", 1, 0)}, finalised_through=1)

Steps = Generator[None, None, r.Event | None]


class Violation(AssertionError):
    """A promise of the coordinator is broken."""


class Doubt(Exception):
    """No clear answer for too long: the put may land yet."""


class Told(StrEnum):
    """What a client may hear of its write."""

    COMMITTED = "committed"
    REFUSED = "refused"
    NOTHING = "nothing to do"
    FAILED = "failed"  # the store, or a table that drifted: nothing was written
    OVERLOADED = "overloaded"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"  # the publisher's life is over: what became of the write is for its successor to say


@dataclass(frozen=True)
class Write:
    write_id: str
    tenant: str
    verb: str  # append, merge or delete
    key: str
    rows: int = 1
    expected: int | None = None  # a strict write: the version that the table must have
    alone: bool = False

    @cached_property
    def ticket(self) -> Ticket:
        tables = None if self.verb == "delete" else frozenset({TABLE})
        return Ticket(self.write_id, self.tenant, self.rows, 10 * self.rows, self.alone, tables)


@dataclass(frozen=True, slots=True)
class Content:
    """The graph: which keys are there, and the version of the only table."""

    keys: frozenset[str] = frozenset()
    version: int = 1

    def verdict(self, write: Write) -> Told:
        if write.expected not in (None, self.version) or (write.verb == "append" and write.key in self.keys):
            return Told.REFUSED
        return Told.NOTHING if write.verb == "delete" and write.key not in self.keys else Told.COMMITTED

    def after(self, write: Write, version: int) -> Content:
        return Content(self.keys - {write.key} if write.verb == "delete" else self.keys | {write.key}, version)


def judge(base: Content, writes: Iterable[Write]) -> tuple[dict[str, Told], Content]:
    """Each write on top of those before it; however many are accepted, the table moves by one version."""
    verdicts: dict[str, Told] = {}
    content = base
    for write in writes:
        verdicts[write.write_id] = verdict = content.verdict(write)
        if verdict is Told.COMMITTED:
            content = content.after(write, base.version + 1)
    return verdicts, content


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely each trouble is, at each step or for each request."""

    store: float = 0.0  # a request fails, is late, or loses its answer
    slow: float = 0.0  # a step of a job takes very long
    slow_job: str = ""  # the only kind of job to which that happens
    cold: float = 0.0  # a queue has lost what it staged
    drift: float = 0.0  # a table can't be written to, which is the fault of some writes
    crash: float = 0.0
    suspicion: float = 0.0  # a publisher is started though another one serves
    meddling: float = 0.0  # somebody else extends the line, or takes it over
    impatience: float = 0.0  # a client gives up waiting
    standstill: float = 0.0  # the table stands still for a write
    confusion: float = 0.0  # a client sends to a publisher that may have been fenced


# Troubles that do harm only where they meet, which is rare where everything else happens too.
LATE_ANSWERS = Weather(slow=0.3, slow_job="commit", meddling=0.05)
LATE_NEWS = Weather(slow=0.2, slow_job="stage", cold=0.3, meddling=0.08)
MANY_ATTEMPTS = Weather(cold=0.4, drift=0.3)


def _any_weather(rng: random.Random) -> Weather:
    def some(*rates: float) -> float:
        return rng.choice(rates)

    if rng.random() < 0.3:
        return rng.choice((LATE_ANSWERS, LATE_NEWS, MANY_ATTEMPTS))
    return Weather(
        store=some(0, 0.05, 0.1), slow=some(0, 0.1, 0.3), cold=some(0, 0.05, 0.2), drift=some(0, 0.1, 0.3),
        crash=some(0, 0, 0.01), suspicion=some(0, 0, 0.02), meddling=some(0, 0, 0.03),
        impatience=some(0, 0.02), standstill=some(0, 0, 0.03), confusion=some(0, 0.3),
    )  # fmt: skip


# Clients


@dataclass(slots=True)
class Errand:
    """A write as its client sees it: it listens to its last try only, and asks until it knows."""

    write: Write
    at: Publisher | None = None  # where its last try waits
    in_doubt: bool = False  # an earlier try may have landed
    not_before: int = 0  # when it is sent again
    told: Told | None = None

    def hear(self, told: Told, world: World) -> None:
        self.at, self.not_before = None, world.now + (80 if told is Told.OVERLOADED else 10)
        self.in_doubt = self.in_doubt or told is Told.ENDED
        gives_up = told is Told.FAILED and not self.in_doubt and world.rng.random() < 0.5
        if gives_up or told in (Told.COMMITTED, Told.REFUSED, Told.NOTHING):
            self.told = told


# The world


@dataclass(slots=True)
class Job:
    publisher: Publisher
    steps: Steps
    due: int


class World:
    """The line, the truth about it, everybody who works on it, and the schedule."""

    def __init__(self, rng: random.Random, weather: Weather | None = None) -> None:
        self.rng, self.weather = rng, weather or _any_weather(rng)
        self.is_saturated = rng.random() < 0.02
        self.limits = _limits(rng, self.is_saturated)
        self.now = 0
        self.line: list[CommitObject] = []
        self.in_line: set[str] = set()
        self.contents: dict[str, Content] = {}  # by operation: the graph after it
        self.moments: list[Content] = []  # the graph after each commit
        self.writes: dict[str, Write] = {}
        self.committed: set[str] = set()
        self.putters: dict[str, str] = {}
        self.discarded: set[str] = set()
        self.late: list[CommitObject] = []
        self.publishers: list[Publisher] = []
        self.jobs: list[Job] = []
        self.tally: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._extend(BIRTH, Content())
        trickles = self.weather is LATE_ANSWERS or rng.random() < 0.5
        span = TURMOIL_STEPS if trickles and not self.is_saturated else 0
        wishes = _wishes(rng, self.is_saturated)
        self.errands = [Errand(write, not_before=rng.randint(0, span)) for write in wishes]
        self.writes |= {errand.write.write_id: errand.write for errand in self.errands}
        self._by_id = {errand.write.write_id: errand for errand in self.errands}

    def new_operation(self) -> str:
        return f"op{next(self._numbers)}"

    def is_unlucky(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    # The store

    @property
    def newest(self) -> CommitObject:
        return self.line[-1]

    def read(self, seq: int) -> CommitObject | None:
        return self.line[seq - 1] if seq <= len(self.line) else None

    def put(self, obj: CommitObject, by: str) -> Answer:
        """What a putter is told: the answer may be lost, the effect late, or a success come back as a refusal."""
        self.putters[obj.op_id] = by
        luck = self.rng.random()
        if luck < self.weather.store:
            self.late.append(obj)
            return Answer.UNCLEAR
        created = self.apply(obj)
        if luck < 2 * self.weather.store:
            self.tally["lost answers"] += 1
            return Answer.UNCLEAR
        return Answer.CREATED if created and luck > 3 * self.weather.store else Answer.REFUSED

    def apply(self, obj: CommitObject) -> bool:
        """A put-if-absent takes effect."""
        if obj.seq <= len(self.line):
            self.tally["puts of zombies"] += obj.epoch < self.newest.epoch
            return False
        if (reason := line.unlawful(self.newest, obj)) is not None:
            raise Violation(f"unlawful object in the line: {reason}")
        if obj.epoch == self.newest.epoch and self.putters[obj.op_id] != obj.owner:
            raise Violation(f"{self.putters[obj.op_id]} was fenced and puts as {obj.owner}")
        if obj.op_id in self.discarded:
            raise Violation(f"{obj.op_id} is in the line, and what it staged was dropped")
        base = self.contents[obj.prev_op_id]
        if self.committed & {commit.commit_id for commit in obj.commits}:
            raise Violation(f"a write is committed twice: {[commit.commit_id for commit in obj.commits]}")
        verdicts, content = judge(base, [self.writes[commit.commit_id] for commit in obj.commits])
        if wrong := [write_id for write_id, verdict in verdicts.items() if verdict is not Told.COMMITTED]:
            raise Violation(f"{wrong} are committed on a graph where they can't be")
        self._extend(obj, content)
        return True

    def _extend(self, obj: CommitObject, content: Content) -> None:
        moment = self.contents.get(obj.prev_op_id, content)
        for commit in obj.commits:
            moment = moment.after(self.writes[commit.commit_id], content.version)
            self.moments.append(moment)
            self.committed.add(commit.commit_id)
        self.moments.append(content)
        self.contents[obj.op_id] = content
        self.in_line.add(obj.op_id)
        self.line.append(obj)

    def discard(self, op_id: str) -> None:
        if op_id in self.in_line:
            raise Violation(f"what {op_id} staged is dropped, and it is in the line")
        self.discarded.add(op_id)

    # Answers

    def answered(self, by: Publisher, waiting: Waiting, told: Told) -> None:
        """Hold an answer against the truth, then hand it to the client, if that still listens there."""
        write_id = waiting.write.write_id
        if told is Told.COMMITTED and write_id not in self.committed:
            raise Violation(f"{write_id} was answered 'committed' and is not in the line")
        if told in (Told.REFUSED, Told.NOTHING):
            since = self.moments[waiting.asked_at :]
            if not any(moment.verdict(waiting.write) is told for moment in since):
                raise Violation(f"{write_id} was answered '{told}', for which there was no reason since it was sent")
        self.tally[told] += 1
        errand = self._by_id[write_id]
        if errand.at is by:
            errand.hear(told, self)

    # The schedule

    def step(self) -> None:
        self.now += 1
        self._see_that_somebody_serves()
        self._make_trouble()
        ready = [job for job in self.jobs if job.due <= self.now]
        if (self.is_saturated or not ready or self.rng.random() < 0.4) and self._send_one():
            return
        if ready:
            self._advance(self.rng.choice(ready))
        elif self.now > TURMOIL_STEPS:
            self.now += 9  # nothing happens by itself any more

    def _send_one(self) -> bool:
        unsent = [e for e in self.errands if e.told is None and e.at is None and e.not_before <= self.now]
        serving = [publisher for publisher in self.publishers if publisher.serves] if unsent else []
        if serving:
            confused = self.is_unlucky(self.weather.confusion)
            self._send(self.rng.choice(unsent), self.rng.choice(serving) if confused else serving[-1])
        return bool(serving)

    def _send(self, errand: Errand, publisher: Publisher) -> None:
        errand.at = publisher
        if errand.write.expected == 0:  # a strict write goes by the version that its client reads first
            errand.write = replace(errand.write, expected=self.contents[self.newest.op_id].version)
            self.writes[errand.write.write_id] = errand.write
        publisher.submit(errand.write)

    def _advance(self, job: Job) -> None:
        try:
            next(job.steps)
            job.due = self.now + self._delay(job.steps)
        except StopIteration as done:
            self.jobs.remove(job)
            if done.value is not None:
                job.publisher.dispatch(done.value)

    def start(self, publisher: Publisher, steps: Steps) -> None:
        self.jobs.append(Job(publisher, steps, self.now + self._delay(steps)))

    def _delay(self, steps: Steps) -> int:
        is_slow = self.weather.slow_job in steps.__name__ and self.is_unlucky(self.weather.slow)
        return self.rng.choice((10, 30, 100)) if is_slow else 0

    def _see_that_somebody_serves(self) -> None:
        active = [publisher for publisher in self.publishers if publisher.is_alive and not publisher.has_ended]
        suspects = self.is_unlucky(self.weather.suspicion) and len(self.publishers) < LIVES_MAX
        if not active or suspects:
            self.tally["zombies"] += bool(active)
            publisher = Publisher(self, f"publisher{len(self.publishers)}")
            self.publishers.append(publisher)
            self.start(publisher, publisher.take_over())

    def _make_trouble(self) -> None:
        if self.late and self.rng.random() < 0.1:
            self.apply(self.late.pop(self.rng.randrange(len(self.late))))
        if self.publishers and self.is_unlucky(self.weather.crash) and len(self.publishers) < LIVES_MAX:
            self._crash(self.rng.choice(self.publishers))
        if self.is_unlucky(self.weather.meddling):
            self._meddle()
        if self.is_unlucky(self.weather.impatience):
            self._give_up(self.rng.choice(self.errands))
        if self.is_unlucky(self.weather.standstill):
            errand = self.rng.choice(self.errands)
            if errand.at is not None:
                errand.at.reserve(errand.write.write_id)

    def _crash(self, publisher: Publisher) -> None:
        """Its memory is gone; what it was putting may arrive all the same."""
        self.tally["crashes"] += 1
        publisher.is_alive = False
        for obj in publisher.in_flight:
            self.putters[obj.op_id] = publisher.name
            self.late += [obj] if self.rng.random() < 0.5 else []
        self.jobs = [job for job in self.jobs if job.publisher is not publisher]
        for errand in self.errands:
            if errand.at is publisher:
                errand.hear(Told.ENDED, self)

    def _meddle(self) -> None:
        """A recovery raises the epoch, or somebody who speaks for the owner is faster than its rounds."""
        operation = self.new_operation()
        if self.rng.random() < 0.1:
            raised = line.change_owner(self.newest, op_id=operation, owner=EMBEDDED)
            self.putters[operation] = EMBEDDED
            self.apply(raised)
            return
        content, key = self.contents[self.newest.op_id], self.rng.choice(KEYS)
        write = Write(operation, "", "delete" if key in content.keys else "append", key)
        self.writes[operation] = write
        self.putters[operation] = self.newest.owner
        self.apply(_object(self.newest, operation, [write], content.version + 1))

    def _give_up(self, errand: Errand) -> None:
        publisher, errand.at = errand.at, None
        if publisher is not None:
            errand.in_doubt = True
            if self.rng.random() < 0.8:
                publisher.dispatch(r.Abandoned(errand.write.write_id))

    # The end

    def calm_down(self) -> None:
        self.weather = Weather()
        for job in self.jobs:
            job.due = self.now

    @property
    def is_done(self) -> bool:
        return not self.jobs and not self.late and all(errand.told is not None for errand in self.errands)

    def check_end(self) -> None:
        for errand in self.errands:
            if errand.told is None:
                raise Violation(f"nobody answers {errand.write.write_id}")
            if (errand.told is Told.COMMITTED) != (errand.write.write_id in self.committed):
                raise Violation(f"{errand.write.write_id} was answered '{errand.told}', which the line denies")
        for publisher in self.publishers:
            if publisher.serves and (publisher.waiting or publisher.works or not publisher.rounds.is_idle):
                raise Violation(f"{publisher.name} holds on to {sorted(publisher.waiting)}")


# Publishers


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
    """One life of a publisher: what `omniray.coordinator.publisher` does with instructions, without the storage."""

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
        work.ours = _object(work.base, operation, work.accepted, work.after.version)
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


def _object(base: CommitObject, operation: str, writes: list[Write], version: int) -> CommitObject:
    commits = tuple(Commit(w.write_id, w.verb, w.tenant, 0, (TABLE,), w.key) for w in writes)
    pin = Pin(version, operation, since=0, rows=0)
    return line.follow(base, op_id=operation, changed={TABLE: pin}, commits=commits, finalised_through=0)


def _after_a_while(event: r.Event) -> Steps:
    yield
    yield
    return event


# Schedules


def run(seed: int, weather: Weather | None = None) -> World:
    """One schedule: turmoil, then calm until everybody knows; raises `Violation` where a promise breaks."""
    world = World(random.Random(seed), weather)
    for _ in range(TURMOIL_STEPS + DRAIN_STEPS):
        if world.is_done:
            break
        if world.now == TURMOIL_STEPS:
            world.calm_down()
        world.step()
    world.check_end()
    return world


def _limits(rng: random.Random, is_saturated: bool) -> r.Limits:
    if is_saturated:
        return r.Limits(RoundLimits(intents=rng.choice((4, 16)), rows=rng.choice((1_500, 4_000))))
    intents = rng.choice((3, 8, 1_000))
    return r.Limits(
        RoundLimits(intents=rng.choice((1, 3, 1_000)), rows=rng.choice((600, 65_000))),
        waiting_intents=intents,
        waiting_bytes=rng.choice((20_000, 1 << 30)),
        tenant_intents=max(2, intents // 2),
        tenant_bytes=rng.choice((12_000, 1 << 30)),
    )


def _wishes(rng: random.Random, is_saturated: bool) -> list[Write]:
    if is_saturated:
        rows = {"ann": 500, "bob": 240, "cat": 90}
        return [Write(f"{t}{n}", t, "merge", rng.choice(KEYS), rows[t]) for n in range(36) for t in rows]
    return [_wish(rng, number) for number in range(rng.randint(8, 22))]


def _wish(rng: random.Random, number: int) -> Write:
    return Write(
        f"w{number}",
        rng.choice(("ann", "ann", "bob")),
        rng.choice(("append", "append", "merge", "delete")),
        rng.choice(KEYS),
        rng.choice((1, 1, 500, ROWS_MAX)),
        expected=0 if rng.random() < 0.15 else None,
        alone=rng.random() < 0.05,
    )
