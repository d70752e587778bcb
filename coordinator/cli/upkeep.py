"""What `omniray up` does while it runs: it stays with the coordinator until it is asked to end, and notices its end.

Ray restarts the actors by itself. What is left to see from outside is that they are gone for good, or serve nobody:
somebody took the coordinator down or took the graph over, or Ray itself is lost.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import FrameType

from omniray.coordinator.actors import cluster
from omniray.coordinator.client.service import Service
from omniray.engine.base.errors import Fenced, StorageError, Unreachable
from omniray.engine.graph import Graph
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation

LOOK_EVERY_S = 1.0
DOUBTS_MAX = 10  # looks in a row that say it is over; less than Ray itself takes to give up, in which it ends us


class Fate(Enum):
    """What became of a coordinator."""

    SERVING = "serving"
    TAKEN_DOWN = "taken down"
    FENCED = "fenced"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What can be seen of a coordinator from outside. `line_is_at`: the address of the line's owner, if it has one."""

    line_is_at: str | None
    ray_answers: bool
    has_publisher: bool

    def fate(self, here: str) -> Fate:
        """Say what became of the coordinator at `here`; one that does not answer is Ray's to restart."""
        if not self.ray_answers:
            return Fate.LOST
        if self.line_is_at == here:
            return Fate.SERVING if self.has_publisher else Fate.LOST
        if self.line_is_at is None and not self.has_publisher:
            return Fate.TAKEN_DOWN
        return Fate.FENCED


def stay(look: Callable[[], Sighting], here: str, asked_to_end: threading.Event, every_s: float = LOOK_EVERY_S) -> Fate:
    """Stay with the coordinator at `here` until somebody asks to end, or it serves no more; what became of it.

    Only a coordinator that was taken down is believed at once. The rest may be about to pass: a line that was handed
    back while the actors are being ended, or a head of Ray that comes back.
    """
    doubts = 0
    while doubts < DOUBTS_MAX and not asked_to_end.wait(every_s):
        try:
            fate = look().fate(here)
        except StorageError:  # the publisher has its own way with a store that fails
            continue
        if fate is Fate.TAKEN_DOWN:
            return fate
        doubts = 0 if fate is Fate.SERVING else doubts + 1
    return Fate.SERVING if asked_to_end.is_set() else fate


def look(graph: Graph, service: Service) -> Sighting:
    """See what there is of a coordinator. Ray is asked only where it listens, since it would wait for minutes."""
    owner = graph.owner
    ray_answers = cluster.is_listening(service.address)
    return Sighting(
        line_is_at=None if owner == EMBEDDED else Incarnation.parse(owner).address,
        ray_answers=ray_answers,
        has_publisher=ray_answers and cluster.find(service.place.publisher) is not None,
    )


def end(fate: Fate, service: Service, timeout_s: float) -> None:
    """End a coordinator: one that serves is drained first, and of one that was fenced nothing is left to drain."""
    if fate is Fate.SERVING:
        service.down(timeout_s)
    elif fate is Fate.FENCED:
        service.end()


def farewell(fate: Fate, *, is_ours: bool) -> str:
    """What to tell a person at the end, where it is not an error."""
    if fate is Fate.TAKEN_DOWN:
        return "the coordinator was taken down"
    if fate is Fate.SERVING:
        return "draining; a second signal ends it at once" if is_ours else "the coordinator goes on"
    return ""


def refuse_lost(fate: Fate, graph: Graph, service: Service) -> None:
    """Raise if a coordinator has ended although nobody asked for it."""
    if fate is Fate.FENCED:
        raise Fenced(
            f"{graph.uri} was taken over by somebody else: the coordinator at {service.address} has ended; 'omniray "
            "status' shows who serves it now",
            address=service.address,
        )
    if fate is Fate.LOST:
        raise Unreachable(
            f"the coordinator at {service.address} is lost, and Ray does not bring it back; what it answered is "
            "written: start it again with 'omniray up'",
            address=service.address,
        )


@contextmanager
def asked_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; the second of them has its usual effect."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        restore()

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        restore()
