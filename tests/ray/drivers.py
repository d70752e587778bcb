"""Client processes: each has a client of its own and no Ray, and does what it is told over a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import omniray
from omniray.coordinator.actors.cluster import ray
from omniray.coordinator.actors.hosting import host
from omniray.coordinator.stress.nodes import Nodes, running_nodes
from omniray.engine.base.failpoints import Action, Point, armed, kill
from tests.graphs import AGE, CITY, INSERT, INSERT_CITY, PERSON
from tests.processes.crew import Member, obey
from tests.ray.world import TIMEOUT_S, Served, add, quiet_ray
from tests.ray.world import connected as client_of

TORTURE = "OMNIRAY_TORTURE" in os.environ
PROCESSES = 32 if TORTURE else 3


@contextmanager
def crew() -> Iterator[Sequence[Member]]:
    """Processes that live as long as the tests, since each needs seconds to import everything."""
    members = [Member(_drive, f"driver-{number}") for number in range(PROCESSES)]
    try:
        yield members
    finally:
        for member in members:
            member.end()


def connected(members: Sequence[Member], served: Served) -> Sequence[Member]:
    """The same processes with clients of this graph."""
    all_at_once(members, "connect", served.uri, served.root.storage_options)
    return members


def all_at_once(members: Sequence[Member], verb: str, *arguments: Any) -> list[Any]:
    """What each of them says to the same order, when all have got it before any has answered."""
    for member in members:
        member.tell(verb, *arguments)
    return [member.answer() for member in members]


def _drive(pipe: Connection, name: str) -> None:
    obey(pipe, _Driver(name))


class _Driver:
    """What a client process can be told."""

    _client: omniray.Client

    def __init__(self, name: str) -> None:
        self._name = name

    def connect(self, uri: str, options: dict[str, str]) -> None:
        self.close()
        self._client = client_of(uri, options, actor=self._name, tenant=self._name)

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()

    def mix(self, count: int) -> list[str | None]:
        """Own keys appended, one key of everybody's merged, own rows changed, several tables in one write."""
        done: list[omniray.WriteResult] = []
        for number in range(count):
            own = f"{self._name}-{number}"
            hot = [{"name": "hot", "age": number}, {"name": f"{own}-merged", "age": 0}]
            edge = {"edge": "Knows", "id": own, "from": own, "to": own}
            done += [
                add(self._client, own),
                self._client.load(hot, mode="merge", type="Person"),
                self._client.mutate(AGE, {"name": own, "age": number}),
                self._client.load([{"type": "City", "data": {"name": own}}, edge]),
            ]
        return [result.commit_id for result in done]

    def add_all(self, prefix: str, count: int) -> list[str | None]:
        """Insert people one by one; the commit ids."""
        return [add(self._client, f"{self._name}-{prefix}-{n}").commit_id for n in range(count)]

    def add_to(self, branches: Sequence[str], prefix: str, count: int) -> dict[str, list[str | None]]:
        """Insert people one by one, on each of the branches in turn; the commit ids by branch."""
        done: dict[str, list[str | None]] = {branch: [] for branch in branches}
        for number in range(count):
            for branch, commits in done.items():
                commits.append(add(self._client, f"{self._name}-{prefix}-{number}", branch=branch).commit_id)
        return done

    def add_until_gone(self, branch: str) -> tuple[list[str | None], omniray.OmnirayError]:
        """Insert people on a branch until that is refused: the commit ids, and the refusal."""
        accepted: list[str | None] = []
        while True:
            try:
                accepted.append(add(self._client, f"{self._name}-{len(accepted)}", branch=branch).commit_id)
            except omniray.OmnirayError as error:
                return accepted, error

    def add_strictly(self, name: str, version: int) -> bool:
        """Insert a person if the table is at a version; whether it was."""
        try:
            add(self._client, f"{self._name}-{name}", expected_versions={PERSON: version})
        except omniray.ExpectedVersionMismatch:
            return False
        return True

    def add_until_refused(self) -> tuple[list[str], omniray.OmnirayError]:
        """Insert people until that is refused: those who were accepted, and the refusal."""
        accepted: list[str] = []
        while True:
            name = f"{self._name}-{len(accepted)}"
            try:
                add(self._client, name)
            except omniray.OmnirayError as error:
                return accepted, error
            accepted.append(name)

    def add_city(self, name: str) -> str | None:
        return self._client.mutate(INSERT_CITY, {"name": name}).commit_id

    def cities(self) -> list[str]:
        return list(self._client.snapshot().table(CITY.partition(":")[2], ["name"])["name"].to_pylist())


# A client that dies while it loads


def killed_while_loading(served: Served, rows: int) -> int | None:
    """Load in a process of its own that is killed when its rows are staged and nothing is sent; its exit code."""
    member = Member(_die_while_loading, served.uri, served.root.storage_options, rows)
    member.process.join()
    return member.process.exitcode


def _die_while_loading(pipe: Connection, uri: str, options: dict[str, str], rows: int) -> None:
    with armed({Point.STAGE_AFTER_ROWS: Action(kill)}):
        client = client_of(uri, options)
        client.load([{"name": f"lost-{number}"} for number in range(rows)], type="Person")


# Another cluster


@contextmanager
def other_cluster() -> Iterator[Member]:
    """A process that is the driver of a Ray of its own, and can be told what a client process can be told, and more."""
    member = Member(_keep_cluster)
    try:
        yield member
    finally:
        member.end()


def _keep_cluster(pipe: Connection) -> None:
    with quiet_ray(), running_nodes() as nodes:
        obey(pipe, _Keeper(nodes))


class _Keeper(_Driver):
    """A driver that has a cluster: it serves graphs from there, and can lose or freeze a node of it."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__("keeper")
        self._nodes = nodes

    def address(self) -> str:
        return self._nodes.address

    def serve(self, uri: str, options: dict[str, str], take_over: bool) -> None:
        with omniray.open(uri, storage_options=options, read_only=True) as graph:
            self._hosted = host(graph, uri, options, self._nodes.address, take_over=take_over)
        self.connect(uri, options)

    def down(self) -> None:
        self._hosted.down(TIMEOUT_S)

    def grow_to(self, nodes: int) -> None:
        while len(self._nodes) < nodes:
            self._nodes.add()

    def lose_publisher(self) -> None:
        """Lose the node that it is on."""
        node, _ = self._whereabouts_of_publisher()
        self._nodes.lose(node)

    def leave_first_node(self) -> None:
        """Have the publisher restarted until it is on another node: Ray places it as it likes."""
        here = ray().get_runtime_context().get_node_id()
        node, pid = self._whereabouts_of_publisher()
        while node == here:
            ray().kill(self._hosted.publisher, no_restart=False)
            node, pid = self._whereabouts_of_publisher(after=pid)

    def add_while_the_node_is_lost(self, clients: int, count: int) -> tuple[list[str | None], float]:
        """Insert people, each client one after another; amid that the publisher's node dies.

        The commit ids, and the longest time for which nobody was answered.
        """
        node, _ = self._whereabouts_of_publisher()
        with ThreadPoolExecutor(clients) as pool:
            under_way = [pool.submit(self._add_timed, f"node-{number}", count) for number in range(clients)]
            add(self._client, "first")
            self._nodes.lose(node)
            timed = sorted(one for future in under_way for one in future.result())
        silences = (after - before for (before, _), (after, _) in pairwise(timed))
        return [commit for _, commit in timed], max(silences)

    def _add_timed(self, prefix: str, count: int) -> list[tuple[float, str | None]]:
        """When each write was answered, and its commit id."""
        commits = (add(self._client, f"{prefix}-{number}").commit_id for number in range(count))
        return [(time.monotonic(), commit) for commit in commits]

    def add_while_the_node_is_frozen(self, count: int) -> list[str | None]:
        """Insert people; amid that everything on the publisher's node stops, and goes on when they are all answered.

        It then finds that the cluster has given it up, and ends; then a last one is inserted. The commit ids.
        """
        node, _ = self._whereabouts_of_publisher()
        frozen = self._nodes.processes(node)
        people = [{"name": f"node-{number}", "age": None} for number in range(count)]
        under_way = [self._client.submit_mutate(INSERT, one) for one in people[: count // 2]]
        _signal_all(frozen, signal.SIGSTOP)
        try:
            under_way += [self._client.submit_mutate(INSERT, one) for one in people[count // 2 :]]
            done = [future.result() for future in under_way]
        finally:
            _signal_all(frozen, signal.SIGCONT)
        raylet, *workers = frozen
        deadline = time.monotonic() + TIMEOUT_S
        while _is_alive(raylet):
            assert time.monotonic() < deadline, "the thawed node does not end"
            time.sleep(0.1)
        last = add(self._client, "last")
        _signal_all(workers, signal.SIGKILL)  # Ray may leave some, who have nothing to do any more
        return [one.commit_id for one in (*done, last)]

    def _whereabouts_of_publisher(self, after: int = 0) -> tuple[str, int]:
        """Node and process; of the next one if the process has been killed, which takes a moment."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ray().exceptions.RayError):
                node, pid = ray().get(self._hosted.publisher.__ray_call__.remote(_whereabouts))
                if pid != after:
                    return node, pid
            time.sleep(0.1)
        raise AssertionError("the publisher does not come back")


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    """Whether a process still runs: one whose parent has not noticed its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _whereabouts(actor: object) -> tuple[str, int]:
    return str(ray().get_runtime_context().get_node_id()), os.getpid()
