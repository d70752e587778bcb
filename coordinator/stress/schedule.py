"""The schedule of a chaos: what is broken when, all of it drawn from the seed before anything happens.

Every kind of disturbance comes up once before one comes up again. Most of them wait until the system has shown since
the last one that it is alive, or a slow machine would spend the whole run starting processes and commit nothing; the
others meet it while it heals.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from omniray.coordinator.stress.request_faults import StoreFault, Weather

PAUSE_S = (0.5, 3.5)
LASTS_S = (0.5, 4.0)
BROKEN_SHARE = (0.2, 0.9)
PATIENT_SHARE = 0.75
# Those that a store in trouble shows; the others are for a request that a test chooses.
WEATHERS = (StoreFault.INTERNAL_ERROR, StoreFault.SLOW_DOWN, StoreFault.LOST_ANSWER, StoreFault.DELAY)
LOT_MAX = 1 << 16


class Role(StrEnum):
    """The actors of a coordinator."""

    PUBLISHER = "publisher"
    QUEUES = "queues"
    RECONCILER = "reconciler"


@dataclass(frozen=True, slots=True)
class KillWriter:
    """Kill one writer, drawn by lot; a new one takes its place."""

    lot: int


@dataclass(frozen=True, slots=True)
class KillActor:
    """Kill the process of an actor, which Ray restarts."""

    role: Role
    lot: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop the process of an actor for a while; it is not dead and does not know that it was away."""

    role: Role
    lot: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Kill the second node of the cluster, with every actor that happens to be on it; another one comes up later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BreakStore:
    """Let a share of the requests to the store go wrong for a while."""

    weather: Weather
    seconds: float


Disturbance: TypeAlias = KillWriter | KillActor | Freeze | LoseNode | BreakStore


@dataclass(frozen=True, slots=True)
class Due:
    """A disturbance and its time, in seconds since the writers set off, or later if it waits for a sign of life."""

    at_s: float
    disturbance: Disturbance
    patient: bool


class _Kind(StrEnum):
    WRITER = "writer"
    PUBLISHER = "publisher"
    QUEUES = "queues"
    RECONCILER = "reconciler"
    FREEZE = "freeze"
    NODE = "node"
    STORE = "store"


def schedule(seed: int, seconds: float, *, store: bool) -> tuple[Due, ...]:
    """All disturbances of a run in the order of time; the store is only broken where that can be done."""
    rng = random.Random(f"{seed}/chaos")
    kinds = [kind for kind in _Kind if store or kind is not _Kind.STORE]
    due: list[Due] = []
    at_s = rng.uniform(*PAUSE_S)
    for kind in _dealt(rng, kinds):
        if at_s >= seconds:
            break
        due.append(Due(at_s, _drawn(rng, kind), patient=rng.random() < PATIENT_SHARE))
        at_s += rng.uniform(*PAUSE_S)
    return tuple(due)


def _dealt(rng: random.Random, kinds: list[_Kind]) -> Iterator[_Kind]:
    """The kinds, without end, in a new order each time round."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def _drawn(rng: random.Random, kind: _Kind) -> Disturbance:
    lot, seconds = rng.randrange(LOT_MAX), rng.uniform(*LASTS_S)
    match kind:
        case _Kind.WRITER:
            return KillWriter(lot)
        case _Kind.PUBLISHER | _Kind.QUEUES | _Kind.RECONCILER:
            return KillActor(Role(kind.value), lot)
        case _Kind.FREEZE:
            return Freeze(rng.choice(list(Role)), lot, seconds)
        case _Kind.NODE:
            return LoseNode(seconds)
        case _Kind.STORE:
            return BreakStore(Weather(rng.choice(WEATHERS), rng.uniform(*BROKEN_SHARE)), seconds)
