"""What `omniray up` does while it runs: it watches the coordinator until it is asked to end or the coordinator ends.

Ray restarts the actors by itself. This module detects from outside that they are gone for good or serve no more: the
coordinator was taken down or fenced, its graph was deleted or replaced, or Ray itself is lost.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import FrameType

from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.hosting import Hosted
from omniray.engine.base.errors import Fenced, GraphGone, StorageError, Unreachable
from omniray.engine.graph import Graph
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation

LOOK_EVERY_S = 1.0
DOUBTS_MAX = 10  # looks in a row that show an end; quicker than Ray gives up, which would end this process


class Fate(Enum):
    """What became of a coordinator."""

    SERVING = "serving"
    TAKEN_DOWN = "taken down"
    FENCED = "fenced"
    GRAPH_GONE = "graph gone"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A coordinator as seen from outside. `line_is_at`: the address of the coordinator that owns the line, if any."""

    line_is_at: str | None
    ray_answers: bool
    has_publisher: bool
    graph_is_gone: bool = False

    def fate(self, here: str) -> Fate:
        """What became of the coordinator at `here`; restarting one that does not answer is left to Ray."""
        if not self.ray_answers:
            return Fate.LOST
        if self.graph_is_gone:
            return Fate.GRAPH_GONE
        if self.line_is_at == here:
            return Fate.SERVING if self.has_publisher else Fate.LOST
        if self.line_is_at is None and not self.has_publisher:
            return Fate.TAKEN_DOWN
        return Fate.FENCED


class Idleness:
    """Tells when no client has been connected for `limit_s`; never, if that is None."""

    def __init__(self, clients: Callable[[], int], limit_s: float | None) -> None:
        self._clients, self._limit_s = clients, limit_s
        self._busy_at = time.monotonic()

    def is_over(self) -> bool:
        if self._limit_s is None:
            return False
        if self._clients():
            self._busy_at = time.monotonic()
        return time.monotonic() - self._busy_at >= self._limit_s


def stay(
    look: Callable[[], Sighting],
    here: str,
    asked_to_end: threading.Event,
    idle: Idleness,
    every_s: float = LOOK_EVERY_S,
) -> Fate:
    """Watch the coordinator at `here` until `asked_to_end` is set or it serves no more; returns its fate.

    One that has been idle for long enough is to be ended as if that had been asked for, also where its store has gone.

    Only `TAKEN_DOWN` is believed at once. Other fates may be transient: the line was handed back while the actors are
    being ended, the head node of Ray comes back, or the disk of the graph is mounted again.
    """
    doubts = 0
    while doubts < DOUBTS_MAX and not asked_to_end.wait(every_s):
        try:
            if idle.is_over():
                return Fate.SERVING
            fate = look().fate(here)
        except StorageError:  # the publisher handles a failing store itself
            continue
        if fate is Fate.TAKEN_DOWN:
            return fate
        doubts = 0 if fate is Fate.SERVING else doubts + 1
    return Fate.SERVING if asked_to_end.is_set() else fate


def look(graph: Graph, hosted: Hosted) -> Sighting:
    """Look at a coordinator from outside. Ray is asked only if it listens, since it would wait for minutes."""
    owner = graph.owner
    ray_answers = cluster.is_listening(hosted.address)
    return Sighting(
        line_is_at=None if owner == EMBEDDED else Incarnation.parse(owner).address,
        ray_answers=ray_answers,
        has_publisher=ray_answers and cluster.find(hosted.place.publisher) is not None,
        graph_is_gone=_is_gone(graph),
    )


def look_at_line(graph: Graph, here: str) -> Sighting:
    """Look at a coordinator that another process watches: only its line tells of it, and no Ray is asked."""
    owner = graph.owner
    line_is_at = None if owner == EMBEDDED else Incarnation.parse(owner).address
    return Sighting(line_is_at, True, has_publisher=line_is_at == here, graph_is_gone=_is_gone(graph))


def _is_gone(graph: Graph) -> bool:
    """Whether the graph was deleted or replaced: its line alone looks as if nothing had followed since."""
    try:
        graph.refuse_gone()
    except GraphGone:
        return True
    return False


def end(fate: Fate, hosted: Hosted, timeout_s: float) -> None:
    """End a coordinator: one that serves is drained first; without its line or its graph it has nothing to drain."""
    if fate is Fate.SERVING:
        hosted.down(timeout_s)
    elif fate in (Fate.FENCED, Fate.GRAPH_GONE):
        hosted.end()


def farewell(fate: Fate, *, is_ours: bool) -> str:
    """The note for a person at the end, if the fate is not an error."""
    if fate is Fate.TAKEN_DOWN:
        return "the coordinator was taken down"
    if fate is Fate.SERVING:
        return "draining; a second signal ends it at once" if is_ours else "the coordinator goes on"
    return ""


def refuse_lost(fate: Fate, graph: Graph, address: str) -> None:
    """Raise if a coordinator has ended unasked."""
    if fate is Fate.FENCED:
        raise Fenced(
            f"{graph.uri} was taken over by somebody else: the coordinator at {address} has ended; 'omniray "
            "status' shows who serves it now",
            address=address,
        )
    if fate is Fate.GRAPH_GONE:
        raise GraphGone(
            f"the graph {graph.graph_id} at {graph.uri} was deleted, or another one was created in its place: the "
            f"coordinator at {address} has ended; start one for what is there now with 'omniray up'",
            uri=graph.uri, graph_id=graph.graph_id, address=address,
        )  # fmt: skip
    if fate is Fate.LOST:
        raise Unreachable(
            f"the coordinator at {address} is lost, and Ray does not bring it back; what it answered is "
            "written: start it again with 'omniray up'",
            address=address,
        )


@contextmanager
def asked_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal has its usual effect."""
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
