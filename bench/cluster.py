"""Starts and ends the coordinator's service for the benchmarks.

It always has a Ray cluster of its own, whose processes descend from this one, so that their memory can be counted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.measure import REPOSITORY
from bench.peers.crew import RunFailed, environment

DOWN_TIMEOUT_S = 120.0


@contextmanager
def service(uri: str, storage_options: Mapping[str, str] | None) -> Iterator[None]:
    """Serve a graph from a process of its own, which is drained and ended with the block."""
    options = [f"--storage-option={name}={value}" for name, value in (storage_options or {}).items()]
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "up", uri, "--address=local", "--json", *options]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            _wait_until_it_serves(process)
            yield
        finally:
            _end(process)


def _wait_until_it_serves(process: subprocess.Popen[str]) -> None:
    """Wait for the document that `up` prints then."""
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RunFailed(f"`omniray up` ended with exit code {process.wait()} before it served: its error is above")


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
