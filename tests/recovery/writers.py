"""Real processes that write, stop, die and recover, for tests that watch what becomes of a graph meanwhile.

Those of which a test needs many are forked from a server that has imported everything and opened nothing, so that one
more costs next to nothing. One that is to be stopped must be a child of the test itself, which has to hear of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any

from omniray.engine.base.errors import Fenced
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.process import this_process
from omniray.engine.graph import Graph
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import Parts
from tests.healing import add
from tests.kit.mortal import crash
from tests.stores import Root

END_TIMEOUT_S = 60
TABLES = {"Person": "nodes/Person.lance", "City": "nodes/City.lance", "Knows": "edges/Knows.lance"}

own = multiprocessing.get_context("spawn")
forking = multiprocessing.get_context("forkserver")
forking.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Began:
    write: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    write: str


@dataclass(frozen=True, slots=True)
class Failed:
    """What must not happen to a process that lives."""

    write: str
    error: str


class Child:
    """A process, as the test holds it; what it sends before it dies arrives."""

    def __init__(self, target: Callable[..., None], *arguments: Any, context: Any = forking) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_live, args=(target, theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def ask(self, question: Any) -> Any:
        self.pipe.send(question)
        return self.pipe.recv()

    def received(self) -> Iterator[Any]:
        """All that is there to be read; a report in the middle of which the process was killed is none."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    def end(self) -> int | None:
        """Tell the process to end, by closing its pipe; its exit code."""
        self.pipe.close()
        self.process.join(END_TIMEOUT_S)
        return self.process.exitcode


def _live(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    faulthandler.enable()
    warnings.filterwarnings("ignore", "lance is not fork-safe")
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        target(pipe, *arguments)


def records(write: str) -> list[dict[str, Any]]:
    """One write, with rows in all tables."""
    return [
        {"type": "Person", "data": {"name": f"{write}@a"}},
        {"type": "Person", "data": {"name": f"{write}@b"}},
        {"type": "City", "data": {"name": f"{write}@c"}},
        {"edge": "Knows", "id": f"{write}@d", "from": f"{write}@a", "to": f"{write}@b"},
    ]


def rows_of_writes(read: Callable[[str], Any]) -> dict[str, list[str]]:
    """By write: its rows in all tables, as often as they are there."""
    found: dict[str, list[str]] = {}
    for type_name in TABLES:
        for id in read(type_name)["id"].to_pylist():
            write, _, row = id.partition("@")
            found.setdefault(write, []).append(row)
    return found


WHOLE = ["a", "b", "c", "d"]


# A writer that is stopped


def stop_before_commit(pipe: Connection, root: Root) -> None:
    """Write what one is told to; stop the whole process just before Phase C of each write's first attempt.

    `owner` is where a coordinator's writer is reached, or nothing for an embedded one.
    """
    while True:
        write, owner = pipe.recv()
        graph = Graph(
            open_store(f"{root.uri}/graph", root.storage_options),
            read_only=False,
            owner=str(Incarnation.new(owner)) if owner else EMBEDDED,
        )
        with armed({Point.C_BEFORE_PUT: Action(_stop, nth=1)}):
            try:
                pipe.send(graph.load(records(write), actor=write).commit_id)
            except Fenced as fenced:
                pipe.send(fenced)
        assert pipe.recv() == "close"
        graph.close()
        pipe.send("closed")


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_until_stopped(pid: int) -> None:
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED)
    assert found is not None
    assert found.si_code == os.CLD_STOPPED, "it ended instead"


# Recoveries


def leave(store: ObjectStore, point: Point, name: str) -> None:
    """Have a process die at a point while it writes a name to two tables; everybody here knows that it is dead."""

    def write_as_one_that_ended(parts: Parts) -> None:
        parts.writer._stager._process = replace(this_process(), started="before")
        add(parts, name)

    crash(store, point, write_as_one_that_ended)


def recover_together(pipe: Connection, barrier: Barrier) -> None:
    """Open the graph that one is told, at the same moment as the others; opening recovers."""
    while True:
        root: Root = pipe.recv()
        barrier.wait(END_TIMEOUT_S)
        with Graph(open_store(f"{root.uri}/graph", root.storage_options), read_only=False) as graph:
            found = len(graph.recoveries())
        pipe.send(found)


# Writers that are killed


def write_until_told(pipe: Connection, root: Root, name: str) -> None:
    """Write one after the other, and say so before and after each; end when told anything."""
    with Graph(open_store(f"{root.uri}/graph", root.storage_options), read_only=False) as graph:
        number = 0
        while not pipe.poll():
            number += 1
            write = f"{name}-{number}"
            pipe.send(Began(write))
            try:
                graph.load(records(write), actor=write)
            except Exception as error:
                pipe.send(Failed(write, repr(error)))
                return
            pipe.send(Acknowledged(write))
