"""The writers' processes: started a few at a time, sent off together, killed and replaced by the chaos.

Each process has a pipe of its own, over which it reports that it is ready and is told when to end; they share nothing,
so that killing one at any moment blocks no other. A writer whose pipe closes stops.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from omniray.coordinator.client.client import Client, connect
from omniray.coordinator.stress.workloads import PARTS, Workload
from omniray.coordinator.stress.writer import NS_PER_S
from omniray.engine.base.errors import OmnirayError, StorageError, Unreachable

STARTING_MAX = 4
START_TIMEOUT_S = 180.0
WRITE_TIMEOUT_S = 30.0
END_TIMEOUT_S = 4 * WRITE_TIMEOUT_S  # a step reads once, and sends a write at most twice
PAUSE_S = 0.2
TENANTS = ("even", "odd")


@dataclass(frozen=True, slots=True)
class Task:
    """The parameters of every writer: the graph, its coordinator, the seed, the folder of the histories, what to do."""

    uri: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    address: str
    seed: int
    folder: Path
    workload: Workload

    def history_path(self, number: int) -> Path:
        return self.folder / f"writer-{number:04}.jsonl"


@dataclass(frozen=True, slots=True)
class _Child:
    number: int
    process: SpawnProcess
    pipe: Connection


class Writers:
    """The writers of a run; as a context manager it ends the writers that are left."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._starting: list[_Child] = []
        self._ready: list[_Child] = []
        self._begun = 0
        self._ends_ns = 0

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self._starting, *self._ready):
            child.pipe.close()
            child.process.kill()
            child.process.join()

    def start(self, count: int) -> None:
        """Start `count` writers, only a few at a time, since starting costs the most; returns when all are ready."""
        for _ in range(count):
            while len(self._starting) >= STARTING_MAX:
                self._hear(START_TIMEOUT_S)
            self._begin()
        while self._starting:
            self._hear(START_TIMEOUT_S)

    def send_off(self, seconds: float) -> None:
        """Let all writers work for some seconds."""
        self._ends_ns = time.monotonic_ns() + int(seconds * NS_PER_S)
        for child in self._ready:
            child.pipe.send(self._ends_ns)

    def tend(self) -> None:
        """Send off the replacements that have become ready."""
        for child in self._hear(0.0):
            child.pipe.send(self._ends_ns)

    def kill(self, lot: int) -> int | None:
        """Kill the writer that the lot falls on, and start a replacement; returns its number, if there was one."""
        if not self._ready:
            return None
        child = self._ready.pop(lot % len(self._ready))
        child.process.kill()
        child.process.join()
        child.pipe.close()
        self._begin()
        return child.number

    def wait(self) -> None:
        """Wait until all writers are done; raises if one has failed, or does not end."""
        for child in self._starting:  # too late to work
            child.process.kill()
        deadline = time.monotonic() + END_TIMEOUT_S
        for child in self._ready:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.exitcode != 0:
                raise _failed(child)

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=write, args=(self._task, self._begun, theirs), daemon=True)
        process.start()
        theirs.close()
        self._starting.append(_Child(self._begun, process, ours))
        self._begun += 1

    def _hear(self, timeout_s: float) -> list[_Child]:
        """Wait for starting writers; returns those that are ready."""
        pipes = wait([child.pipe for child in self._starting], timeout_s)
        ready = [child for child in self._starting if child.pipe in pipes]
        if timeout_s and not ready:
            raise Unreachable(f"no writer was ready within {timeout_s:.0f} s; give it fewer writers, or try again")
        for child in ready:
            try:
                child.pipe.recv()
            except EOFError as error:
                raise _failed(child) from error
            self._starting.remove(child)
            self._ready.append(child)
        return ready


def write(task: Task, number: int, pipe: Connection) -> None:
    """The main function of a writer's process: connect, report it, wait for the start, and work for its time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    with _connected(task, number) as client, contextlib.suppress(EOFError):
        pipe.send(number)
        seconds = (pipe.recv() - time.monotonic_ns()) / NS_PER_S
        PARTS[task.workload].run_writer(
            client, seed=task.seed, writer_no=number, history_path=task.history_path(number), seconds=seconds,
            stop=pipe.poll,
        )  # fmt: skip


def _connected(task: Task, number: int) -> Client:
    """A client of the coordinator; waits while the coordinator does not answer."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return connect(
                task.uri, actor=f"writer {number}", tenant=TENANTS[number % len(TENANTS)],
                storage_options=task.storage_options, address=task.address, timeout_s=WRITE_TIMEOUT_S,
            )  # fmt: skip
        except OmnirayError as error:
            if error.retry != "safe" or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def _failed(child: _Child) -> StorageError:
    child.process.join(PAUSE_S)
    code = child.process.exitcode
    how = "does not end" if code is None else f"ended with exit code {code}, and its error is above"
    return StorageError(f"writer {child.number} {how}; this is not a violation, but the run proves nothing: try again")
