"""The states of the kill matrix: each is a graph of its own, a process killed on it, and the oracle's word on it."""

from __future__ import annotations

import http.client
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, urlsplit

from bench.s3server import S3Server
from omniray.engine.failpoints import Point
from omniray.engine.graph import Graph
from tests.graphs import new_graph
from tests.recovery.oracle import Evidence, check_healed, check_kill, observe
from tests.recovery.rows import Deed
from tests.recovery.scenarios import BASE, BORN, SCENARIOS, Kill, Scenario, count, die, store_of
from tests.recovery.zygote import KILLED, Zygote
from tests.stores import Root


class Ground(Protocol):
    """Where graphs are made and copied."""

    def new(self) -> Root: ...

    def copy(self, root: Root) -> Root: ...


@dataclass(slots=True)
class Disk:
    folder: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new(self) -> Root:
        return Root(f"{self.folder}/{next(self._numbers)}", {})

    def copy(self, root: Root) -> Root:
        copied = self.new()
        shutil.copytree(root.uri, copied.uri)
        return copied


@dataclass(slots=True)
class S3:
    server: S3Server
    bucket: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new(self) -> Root:
        return Root(f"s3://{self.bucket}/{next(self._numbers)}", self.server.storage_options)

    def copy(self, root: Root) -> Root:
        copied = self.new()
        connection = http.client.HTTPConnection(urlsplit(self.server.endpoint).netloc)
        for file in store_of(root).files(""):
            source, target = (quote(f"{r.uri.removeprefix('s3:/')}/graph/{file.path}") for r in (root, copied))
            connection.request("PUT", target, headers={"x-amz-copy-source": source})
            with connection.getresponse() as answer:
                answer.read()
                assert answer.status == 200
        connection.close()
        return copied


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
            self._kill(one, root)
        if scenario.disturb is not None:
            scenario.disturb(store_of(root))
        return Template(root, _landed(root, scenario))

    def reached(self, scenario: Scenario, template: Template) -> Mapping[Point, int]:
        """How often an undisturbed run reaches each point; what that run leaves has to satisfy the oracle, too."""
        root = self._copy(template)
        ended = self._zygote.run(count, scenario.name, root)
        assert ended.exit_code == 0, f"{scenario.name} did not come to its end: {ended}"
        (reached,) = ended.reports
        store = store_of(root)
        at_end = observe(store)
        if scenario.redo is None:
            assert at_end.sidecars == (), f"{scenario.name} leaves sidecars"
        Graph(store, read_only=False).close()
        check_healed(store, at_end, (*template.landed, *scenario.deeds))
        found: Mapping[Point, int] = reached
        return found

    def judge(self, doom: Kill, template: Template) -> Evidence:
        """Kill a process on a copy of the template, have it healed, and ask the oracle."""
        scenario = SCENARIOS[doom.scenario]
        root = self._copy(template)
        acknowledged = self._kill(doom, root)
        store = store_of(root)
        at_kill = observe(store)
        deeds = (*template.landed, *scenario.deeds)
        assert at_kill.born or BORN not in acknowledged, "acknowledged and not there"
        check_kill(at_kill, acknowledged, deeds)
        if scenario.redo is not None:
            scenario.redo(store)
        Graph(store, read_only=False).close()
        check_healed(store, at_kill, deeds if scenario.redo is not None else deeds[: len(at_kill.actors)])
        return at_kill

    def _kill(self, doom: Kill, root: Root) -> Sequence[str]:
        ended = self._zygote.run(die, doom, root)
        assert ended.exit_code == KILLED, f"was not killed: {ended}"
        return ended.reports

    def _copy(self, template: Template) -> Root:
        return self._ground.copy(template.root) if store_of(template.root).first_name("") else self._ground.new()

    def _with_base(self) -> Root:
        if self._base is None:
            self._base = self._ground.new()
            with new_graph(self._base) as graph:
                for deed in BASE:
                    deed.ask(graph)
        return self._base


def _landed(root: Root, scenario: Scenario) -> tuple[Deed, ...]:
    """The deeds in a graph's line, by their actors."""
    before = (*BASE, *(deed for one in scenario.left for deed in SCENARIOS[one.scenario].deeds))
    by_actor = {deed.actor: deed for deed in before}
    return tuple(by_actor[actor] for actor in observe(store_of(root)).actors)


def kills(scenario: Scenario, reached: Mapping[Point, int], *, every_time: bool, first_only: bool) -> list[Kill]:
    """The states of a scenario: each point that it reaches, the first, second and last time or every time."""
    return [
        Kill(scenario.name, point, nth)
        for point, times in reached.items()
        for nth in range(1, times + 1)
        if every_time or nth == 1 or (nth in (2, times) and not first_only)
    ]
