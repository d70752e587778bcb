"""What `omniray up` does while it runs: it stays with the coordinator until it is asked to end, and notices its end.

Ray restarts the actors by itself. What is left to see from outside is that they are gone for good, or serve nobody:
somebody took the coordinator down or took the graph over, or Ray itself is lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from omniray.coordinator import cluster
from omniray.coordinator.service import Service
from omniray.engine.errors import Fenced, StorageError, Unreachable
from omniray.engine.graph import Graph
from omniray.engine.line import EMBEDDED
from omniray.engine.owner import Incarnation

LOOK_EVERY_S = 1.0
DOUBTS_MAX = 10  # looks in a row that say it is over; less than Ray itself takes to give up, in which it ends us
START_TIMEOUT_S = 120.0
READ_EVERY_S = 0.1
LOG_LINES_SHOWN = 10


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


# In the foreground


def stay(graph: Graph, service: Service, asked_to_end: threading.Event) -> Fate:
    """Stay until that is asked for, or the coordinator serves no more; what became of it.

    Only a coordinator that was taken down is believed at once. The rest may be about to pass: a line that was handed
    back while the actors are being ended, or a head of Ray that comes back.
    """
    doubts = 0
    while doubts < DOUBTS_MAX and not asked_to_end.wait(LOOK_EVERY_S):
        try:
            fate = _look(graph, service).fate(service.address)
        except StorageError:  # the publisher has its own way with a store that fails
            continue
        if fate is Fate.TAKEN_DOWN:
            return fate
        doubts = 0 if fate is Fate.SERVING else doubts + 1
    return Fate.SERVING if asked_to_end.is_set() else fate


def _look(graph: Graph, service: Service) -> Sighting:
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
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    yield asked


# In the background


@dataclass(frozen=True, slots=True)
class Detached:
    """A coordinator's process in the background; `said` is its document, once it serves."""

    pid: int
    log: Path
    said: dict[str, Any]


def detach(command: Sequence[str], log: Path, timeout_s: float = START_TIMEOUT_S) -> Detached:
    """Run a command in the background and wait for the JSON document that it writes when it serves.

    Raises `Unreachable` with the end of its log if it ends before, or is ended since it takes too long.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        begins = sink.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    try:
        said = _wait_for_document(process, log, begins, timeout_s)
    except BaseException:
        process.terminate()
        raise
    if said.get("joined"):  # it would watch what another process looks after
        process.terminate()
        process.wait()
    return Detached(process.pid, log, said)


def log_of(graph_id: str) -> Path:
    """Where the process in the background that serves a graph writes."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "omniray", f"up-{graph_id}.log")


def _wait_for_document(process: subprocess.Popen[bytes], log: Path, begins: int, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        code = process.poll()
        lines = _lines(log, begins)
        if said := next(_documents(lines), None):
            return said
        if code is not None or time.monotonic() > deadline:
            what = f"gave no answer in {timeout_s:g} s" if code is None else f"ended with exit code {code}"
            shown = "".join(f"\n    {line}" for line in lines[-LOG_LINES_SHOWN:])
            raise Unreachable(f"the coordinator {what} before it served; {log} ends with:{shown}", log=str(log))
        time.sleep(READ_EVERY_S)


def _lines(log: Path, begins: int) -> list[str]:
    """The lines that are complete."""
    with log.open("rb") as source:
        source.seek(begins)
        return source.read().decode(errors="replace").rpartition("\n")[0].splitlines()


def _documents(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "epoch" in said:
            yield said
