"""Which ids an owner of the line takes for new: those that it remembers are known, all others are looked up unless
they can't have been committed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from ulid import ULID

from omniray.engine.base.errors import StorageError
from omniray.engine.base.ulids import new_ulid, time_us_of
from omniray.engine.history import recent_commits
from omniray.engine.history.lineage import LandedCommit, Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Commit, CommitObject, follow
from omniray.engine.store.directory import DirectoryStore
from tests.lines import BRANCH, PERSON, birth
from tests.stores import Root

SECOND_US = 1_000_000
BEGIN_US = 1_800_000_000 * SECOND_US
NOW_US = BEGIN_US + 100 * SECOND_US


def ulid_of(at_us: int) -> str:
    return str(ULID.from_timestamp(at_us / 1e6))


class Watched(Lineage):
    """A lineage that tells which ids it looked for in line and manifest, one look-up after another."""

    asked: list[set[str]]

    def landed(self, commit_ids: Collection[str], newest: CommitObject) -> dict[str, LandedCommit]:
        if commit_ids:
            self.asked.append(set(commit_ids))
        return super().landed(commit_ids, newest)


class Line:
    """A line of commits a second apart, each with the ULID of its own time."""

    def __init__(self, root: Path, count: int, *, folded: int) -> None:
        self.store = DirectoryStore(root)
        self.objects = [replace(birth(), head_at_us=BEGIN_US)]
        log = CommitLog(self.store, BRANCH)
        for _ in range(count):
            self.extend()
        for obj in self.objects:
            log.put(obj)
        Manifest(self.store, BRANCH).fold(self.objects[:folded], named_through=0)
        self.lineage = Watched(log, Manifest(self.store, BRANCH), lambda: self.newest)
        self.lineage.asked = []

    @property
    def newest(self) -> CommitObject:
        return self.objects[-1]

    def extend(self) -> CommitObject:
        before = self.newest
        at_us = BEGIN_US + before.seq * SECOND_US
        made = Commit(ulid_of(at_us), "Load", "ann", at_us, (PERSON,))
        pin = replace(before.pins[PERSON], version=before.pins[PERSON].version + 1)
        landed = follow(
            before, op_id=f"op-{before.seq + 1}", changed={PERSON: pin}, commits=(made,), finalised_through=0
        )
        self.objects.append(landed)
        return landed

    def id_of(self, seq: int) -> str:
        return self.objects[seq - 1].head


@pytest.fixture
def line(disk: Root) -> Line:
    return Line(Path(disk.uri), 30, folded=25)


def remembering(line: Line, size: int) -> RecentCommits:
    """What an owner remembers whose clock is right."""
    return RecentCommits(line.lineage, line.newest, size=size, now_us=lambda: NOW_US)


def test_a_window_holds_the_newest_commits_however_many_there_are(line: Line) -> None:
    recent = remembering(line, 8)
    assert len(recent) == 8
    known = recent.known({line.id_of(seq): False for seq in range(24, 32)}, line.newest)
    assert set(known) == {line.id_of(seq) for seq in range(24, 32)}
    assert {found.entry.seq for found in known.values()} == set(range(24, 32))


@pytest.mark.parametrize("seq", [2, 20, 27, 31])
def test_a_commit_is_known_with_its_versions_wherever_it_lies(line: Line, seq: int) -> None:
    recent = remembering(line, 8)
    (found,) = recent.known({line.id_of(seq): False, new_ulid(): True}, line.newest).values()
    assert (found.entry.seq, found.versions) == (seq, {PERSON: seq})


def test_all_ids_of_a_round_are_looked_up_at_once_and_those_that_are_certainly_new_not_at_all(line: Line) -> None:
    recent = remembering(line, 8)
    old, chosen, fresh = line.id_of(3), ulid_of(BEGIN_US + 90 * SECOND_US), ulid_of(BEGIN_US + 91 * SECOND_US)
    found = recent.known({old: False, chosen: False, fresh: True, line.id_of(30): True}, line.newest)
    assert set(found) == {old, line.id_of(30)}
    assert line.lineage.asked == [{old, chosen, line.id_of(30)}]


def test_an_id_from_before_the_window_is_looked_up_even_if_it_is_called_fresh(line: Line) -> None:
    """A client that is wrong about it would otherwise have its write applied twice."""
    recent = remembering(line, 8)
    assert set(recent.known({line.id_of(3): True}, line.newest)) == {line.id_of(3)}


def remembering_others_than(line: Line, commit_id: str) -> RecentCommits:
    """What an owner remembers after it has forgotten this one, which has landed."""
    before = line.newest
    made = replace(before.commits[0], commit_id=commit_id)
    line.objects.append(follow(before, op_id="op-ahead", changed={}, commits=(made,), finalised_through=0))
    recent = remembering(line, 4)
    for _ in range(5):
        recent.advance(line.extend())
    for obj in line.objects[-6:]:
        CommitLog(line.store, BRANCH).put(obj)
    return recent


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("ahead_s", [20, 10**6])
@pytest.mark.parametrize("guarded", [True, False])
def test_the_id_of_a_clock_that_is_ahead_is_looked_up_even_if_it_is_called_fresh(
    line: Line, monkeypatch: pytest.MonkeyPatch, guarded: bool, ahead_s: int, fresh: bool
) -> None:
    """Its time is later than all that is remembered, although it was forgotten: the write would be applied twice.

    The twin believes every clock: then only what the client says tells it from a new one.
    """
    ahead = ulid_of(line.newest.head_at_us + ahead_s * SECOND_US)
    recent = remembering_others_than(line, ahead)
    if not guarded:
        monkeypatch.setattr(recent_commits, "SKEW_US_MAX", 2**62)
        monkeypatch.setattr(recent, "_forgotten_us", 0)
    assert (ahead in recent.known({ahead: fresh}, line.newest)) == (guarded or not fresh)


def test_the_id_of_a_clock_that_was_far_ahead_has_no_other_ids_looked_up(line: Line) -> None:
    recent = remembering_others_than(line, ulid_of(BEGIN_US + 10**6 * SECOND_US))
    assert recent.known({ulid_of(NOW_US): True}, line.newest) == {}
    assert line.lineage.asked == []


def test_what_lands_is_known_and_the_oldest_is_forgotten_but_found(line: Line) -> None:
    recent = remembering(line, 4)
    landed = [line.extend() for _ in range(6)]
    for obj in landed:
        CommitLog(line.store, BRANCH).put(obj)
        recent.advance(obj)
    assert len(recent) == 4
    assert all(recent.is_committed(obj.head, line.newest) for obj in landed)
    assert line.lineage.asked == [{landed[0].head}, {landed[1].head}]
    assert not recent.is_committed(new_ulid(), line.newest)


def test_a_window_that_holds_the_whole_history_looks_nothing_up(line: Line) -> None:
    recent = remembering(line, 31)
    assert recent.known({new_ulid(): False, ulid_of(0): False}, line.newest) == {}
    assert not recent.is_committed(new_ulid(), line.newest)
    assert line.lineage.asked == []
    recent.advance(line.extend())  # and so one commit is forgotten
    CommitLog(line.store, BRANCH).put(line.newest)
    assert set(recent.known({line.id_of(2): False, birth().head: False}, line.newest)) == {line.id_of(2), birth().head}


def test_an_id_that_is_remembered_and_not_found_is_refused_rather_than_taken_for_new(line: Line) -> None:
    recent = remembering(line, 8)
    with pytest.raises(StorageError, match="known and not in the lineage"):
        recent.known({line.id_of(31): False}, line.objects[-2])


@pytest.mark.parametrize(("folded", "looks"), [(31, []), (28, []), (27, [1]), (0, [1])])
def test_new_ids_take_no_look_at_the_line_once_what_is_forgotten_is_folded(
    disk: Root, folded: int, looks: list[int]
) -> None:
    """The window of 4 knows all above 28. A manifest that is not folded so far says nothing of what lies between."""
    line = Line(Path(disk.uri), 30, folded=folded)
    recent = remembering(line, 4)
    assert recent.known({new_ulid(): False}, line.newest) == {}
    assert [len(asked) for asked in line.lineage.asked] == looks


@pytest.mark.parametrize("guarded", [True, False])
def test_an_id_between_what_is_folded_and_what_is_remembered_is_found(
    disk: Root, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The twin does not ask how far the manifest is folded: a commit that only the line holds is taken for new."""
    line = Line(Path(disk.uri), 30, folded=20)
    recent = remembering(line, 4)
    if not guarded:
        are_new = line.lineage.are_new
        monkeypatch.setattr(line.lineage, "are_new", lambda ids, known_above: are_new(ids, 0))
    assert bool(recent.known({line.id_of(24): False}, line.newest)) == guarded


def test_the_time_of_an_id(line: Line) -> None:
    assert time_us_of(line.id_of(2)) == BEGIN_US + SECOND_US
    assert time_us_of("commit-000001") == 0
