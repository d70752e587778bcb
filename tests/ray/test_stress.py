"""`omniray stress --chaos` in its short form: processes write, others die, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from omniray.coordinator.stress.history import Disturbed, read_history
from omniray.coordinator.stress.schedule import Freeze, KillActor, KillWriter, Role, schedule
from tests.commands import environment

WRITERS, SECONDS = 4, 8
TIMEOUT_S = 280

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


def eventful_seed() -> int:
    """The first seed that surely kills a writer and the publisher within the time, and freezes somebody if it can."""
    for seed in itertools.count():
        due = schedule(seed, SECONDS, store=False)
        sure = [one.disturbance for one in due if not one.patient]
        kills_publisher = any(isinstance(one, KillActor) and one.role is Role.PUBLISHER for one in sure)
        kills_writer = any(isinstance(one, KillWriter) for one in sure)
        if kills_publisher and kills_writer and any(isinstance(one.disturbance, Freeze) for one in due):
            return seed
    raise AssertionError("seeds are without end")


def test_a_short_chaos_breaks_no_promise(tmp_path: Path) -> None:
    """Fault: a seeded chaos over writers, actors and a node. Oracle: the checker, over all histories and the graph."""
    arguments = ("--writers", WRITERS, "--seconds", SECONDS, "--seed", eventful_seed(), "--keep", tmp_path)
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "stress", "--chaos", "--json", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [f"{one['rule']}: {one['message']}" for one in report["violations"]] == []
    assert done.returncode == 0
    assert report["commits"] > 0
    assert report["writers"] >= WRITERS
    disturbed = [event for event in read_history(tmp_path / "chaos.jsonl") if isinstance(event, Disturbed)]
    assert report["kills"] == sum(event.what == "kill" for event in disturbed) > 0
    assert any(event.target.startswith("writer") for event in disturbed)
