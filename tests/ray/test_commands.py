"""`omniray up`, `status` and `down` as a user's shell runs them, on a real Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import cluster
from omniray.engine.line.commit_object import EMBEDDED
from tests.commands import environment, omniray_process, run
from tests.graphs import INSERT, new_graph, people
from tests.stores import Root

TIMEOUT_S = 120.0

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

# In a process of its own: whoever has joined a Ray is ended by it when it is gone.
WRITE = f"""
import sys, omniray
with omniray.connect(sys.argv[1]) as client:
    client.mutate({INSERT!r}, {{"name": sys.argv[2], "age": None}})
"""


@pytest.fixture
def graph(disk: Root) -> str:
    with new_graph(disk) as graph:
        return graph.uri


def write(uri: str, name: str) -> None:
    """Write as a client does that knows nothing but the graph."""
    subprocess.run([sys.executable, "-c", WRITE, uri, name], check=True, timeout=TIMEOUT_S, env=environment())


@contextmanager
def up(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`omniray up` in the foreground, once it serves."""
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "up", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), process.communicate()[1]
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How it ended, and what it said meanwhile."""
    _, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, err


def owner(uri: str) -> str:
    with omniray.open(uri, read_only=True) as opened:
        return opened.owner


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def test_a_detached_coordinator_serves_until_it_is_taken_down_and_takes_its_ray_with_it(
    graph: str, tmp_path: Path
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    secret = ("--storage-option", "aws_secret_access_key=hunter2")
    began = omniray_process("up", graph, "--detach", "--address", "local", "--json", *secret, **cache)
    assert (began.code, began.err) == (0, "")
    try:
        assert b"hunter2" not in Path(f"/proc/{began.document['pid']}/cmdline").read_bytes()
        _is_served_and_taken_down(graph, began.document, cache)
    finally:
        if Path(f"/proc/{began.document['pid']}").exists():
            os.kill(began.document["pid"], signal.SIGTERM)


def _is_served_and_taken_down(graph: str, began: dict[str, Any], cache: dict[str, str]) -> None:
    write(graph, "Ann")
    status = omniray_process("status", graph, "--json")
    assert (status.code, status.err) == (0, "")
    assert {key: status.document[key] for key in ("address", "owner", "epoch", "commits")} == {
        **{key: began[key] for key in ("address", "owner", "epoch")},
        "commits": 1,
    }
    again = omniray_process("up", graph, "--detach", "--json", **cache)
    assert (again.document["joined"], again.document["owner"], again.document["pid"]) == (True, began["owner"], None)

    down = omniray_process("down", graph, "--json")
    assert (down.code, down.document["address"], down.err) == (0, began["address"], "")
    assert owner(graph) == EMBEDDED
    wait_until(lambda: _is_over(began["pid"]), "the process in the background ends by itself")
    assert not cluster.is_listening(began["address"]), "its Ray has ended with it"
    with omniray.open(graph) as opened:
        opened.mutate(INSERT, {"name": "Bob", "age": None})
        assert people(opened) == ["Ann", "Bob"]


def _is_over(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_up_in_the_foreground_ends_on_a_signal_what_it_started_and_only_that(graph: str, ray_address: str) -> None:
    with up(graph, "--address", ray_address) as first:
        with up(graph) as second:
            second.send_signal(signal.SIGTERM)
            assert ended(second) == (0, "note: the coordinator goes on\n")
        write(graph, "Ann")
        first.send_signal(signal.SIGTERM)
        assert ended(first) == (0, "note: draining; a second signal ends it at once\n")
    assert owner(graph) == EMBEDDED
    assert cluster.is_listening(ray_address), "it was not this Ray that was started"


def test_up_ends_with_one_line_when_somebody_takes_the_graph_over(graph: str, ray_address: str) -> None:
    """Fault: the line is taken while the publisher is idle and does not notice. Oracle: the next `up` serves again."""
    with up(graph, "--address", ray_address) as process:
        run("recover", graph, "--take-over")
        code, err = ended(process)
    assert code == 5
    assert err.startswith(f"error: {graph} was taken over by somebody else")
    assert len(err.splitlines()) == 1
    with up(graph, "--address", ray_address) as process:
        write(graph, "Ann")
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0
