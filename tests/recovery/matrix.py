"""The states of the kill matrix: each is a graph of its own, a process killed on it, and the oracle's word on it."""

from __future__ import annotations

import copy
import http.client
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol
from urllib.parse import quote, urlsplit

from omniray.engine.base.failpoints import Point
from omniray.engine.graph import Graph
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3 import S3Store
from tests.graphs import new_graph
from tests.kit.s3server import S3Server
from tests.recovery.oracle import check_healed, check_kill, observe
from tests.recovery.rows import Deed
from tests.recovery.scenarios import BASE, BORN, SCENARIOS, Kill, Scenario, count, die, uri_of
from tests.recovery.zygote import KILLED, Zygote
from tests.stores import Root


class Ground(Protocol):
    """Where graphs are made and copied."""

    def new(self) -> Root:
        """A place where nothing is."""

    def copy(self, root: Root) -> Root:
        """A place with the same in it; what is copied does not change any more."""

    def store(self, root: Root) -> ObjectStore:
        """The store of the graph at a place."""


@dataclass(slots=True)
class Disk:
    folder: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new(self) -> Root:
        return Root(f"{self.folder}/{next(self._numbers)}", {})

    def copy(self, root: Root) -> Root:
        copied = self.new()
        if os.path.exists(root.uri):
            shutil.copytree(root.uri, copied.uri)
        return copied

    def store(self, root: Root) -> ObjectStore:
        return open_store(uri_of(root))


@dataclass(slots=True)
class S3:
    """Graphs side by side in one bucket. Listings are kept and clients shared: there are hundreds of places."""

    server: S3Server
    bucket: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _listed: dict[str, list[str]] = field(default_factory=dict)
    _opened: S3Store | None = None

    def new(self) -> Root:
        return Root(f"s3://{self.bucket}/{next(self._numbers)}", self.server.storage_options)

    def copy(self, root: Root) -> Root:
        copied = self.new()
        if root.uri not in self._listed:
            self._listed[root.uri] = [file.path for file in self.store(root).files("")]
        with closing(http.client.HTTPConnection(urlsplit(self.server.endpoint).netloc)) as connection:
            for path in self._listed[root.uri]:
                source, target = (quote(f"{uri_of(one).removeprefix('s3:/')}/{path}") for one in (root, copied))
                connection.request("PUT", target, headers={"x-amz-copy-source": source})
                with connection.getresponse() as answer:
                    answer.read()
                    assert answer.status == HTTPStatus.OK
        return copied

    def store(self, root: Root) -> ObjectStore:
        if self._opened is None:
            self._opened = S3Store.open(uri_of(root), root.storage_options)
        store = copy.copy(self._opened)
        store.uri, store.prefix = uri_of(root), urlsplit(uri_of(root)).path.strip("/")
        return store


@dataclass(frozen=True, slots=True)
class Template:
    """The graph that a scenario finds, and what has landed in it; copied for each state."""

    root: Root
    landed: tuple[Deed, ...]


class Matrix:
    """The states of one store, and what it takes to make them."""

    def __init__(self, ground: Ground, zygote: Zygote) -> None:
        self._ground, self._zygote = ground, zygote
        self._base: Root | None = None

    def template(self, scenario: Scenario) -> Template:
        root = self._ground.new() if scenario.unborn else self._ground.copy(self._with_base())
        for one in scenario.left:
            ended = self._zygote.run(die, one, root)
            assert ended.exit_code == KILLED, f"{one} was not killed: {ended}"
        if scenario.disturb is not None:
            scenario.disturb(self._ground.store(root))
        return Template(root, self._landed(root, scenario))

    def reached(self, scenario: Scenario, template: Template) -> Mapping[Point, int]:
        """How often a run to the end reaches each point; what it leaves needs no healing."""
        root = self._ground.copy(template.root)
        ended = self._zygote.run(count, scenario.name, root)
        assert ended.exit_code == 0, f"{scenario.name} did not come to its end: {ended}"
        left = observe(self._ground.store(root)).sidecars
        assert left == () or scenario.redo is not None, f"{scenario.name} leaves {left}"
        (reached,) = ended.reports
        found: Mapping[Point, int] = reached
        return found

    def judge(self, doom: Kill, template: Template) -> bool:
        """Kill a process on a copy of the template, have it healed, and ask the oracle.

        False if the process came to its end: threads that race may reach a point again in one run and not in another.
        """
        scenario = SCENARIOS[doom.scenario]
        root = self._ground.copy(template.root)
        ended = self._zygote.run(die, doom, root)
        assert ended.exit_code == KILLED or (ended.exit_code == 0 and doom.nth > 1), f"was not killed: {ended}"
        store = self._ground.store(root)
        at_kill = observe(store)
        deeds = (*template.landed, *scenario.deeds)
        assert at_kill.born or BORN not in ended.reports, "acknowledged and not there"
        check_kill(at_kill, ended.reports, deeds)
        if scenario.redo is not None:
            scenario.redo(store)
        Graph(store, read_only=False).close()
        check_healed(store, at_kill, deeds if scenario.redo is not None else deeds[: len(at_kill.actors)])
        return ended.exit_code == KILLED

    def _landed(self, root: Root, scenario: Scenario) -> tuple[Deed, ...]:
        """The deeds in a graph's line, by their actors."""
        before = (*BASE, *(deed for one in scenario.left for deed in SCENARIOS[one.scenario].deeds))
        by_actor = {deed.actor: deed for deed in before}
        return tuple(by_actor[actor] for actor in observe(self._ground.store(root)).actors)

    def _with_base(self) -> Root:
        if self._base is None:
            self._base = self._ground.new()
            with new_graph(self._base) as graph:
                for deed in BASE:
                    deed.ask(graph)
        return self._base


def all_kills(scenario: Scenario, reached: Mapping[Point, int]) -> list[Kill]:
    """Every state of a scenario: each point that it reaches, each time that it does."""
    return [Kill(scenario.name, point, nth) for point, times in reached.items() for nth in range(1, times + 1)]


def some_kills(scenario: Scenario, reached: Mapping[Point, int], store: str) -> list[Kill]:
    """The states for which there is always time: the points that matter; the first time, or the second and last too."""
    prefixes = scenario.on_disk if store == "disk" else scenario.on_s3
    chosen = [doom for doom in all_kills(scenario, reached) if doom.point.startswith(prefixes)]
    repeated = scenario.thorough and store == "disk"
    return [doom for doom in chosen if doom.nth == 1 or (repeated and doom.nth in (2, reached[doom.point]))]
