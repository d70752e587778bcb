"""What the random world around the rounds speaks of: writes, what they leave, what clients hear, and the weather."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from omniray.coordinator.rounds import machine as r
from omniray.coordinator.rounds.fairness import ROW_COST, WRITE_COST, Ticket
from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import EMBEDDED, Commit, CommitObject, Pin

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


def any_weather(rng: random.Random) -> Weather:
    def some(*rates: float) -> float:
        return rng.choice(rates)

    if rng.random() < 0.3:
        return rng.choice((LATE_ANSWERS, LATE_NEWS, MANY_ATTEMPTS))
    return Weather(
        store=some(0, 0.05, 0.1), slow=some(0, 0.1, 0.3), cold=some(0, 0.05, 0.2), drift=some(0, 0.1, 0.3),
        crash=some(0, 0, 0.01), suspicion=some(0, 0, 0.02), meddling=some(0, 0, 0.03),
        impatience=some(0, 0.02), standstill=some(0, 0, 0.03), confusion=some(0, 0.3),
    )  # fmt: skip


def object_on(base: CommitObject, operation: str, writes: list[Write], version: int) -> CommitObject:
    """The object that commits some writes on top of another."""
    commits = tuple(Commit(w.write_id, w.verb, w.tenant, 0, (TABLE,), w.key) for w in writes)
    pin = Pin(version, operation, since=0, rows=0)
    return line.follow(base, op_id=operation, changed={TABLE: pin}, commits=commits, finalised_through=0)
