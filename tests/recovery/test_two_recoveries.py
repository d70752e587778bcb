"""Recoveries of the same operations at once, by processes and by threads: one row each, and nothing lost.

`OMNIRAY_TORTURE=1` runs many rounds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from omniray.engine.base.failpoints import Point
from omniray.engine.history import audit
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from tests.foreign import plain_ids
from tests.graphs import create_store, parts_of
from tests.healing import processes_on, recovered, staged_versions, wounds
from tests.recovery.writers import END_TIMEOUT_S, Child, forking, leave, recover_together
from tests.stores import Root

TORTURE = "OMNIRAY_TORTURE" in os.environ
ROUNDS = 50 if TORTURE else 3

pytestmark = pytest.mark.timeout(3600 if TORTURE else 180)

# By where a process died: whether its write is committed.
LEFT = {
    Point.A_AFTER_SIDECAR: False,
    Point.C_BEFORE_PUT: False,
    Point.C_AFTER_PUT: True,
    Point.D_AFTER_NAME: True,
    Point.D_BEFORE_SIDECARS: True,
}


def left_behind(root: Root, points: Iterable[Point] = LEFT) -> ObjectStore:
    """A graph on which a process has died at each of several points."""
    store = create_store(root)
    for point in points:
        leave(store, point, str(point))
    return store


def check(store: ObjectStore, points: Collection[Point] = LEFT) -> None:
    """Every operation is finished or cleared away, and told of once."""
    committed = sorted(str(point) for point in points if LEFT[point])
    rows = audit.recorded(store)
    assert len(rows) == len({row.operation_id for row in rows}) == len(points)
    assert [row.recovery_kind for row in rows].count("RolledForward") == len(committed)
    parts = parts_of(store)
    told = [one.operation_id for obj in parts.line() for one in obj.recoveries]
    assert sorted(told) == sorted(row.operation_id for row in rows), "the line tells of each once, too"
    assert list(store.names("__recovery")) == []
    assert staged_versions(store) == staged_versions(store, "nodes/City.lance") == []
    assert plain_ids(store) == plain_ids(store, "nodes/City.lance") == parts.rows() == committed
    assert wounds(store) == []


def roots(disk: Root) -> Iterator[Root]:
    for number in range(ROUNDS):
        yield Root(f"{disk.uri}/{number}", {})


@contextmanager
def processes(count: int) -> Iterator[Sequence[Child]]:
    barrier = forking.Barrier(count)
    children = [Child(recover_together, barrier) for _ in range(count)]
    try:
        yield children
    finally:
        assert [child.end() for child in children] == [0] * count


@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_recover_the_same_operations_at_once(disk: Root, count: int) -> None:
    with processes(count) as children:
        for root in roots(disk):
            store = left_behind(root)
            for child in children:
                child.pipe.send(root)
            assert [child.pipe.recv() for child in children] == [len(LEFT)] * count, "each sees all of them"
            check(store)


@pytest.mark.parametrize("count", [2, 4])
def test_threads_that_recover_the_same_operations_at_once(disk: Root, count: int) -> None:
    for root in roots(disk):
        store = left_behind(root)
        assert len(recover_in_threads(store, count)) == count, "none of them failed"
        check(store)


def recover_in_threads(store: ObjectStore, count: int) -> list[RecoveryReport]:
    together = threading.Barrier(count)
    reports: list[RecoveryReport] = []

    def recover() -> None:
        with processes_on(store) as opened:
            healer = opened()
            together.wait(END_TIMEOUT_S)
            reports.append(recovered(healer))

    threads = [threading.Thread(target=recover) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


def test_recoveries_at_once_on_s3(s3: Root) -> None:
    points = (Point.C_BEFORE_PUT, Point.C_AFTER_PUT)
    store = left_behind(s3, points)
    with processes(2) as children:
        for child in children:
            child.pipe.send(s3)
        assert [child.pipe.recv() for child in children] == [len(points)] * 2
    check(store, points)
