"""The guards of recovery, each with a twin that lacks it: with all of them nothing is wrong, and then something is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.line_end import Tip
from omniray.engine.line.prune import prune
from omniray.engine.line.sidecar import Sidecar
from omniray.engine.recovery import recoverer as recoverer_module
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport
from omniray.engine.recovery.rules import Decision, TableFacts
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import observe_final_name
from omniray.engine.tables.version_names import own_path, version_of
from tests.foreign import commit_and_die, plain_ids
from tests.graphs import PERSON, Parts, parts_of
from tests.healing import add, left_by, outcomes, recovered, staged_versions, wounds
from tests.kit.faulty_store import CallFault, Crashed, Effect, FaultyStore
from tests.kit.mortal import bury, mortal

DIED_BEFORE, DIED_AFTER = Point.C_BEFORE_PUT, Point.C_AFTER_PUT


def _decide_without_raising(operation: Any, classes: Any, decide: Any = recoverer_module.decide) -> Decision:
    decision: Decision = decide(operation, classes)
    return Decision.ROLL_BACK if decision is Decision.RAISE_FIRST else decision


def _decide_by_the_look_before_the_raise(self: Any, tip: Any, sidecars: Any, examine: Any = Recoverer._examine) -> Any:
    if hasattr(self, "seen_before"):
        return [replace(case, decision=Decision.ROLL_BACK) for case in self.seen_before]
    self.seen_before = examine(self, tip, sidecars)
    return self.seen_before


def in_flight(store: ObjectStore) -> CommitObject:
    """A process dies while the put of its object is on its way: it lands when somebody puts it."""
    its_own, parts = mortal(store)
    on_its_way: list[CommitObject] = []

    def lose(obj: CommitObject) -> Any:
        on_its_way.append(obj)
        its_own.die()

    parts.log.put = lose  # type: ignore[method-assign]
    with pytest.raises(Crashed):
        add(parts, "late")
    bury(parts)
    return on_its_way[0]


@pytest.mark.parametrize("guard", ["raise", "read after it", "none is missing"])
@pytest.mark.parametrize(
    "moment", [Point.RECOVERY_BEFORE_RAISE, Point.RECOVERY_AFTER_RAISE, Point.RECOVERY_BEFORE_APPLY]
)
def test_a_put_that_lands_during_recovery_is_either_seen_or_refused(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, guard: str, moment: Point
) -> None:
    """The twins decide without raising the epoch, or by what was seen before: a committed write is torn apart."""
    if guard == "raise":
        monkeypatch.setattr(recoverer_module, "decide", _decide_without_raising)
    if guard == "read after it":
        monkeypatch.setattr(Recoverer, "_examine", _decide_by_the_look_before_the_raise)
    late, healer = in_flight(store), opened()
    arrive = Action(lambda: answers.append(store.put_if_absent(healer.log.path(late.seq), encode(late))), nth=1)
    answers: list[Any] = []
    with armed({moment: arrive}):
        try:
            recovered(healer)
        except InvariantViolation:
            assert guard != "none is missing"
    misses = {("raise", Point.RECOVERY_BEFORE_APPLY), ("read after it", Point.RECOVERY_BEFORE_RAISE)}
    assert bool(wounds(store)) == ((guard, moment) in misses)
    if guard == "none is missing":
        landed = moment is Point.RECOVERY_BEFORE_RAISE
        assert answers == ["created" if landed else "refused"]
        assert outcomes(healer)[late.op_id][0] == ("RolledForward" if landed else "RolledBack")
        assert healer.rows() == (["late"] if landed else [])


def _named_in_the_line(self: Recoverer, sidecars: Sequence[Sidecar], newest: CommitObject) -> set[str]:
    return {obj.op_id for obj in self._lineage._log.down_to(newest, 1)}


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_an_operation_whose_object_was_pruned_is_found_in_the_lineage(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin looks at the line alone, and says of a committed write that it was rolled back."""
    if not has_guard:
        monkeypatch.setattr(Recoverer, "_named", _named_in_the_line)
    left, other = left_by(store, Point.D_BEFORE_SIDECARS), opened(is_dead=lambda sidecar: False)
    add(other, "ann")
    other.finaliser.flush()
    newest = other.newest()
    a_year_later_us = (time.time_ns() // 1000) + 365 * 24 * 3600 * 1_000_000
    assert prune(store, other.log, newest, newest.seq, now_us=a_year_later_us, keep=1) > 0
    healer = opened()
    recovered(healer)
    assert healer.sidecars.listed() == []
    assert bool(wounds(store)) != has_guard
    assert outcomes(healer)[left][0] == ("RolledForward" if has_guard else "RolledBack")


def _final_then_own(self: Recoverer, newest: CommitObject, table_key: str, head: int) -> TableFacts:
    pin = newest.pins[table_key]
    final = observe_final_name(self._store, pin)
    has_own_name = self._store.get(own_path(pin, self._branch.graph_id)) is not None
    return TableFacts(pin.version, head, final, has_own_name)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_a_phase_d_that_is_finished_while_recovery_looks_is_no_violation(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The final name is not there, then it is and the version's own name is gone: the twin looks in that order."""
    if not has_guard:
        monkeypatch.setattr(Recoverer, "_observe_table", _final_then_own)
    left = left_by(store, DIED_AFTER)

    def finish() -> None:
        quick = parts_of(store)
        quick.finaliser.notice(quick.newest())
        quick.close()

    watched = FaultyStore(store)
    watched.arm(CallFault(Effect.PAUSE, frozenset({"get"}), path_contains="/_staged/", pause=finish))
    healer = opened(cast(ObjectStore, watched))
    if not has_guard:
        with pytest.raises(InvariantViolation):
            recovered(healer)
        return
    assert recovered(healer).rolled_forward == (left,)


def _clear_every_staged_version(self: Recoverer, sidecar: Sidecar) -> None:
    for table in sidecar.tables:
        for path in staged_versions(self._store, table.table_path):
            if version_of(path) == table.expected_version + 1:
                self._store.delete(path)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_another_operation_s_staged_manifest_of_the_same_version_is_not_deleted(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """One died before its put; another committed the same version, and died before it had its final name.

    The twin goes by the version alone, and deletes the only name that a committed version has.
    """
    if not has_guard:
        monkeypatch.setattr(Recoverer, "_clear_staging", _clear_every_staged_version)
    left = left_by(store, DIED_BEFORE)
    commit_and_die(store, "ann")
    assert len(staged_versions(store)) == 2
    healer = opened(is_dead=lambda sidecar: sidecar.operation_id == left)
    try:
        recovered(healer)
    except InvariantViolation:
        assert not has_guard
    assert bool(wounds(store)) != has_guard
    if has_guard:
        assert healer.rows() == plain_ids(store) == ["ann"]


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_of_two_recoveries_at_once_one_records_the_operation(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The second one runs from beginning to end just before the first one records; the twin records all the same."""
    if not has_guard:
        monkeypatch.setattr(Lineage, "recorded", lambda self, operation_ids, newest: set())
        monkeypatch.setattr(Lineage, "since", lambda self, known, newest: iter(()))
    left, first, second = left_by(store, DIED_BEFORE), opened(), opened()

    def overtake() -> None:
        with armed({Point.RECOVERY_BEFORE_RECORD: Action(lambda: None)}):
            recovered(second)

    with armed({Point.RECOVERY_BEFORE_RECORD: Action(overtake, nth=1)}):
        assert recovered(first).rolled_back == (left,)
    told = [one.operation_id for obj in first.line() for one in obj.recoveries]
    assert told == [left] * (1 if has_guard else 2)
    assert first.sidecars.listed() == []


def test_a_fenced_embedded_writer_rejoins_and_its_caller_notices_nothing(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    """It was only slow: taken for dead just before its put, it is refused, and commits on top of the recovery."""
    slow, healer = opened(is_dead=lambda sidecar: False), opened()
    reports: list[RecoveryReport] = []
    with armed({DIED_BEFORE: Action(lambda: reports.append(recovered(healer)), nth=1)}):
        written = add(slow, "ann")
    (first_attempt,) = reports[0].rolled_back
    assert slow.rows() == ["ann"]
    (landed,) = [obj for obj in slow.line() if any(c.commit_id == written.commit_id for c in obj.commits)]
    assert landed.op_id != first_attempt, "every attempt has its own operation id"
    assert landed.epoch == 2
    slow.close()
    assert slow.sidecars.listed() == []
    assert wounds(store) == []


def _head_after_the_line(self: Recoverer, tip: Any, sidecars: Sequence[Sidecar]) -> Any:
    newest = tip.refresh()
    commit_and_die_final(self._store)
    tables = {table.table_key: table for sidecar in sidecars for table in sidecar.tables}
    heads = {key: old_versions.newest_version(self._store, table.table_path) for key, table in tables.items()}
    facts = {key: self._observe_table(newest, key, head) for key, head in heads.items() if key in newest.pins}
    named = self._named(sidecars, newest)
    return [self._case(sidecar, newest, facts, named=sidecar.operation_id in named) for sidecar in sidecars]


def commit_and_die_final(store: ObjectStore) -> None:
    quick = parts_of(store)
    add(quick, f"quick-{len(quick.line())}")
    quick.close()


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_a_commit_during_the_look_is_not_taken_for_a_foreign_writer(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """HEAD is read before the line; the twin reads it afterwards, and sees a version that the line did not have."""
    left, healer = left_by(store, DIED_BEFORE), opened()
    if has_guard:
        refresh = healer.tip.refresh

        def after_a_commit() -> CommitObject:
            commit_and_die_final(store)
            return refresh()

        monkeypatch.setattr(healer.tip, "refresh", after_a_commit)
    else:
        monkeypatch.setattr(Recoverer, "_examine", _head_after_the_line)
    recovered(healer)
    assert outcomes(healer)[left][1][PERSON] == ("NoMovement" if has_guard else "UnexpectedAtP1")


def test_a_record_is_built_without_a_look_at_the_lineage_so_that_live_writers_do_not_outrun_it(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the look-up is made, only the line is read: each build races with writers that need less than a look-up."""
    left, healer, rival = left_by(store, DIED_BEFORE), opened(), opened(is_dead=lambda sidecar: False)
    looked_up: list[int] = []
    folded_through = Manifest.folded_through
    races = iter("abc")

    def counted(self: Manifest) -> int:
        looked_up.append(1)
        return folded_through(self)

    extend = Tip.extend

    def contested(self: Tip, build: Callable[[CommitObject], CommitObject | None]) -> CommitObject | None:
        def late(newest: CommitObject) -> CommitObject | None:
            before = len(looked_up)
            built = build(newest)
            assert len(looked_up) == before
            for name in itertools.islice(races, 1):
                add(rival, name)
            return built

        return extend(self, late)

    monkeypatch.setattr(Tip, "extend", contested)
    with monkeypatch.context() as patch:
        patch.setattr(healer.manifest, "folded_through", lambda: counted(healer.manifest))
        assert recovered(healer).rolled_back == (left,)
