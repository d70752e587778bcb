"""A random world around the rounds: publishers that come, are fenced and die, clients that ask until they know.

No Lance, no files, no threads: a list is the line. The decisions are the real ones of `rounds.machine` and
`line.commit_object`; a publisher here carries out its instructions as the real one does, each as a job whose steps a
seeded schedule interleaves with all the others, crashes, delays, lost answers and other owners of the line. Beside
stands the truth that none of them can see, and every answer is held against it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace

from omniray.coordinator.rounds import machine as r
from omniray.coordinator.rounds.fairness import RoundLimits
from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.store.object_store import Answer
from tests.model.round_publisher import Publisher, Waiting
from tests.model.round_terms import (
    BIRTH,
    KEYS,
    LATE_ANSWERS,
    ROWS_MAX,
    Content,
    Steps,
    Told,
    Violation,
    Weather,
    Write,
    any_weather,
    judge,
    object_on,
)

TURMOIL_STEPS = 220
DRAIN_STEPS = 20_000
LIVES_MAX = 7


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
        self.rng, self.weather = rng, weather or any_weather(rng)
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
        self.apply(object_on(self.newest, operation, [write], content.version + 1))

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
