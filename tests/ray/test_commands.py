"""`omniray up` in the foreground as a user's shell runs it, on a real Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omniray.coordinator.actors import cluster
from omniray.engine.line.commit_object import EMBEDDED
from tests.commands import environment, run
from tests.graphs import new_graph
from tests.ray.callers import owner, write
from tests.ray.world import TIMEOUT_S
from tests.stores import Root

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.fixture
def graph(disk: Root) -> str:
    with new_graph(disk) as graph:
        return graph.uri


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
