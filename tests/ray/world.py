"""A graph that is served by a coordinator on a real Ray, and what a test may do to its actors.

Faults are put into the actors by `__ray_call__`: a function of this module runs inside them. A process that Ray
restarts knows nothing of it, so that a fault happens once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import omniray
from omniray.coordinator.actors import cluster, incarnations
from omniray.coordinator.actors.cluster import LOOPBACK, NAMESPACE, Place, ray
from omniray.coordinator.actors.hosting import Hosted, host
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.rounds.admission import Limits
from omniray.engine.base import failpoints
from omniray.engine.base.failpoints import Action, Point
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation
from omniray.engine.store.open_store import open_store
from tests.graphs import INSERT, SCHEMA, main_of
from tests.stores import Root

TIMEOUT_S = 120.0
OBJECT_STORE_BYTES = 100 << 20


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Ray forks and leaves files open; in tests every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def local_ray() -> Iterator[str]:
    """A Ray of this process, with an address under which others join it."""
    with quiet_ray(), cluster.starting():
        ray().init(
            "local", namespace=NAMESPACE, num_cpus=2, include_dashboard=False, log_to_driver=False,
            _node_ip_address=LOOPBACK,
            object_store_memory=OBJECT_STORE_BYTES,
        )  # fmt: skip
    cluster.hush()
    try:
        yield cluster.address()
    finally:
        with quiet_ray():
            cluster.leave()


@dataclass(frozen=True)
class Served:
    """A graph with a coordinator on the Ray of this process."""

    root: Root
    uri: str
    address: str

    # Clients

    def connect(self, **options: Any) -> omniray.Client:
        """A client of the coordinator that serves; none is started."""
        return connected(self.uri, self.root.storage_options, **options)

    def open(self, **options: Any) -> omniray.Graph:
        return omniray.open(self.uri, storage_options=self.root.storage_options, **options)

    def host(self, **options: Any) -> Hosted:
        """Serve the graph on the Ray of this process, if it is not served there already."""
        with self.open(read_only=True) as graph:
            return host(graph, self.uri, self.root.storage_options, self.address, **options)

    def down(self) -> None:
        """Take the coordinator down, if there is one."""
        if self.newest().owner != EMBEDDED:
            with connect_to_serving(self.uri, self.root.storage_options, timeout_s=TIMEOUT_S) as client:
                client.down()

    # Storage

    def line(self, branch: str = "") -> list[CommitObject]:
        """All objects of main's line, or of the line with this id, oldest first."""
        store = open_store(self.uri, self.root.storage_options)
        log = CommitLog(store, BranchId(branch, branch) if branch else main_of(store))
        newest = log.newest_listed()
        assert newest is not None
        return list(reversed(log.down_to(newest, 1)))

    def newest(self) -> CommitObject:
        return self.line()[-1]

    def sidecars(self) -> list[str]:
        return list(open_store(self.uri, self.root.storage_options).names("__recovery"))

    def people(self, branch: str | None = None) -> list[str]:
        """The names by a full scan, so that a doubled row is seen."""
        with self.open(read_only=True) as graph:
            names: list[str] = sorted(graph.snapshot(branch=branch).table("Person", ["name"])["name"].to_pylist())
            return names

    # Actors

    @property
    def place(self) -> Place:
        with self.open(read_only=True) as graph:
            return Place(graph.graph_id)

    @property
    def publisher_pid(self) -> int:
        return Incarnation.parse(self.newest().owner).process.pid

    def inside(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function inside an actor, which is its first argument; again, if this process knew a dead one still."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return ray().get(cluster.find(name).__ray_call__.remote(function, *arguments), timeout=TIMEOUT_S)
            except ray().exceptions.ActorUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def arm(self, name: str, rules: str) -> None:
        """Arm failpoints of an actor's process, as the environment variable says them."""
        self.inside(name, _arm, rules)

    def kill(self, name: str) -> None:
        os.kill(self.inside(name, _pid), signal.SIGKILL)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Ask again and again; for what happens behind an answer."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.05)

    def wait_until_healed(self) -> None:
        """Until nothing is left of anybody who died."""
        with self.connect() as client:

            def is_healed() -> bool:
                with contextlib.suppress(omniray.StorageError):
                    client.recover()
                    client.flush()
                return self.sidecars() == []

            self.wait_until(is_healed, "no sidecar is left")


@contextlib.contextmanager
def served(root: Root, address: str, name: str = "graph", **options: Any) -> Iterator[Served]:
    """A new graph, taken down at the end; `options` are those of `host`."""
    uri = f"{root.uri}/{name}"
    omniray.init(uri, schema=SCHEMA, storage_options=root.storage_options).close()
    one = Served(root, uri, address)
    hosted = one.host(**options)
    try:
        yield one
    finally:
        one.down()
        hosted.end()


def connected(uri: str, options: Mapping[str, str], **more: Any) -> omniray.Client:
    """A client of the coordinator that serves a graph; raises where none does, since one would be started."""
    with omniray.open(uri, storage_options=options, read_only=True) as graph:
        assert graph.served, "the test is to serve it"
    return omniray.connect(uri, storage_options=options, **{"timeout_s": TIMEOUT_S, **more})


def add(client: omniray.Client | omniray.Graph, name: str, **options: Any) -> omniray.WriteResult:
    return client.mutate(INSERT, {"name": name, "age": None}, **options)


# Inside actors


def _arm(actor: object, rules: str) -> None:
    failpoints._armed.update(failpoints.parse(rules))


def _pid(actor: object) -> int:
    return os.getpid()


def shrink(actor: Any, intents: int) -> None:
    """Let the publisher take only so many writes at a time."""
    actor._incarnations.publisher._rounds._admission._limits = Limits(waiting_intents=intents)


def is_leaving(actor: Any) -> bool:
    """Whether the publisher is being taken down."""
    return bool(actor._incarnations._is_leaving)


def hand_back(actor: Any) -> None:
    """Hand all lines back, as `down` does before the publisher's process ends."""
    actor._incarnations.drain()


def hold_record(actor: object, reached: Path, opened: Path) -> None:
    """Let the next incarnation wait when it has put the record of its door."""
    put_record = incarnations.put_record

    def held(*arguments: Any) -> str:
        place = put_record(*arguments)
        reached.touch()
        while not opened.exists():
            time.sleep(0.01)
        return place

    incarnations.put_record = held


class Gate:
    """A point at which an actor waits until the test lets it go on; the two meet in a folder."""

    def __init__(self, folder: Path, served: Served, name: str, point: Point) -> None:
        folder.mkdir()
        self._served, self._reached, self._opened = served, folder / "reached", folder / "opened"
        served.inside(name, _hold, point, self._reached, self._opened)

    def wait_until_reached(self) -> None:
        self._served.wait_until(self._reached.exists, "the gate is reached")

    def open(self) -> None:
        self._opened.touch()


def _hold(actor: object, point: Point, reached: Path, opened: Path) -> None:
    def hold() -> None:
        reached.touch()
        while not opened.exists():
            time.sleep(0.01)

    failpoints._armed[point] = Action(hold)
