"""The writers' processes: started a few at a time, sent off together, killed and replaced.

Each one has a pipe of its own, over which it says that it is ready and is told when to end; nothing is shared between
them, so that killing one at any moment holds up nobody. A writer whose pipe closes stops.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from omniray.coordinator.client.client import Client, connect
from omniray.coordinator.stress.writer import NS_PER_S, run_writer
from omniray.engine.base.errors import OmnirayError, StorageError, Unreachable

STARTING_MAX = 4
START_TIMEOUT_S = 180.0
WRITE_TIMEOUT_S = 30.0
END_TIMEOUT_S = 4 * WRITE_TIMEOUT_S  # a step sends a write twice at most, and reads before it
PAUSE_S = 0.2
TENANTS = ("even", "odd")


@dataclass(frozen=True, slots=True)
class Task:
    """What every writer is told: the graph, who serves it, the seed, and where the histories go."""

    uri: str
    storage_options: Mapping[str, str] | None
    address: str
    seed: int
    folder: Path

    def history_path(self, number: int) -> Path:
        return self.folder / f"writer-{number:04}.jsonl"


@dataclass(frozen=True, slots=True)
class _Child:
    number: int
    process: SpawnProcess
    pipe: Connection


class Writers:
    """The writers of a run; use it as a context manager, which ends those that are left."""

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
        """Have so many writers ready; only a few start at the same time, since that is the dearest of all they do."""
        for _ in range(count):
            while len(self._starting) >= STARTING_MAX:
                self._hear(START_TIMEOUT_S)
            self._begin()
        while self._starting:
            self._hear(START_TIMEOUT_S)

    def send_off(self, seconds: float) -> None:
        """Let all of them work, for so long."""
        self._ends_ns = time.monotonic_ns() + int(seconds * NS_PER_S)
        for child in self._ready:
            child.pipe.send(self._ends_ns)

    def tend(self) -> None:
        """Send off the substitutes that have become ready."""
        for child in self._hear(0.0):
            child.pipe.send(self._ends_ns)

    def kill(self, lot: int) -> int | None:
        """Kill the writer that the lot falls on, and start another one in its place; its number, if there was one."""
        if not self._ready:
            return None
        child = self._ready.pop(lot % len(self._ready))
        child.process.kill()
        child.process.join()
        child.pipe.close()
        self._begin()
        return child.number

    def wait(self) -> None:
        """Wait until all are done; raises if one has failed, or does not end."""
        for child in self._starting:  # too late to be of use
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
        """Wait for writers that start to become ready; those that have."""
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
    """What a writer's process does: connect, say so, wait for the start, and work until its time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    with _connected(task, number) as client, contextlib.suppress(EOFError):
        pipe.send(number)
        seconds = (pipe.recv() - time.monotonic_ns()) / NS_PER_S
        run_writer(
            client, seed=task.seed, writer_no=number, history_path=task.history_path(number), seconds=seconds,
            stop=pipe.poll,
        )  # fmt: skip


def _connected(task: Task, number: int) -> Client:
    """A client of the coordinator, which may be away at the moment."""
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
    return StorageError(f"writer {child.number} {how}; this is no violation, but the run says nothing: try again")
