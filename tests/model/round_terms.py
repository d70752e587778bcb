"""What the random world around the rounds speaks of: writes, what they leave, what clients hear, and the weather."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from omniray.coordinator.rounds.fairness import BYTES_OF_A_COST, ROW_COST, WRITE_COST
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_object import Pin, SchemaRef, before_first, follow
from omniray.engine.schema.parser import parse_schema

SCHEMA = parse_schema("node A { name: String @key by: String } node B { name: String @key by: String }")
TABLES = tuple(SCHEMA.by_table_key)
KEYS = ("a", "b")
ROWS_MAX = 900
BYTES_PER_ROW = 10
COST_MAX = WRITE_COST + ROW_COST * ROWS_MAX + BYTES_PER_ROW * ROWS_MAX // BYTES_OF_A_COST
BRANCH = BranchId(MAIN, "01M00000000000000000000000")
SCHEMA_HASH = "hash"


def pin_of(table_key: str, version: int, transaction: str, rows: int) -> Pin:
    """A version of a table, by a transaction."""
    return Pin(table_key, SCHEMA.by_table_key[table_key].first_path, version, transaction, rows, content=transaction)


FIRST = follow(
    before_first(BRANCH.ulid, SchemaRef("file", SCHEMA_HASH, 1)),
    op_id="creation",
    changed={key: pin_of(key, 1, f"{SCHEMA.by_table_key[key].name}-1", 0) for key in TABLES},
    commits=(),
    finalised_through=1,
)


class Violation(AssertionError):
    """A promise of the coordinator is broken."""


class Told(StrEnum):
    """What a client may hear of its write."""

    COMMITTED = "committed"
    REFUSED = "refused"
    NOTHING = "nothing to do"
    MOVED = "moved"  # it was judged elsewhere, on versions that are old by now: its client judges it again
    FAILED = "failed"  # the store, or a table that drifted: nothing was written
    OVERLOADED = "overloaded"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"  # the publisher's life is over: what became of the write is for its successor to say


FINAL = (Told.COMMITTED, Told.REFUSED, Told.NOTHING)


@dataclass(frozen=True, slots=True)
class Write:
    write_id: str
    tenant: str
    verb: str  # append, merge or delete
    key: str
    tables: tuple[str, ...] = TABLES[:1]
    rows: int = 1
    strict: bool = False  # its tables must have the versions that its client read before it sent it first
    prepared: bool = False  # a merge that its client judges itself, on versions that must stand still
    alone: bool = False
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """The graph: who wrote each key of each table, and the tables' versions."""

    rows: Mapping[str, Mapping[str, str]]
    versions: Mapping[str, int]

    def verdict(self, write: Write) -> Told:
        if any(self.versions[key] != version for key, version in write.versions.items()):
            return Told.MOVED if write.prepared else Told.REFUSED
        if write.verb == "append" and any(write.key in self.rows[table] for table in write.tables):
            return Told.REFUSED
        return Told.COMMITTED if self.touched(write) else Told.NOTHING

    def touched(self, write: Write) -> list[str]:
        return [table for table in write.tables if write.verb != "delete" or write.key in self.rows[table]]

    def after(self, write: Write, base: Content) -> Content:
        """The graph once the write is in; however many are in an object, a table moves by one version."""
        rows, versions = dict(self.rows), dict(self.versions)
        for table in self.touched(write):
            kept = {key: by for key, by in rows[table].items() if key != write.key}
            rows[table] = kept if write.verb == "delete" else {**kept, write.key: write.write_id}
            versions[table] = base.versions[table] + 1
        return Content(rows, versions)


EMPTY = Content({table: {} for table in TABLES}, dict.fromkeys(TABLES, 1))


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely each trouble is, at each step or for each request."""

    store: float = 0.0  # a request fails, is late, or loses its answer
    slow: float = 0.0  # a request takes very long
    slow_kind: str = ""  # the only kind of request to which that happens
    cold: float = 0.0  # a queue has lost what it staged
    drift: float = 0.0  # somebody else writes to a table
    crash: float = 0.0
    suspicion: float = 0.0  # a publisher is started though another one serves
    meddling: float = 0.0  # somebody else extends the line, or takes it over
    impatience: float = 0.0  # a client gives up waiting
    confusion: float = 0.0  # a client sends to a publisher that may have been fenced


# Troubles that do harm only where they meet, which is rare where everything else happens too.
LATE_ANSWERS = Weather(slow=0.5, slow_kind="commit answer", meddling=0.03)
LATE_NEWS = Weather(slow=0.2, slow_kind="stage", cold=0.3, meddling=0.04)
MANY_ATTEMPTS = Weather(store=0.03, cold=0.2, drift=0.05)


def any_weather(rng: random.Random) -> Weather:
    def some(*rates: float) -> float:
        return rng.choice(rates)

    if rng.random() < 0.3:
        return rng.choice((LATE_ANSWERS, LATE_NEWS, MANY_ATTEMPTS))
    return Weather(
        store=some(0, 0.02, 0.05), slow=some(0, 0.05, 0.15), cold=some(0, 0.05, 0.2), drift=some(0, 0, 0.01),
        crash=some(0, 0, 0.005), suspicion=some(0, 0, 0.01), meddling=some(0, 0, 0.02),
        impatience=some(0, 0.02), confusion=some(0, 0.3),
    )  # fmt: skip
