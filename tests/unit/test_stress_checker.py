"""The checker catches every kind of lie: each rule has runs that break it and were doctored from a true one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from omniray.coordinator.stress.history import Read, Succeeded, Unread
from omniray.coordinator.stress.operation import Basis
from omniray.coordinator.stress.violation import Rule
from tests.stress_story import (
    ACCOUNTS,
    Story,
    account,
    append,
    device,
    follows,
    merge,
    owns,
    remove,
    touch,
)

Doctored = Callable[[], Story]
DOCTORED: list[tuple[Rule, Doctored]] = []


def breaks(rule: Rule) -> Callable[[Doctored], Doctored]:
    def register(make: Doctored) -> Doctored:
        DOCTORED.append((rule, make))
        return make

    return register


def true_story() -> Story:
    """Two writers; appends, merges, a write to four tables, refusals, repetitions, a group, strict writes, reads."""
    story = Story()
    story.commit(append("ann", account("ann", "ann")))
    story.commit(merge("hot-1", "hot"), writer=1)
    household = (account("bob", "four"), device("phone", "four", 7), owns("o1", "bob", "phone"))
    story.commit(append("four", *household, follows("bob", "hot", "four")))
    story.refuse(append("ann-again", account("ann", "ann-again")), "key_conflict", writer=1)
    story.refuse(append("slot", device("tablet", "slot", 7)), "constraint")
    story.find_nothing(touch("nobody", "nobody"))
    story.commit(touch("touch", "ann"))
    story.repeat(append("ann", account("ann", "ann")))
    basis = story.basis()
    story.look("hot", "bob", "phone")
    story.commit(merge("strict", "hot", basis=basis))
    story.refuse(merge("late", "hot", basis=basis), "expected_version_mismatch", writer=1)
    first, second = merge("group-1", "hot"), merge("group-2", "hot", "eve")
    story.invoke(first)
    story.invoke(second, writer=1)
    done = story.land(first), story.land(second, with_the_last=True)
    story.answer(first, done[0])
    story.answer(second, done[1], writer=1)
    story.lose_sight(merge("unseen", "zoe"))
    story.land(merge("unseen", "zoe"))
    story.lose_sight(merge("never", "max"))
    story.commit(remove("remove", "bob"))
    story.recover(story.lineage[-1].op_id, "RolledForward")
    story.recover("op-of-never", "RolledBack")
    story.look("hot", "bob", "zoe")
    return story


def test_a_true_story_breaks_no_rule() -> None:
    assert true_story().verdict().violations == ()


# The lineage beside the answers


@breaks(Rule.LOST_COMMIT)
def an_acknowledged_write_is_missing_from_the_lineage() -> Story:
    story = true_story()
    story.forget_commit("touch")
    return story


@breaks(Rule.DOUBLED_COMMIT)
def a_commit_is_in_the_lineage_twice() -> Story:
    story = true_story()
    again = story.lineage[2]
    story.lineage.append(replace(again, seq=99, op_id="op-99", parent=story.lineage[-1].commit_id))
    return story


@breaks(Rule.PHANTOM_COMMIT)
def a_commit_was_sent_by_nobody() -> Story:
    story = true_story()
    story.land(merge("from-nowhere", "hot"))
    return story


@breaks(Rule.REFUSED_YET_COMMITTED)
def a_write_that_was_refused_lands_later() -> Story:
    story = Story()
    story.commit(append("ann", account("ann", "ann")))
    story.refuse(merge("failed", "hot"), "storage")
    story.land(merge("failed", "hot"))
    return story


@breaks(Rule.REFUSED_YET_COMMITTED)
def a_write_that_was_told_to_have_no_effect_lands() -> Story:
    story = Story()
    story.find_nothing(touch("nobody", "ann"))
    story.commit(append("ann", account("ann", "ann")))
    story.land(touch("nobody", "ann"))
    return story


@breaks(Rule.BROKEN_LINEAGE)
def a_commit_names_another_parent() -> Story:
    story = true_story()
    story.lineage[3] = replace(story.lineage[3], parent="somebody")
    return story


@breaks(Rule.BROKEN_LINEAGE)
def the_numbers_of_the_line_go_back() -> Story:
    story = true_story()
    story.lineage[3] = replace(story.lineage[3], seq=1)
    return story


@breaks(Rule.BROKEN_LINEAGE)
def two_operations_share_a_number() -> Story:
    story = true_story()
    story.lineage[3] = replace(story.lineage[3], seq=story.lineage[2].seq)
    return story


@breaks(Rule.NOT_REPEATED)
def a_repetition_is_told_as_new() -> Story:
    story = true_story()
    story.change(next(e for e in story.events if isinstance(e, Succeeded) and e.repeated), repeated=False)
    return story


@breaks(Rule.NOT_REPEATED)
def a_repetition_is_refused() -> Story:
    story = true_story()
    story.refuse(append("ann", account("ann", "ann")), "key_conflict")
    return story


@breaks(Rule.WRONG_ANSWER)
def a_write_is_answered_with_the_commit_of_another() -> Story:
    story = true_story()
    story.change(story.last(Succeeded), commit_id="touch")
    return story


@breaks(Rule.WRONG_ANSWER)
def a_writer_is_told_of_more_rows_than_it_touched() -> Story:
    story = true_story()
    story.change(story.last(Succeeded), edges=5)
    return story


@breaks(Rule.WRONG_ANSWER)
def the_lineage_counts_rows_that_were_not_touched() -> Story:
    story = true_story()
    story.lineage[-1] = replace(story.lineage[-1], nodes=5)
    return story


@breaks(Rule.UNEXPECTED_ERROR)
def a_write_is_refused_for_bad_input() -> Story:
    story = true_story()
    story.refuse(merge("fine", "hot"), "record")
    return story


@breaks(Rule.UNEXPECTED_ERROR)
def a_write_gets_an_exception_of_no_type() -> Story:
    story = true_story()
    story.lose_sight(merge("fine", "hot"), "untyped")
    return story


@breaks(Rule.UNEXPECTED_ERROR)
def a_read_finds_a_table_changed_by_a_stranger() -> Story:
    story = true_story()
    story.events.append(Unread(at_ns=story.now, writer=0, kind="drift", retry="never", message=""))
    return story


# Order


@breaks(Rule.OUT_OF_ORDER)
def a_later_write_comes_before_one_that_was_acknowledged() -> Story:
    story = true_story()
    story.swap("ann", "hot-1")
    return story


@breaks(Rule.OUT_OF_ORDER)
def a_later_write_comes_before_one_that_a_snapshot_showed() -> Story:
    story = Story()
    story.lose_sight(merge("seen", "hot"))
    story.land(merge("seen", "hot"))
    story.look("hot")
    story.commit(merge("later", "cold"))
    story.swap("seen", "later")
    return story


@breaks(Rule.OUT_OF_ORDER)
def a_write_that_was_first_refused_comes_before_one_that_was_acknowledged_meanwhile() -> Story:
    story = Story()
    story.refuse(merge("tried twice", "hot"), "storage")
    story.commit(merge("between", "cold"), writer=1)
    story.commit(merge("tried twice", "hot"))
    story.swap("between", "tried twice")
    return story


@breaks(Rule.TWO_WINNERS)
def two_strict_writes_named_one_version_and_both_landed() -> Story:
    story = Story()
    basis = story.basis()
    story.commit(merge("first", "hot", basis=basis))
    elsewhere = Basis("first", basis.versions)  # so that nothing but the version tells
    story.commit(merge("second", "hot", basis=elsewhere), writer=1)
    return story


@breaks(Rule.STALE_WINNER)
def a_strict_write_landed_after_its_table_had_moved() -> Story:
    story = Story()
    basis = story.basis()
    story.commit(merge("faster", "cold"), writer=1)
    story.commit(merge("strict", "hot", basis=basis))
    return story


# The replay


@breaks(Rule.UNLAWFUL_COMMIT)
def a_key_is_appended_that_was_there() -> Story:
    story = true_story()
    story.commit(append("ann-2", account("ann", "ann-2")))
    return story


@breaks(Rule.UNLAWFUL_COMMIT)
def an_edge_lands_beside_an_equal_one() -> Story:
    story = true_story()
    story.commit(append("link-1", follows("ann", "hot", "link-1")))
    story.commit(append("link-2", follows("ann", "hot", "link-2")))
    return story


@breaks(Rule.UNLAWFUL_COMMIT)
def an_account_gets_more_devices_than_it_may_own() -> Story:
    story = true_story()
    story.commit(append("many", *(owns(f"m{n}", "ann", "phone") for n in range(4))))
    return story


@breaks(Rule.UNLAWFUL_COMMIT)
def a_device_lands_in_a_slot_that_is_taken() -> Story:
    story = true_story()
    story.commit(append("slot-2", device("tablet", "slot-2", 7)))
    return story


@breaks(Rule.UNLAWFUL_COMMIT)
def an_update_that_matches_nothing_makes_a_commit() -> Story:
    story = true_story()
    story.commit(touch("nobody-2", "nobody"))
    return story


@breaks(Rule.GROUNDLESS_REFUSAL)
def an_append_is_refused_for_a_key_that_was_not_there() -> Story:
    story = true_story()
    story.refuse(append("free", account("free", "free")), "key_conflict")
    return story


@breaks(Rule.GROUNDLESS_REFUSAL)
def an_append_is_refused_for_a_key_that_came_only_later() -> Story:
    story = Story()
    story.refuse(append("first", account("ann", "first")), "key_conflict")
    story.commit(append("second", account("ann", "second")), writer=1)
    return story


@breaks(Rule.GROUNDLESS_REFUSAL)
def an_append_is_refused_for_a_key_that_was_gone_before() -> Story:
    story = Story()
    story.commit(append("first", account("ann", "first")))
    story.commit(remove("remove", "ann"))
    story.refuse(append("second", account("ann", "second")), "key_conflict", writer=1)
    return story


@breaks(Rule.GROUNDLESS_REFUSAL)
def a_strict_write_is_refused_although_nothing_moved() -> Story:
    story = true_story()
    story.refuse(merge("strict-2", "hot", basis=story.basis()), "expected_version_mismatch")
    return story


@breaks(Rule.GROUNDLESS_REFUSAL)
def a_merge_that_names_no_version_is_told_that_one_moved() -> Story:
    story = Story()
    busy = merge("busy", "hot")
    story.invoke(busy)
    story.commit(merge("other", "hot"), writer=1)
    story.fail(busy, "expected_version_mismatch")
    return story


@breaks(Rule.WRONGLY_EMPTY)
def a_delete_is_told_to_match_nothing_although_it_did() -> Story:
    story = true_story()
    story.find_nothing(remove("remove-2", "ann"))
    return story


@breaks(Rule.LOST_ROW)
def a_row_is_missing() -> Story:
    story = true_story()
    story.scanned()["Account"].pop()
    return story


@breaks(Rule.PHANTOM_ROW)
def a_row_is_there_that_was_deleted() -> Story:
    story = true_story()
    story.scanned()["Account"].append({"id": "bob", "name": "bob", "owner": "w0", "counter": 1, "stamp": "four"})
    return story


@breaks(Rule.WRONG_ROW)
def a_row_has_the_value_of_an_earlier_write() -> Story:
    story = true_story()
    hot = next(row for row in story.scanned()["Account"] if row["name"] == "hot")
    hot["stamp"] = "hot-1"
    return story


@breaks(Rule.DOUBLED_ROW)
def a_row_is_there_twice() -> Story:
    story = true_story()
    story.scanned()["Account"].append(dict(story.scanned()["Account"][0]))
    return story


@breaks(Rule.DOUBLED_ROW)
def two_edges_have_one_id() -> Story:
    story = true_story()
    for name in ("ann", "eve"):
        story.commit(append(f"link-{name}", follows(name, "hot", f"link-{name}")))
    for row in story.scanned()["Follows"]:
        row["id"] = "the same"
    return story


@breaks(Rule.DOUBLED_ROW)
def two_edges_have_the_same_ends() -> Story:
    story = true_story()
    story.commit(append("link", follows("ann", "hot", "link")))
    (edge,) = story.scanned()["Follows"]
    story.scanned()["Follows"].append({**edge, "id": "another"})
    return story


@breaks(Rule.DANGLING_EDGE)
def an_edge_outlives_its_node() -> Story:
    story = true_story()
    edge = {"id": "o1", "src": "bob", "dst": "phone", "counter": 1, "stamp": "o1"}
    story.scanned()["Owns"].append(edge)
    return story


@breaks(Rule.DANGLING_EDGE)
def an_edge_lands_that_leads_nowhere() -> Story:
    story = true_story()
    story.commit(append("loose", follows("ann", "nobody", "loose")))
    return story


# Snapshots


@breaks(Rule.PHANTOM_SNAPSHOT)
def a_snapshot_is_of_a_commit_that_nobody_knows() -> Story:
    story = true_story()
    story.change(story.last(Read), commit_id="never")
    return story


@breaks(Rule.UNTIMELY_SNAPSHOT)
def a_snapshot_lacks_a_write_that_was_acknowledged() -> Story:
    story = true_story()
    late = story.look("ann")
    story.commit(merge("next", "ann"))
    story.change(late, at_ns=story.now + 11, began_ns=story.now + 10)
    return story


@breaks(Rule.UNTIMELY_SNAPSHOT)
def a_snapshot_shows_a_write_that_was_not_yet_sent() -> Story:
    story = true_story()
    story.change(story.last(Read), began_ns=1, at_ns=2)
    return story


@breaks(Rule.UNTIMELY_SNAPSHOT)
def a_snapshot_goes_back_behind_an_earlier_one() -> Story:
    story = Story()
    stale = story.look("hot")
    story.lose_sight(merge("seen", "hot"))
    story.land(merge("seen", "hot"))
    story.look("hot")
    story.change(stale, at_ns=story.now + 11, began_ns=story.now + 10)
    return story


@breaks(Rule.INCONSISTENT_SNAPSHOT)
def a_snapshot_shows_another_value_than_its_commit() -> Story:
    story = true_story()
    read = story.last(Read)
    story.change(read, digests={**read.digests, "Account": {**read.digests["Account"], "hot": "forged"}})
    return story


@breaks(Rule.INCONSISTENT_SNAPSHOT)
def a_snapshot_shows_the_node_of_a_write_without_its_edge() -> Story:
    story = true_story()
    read = next(event for event in story.events if isinstance(event, Read))
    assert read.digests["Owns"].keys() == {"bob"}
    story.change(read, digests={**read.digests, "Owns": {}})
    return story


@breaks(Rule.INCONSISTENT_SNAPSHOT)
def a_snapshot_counts_a_row_too_many() -> Story:
    story = true_story()
    read = story.last(Read)
    story.change(read, counts={**read.counts, "Device": read.counts["Device"] + 1})
    return story


# Recoveries


@breaks(Rule.RECOVERED_TWICE)
def an_operation_is_recovered_twice() -> Story:
    story = true_story()
    story.recover("op-of-never", "RolledBack")
    return story


@breaks(Rule.FALSE_RECOVERY)
def an_operation_is_rolled_back_that_is_in_the_lineage() -> Story:
    story = true_story()
    story.recover(story.lineage[2].op_id, "RolledBack")
    return story


@breaks(Rule.FALSE_RECOVERY)
def an_operation_is_rolled_forward_that_is_not_in_the_lineage() -> Story:
    story = true_story()
    story.recover("op-of-nobody", "RolledForward")
    return story


@pytest.mark.parametrize(("rule", "make"), [pytest.param(*case, id=case[1].__name__) for case in DOCTORED])
def test_a_doctored_story_is_caught(rule: Rule, make: Doctored) -> None:
    assert rule in make().broken_rules()


def test_every_rule_has_a_story_that_breaks_it() -> None:
    assert {rule for rule, _ in DOCTORED} == set(Rule)


def test_a_violation_brings_the_lines_of_the_history_that_show_it() -> None:
    (lost, *_) = an_acknowledged_write_is_missing_from_the_lineage().verdict().violations
    assert str(lost) == "lost_commit: touch was acknowledged and is not in the lineage"
    assert [line.partition('"event":')[2][:8] for line in lost.excerpt] == ['"invoke"', '"ok","at']


# What is no violation


def test_a_write_whose_answer_is_unknown_may_have_landed_or_not() -> None:
    story = Story()
    story.lose_sight(merge("landed", "hot"))
    story.land(merge("landed", "hot"))
    story.lose_sight(merge("lost", "cold"))
    assert story.broken_rules() == set()


def test_a_write_of_a_killed_writer_may_have_landed() -> None:
    story = Story()
    story.invoke(merge("last words", "hot"))
    story.land(merge("last words", "hot"))
    assert story.broken_rules() == set()


def test_a_write_that_was_refused_and_sent_again_may_land_then() -> None:
    story = Story()
    story.refuse(merge("second try", "hot"), "storage")
    story.commit(merge("second try", "hot"))
    assert story.broken_rules() == set()


def test_writes_that_overlap_may_land_in_any_order() -> None:
    story = Story()
    slow, quick = merge("slow", "hot"), merge("quick", "hot")
    story.invoke(slow)
    story.invoke(quick, writer=1)
    done = story.land(quick)
    story.answer(slow, story.land(slow))
    story.answer(quick, done, writer=1)
    assert story.broken_rules() == set()


def test_an_append_may_be_refused_for_a_key_that_came_and_went_while_it_ran() -> None:
    story = Story()
    late = append("late", account("ann", "late"))
    story.invoke(late)
    story.commit(append("quick", account("ann", "quick")), writer=1)
    story.commit(remove("remove", "ann"), writer=1)
    story.fail(late, "key_conflict")
    assert story.broken_rules() == set()


def test_an_update_may_be_refused_because_its_table_moved_while_it_ran() -> None:
    story = Story()
    story.commit(merge("hot", "hot"))
    slow = touch("slow", "hot")
    story.invoke(slow)
    story.commit(merge("other", "cold"), writer=1)
    story.fail(slow, "expected_version_mismatch")
    assert story.broken_rules() == set()


def test_maintenance_that_is_rolled_forward_need_not_be_in_the_lineage() -> None:
    story = true_story()
    story.recoveries.append(replace(story.recoveries[0], operation_id="upkeep", sidecar_writer_kind="Optimize"))
    assert story.broken_rules() == set()


def test_strict_writes_to_other_tables_may_name_one_version() -> None:
    story = Story()
    basis = story.basis()
    assert ACCOUNTS in basis.versions
    for n in range(2):
        story.commit(append(f"device-{n}", device(f"device-{n}", f"device-{n}")))
        named = append(f"strict-{n}", device(f"d{n}", f"strict-{n}"))
        story.commit(msgspec.structs.replace(named, basis=basis))
    assert story.broken_rules() == set()
