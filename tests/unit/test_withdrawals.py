"""Writes that were reported as not committed: which of their tries the owner of a line still lets land."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history import withdrawals
from omniray.engine.history.withdrawals import Withdrawals
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, Remark
from omniray.engine.store.object_store import ObjectStore
from tests.coordination import TIMEOUT_S
from tests.graphs import Parts, main_of

WITHDRAWN, OTHER = new_ulid(), new_ulid()


def remarked(parts: Parts, *commit_ids: str) -> CommitObject:
    """Record that writes were reported as not committed."""
    taken = parts.tip.record(lambda newest: Remark(new_ulid(), withdrawn=commit_ids))
    assert taken is not None
    return taken


class _Read(CommitLog):
    """A log that counts the objects that were read."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, main_of(store))
        self.seen: list[int] = []

    def down_to(self, newest: CommitObject, seq: int, *, at_once: int = 1) -> tuple[CommitObject, ...]:
        found = super().down_to(newest, seq, at_once=at_once)
        self.seen += [obj.seq for obj in found[1:]]
        return found


def test_a_try_that_began_before_the_withdrawal_is_void_and_one_that_began_with_it_is_not(
    store: ObjectStore, parts: Parts
) -> None:
    known = Withdrawals(_Read(store), parts.tip.newest)
    before = parts.tip.newest.seq
    taken = remarked(parts, WITHDRAWN)
    known.advance(taken)
    assert known.voids(WITHDRAWN, before)
    assert not known.voids(WITHDRAWN, taken.seq)
    assert not known.voids(WITHDRAWN, taken.seq + 5)
    assert not known.voids(OTHER, before)


def test_of_two_withdrawals_of_a_write_the_later_one_counts(store: ObjectStore, parts: Parts) -> None:
    known = Withdrawals(_Read(store), parts.tip.newest)
    first, second = (remarked(parts, WITHDRAWN) for _ in range(2))
    for taken in (second, first):
        known.advance(taken)
    assert known.voids(WITHDRAWN, first.seq)
    assert not known.voids(WITHDRAWN, second.seq)


def test_a_try_that_does_not_say_when_it_began_does_not_land_after_a_withdrawal(
    store: ObjectStore, parts: Parts
) -> None:
    known = Withdrawals(_Read(store), parts.tip.newest)
    assert not known.voids(WITHDRAWN, 0)
    known.advance(remarked(parts, WITHDRAWN))
    assert known.voids(WITHDRAWN, 0)
    assert not known.voids(OTHER, 0)


def test_the_withdrawal_in_the_newest_object_is_known_from_the_start(store: ObjectStore, parts: Parts) -> None:
    taken = remarked(parts, WITHDRAWN)
    assert Withdrawals(_Read(store), taken).voids(WITHDRAWN, taken.seq - 1)


def test_what_an_earlier_owner_recorded_is_read_down_to_the_oldest_try_and_no_further(
    store: ObjectStore, parts: Parts
) -> None:
    began = parts.tip.newest.seq
    taken = remarked(parts, WITHDRAWN)
    for _ in range(3):
        remarked(parts)
    log = _Read(store)
    known = Withdrawals(log, parts.tip.newest)
    known.look_back(began)
    assert log.seen == [taken.seq + 2, taken.seq + 1, taken.seq]
    assert known.voids(WITHDRAWN, began)
    assert not known.voids(OTHER, began)
    known.look_back(began)
    known.look_back(taken.seq)
    assert len(log.seen) == 3, "what was read is not read again"


@pytest.mark.parametrize("began", [0, 10**9])
def test_nothing_is_read_for_a_try_that_does_not_say_when_it_began_or_began_just_now(
    store: ObjectStore, parts: Parts, began: int
) -> None:
    remarked(parts)
    log = _Read(store)
    known = Withdrawals(log, parts.tip.newest)
    known.look_back(began)
    known.look_back(parts.tip.newest.seq)
    assert log.seen == []


def test_a_try_of_which_too_much_time_has_passed_is_void_and_nothing_is_read_for_it(
    store: ObjectStore, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client must not hold up all others, neither with one old try nor with many."""
    monkeypatch.setattr(withdrawals, "LOOK_BACK_MAX", 3)
    began = parts.tip.newest.seq
    for _ in range(8):
        remarked(parts)
    newest = parts.tip.newest.seq
    log = _Read(store)
    known = Withdrawals(log, parts.tip.newest)
    known.look_back(began, newest - 5, 0)
    assert log.seen == []
    assert known.voids(OTHER, began)
    assert known.voids(OTHER, newest - 5)
    for _ in range(3):
        known.look_back(began, newest - 4)
    assert log.seen == [newest - 1, newest - 2, newest - 3]
    assert known.voids(OTHER, newest - 5)
    assert not known.voids(OTHER, newest - 4), "all that followed it was read"


@dataclass
class _Far:
    """A store as if it were remote; two of its objects must be asked for at the same time."""

    inner: ObjectStore
    asked: list[str] = field(default_factory=list)
    two: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=TIMEOUT_S))
    local_root: None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, path: str) -> bytes | None:
        self.asked.append(path)
        self.two.wait()
        return self.inner.get(path)


@pytest.mark.parametrize("missing", [False, True])
def test_objects_of_a_remote_line_are_read_at_once_and_each_only_once(
    store: ObjectStore, parts: Parts, missing: bool
) -> None:
    began = parts.tip.newest.seq
    taken = [remarked(parts, WITHDRAWN).seq for _ in range(9)]
    far: Any = _Far(store)
    log = CommitLog(far, main_of(store))
    if missing:
        store.delete(log.path(taken[3]))
    known = Withdrawals(log, parts.tip.newest)
    for _ in range(3):
        known.look_back(began)
    asked = set(far.asked)
    assert len(asked) == len(far.asked)
    assert asked <= set(map(log.path, taken[:-1]))
    assert missing or len(asked) == len(taken) - 1
    assert known.voids(OTHER, began) == missing


def test_a_try_that_began_in_a_part_of_the_line_that_was_pruned_is_void(store: ObjectStore, parts: Parts) -> None:
    began = parts.tip.newest.seq
    for _ in range(4):
        remarked(parts)
    newest = parts.tip.newest.seq
    log = _Read(store)
    store.delete(log.path(newest - 2))
    known = Withdrawals(log, parts.tip.newest)
    known.look_back(began)
    assert log.seen == [newest - 1]
    assert known.voids(OTHER, began)
    assert not known.voids(OTHER, newest - 2)


def test_a_store_that_fails_is_an_error_and_not_a_line_without_withdrawals(
    store: ObjectStore, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = parts.tip.newest.seq
    remarked(parts, WITHDRAWN)
    remarked(parts)
    log: Any = _Read(store)

    def fail(*_: object) -> None:
        raise StorageError("503 SlowDown")

    known = Withdrawals(log, parts.tip.newest)
    with monkeypatch.context() as failing:
        failing.setattr(log, "read", fail)
        with pytest.raises(StorageError):
            known.look_back(began)
    known.look_back(began)
    assert known.voids(WITHDRAWN, began)
