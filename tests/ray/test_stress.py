"""`omniray stress --chaos` in its short form: processes write, others die, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omniray.coordinator.stress.history import Disturbed, read_history
from omniray.coordinator.stress.schedule import Freeze, KillActor, KillWriter, Role, schedule
from tests.commands import environment
from tests.edn import read_edn

WRITERS, SECONDS = 4, 8
TIMEOUT_S = 280

pytestmark = pytest.mark.timeout(300)


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


def stressed(*arguments: object) -> Any:
    """The report of a run with chaos that broke no rule."""
    arguments = ("--chaos", "--json", "--writers", WRITERS, "--seconds", SECONDS, *arguments)
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "stress", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [f"{one['rule']}: {one['message']}" for one in report["violations"]] == []
    assert done.returncode == 0
    assert report["commits"] > 0
    assert report["writers"] >= WRITERS
    return report


def test_a_short_chaos_breaks_no_promise(tmp_path: Path) -> None:
    """Fault: a seeded chaos over writers, actors and a node. Oracle: the checker, over all histories and the graph."""
    report = stressed("--uri", tmp_path / "graph", "--seed", eventful_seed(), "--keep", tmp_path)
    disturbed = [event for event in read_history(tmp_path / "chaos.jsonl") if isinstance(event, Disturbed)]
    assert report["kills"] == sum(event.what == "kill" for event in disturbed) > 0
    assert any(event.target.startswith("writer") for event in disturbed)


def test_lists_on_moto_survive_a_short_chaos_and_are_exported(tmp_path: Path) -> None:
    """Fault: as above, and requests to the store fail. Oracle: the checker of lists; the file is read back."""
    file, folder = tmp_path / "history.edn", tmp_path / "histories"
    report = stressed("--workload", "list-append", "--seed", 1, "--keep", folder, "--export-edn", file)
    assert report["uri"].startswith("s3://")
    lines = [read_edn(line) for line in file.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    begun, ended = (
        Counter(line["process"] for line in lines if (line["type"] == "invoke") is yes) for yes in (True, False)
    )
    assert begun == ended
    appended = {op[2] for line in lines if line["type"] == "ok" for op in line["value"] if op[0] == "append"}
    last_read = next(line for line in reversed(lines) if line["type"] == "ok")
    assert appended <= {value for _, _, values in last_read["value"] for value in values}
