"""One process of a run: it takes commands as JSON, a line each on standard input, and answers each with a line.

    python -m bench.peers.process '{"system": …, "place": …, "work": …, "number": …}'

Systems are imported only here, so that no process holds another system's threads and memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from bench.measure import timed
from bench.peers.check import judge
from bench.peers.rows import WARM_UP, Workload, batch
from bench.peers.systems import Place, Writer, load

FAILURES_MAX = 1_000


@dataclass(slots=True)
class Outcome:
    """A writer's record of a race: the latency and end of each commit, and the failures."""

    latencies_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)  # since the start
    acknowledged: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Session:
    """The state of this process: its system, and its writer once that is open."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._system = load(spec["system"])
        self._place = Place(**spec["place"])
        self._work = Workload.from_json(spec["work"])
        self._number: int = spec["number"]
        self._sequences = itertools.count(WARM_UP)
        self._writer: Writer | None = None
        self._seen = Outcome()
        self._noting = threading.Lock()

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one command."""
        match command["do"]:
            case "probe":
                return {"missing": self._system.missing()}
            case "prepare":
                self._system.prepare(self._place, self._work)
            case "open":
                self._writer = self._system.writer(self._place, self._work)
                self._warm_up()
            case "write":
                return {"latencies_s": [self._write(next(self._sequences)) for _ in range(command["count"])]}
            case "race":
                return asdict(self._race(command["start_s"], command["seconds"]))
            case "close":
                self._opened.close()
            case "check":
                return self._check(command["acknowledged"], command["failed"])
            case unknown:
                raise ValueError(f"no command {unknown!r}")
        return {}

    @property
    def _opened(self) -> Writer:
        assert self._writer is not None
        return self._writer

    def _write(self, sequence: int) -> float:
        rows = batch(self._work, self._number, sequence)
        return timed(lambda: self._opened.write(rows))

    def _warm_up(self) -> None:
        """Write once, not timed. Where writers conflict this may fail, and still warms up."""
        try:
            self._write(next(self._sequences))
            self._seen.acknowledged.append(WARM_UP)
        except Exception:  # any error of the system: the race will show it
            self._seen.failed.append(WARM_UP)

    def _race(self, start_s: float, seconds: float) -> Outcome:
        """Write as fast as answers come, from a common start; the last writes may end after the deadline."""
        seen, self._seen = self._seen, Outcome()
        count = self._work.in_flight
        time.sleep(max(0.0, start_s - time.monotonic()))
        if self._work.awaited:
            asyncio.run(self._await_all(count, start_s, seconds, seen))
            return seen
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda _: self._write_until(start_s, seconds, seen), range(count)))
        return seen

    async def _await_all(self, count: int, start_s: float, seconds: float, seen: Outcome) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._await_until(start_s, seconds, seen))

    async def _await_until(self, start_s: float, seconds: float, seen: Outcome) -> None:
        writer: Any = self._opened  # only ours has writes that are awaited
        while self._goes_on(start_s, seconds, seen):
            sequence = next(self._sequences)
            rows, began_s = batch(self._work, self._number, sequence), time.monotonic()
            with self._noted(sequence, start_s, seen, began_s):
                await writer.write_async(rows)

    def _write_until(self, start_s: float, seconds: float, seen: Outcome) -> None:
        while self._goes_on(start_s, seconds, seen):
            sequence = next(self._sequences)
            rows, began_s = batch(self._work, self._number, sequence), time.monotonic()
            with self._noted(sequence, start_s, seen, began_s):
                self._opened.write(rows)

    def _goes_on(self, start_s: float, seconds: float, seen: Outcome) -> bool:
        return time.monotonic() < start_s + seconds and len(seen.failed) < FAILURES_MAX

    @contextmanager
    def _noted(self, sequence: int, start_s: float, seen: Outcome, began_s: float) -> Iterator[None]:
        """Note what becomes of a write that began at a time."""
        try:
            yield
        except Exception as error:  # any error of the system is a failed write
            with self._noting:
                seen.failed.append(sequence)
                seen.errors[error.__class__.__name__] += 1
        else:
            now_s = time.monotonic()
            with self._noting:
                seen.latencies_s.append(now_s - began_s)
                seen.ends_s.append(now_s - start_s)
                seen.acknowledged.append(sequence)

    def _check(self, acknowledged: list[list[int]], failed: list[list[int]]) -> dict[str, Any]:
        found = {table: self._system.ids(self._place, table).to_pylist() for table in self._work.tables}
        done = [(writer, sequence) for writer, sequence in acknowledged]
        undone = [(writer, sequence) for writer, sequence in failed]
        return asdict(judge(self._work, found, done, undone))


def main() -> None:
    answers = _claim_stdout()
    session: Session | None = None
    for line in sys.stdin:
        try:
            session = session or Session(json.loads(sys.argv[1]))
            answer = session.answer(json.loads(line))
        except Exception as error:  # the parent process decides whether the run goes on
            answer = {"error": f"{error.__class__.__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _claim_stdout() -> TextIO:
    """Keep standard output for the answers; libraries print to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    main()
