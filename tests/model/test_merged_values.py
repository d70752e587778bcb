"""Random merges of rows with values of all kinds, in a schema with all rules, against the plain model.

The model takes each write's rows from the graph: only what a merge, a revert or a diff makes of them is foretold. Half
of the steps take a few rows for many. A long run: OMNIRAY_TORTURE=1; a seed that failed: OMNIRAY_SEED=… pytest …
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import omniray
from omniray.engine.base.errors import Conflict, InputError, MergeConflicts
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.branches import equal_edges, merge_keys, merge_plan, merge_rows, table_merge
from omniray.engine.branches.conflicts import OnConflict
from omniray.engine.branches.merge_result import MergeOutcome
from omniray.engine.judge.keylog import KeyMemory
from omniray.engine.reading import table_diff
from omniray.engine.tables import storage, table
from tests.merging import conflicts_of
from tests.model.branch_model import Branches, Merged, Row, Rows, Shape, State
from tests.stores import Root

SCHEMA = """
node Person {
    name: String @key
    n: I32?
    x: F64?
    email: String? @unique
    tags: [String]?
    place: Vector(2)?
    photo: Blob?
    born: Date?
}
node Note {
    text: String?
    code: I32? @unique
}
edge Likes: Person -> Note @card(0..2)
edge Wrote: Person -> Note {
    tag: String? @unique
    @unique(src, dst)
}
edge Cites: Note -> Note @card(1..2) {
    x: F32?
}
"""
SHAPE = Shape(
    types=("Person", "Note", "Likes", "Wrote", "Cites"),
    ends={"Likes": ("Person", "Note"), "Wrote": ("Person", "Note"), "Cites": ("Note", "Note")},
    uniques={"Person": [("email",)], "Note": [("code",)], "Wrote": [("tag",), ("src", "dst")]},
    degrees={"Likes": (0, 2), "Cites": (1, 2)},
)
VALUES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "Person": {
        "n": [None, 0, 1],
        "x": [None, 0.0, -0.0, math.nan, 1.0],
        "email": [None, None, "a@x", "b@x", "c@x"],
        "tags": [None, [], ["a"], ["a", "b"]],
        "place": [None, [0.0, 1.0], [-0.0, 1.0]],
        "photo": [None, b"", b"\x00"],
        "born": [None, "2020-01-01", "2020-01-02"],
    },
    "Note": {"text": [None, "", "a"], "code": [None, None, 1, 2, 3]},
    "Likes": {},
    "Wrote": {"tag": [None, None, "a", "b"]},
    "Cites": {"x": [None, 0.0, -0.0, 1.5]},
}
TORTURE = "OMNIRAY_TORTURE" in os.environ
SEED = os.environ.get("OMNIRAY_SEED")
LIVES, STEPS = (150, 90) if TORTURE else (2, 50)

pytestmark = pytest.mark.timeout(7200 if TORTURE else 600)


class Life:
    """One graph, and what the model knows of its branches."""

    def __init__(self, root: Root, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.rng, self.patch = random.Random(seed), patch
        self.graph = omniray.init(f"{root.uri}/{seed}", schema=SCHEMA)
        self.other = omniray.open(self.graph.uri)
        self.model, self.numbers = Branches(shape=SHAPE), iter(range(10**9))
        self.commits: dict[str, State] = {}
        self.happened: Counter[str] = Counter()
        self.model.begin("main", self.graph.graph_id, None)
        for type in ("Person", "Note"):
            key = "name" if type == "Person" else "id"
            self.graph.load([{key: self._node(type, n)[key]} for n in range(4)], type=type)
        self._learn("main")
        self.commits.clear()  # the graph's creation is not taken back

    def close(self) -> None:
        self.other.close()
        self.graph.close()

    # What there is

    def rows(self, branch: str) -> dict[str, Rows]:
        snapshot = self.graph.snapshot(branch=branch)
        return {type: {row.pop("id"): plain(row) for row in snapshot.table(type).to_pylist()} for type in SHAPE.types}

    def _learn(self, branch: str, taken: State | None = None) -> None:
        """Take the rows of a branch over, if it has a new commit; the model has foretold those of a merge."""
        head, known = self.graph._on(branch)._branch.newest(), self.model.heads[branch]
        if head.head == known.commit_id:
            return
        content = {type: head.pins[self.graph.schema.type(type).table_key].content for type in SHAPE.types}
        self.model.take(branch, Merged(MergeOutcome.MERGED, self.rows(branch), content), taken, head.head)
        self.commits[head.head] = self.model.heads[branch]

    # Writes

    def write(self, branch: str, graph: omniray.Graph | None = None) -> None:
        graph = graph or self.graph
        try:
            match self.rng.choice(["node", "node", "edge", "edge", "edge", "delete", "cut", "anew"]):
                case "node":
                    type = self.rng.choice(["Person", "Note"])
                    node = self._node(type, self.rng.randrange(4))
                    graph.load([node], type=type, mode="merge", branch=branch)
                case "edge":
                    type = self.rng.choice(list(SHAPE.ends))
                    graph.load([self._edge(type)], type=type, mode="merge", branch=branch)
                case "delete":
                    where = self.rng.choice(
                        ['Person where name = "p1"', 'Person where name = "p2"', "Note where code = 1"]
                    )
                    graph.mutate(f"query q() {{ delete {where} }}", branch=branch)
                case "cut":
                    type = self.rng.choice(list(SHAPE.ends))
                    graph.mutate(f'query q() {{ delete {type} where to = "n{self.rng.randrange(4)}" }}', branch=branch)
                case _:
                    self._load_anew(graph, branch)
        except (InputError, Conflict):
            self.happened["refused write"] += 1
        self._learn(branch)

    def _node(self, type: str, number: int) -> dict[str, Any]:
        name = {"name": f"p{number}"} if type == "Person" else {"id": f"n{number}"}
        return {**name, **self._values(type)}

    def _edge(self, type: str) -> dict[str, Any]:
        at = [f"{'p' if node == 'Person' else 'n'}{self.rng.randrange(4)}" for node in SHAPE.ends[type]]
        id = self.rng.choice([f"{type}{self.rng.randrange(5)}", f"{type}-{next(self.numbers)}"])
        return {"id": id, "from": at[0], "to": at[1], **self._values(type)}

    def _values(self, type: str) -> dict[str, Any]:
        return {name: self.rng.choice(values) for name, values in VALUES[type].items()}

    def _load_anew(self, graph: omniray.Graph, branch: str) -> None:
        """All edges of a type anew, some of them under other ids, and without some."""
        type = self.rng.choice(list(SHAPE.ends))
        edges = []
        for edge in graph.snapshot(branch=branch).table(type).to_pylist():
            if self.rng.random() < 0.15:
                continue
            edge["from"], edge["to"] = edge.pop("src"), edge.pop("dst")
            if self.rng.random() < 0.6:
                edge["id"] = f"{type}-{next(self.numbers)}"
            edges.append(edge)
        graph.load(edges, type=type, mode="overwrite", branch=branch)

    # Steps

    def step(self) -> None:
        self._take_few_for_many(self.rng.random() < 0.5)
        branches = sorted(self.model.heads)
        match self.rng.choice(["create", "write", "write", "merge", "merge", "merge", "merge", "revert", "diff"]):
            case "create" if len(branches) < 4:
                parent, name = self.rng.choice(branches), f"b{next(self.numbers)}"
                self.model.begin(name, self.graph.create_branch(name, parent).branch_id, parent)
                head = self.model.heads[name]
                self.model.heads[name] = replace(head, commit_id=self.model.heads[parent].commit_id)
            case "merge" if len(branches) > 1:
                source, target = self.rng.sample(branches, 2)
                if self.rng.random() < 0.6:
                    self.write(source)
                    self.write(target)
                self.merge(source, target)
            case "revert" if self.commits:
                self.revert(self.rng.choice(branches))
            case "diff" if len(branches) > 1:
                self.diff(*self.rng.sample(branches, 2))
            case _:
                self.write(self.rng.choice(branches))

    def _take_few_for_many(self, is_small: bool) -> None:
        few = {
            (merge_rows, "INLINE_ROWS_MAX"): 1,
            (table_diff, "ROWS_AT_ONCE"): 3,
            (table_diff, "_TAKE_ROWS"): 2,
            (table_merge, "LOOKUP_IDS_MAX"): 2,
            (merge_plan, "LOOKUP_IDS_MAX"): 2,
            (equal_edges, "PAIRS_AT_ONCE"): 2,
            (merge_keys, "MEMORY"): KeyMemory(200, 64),
            (storage, "TAIL_ROWS_MAX"): self.rng.choice([0, 2]),
        }
        self.patch.undo()
        for (module, name), value in few.items() if is_small else ():
            self.patch.setattr(module, name, value)
            if name == "TAIL_ROWS_MAX":
                self.patch.setattr(table, name, value)

    def merge(self, source: str, target: str) -> None:
        how = self.rng.choice(["fail", "fail", "fail", "ours", "theirs"])
        state = self.model.heads[source]
        overtaking = {Point.C_BEFORE_PUT: Action(lambda: self.write(target, self.other), nth=1)}
        try:
            with armed(overtaking if self.rng.random() < 0.3 else {}):
                result: Any = self.graph.merge(source, target, on_conflict=how)
        except MergeConflicts as error:
            result = error
        foretold = self.model.merged(state, self.model.heads[target], OnConflict(how))
        self._settles(result, foretold, target, state)

    def revert(self, branch: str) -> None:
        commit_id = self.rng.choice(sorted(self.commits))
        state = self.commits[commit_id]
        if state.before is None or state not in self.model.heads[branch].all():
            return
        how = self.rng.choice(["fail", "ours", "theirs"])
        try:
            result: Any = self.graph.revert(commit_id, branch=branch, on_conflict=how)
        except MergeConflicts as error:
            result = error
        self._settles(result, self.model.reverted(state, self.model.heads[branch], OnConflict(how)), branch, None)

    def _settles(self, result: Any, foretold: Merged, target: str, taken: State | None) -> None:
        """Hold a result against what was foretold, and the target's rows too."""
        self.happened[foretold.outcome] += 1
        if isinstance(result, MergeConflicts):
            assert frozenset(conflicts_of(result)) == foretold.conflicts
            self.happened.update(kind for kind, *_ in foretold.conflicts)
        else:
            assert (result.outcome, foretold.conflicts) == (foretold.outcome, frozenset())
            self._learn(target, taken)
        assert self.rows(target) == foretold.rows

    def diff(self, one: str, other: str) -> None:
        before, after = self.model.heads[one].rows, self.model.heads[other].rows
        with self.graph.diff(one, other) as diff:
            for type in SHAPE.types:
                told = {row["id"]: (row["kind"], set(row["changed"])) for row in diff.table(type).to_pylist()}
                assert told == _differences(before[type], after[type])


def _differences(before: Rows, after: Rows) -> dict[str, tuple[str, set[str]]]:
    found = {id: ("insert", set[str]()) for id in after.keys() - before.keys()}
    found |= {id: ("delete", set()) for id in before.keys() - after.keys()}
    for id in before.keys() & after.keys():
        changed = {name for name, value in after[id].items() if value != before[id][name]}
        if changed:
            found[id] = ("update", changed)
    return found


def plain(row: Row) -> Row:
    return {name: comparable(value) for name, value in row.items()}


def comparable(value: Any) -> Any:
    """The value such that == means: the same bits."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return [comparable(item) for item in value] if isinstance(value, list) else value


def test_merges_of_any_values_make_what_their_model_makes(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: Counter[str] = Counter()
    first = random.randrange(1 << 30) if SEED is None else int(SEED)
    for seed in range(first, first + (LIVES if SEED is None else 1)):
        print(f"OMNIRAY_SEED={seed}")
        life = Life(disk, seed, monkeypatch)
        try:
            for _ in range(STEPS):
                life.step()
        finally:
            monkeypatch.undo()
            life.close()
        happened += life.happened
    print(dict(happened))
    assert SEED is not None or happened["merged"] + happened["conflicts"] > LIVES
