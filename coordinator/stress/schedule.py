"""The schedule of a chaos: what is broken when, all of it drawn from the seed before anything happens.

Every kind of disturbance comes up once before one comes up again. Those that last come in pairs, with an end that lies
within the run, so that nothing stays broken when the graph is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from omniray.coordinator.stress.fault_proxy import StoreFault, Weather

PAUSE_S = (0.5, 3.5)
LASTS_S = (0.5, 4.0)
BROKEN_SHARE = (0.2, 0.9)
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
    """Stop the process of an actor; it is not dead and does not know that it was away."""

    role: Role
    lot: int


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let whatever is frozen go on."""


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Kill the second node of the cluster, with every actor that happens to be on it."""


@dataclass(frozen=True, slots=True)
class AddNode:
    """Bring up a node in place of the lost one."""


@dataclass(frozen=True, slots=True)
class BreakStore:
    """Let a share of the requests to the store go wrong."""

    weather: Weather


@dataclass(frozen=True, slots=True)
class MendStore:
    """Let all requests through again."""


Disturbance: TypeAlias = KillWriter | KillActor | Freeze | Thaw | LoseNode | AddNode | BreakStore | MendStore


@dataclass(frozen=True, slots=True)
class Due:
    """A disturbance and its time, in seconds since the writers set off."""

    at_s: float
    disturbance: Disturbance


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
    free_from_s = dict.fromkeys(_Kind, 0.0)
    at_s = rng.uniform(*PAUSE_S)
    for kind in _dealt(rng, kinds):
        if at_s >= seconds:
            return tuple(sorted(due, key=lambda one: one.at_s))
        ends_s = min(seconds, at_s + rng.uniform(*LASTS_S))
        begin, *end = _drawn(rng, kind)
        if at_s >= free_from_s[kind]:
            due += [Due(at_s, begin), *(Due(ends_s, one) for one in end)]
            free_from_s[kind] = ends_s if end else at_s
        at_s += rng.uniform(*PAUSE_S)
    raise AssertionError("kinds are dealt without end")


def _dealt(rng: random.Random, kinds: list[_Kind]) -> Iterator[_Kind]:
    """The kinds in a new order each time round."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def _drawn(rng: random.Random, kind: _Kind) -> tuple[Disturbance, ...]:
    """A disturbance of a kind, and what ends it if it lasts."""
    lot = rng.randrange(LOT_MAX)
    match kind:
        case _Kind.WRITER:
            return (KillWriter(lot),)
        case _Kind.PUBLISHER | _Kind.QUEUES | _Kind.RECONCILER:
            return (KillActor(Role(kind.value), lot),)
        case _Kind.FREEZE:
            return Freeze(rng.choice(list(Role)), lot), Thaw()
        case _Kind.NODE:
            return LoseNode(), AddNode()
        case _Kind.STORE:
            weather = Weather(rng.choice(list(StoreFault)), rng.uniform(*BROKEN_SHARE))
            return BreakStore(weather), MendStore()
