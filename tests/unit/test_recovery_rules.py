"""What recovery decides: every combination of facts, the meaningful ones by hand, and what never follows from any."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator

import pytest

from omniray.engine.recovery.rules import (
    RECORDED_AS,
    Decision,
    Epoch,
    OperationFacts,
    TableClass,
    TableFacts,
    classify,
    decide,
    epoch_of,
)
from omniray.engine.tables.final_names import FinalName

PIN = 5
HEADS = (PIN - 1, PIN, PIN + 1, PIN + 2, PIN + 7)
BOOLS = (False, True)


def all_table_facts() -> Iterator[TableFacts]:
    """Every combination: HEAD behind, at, one past and further past the pin, with each state of its names."""
    for head, name, has_own_name in itertools.product(HEADS, FinalName, BOOLS):
        yield TableFacts(PIN, head, name, has_own_name)


def all_operations() -> Iterator[OperationFacts]:
    for facts in itertools.product(BOOLS, BOOLS, Epoch, BOOLS, BOOLS, BOOLS, BOOLS):
        yield OperationFacts(*facts)


def all_table_groups() -> Iterator[tuple[TableFacts, ...]]:
    """No table, one, and two of any kinds: what a decision depends on is which kinds are among them."""
    for count in (0, 1, 2):
        yield from itertools.combinations_with_replacement(all_table_facts(), count)


def decided(operation: OperationFacts, tables: Iterable[TableFacts]) -> Decision:
    return decide(operation, [classify(operation.named, table) for table in tables])


@functools.cache
def every_decision() -> tuple[tuple[OperationFacts, tuple[TableFacts, ...], Decision], ...]:
    """Every combination of facts with what is decided."""
    combinations = itertools.product(all_operations(), all_table_groups())
    return tuple((found, tables, decided(found, tables)) for found, tables in combinations)


def operation(
    *,
    named: bool = False,
    gone: bool = True,
    epoch: Epoch = Epoch.CURRENT,
    may_put: bool = True,
    own: bool = False,
    staging_only: bool = False,
    orphaned: bool = False,
) -> OperationFacts:
    return OperationFacts(named, gone, epoch, may_put, own, staging_only, orphaned)


# Tables

FINAL = FinalName.OURS
_TABLES = [
    ("nothing has moved", False, TableFacts(5, 5, FINAL, False), TableClass.NO_MOVEMENT),
    ("others wait for their final name", False, TableFacts(5, 4, FinalName.ABSENT, True), TableClass.NO_MOVEMENT),
    ("committed, not final", True, TableFacts(6, 5, FinalName.ABSENT, True), TableClass.ROLLED_PAST_EXPECTED),
    ("committed and final", True, TableFacts(6, 6, FINAL, True), TableClass.ROLLED_PAST_EXPECTED),
    ("several foreign versions, committed", True, TableFacts(6, 14, FINAL, False), TableClass.UNEXPECTED_MULTISTEP),
    ("one foreign version, not committed", False, TableFacts(5, 6, FINAL, False), TableClass.UNEXPECTED_AT_P1),
    ("one foreign version, committed", True, TableFacts(5, 6, FINAL, False), TableClass.UNEXPECTED_AT_P1),
    ("several foreign versions, not committed", False, TableFacts(5, 8, FINAL, False), TableClass.UNEXPECTED_MULTISTEP),
    ("the pin's name is a stranger's", True, TableFacts(6, 6, FinalName.FOREIGN, True), TableClass.FINAL_NAME_TAKEN),
    ("and the stranger went on", True, TableFacts(6, 9, FinalName.FOREIGN, True), TableClass.FINAL_NAME_TAKEN),
    ("and our bytes are lost", True, TableFacts(6, 6, FinalName.FOREIGN, False), TableClass.FINAL_NAME_TAKEN),
    ("no name at all", True, TableFacts(6, 5, FinalName.ABSENT, False), TableClass.INVARIANT_VIOLATION),
    ("no name at all, of others", False, TableFacts(6, 5, FinalName.ABSENT, False), TableClass.INVARIANT_VIOLATION),
]


@pytest.mark.parametrize(("named", "table", "expected"), [row[1:] for row in _TABLES], ids=[row[0] for row in _TABLES])
def test_a_table_is_classified(named: bool, table: TableFacts, expected: TableClass) -> None:
    assert classify(named, table) is expected


def test_every_class_is_of_some_combination_of_facts() -> None:
    assert {classify(named, table) for named in BOOLS for table in all_table_facts()} == set(TableClass)


def test_only_what_the_operation_did_depends_on_whether_it_is_named() -> None:
    for table in all_table_facts():
        classes = {classify(False, table), classify(True, table)}
        assert len(classes) == 1 or classes == {TableClass.NO_MOVEMENT, TableClass.ROLLED_PAST_EXPECTED}


def test_a_pinned_version_without_any_name_is_lost_and_only_such_a_one() -> None:
    for named, table in itertools.product(BOOLS, all_table_facts()):
        nowhere = table.final_name is FinalName.ABSENT and not table.has_own_name
        assert (classify(named, table) is TableClass.INVARIANT_VIOLATION) == nowhere


# Operations

NOTHING = TableFacts(5, 5, FINAL, False)
WAITING = TableFacts(6, 5, FinalName.ABSENT, True)
AHEAD = TableFacts(5, 6, FINAL, False)
TAKEN = TableFacts(6, 6, FinalName.FOREIGN, True)
LOST = TableFacts(6, 5, FinalName.ABSENT, False)

_OPERATIONS = [
    ("a live writer", operation(gone=False), [NOTHING], Decision.LEAVE),
    ("a live writer that has committed", operation(named=True, gone=False), [WAITING], Decision.LEAVE),
    ("a live writer of an old epoch", operation(gone=False, epoch=Epoch.PAST), [NOTHING], Decision.LEAVE),
    ("a coordinator owns the line", operation(may_put=False), [NOTHING], Decision.LEAVE),
    ("a coordinator owns it, all is lost", operation(may_put=False), [LOST], Decision.LEAVE),
    ("our own, in our own epoch", operation(own=True), [NOTHING], Decision.LEAVE),
    ("a lease of a dead load", operation(staging_only=True), [], Decision.FORGET),
    ("a lease, while something is lost", operation(staging_only=True), [LOST], Decision.FORGET),
    ("a lease of a live load", operation(staging_only=True, gone=False), [], Decision.LEAVE),
    ("dead before its put, not fenced", operation(), [NOTHING, NOTHING], Decision.RAISE_FIRST),
    ("dead before its put, fenced", operation(epoch=Epoch.PAST), [NOTHING, NOTHING], Decision.ROLL_BACK),
    ("dead before its put, others wait", operation(epoch=Epoch.PAST), [WAITING, NOTHING], Decision.ROLL_BACK),
    ("dead before it staged anything", operation(epoch=Epoch.PAST), [], Decision.ROLL_BACK),
    ("dead after its put", operation(named=True), [WAITING, WAITING], Decision.ROLL_FORWARD),
    ("dead after its put, fenced", operation(named=True, epoch=Epoch.PAST), [WAITING], Decision.ROLL_FORWARD),
    ("dead in the middle of Phase D", operation(named=True), [NOTHING, WAITING], Decision.ROLL_FORWARD),
    ("not committed, a stranger is ahead", operation(epoch=Epoch.PAST), [AHEAD, NOTHING], Decision.ROLL_BACK),
    ("committed, a stranger is ahead", operation(named=True), [AHEAD, WAITING], Decision.ROLL_FORWARD),
    ("committed, a stranger has the name", operation(named=True), [TAKEN, WAITING], Decision.AWAIT_REPAIR),
    ("not committed, a stranger has a name", operation(epoch=Epoch.PAST), [TAKEN], Decision.ROLL_BACK),
    ("committed, and lost", operation(named=True), [LOST, WAITING], Decision.ABORT),
    ("not committed, others' version is lost", operation(epoch=Epoch.PAST), [LOST], Decision.ABORT),
    ("lost, before anybody is fenced", operation(), [LOST], Decision.ABORT),
    ("from an epoch that never was", operation(epoch=Epoch.FUTURE), [NOTHING], Decision.ABORT),
]


@pytest.mark.parametrize(
    ("found", "tables", "expected"), [row[1:] for row in _OPERATIONS], ids=[row[0] for row in _OPERATIONS]
)
def test_an_operation_is_decided_about(found: OperationFacts, tables: list[TableFacts], expected: Decision) -> None:
    assert decided(found, tables) is expected


def test_every_combination_of_facts_has_a_decision_and_deciding_twice_gives_the_same() -> None:
    for found, tables, decision in every_decision():
        assert isinstance(decision, Decision)
        assert decided(found, tables) is decision
        assert decided(found, reversed(tables)) is decision, "the order of tables says nothing"
    assert len(every_decision()) == 192 * (1 + 30 + 465)


def test_every_decision_is_of_some_combination_of_facts() -> None:
    assert {decision for _, _, decision in every_decision()} == set(Decision)


def test_nothing_is_done_about_an_operation_that_is_not_gone_or_not_ours_to_touch() -> None:
    for found, _, decision in every_decision():
        ours_to_touch = found.gone and found.may_put and not found.own
        assert (decision is Decision.LEAVE) == (not ours_to_touch)


def test_nothing_is_rolled_back_that_is_named_or_whose_writer_is_not_fenced() -> None:
    for found, _, decision in every_decision():
        if decision is Decision.ROLL_BACK:
            assert not found.named
            assert found.epoch is Epoch.PAST


def test_the_epoch_is_raised_only_for_what_can_still_be_put() -> None:
    for found, _, decision in every_decision():
        if decision is Decision.RAISE_FIRST:
            assert not found.named
            assert found.epoch is Epoch.CURRENT


def test_after_the_epoch_was_raised_there_is_nothing_more_to_raise() -> None:
    for found, tables, decision in every_decision():
        if decision is Decision.RAISE_FIRST:
            for named in BOOLS:  # its put may have landed before the raise
                raised = OperationFacts(named, found.gone, Epoch.PAST, found.may_put, found.own, found.staging_only)
                assert decided(raised, tables) not in (Decision.RAISE_FIRST, Decision.LEAVE, Decision.FORGET)


def test_only_what_is_named_is_rolled_forward_or_waits_for_a_repair() -> None:
    for found, _, decision in every_decision():
        if decision in (Decision.ROLL_FORWARD, Decision.AWAIT_REPAIR):
            assert found.named


def test_something_lost_is_always_loud_unless_there_is_nothing_to_do() -> None:
    for found, tables, decision in every_decision():
        if TableClass.INVARIANT_VIOLATION in {classify(found.named, table) for table in tables}:
            assert decision in (Decision.ABORT, Decision.LEAVE, Decision.FORGET, Decision.DISCARD)


def test_a_lease_is_left_or_forgotten_and_nothing_else_is_forgotten() -> None:
    for found, _, decision in every_decision():
        assert (decision is Decision.FORGET) <= found.staging_only
        assert found.staging_only <= (decision in (Decision.FORGET, Decision.LEAVE))


def test_what_was_left_on_a_deleted_branch_is_discarded_and_nothing_else() -> None:
    for found, _, decision in every_decision():
        is_left_there = found.orphaned and not found.staging_only
        assert (decision is Decision.DISCARD) == (is_left_there and decision is not Decision.LEAVE)


def test_what_changes_an_operation_s_fate_is_recorded() -> None:
    assert set(RECORDED_AS) == {Decision.ROLL_FORWARD, Decision.ROLL_BACK, Decision.DISCARD}


@pytest.mark.parametrize(("epoch", "expected"), [(2, Epoch.PAST), (3, Epoch.CURRENT), (4, Epoch.FUTURE)])
def test_an_epoch_is_seen_from_the_line_s(epoch: int, expected: Epoch) -> None:
    assert epoch_of(epoch, 3) is expected
