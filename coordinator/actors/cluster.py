"""The Ray cluster under a graph's coordinator: start it, join it, and find the actors by their names."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniray.coordinator.actors import listening, ray_token
from omniray.engine.base.errors import Unreachable
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store

log = logging.getLogger("omniray")

NAMESPACE = "omniray"
LOCAL = "local"
LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
_CURRENT_CLUSTER = Path(tempfile.gettempdir(), "ray", "ray_current_cluster")

# Ray reads these when it is imported, or starts its processes. A value that is set already is kept.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray lowers its workers' priority by default, but many writers wait for one publisher.
    "RAY_worker_niceness": "0",
}


def ray() -> Any:
    """The `ray` module, imported when a coordinator is first needed: embedded writers never wait for the import."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@dataclass(frozen=True, slots=True)
class Place:
    """The names of a graph's Ray actors in a cluster: they contain its id, which is the ULID of main's line.

    They serve all of its branches: none has actors of its own.
    """

    graph_id: str

    @property
    def publisher(self) -> str:
        return f"publisher:{self.graph_id}"

    @property
    def reconciler(self) -> str:
        return f"reconciler:{self.graph_id}"

    def queues(self, number: int) -> str:
        return f"queues:{self.graph_id}:{number}"


@dataclass(frozen=True, slots=True)
class Storage:
    """How a Ray actor opens its graph: another one that has taken its place has another id."""

    uri: str
    options: Mapping[str, str] | None = field(repr=False)  # keys and secrets
    graph_id: str
    durability: str = "process"

    def store(self) -> ObjectStore:
        return open_store(self.uri, self.options, self.durability)

    def refuse_gone(self) -> None:
        """Raise `GraphGone` if the graph was deleted or replaced; for callers whose actor has died, maybe of that."""
        store = self.store()
        try:
            refuse_gone(store, self.graph_id)
        finally:
            store.close()


def join(address: str | None) -> bool:
    """Connect this process to the cluster at an address, or to the one on this machine; else start a cluster.

    Returns whether this process started the cluster, which then ends with the process. `local` always starts one.
    """
    if ray().is_initialized():
        return False
    wanted = address or _running_here() or LOCAL
    if wanted == LOCAL:
        with starting():
            _init(address=LOCAL, include_dashboard=False, _node_ip_address=LOOPBACK)
        return True
    if not is_listening(wanted):
        raise _no_cluster(wanted, "nothing listens there")
    ray_token.find(wanted)
    try:
        _init(address=wanted)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(wanted, str(error).splitlines()[0]) from error
    return False


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Start a cluster for this machine alone within this block: by token, and on loopback only, or not at all.

    Who reaches a port of Ray may run code as its user. Whatever other settings say, the ports are looked at afterwards.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # as in the environment, which was read if Ray was imported before
    ray_token.begin()
    before = _open_ports()
    try:
        yield
        _refuse_open_ports(before)
        ray_token.publish(address())
    except BaseException:
        leave()
        raise


def _open_ports() -> set[str]:
    """The ports of this process, and of all that it started, that other machines reach."""
    return set(listening.open_to_others(listening.descendants([os.getpid()])))


def _refuse_open_ports(before: Collection[str]) -> None:
    if found := sorted(_open_ports() - set(before)):
        raise Unreachable(
            f"Ray was ended again: it would have listened for other machines ({', '.join(found)}); import omniray "
            "before ray, and unset RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
            ports=found,
        )


def _running_here() -> str | None:
    """The address of this machine's cluster. The address in Ray's file may be stale, so a connection is tried."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    try:
        written = _CURRENT_CLUSTER.read_text().strip()
    except OSError:
        return None
    return written if written and is_listening(written) else None


def is_listening(address: str) -> bool:
    """Whether HOST:PORT accepts connections: Ray would wait for minutes. Other address forms are left to Ray."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in host:
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _no_cluster(address: str, reason: str) -> Unreachable:
    return Unreachable(
        f"no Ray cluster answers at {address}: {reason}; start one with 'omniray up', or give another address",
        address=address,
    )


def _init(**options: Any) -> None:
    with warnings.catch_warnings():
        # Ray starts its own programs by fork and exec; Lance warns of every fork, since it can't see the exec.
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
        warnings.filterwarnings("ignore", category=ResourceWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        ray().init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING, **options)
    hush()


def hush() -> None:
    """Log Ray's messages about dead processes, which Ray would print to standard output, among the results.

    Ray has no setting for it. If a later Ray lacks the replaced function, it prints again, and a test fails.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _log_lines


def _log_lines(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    log.info("event=ray_says text=%s", " ".join(data["lines"]))


def leave() -> None:
    """Disconnect this process; a cluster that it started ends."""
    if "ray" in sys.modules:  # else this process never joined a cluster, and need not wait for the import
        ray().shutdown()
        ray_token.end()


def address() -> str:
    """The address under which other processes join the cluster of this one."""
    return str(ray().get_runtime_context().gcs_address)


def own_host() -> str:
    """The address of this process's node: of this machine alone, where its Ray is."""
    ray()
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def find(name: str) -> Any | None:
    """The Ray actor of a name, or None."""
    try:
        return ray().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def end_of_self() -> Callable[[], None]:
    """A function that ends the Ray actor of this process, and never another one that has got its name meanwhile."""
    actor = ray().get_runtime_context().current_actor
    return lambda: ray().kill(actor)


def was_restarted() -> bool:
    """Whether Ray has started the actor of this process again, after an earlier process of it died."""
    return bool(ray().get_runtime_context().was_current_actor_reconstructed)


def end(name: str) -> bool:
    """End the Ray actor of a name; returns whether there was one."""
    actor = find(name)
    if actor is not None:
        ray().kill(actor)
    return actor is not None
