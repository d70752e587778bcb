"""The line under random schedules, with all of its rules and with each of them broken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import CommitObject, Fate
from omniray.engine.recovery import rules as recovery
from omniray.engine.recovery.rules import Decision, OperationFacts, TableClass
from omniray.engine.store.object_store import Answer
from tests.model.line_schedules import run
from tests.model.line_world import Rules, Violation, is_coordinator

SEEDS = 1500


def _first_violation(rules: Rules, seeds: int = SEEDS) -> tuple[int, str] | None:
    for seed in range(seeds):
        try:
            run(seed, rules)
        except Violation as violation:
            return seed, str(violation)
    return None


def test_the_line_keeps_its_promises_under_random_schedules() -> None:
    found = _first_violation(Rules())
    assert found is None, f"replay with line_schedules.run({found[0]}): {found[1]}"  # type: ignore[index]


def test_the_schedules_are_not_idle() -> None:
    worlds = [run(seed) for seed in range(100)]
    assert sum(w.landed for w in worlds) > 500
    assert any(len(w.objects) < len(w.truth) for w in worlds), "nothing was ever pruned"
    told = [recovery.recovery_kind for w in worlds for recovery in w.recorded.values()]
    assert min(told.count("RolledBack"), told.count("RolledForward")) > 50
    assert sum(is_coordinator(obj.owner) and bool(obj.commits) for w in worlds for obj in w.truth) > 50


def _refusal_is_a_loss(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    return Fate.LANDED if answer is Answer.CREATED else Fate.LOST


def _no_answer_is_a_loss(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    return Fate.LOST if seen is None and answer is Answer.UNCLEAR else line.fate(ours, answer, seen)


def _number_is_enough(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    return Fate.LANDED if seen is not None else line.fate(ours, answer, seen)


def _forgets_predecessor(newest: CommitObject, **rest: object) -> CommitObject:
    return replace(line.follow(newest, **rest), prev_op_id="")  # type: ignore[arg-type]


def _raises_epoch(newest: CommitObject, **rest: object) -> CommitObject:
    return replace(line.follow(newest, **rest), epoch=newest.epoch + 1)  # type: ignore[arg-type]


def _keeps_epoch(newest: CommitObject, *, op_id: str, owner: str) -> CommitObject:
    return replace(line.follow_with(newest, line.Remark(op_id)), owner=owner)


def _fenced_is_a_loss(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    found = line.fate(ours, answer, seen)
    return Fate.LOST if found is Fate.FENCED else found


def _discards_at_once(operation: OperationFacts, classes: Iterable[TableClass]) -> Decision:
    found = recovery.decide(operation, classes)
    return Decision.ROLL_BACK if found is Decision.RAISE_FIRST else found


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Rules(fate=_refusal_is_a_loss), id="a refusal is taken for a loss without reading"),
        pytest.param(Rules(fate=_no_answer_is_a_loss), id="no answer is taken for a loss"),
        pytest.param(Rules(fate=_number_is_enough), id="any object at our number is taken for ours"),
        pytest.param(Rules(believable=lambda elapsed, retention: True), id="a sleeper believes its put"),
        pytest.param(Rules(may_answer=lambda judged_on, newest: True), id="a refusal judged on an old object leaves"),
        pytest.param(Rules(reaches=lambda chain, folded: True), id="a gap between manifest and line goes unnoticed"),
        pytest.param(Rules(follow=_forgets_predecessor), id="an object does not name its predecessor"),
        pytest.param(Rules(follow=_raises_epoch), id="a commit raises the epoch"),
        pytest.param(Rules(change_owner=_keeps_epoch), id="a change of owner keeps the epoch"),
        pytest.param(Rules(fate=_fenced_is_a_loss), id="a fenced owner takes its successor for somebody faster"),
        pytest.param(Rules(decide=_discards_at_once), id="a recovery discards without a raise"),
        pytest.param(Rules(looks_again_after_raise=False), id="a recovery decides on what it read before its raise"),
        pytest.param(Rules(sees_what_is_recorded=False), id="two recoveries record one operation"),
    ],
)
def test_the_model_notices_when_a_rule_is_broken(broken: Rules) -> None:
    assert _first_violation(broken) is not None


def test_the_model_notices_when_strays_are_taken_for_the_line() -> None:
    """A stray lies beside the line where a sleeper put a number that was pruned; a history that shows it is wrong."""
    assert _first_violation(Rules(belonging=tuple), 6000) is not None
