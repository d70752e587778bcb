"""Starts and ends the coordinator's service for the benchmarks.

It always has a Ray cluster of its own, whose processes descend from this one, so that their memory can be counted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.measure import REPOSITORY
from bench.peers.crew import RunFailed, environment

DOWN_TIMEOUT_S = 120.0


@contextmanager
def service(uri: str, storage_options: Mapping[str, str] | None) -> Iterator[str]:
    """Serve a graph from a process of its own, which is drained and ended with the block; yields its address."""
    options = [f"--storage-option={name}={value}" for name, value in (storage_options or {}).items()]
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "up", uri, "--address=local", "--json", *options]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            _end(process)


def _address(process: subprocess.Popen[str]) -> str:
    """The address that `up` prints once it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RunFailed(f"`omniray up` ended with exit code {process.wait()} before it served: its error is above")
    return str(json.loads(line)["address"])


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
