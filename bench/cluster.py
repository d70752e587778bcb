"""The coordinator's service as the benchmark runs it: the one place that knows how it is started and ended.

The Ray under it is the benchmark's own, at a port of its own, whatever else runs on this machine; all its processes
descend from this one, so that their memory can be counted.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.measure import REPOSITORY
from bench.peers.crew import RunFailed, environment

COMMAND_TIMEOUT_S = 120.0
_STARTED = "Ray runtime started"
_RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@contextmanager
def service(uri: str, storage_options: Mapping[str, str] | None) -> Iterator[str]:
    """Serve a graph on a Ray of its own, drained and down when the block ends; gives the address for `connect`."""
    options = [f"--storage-option={name}={value}" for name, value in (storage_options or {}).items()]
    with _ray_head() as address:
        _omniray(address, "up", uri, "--detach", "--address", address, *options)
        try:
            yield address
        finally:
            _omniray(address, "down", uri, *options)


@contextmanager
def _ray_head() -> Iterator[str]:
    """A Ray of one node; gives its address."""
    port = _free_port()
    start = ["start", "--head", "--block", f"--port={port}", "--include-dashboard=false", "--disable-usage-stats"]
    with subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *start],
        env=environment() | _RAY_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            if not any(_STARTED in line for line in process.stdout):
                raise RunFailed(f"Ray ended with exit code {process.wait()} before it had started")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def _omniray(address: str, *arguments: str) -> None:
    """Run a command of ours on the benchmark's Ray."""
    done = subprocess.run(
        [sys.executable, "-m", "omniray.coordinator.cli", *arguments],
        cwd=REPOSITORY, env=environment() | _RAY_ENVIRONMENT | {"RAY_ADDRESS": address},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RunFailed(f"`omniray {arguments[0]}` ended with exit code {done.returncode}: {done.stderr.strip()}")
