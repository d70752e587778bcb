"""Random lives of a graph with branches: writes, merges, reverts, deletions, deaths at any point and recoveries.

Everything is held against a plain model. A long run: OMNIRAY_TORTURE=1 pytest tests/model/test_branches.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from omniray.engine.base.errors import Conflict, MergeConflicts, NotFound
from omniray.engine.base.failpoints import Point
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.conflicts import OnConflict
from omniray.engine.branches.merge_result import MergeOutcome, MergeResult
from omniray.engine.line.sidecar import Sidecars
from tests.merging import conflicts_of
from tests.model.branch_model import DEGREE_MAX, EDGES, KNOWS, PAIR, PERSON, Branches, Merged, Row, Rows, State
from tests.model.branch_world import World

TORTURE = "OMNIRAY_TORTURE" in os.environ
EXAMPLES, STEPS = (400, 100) if TORTURE else (15, 100)
PHASES = tuple(Phase) if TORTURE else (Phase.explicit, Phase.reuse, Phase.generate)
STEPS_MIN = 67 * EXAMPLES  # of each half; Hypothesis draws how many steps an example has, from 1 to STEPS
NAMES = ("a", "b", "c")
PEOPLE = 3

pytestmark = pytest.mark.timeout(7200 if TORTURE else 600)

SMALL = st.integers(0, 7)
HOW = st.sampled_from(("fail", "fail", "fail", "ours", "theirs"))
KINDS = st.sampled_from(("person", "set n", "set m", "remove", "knows", "knows", "pair", "pair", "cut"))
POINTS = st.sampled_from(
    [
        point
        for point in Point
        if point.name.startswith(("A_", "B_", "C_", "BRANCH_", "D_BEFORE_NAME", "D_AFTER_NAME", "D_BEFORE_FOLD"))
        or point.name in ("D_FOLD_STAGED", "D_AFTER_FOLD", "D_BEFORE_TIDY", "D_BEFORE_SIDECARS", "D_AFTER_SIDECARS")
    ]
)

Effect = Callable[[str], None]
"""Applies something that has landed to the model, under its commit's id."""


class Lives(RuleBasedStateMachine):
    """The steps, and what each of them must come to."""

    taken: ClassVar[Counter[str]] = Counter()
    happened: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Branches()
        self.numbers = self.model.numbers
        self.repeatable: list[tuple[Callable[[], Any], str]] = []

    @initialize()
    def begin(self) -> None:
        self.model.begin("main", self.world.graph.graph_id, None)
        for n in range(PEOPLE):
            self._do(*self._write("main", "person", n, n))

    def teardown(self) -> None:
        try:
            if self.model.heads:
                self._check_all()
                self.world.restart()
                self._check_all()
                self.world.see_through()
                sidecars = Sidecars(self.world.disk)
                assert sidecars.listed() == [], sidecars.read_all(sidecars.listed())
        finally:
            self.world.end()

    def _check_all(self) -> None:
        assert {info.name for info in self.world.graph.branches()} == self.model.heads.keys()
        for name, head in self.model.heads.items():
            self.world.check(name, head)

    def _branch(self, index: int) -> str:
        return sorted(self.model.heads)[index % len(self.model.heads)]

    # What is asked of the graph, and what it makes of the model

    def _write(self, branch: str, kind: str, a: int, b: int) -> tuple[Callable[[str], Any], Effect]:
        """A write that the branch, as it is now, must take."""
        rows, number = self.model.heads[branch].rows, next(self.numbers)
        one, other = f"p{a % PEOPLE}", f"p{b % PEOPLE}"
        if not {one, other} <= rows[PERSON].keys() or (kind == "person" and one in rows[PERSON]):
            kind = "person" if one not in rows[PERSON] else "set n"
        value = b % 3
        match kind:
            case "person":
                row = {"name": one, "n": value, "m": None}
                return self._load(branch, PERSON, {one: row}, row)
            case "set n" | "set m":
                name = kind[-1]
                text = f"query set($name: String, $v: I32?) {{ update Person set {{ {name}: $v }} where name = $name }}"
                params: dict[str, Any] = {"name": one, "v": value}
                after = {**rows[PERSON], one: {**rows[PERSON][one], name: value}}
                return self._mutate(branch, text, params, {PERSON: after}, [PERSON])
            case "remove":
                return self._remove(branch, one)
            case "knows" if sum(edge["src"] == one for edge in rows[KNOWS].values()) < DEGREE_MAX:
                row = {"src": one, "dst": other, "n": value}
                return self._load(branch, KNOWS, {f"k{number}": row}, row)
            case "pair" if not any((edge["src"], edge["dst"]) == (one, other) for edge in rows[PAIR].values()):
                row = {"src": one, "dst": other, "n": value}
                return self._load(branch, PAIR, {f"e{number}": row}, row)
        return self._cut(branch, (KNOWS, PAIR)[value % 2], one)

    def _load(self, branch: str, type: str, new: Rows, row: Row) -> tuple[Callable[[str], Any], Effect]:
        ((id, _),) = new.items()
        record = {{"src": "from", "dst": "to"}.get(name, name): value for name, value in row.items()}
        records = [record if type == PERSON else {**record, "id": id}]
        after = {type: {**self.model.heads[branch].rows[type], **new}}

        def ask(txn_id: str) -> Any:
            return self.world.graph.load(records, type=type, branch=branch, txn_id=txn_id)

        return ask, lambda commit_id: self.model.write(branch, after, [type], commit_id)

    def _mutate(
        self, branch: str, text: str, params: dict[str, Any], after: Mapping[str, Rows], touched: list[str]
    ) -> tuple[Callable[[str], Any], Effect]:
        def ask(txn_id: str) -> Any:
            return self.world.graph.mutate(text, params, branch=branch, txn_id=txn_id)

        def effect(commit_id: str) -> None:
            if touched:  # what matches nothing is no commit
                self.model.write(branch, after, touched, commit_id)

        return ask, effect

    def _remove(self, branch: str, name: str) -> tuple[Callable[[str], Any], Effect]:
        rows = self.model.heads[branch].rows
        after: dict[str, Rows] = {PERSON: {id: row for id, row in rows[PERSON].items() if id != name}}
        for type in EDGES:
            after[type] = {id: e for id, e in rows[type].items() if name not in (e["src"], e["dst"])}
        touched = [type for type, left in after.items() if len(left) < len(rows[type])]
        text = "query remove($name: String) { delete Person where name = $name }"
        return self._mutate(branch, text, {"name": name}, after, touched)

    def _cut(self, branch: str, type: str, source: str) -> tuple[Callable[[str], Any], Effect]:
        rows = self.model.heads[branch].rows[type]
        after = {id: edge for id, edge in rows.items() if edge["src"] != source}
        text = f"query cut($name: String) {{ delete {type} where from = $name }}"
        return self._mutate(branch, text, {"name": source}, {type: after}, [type] if len(after) < len(rows) else [])

    def _do(self, ask: Callable[[str], Any], effect: Effect) -> None:
        txn_id = new_ulid()
        ask(txn_id)
        effect(txn_id)

    def _merge(
        self, source: str, target: str, how: str, state: State | None = None
    ) -> tuple[Callable[[str], MergeResult], Merged, Effect]:
        """The merge of a branch's head, or of a state of it."""
        taken, head = state or self.model.heads[source], self.model.heads[target]
        foretold = self.model.merged(taken, head, OnConflict(how))
        named = source if state is None else state.commit_id

        def ask(txn_id: str) -> MergeResult:
            return self.world.graph.merge(named, target, on_conflict=how, txn_id=txn_id)

        return ask, foretold, lambda commit_id: self.model.take(target, foretold, taken, commit_id)

    def _revert(self, branch: str, which: int, how: str) -> tuple[Callable[[str], MergeResult], Merged, Effect]:
        head = self.model.heads[branch]
        known = sorted((state for state in head.all() if state.commit_id), key=lambda state: state.place)
        state: State = known[which % len(known)]
        foretold = self.model.reverted(state, head, OnConflict(how))

        def ask(txn_id: str) -> MergeResult:
            return self.world.graph.revert(state.commit_id, branch=branch, on_conflict=how, txn_id=txn_id)

        return ask, foretold, lambda commit_id: self.model.take(branch, foretold, None, commit_id)

    def _settles(
        self, branch: str, ask: Callable[[str], MergeResult], foretold: Merged, effect: Effect, name: str
    ) -> None:
        """A merge or a revert comes to what was foretold, and the branch is then as the model says."""
        txn_id = new_ulid()
        try:
            result: MergeResult | MergeConflicts = ask(txn_id)
        except MergeConflicts as refused:
            result = refused
        self.happened[f"{name} {foretold.outcome}"] += 1
        if isinstance(result, MergeConflicts):
            assert foretold.outcome is MergeOutcome.CONFLICTS, result
            assert frozenset(conflicts_of(result)) == foretold.conflicts
            assert result.facts["conflict_count"] == len(foretold.conflicts)
            for kind, *_ in foretold.conflicts:
                self.happened[kind] += 1
        else:
            assert (result.outcome, foretold.conflicts) == (foretold.outcome, frozenset())
            if result.commit_id is not None:
                effect(txn_id)
        self.world.check(branch, self.model.heads[branch])

    # Steps

    @rule(index=SMALL, kind=KINDS, a=SMALL, b=SMALL)
    def write(self, index: int, kind: str, a: int, b: int) -> None:
        self.taken["write"] += 1
        self._write_to(self._branch(index), kind, a, b)

    @rule(kind=KINDS, kind2=KINDS, a=SMALL, b=SMALL)
    def write_everywhere(self, kind: str, kind2: str, a: int, b: int) -> None:
        """Branches that change the same things have something to disagree about."""
        self.taken["write everywhere"] += 1
        for n, branch in enumerate(sorted(self.model.heads)):
            self._write_to(branch, kind if n % 2 else kind2, a, b + n)

    def _write_to(self, branch: str, kind: str, a: int, b: int) -> None:
        self._do(*self._write(branch, kind, a, b))
        self.world.check(branch, self.model.heads[branch])

    @precondition(lambda self: len(self.model.heads) <= len(NAMES))
    @rule(index=SMALL)
    def create(self, index: int) -> None:
        self.taken["create"] += 1
        parent = self._branch(index)
        name = next(name for name in NAMES if name not in self.model.heads)
        made = self.world.graph.create_branch(name, parent)
        self.model.begin(name, made.branch_id, parent)
        self.world.check(name, self.model.heads[name])

    @precondition(lambda self: len(self.model.heads) > 1)
    @rule(one=SMALL, other=SMALL, how=HOW, writes=st.lists(st.tuples(KINDS, SMALL, SMALL), max_size=2))
    def merge(self, one: int, other: int, how: str, writes: list[tuple[str, int, int]]) -> None:
        self.taken["merge"] += 1
        pair = self._pair(one, other)
        for kind, a, b in writes:
            for n, branch in enumerate(pair):
                self._write_to(branch, kind, a, b + n)
        self._merge_now(*pair, how)

    @precondition(lambda self: len(self.model.heads) > 1)
    @rule(one=SMALL, other=SMALL, how=HOW, a=SMALL, kinds=st.tuples(KINDS, KINDS, KINDS))
    def merge_each_other(self, one: int, other: int, how: str, a: int, kinds: tuple[str, str, str]) -> None:
        """Both take in what the other had before, and have two bases from then on; one writes, and they merge again."""
        self.taken["merge each other"] += 1
        source, target = self._pair(one, other)
        self._write_to(source, kinds[0], a, a)
        self._write_to(target, kinds[1], a, a + 1)
        old = self.model.heads[target]
        self._merge_now(source, target, how)
        if old.commit_id:
            self._merge_now(target, source, how, old)
        self._write_to(source, kinds[2], a, a + 2)
        self._merge_now(source, target, how)

    def _pair(self, one: int, other: int) -> tuple[str, str]:
        source = self._branch(one)
        return source, self._branch(other) if self._branch(other) != source else self._branch(other + 1)

    def _merge_now(self, source: str, target: str, how: str, state: State | None = None) -> None:
        ask, foretold, effect = self._merge(source, target, how, state)
        self._settles(target, ask, foretold, effect, "merge")

    @rule(index=SMALL, which=st.integers(0, 100), how=HOW)
    def revert(self, index: int, which: int, how: str) -> None:
        self.taken["revert"] += 1
        branch = self._branch(index)
        ask, foretold, effect = self._revert(branch, which, how)
        self._settles(branch, ask, foretold, effect, "revert")

    @precondition(lambda self: len(self.model.heads) > len(NAMES))
    @rule(index=SMALL)
    def delete(self, index: int) -> None:
        self.taken["delete"] += 1
        name = [name for name in NAMES if name in self.model.heads][index % (len(self.model.heads) - 1)]
        leaves = [leaf for leaf in NAMES if leaf in self.model.heads and not self.model.children(leaf)]
        name = name if index % 4 == 0 else leaves[index % len(leaves)]
        if self.model.children(name):
            with pytest.raises(Conflict, match="branches of its own"):
                self.world.graph.delete_branch(name)
            return
        self.world.graph.delete_branch(name)
        self._is_gone(name)

    def _is_gone(self, name: str) -> None:
        self.model.delete(name)
        with pytest.raises(NotFound):  # a handle of the branch learns of it here, and not when the name is used again
            self.world.graph.snapshot(branch=name)

    @rule(
        what=st.sampled_from(("write", "merge", "merge", "revert")), one=SMALL, other=SMALL, kind=KINDS, how=HOW,
        point=POINTS, nth=st.sampled_from((1, 1, 2)),
    )  # fmt: skip
    def die(self, what: str, one: int, other: int, kind: str, how: str, point: Point, nth: int) -> None:
        self.taken[f"die in a {what}"] += 1
        branch = self._branch(one)
        if what == "merge" and len(self.model.heads) > 1:
            source, branch = self._pair(one, other)
            self._write_to(source, kind, one, other)
            ask, foretold, effect = self._merge(source, branch, how)
            self._die(branch, ask, effect, point, nth, foretold)
        elif what == "revert":
            ask, foretold, effect = self._revert(branch, other, how)
            self._die(branch, ask, effect, point, nth, foretold)
        else:
            self._die(branch, *self._write(branch, kind, one, other), point, nth)

    def _die(
        self,
        branch: str,
        ask: Callable[[str], Any],
        effect: Effect,
        point: Point,
        nth: int,
        foretold: Merged | None = None,
    ) -> None:
        """A process may die while it does something; its caller asks again, and it is done once."""
        txn_id, answers, refusals = new_ulid(), [], list[MergeConflicts]()

        def act(*, again: bool = False) -> None:
            try:
                answers.append(ask(txn_id))
            except MergeConflicts as refused:
                refusals.append(refused)
            if again and answers:
                assert answers[-1].commit_id in (None, txn_id)

        is_dead = self.world.dies(point, nth, act)
        self.happened[f"died: {is_dead}"] += 1
        landed = self.world.graph.outcome(txn_id, branch=branch).committed
        assert landed or not any(answer.commit_id is not None for answer in answers), "acknowledged and lost"
        if landed:
            effect(txn_id)
        self.world.check(branch, self.model.heads[branch])
        if is_dead and foretold is None and landed:
            act(again=True)
        elif is_dead and not landed:
            act(again=True)
            if answers and answers[-1].commit_id is not None:
                effect(txn_id)
        self.world.check(branch, self.model.heads[branch])
        for refused in refusals:
            assert foretold is not None
            assert frozenset(conflicts_of(refused)) == foretold.conflicts

    @precondition(lambda self: len(self.model.heads) > 1)
    @rule(what=st.sampled_from(("create", "delete")), index=SMALL, point=POINTS)
    def die_branching(self, what: str, index: int, point: Point) -> None:
        self.taken[f"die {what}"] += 1
        free = [name for name in NAMES if name not in self.model.heads]
        leaves = [name for name in NAMES if name in self.model.heads and not self.model.children(name)]
        txn_id = new_ulid()
        if what == "create" and free:
            parent = self._branch(index)
            self.world.dies(point, 1, lambda: self.world.graph.create_branch(free[0], parent, txn_id=txn_id))
            self.world.graph.create_branch(free[0], parent, txn_id=txn_id)
            self.model.begin(free[0], txn_id, parent)
        elif leaves:
            name = leaves[index % len(leaves)]
            self.world.dies(point, 1, lambda: self.world.graph.delete_branch(name, txn_id=txn_id))
            self.world.graph.delete_branch(name, txn_id=txn_id)
            self._is_gone(name)
        assert {info.name for info in self.world.graph.branches()} == self.model.heads.keys()

    @rule(what=st.sampled_from(("restart", "see through", "look back")), index=SMALL, which=st.integers(0, 50))
    def upkeep(self, what: str, index: int, which: int) -> None:
        self.taken[what] += 1
        branch = self._branch(index)
        match what:
            case "restart":
                self.world.restart()
            case "see through":
                self.world.see_through()
            case "look back":
                own = [s for s in self.model.heads[branch].all() if s.place[0] == self.model.heads[branch].place[0]]
                known = sorted((s for s in own if s.commit_id), key=lambda state: state.place)
                if known:
                    self.world.check_past(branch, known[which % len(known)])
        self.world.check(branch, self.model.heads[branch])


class OtherLives(Lives):
    """The same once more, so that two processes can share the work."""


@pytest.mark.parametrize("lives", [Lives, OtherLives])
def test_branches_hold_what_their_model_does_through_all_their_lives(lives: type[Lives]) -> None:
    lives.taken.clear()
    lives.happened.clear()
    run_state_machine_as_test(
        lives,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=PHASES, print_blob=True),
    )
    print(f"{lives.taken.total()} steps: {dict(lives.taken)}, {dict(lives.happened)}")
    assert lives.taken.total() >= STEPS_MIN
    assert lives.happened["merge merged"] > EXAMPLES
    assert lives.happened["died: True"] > EXAMPLES
