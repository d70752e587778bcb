"""Processes that know nothing but the graphs that they write to, and what is left on the machine of a coordinator."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import omniray
from omniray.coordinator.actors import cluster, ray_token
from omniray.coordinator.actors.cluster import LOCAL, NAMESPACE, ray
from omniray.coordinator.actors.hosting import host
from omniray.coordinator.client import starting
from omniray.coordinator.client.wire import Wire
from omniray.engine.base.errors import LineOwned
from omniray.engine.base.ulids import new_ulid
from omniray.engine.writes.write_requests import Request
from tests.commands import Answer, environment, omniray_process
from tests.graphs import INSERT, new_graph, people
from tests.processes.crew import Member, obey
from tests.ray.world import OBJECT_STORE_BYTES, TIMEOUT_S, add, quiet_ray
from tests.stores import Root

LOOK_EVERY_S = 0.05


@contextmanager
def callers(count: int) -> Iterator[Sequence[Member]]:
    """Processes that have imported everything, and have neither a client nor a Ray."""
    members = [Member(_call) for _ in range(count)]
    try:
        for member in members:
            member.ask("has_loaded", "ray")
        yield members
    finally:
        for member in members:
            member.end()


def _call(pipe: Connection) -> None:
    obey(pipe, _Caller())


class _Caller:
    """What such a process can be told."""

    def __init__(self) -> None:
        self._clients: dict[str, omniray.Client] = {}

    def connect(self, uri: str, options: dict[str, str] | None = None, idle_s: float | None = None) -> None:
        """Connect; a coordinator that this starts gets a Ray of its own, and ends when it was idle for so long."""
        starting.IDLE_S = idle_s or starting.IDLE_S
        self._clients[uri] = omniray.connect(uri, storage_options=options, address=LOCAL, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def add(self, uri: str, name: str, txn_id: str | None = None) -> str | None:
        return add(self._clients[uri], name, txn_id=txn_id).commit_id

    def add_held(self, uri: str, name: str, txn_id: str, folder: Path) -> str | None:
        """Insert a person; the first try has begun, and is held before it is sent, until the test lets it go."""
        writing = Wire.writing

        def held(wire: Wire, request: Request, timeout_s: float) -> Any:
            Wire.writing = writing  # type: ignore[method-assign]
            (folder / "begun").touch()
            while not (folder / "go").exists():
                time.sleep(LOOK_EVERY_S)
            return writing(wire, request, timeout_s)

        Wire.writing = held  # type: ignore[method-assign]
        return self.add(uri, name, txn_id)

    def add_while(self, sign: Path, uri: str, prefix: str) -> list[str]:
        """Insert people one by one with the same client as long as a file is there; the commit ids.

        Each is sent with one id until it is answered.
        """
        names = (f"{prefix}-{number}" for number in itertools.count())
        return [self._added(uri, name, new_ulid()) for name in itertools.takewhile(lambda _: sign.exists(), names)]

    def _added(self, uri: str, name: str, txn_id: str) -> str:
        while True:
            try:
                return str(self.add(uri, name, txn_id))
            except (omniray.StorageError, LineOwned):  # between a `down` and the next `up`, for instance
                time.sleep(LOOK_EVERY_S)

    def outcome(self, uri: str, txn_id: str) -> bool:
        return self._clients[uri].outcome(txn_id).committed

    def people(self, uri: str) -> list[str]:
        return sorted(self._clients[uri].snapshot().table("Person", ["name"])["name"].to_pylist())

    def status(self, uri: str) -> tuple[str, str, int]:
        """Owner, address and epoch of the coordinator."""
        status = self._clients[uri].status()
        return status.owner, status.address, status.epoch

    def url(self, uri: str) -> str:
        return self._clients[uri].url

    def join_ray(self, uri: str, address: str | None) -> str:
        """Join a Ray as a handoff does, which is for good; the address of the one that was joined."""
        with quiet_ray(), omniray.connect(uri, address=address, timeout_s=TIMEOUT_S) as client:
            client.join_ray()
            return cluster.address()

    def texts(self, uri: str) -> list[str]:
        """What a client says of itself, and the errors that it raises."""
        client = self._clients[uri]
        said = [repr(client), str(client), repr(client.status())]
        for name in ("", "no such branch"):
            try:
                client.load([{"name": name, "age": "none"}], type="Person", branch=name or "main")
            except omniray.OmnirayError as error:
                said += [str(error), repr(error), str(error.as_json())]
        return said

    def has_loaded(self, module: str) -> bool:
        return module in sys.modules


# In a process of its own: whoever has joined a Ray is ended by it when it is gone.
_WRITE = f"""
import sys, omniray
with omniray.connect(sys.argv[1]) as client:
    client.mutate({INSERT!r}, {{"name": sys.argv[2], "age": None}})
"""


def write(uri: str, name: str) -> None:
    """Write as a client does that knows nothing but the graph."""
    subprocess.run([sys.executable, "-c", _WRITE, uri, name], check=True, timeout=TIMEOUT_S, env=environment())


# Graphs


def new(disk: Root, name: str) -> str:
    with new_graph(disk, name) as graph:
        return graph.uri


def owner(uri: str) -> str:
    with omniray.open(uri, read_only=True) as graph:
        return graph.owner


def people_of(uri: str) -> list[str]:
    with omniray.open(uri, read_only=True) as graph:
        return people(graph)


# A Ray at an address of this machine that is not its loopback


@contextmanager
def ray_at(host_address: str) -> Iterator[Member]:
    """A process that is the driver of a Ray of its own, which listens on that address, and serves graphs there."""
    member = Member(_keep_ray, host_address)
    try:
        yield member
    finally:
        member.end()


def _keep_ray(pipe: Connection, host_address: str) -> None:
    ray_token.begin()
    with quiet_ray():
        ray().init(
            "local", namespace=NAMESPACE, num_cpus=2, include_dashboard=False, log_to_driver=False,
            _node_ip_address=host_address, object_store_memory=OBJECT_STORE_BYTES,
        )  # fmt: skip
        try:
            obey(pipe, _RayKeeper())
        finally:
            cluster.leave()


class _RayKeeper:
    def serve(self, uri: str) -> str:
        """Serve a graph; the address of its door."""
        with omniray.open(uri, read_only=True) as graph:
            self._hosted = host(graph, uri, None, None)
        return self._hosted.url

    def close(self) -> None:
        self._hosted.down(TIMEOUT_S)


# Coordinators with a Ray of their own


def up(uri: str, *arguments: str, cache: Path) -> dict[str, Any]:
    """Serve a graph in the background on a Ray of its own; the document that tells how."""
    answer = omniray_process("up", uri, "--detach", "--address", LOCAL, "--json", *arguments, XDG_CACHE_HOME=str(cache))
    assert answer.code == 0, answer.err
    return dict(answer.document)


def down(uri: str) -> Answer:
    return omniray_process("down", uri, "--json")


def descendants(pid: int) -> set[int]:
    """A process and everything that it has started: all of a Ray, if it has one of its own."""
    parents = _parents()
    found, fresh = set(), {pid}
    while fresh:
        found |= fresh
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
    return found


def are_over(pids: set[int]) -> bool:
    return not pids & _parents().keys()


def argv() -> dict[int, bytes]:
    """The arguments of every process of the machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(path.parent.name)] = path.read_bytes()
        except OSError:  # it has just ended
            continue
    return found


def coordinators(uri: str) -> list[int]:
    """The processes in the background that serve a graph."""
    return [pid for pid, words in argv().items() if b"\0up\0" + uri.encode() + b"\0" in words]


def _parents() -> dict[int, int]:
    """The parents of all processes that have not ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state not in "ZX":
            found[int(path.parent.name)] = int(parent)
    return found


def wait_until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(LOOK_EVERY_S)


def own_address() -> str | None:
    """An address of this machine that is not its loopback, if it has one."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(one, 0x8915, struct.pack("256s", os.fsencode(name)[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if (address := socket.inet_ntoa(found[20:24])) != cluster.LOOPBACK:
                return address
    return None
