"""Starts a coordinator in the background for the first client of a graph; the clients after it find that one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from omniray.coordinator.client import background
from omniray.engine.base.errors import Unreachable

IDLE_S = 60.0
LOCAL = "local"
LOCK_PAUSE_S = 0.05
OPTIONS_ON_STDIN = "--storage-options-on-stdin"
UNTIL_IDLE = "--until-idle"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a client opens its graph, and so how a coordinator that it starts does."""

    uri: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    address: str | None = None
    durability: str = "process"

    def command(self, *options: str) -> list[str]:
        """The command that serves the graph; it reads the options of the store, with their secrets, from its input."""
        command = [sys.executable, "-m", "omniray.coordinator.cli.app", "up", absolute(self.uri), "--json", *options]
        command += ["--address", self.address] if self.address is not None else []
        return [*command, "--durability", self.durability, OPTIONS_ON_STDIN]

    def run_detached(self, graph_id: str, *options: str) -> background.Detached:
        secrets = json.dumps(dict(self.storage_options or {})).encode()
        return background.detach(self.command(*options), background.log_of(graph_id), stdin=secrets)


def start(terms: Terms, graph_id: str, is_served: Callable[[], bool], timeout_s: float) -> None:
    """Start a coordinator that ends when it has been idle for a while, unless one serves by the time it is our turn.

    Nor is one needed that failed because another one was faster, such as one that Ray has restarted after all.
    """
    refuse_without_ray()
    with _turn(graph_id, timeout_s):
        if is_served():
            return
        try:
            _chosen(terms).run_detached(graph_id, UNTIL_IDLE, f"{IDLE_S:g}")
        except Unreachable:
            if not is_served():
                raise


def _chosen(terms: Terms) -> Terms:
    """The terms with a Ray of its own, unless the user has named one: another's would get the options of the store."""
    if terms.address is not None or "RAY_ADDRESS" in os.environ:
        return terms
    return replace(terms, address=LOCAL)


def refuse_without_ray() -> None:
    if find_spec("ray") is None:
        raise Unreachable(
            "no coordinator serves this graph, and the Ray that one runs on is not installed: "
            "pip install 'omniray[ray]', or start one elsewhere with 'omniray up'"
        )


def absolute(uri: str) -> str:
    return uri if "://" in uri else os.path.abspath(uri)


@contextlib.contextmanager
def _turn(graph_id: str, timeout_s: float) -> Iterator[None]:
    """Wait until no other process of this user starts a coordinator for the graph."""
    path = Path(background.log_of(graph_id)).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"another process has been starting a coordinator for {timeout_s:g} s; its log is "
                        f"{background.log_of(graph_id)}"
                    ) from None
                time.sleep(LOCK_PAUSE_S)
        yield
