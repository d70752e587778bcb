"""What was left on the lines of other branches, as main's recovery sees it: that of deleted ones is main's to clear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.principal import Author
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.branches import Branches
from omniray.engine.history import audit
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_log import FOLDER as COMMITS
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.recovery import recoverer
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from tests.graphs import Parts, parts_on
from tests.healing import add, everybody_is_dead, recovered
from tests.kit.faulty_store import FaultyStore
from tests.kit.mortal import bury
from tests.stores import Root
from tests.unit.test_two_lines import DIED_AFTER, DIED_BEFORE, SIDE, On, bind, left_on, processes, recoveries, two_lines

COORDINATOR = str(Incarnation(new_ulid(), this_process(), "ray://head:10001"))


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    return two_lines(disk)


@pytest.fixture
def on(store: ObjectStore) -> Iterator[On]:
    with processes(store) as open_one:
        yield open_one


def delete(store: ObjectStore, name: str = SIDE, owner: str = EMBEDDED) -> None:
    main = open_branch(store)
    Branches(main, main.tip.another(), lambda landed: None, owner=owner).delete(name, author=Author("ann", ""))


@pytest.mark.parametrize("died_at", [Point.RECOVERY_AFTER_RECORD, Point.RECOVERY_BEFORE_SIDECAR])
@pytest.mark.parametrize(("left_at", "kind"), [(DIED_BEFORE, "RolledBack"), (DIED_AFTER, "RolledForward")])
def test_an_operation_that_was_recorded_on_its_branch_is_not_recorded_again_when_that_is_deleted(
    store: ObjectStore, on: On, died_at: Point, left_at: Point, kind: str
) -> None:
    """A recovery dies with the record in the line, folded or not; then the branch is deleted. Its word stands."""
    left = left_on(store, SIDE, left_at)
    healer = on(SIDE, is_dead=everybody_is_dead)
    with armed({died_at: Action(fail)}), pytest.raises(FailpointHit):
        recovered(healer)
    assert recoveries(healer) == {left: kind}
    delete(store)
    main = on(MAIN, is_dead=everybody_is_dead)
    recovered(main)
    assert main.sidecars.listed() == []
    assert recoveries(main) == {}
    assert [(one.operation_id, one.recovery_kind) for one in audit.recorded(store)] == [(left, kind)]


def test_a_branch_that_was_deleted_since_main_was_opened_is_known_to_its_recovery(store: ObjectStore, on: On) -> None:
    left = left_on(store, SIDE, DIED_BEFORE)
    main = on(MAIN, is_dead=everybody_is_dead)
    assert recovered(main) == RecoveryReport()
    delete(store)
    assert recovered(main) == RecoveryReport(rolled_back=(left,))
    assert recoveries(main) == {left: "OrphanedBranchDiscarded"}


def test_a_branch_that_was_created_since_main_was_opened_is_left_to_itself(store: ObjectStore, on: On) -> None:
    main = on(MAIN, is_dead=everybody_is_dead)
    bind(store, "later")
    left = left_on(store, "later", DIED_AFTER)
    assert recovered(main) == RecoveryReport()
    assert main.recoverer.left_elsewhere() == {open_branch(store, "later").branch.ulid}
    assert main.sidecars.listed() == [left]


# Epochs are those of a line


def left_by_coordinator(store: ObjectStore, on: On) -> tuple[str, Parts]:
    """What the owner of main left on a branch that it owned too, in an epoch of the same number; and main."""
    main = on(MAIN, owner=COORDINATOR)
    take_over(main.tip, COORDINATOR)
    side = parts_on(open_branch(store, SIDE), owner=COORDINATOR)
    take_over(side.tip, COORDINATOR)
    assert side.tip.newest.epoch == main.tip.newest.epoch == 2
    with armed({DIED_BEFORE: Action(fail)}), pytest.raises(FailpointHit):
        add(side, "ghost")
    bury(side)
    (left,) = main.sidecars.listed()
    return left, main


def test_what_an_owner_left_on_a_deleted_branch_is_fenced_by_the_end_of_that_line(store: ObjectStore, on: On) -> None:
    """The owner lives, and main's epoch has the same number: that says nothing about a line that has ended."""
    left, main = left_by_coordinator(store, on)
    assert recovered(main) == RecoveryReport()
    delete(store, owner=COORDINATOR)
    assert recovered(main) == RecoveryReport(rolled_back=(left,))
    assert recoveries(main) == {left: "OrphanedBranchDiscarded"}
    assert main.newest().epoch == 2, "nobody had to be fenced"


def test_what_a_live_embedded_writer_has_under_way_on_a_deleted_branch_is_left_to_it(
    store: ObjectStore, on: On
) -> None:
    left = left_on(store, SIDE, DIED_BEFORE)
    delete(store)
    main = on(MAIN)
    take_over(main.tip, EMBEDDED)  # main's epoch is above the sidecar's, and says nothing about it
    assert recovered(main) == RecoveryReport(left=(left,))


def test_the_epoch_of_a_deleted_branch_does_not_raise_main_s_once_more(store: ObjectStore, on: On) -> None:
    """Another recovery has raised main's just before: that has fenced whoever was to be fenced there."""
    for _ in range(6):
        take_over(open_branch(store, SIDE).tip, EMBEDDED)
    lost = left_on(store, SIDE, DIED_BEFORE)
    delete(store)
    left = left_on(store, MAIN, DIED_BEFORE)
    main, other = on(MAIN, is_dead=everybody_is_dead), open_branch(store)
    with armed({Point.RECOVERY_BEFORE_RAISE: Action(lambda: other.tip.raise_epoch(1, EMBEDDED), nth=1)}):
        assert set(recovered(main).rolled_back) == {left, lost}
    assert main.newest().epoch == 2


# What a look costs


@pytest.mark.parametrize(("is_known", "looks"), [(True, 0), (False, 1)])
def test_a_look_asks_once_for_a_branch_that_the_writer_does_not_know_yet(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, is_known: bool, looks: int
) -> None:
    """However many of its operations are under way there; and not at all for one that it knows."""
    monkeypatch.setattr(recoverer, "SETTLED_S", -1.0)
    watched = FaultyStore(store)
    before = open_branch(store).newest()
    bind(store, "later")
    for _ in range(3):
        left_on(store, "later", DIED_BEFORE)
    main = parts_on(open_branch(cast(ObjectStore, watched)), is_dead=everybody_is_dead)
    known = main.branch.newest() if is_known else before
    line = open_branch(store, "later").branch.ulid
    watched.calls.clear()
    assert main.recoverer.look(known) == []
    firsts = [call for call in watched.calls if call.method == "get" and call.path.endswith(f"{line}/newest")]
    assert len(firsts) == looks, watched.calls
    asked = [call for call in watched.calls if call.path.startswith(f"{COMMITS}/{line}")]
    assert bool(asked) == bool(looks)
    bury(main)
