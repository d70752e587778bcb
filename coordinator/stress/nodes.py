"""A Ray cluster for the stress test alone, on this machine, and the processes of its actors.

It never joins a cluster that runs already: the stress test may kill only its own processes. With chaos it has more than
one node, so that one can be lost.
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

from omniray.coordinator.actors.cluster import find, join, leave, ray, starting

OBJECT_STORE_BYTES = 100 << 20
ANSWER_TIMEOUT_S = 5.0
# A lost node is noticed within seconds; a node on a busy machine is not taken for lost.
_SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """The nodes of a running cluster; the first node stays, the others can be lost or frozen."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._others: dict[str, Any] = {}

    def __len__(self) -> int:
        return 1 + len(self._others)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        """Start another node."""
        with _quiet():
            node = self._cluster.add_node(num_cpus=_cpus(), object_store_memory=OBJECT_STORE_BYTES)
        self._others[node.node_id] = node

    def lose(self, node_id: str = "") -> None:
        """Kill a node, the newest one if none is named, with all its actors."""
        node_id = node_id or list(self._others)[-1]
        for pid in self.processes(node_id):  # without this, Ray's workers would live on for a while
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with _quiet():
            self._cluster.remove_node(self._others.pop(node_id), allow_graceful=False)

    def processes(self, node_id: str) -> list[int]:
        """The processes of a node: its raylet, and the workers that the raylet started."""
        (raylet,) = self._others[node_id].all_processes["raylet"]
        return [raylet.process.pid, *_children(raylet.process.pid)]


@contextlib.contextmanager
def running_nodes() -> Iterator[Nodes]:
    """A cluster with one node, which this process joins; it is shut down when the block ends."""
    ray()
    with _quiet(), starting():
        from ray.cluster_utils import Cluster

        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": _cpus(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False,
                "_system_config": _SYSTEM_CONFIG,
            },
        )  # fmt: skip
        join(str(cluster.address))
    try:
        yield Nodes(cluster)
    finally:
        with _quiet():
            leave()
            cluster.shutdown()


def pid_of(name: str) -> int | None:
    """The process id of an actor; None while Ray restarts it."""
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
    """Hide the warnings that Ray causes: it forks, and leaves sockets to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
