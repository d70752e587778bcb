"""The rounds, one decision at a time: events in, instructions out."""

from __future__ import annotations

from collections import Counter

import pytest

from omniray.coordinator.rounds.admission import Limits
from omniray.coordinator.rounds.fairness import RoundLimits, Ticket
from omniray.coordinator.rounds.machine import (
    ATTEMPTS_MAX,
    Abandoned,
    Commit,
    Confirm,
    Discard,
    Ended,
    Event,
    Failed,
    Freed,
    Gather,
    Gathered,
    Held,
    Instruction,
    Judge,
    Judged,
    Landed,
    Overtaken,
    Pause,
    Refuse,
    Release,
    Reserved,
    Resumed,
    Rounds,
    Stage,
    Staged,
    Submitted,
    Unreserved,
)
from omniray.engine.base.errors import BranchGone, Fenced, OutcomeUnknown, StorageError, TableDrift, Withdrawn

TROUBLE = StorageError("the store is in trouble")
FENCED = Fenced("taken over")
GONE = BranchGone("it was deleted; nothing was written")


def _submitted(intent_id: str, *, tables: frozenset[str] | None = None, size_bytes: int = 10) -> Submitted:
    return Submitted(Ticket(intent_id, intent_id[0], 1, size_bytes, tables=tables))


def _told(rounds: Rounds, *events: Event) -> list[Instruction]:
    """What comes of the last of some events."""
    instructions: list[Instruction] = []
    for event in events:
        instructions = rounds.handle(event)
        rounds.validate()
    return instructions


def _judged(instructions: list[Instruction]) -> list[list[str]]:
    return [[t.intent_id for t in one.tickets] for one in instructions if isinstance(one, Judge)]


def _committing(*more: str, **options: bool) -> Rounds:
    """Round 1 with `a0` is being put; `more` has been submitted since."""
    rounds = Rounds(**options)
    _told(rounds, _submitted("a0"), Judged(1, changes=True), Staged(1), *(_submitted(one) for one in more))
    return rounds


def test_nobody_waits_where_there_is_nothing_to_wait_for() -> None:
    assert _told(Rounds(), _submitted("a0")) == [Judge(1, (_submitted("a0").ticket,), None)]


def test_what_gathers_while_a_round_is_judged_and_staged_is_the_next_one() -> None:
    rounds = Rounds()
    assert _told(rounds, _submitted("a0"), _submitted("a1"), _submitted("a2")) == []
    assert _told(rounds, Judged(1, changes=True)) == [Stage(1)]
    commit, judge = _told(rounds, Staged(1))
    assert commit == Commit(1)
    assert _judged([judge]) == [["a1", "a2"]]
    assert judge.on == 1


def test_an_object_is_put_only_when_the_one_before_it_is_in_the_line() -> None:
    rounds = _committing("a1")
    assert _told(rounds, Judged(2, changes=True), Staged(2)) == []
    assert _told(rounds, Landed(1)) == [Release(1), Commit(2)]


def test_a_round_that_changes_nothing_is_confirmed_by_a_read() -> None:
    rounds = Rounds()
    assert _told(rounds, _submitted("a0"), Judged(1, changes=False)) == [Confirm(1)]
    assert _told(rounds, Landed(1)) == [Release(1)]


def test_a_round_that_changes_nothing_is_confirmed_even_on_an_object_that_has_just_landed() -> None:
    """While the answer to that put was on its way, a successor may have committed what takes its answer away."""
    rounds = _committing("a1")
    assert _told(rounds, Judged(2, changes=False)) == []
    assert _told(rounds, Landed(1)) == [Release(1), Confirm(2)]


def test_a_round_that_is_overtaken_voids_all_on_top_and_all_are_judged_again_in_their_order() -> None:
    rounds = _committing("a1", "a2")
    discard_2, discard_1, pause = _told(rounds, Overtaken(1))
    assert (discard_2, discard_1) == (Discard(2), Discard(1))
    assert isinstance(pause, Pause)
    assert _judged(_told(rounds, _submitted("a3"), Resumed())) == [["a0", "a1", "a2", "a3"]]


@pytest.mark.parametrize(
    "news", [Judged(2, changes=True), Staged(2), Landed(2), Overtaken(2), Failed(2, TROUBLE)], ids=lambda one: str(one)
)
def test_late_news_of_a_round_that_came_to_nothing_do_nothing(news: Event) -> None:
    """Its writes are in a younger round, whose object may be in the line by now: that one must not be discarded."""
    rounds = _committing("a1")
    _told(rounds, Overtaken(1), Resumed(), Judged(3, changes=True), Staged(3))
    assert _told(rounds, news) == []
    assert _told(rounds, Landed(3)) == [Release(3)]


def test_only_those_who_are_to_blame_are_refused() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("a0"), _submitted("a1"), _submitted("b0"), Judged(1, changes=False), Landed(1))
    drift = TableDrift("drift")
    discard, refuse, judge = _told(rounds, Failed(2, drift, frozenset({"a1"})))
    assert (discard, refuse) == (Discard(2), Refuse("a1", drift))
    assert _judged([judge]) == [["b0"]]


def test_blame_that_rests_on_a_round_under_way_is_no_answer_yet() -> None:
    rounds = _committing("a1")
    discard, pause = _told(rounds, Failed(2, TableDrift("drift"), frozenset({"a1"})))
    assert discard == Discard(2)
    assert isinstance(pause, Pause)
    assert _judged(_told(rounds, Landed(1), Resumed())) == [["a1"]]


def test_a_write_that_fails_again_and_again_is_refused_with_the_error() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("a0"))
    for number in range(1, ATTEMPTS_MAX):
        _told(rounds, Failed(number, TROUBLE), Resumed())
    assert _told(rounds, Failed(ATTEMPTS_MAX, TROUBLE))[:2] == [Discard(ATTEMPTS_MAX), Refuse("a0", TROUBLE)]


def test_a_write_that_was_tried_often_is_not_refused_for_what_is_anothers_fault() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("a0"))
    for number in range(1, ATTEMPTS_MAX):
        _told(rounds, Failed(number, TROUBLE), Resumed())
    _told(rounds, Overtaken(ATTEMPTS_MAX), _submitted("b0"), Resumed())
    told = _told(rounds, Failed(ATTEMPTS_MAX + 1, TableDrift("drift"), frozenset({"b0"})))
    assert [one.intent_id for one in told if isinstance(one, Refuse)] == ["b0"]


def test_blame_on_top_of_a_round_under_way_refuses_nobody_however_often_it_was_tried() -> None:
    rounds = Rounds(Limits(RoundLimits(intents=1)))
    _told(rounds, _submitted("a0"))
    for number in range(1, ATTEMPTS_MAX):
        _told(rounds, Failed(number, TROUBLE), Resumed())
    _told(rounds, _submitted("b0"), Overtaken(ATTEMPTS_MAX))
    assert _judged(_told(rounds, Resumed())) == [["b0"]]
    below, above = ATTEMPTS_MAX + 1, ATTEMPTS_MAX + 2
    assert _judged(_told(rounds, Judged(below, changes=True), Staged(below))) == [["a0"]]
    told = _told(rounds, Failed(above, TableDrift("drift"), frozenset({"a0"})))
    assert not any(isinstance(one, Refuse) for one in told)


def test_pauses_grow_with_failures_in_a_row_up_to_a_bound() -> None:
    """However long the trouble lasts: more than a thousand failures once made a pause too long for a float."""
    rounds = Rounds()
    pauses = []
    for number in range(1, 1_200):
        _told(rounds, _submitted(f"a{number}"))
        pauses += [one.seconds for one in _told(rounds, Failed(number, TROUBLE)) if isinstance(one, Pause)]
        _told(rounds, Resumed())
    assert pauses[:3] == [pauses[0], 2 * pauses[0], 4 * pauses[0]]
    assert max(pauses) == pauses[-1] < 10


def test_an_end_is_told_to_everybody_and_nothing_is_discarded() -> None:
    rounds = _committing("a1")
    _told(rounds, _submitted("a2"))
    assert _told(rounds, Ended(FENCED, settled=1)) == [Refuse(one, FENCED) for one in ("a0", "a1", "a2")]
    assert _told(rounds, Landed(1)) == []
    assert _told(rounds, _submitted("a3")) == [Refuse("a3", FENCED)]
    assert rounds.is_idle


def test_a_write_whose_object_is_on_its_way_is_not_told_that_nothing_was_written() -> None:
    rounds = _committing("a1")
    first, *others = _told(rounds, Ended(GONE))
    assert isinstance(first, Refuse)
    assert (first.intent_id, type(first.error)) == ("a0", OutcomeUnknown)
    assert others == [Refuse("a1", GONE)], "it was judged on top, and never put"


def test_a_write_of_a_round_that_changes_nothing_is_told_why_the_publisher_ends() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("a0"), Judged(1, changes=False))
    assert _told(rounds, Ended(GONE)) == [Refuse("a0", GONE)]


def test_a_round_that_is_known_to_have_landed_is_answered_when_the_publisher_ends() -> None:
    rounds = _committing("a1")
    assert _told(rounds, Ended(GONE, settled=1, landed=True)) == [Release(1), Refuse("a1", GONE)]
    assert _told(rounds, Landed(1)) == [], "the answer to its put comes too late"


def test_a_write_that_is_given_up_before_its_turn_is_answered_so_that_whoever_joined_it_does_not_wait() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("a0"), _submitted("a1"))
    (refuse,) = _told(rounds, Abandoned("a1"))
    assert refuse.intent_id == "a1"
    assert isinstance(refuse.error, Withdrawn)
    assert _told(rounds, Abandoned("a0")) == [], "one that is in a round goes on"
    assert rounds.waiting == 0


@pytest.mark.parametrize(
    "limits",
    [Limits(waiting_intents=2), Limits(waiting_bytes=25), Limits(tenant_intents=2), Limits(tenant_bytes=25)],
    ids=lambda limits: str(limits),
)
def test_what_is_waiting_or_under_way_is_bounded_and_room_comes_back(limits: Limits) -> None:
    rounds = Rounds(limits)
    _told(rounds, _submitted("a0"), _submitted("a1"))
    (refused,) = _told(rounds, _submitted("a2"))
    assert refused.error is None
    assert refused.overload
    _told(rounds, Judged(1, changes=False), Landed(1))
    assert _told(rounds, _submitted("a2")) == []
    assert rounds.waiting == 1


def test_one_tenants_bound_leaves_room_for_another() -> None:
    rounds = Rounds(Limits(tenant_intents=1))
    _told(rounds, _submitted("a0"))
    assert isinstance(_told(rounds, _submitted("a1"))[0], Refuse)
    assert _told(rounds, _submitted("b0")) == []


def test_a_round_is_as_large_as_its_limits_allow() -> None:
    rounds = Rounds(Limits(RoundLimits(intents=2)))
    _told(rounds, *(_submitted(f"a{n}") for n in range(4)))
    assert _judged(_told(rounds, Judged(1, changes=False))) == [["a1", "a2"]]


def test_writes_that_a_round_had_no_room_for_wait_again_before_all_that_came_later() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("z0"), *(_submitted(f"a{n}") for n in range(3)), Judged(1, changes=False), Landed(1))
    _told(rounds, _submitted("a3"))
    assert _told(rounds, Judged(2, changes=True, matched={"a0": 9}, unjudged=frozenset({"a1", "a2"}))) == [Stage(2)]
    assert rounds.waiting == 3
    assert _judged(_told(rounds, Staged(2))) == [["a1", "a2", "a3"]]
    _told(rounds, Landed(2))
    refused = _told(rounds, Ended(FENCED))
    assert [one.intent_id for one in refused if isinstance(one, Refuse)] == ["a1", "a2", "a3"], "a0 is through"


def test_a_write_that_waits_again_can_be_given_up() -> None:
    rounds = Rounds()
    _told(rounds, _submitted("z0"), _submitted("a0"), _submitted("a1"), Judged(1, changes=False), Landed(1))
    _told(rounds, Judged(2, changes=True, unjudged=frozenset({"a1"})))
    (refuse,) = _told(rounds, Abandoned("a1"))
    assert refuse.intent_id == "a1"


def test_a_tenant_pays_for_the_rows_that_its_writes_have_met() -> None:
    """Fault: one tenant's small mutations meet many rows each. Oracle: how many of its writes a full round takes."""
    rounds = Rounds(Limits(RoundLimits(intents=30)))
    _told(rounds, _submitted("z0"), *(_submitted(f"{t}{n:03}") for n in range(200) for t in "ab"))
    _told(rounds, Judged(1, changes=False), Landed(1))
    for number in range(2, 8):
        tickets = rounds._under_way[0].tickets
        matched = {t.intent_id: 2_000 for t in tickets if t.tenant == "a"}
        _told(rounds, Judged(number, changes=False, matched=matched), Landed(number))
    assert {t.tenant for t in rounds._under_way[0].tickets} == {"b"}


def test_a_tenant_does_not_pay_for_writes_that_were_not_judged() -> None:
    rounds = Rounds(Limits(RoundLimits(intents=8)))
    writes = [_submitted(f"{t}{n:03}", size_bytes=1 << 20) for n in range(100) for t in "ab"]
    _told(rounds, _submitted("z0"), *writes, Judged(1, changes=False), Landed(1))
    for number in range(2, 12):
        unjudged = frozenset(t.intent_id for t in rounds._under_way[0].tickets if t.tenant == "a")
        _told(rounds, Judged(number, changes=False, unjudged=unjudged), Landed(number))
    for number in range(12, 18):
        _told(rounds, Judged(number, changes=False), Landed(number))
    left = Counter(ticket.tenant for ticket in rounds._queue)
    assert abs(left["a"] - left["b"]) <= 16


# Gathering


def test_a_round_waits_a_moment_for_those_who_were_answered_together() -> None:
    rounds = Rounds(gathers=True)
    _told(rounds, _submitted("a0"), _submitted("a1"), Judged(1, changes=True), Staged(1))
    assert _told(rounds, Landed(1)) == [Release(1), Gather(1)]
    assert _judged(_told(rounds, _submitted("a2"))) == [["a1", "a2"]]


def test_who_does_not_come_back_is_not_waited_for() -> None:
    rounds = Rounds(gathers=True)
    _told(rounds, _submitted("a0"), _submitted("a1"), Judged(1, changes=True), Staged(1), Landed(1))
    assert _judged(_told(rounds, Gathered(1))) == [["a1"]]
    assert _told(rounds, Gathered(1)) == []


# Standing still


def test_tables_that_stand_still_let_writes_to_others_pass() -> None:
    rounds = Rounds()
    person, city = frozenset({"Person"}), frozenset({"City"})
    _told(rounds, Reserved("r0", person))
    assert _told(rounds, _submitted("a0", tables=person), _submitted("a1")) == []
    assert _judged(_told(rounds, _submitted("a2", tables=city))) == [["a2"]]
    assert _judged(_told(rounds, Judged(1, changes=False), Landed(1), _submitted("r0", tables=person))) == [["r0"]]
    assert _judged(_told(rounds, Judged(2, changes=False), Landed(2), Unreserved("r0"))) == [["a0", "a1"]]


def test_two_writes_that_want_the_same_table_to_stand_still_do_not_wait_for_one_another() -> None:
    rounds = Rounds()
    person = frozenset({"Person"})
    _told(rounds, Reserved("r0", person), Reserved("r1", person))
    assert _told(rounds, _submitted("r1", tables=person)) == []
    assert _judged(_told(rounds, _submitted("r0", tables=person))) == [["r0"]]
    assert _told(rounds, Judged(1, changes=False), Landed(1)) == [Release(1)]
    assert _judged(_told(rounds, Unreserved("r0"))) == [["r1"]]


# Held


def test_no_round_begins_while_the_line_is_held_and_those_under_way_come_through() -> None:
    rounds = _committing("a1")
    assert not rounds.is_at_rest
    _told(rounds, Held(), _submitted("a2"))
    assert _told(rounds, Judged(2, changes=True), Staged(2)) == []
    assert _told(rounds, Landed(1)) == [Release(1), Commit(2)]
    assert _told(rounds, Landed(2)) == [Release(2)]
    assert (rounds.is_at_rest, rounds.waiting) == (True, 1)
    assert _told(rounds, _submitted("a3")) == []
    assert _judged(_told(rounds, Freed())) == [["a2", "a3"]]


def test_what_comes_to_nothing_while_the_line_is_held_waits_until_it_is_free() -> None:
    rounds = _committing()
    assert isinstance(_told(rounds, Held(), Overtaken(1))[-1], Pause)
    assert rounds.is_at_rest
    assert _told(rounds, Resumed()) == []
    assert _judged(_told(rounds, Freed())) == [["a0"]]


def test_a_pause_outlasts_that_the_line_is_held() -> None:
    rounds = _committing()
    _told(rounds, Overtaken(1), Held())
    assert _told(rounds, Freed()) == []
    assert _judged(_told(rounds, Resumed())) == [["a0"]]


def test_a_gathering_ends_without_a_round_while_the_line_is_held() -> None:
    rounds = _committing("a1", gathers=True)
    assert _told(rounds, Landed(1)) == [Release(1), Gather(1)]
    assert _told(rounds, Held(), _submitted("a2"), _submitted("a3"), Gathered(1)) == [Gather(1)]
    assert _told(rounds, Gathered(1)) == []
    assert _judged(_told(rounds, Freed())) == [["a1", "a2", "a3"]]
