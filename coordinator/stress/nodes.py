"""A Ray of the stress test's own, on this machine, and the processes of the actors on it.

It never joins a Ray that runs already: what is killed here must be nobody else's. For a chaos it has more than one
node, so that there is one to lose.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omniray.coordinator.actors.cluster import find, join, ray

OBJECT_STORE_BYTES = 100 << 20
ANSWER_TIMEOUT_S = 5.0
# A node that is gone is noticed within seconds; one on a busy machine is not mistaken for gone.
_SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """The nodes of a running cluster; the first one stays, the others can be lost or frozen."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._others: dict[str, Any] = {}

    def __len__(self) -> int:
        return 1 + len(self._others)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        """Bring up another node."""
        with _quiet():
            node = self._cluster.add_node(num_cpus=_cpus(), object_store_memory=OBJECT_STORE_BYTES)
        self._others[node.node_id] = node

    def lose(self, node_id: str = "") -> None:
        """Kill a node at once, the newest one if none is named; its actors go with it."""
        node_id = node_id or list(self._others)[-1]
        for pid in self.processes(node_id):  # Ray itself would leave workers some time to notice that they are alone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with _quiet():
            self._cluster.remove_node(self._others.pop(node_id), allow_graceful=False)

    def processes(self, node_id: str) -> list[int]:
        """What runs on a node: its raylet, and the workers that the raylet has started."""
        (raylet,) = self._others[node_id].all_processes["raylet"]
        return [raylet.process.pid, *_children(raylet.process.pid)]


@contextlib.contextmanager
def running_nodes() -> Iterator[Nodes]:
    """A cluster with one node, which this process has joined; all of it is gone when the block ends."""
    module = ray()
    with _quiet():
        from ray.cluster_utils import Cluster

        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": _cpus(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False,
                "_system_config": _SYSTEM_CONFIG,
            },
        )  # fmt: skip
    try:
        join(str(cluster.address))
        yield Nodes(cluster)
    finally:
        with _quiet():
            module.shutdown()
            cluster.shutdown()


def pid_of(name: str) -> int | None:
    """The process of an actor; None while it is away."""
    module, actor = ray(), find(name)
    try:
        return None if actor is None else int(module.get(actor.__ray_call__.remote(_pid), timeout=ANSWER_TIMEOUT_S))
    except module.exceptions.RayError:
        return None


def _pid(actor: object) -> int:
    return os.getpid()


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            _, _, after_name = stat.read_text().rpartition(")")
            if int(after_name.split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def _cpus() -> int:
    return max(2, os.cpu_count() or 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray forks, and leaves sockets to the garbage collector: neither is news to the one who runs the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
