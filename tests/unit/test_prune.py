"""Old objects of a line are pruned: only those that nobody needs, and without misleading anybody who comes late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import omniray
from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import HINT, CommitLog
from omniray.engine.line.commit_object import Commit, CommitObject, Fate, follow
from omniray.engine.line.line_end import RETENTION_S, Tip
from omniray.engine.line.prune import prune
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import ObjectStore, StoredFile
from omniray.engine.store.open_store import open_store
from tests.graphs import Clock, create_store, insert, main_of, parts_of, people
from tests.lines import BRANCH, birth
from tests.stores import Root

FOLDER = f"__commits/{BRANCH.ulid}"
LONG_AFTER_US = time.time_ns() // 1000 + int((RETENTION_S + 24 * 3600) * 1e6)


def extend(log: CommitLog, count: int) -> CommitObject:
    """Put so many objects on top of what is there."""
    newest = log.newest_listed()
    for _ in range(count):
        if newest is None:
            newest = birth()
        else:
            newest = follow(newest, op_id=f"op-{newest.seq + 1}", changed={}, commits=(), finalised_through=0)
        log.put(newest)
        log.hint(newest)
    assert newest is not None
    return newest


def numbers(store: ObjectStore, branch: BranchId = BRANCH) -> list[int]:
    """The numbers that have an object, oldest first."""
    names = store.names(f"__commits/{branch.ulid}")
    return sorted(2**64 - 1 - int(name[:20]) for name in names if name != HINT)


class Spy(DirectoryStore):
    """Notes what it is asked for, and may be told to fail at a delete."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[StoredFile] = []
        self.deleted: list[str] = []
        self.deletes_left: int | None = None
        self.looks = 0

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        self.looks += 1
        for file in super().files(folder, after=after):
            self.listed.append(file)
            yield file

    def delete(self, path: str) -> None:
        if self.deletes_left == 0:
            raise StorageError("killed")
        if self.deletes_left is not None:
            self.deletes_left -= 1
        self.deleted.append(path)
        super().delete(path)


class InOrder(Spy):
    """Lists from any name on with one cheap request, as S3 does."""

    lists_newest_first = True


@pytest.fixture
def store(any_root: Root) -> ObjectStore:
    return open_store(f"{any_root.uri}/graph", any_root.storage_options)


@pytest.fixture
def spy(disk: Root) -> Spy:
    return Spy(Path(disk.uri))


def test_what_is_folded_old_and_behind_the_newest_goes_and_the_first_object_stays(store: ObjectStore) -> None:
    log = CommitLog(store, BRANCH)
    newest = extend(log, 12)
    assert prune(store, log, newest, 12, now_us=LONG_AFTER_US, keep=4) == 7
    assert numbers(store) == [1, 9, 10, 11, 12]
    assert CommitLog(store, BRANCH).newest() == newest
    assert [obj.seq for obj in CommitLog(store, BRANCH).down_to(newest, 1)] == [12, 11, 10, 9]
    assert prune(store, log, newest, 12, now_us=LONG_AFTER_US, keep=4) == 0


def test_an_object_that_is_not_folded_stays(store: ObjectStore) -> None:
    log = CommitLog(store, BRANCH)
    prune(store, log, extend(log, 12), 5, now_us=LONG_AFTER_US, keep=4)
    assert numbers(store) == [1, *range(6, 13)]


def test_an_object_that_is_younger_than_the_retention_stays(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    newest = extend(log, 12)
    aged(spy, log, 12, old_through=6)
    prune(spy, log, newest, 12, now_us=NOW_US, keep=1)
    assert numbers(spy) == [1, *range(7, 13)]


NOW_US = 10**15


def aged(store: Spy, log: CommitLog, newest: int, old_through: int) -> None:
    """Date the objects that are there, so that those up to a number are older than the retention."""
    for seq in range(1, newest + 1):
        if (path := store.root / log.path(seq)).exists():
            age_us = int(RETENTION_S * 1e6) + (old_through - seq) * 1_000_000 + 500_000
            os.utime(path, ns=(0, (NOW_US - age_us) * 1000))


@pytest.mark.parametrize("old_through", [0, 1, 2, 3, 31, 32, 57, 96, 97, 100])
@pytest.mark.parametrize("pruned", [0, 1, 20])
def test_where_listing_is_in_order_only_what_goes_is_listed(disk: Root, old_through: int, pruned: int) -> None:
    store = InOrder(Path(disk.uri))
    log = CommitLog(store, BRANCH)
    newest = extend(log, 100)
    store.delete_all([log.path(seq) for seq in range(2, 2 + pruned)])
    aged(store, log, 100, old_through)
    before, expected = numbers(store), {seq for seq in range(2 + pruned, 97) if seq <= old_through}
    assert prune(store, log, newest, 100, now_us=NOW_US, keep=4) == len(expected)
    assert set(before) - set(numbers(store)) == expected
    assert store.looks <= 9
    assert len(store.listed) <= len(expected) + store.looks + 1


def test_where_listing_is_in_order_what_is_not_folded_stays(disk: Root) -> None:
    store = InOrder(Path(disk.uri))
    log = CommitLog(store, BRANCH)
    prune(store, log, extend(log, 40), 17, now_us=LONG_AFTER_US, keep=4)
    assert numbers(store) == [1, *range(18, 41)]


def test_a_young_stray_among_pruned_numbers_costs_time_and_nothing_else(disk: Root) -> None:
    store = InOrder(Path(disk.uri))
    log = CommitLog(store, BRANCH)
    newest = extend(log, 40)
    prune(store, log, newest, 20, now_us=LONG_AFTER_US, keep=4)
    aged(store, log, 40, 30)
    store.put(log.path(9), encode(replace(newest, seq=9, op_id="stray")))
    stray_us = time.time_ns() // 1000
    os.utime(store.root / log.path(9), ns=(0, stray_us * 1000))
    prune(store, log, newest, 40, now_us=NOW_US, keep=4)
    assert [seq for seq in numbers(store) if seq > 30] == list(range(31, 41))
    assert 9 in numbers(store)
    prune(store, log, newest, 40, now_us=stray_us + int(2 * RETENTION_S * 1e6), keep=4)
    assert numbers(store) == [1, 37, 38, 39, 40]


def test_a_short_line_is_not_even_listed(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    assert prune(spy, log, extend(log, 12), 12, now_us=LONG_AFTER_US, keep=12) == 0
    assert spy.listed == []


def test_only_what_lies_behind_the_newest_is_listed(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    prune(spy, log, extend(log, 12), 12, now_us=LONG_AFTER_US, keep=9)
    objects = [file.path for file in spy.listed if not file.path.endswith(HINT)]
    assert objects == [log.path(seq) for seq in (3, 2, 1)]


def test_the_oldest_go_first_so_that_a_kill_leaves_no_hole(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    newest = extend(log, 12)
    spy.deletes_left = 3
    with pytest.raises(StorageError, match="killed"):
        prune(spy, log, newest, 12, now_us=LONG_AFTER_US, keep=4)
    assert numbers(spy) == [1, *range(5, 13)]
    spy.deletes_left = None
    prune(spy, log, newest, 12, now_us=LONG_AFTER_US, keep=4)
    assert numbers(spy) == [1, 9, 10, 11, 12]


def test_objects_below_a_hole_are_left_out_by_readers_and_pruned_the_next_time(store: ObjectStore) -> None:
    """S3 deletes the objects of one request in an order of its own, and may be cut short."""
    log = CommitLog(store, BRANCH)
    newest = extend(log, 12)
    store.delete_all([log.path(5), log.path(7)])
    reader = CommitLog(store, BRANCH)
    assert [obj.seq for obj in reader.down_to(newest, 1)] == [12, 11, 10, 9, 8]
    prune(store, log, newest, 12, now_us=LONG_AFTER_US, keep=4)
    assert numbers(store) == [1, 9, 10, 11, 12]


def test_what_is_no_object_of_the_line_stays(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    newest = extend(log, 16)  # the sixteenth leaves a hint
    spy.put(f"{FOLDER}/notes.json", b"")
    prune(spy, log, newest, 16, now_us=LONG_AFTER_US, keep=1)
    assert list(spy.names(FOLDER)) == [Path(log.path(seq)).name for seq in (16, 1)] + [HINT, "notes.json"]


def test_a_hint_that_points_at_what_is_pruned_goes_first(spy: Spy) -> None:
    """A writer slept before it left its hint. A sleeper's stray at that number would pass for the newest object."""
    log = CommitLog(spy, BRANCH)
    newest = extend(log, 40)
    spy.put(f"{FOLDER}/{HINT}", b"16")
    prune(spy, log, newest, 40, now_us=LONG_AFTER_US, keep=4)
    assert spy.deleted[0] == f"{FOLDER}/{HINT}"
    spy.put(log.path(16), encode(replace(newest, seq=16, op_id="stray")))
    assert CommitLog(spy, BRANCH).newest() == newest


def test_a_hint_of_what_stays_is_kept(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    prune(spy, log, extend(log, 40), 40, now_us=LONG_AFTER_US, keep=16)
    assert spy.get(f"{FOLDER}/{HINT}") == b"32"


def test_its_points_are_passed_only_where_something_is_pruned(spy: Spy) -> None:
    log = CommitLog(spy, BRANCH)
    newest = extend(log, 5)
    seen: list[tuple[str, list[int]]] = []
    actions = {
        point: Action(lambda point=point: seen.append((point.value, numbers(spy))))
        for point in (Point.D_BEFORE_PRUNE, Point.D_AFTER_PRUNE)
    }
    with armed(actions):
        prune(spy, log, newest, 5, now_us=LONG_AFTER_US, keep=5)
        prune(spy, log, newest, 5, now_us=LONG_AFTER_US, keep=3)
    assert seen == [("phase_d.before_prune", [1, 2, 3, 4, 5]), ("phase_d.after_prune", [1, 3, 4, 5])]


# What others see of it


def test_history_and_every_old_commit_can_be_read_when_the_line_was_pruned(any_root: Root) -> None:
    names = [f"name-{number}" for number in range(9)]
    store = create_store(any_root)
    with omniray.open(store.uri, storage_options=any_root.storage_options) as graph:
        insert(graph, *names)
        commits = [entry.commit_id for entry in graph.history()]
    branch = main_of(store)
    log = CommitLog(store, branch)
    newest = log.newest_listed()
    assert newest is not None
    prune(store, log, newest, newest.seq, now_us=LONG_AFTER_US, keep=2)
    assert len(numbers(store, branch)) == 3
    with omniray.open(store.uri, storage_options=any_root.storage_options) as graph:
        assert [entry.commit_id for entry in graph.history()] == commits
        at = [people(graph.snapshot(at=commit_id)) for commit_id in reversed(commits)]
        assert at == [names[:count] for count in range(len(names) + 1)]
        insert(graph, "one more")
        assert people(graph) == [*names, "one more"]


@pytest.mark.parametrize(
    ("slept_s", "fate"),
    [
        (RETENTION_S, Fate.LOST),
        (0.0, Fate.LANDED),  # the clock is what tells: without it the stray is believed
    ],
)
def test_a_sleeper_that_puts_a_pruned_number_is_not_told_that_it_committed(
    any_root: Root, slept_s: float, fate: Fate
) -> None:
    store = create_store(any_root)
    parts, branch = parts_of(store), main_of(store)
    clock = Clock()
    sleeper = Tip(
        CommitLog(store, branch),
        parts.newest(),
        is_folded=parts.manifest.is_folded,
        clock=clock,
        sleep=clock.sleep,
    )
    base = sleeper.newest
    log = CommitLog(store, branch)
    newest = extend(log, 6)
    parts.finaliser.notice(newest)
    parts.finaliser.flush()
    prune(store, log, newest, newest.seq, now_us=LONG_AFTER_US, keep=2)
    assert base.seq + 1 not in numbers(store, branch)

    clock.now_s += slept_s
    commit = Commit(new_ulid(), "Mutation", "ann", 0, ())
    ours = follow(base, op_id=new_ulid(), changed={}, commits=(commit,), finalised_through=0)
    assert sleeper.put(ours) is fate
    assert base.seq + 1 in numbers(store, branch)  # as a stray
    assert CommitLog(store, branch).newest_listed() == newest
    if fate is Fate.LOST:
        assert sleeper.refresh() == newest
    parts.close()
