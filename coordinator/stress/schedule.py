"""The schedule of the chaos: what is broken when, drawn from the seed before the run begins.

Every kind of disturbance occurs once before a kind occurs again. Most of them wait until writes were acknowledged since
the last one, or a slow machine would spend the whole run starting processes and commit nothing; the others occur while
the system recovers.
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
# The faults of a store in trouble; tests choose the others for a certain request.
WEATHERS = (StoreFault.INTERNAL_ERROR, StoreFault.SLOW_DOWN, StoreFault.LOST_ANSWER, StoreFault.DELAY)
LOT_MAX = 1 << 16


class Role(StrEnum):
    """The actors of a coordinator."""

    PUBLISHER = "publisher"
    QUEUES = "queues"
    RECONCILER = "reconciler"


@dataclass(frozen=True, slots=True)
class KillWriter:
    """Kill one writer, chosen by lot; a new one replaces it."""

    lot: int


@dataclass(frozen=True, slots=True)
class KillActor:
    """Kill the process of an actor, which Ray restarts."""

    role: Role
    lot: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """Suspend the process of an actor for a while; it does not notice the pause."""

    role: Role
    lot: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Kill the second node of the cluster, with every actor on it; another node starts later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BreakStore:
    """Let a share of the requests to the store fail for a while."""

    weather: Weather
    seconds: float


Disturbance: TypeAlias = KillWriter | KillActor | Freeze | LoseNode | BreakStore


@dataclass(frozen=True, slots=True)
class Due:
    """A disturbance and its time, in seconds since the writers started; later if it waits for acknowledged writes."""

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
    """All disturbances of a run in the order of time; with `store`, faults of the store too."""
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
    """The kinds, endlessly, in a new order each time round."""
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
