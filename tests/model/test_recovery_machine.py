"""Random lives of a graph: writes, deaths at any point, recoveries, owners, foreign writers, repairs and sweeps.

Everything is held against a plain model. A long run: OMNIRAY_TORTURE=1 pytest tests/model/test_recovery_machine.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omniray.engine.base.errors import OmnirayError, TableDrift
from omniray.engine.base.failpoints import Point
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import EMBEDDED
from tests.kit.faulty_store import Crashed
from tests.model.recovery_world import Runner, World
from tests.recovery.rows import Deed, Rows, delete, insert, load, update

TORTURE = "OMNIRAY_TORTURE" in os.environ
EXAMPLES, STEPS = (400, 80) if TORTURE else (15, 60)
# Whoever finds something by a long run may wait until it is made small.
PHASES = tuple(Phase) if TORTURE else (Phase.explicit, Phase.reuse, Phase.generate)
STEPS_MIN = 20 * EXAMPLES  # of each half; Hypothesis draws how many steps an example has, from 1 to STEPS
RUNNERS_MAX = 3
POOL = 4

pytestmark = pytest.mark.timeout(7200 if TORTURE else 300)


def _points(*areas: str) -> st.SearchStrategy[Point]:
    return st.sampled_from([point for point in Point if point.name.startswith(areas)])


BEFORE_PUT = ("A_", "B_", "C_BEFORE")
PHASE_D = (
    "D_BEFORE_NAME",
    "D_AFTER_NAME",
    "D_BEFORE_FOLD",
    "D_BEFORE_AUDIT",
    "D_AUDIT",
    "D_FOLD",
    "D_AFTER_FOLD",
    "D_BEFORE_TIDY",
    "D_BEFORE_SIDECARS",
    "D_AFTER_SIDECARS",
)
BOOL = st.booleans()
NOWHERE = Point.INIT_BEFORE_IDENTITY  # where none of these processes comes
COMING_AND_GOING = st.sampled_from(("start", "stop", "flush", "notice", "sweep", "sweep and die"))
SMALL = st.integers(0, POOL - 1)
NTH = st.sampled_from((1, 1, 2))
KINDS = st.sampled_from(("insert", "append", "merge", "update", "delete", "overwrite"))
NOT_STRICT = st.sampled_from(("insert", "append", "merge"))


class Lives(RuleBasedStateMachine):
    """The steps, and what each of them must come to."""

    taken: ClassVar[Counter[str]] = Counter()
    happened: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.drift: str | None = None  # a person whom a foreign writer has added
        self.repeatable: list[Deed] = []
        self.is_rested = True  # two steps of upkeep in a row would be most of what Hypothesis does

    @initialize()
    def begin(self) -> None:
        self.world.start()

    def teardown(self) -> None:
        if self.drift is not None:
            runner = self.world.start()
            runner.graph.recover(take_over=True)
            runner.graph.repair(discard=True, actor="at last")
            self._lands_without_effect()
        self.world.end()

    def _step(self, name: str, *, is_upkeep: bool = False) -> None:
        self.taken[name] += 1
        self.is_rested = not is_upkeep

    def _runner(self, index: int) -> Runner:
        return self.world.runners[index % len(self.world.runners)] if self.world.runners else self.world.start()

    def _writer(self, index: int) -> Runner:
        """Most often one that may write; who may not is refused in the same way each time."""
        allowed = [runner for runner in self.world.runners if self.world.refusal_of(runner) is None]
        return allowed[index % len(allowed)] if index and allowed else self._runner(index)

    def _deed(self, kind: str, a: int, b: int) -> Deed:
        """A write that the graph, as it is now, must take."""
        number = next(self.world.numbers)
        actor, people = f"{kind}{number}", self.world.rows["Person"]
        known = sorted(people)
        if kind == "update" and known:
            return update(actor, known[a % len(known)], number)
        if kind == "delete" and known:
            return delete(actor, known[a % len(known)])
        if kind == "append":
            new = f"new{number}"
            edge = (new, known[0] if known else new)
            return load(actor, people={new: number}, cities=[f"city{number}"], knows={f"edge{number}": edge})
        if kind == "overwrite":
            return load(actor, cities=[f"c{a}", f"c{b}"], mode="overwrite")
        if kind == "merge":
            return self._repeatable(actor, f"p{a}", f"p{b}", number)
        return insert(actor, f"p{a}", number)

    def _repeatable(self, actor: str, one: str, other: str, number: int) -> Deed:
        """A write to three tables with an id, by which it is known if it is asked for again."""
        txn_id = new_ulid()
        records: list[dict[str, Any]] = [
            *({"type": "Person", "data": {"name": name, "age": number}} for name in {one, other}),
            {"type": "City", "data": {"name": f"city of {one}"}},
            {"edge": "Knows", "id": f"{one}{other}", "from": one, "to": other},
        ]

        def effect(rows: Rows) -> None:
            rows["Person"] |= dict.fromkeys((one, other), number)
            rows["City"][f"city of {one}"] = None
            rows["Knows"][f"{one}{other}"] = (one, other)

        deed = Deed(actor, lambda graph: graph.load(records, mode="merge", actor=actor, txn_id=txn_id), effect)
        self.repeatable.append(deed)
        return deed

    def _is_whole(self) -> bool:
        return self.drift is None

    def _lands_without_effect(self) -> None:
        """Repairs are commits too: whatever is in the line that was not before changed nothing."""
        new = self.world.actors()[len(self.world.landed) :]
        self.world.lands(*(Deed(actor, lambda graph: None, lambda rows: None) for actor in new))

    # Processes

    @precondition(lambda self: self.is_rested)
    @rule(index=SMALL, what=COMING_AND_GOING, point=_points("SWEEP_", *PHASE_D))
    def come_and_go(self, index: int, what: str, point: Point) -> None:
        self._step(what, is_upkeep=True)
        match what:
            case "start" if len(self.world.runners) < RUNNERS_MAX:
                self.world.start()
            case "notice":
                self.world.notice()
            case "stop" | "start" if self._is_whole():
                self.world.stop(self._runner(index))
            case "flush" if self._is_whole():
                self._see_through(self._runner(index))
            case "sweep" | "sweep and die" if self._is_whole() and self.world.is_shared():
                self._sweep(point if what == "sweep and die" else NOWHERE)

    def _see_through(self, runner: Runner) -> None:
        """Finish Phase D, deletes and all."""
        runner.graph.flush()
        runner.graph._finaliser.tidy()

    def _sweep(self, point: Point) -> None:
        """Everything that may go goes; whoever sweeps may die on the way."""
        runner = self._embedded()
        self._dies(runner, point, 1, lambda: runner.graph.sweep(older_than_s=0))

    def _embedded(self) -> Runner:
        return next((runner for runner in self.world.runners if runner.owner == EMBEDDED), None) or self.world.start()

    # Writing

    @precondition(_is_whole)
    @rule(index=SMALL, kind=KINDS, a=SMALL, b=SMALL)
    def write(self, index: int, kind: str, a: int, b: int) -> None:
        self._step(f"write {kind}")
        runner = self._writer(index)
        deed, expected = self._deed(kind, a, b), self.world.refusal_of(runner)
        self._finish(runner, deed, expected, self.world.attempt(runner, deed))

    def _finish(
        self, runner: Runner, deed: Deed, expected: type[OmnirayError] | None, refused: OmnirayError | None
    ) -> None:
        """A write has been answered: as it had to be, and the graph is as the answer says."""
        if expected is not None:
            assert isinstance(refused, expected), f"{refused!r} instead of {expected}"
            return
        if refused is not None:
            raise refused
        self.world.lands(deed)
        self.world.check_rows(runner)

    @precondition(lambda self: self._is_whole() and self.is_rested and self.repeatable)
    @rule(index=SMALL, which=st.integers(0, 50))
    def write_again(self, index: int, which: int) -> None:
        """The same id once more, from anywhere: applied once, whatever became of the first time."""
        self._step("write again", is_upkeep=True)
        runner, deed = self._runner(index), self.repeatable[which % len(self.repeatable)]
        landed, expected = deed in self.world.landed, self.world.refusal_of(runner)
        refused = self.world.attempt(runner, deed)
        if not landed:
            self._finish(runner, deed, expected, refused)
        elif refused is not None:
            raise refused
        assert self.world.actors().count(deed.actor) <= 1

    @precondition(_is_whole)
    @rule(index=SMALL, kind=KINDS, a=SMALL, b=SMALL, point=_points("A_", "B_", "C_", "LOST_"), nth=NTH, is_noticed=BOOL)
    def die_writing(self, index: int, kind: str, a: int, b: int, point: Point, nth: int, is_noticed: bool) -> None:
        self._die_writing(index, kind, a, b, point, nth, is_noticed)

    @precondition(_is_whole)
    @rule(index=SMALL, kind=KINDS, a=SMALL, b=SMALL, point=_points(*PHASE_D), nth=NTH, is_noticed=BOOL)
    def die_finishing(self, index: int, kind: str, a: int, b: int, point: Point, nth: int, is_noticed: bool) -> None:
        self._die_writing(index, kind, a, b, point, nth, is_noticed)

    def _die_writing(self, index: int, kind: str, a: int, b: int, point: Point, nth: int, is_noticed: bool) -> None:
        self._step(f"die at {point}")
        runner = self._writer(index)
        deed, expected, answers = self._deed(kind, a, b), self.world.refusal_of(runner), []

        def act() -> None:
            answers.append(self.world.attempt(runner, deed))
            self._see_through(runner)

        if not self._dies(runner, point, nth, act, is_noticed=is_noticed):
            return self._finish(runner, deed, expected, answers[0])
        self.happened["died writing"] += 1
        is_in = self.world.actors()[len(self.world.landed) :] == [deed.actor]
        assert not (is_in and nth == 1 and point.name.startswith(BEFORE_PUT))
        assert is_in or answers != [None], "acknowledged and lost"
        if is_in:
            self.world.lands(deed)
        return None

    @precondition(_is_whole)
    @rule(index=SMALL, kind=KINDS, a=SMALL, b=SMALL, moment=_points("RECOVERY_") | st.just(NOWHERE))
    def die_putting(self, index: int, kind: str, a: int, b: int, moment: Point) -> None:
        """A process dies while its commit is on its way; that arrives at some moment of a recovery, or long after."""
        self._step("die putting")
        runner = self._writer(index)
        self.world.die_putting(runner, self._deed(kind, a, b))
        if runner.store.is_dead:
            self.world.bury(runner, is_noticed=False)
            self._arrive(self.world.start(), moment)

    @precondition(lambda self: self._is_whole() and self.is_rested and self.world.on_their_way)
    @rule(index=SMALL, moment=_points("RECOVERY_"))
    def a_put_arrives(self, index: int, moment: Point) -> None:
        self._step("a put arrives", is_upkeep=True)
        self._arrive(self._runner(index), moment)

    def _arrive(self, healer: Runner, moment: Point) -> None:
        """Let the last put on its way arrive while a process recovers: it is seen, or refused."""
        deed = self.world.on_their_way[-1][1]
        while self.world.missing:
            self.world.notice()
        self.world.acting = healer.process
        with self.world.at(healer, moment, self.world.arrive):
            healer.graph.recover()
        if self.world.actors()[len(self.world.landed) :]:
            self.happened["a late put landed"] += 1
            self.world.lands(deed)

    def _dies(
        self, runner: Runner, point: Point, nth: int, act: Callable[[], object], *, is_noticed: bool = True
    ) -> bool:
        """Let a process act and die if it comes to a point; whether it did."""
        self.world.acting = runner.process
        with self.world.at(runner, point, runner.store.die, nth):
            try:
                act()
            except Crashed:
                assert runner.store.is_dead
        if runner.store.is_dead:
            self.world.bury(runner, is_noticed=is_noticed)
        return runner.store.is_dead

    # Others meanwhile

    @precondition(lambda self: self._is_whole() and self.world.is_shared())
    @rule(
        kind=NOT_STRICT, a=SMALL, b=SMALL, c=SMALL, point=_points("A_", "B_", "C_"),
        meanwhile=st.sampled_from(("write", "suspect", "sweep", "take over", "flush")),
    )  # fmt: skip
    def write_while_others_act(self, kind: str, a: int, b: int, c: int, point: Point, meanwhile: str) -> None:
        """A process is slow at some point, and another one acts; what was only slow lands all the same."""
        self._step(f"meanwhile {meanwhile}")
        slow = self._embedded()
        deed, others = self._deed(kind, a, b), []

        def act() -> None:
            quick = self.world.start("ray://quick" if meanwhile == "take over" else "")
            match meanwhile:
                case "write":
                    others.append(insert(f"quick{next(self.world.numbers)}", f"p{c}", c))
                    assert self.world.attempt(quick, others[0]) is None
                case "suspect":
                    self.world.known_dead.add(slow.process)
                    quick.graph.recover()
                    self.world.known_dead.remove(slow.process)
                case "sweep":
                    quick.graph.sweep(older_than_s=0)
            if meanwhile != "take over":
                self.world.stop(quick)
            self.world.acting = slow.process

        with self.world.at(slow, point, act):
            refused = self.world.attempt(slow, deed)
        if refused is not None and meanwhile != "take over":
            raise refused
        new = {d.actor: d for d in (*others, *([deed] if refused is None else []))}
        actors = self.world.actors()[len(self.world.landed) :]
        assert sorted(actors) == sorted(new)
        self.world.lands(*(new[actor] for actor in actors))

    # Recovery and owners

    @precondition(lambda self: self.world.has_remains() and (self._is_whole() or self.is_rested))
    @rule(index=SMALL, point=st.just(NOWHERE) | _points("RECOVERY_") | _points(*PHASE_D), nth=NTH)
    def recover(self, index: int, point: Point, nth: int) -> None:
        """Heal what the dead left; whoever does it may die on the way."""
        self._step("recover", is_upkeep=not self._is_whole())
        self.world.notice()
        runner = self._writer(index)
        if self._dies(runner, point, nth, runner.graph.recover):
            self.happened["died recovering"] += 1
            return
        if self._is_whole() and self.world.newest().owner == runner.owner:
            self.world.check_recovered()

    @precondition(lambda self: self.is_rested)
    @rule(what=st.sampled_from(("take over", "die", "hand back")), point=_points("OWNER_", "RECOVERY_"))
    def change_owner(self, what: str, point: Point) -> None:
        self._step(what, is_upkeep=True)
        match what:
            case "take over" if len(self.world.runners) < RUNNERS_MAX:
                runner = self.world.start("ray://somewhere")
                assert self.world.newest().owner == runner.owner
            case "die":
                self.world.start_and_die("ray://somewhere", point)
            case "hand back":
                self._hand_back()

    def _hand_back(self) -> None:
        runner = self._embedded()
        self.world.acting = runner.process
        runner.graph.recover(take_over=True)
        assert self.world.is_shared()
        if self._is_whole():
            self.world.check_recovered()

    # Foreign writers

    @precondition(lambda self: self._is_whole() and self.is_rested and self.world.is_shared())
    @rule()
    def foreign_write(self) -> None:
        self._step("foreign write", is_upkeep=True)
        number = next(self.world.numbers)
        self.drift = f"foreign{number}"
        self.world.write_behind_our_back(self.drift, number)

    @precondition(lambda self: not self._is_whole())
    @rule(
        adopt=st.booleans(),
        point=st.just(NOWHERE) | _points("REPAIR_", "D_BEFORE_NAME", "D_AFTER_NAME", "D_BEFORE_FOLD", "D_AFTER_FOLD"),
    )
    def repair(self, adopt: bool, point: Point) -> None:
        """Adopt or discard what a foreign writer did; whoever does it may die on the way."""
        self._step(f"repair adopt={adopt}")
        self._hand_back()
        self._write_to_drifted()
        runner = self._embedded()
        actor = f"repair{next(self.world.numbers)}"

        def act() -> None:
            try:
                runner.graph.repair(adopt=adopt, discard=not adopt, actor=actor)
                self._see_through(runner)
            except TableDrift:
                assert adopt, "whatever it is, it can be set aside"

        self._dies(runner, point, 1, act)
        if adopt and self.world.actors()[len(self.world.landed) :]:
            name = self.drift
            assert name is not None
            age = int(name.removeprefix("foreign"))
            self.world.lands(Deed(actor, lambda graph: None, lambda rows: rows["Person"].update({name: age})))
        else:
            self._lands_without_effect()
        if not self.world.has_drifted():
            self.drift = None

    def _write_to_drifted(self) -> None:
        """A write is refused; on top of a version whose name was taken, at the latest when its Phase D has begun."""
        was_taken = self.world.is_a_name_taken()
        first = insert(f"beside{next(self.world.numbers)}", "p0", 0)
        refused = self.world.attempt(self._embedded(), first)
        if refused is None:
            assert was_taken
            self.world.lands(first)
            refused = self.world.attempt(self._embedded(), insert("refused", "p0", 1))
        assert isinstance(refused, TableDrift), repr(refused)

    # Reading

    @precondition(lambda self: self._is_whole() and self.is_rested and self.world.commit_ids)
    @rule(index=SMALL, which=st.integers(0, 50))
    def read(self, index: int, which: int) -> None:
        self._step("read", is_upkeep=True)
        runner = self._runner(index)
        self.world.check_rows(runner)
        self.world.check_past(runner, which % len(self.world.commit_ids))

    @invariant()
    def the_line_is_one_and_pins_what_there_is(self) -> None:
        self.world.check_line()


class OtherLives(Lives):
    """The same once more, so that two processes can share the work."""


@pytest.mark.parametrize("lives", [Lives, OtherLives])
def test_a_graph_holds_what_its_model_does_through_all_its_lives(lives: type[Lives]) -> None:
    lives.taken.clear()
    lives.happened.clear()
    run_state_machine_as_test(
        lives,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=PHASES, print_blob=True),
    )
    print(f"{lives.taken.total()} steps: {dict(lives.taken)}, {dict(lives.happened)}")
    assert lives.taken.total() >= STEPS_MIN
    assert lives.happened["died writing"] > EXAMPLES
