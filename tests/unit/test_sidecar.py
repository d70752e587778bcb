"""Sidecars: what is written of an operation, and every way in which writing, reading and deleting it can fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

import omniray
from omniray.engine import manifest
from omniray.engine.errors import FormatMismatch, InvariantViolation, StorageError
from omniray.engine.failpoints import Point
from omniray.engine.heal import SETTLED_S
from omniray.engine.line import CommitObject
from omniray.engine.sidecar import FOLDER, Sidecar
from omniray.engine.store import ObjectStore
from omniray.engine.writer import Writer
from tests.faults.store import Effect, FaultyStore, StoreFault
from tests.graphs import Parts, create_store, parts_of
from tests.healing import add, everybody_is_dead, left_by, outcomes, recovered, staging_names
from tests.mortal import bury
from tests.stores import Root

DIED_BEFORE, DIED_AFTER = Point.C_BEFORE_PUT, Point.C_AFTER_PUT
PUT_TRIES = 4


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    return create_store(disk)


@pytest.fixture
def opened(store: ObjectStore) -> Iterator[Callable[..., Parts]]:
    """Opens the graph as one more process, which takes every operation's owner for dead."""
    found: list[Parts] = []

    def open_one(of: ObjectStore = store, **options: Any) -> Parts:
        found.append(parts_of(of, **{"is_dead": everybody_is_dead, **options}))
        return found[-1]

    yield open_one
    for parts in found:
        bury(parts)


# The faults of sidecar I/O


def faulty(store: ObjectStore, effect: Effect, method: str, path: str = FOLDER, times: int = 1) -> FaultyStore:
    broken = FaultyStore(store)
    broken.arm(StoreFault(effect, frozenset({method}), path_contains=path, times=times))
    return broken


def _phase_c_does_not_wait(self: Writer, sidecar: Sidecar) -> None:
    self._pool.submit(self._sidecars.put, sidecar)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
@pytest.mark.parametrize(("effect", "times"), [(Effect.FAIL, 1), (Effect.UNCLEAR, PUT_TRIES)])
def test_a_sidecar_that_can_t_be_put_aborts_the_write_with_nothing_moved(
    store: ObjectStore,
    opened: Callable[..., Parts],
    monkeypatch: pytest.MonkeyPatch,
    effect: Effect,
    times: int,
    has_guard: bool,
) -> None:
    """The twin starts Phase C without waiting for the sidecar: a write lands that nobody could recover."""
    if not has_guard:
        monkeypatch.setattr(Writer, "_announce", _phase_c_does_not_wait)
    writer = opened(cast(ObjectStore, faulty(store, effect, "put_if_absent", times=times)))
    before = writer.newest()
    try:
        add(writer, "ann")
        refused = False
    except StorageError:
        refused = True
    moved_without = writer.newest() != before and writer.sidecars.listed() == []
    assert (refused, moved_without) == (has_guard, not has_guard)
    if has_guard:
        assert staging_names(store) == staging_names(store, "nodes/City") == []
        assert [path for path in store.files("nodes") if "/data/" in path.path] == []
        add(writer, "ann")
        assert writer.rows() == ["ann"]


def test_a_sidecar_whose_put_lost_its_answer_is_known_to_be_there(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    writer = opened(cast(ObjectStore, faulty(store, Effect.LOSE, "put_if_absent")))
    add(writer, "ann")
    assert writer.rows() == ["ann"]


def test_a_sidecar_that_can_t_be_deleted_is_a_warning_and_the_next_heal_consumes_it(
    store: ObjectStore, opened: Callable[..., Parts], caplog: pytest.LogCaptureFixture
) -> None:
    writer = parts_of(cast(ObjectStore, faulty(store, Effect.FAIL, "delete_all")))
    add(writer, "ann")
    with caplog.at_level(logging.WARNING, logger="omniray"):
        writer.close()
    assert any("event=tidy_failed sidecars=1" in message for message in caplog.messages)
    healer = opened()
    (left,) = healer.sidecars.listed()
    assert recovered(healer).rolled_forward == (left,)
    assert healer.sidecars.listed() == []
    assert healer.rows() == ["ann"]


def test_a_recovered_sidecar_that_can_t_be_deleted_is_consumed_by_the_next_heal_and_told_once(
    store: ObjectStore, opened: Callable[..., Parts]
) -> None:
    left = left_by(store, DIED_BEFORE)
    with pytest.raises(StorageError, match="was made to fail"):
        recovered(opened(cast(ObjectStore, faulty(store, Effect.FAIL, "delete_all"))))
    healer = opened()
    assert healer.sidecars.listed() == [left]
    assert recovered(healer).rolled_back == (left,)
    assert list(outcomes(healer)) == [left]
    assert healer.sidecars.listed() == []


def test_sidecars_that_can_t_be_listed_fail_the_open_loudly(store: ObjectStore) -> None:
    with pytest.raises(StorageError, match="was made to fail"):
        omniray.Graph(cast(ObjectStore, faulty(store, Effect.FAIL, "names")), read_only=False)


def test_sidecars_that_can_t_be_listed_fail_the_write_loudly_with_nothing_moved(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(cast(ObjectStore, faulty(store, Effect.FAIL, "names")))
    monkeypatch.setattr(writer.recoverer, "_now", lambda: time.time() + SETTLED_S + 1)
    before = writer.newest()
    with pytest.raises(StorageError, match="was made to fail"):
        add(writer, "ann")
    assert writer.newest() == before
    assert staging_names(store) == []
    assert writer.sidecars.listed() == []


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"not json", InvariantViolation), (b'{"format":1}', InvariantViolation), (b'{"format":2}', FormatMismatch)],
)
def test_a_sidecar_that_can_t_be_read_is_refused_loudly_and_kept(
    store: ObjectStore, opened: Callable[..., Parts], data: bytes, error: type[Exception]
) -> None:
    left, path = left_by(store, DIED_BEFORE), f"{FOLDER}/01J00000000000000000000000.json"
    store.put(path, data)
    before = list(store.files(""))
    with pytest.raises(error, match=path):
        recovered(opened())
    with pytest.raises(error, match=path):
        omniray.open(store.uri)
    assert list(store.files("")) == before
    store.delete(path)
    assert recovered(opened()).rolled_back == (left,)


@pytest.mark.parametrize("point", [DIED_BEFORE, DIED_AFTER])
def test_while_the_audit_can_t_be_written_the_sidecar_stays_and_the_retry_records_exactly_one(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    left = left_by(store, point)

    def down(store: ObjectStore, objects: Sequence[CommitObject]) -> None:
        raise StorageError("the audit is down")

    with monkeypatch.context() as patch:
        patch.setattr(manifest.audit, "record", down)
        for _ in range(2):
            with pytest.raises(StorageError, match="the audit is down"):
                recovered(opened())
    healer = opened()
    assert healer.sidecars.listed() == [left]
    assert len([obj for obj in healer.line() if obj.recoveries]) == 1, "it is in the line, once"
    recovered(healer)
    assert list(outcomes(healer)) == [left]
    assert healer.sidecars.listed() == []
