"""The checker of lists catches every kind of lie: each rule has runs that break it, and true ones break none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from omniray.coordinator.stress.history import UNTYPED
from omniray.coordinator.stress.list_checker import check_lists, unexpected_errors
from omniray.coordinator.stress.transactions import Append, Event, Read, transactions_of
from omniray.coordinator.stress.violation import ListRule, Rule
from omniray.engine.base.errors import InputError
from tests.list_story import ListStory

Tell = Callable[[ListStory], None]
PLANTED: list[tuple[ListRule, Tell]] = []


def breaks(rule: ListRule) -> Callable[[Tell], Tell]:
    def register(tell: Tell) -> Tell:
        PLANTED.append((rule, tell))
        return tell

    return register


def true_story() -> ListStory:
    """Appends that land, are refused or unclear, transactions over two lists, reads that overlap with appends."""
    story = ListStory()
    story.read(0, "x")
    story.append(0, "x", 1)
    story.append(1, "x", 2)
    story.append(1, "x", 3, "fail")
    story.append(2, "x", 4, "info")
    story.append(2, "x", 5, "info")
    story.begin(0, Append("x", 6), Append("y", 7), Append("x", 8))
    story.read(1, "x", 1, 2, 4)
    story.end(0, "ok")
    story.begin(1, Read("x"), Read("y"))
    story.end(1, "ok", Read("x", (1, 2, 4, 6, 8)), Read("y", (7,)))
    story.begin(3, Append("y", 9))  # its writer dies
    story.read(1, "y", 7, 9)
    story.begin(0, Append("y", 10), Read("y"))
    story.end(0, "ok", Append("y", 10), Read("y", (7, 9, 10)))
    return story


def test_a_true_story_breaks_no_rule() -> None:
    assert check_lists(true_story().events).violations == ()
    assert check_lists(()).ok


@breaks(ListRule.FORKED_LIST)
def two_reads_disagree_on_the_order(story: ListStory) -> None:
    story.begin(0, Append("x", 1))
    story.begin(1, Append("x", 2))
    story.read(2, "x", 1, 2)
    story.read(2, "x", 2, 1)


@breaks(ListRule.FORKED_LIST)
def a_value_vanishes_from_the_middle(story: ListStory) -> None:
    for value in (1, 2, 3):
        story.append(0, "x", value)
    story.read(1, "x", 1, 2, 3)
    story.read(1, "x", 1, 3)


@breaks(ListRule.LOST_APPEND)
def an_acknowledged_append_is_in_no_list(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.append(0, "x", 2)
    story.read(1, "x", 1)


@breaks(ListRule.LOST_APPEND)
def the_only_append_is_gone(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.read(0, "x")


@breaks(ListRule.DOUBLED_APPEND)
def a_value_is_there_twice(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.read(1, "x", 1, 1)


@breaks(ListRule.DOUBLED_APPEND)
def an_unclear_append_landed_twice(story: ListStory) -> None:
    story.append(0, "x", 1, "info")
    story.append(0, "x", 2)
    story.read(1, "x", 1, 2, 1)


@breaks(ListRule.PHANTOM_APPEND)
def a_value_comes_from_nowhere(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.read(1, "x", 1, 2)


@breaks(ListRule.PHANTOM_APPEND)
def a_value_is_in_another_list_than_it_was_appended_to(story: ListStory) -> None:
    story.begin(0, Append("x", 1))
    story.read(1, "y", 1)


@breaks(ListRule.REFUSED_YET_APPENDED)
def a_refused_append_is_seen(story: ListStory) -> None:
    story.append(0, "x", 1, "fail")
    story.read(1, "x", 1)


@breaks(ListRule.REFUSED_YET_APPENDED)
def an_append_is_seen_before_it_is_refused(story: ListStory) -> None:
    story.begin(0, Append("x", 1))
    story.read(1, "x", 1)
    story.end(0, "fail")


@breaks(ListRule.STALE_READ)
def an_acknowledged_append_is_not_seen_by_a_later_read(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.append(0, "x", 2)
    story.read(1, "x", 1)
    story.read(1, "x", 1, 2)


@breaks(ListRule.STALE_READ)
def an_unclear_append_is_seen_and_then_no_more(story: ListStory) -> None:
    story.append(0, "x", 1, "info")
    story.read(1, "x", 1)
    story.read(2, "x")


@breaks(ListRule.STALE_READ)
def a_read_lacks_what_another_one_saw_while_the_append_ran(story: ListStory) -> None:
    story.begin(0, Append("x", 1))
    story.read(1, "x", 1)
    story.read(2, "x")
    story.end(0, "ok")


@breaks(ListRule.EARLY_READ)
def a_value_is_read_before_its_append_began(story: ListStory) -> None:
    story.read(1, "x", 1)
    story.append(0, "x", 1)


@breaks(ListRule.MISORDERED_APPENDS)
def an_append_comes_before_one_that_was_acknowledged_before_it_began(story: ListStory) -> None:
    story.append(0, "x", 1)
    story.append(1, "x", 2)
    story.read(2, "x", 2, 1)


@breaks(ListRule.MISORDERED_APPENDS)
def a_long_append_does_not_hide_the_order_of_two_others(story: ListStory) -> None:
    story.begin(3, Append("x", 3))
    story.append(0, "x", 1)
    story.append(1, "x", 2)
    story.end(3, "ok")
    story.read(2, "x", 2, 3, 1)


@breaks(ListRule.MISORDERED_APPENDS)
def one_transaction_appends_in_another_order_than_it_says(story: ListStory) -> None:
    story.begin(0, Append("x", 1), Append("x", 2))
    story.end(0, "ok")
    story.read(1, "x", 2, 1)


@breaks(ListRule.TORN_TRANSACTION)
def a_read_of_two_lists_sees_half_of_a_transaction(story: ListStory) -> None:
    story.begin(0, Append("x", 1), Append("y", 2))
    story.begin(1, Read("x"), Read("y"))
    story.end(1, "ok", Read("x", (1,)), Read("y", ()))
    story.end(0, "ok")


@breaks(ListRule.TORN_TRANSACTION)
def a_read_of_one_list_sees_half_of_a_transaction(story: ListStory) -> None:
    story.begin(0, Append("x", 1), Append("x", 2))
    story.read(1, "x", 1)
    story.end(0, "ok")
    story.read(1, "x", 1, 2)


@pytest.mark.parametrize(("rule", "tell"), [pytest.param(*case, id=case[1].__name__) for case in PLANTED])
def test_a_planted_violation_is_found(rule: ListRule, tell: Tell) -> None:
    story = ListStory()
    tell(story)
    assert rule in story.broken_rules()


@pytest.mark.parametrize(("rule", "tell"), [pytest.param(*case, id=case[1].__name__) for case in PLANTED])
def test_a_planted_violation_is_found_within_a_longer_run(rule: ListRule, tell: Tell) -> None:
    """The other lists of a run neither hide it nor take part in it."""
    alone = ListStory()
    tell(alone)
    among_others = ListStory([*true_story().events, *map(elsewhere, alone.events)])
    assert among_others.broken_rules() == alone.broken_rules()


def elsewhere(event: Event) -> Event:
    """The event on other lists, by another writer."""
    ops = (msgspec.structs.replace(op, key=f"{op.key}'") for op in event.ops)
    return msgspec.structs.replace(event, writer=event.writer + 10, ops=tuple(ops))


def test_every_rule_has_a_story_that_breaks_it() -> None:
    assert {rule for rule, _ in PLANTED} == set(ListRule)


def test_a_violation_names_list_and_value_and_brings_the_transactions_that_show_it() -> None:
    story = ListStory()
    the_only_append_is_gone(story)
    (lost,) = check_lists(story.events).violations
    assert str(lost) == "lost_append: list 'x': value 1 was acknowledged and is gone"
    assert lost.excerpt == ('writer 0 ok [["append","x",1]]', 'writer 0 ok [["r","x",[]]]')


def test_a_wrong_value_is_told_once_however_often_it_was_read() -> None:
    story = ListStory()
    story.read(0, "x", 1)
    story.read(1, "x", 1)
    assert [violation.rule for violation in check_lists(story.events).violations] == [ListRule.PHANTOM_APPEND]


# What is no violation


def test_an_append_that_nobody_read_afterwards_is_not_judged() -> None:
    story = ListStory()
    story.read(0, "x")
    story.append(0, "x", 1)
    assert story.broken_rules() == set()


def test_an_unclear_append_may_be_seen_late_or_never() -> None:
    story = ListStory()
    story.append(0, "x", 1, "info")
    story.append(0, "x", 2, "info")
    story.read(1, "x")
    story.read(1, "x", 2)
    assert story.broken_rules() == set()


def test_appends_that_overlap_may_have_any_order() -> None:
    for order in ((1, 2), (2, 1)):
        story = ListStory()
        story.begin(0, Append("x", 1))
        story.begin(1, Append("x", 2))
        story.end(0, "ok")
        story.end(1, "ok")
        story.read(2, "x", *order)
        assert story.broken_rules() == set()


def test_a_transaction_that_reads_before_it_appends_does_not_tear_itself() -> None:
    story = ListStory()
    story.begin(0, Append("x", 1), Read("x"), Read("y"), Append("y", 2))
    story.end(0, "ok", Append("x", 1), Read("x", (1,)), Read("y", ()), Append("y", 2))
    assert story.broken_rules() == set()


# What can't be the record of a run


def refusal(story: ListStory) -> str:
    with pytest.raises(InputError) as caught:
        check_lists(story.events)
    return str(caught.value)


def test_two_transactions_of_one_writer_at_once_are_refused() -> None:
    story = ListStory()
    story.begin(0, Read("x"))
    story.begin(0, Read("y"))
    assert "writer 0 begins a transaction before its last one has ended" in refusal(story)


def test_an_end_without_a_beginning_is_refused() -> None:
    story = ListStory([Event(event="ok", at_ns=1, writer=4, ops=(Append("x", 1),))])
    assert "writer 4 ends a transaction that it has not begun" in refusal(story)


def test_an_end_of_other_operations_is_refused() -> None:
    story = ListStory()
    story.begin(0, Append("x", 1))
    story.end(0, "ok", Append("x", 2))
    assert "with other operations than it began with" in refusal(story)


def test_a_read_that_does_not_say_what_it_saw_is_refused() -> None:
    story = ListStory()
    story.begin(0, Read("x"))
    story.end(0, "ok")
    assert "does not say what is in it" in refusal(story)


def test_a_value_that_two_operations_append_to_a_list_is_refused() -> None:
    story = ListStory()
    story.append(0, "x", 1, "info")
    story.append(0, "x", 1)
    assert "value 1 is appended to list 'x' by two operations" in refusal(story)
    story = ListStory()
    story.append(0, "x", 1)
    story.append(0, "y", 1)
    assert story.broken_rules() == set()


def test_what_may_have_overlapped_at_one_moment_is_not_told_as_a_sequence() -> None:
    """The end of one transaction and the beginning of another bear the same time: the second may have been first."""
    events = [
        Event(event="invoke", at_ns=1, writer=0, ops=(Append("x", 1),)),
        Event(event="ok", at_ns=5, writer=0, ops=(Append("x", 1),)),
        Event(event="invoke", at_ns=5, writer=1, ops=(Read("x"),)),
        Event(event="ok", at_ns=9, writer=1, ops=(Read("x", ()),)),
    ]
    assert check_lists(events).ok
    assert [one.writer for one in transactions_of(events)] == [0, 1]


# Errors of our own workload


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"event": "fail", "kind": "key_conflict", "retry": "never"}, True),
        ({"event": "fail", "kind": "storage", "retry": "safe"}, True),
        ({"event": "fail", "kind": "fenced", "retry": "never"}, True),
        ({"event": "info", "kind": "outcome_unknown", "retry": "unknown"}, True),
        ({"event": "fail", "kind": "constraint", "retry": "never"}, False),
        ({"event": "info", "kind": UNTYPED, "retry": "unknown"}, False),
    ],
)
def test_an_error_that_nothing_in_the_run_can_cause_is_a_violation(event: dict[str, str], expected: bool) -> None:
    told = Event(at_ns=1, writer=0, ops=(Append(1, 1),), message="?", **event)  # type: ignore[arg-type]
    assert [violation.rule for violation in unexpected_errors([told])] == ([] if expected else [Rule.UNEXPECTED_ERROR])


def test_a_read_can_not_conflict() -> None:
    told = Event(event="fail", at_ns=1, writer=0, ops=(Read(1),), kind="key_conflict", retry="never")
    assert [violation.rule for violation in unexpected_errors([told])] == [Rule.UNEXPECTED_ERROR]
