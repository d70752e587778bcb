"""The line in a store: where the newest object is found, what a put answers, and what strays can't do."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from omniray.engine.base.errors import FormatMismatch, InvariantViolation
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import CACHE_OBJECTS_MAX, HINT, HINT_EVERY, PROBES_MAX, CommitLog
from omniray.engine.line.commit_object import FORMAT, CommitObject, before_first, follow
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.lines import BRANCH, SCHEMA
from tests.lines import birth as first
from tests.stores import Root

FOLDER = f"__commits/{BRANCH.ulid}"


def next_after(obj: CommitObject) -> CommitObject:
    return follow(obj, op_id=f"op-{obj.seq + 1}", changed={}, commits=(), finalised_through=0)


def extend(log: CommitLog, count: int) -> CommitObject:
    """Put so many objects on top of what is there, with hints."""
    newest = log.newest()
    for _ in range(count):
        newest = next_after(newest) if newest is not None else first()
        assert log.put(newest) is Answer.CREATED
        log.hint(newest)
    assert newest is not None
    return newest


@pytest.fixture
def store(any_root: Root) -> ObjectStore:
    return open_store(f"{any_root.uri}/graph", any_root.storage_options)


@pytest.fixture
def directory(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


def test_where_no_line_was_born_there_is_no_newest(store: ObjectStore) -> None:
    log = CommitLog(store, BRANCH)
    assert log.newest() is None
    assert log.newest_listed() is None


def test_the_newest_object_is_found_by_everybody_and_the_line_read_down_from_it(store: ObjectStore) -> None:
    newest = extend(CommitLog(store, BRANCH), 5)
    other = CommitLog(store, BRANCH)
    assert other.newest() == other.newest_listed() == other.newest_from(first()) == newest
    assert [obj.seq for obj in other.down_to(newest, 3)] == [5, 4, 3]
    assert [obj.seq for obj in other.down_to(newest, 0)] == [5, 4, 3, 2, 1]


def test_a_number_is_given_once(store: ObjectStore) -> None:
    newest = extend(CommitLog(store, BRANCH), 1)
    ours, theirs = next_after(newest), replace(next_after(newest), op_id="theirs")
    assert CommitLog(store, BRANCH).put(theirs) is Answer.CREATED
    log = CommitLog(store, BRANCH)
    assert log.put(ours) is Answer.REFUSED
    assert log.read(2) == theirs


def test_newer_objects_have_smaller_names_of_twenty_digits(directory: DirectoryStore) -> None:
    log = CommitLog(directory, BRANCH)
    assert log.path(1) == f"{FOLDER}/18446744073709551614.json"
    assert log.path(2) < log.path(1)
    assert len(Path(log.path(2**63)).stem) == 20


def test_a_namesake_of_another_time_has_a_line_of_its_own(directory: DirectoryStore) -> None:
    extend(CommitLog(directory, BRANCH), 2)
    assert CommitLog(directory, BranchId(BRANCH.name, "01M0000000000000000000THEN")).newest() is None


# A disk's hint


def test_a_reader_of_a_disk_starts_at_the_hint_and_probes_upward(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = extend(CommitLog(directory, BRANCH), HINT_EVERY + 3)
    assert directory.get(f"{FOLDER}/{HINT}") == str(HINT_EVERY).encode()
    monkeypatch.setattr(directory, "names", lambda folder: pytest.fail("the folder was listed"))
    assert CommitLog(directory, BRANCH).newest() == newest


@pytest.mark.parametrize("hint", [None, b"", b"half\xff", b"999", b"-1"])
def test_a_hint_that_is_missing_broken_or_wrong_costs_a_listing_and_nothing_else(
    directory: DirectoryStore, hint: bytes | None
) -> None:
    newest = extend(CommitLog(directory, BRANCH), HINT_EVERY)
    if hint is None:
        directory.delete(f"{FOLDER}/{HINT}")
    else:
        directory.put(f"{FOLDER}/{HINT}", hint)
    assert CommitLog(directory, BRANCH).newest() == newest


def test_a_hint_that_can_t_be_left_is_no_failure(directory: DirectoryStore) -> None:
    log = CommitLog(directory, BRANCH)
    newest = extend(log, HINT_EVERY - 1)
    (directory.root / FOLDER / HINT).mkdir()
    assert log.put(next_after(newest)) is Answer.CREATED
    log.hint(next_after(newest))


# Whoever knows an object


@pytest.fixture
def listing(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """A store that lists its newest object first, as S3 does."""
    monkeypatch.setattr(directory, "lists_newest_first", True)
    return directory


@pytest.mark.parametrize("ahead", [0, 1, PROBES_MAX - 1])
def test_a_reader_that_knows_an_object_probes_the_numbers_above_and_lists_nothing(
    listing: DirectoryStore, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A listing has no limit: on S3 it is a page of a thousand names, in each refresh of each writer."""
    newest = extend(CommitLog(listing, BRANCH), 1 + ahead)
    monkeypatch.setattr(listing, "first_name", lambda folder: pytest.fail("the folder was listed"))
    assert CommitLog(listing, BRANCH).newest_from(first()) == newest


def test_a_reader_that_is_far_behind_probes_a_few_numbers_and_then_lists(
    listing: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes come one after another: a reader that is a thousand commits behind would wait for a thousand of them."""
    newest = extend(CommitLog(listing, BRANCH), 3 * PROBES_MAX)
    get, read = listing.get, list[str]()
    monkeypatch.setattr(listing, "get", lambda path: (read.append(path), get(path))[1])
    assert CommitLog(listing, BRANCH).newest_from(first()) == newest
    assert len(read) == PROBES_MAX + 1


# Strays


def test_a_stray_at_a_pruned_number_is_not_read_as_the_line(directory: DirectoryStore) -> None:
    """A sleeper put the number after one that it remembers; all of them were pruned meanwhile."""
    log = CommitLog(directory, BRANCH)
    newest = extend(log, 9)
    for seq in range(1, 6):
        directory.delete(log.path(seq))
    stray = replace(next_after(first()), seq=5, op_id="stray")
    assert CommitLog(directory, BRANCH).put(stray) is Answer.CREATED
    reader = CommitLog(directory, BRANCH)
    assert [obj.op_id for obj in reader.down_to(newest, 1)] == ["op-9", "op-8", "op-7", "op-6"]
    assert reader.newest_listed() == newest


def test_objects_that_were_read_are_kept_and_only_so_many_of_them(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(directory, BRANCH)
    newest = extend(log, 3)
    assert log.read(2) is log.read(2)
    for seq in range(10, 10 + CACHE_OBJECTS_MAX):
        log.keep(replace(newest, seq=seq))
    assert len(log._cache) == CACHE_OBJECTS_MAX
    assert log.read(3) == newest


def test_threads_may_read_at_once_when_no_more_objects_can_be_kept(directory: DirectoryStore) -> None:
    log, obj = CommitLog(directory, BRANCH), first()

    def keep(thread: int) -> None:
        for number in range(4000):
            log.keep(replace(obj, seq=thread * 10_000 + number))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(keep, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(log._cache) == CACHE_OBJECTS_MAX


# What is no object of ours


def test_an_object_of_another_format_stops_the_reader(directory: DirectoryStore) -> None:
    log = CommitLog(directory, BRANCH)
    newest = extend(log, 1)
    directory.put(log.path(2), encode(replace(next_after(newest), format=FORMAT + 1)))
    with pytest.raises(FormatMismatch, match="upgrade omniray"):
        log.newest()


def test_an_object_that_can_t_be_read_stops_the_reader_and_is_kept(directory: DirectoryStore) -> None:
    log = CommitLog(directory, BRANCH)
    extend(log, 1)
    directory.put(log.path(2), b"{")
    with pytest.raises(InvariantViolation, match="not a commit object"):
        log.newest()
    assert directory.get(log.path(2)) == b"{"


# What was copied by hand


def elsewhere(directory: DirectoryStore) -> CommitLog:
    """A line beside the first one, with one object of its own."""
    log = CommitLog(directory, BranchId("trial", "01M0000000000000000000TRIAL"[:26]))
    nothing_yet = before_first(log.branch.ulid, SCHEMA)
    log.put(follow(nothing_yet, op_id="op-1", changed={}, commits=(), finalised_through=0))
    return log


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_an_object_in_another_line_s_folder_is_refused(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin reads it as the newest of the line, with pins of the other."""
    if not has_guard:
        monkeypatch.setattr(CommitLog, "_checked", lambda self, obj, seq: obj)
    log, other = CommitLog(directory, BRANCH), elsewhere(directory)
    copied = encode(extend(log, 2))
    directory.put(other.path(2), copied)
    if has_guard:
        with pytest.raises(InvariantViolation, match=f"object 2 of line {BRANCH.ulid}; if it was copied there by hand"):
            other.newest()
        assert directory.get(other.path(2)) == copied
    else:
        assert other.newest() == log.newest()


def test_an_object_under_another_number_is_refused(directory: DirectoryStore) -> None:
    log = CommitLog(directory, BRANCH)
    directory.put(log.path(3), encode(extend(log, 2)))
    with pytest.raises(InvariantViolation, match="holds object 2"):
        CommitLog(directory, BRANCH).newest()
