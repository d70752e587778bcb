"""Random lives of a graph with branches that is swept again and again, by processes that die or meet each other.

Files of any age are swept. After each sweep every branch can be read, at its head and at every commit in its reach, and
each commit has the rows that it ever had. Nothing that was acknowledged is lost.

    OMNIRAY_SEED=7 pytest tests/model/test_sweep.py
    OMNIRAY_TORTURE=1 pytest tests/model/test_sweep.py
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

import omniray
from omniray.engine.base.errors import Conflict, InputError, StorageError
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.principal import Author
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.store.object_store import store_now_us
from omniray.engine.writes import row_sink
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.terms import WriteTerms
from tests.model.branch_model import PERSON, TYPES
from tests.model.branch_world import World

TORTURE = "OMNIRAY_TORTURE" in os.environ
SEEDS, STEPS = (range(400), 60) if TORTURE else (range(8), 16)
if seed := os.environ.get("OMNIRAY_SEED"):
    SEEDS = range(int(seed), int(seed) + 1)
BRANCHES_MAX = 5
COMMITS_CHECKED = 40

pytestmark = pytest.mark.timeout(7200 if TORTURE else 600)


def _points(*beginnings: str) -> list[Point]:
    """Points where a step may be met, or die; some of Phase D are rare, and not worth the tries."""
    return [point for point in Point if point.name.startswith(beginnings) and "UPKEEP" not in point.name]


_IN_COMMITS = _points("A_", "B_", "C_", "D_")
POINTS = {
    "load_few": _IN_COMMITS,
    "stage": _points("STAGE_"),
    "land": _IN_COMMITS,
    "load_files": [*_points("STAGE_"), *_points("STAGE_"), *_IN_COMMITS],
    "update": _IN_COMMITS,
    "replace": _IN_COMMITS,
    "create": _points("BRANCH_"),
    "delete": _points("BRANCH_"),
    "rename": _points("BRANCH_"),
    "mark": _points("BRANCH_BEFORE"),
    "merge": [*_points("MERGE_"), *_points("MERGE_"), *_IN_COMMITS],
    "sweep": [*_points("SWEEP_"), *_points("D_FOLD", "D_BEFORE_FOLD")],
}

Rows = dict[str, frozenset[tuple[tuple[str, object], ...]]]
Step = Callable[[Graph], object]


class Lives:
    """One life of a graph, from a seed; what happened in it, and what must be true for ever."""

    def __init__(self, seed: int) -> None:
        self.rng, self.world = Random(seed), World()
        self.numbers = iter(range(10**6))
        self.rows: dict[str, Rows] = {}  # by commit
        self.kept: dict[str, set[str]] = defaultdict(set)  # by branch: names whose rows nobody deletes
        self.happened: Counter[str] = Counter()
        self.staged: list[tuple[Graph, LoadIntent, list[str]]] = []
        self.late: list[str] = []  # the commits of those that have landed
        self.is_swept = False

    def end(self) -> None:
        try:
            for process, intent, _ in self.staged:
                with _ending(process):
                    intent.close(used=True)
        finally:
            self.world.end()

    # What is asked of the graph

    def _load(self, graph: Graph, count: int) -> None:
        branch = self._branch(graph)
        names, line = [f"k{next(self.numbers)}" for _ in range(count)], _line(graph, branch)
        graph.load([{"name": name} for name in names], type=PERSON, branch=branch)
        self.kept[line].update(names)

    def _load_few(self, graph: Graph) -> None:
        self._load(graph, 1)

    def _load_files(self, graph: Graph) -> None:
        """So many rows that they are staged as files before the load is judged."""
        self._load(graph, row_sink.INLINE_ROWS_MAX + 1)

    def _stage(self, graph: Graph) -> None:
        """A process of its own stages such a load, and waits."""
        if not self.staged:  # the lease of another one would spare the table when this one lands
            process = Graph(open_branch(self.world.disk, self.rng.choice(_names(graph)[-3:])), read_only=False)
            names = [f"k{next(self.numbers)}" for _ in range(row_sink.INLINE_ROWS_MAX + 1)]
            options, terms = LoadOptions.checked("append", "fail", None), WriteTerms(Author("ann", ""))
            rows = [{"name": name} for name in names]
            intent = process._stager.prepare_load(rows, options, terms, type=PERSON)
            self.staged.append((process, intent, names))

    def _land(self, _: Graph) -> None:
        """It goes on."""
        if self.staged:
            process, intent, names = self.staged.pop()
            with _ending(process), intent:
                landed = intent.finished(process._writer.commit(intent)).commit_id
                assert landed is not None
                self.late.append(landed)
                self.kept[process.line].update(names)

    def _update(self, graph: Graph) -> None:
        branch = self._branch(graph)
        if names := sorted(self.kept[_line(graph, branch)]):
            text = "query set($who: String, $n: I32) { update Person set { n: $n } where name = $who }"
            graph.mutate(text, {"who": self.rng.choice(names), "n": self.rng.randrange(9)}, branch=branch)

    def _replace(self, graph: Graph) -> None:
        """A row comes and goes: a deletion leaves a file of its own."""
        branch, name = self._branch(graph), f"d{next(self.numbers)}"
        graph.load([{"name": name}], type=PERSON, branch=branch)
        graph.mutate("query drop($n: String) { delete Person where name = $n }", {"n": name}, branch=branch)

    def _create(self, graph: Graph) -> None:
        names = _names(graph)
        if len(names) < BRANCHES_MAX:
            parent = self.rng.choice(names)
            kept = set(self.kept[_line(graph, parent)])
            made = graph.create_branch(f"b{next(self.numbers)}", parent)
            self.kept[made.branch_id] |= kept

    def _delete(self, graph: Graph) -> None:
        if name := self._other_than_main(graph):
            graph.delete_branch(name, force=self.rng.random() < 0.5)

    def _mark(self, graph: Graph) -> None:
        """A process dies in a deletion: the line has no end yet, and takes commits."""
        if name := self._other_than_main(graph):
            with contextlib.suppress(FailpointHit), armed({Point.BRANCH_AFTER_MARK: Action(fail)}):
                graph.delete_branch(name, force=True)

    def _rename(self, graph: Graph) -> None:
        if name := self._other_than_main(graph):
            graph.rename_branch(name, f"r{next(self.numbers)}")

    def _other_than_main(self, graph: Graph) -> str | None:
        """A branch, rather one that a staged load waits on."""
        waited_on = {process.line for process, _, _ in self.staged}
        names = [branch for branch in graph.branches() if branch.name != "main"]
        likely = [branch for branch in names if branch.branch_id in waited_on and self.rng.random() < 0.8]
        return self.rng.choice(likely or names).name if names else None

    def _merge(self, graph: Graph) -> None:
        source, target = self._branch(graph), self._branch(graph)
        kept, into = set(self.kept[_line(graph, source)]), _line(graph, target)
        commits = [graph.history(1, branch=source)[0].commit_id, *self.late]
        what = self.rng.choice(commits) if self.rng.random() < 0.4 else source
        graph.merge(what, target, on_conflict="ours")
        if what == source:
            self.kept[into] |= kept

    def _sweep(self, graph: Graph) -> None:
        if graph is self.world.graph and self.rng.random() < 0.8:
            self.world.see_through()  # or what is under way would spare its tables, and what died with a process
            graph.recover()
        before = store_now_us(self.world.disk)
        while store_now_us(self.world.disk) <= before:  # by the clock that dates files, all of them are older now
            pass
        self.happened["swept files"] += graph.sweep(older_than_s=0).deleted.files
        self.is_swept = True

    def _branch(self, graph: Graph) -> str:
        return self.rng.choice(_names(graph))

    def _in_between(self, name: str, points: list[Point]) -> dict[Point, Step]:
        """What other processes do while one is at work."""
        met = {point: self.rng.choice((self._step()[1], self._land, self._rename, self._delete)) for point in points}
        if name != "sweep" or self.rng.random() < 0.5:
            return met
        # What is told to the lines comes before the files are listed, and what is staged must not land after that.
        for step in (self._create, self._stage):
            self._try(step, self.world.graph)
        told = {Point.SWEEP_AFTER_PUT: self._rename, Point.SWEEP_BEFORE_PUT: self._mark}
        point = self.rng.choice(list(told))
        return {**met, point: told[point], Point.SWEEP_AFTER_FILES: self._land}

    def _step(self) -> tuple[str, Step]:
        steps = (
            self._load_few, self._load_files, self._stage, self._stage, self._update, self._replace, self._create,
            self._create, self._merge, self._merge, self._delete, self._mark, self._rename, self._land,
            *[self._sweep] * 5,
        )  # fmt: skip
        step: Step = self.rng.choice(steps)
        return step.__name__.strip("_"), step  # type: ignore[attr-defined]

    # Who asks, and what comes between

    def live(self, steps: int) -> None:
        for _ in range(steps):
            name, step = self._step()
            points, nth = self.rng.choices(POINTS[name], k=self.rng.randint(1, 2)), self.rng.choice((1, 1, 1, 2))
            self.happened[name] += 1
            match self.rng.choice(("alone", "dies", "dies", "met", "met", "met")):
                case "alone":
                    self._try(step, self.world.graph)
                case "dies":
                    died = self.world.dies(points[0], nth, lambda step=step: self._try(step, self.world.graph))
                    self.happened["died"] += died
                case "met":
                    others = self._in_between(name, points)
                    with armed({point: Action(partial(self._meet, other), nth) for point, other in others.items()}):
                        self._try(step, self.world.graph)
                        self._try(lambda graph: self.world.see_through(), self.world.graph)
                    for landed in self.late[-1:]:  # whatever has become of its branch
                        self._try(
                            lambda graph, landed=landed: graph.merge(landed, on_conflict="ours"), self.world.graph
                        )
            if self.is_swept:
                self.check()
            if self.rng.random() < 0.1:
                self.world.restart()
        self._try(self._sweep, self.world.graph)
        self.check()

    def _meet(self, step: Step) -> None:
        """Another process does something in between, from its begin to its end."""
        self.happened["met"] += 1
        if step == self._land:  # by a process that has been there all the time: opening a graph would finish deletions
            self._try(step, self.world.graph)
        else:
            with Graph(open_branch(self.world.disk), read_only=False) as other:
                self._try(step, other)

    def _try(self, step: Step, graph: Graph) -> None:
        """What is refused is refused: branches vanish and change their names, and loads take too long for a sweep."""
        try:
            step(graph)
        except (Conflict, InputError) as refused:
            self.happened[refused.kind] += 1
        except StorageError as refused:
            if not any(words in str(refused) for words in ("swept meanwhile", "stage its rows again")):
                raise
            self.happened["staged again"] += 1

    # What must be true

    def check(self) -> None:
        self.is_swept = False
        self.happened["checks"] += 1
        with Graph(open_branch(self.world.disk, read_only=True), read_only=True) as graph:
            for branch in graph.branches():
                head = _rows(graph.snapshot(branch=branch.name))
                names = {dict(row)["name"] for row in head[PERSON]}
                assert self.kept[branch.branch_id] <= names, f"rows of {branch.name} are lost"
                for entry in graph.history(COMMITS_CHECKED, branch=branch.name):
                    rows = _rows(graph.snapshot(branch=branch.name, at=entry.commit_id))
                    assert self.rows.setdefault(entry.commit_id, rows) == rows, f"rows of {entry.commit_id}"


@contextlib.contextmanager
def _ending(process: Graph) -> Iterator[None]:
    """A process that ends, also if its branch was deleted."""
    try:
        yield
    finally:
        process._end()


def _rows(snapshot: omniray.Snapshot) -> Rows:
    return {type: frozenset(tuple(row.items()) for row in snapshot.table(type).to_pylist()) for type in TYPES}


def _names(graph: Graph) -> list[str]:
    """The branches' names, main's first."""
    return [branch.name for branch in graph.branches()]


def _line(graph: Graph, name: str) -> str:
    """The line of a branch; no name is ever used twice."""
    return graph._on(name).line


@pytest.fixture
def few_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 2)


@pytest.mark.usefixtures("few_inline")
def test_a_sweep_takes_nothing_that_any_branch_needs() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        print(f"OMNIRAY_SEED={seed}", flush=True)
        lives = Lives(seed)
        try:
            lives.live(STEPS)
        finally:
            lives.end()
        happened += lives.happened
    print(dict(happened))
    if len(SEEDS) > 1:
        assert min(happened[what] for what in ("swept files", "died", "met", "checks", "merge", "delete")) > 0
