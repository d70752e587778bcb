"""Recovery beside writers that live: processes write to all tables at once while some of them are killed at any moment.

`OMNIRAY_TORTURE=1` does so for five minutes; `OMNIRAY_SEED` chooses who is killed when.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field

import lance
import pytest

import omniray
from omniray.engine.history import audit
from omniray.engine.store.open_store import open_store
from tests.graphs import new_graph
from tests.recovery.writers import (
    TABLES,
    WHOLE,
    Acknowledged,
    Began,
    Child,
    Failed,
    records,
    rows_of_writes,
    write_until_told,
)
from tests.stores import Root

TORTURE = "OMNIRAY_TORTURE" in os.environ
SECONDS = 300.0 if TORTURE else 12.0
PROCESSES = 8
PAUSE_S = (0.05, 0.8)

pytestmark = pytest.mark.timeout(900 if TORTURE else 180)


@dataclass
class Turmoil:
    """Processes that write, a hand that kills, and what was heard of each write."""

    root: Root
    rng: random.Random
    living: list[Child] = field(default_factory=list)
    began: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    failed: list[Failed] = field(default_factory=list)
    started: int = 0
    killed: int = 0

    def start(self) -> None:
        self.started += 1
        self.living.append(Child(write_until_told, self.root, f"w{self.started}"))

    def kill(self) -> None:
        doomed = self.living.pop(self.rng.randrange(len(self.living)))
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.process.join()
        self.killed += 1
        self.hear(doomed)
        doomed.pipe.close()

    def hear(self, child: Child) -> None:
        for report in child.received():
            match report:
                case Began(write):
                    self.began.add(write)
                case Acknowledged(write):
                    self.acknowledged.add(write)
                case Failed():
                    self.failed.append(report)

    def go_on(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.rng.uniform(*PAUSE_S))  # the moment of a kill is what this test draws by lot
            self.kill()
            self.start()
            for child in self.living:
                self.hear(child)

    def end(self) -> None:
        for child in self.living:
            child.pipe.send("stop")
        for child in self.living:
            child.process.join()
            self.hear(child)
            assert child.process.exitcode == 0


def test_writers_that_live_lose_nothing_while_others_are_killed(disk: Root) -> None:
    seed = int(os.environ.get("OMNIRAY_SEED", random.randrange(2**32)))
    new_graph(disk).close()
    turmoil = Turmoil(disk, random.Random(seed))
    for _ in range(PROCESSES):
        turmoil.start()
    turmoil.go_on(SECONDS)
    turmoil.end()
    print(
        f"OMNIRAY_SEED={seed}: {turmoil.killed} of {turmoil.started} processes killed, "
        f"{len(turmoil.acknowledged)} of {len(turmoil.began)} writes acknowledged"
    )
    assert turmoil.failed == [], "a process that lives is never refused"
    assert len(turmoil.acknowledged) > PROCESSES
    check(disk, turmoil)


def check(root: Root, turmoil: Turmoil) -> None:
    store = open_store(f"{root.uri}/graph", root.storage_options)
    with omniray.open(store.uri) as graph:
        found = rows_of_writes(graph.snapshot().table)
        assert {write: rows for write, rows in found.items() if rows != WHOLE} == {}, "all or nothing, and once"
        assert turmoil.acknowledged - found.keys() == set(), "acknowledged and lost"
        assert found.keys() - turmoil.began == set(), "nobody wrote that"
        actors = [entry.actor for entry in graph.history()][:-1]
        assert sorted(actors) == sorted(found), "each of them is one commit"
        recoveries = graph.recoveries()
        graph.load(records("last"), actor="last")
    assert list(store.names("__recovery")) == []
    plain = rows_of_writes(lambda name: lance.dataset(f"{store.uri}/{TABLES[name]}").to_table())
    assert plain == {**found, "last": WHOLE}, "plain readers see the same"
    rows = audit.recorded(store)
    assert len({row.operation_id for row in rows}) == len(rows)
    assert sorted(row.operation_id for row in rows) == sorted(one.operation_id for one in recoveries)
