"""What tests of a coordinator that hosts branches beside main have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import omniray
from omniray.coordinator.actors.hosted_branch import HostedBranch
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.store.object_store import ObjectStore
from tests.coordination import TIMEOUT_S
from tests.housing import Housed

A, B = "team/a", "team/b"


def add(client: omniray.Client | omniray.Graph, name: str, branch: str | None = None, **options: Any) -> Any:
    return client.load([{"name": name}], type="Person", branch=branch, **options)


def people(graph: omniray.Client | omniray.Graph, branch: str | None = None) -> list[str]:
    return sorted(graph.snapshot(branch=branch).table("Person", ["name"])["name"].to_pylist())


def hosted(coordinator: Housed) -> list[str]:
    return sorted(branch.name for branch in coordinator.incarnations.hosted.open)


def the_hosted(coordinator: Housed, name: str) -> HostedBranch:
    (found,) = (branch for branch in coordinator.incarnations.hosted.open if branch.name == name)
    return found


def newest_on(store: ObjectStore, branch: str) -> Any:
    return open_branch(store, branch, read_only=True).tip.newest


def let_idle_go(coordinator: Housed) -> None:
    """Let all branches go that have nothing under way, and wait until they are gone."""
    branches = coordinator.incarnations.hosted
    leaving = list(branches._entries.values())
    branches._idle_s = 0.0
    branches.let_idle_go()
    for entry in leaving:
        if entry.leaving is not None:
            entry.leaving.result(TIMEOUT_S)


def is_embedded(store: ObjectStore, *names: str) -> list[bool]:
    return [newest_on(store, name).owner == EMBEDDED for name in names]


def wait_until(holds: Callable[[], bool]) -> None:
    """Ask again and again; for what happens behind an answer."""
    for _ in range(int(TIMEOUT_S / 0.01)):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never")


class Gate:
    """Where one thread waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self, *_: object) -> None:
        self.reached.set()
        assert self.opened.wait(TIMEOUT_S)
