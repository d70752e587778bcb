"""The pure rules of the line, one table of cases each; `tests/model` runs them under random schedules."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniray.engine.base.errors import FormatMismatch, InvariantViolation
from omniray.engine.line.commit_object import (
    EMBEDDED,
    FORMAT,
    AcceptedSchema,
    Commit,
    CommitObject,
    Fate,
    Pin,
    Recovery,
    believable,
    belonging,
    change_owner,
    check_format,
    decode,
    encode,
    explain_version,
    fate,
    follow,
    landed_in,
    may_answer,
    reaches,
    remark,
    unlawful,
)
from omniray.engine.store.object_store import Answer

PERSON, KNOWS = "node:Person", "edge:Knows"


def pin(version: int, since: int, staging: str | None = None) -> Pin:
    return Pin(version, f"tx-{version}", since, rows=version, staging=staging)


def commit(commit_id: str) -> Commit:
    return Commit(commit_id, "Mutation", "ann", 1, (PERSON,))


S = CommitObject(
    seq=7,
    prev_op_id="op-6",
    op_id="op-7",
    epoch=3,
    owner=EMBEDDED,
    pins={PERSON: pin(5, 7, "staging-5"), KNOWS: pin(2, 4, "staging-2")},
    commits=(commit("c-7"),),
    finalised_through=3,
    head="c-7",
    swept_before_us=5,
)


def after(
    newest: CommitObject = S, finalised_through: int = 0, commits: tuple[Commit, ...] = (commit("c-8"),)
) -> CommitObject:
    changed = {PERSON: pin(6, 0, "staging-6")}
    return follow(newest, op_id="op-8", changed=changed, commits=commits, finalised_through=finalised_through)


# Following


def test_the_next_object_names_its_predecessor_and_keeps_epoch_and_owner() -> None:
    ours = after()
    assert (ours.seq, ours.prev_op_id, ours.op_id) == (8, "op-7", "op-8")
    assert (ours.epoch, ours.owner) == (3, EMBEDDED)
    assert unlawful(S, ours) is None


def test_our_pins_lie_over_those_of_the_predecessor_and_say_which_number_brought_them() -> None:
    ours = after()
    assert ours.pins == {PERSON: pin(6, 8, "staging-6"), KNOWS: pin(2, 4, "staging-2")}
    assert ours.introduced() == {PERSON: pin(6, 8, "staging-6")}


@pytest.mark.parametrize(
    ("confirmed", "through", "kept"),
    [
        pytest.param(0, 3, "staging-2", id="the predecessor's value never goes back"),
        pytest.param(3, 3, "staging-2", id="a pin above it keeps its staging path"),
        pytest.param(4, 4, None, id="a pin at it has its final name"),
        pytest.param(7, 7, None, id="what the putter confirmed itself counts"),
    ],
)
def test_finalised_through_only_grows_and_frees_the_pins_below(confirmed: int, through: int, kept: str | None) -> None:
    ours = after(finalised_through=confirmed)
    assert (ours.finalised_through, ours.pins[KNOWS].staging) == (through, kept)


def test_a_pin_that_is_new_keeps_its_staging_path_however_far_phase_d_is() -> None:
    assert after(finalised_through=7).pins[PERSON].staging == "staging-6"


def test_the_head_is_the_newest_commit_or_the_predecessors_where_there_is_none() -> None:
    assert after(commits=(commit("c-8"), commit("c-9"))).head == "c-9"
    assert after(commits=()).head == "c-7"


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (replace(after(), seq=9), "does not follow"),
        (replace(after(), seq=7), "does not follow"),
        (replace(after(), prev_op_id="op-6"), "predecessor"),
        (replace(after(), owner="coordinator-1"), "may not follow"),
        (replace(after(), epoch=4), "may not follow"),
        (replace(after(), epoch=2), "may not follow"),
        (replace(after(), epoch=5, commits=()), "may not follow"),
        (replace(after(), finalised_through=2), "finalised_through"),
        (replace(after(), swept_before_us=4), "swept_before"),
        (replace(after(), pins={PERSON: pin(6, 8)}), "forgets the pins of edge:Knows"),
    ],
)
def test_an_unlawful_successor_is_named_as_such(candidate: CommitObject, reason: str) -> None:
    found = unlawful(S, candidate)
    assert found is not None
    assert reason in found


def test_a_change_of_owner_is_an_object_of_its_own_with_the_next_epoch() -> None:
    assert unlawful(S, replace(after(commits=()), epoch=4, owner="coordinator-1")) is None


def test_a_change_of_owner_fences_everything_under_way_and_repeats_the_rest() -> None:
    taken = change_owner(S, op_id="raise", owner="coordinator-1")
    assert unlawful(S, taken) is None
    assert (taken.seq, taken.prev_op_id, taken.epoch, taken.owner) == (8, "op-7", 4, "coordinator-1")
    assert (taken.pins, taken.head, taken.finalised_through, taken.commits) == (S.pins, "c-7", 3, ())
    assert unlawful(taken, replace(after(), seq=9, prev_op_id="raise")) is not None, "the old epoch may not follow"
    assert fate(after(), Answer.REFUSED, taken) is Fate.FENCED


def test_a_raise_keeps_its_owner_and_fences_all_the_same() -> None:
    raised = change_owner(S, op_id="raise", owner=EMBEDDED)
    assert (raised.epoch, raised.owner) == (4, EMBEDDED)
    assert fate(after(), Answer.UNCLEAR, raised) is Fate.FENCED


def test_a_change_of_owner_with_a_commit_in_it_is_unlawful() -> None:
    """Else whoever was fenced could commit by taking over in the same breath."""
    assert unlawful(S, replace(change_owner(S, op_id="raise", owner="coordinator-1"), commits=(commit("c-8"),)))


# Remarks

TOLD = Recovery("op-2", "RolledBack", "ann", "Load", {PERSON: "NoMovement"}, 1)


def test_a_remark_changes_no_table_and_no_owner() -> None:
    said = remark(S, op_id="op-8", recoveries=(TOLD,))
    assert unlawful(S, said) is None
    assert (said.seq, said.epoch, said.owner) == (8, 3, EMBEDDED)
    assert (said.pins, said.head, said.commits, said.recoveries) == (S.pins, "c-7", (), (TOLD,))
    assert said.introduced() == {}


@pytest.mark.parametrize(("before", "said", "holds"), [(0, 7, 7), (9, 7, 9), (9, 0, 9)])
def test_what_was_swept_stays_swept(before: int, said: int, holds: int) -> None:
    newest = replace(S, swept_before_us=before)
    swept = remark(newest, op_id="op-8", swept_before_us=said)
    assert swept.swept_before_us == holds
    assert unlawful(newest, swept) is None
    assert after(swept).swept_before_us == holds
    assert change_owner(swept, op_id="op-9", owner="x").swept_before_us == holds


def test_recoveries_are_told_once_and_not_repeated_by_what_follows() -> None:
    assert after(remark(S, op_id="op-8", recoveries=(TOLD,))).recoveries == ()


# Answers

OURS = after()
FASTER = replace(OURS, op_id="op-other")


@pytest.mark.parametrize(
    ("answer", "seen", "expected"),
    [
        (Answer.CREATED, None, Fate.LANDED),
        (Answer.CREATED, OURS, Fate.LANDED),
        (Answer.REFUSED, OURS, Fate.LANDED),
        (Answer.UNCLEAR, OURS, Fate.LANDED),
        (Answer.REFUSED, FASTER, Fate.LOST),
        (Answer.UNCLEAR, FASTER, Fate.LOST),
        (Answer.REFUSED, None, Fate.PUT_AGAIN),
        (Answer.UNCLEAR, None, Fate.PUT_AGAIN),
        (Answer.REFUSED, replace(FASTER, epoch=4), Fate.FENCED),
        (Answer.UNCLEAR, replace(FASTER, epoch=4, owner="coordinator-1"), Fate.FENCED),
        (Answer.REFUSED, replace(FASTER, owner="coordinator-1"), Fate.FENCED),
    ],
)
def test_an_answer_means_what_the_object_that_is_there_says(
    answer: Answer, seen: CommitObject | None, expected: Fate
) -> None:
    assert fate(OURS, answer, seen) is expected


@pytest.mark.parametrize(("elapsed_s", "expected"), [(0.0, True), (99.9, True), (100.0, False), (1e9, False)])
def test_a_put_is_believed_only_within_a_small_part_of_the_retention(elapsed_s: float, expected: bool) -> None:
    assert believable(elapsed_s, retention_s=1000.0) is expected


def test_an_answer_may_leave_only_if_nothing_has_followed_what_it_was_judged_on() -> None:
    assert may_answer(S, S)
    assert not may_answer(S, OURS)
    assert not may_answer(S, replace(S, op_id="another"))


# Reading


def line_of(*numbers: int) -> list[CommitObject]:
    return [replace(S, seq=n, op_id=f"op-{n}", prev_op_id=f"op-{n - 1}") for n in numbers]


STRAY = replace(S, seq=7, op_id="stray", prev_op_id="op-6")


@pytest.mark.parametrize(
    ("objects", "numbers"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([STRAY], [7], id="the newest belongs by itself"),
        pytest.param(line_of(9, 8, 7), [9, 8, 7], id="each is named by its successor"),
        pytest.param([*line_of(9, 8), STRAY, *line_of(6)], [9, 8], id="a stray, and nothing below it"),
        pytest.param(line_of(9, 8, 6), [9, 8], id="a number is missing"),
    ],
)
def test_only_what_its_successor_names_belongs_to_the_line(objects: list[CommitObject], numbers: list[int]) -> None:
    assert [obj.seq for obj in belonging(objects)] == numbers


def test_an_object_in_the_store_is_not_yet_one_of_the_line() -> None:
    chain = belonging([*line_of(9, 8), STRAY])
    assert landed_in(chain, line_of(8)[0])
    assert not landed_in(chain, STRAY)


@pytest.mark.parametrize(
    ("numbers", "folded_through", "expected"),
    [((), 0, False), ((9, 8, 7), 6, True), ((9, 8, 7), 7, True), ((9, 8, 7), 5, False), ((9,), 12, True)],
)
def test_line_and_manifest_must_meet(numbers: tuple[int, ...], folded_through: int, expected: bool) -> None:
    assert reaches(tuple(line_of(*numbers)), folded_through) is expected


@pytest.mark.parametrize(
    ("found", "newest", "expected"),
    [
        pytest.param(7, S, "drift", id="no object explains it: a foreign writer"),
        pytest.param(7, OURS, "explained", id="a newer object pins a newer version"),
        pytest.param(7, replace(OURS, pins=S.pins), "drift", id="a newer object that moved other tables"),
        pytest.param(6, S, "explained", id="the version is the expected one"),
    ],
)
def test_a_version_that_came_out_wrong_is_explained_by_the_line_or_is_drift(
    found: int, newest: CommitObject, expected: str
) -> None:
    assert explain_version(found, 6, newest, PERSON, judged_on=S) == expected


# The codec

texts = st.text(max_size=8)
numbers = st.integers(0, 2**63 - 1)
pins = st.builds(Pin, numbers, texts, numbers, numbers, texts, st.none() | texts)
commits = st.builds(
    Commit,
    texts,
    texts,
    texts,
    numbers,
    st.lists(texts, max_size=3).map(tuple),
    texts,
    texts,
    numbers,
    numbers,
    numbers,
)
outcomes = st.dictionaries(texts, texts, max_size=3)
recoveries = st.builds(Recovery, texts, texts, texts, texts, outcomes, numbers, texts)
objects = st.builds(
    CommitObject,
    seq=numbers,
    prev_op_id=texts,
    op_id=texts,
    epoch=numbers,
    owner=texts,
    pins=st.dictionaries(texts, pins, max_size=3),
    commits=st.lists(commits, max_size=2).map(tuple),
    recoveries=st.lists(recoveries, max_size=2).map(tuple),
    finalised_through=numbers,
    head=texts,
    swept_before_us=numbers,
    schema=st.none() | st.builds(AcceptedSchema, texts, texts, numbers, texts),
)


@given(objects)
def test_an_object_comes_back_from_its_bytes_as_it_was(obj: CommitObject) -> None:
    assert decode(encode(obj), where="object") == obj


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":1}', b'{"format":"one"}', b"\xff\xfe"])
def test_what_is_no_object_is_refused_and_kept(data: bytes) -> None:
    with pytest.raises(InvariantViolation, match=r"__commits/x\.json is not a commit object.*keep the file"):
        decode(data, where="__commits/x.json")


def test_the_stamp_is_read_before_anything_else_is_believed() -> None:
    with pytest.raises(FormatMismatch):
        decode(msgspec.json.encode({"format": FORMAT + 1, "seq": "written otherwise"}), where="object")


@pytest.mark.parametrize(
    ("found", "advice"),
    [(FORMAT - 1, "omniray export.*omniray init"), (FORMAT + 1, "upgrade omniray")],
    ids=["older", "newer"],
)
def test_another_format_is_refused_with_what_to_do(found: int, advice: str) -> None:
    with pytest.raises(FormatMismatch, match=advice) as refusal:
        check_format(found, where="the graph")
    assert refusal.value.facts == {"found": found, "served": FORMAT}


def test_the_served_format_passes() -> None:
    check_format(FORMAT, where="the graph")
