"""The pure rules of the line, one table of cases each; `tests/model` runs them under random schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniray.engine.base.errors import FormatMismatch, InvariantViolation
from omniray.engine.line.commit_json import check_format, decode, encode, pin_facts, pin_of
from omniray.engine.line.commit_object import (
    EMBEDDED,
    FORMAT,
    Binding,
    Commit,
    CommitObject,
    Fate,
    MergedParent,
    Pin,
    Recovery,
    Remark,
    SchemaRef,
    before_first,
    believable,
    belonging,
    change_owner,
    close,
    explain_version,
    fate,
    first_of,
    follow,
    follow_with,
    landed_in,
    may_answer,
    reaches,
    rebind,
    remarked,
    unlawful,
    without_first,
)
from omniray.engine.store.object_store import Answer

PERSON, KNOWS = "node:Person", "edge:Knows"


LINE, OTHER = "line-m", "line-b"
SCHEMA = SchemaRef("file-1", "hash-1", 1)


def pin(version: int, since: int, line: str = LINE) -> Pin:
    return Pin("id-1", "nodes/Person.lance", version, f"tx-{version}", version, f"content-{version}", line, since)


def commit(commit_id: str) -> Commit:
    return Commit(commit_id, "Mutation", "ann", 1, (PERSON,))


S = CommitObject(
    line=LINE,
    seq=7,
    prev_op_id="op-6",
    op_id="op-7",
    epoch=3,
    owner=EMBEDDED,
    pins={PERSON: pin(5, 7), KNOWS: pin(2, 4)},
    schema=SCHEMA,
    commits=(commit("c-7"),),
    finalised_through=3,
    head="c-7",
    head_at_us=1,
    swept_before_us=5,
    contains={LINE: 7, OTHER: 4},
)


def after(
    newest: CommitObject = S, finalised_through: int = 0, commits: tuple[Commit, ...] = (commit("c-8"),)
) -> CommitObject:
    changed = {PERSON: pin(6, 0, line="")}
    return follow(newest, op_id="op-8", changed=changed, commits=commits, finalised_through=finalised_through)


# Following


def test_the_next_object_names_its_predecessor_and_keeps_epoch_and_owner() -> None:
    ours = after()
    assert (ours.seq, ours.prev_op_id, ours.op_id) == (8, "op-7", "op-8")
    assert (ours.epoch, ours.owner) == (3, EMBEDDED)
    assert unlawful(S, ours) is None


def test_our_pins_lie_over_those_of_the_predecessor_and_say_which_line_and_number_brought_them() -> None:
    ours = after()
    assert ours.pins == {PERSON: pin(6, 8), KNOWS: pin(2, 4)}
    assert ours.introduced() == {PERSON: pin(6, 8)}


def test_a_pin_of_another_line_is_not_introduced_by_the_object_of_the_same_number() -> None:
    """A branch's first object pins versions of its parent, one of which may have come with the parent's number 1."""
    ours = replace(after(), pins={PERSON: pin(6, 8), KNOWS: pin(2, 8, line=OTHER)})
    assert ours.introduced() == {PERSON: pin(6, 8)}


@pytest.mark.parametrize(
    ("confirmed", "through"),
    [
        pytest.param(0, 3, id="the predecessor's value never goes back"),
        pytest.param(3, 3, id="nothing new"),
        pytest.param(7, 7, id="what the putter confirmed itself counts"),
    ],
)
def test_finalised_through_only_grows(confirmed: int, through: int) -> None:
    assert after(finalised_through=confirmed).finalised_through == through


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pin(2, 4), True, id="at what is finalised"),
        pytest.param(pin(2, 5), False, id="above it"),
        pytest.param(pin(2, 1, line=OTHER), False, id="of another line, whose numbers say nothing here"),
    ],
)
def test_a_pin_is_known_to_be_final_up_to_what_its_own_line_has_finalised(found: Pin, expected: bool) -> None:
    assert replace(S, finalised_through=4).is_final(found) is expected


def test_an_object_contains_itself_and_all_that_its_predecessor_does() -> None:
    assert after().contains == {LINE: 8, OTHER: 4}
    assert follow_with(S, Remark("op-8")).contains == {LINE: 8, OTHER: 4}


def test_the_head_is_the_newest_commit_or_the_predecessors_where_there_is_none() -> None:
    assert after(commits=(commit("c-8"), commit("c-9"))).head == "c-9"
    assert after(commits=()).head == "c-7"


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (replace(after(), line=OTHER), "is of line line-b"),
        (replace(after(), seq=9), "does not follow"),
        (replace(after(), seq=7), "does not follow"),
        (replace(after(), prev_op_id="op-6"), "predecessor"),
        (replace(after(), owner="coordinator-1"), "may not follow"),
        (replace(after(), epoch=4), "may not follow"),
        (replace(after(), epoch=2), "may not follow"),
        (replace(after(), epoch=5, commits=()), "may not follow"),
        (replace(after(), finalised_through=2), "finalised_through"),
        (replace(after(), swept_before_us=4), "swept_before"),
        (replace(after(), contains={LINE: 8}), "contains less"),
        (replace(after(), contains={LINE: 8, OTHER: 3}), "contains less"),
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
    said = follow_with(S, Remark("op-8", recoveries=(TOLD,)))
    assert unlawful(S, said) is None
    assert (said.seq, said.prev_op_id, said.op_id, said.epoch, said.owner) == (8, "op-7", "op-8", 3, EMBEDDED)
    assert (said.pins, said.head, said.commits, said.recoveries) == (S.pins, "c-7", (), (TOLD,))
    assert said.introduced() == {}


@pytest.mark.parametrize(("before", "said", "holds"), [(0, 7, 7), (9, 7, 9), (9, 0, 9)])
def test_what_was_swept_stays_swept(before: int, said: int, holds: int) -> None:
    newest = replace(S, swept_before_us=before)
    swept = follow_with(newest, Remark("op-8", swept_before_us=said))
    assert swept.swept_before_us == holds
    assert unlawful(newest, swept) is None
    assert after(swept).swept_before_us == holds
    assert change_owner(swept, op_id="op-9", owner="x").swept_before_us == holds


def test_recoveries_and_withdrawals_are_told_once_and_not_repeated_by_what_follows() -> None:
    following = after(follow_with(S, Remark("op-8", recoveries=(TOLD,), withdrawn=("c-1",))))
    assert (following.recoveries, following.withdrawn) == ((), ())


def test_several_remarks_find_room_beside_a_write_and_beside_each_other() -> None:
    told = replace(TOLD, operation_id="op-3")
    ours = remarked(remarked(after(), Remark("r-1", (TOLD,), ("c-1",), 9)), Remark("r-2", (told,), ("c-2",), 8))
    assert (ours.op_id, ours.commits) == ("op-8", (commit("c-8"),))
    assert (ours.recoveries, ours.withdrawn, ours.swept_before_us) == ((TOLD, told), ("c-1", "c-2"), 9)


REMARKS: Mapping[str, tuple[Any, str]] = {
    "remark_id": ("op-8", "op_id"),
    "recoveries": ((TOLD,), "recoveries"),
    "withdrawn": (("c-1",), "withdrawn"),
    "swept_before_us": (99, "swept_before_us"),
}
"""What a test says in each field of a remark, and the field of the object that holds it then."""


def test_every_field_of_a_remark_reaches_the_object() -> None:
    assert unsaid(follow_with) == []


def test_the_walk_over_a_remark_tells_a_field_that_got_lost() -> None:
    """The twin."""

    def forgetful(newest: CommitObject, remark: Remark) -> CommitObject:
        return follow_with(newest, replace(remark, withdrawn=()))

    assert unsaid(forgetful) == ["withdrawn"]


def unsaid(record: Callable[[CommitObject, Remark], CommitObject]) -> list[str]:
    """The fields of a remark that the object recorded for it does not hold."""
    assert {one.name for one in fields(Remark)} == REMARKS.keys(), "a new field of Remark needs a case here"
    said = record(S, Remark(**{name: value for name, (value, _) in REMARKS.items()}))
    return [name for name, (value, where) in REMARKS.items() if getattr(said, where) != value]


# Carrying everything on

BINDING = Binding("line-n", LINE, 6, {PERSON: pin(5, 7)}, SCHEMA, {LINE: 6}, "c-6", 1, 3)
FULL = replace(
    S,
    recoveries=(TOLD,),
    withdrawn=("c-1",),
    bindings={"trial": BINDING},
    horizons={PERSON: 3},
    going=("line-g",),
    policy={"retention": "7d"},
    parent="line-p",
    parent_seq=4,
    later={"quota": msgspec.Raw(b'{"rows":5}')},
)
STEPS: Mapping[str, Callable[[CommitObject], CommitObject]] = {
    "a write": after,
    "a remark": lambda newest: follow_with(newest, Remark("op-8", withdrawn=("c-2",), swept_before_us=9)),
    "a change of owner": lambda newest: change_owner(newest, op_id="op-8", owner="coordinator-1"),
    "a change of branches": lambda newest: rebind(
        newest, op_id="op-8", bindings={**newest.bindings, "more": BINDING}, commit=commit("c-9")
    ),
    "the end of a branch": lambda newest: close(newest, op_id="op-8"),
}
NUMBERS = {"seq", "prev_op_id", "op_id", "contains"}
MEANT: Mapping[str, set[str]] = {
    "a write": NUMBERS | {"pins", "commits", "recoveries", "withdrawn", "head"},
    "a remark": NUMBERS | {"commits", "recoveries", "withdrawn", "swept_before_us"},
    "a change of owner": NUMBERS | {"commits", "recoveries", "withdrawn", "epoch", "owner"},
    "a change of branches": NUMBERS | {"commits", "recoveries", "withdrawn", "head", "bindings"},
    "the end of a branch": NUMBERS | {"commits", "recoveries", "withdrawn", "epoch", "closed"},
}
"""What each step means to change; what is told once is not repeated."""


def differing(one: CommitObject, other: CommitObject) -> set[str]:
    return {known.name for known in fields(CommitObject) if getattr(one, known.name) != getattr(other, known.name)}


@pytest.mark.parametrize("step", STEPS)
def test_every_field_that_a_step_does_not_mean_to_change_is_carried_on(step: str) -> None:
    nothing_said = before_first("", SchemaRef("", "", 0))
    silent = {known.name for known in fields(CommitObject)} - differing(FULL, nothing_said)
    assert silent == {"owner", "format", "closed"}, "a new field of CommitObject needs a value in FULL"
    assert differing(FULL, STEPS[step](FULL)) == MEANT[step]
    assert unlawful(FULL, STEPS[step](FULL)) is None


@pytest.mark.parametrize("field", ["bindings", "horizons", "going", "policy", "schema", "later"])
def test_the_walk_over_an_object_tells_a_field_that_was_not_carried_on(field: str) -> None:
    """The twin: a step that builds its object anew, and forgets one field."""
    forgetful = replace(after(FULL), **{field: getattr(before_first(LINE, SchemaRef("", "", 0)), field)})
    assert differing(FULL, forgetful) == MEANT["a write"] | {field}


@pytest.mark.parametrize("step", STEPS)
def test_fields_of_a_later_omniray_survive_whoever_reads_and_follows(step: str) -> None:
    data = msgspec.json.decode(encode(S)) | {"quota": {"rows": 5, "of": ["x"]}, "seal": None}
    following = STEPS[step](decode(msgspec.json.encode(data), where="object"))
    written = msgspec.json.decode(encode(following))
    assert (written["quota"], written["seal"]) == ({"rows": 5, "of": ["x"]}, None)
    assert decode(encode(following), where="object") == following


@pytest.mark.parametrize("step", STEPS)
def test_fields_of_a_later_omniray_survive_inside_pins_and_bindings(step: str) -> None:
    data = msgspec.json.decode(encode(FULL))
    for part in (data["pins"][KNOWS], data["bindings"]["trial"], data["bindings"]["trial"]["pins"][PERSON]):
        part["quota"] = {"rows": 5, "of": ["x"]}
    following = STEPS[step](decode(msgspec.json.encode(data), where="object"))
    written = msgspec.json.decode(encode(following))
    assert written["pins"][KNOWS] == data["pins"][KNOWS]
    assert written["bindings"]["trial"] == data["bindings"]["trial"]
    assert decode(encode(following), where="object") == following
    first = msgspec.json.decode(encode(first_of(following.bindings["trial"])))
    assert first["pins"] == data["bindings"]["trial"]["pins"], "a branch begins with them"


def test_a_commit_keeps_the_fields_of_a_later_omniray() -> None:
    data = msgspec.json.decode(encode(after()))
    data["commits"][0]["seal"] = None
    found = decode(msgspec.json.encode(data), where="object")
    assert msgspec.json.decode(encode(found)) == data
    assert msgspec.json.decode(encode(after(found)))["commits"] != data["commits"], "it is told once"


def test_the_next_version_of_a_table_has_the_unknown_fields_of_the_one_before() -> None:
    facts = pin_facts(pin(5, 7)) | {"quota": 5}
    assert pin_facts(replace(pin_of(facts), version=6)) == facts | {"version": 6}


# The first object of a branch


def test_nothing_follows_the_end_of_a_branch() -> None:
    last = close(S, op_id="op-8")
    for step in STEPS.values():
        assert unlawful(last, step(last)) == "may not follow 8, which closes the line"


def test_the_first_object_of_a_branch_is_the_same_bytes_whoever_puts_it() -> None:
    again = msgspec.json.decode(msgspec.json.encode(BINDING), type=Binding)
    assert encode(first_of(BINDING)) == encode(first_of(again))
    assert encode(first_of(BINDING)) != encode(first_of(replace(BINDING, head="c-5")))


def test_the_binding_of_a_line_that_is_there_says_nothing_that_its_first_object_says() -> None:
    bound = without_first(BINDING)
    assert (bound.pins, bound.contains, bound.schema.file) == ({}, {}, "")
    assert (bound.ulid, bound.parent, bound.parent_seq, bound.head) == ("line-n", LINE, 6, "c-6")
    assert msgspec.json.decode(msgspec.json.encode(bound), type=Binding) == bound
    with pytest.raises(AssertionError, match="nobody makes it again"):
        first_of(bound)


def test_the_first_object_of_a_branch_says_all_that_its_binding_does() -> None:
    first = first_of(BINDING)
    assert (first.line, first.seq, first.prev_op_id, first.op_id) == ("line-n", 1, "", "line-n")
    assert (first.epoch, first.owner) == (1, EMBEDDED)
    for carried in {known.name for known in fields(Binding)} & {known.name for known in fields(CommitObject)}:
        if carried not in ("contains", "later"):
            assert getattr(first, carried) == getattr(BINDING, carried), carried
    assert first.contains == {LINE: 6, "line-n": 1}
    assert first.introduced() == {}, "its versions are its parent's"


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
names = st.dictionaries(texts, texts, max_size=2)
vectors = st.dictionaries(texts, numbers, max_size=2)
raws = st.one_of(st.none(), numbers, texts, names).map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
in_paths = st.from_regex(r"\A[A-Za-z0-9_-]{0,8}\Z")
paths = st.from_regex(r"\A[a-z]{1,4}/[A-Za-z0-9_-]{1,4}\.lance\Z")
later = st.just(msgspec.UNSET) | st.dictionaries(texts.map("x-{}".format), raws, min_size=1, max_size=2)
pins = st.builds(Pin, texts, paths, numbers, in_paths, numbers, texts, in_paths, numbers, later)
several_pins = st.dictionaries(texts, pins, max_size=3)
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
    texts,
    st.lists(st.builds(MergedParent, in_paths, numbers, texts), max_size=2).map(tuple),
    later,
    texts,
)
recoveries = st.builds(Recovery, texts, texts, texts, texts, names, numbers, texts)
schemas = st.builds(SchemaRef, in_paths, texts, numbers)
bindings = st.builds(
    Binding, in_paths, in_paths, numbers, several_pins, schemas, vectors, texts, numbers, numbers, later
)
KNOWN = {known.name for known in fields(CommitObject)}
objects = st.builds(
    CommitObject,
    line=in_paths,
    seq=numbers,
    prev_op_id=in_paths,
    op_id=in_paths,
    epoch=numbers,
    owner=texts,
    pins=several_pins,
    schema=schemas,
    commits=st.lists(commits, max_size=2).map(tuple),
    recoveries=st.lists(recoveries, max_size=2).map(tuple),
    finalised_through=numbers,
    head=texts,
    head_at_us=numbers,
    withdrawn=st.lists(texts, max_size=2).map(tuple),
    swept_before_us=numbers,
    contains=vectors,
    bindings=st.dictionaries(texts, bindings, max_size=2),
    horizons=vectors,
    going=st.lists(in_paths, max_size=2).map(tuple),
    policy=names,
    later=st.dictionaries(texts.filter(lambda name: name not in KNOWN), raws, max_size=2),
)


@given(objects)
def test_an_object_comes_back_from_its_bytes_as_it_was(obj: CommitObject) -> None:
    assert decode(encode(obj), where="object") == obj


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":2}', b'{"format":"two"}', b"\xff\xfe"])
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
