"""The processes of a run: started a few at a time, asked with a time limit, and ended with the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from bench.measure import REPOSITORY
from bench.peers.rows import Workload
from bench.peers.systems import Place, interpreter

STARTED_AT_ONCE = 8
ANSWER_TIMEOUT_S = 180.0
EXIT_TIMEOUT_S = 10.0


class RunFailed(Exception):
    """A process of the run reported an error, died, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process; `bench.peers.process` defines its commands."""

    name: str
    process: subprocess.Popen[str]

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RunFailed(f"{self.name} is gone") from error

    def heard(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next answer; a process that does not answer in time is killed."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(timeout_s, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RunFailed(f"{self.name} died, or gave no answer within {timeout_s:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunFailed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        self.tell(**command)
        return self.heard()

    def end(self) -> None:
        """Let the process exit by itself, or kill it after a while."""
        assert self.process.stdin is not None
        with self.process:  # closes the pipes
            try:
                self.process.stdin.close()
                self.process.wait(EXIT_TIMEOUT_S)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self.process.kill()


def environment() -> dict[str, str]:
    """An environment with this checkout on the path and shared bytecode: else each process compiles all libraries."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
        "PYTHONPYCACHEPREFIX": str(Path(gettempdir(), "omniray-bench-bytecode")),
    }


@contextmanager
def member(system: str, place: Place, work: Workload, *, number: int = 0) -> Iterator[Member]:
    """A process for one system. Its libraries' output is dropped, since up to 64 processes print the same."""
    spec = {"system": system, "place": place.as_json(), "work": work.as_json(), "number": number}
    process = subprocess.Popen(
        [interpreter(system), "-m", "bench.peers.process", json.dumps(spec)],
        cwd=REPOSITORY, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    one = Member(f"{system} writer {number}", process)
    try:
        yield one
    finally:
        one.end()


@contextmanager
def crew(system: str, place: Place, work: Workload, size: int) -> Iterator[Sequence[Member]]:
    """Connected, warmed-up writers; started a few at a time, since many imports at once would thrash."""
    with ExitStack() as stack:
        members: list[Member] = []
        while len(members) < size:
            numbers = range(len(members), min(size, len(members) + STARTED_AT_ONCE))
            started = [stack.enter_context(member(system, place, work, number=number)) for number in numbers]
            for one in started:
                one.tell(do="open")
            for one in started:
                one.heard()
            members += started
        yield members


def heard_by(members: Sequence[Member], deadline_s: float) -> list[dict[str, Any] | None]:
    """Each process's answer by a deadline on the monotonic clock; None for a process that failed or was killed."""
    answers: list[dict[str, Any] | None] = []
    for one in members:
        try:
            answers.append(one.heard(max(0.1, deadline_s - time.monotonic())))
        except RunFailed as error:
            print(error, file=sys.stderr)
            answers.append(None)
    return answers
