"""A new graph with a coordinator of its own, for the time of a test."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import omniray
from omniray.engine.base.errors import StorageError

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 120.0
ON_A_RAY_OF_ITS_OWN = {"RAY_ADDRESS": "local"}


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A graph that a coordinator serves."""

    uri: str
    storage_options: Mapping[str, str] | None = field(repr=False)

    def connect(self, **options: Any) -> omniray.Client:
        """A client of the coordinator; the options are those of `omniray.connect`."""
        return omniray.connect(self.uri, storage_options=self.storage_options, **options)

    def open(self, **options: Any) -> omniray.Graph:
        """The graph without its coordinator, which owns the line meanwhile: for reading."""
        return omniray.open(self.uri, storage_options=self.storage_options, **{"read_only": True, **options})


@contextlib.contextmanager
def served_graph(
    uri: str | os.PathLike[str], schema: str | Path, *, storage_options: Mapping[str, str] | None = None
) -> Iterator[ServedGraph]:
    """Create a graph and serve it by a coordinator of its own, until the block ends; the graph stays.

    The coordinator has a Ray of its own on this machine, and ends with this process, too.
    """
    graph = ServedGraph(os.fspath(uri), storage_options)
    omniray.init(graph.uri, schema=schema, storage_options=storage_options).close()
    with _coordinator(graph):
        yield graph


@contextlib.contextmanager
def _coordinator(graph: ServedGraph) -> Iterator[None]:
    options = [f"--storage-option={key}={value}" for key, value in (graph.storage_options or {}).items()]
    package = str(Path(omniray.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, "-m", "omniray.coordinator.testing.keeper"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ON_A_RAY_OF_ITS_OWN, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([graph.uri, "--json", *options]).encode() + b"\n")
            process.stdin.flush()
            _wait_until_it_serves(process, graph.uri)
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_it_serves(process: subprocess.Popen[bytes], uri: str) -> None:
    """Wait for the document that `omniray up` prints once it serves."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise StorageError(f"the coordinator of {uri} did not serve within {START_TIMEOUT_S:.0f} s; try again")
            some = os.read(process.stdout.fileno(), 1 << 16)
            if not some:
                raise StorageError(f"no coordinator serves {uri}, exit code {process.wait()}: its error is above")
            said += some
