"""Sidecars: what is written of an operation, and every way in which writing, reading and deleting it can fail."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from ulid import ULID

import omniray
from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Point
from omniray.engine.base.process import Process
from omniray.engine.commit.attempt import Attempts
from omniray.engine.history import manifest
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.sidecar import FOLDER, UNREADABLE, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.recovery.recoverer import SETTLED_S
from omniray.engine.store.object_store import ObjectStore
from tests.graphs import Parts, insert, parts_of, people
from tests.healing import add, left_by, outcomes, recovered, staged_versions
from tests.kit.faulty_store import CallFault, Effect, FaultyStore

DIED_BEFORE, DIED_AFTER = Point.C_BEFORE_PUT, Point.C_AFTER_PUT
PUT_TRIES = 4


ONE = Sidecar(
    operation_id="01J00000000000000000000001",
    kind="Load",
    line="01J0000000000000000000000M",
    epoch=7,
    owner=EMBEDDED,
    process=Process("host", 17, "4711"),
    created_at_us=1_700_000_000_000_000,
    intents=(SidecarIntent("01J00000000000000000000002", "ann"), SidecarIntent("01J00000000000000000000003", "bob")),
    tables=(SidecarTable("node:Person", "nodes/Person.lance", 3, "transaction", files=("a.lance", "b.lance")),),
)


def test_a_sidecar_is_json_that_says_who_is_about_to_do_what(store: ObjectStore) -> None:
    Sidecars(store).put(ONE)
    data = store.get(f"{FOLDER}/{ONE.operation_id}.json")
    assert data is not None
    assert json.loads(data) == {
        "operation_id": ONE.operation_id,
        "kind": "Load",
        "line": "01J0000000000000000000000M",
        "epoch": 7,
        "owner": "embedded",
        "process": {"host": "host", "pid": 17, "started": "4711"},
        "created_at_us": 1_700_000_000_000_000,
        "intents": [
            {"commit_id": "01J00000000000000000000002", "actor": "ann"},
            {"commit_id": "01J00000000000000000000003", "actor": "bob"},
        ],
        "tables": [
            {
                "table_key": "node:Person",
                "table_path": "nodes/Person.lance",
                "expected_version": 3,
                "transaction_uuid": "transaction",
                "files": ["a.lance", "b.lance"],
            }
        ],
        "format": 2,
    }
    assert Sidecars(store).read(ONE.operation_id) == ONE


def test_a_sidecar_names_its_actors_once_each() -> None:
    again = replace(ONE, intents=(*ONE.intents, SidecarIntent("01J00000000000000000000004", "ann")))
    assert again.actor == "ann, bob"
    assert str(again) == f"Load {ONE.operation_id} of process 17 on host on node:Person"


def test_sidecars_are_listed_oldest_first_and_nothing_else_is(store: ObjectStore) -> None:
    sidecars = Sidecars(store)
    assert sidecars.listed() == []
    names = ["01J00000000000000000000009", "01J00000000000000000000001"]
    for name in names:
        sidecars.put(replace(ONE, operation_id=name))
    for stranger in (
        "notes.txt",
        "a.json",
        "01J0000000000000000000000U.json",
        f"deeper/{names[0]}.json",
    ):
        store.put(f"{FOLDER}/{stranger}", b"")
    assert sidecars.listed() == sorted(names)
    assert [one.operation_id for one in sidecars.read_all(sidecars.listed())] == sorted(names)


def test_a_sidecar_is_read_once_and_forgotten_when_it_is_gone(store: ObjectStore) -> None:
    Sidecars(store).put(ONE)
    watched = FaultyStore(store)
    sidecars = Sidecars(cast(ObjectStore, watched))
    for _ in range(3):
        assert sidecars.read_all(sidecars.listed()) == [ONE]
    assert [call.method for call in watched.calls].count("get") == 1
    sidecars.delete([ONE.operation_id])
    assert sidecars.listed() == []
    assert sidecars.read(ONE.operation_id) is None


def test_a_sidecar_of_our_own_is_not_read(store: ObjectStore) -> None:
    watched = FaultyStore(store)
    sidecars = Sidecars(cast(ObjectStore, watched))
    sidecars.put(ONE)
    assert sidecars.read_all(sidecars.listed()) == [ONE]
    assert "get" not in [call.method for call in watched.calls]


# The faults of sidecar I/O


def faulty(store: ObjectStore, effect: Effect, method: str, path: str = FOLDER, times: int = 1) -> FaultyStore:
    broken = FaultyStore(store)
    broken.arm(CallFault(effect, frozenset({method}), path_contains=path, times=times))
    return broken


def _phase_c_does_not_wait(self: Attempts, sidecar: Sidecar) -> None:
    self._pool.submit(self._branch.sidecars.put, sidecar)


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
        monkeypatch.setattr(Attempts, "_put_sidecar", _phase_c_does_not_wait)
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
        assert staged_versions(store) == staged_versions(store, "nodes/City.lance") == []
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
        omniray.Graph(open_branch(cast(ObjectStore, faulty(store, Effect.FAIL, "names"))), read_only=False)


def test_sidecars_that_can_t_be_listed_fail_the_write_loudly_with_nothing_moved(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(cast(ObjectStore, faulty(store, Effect.FAIL, "names")))
    monkeypatch.setattr(writer.recoverer, "_now", lambda: time.time() + SETTLED_S + 1)
    before = writer.newest()
    with pytest.raises(StorageError, match="was made to fail"):
        add(writer, "ann")
    assert writer.newest() == before
    assert staged_versions(store) == []
    assert writer.sidecars.listed() == []


# Those that can't be read

UNREAD = "01J00000000000000000000000"
BROKEN = [b"not json", b'{"format":2}', b'{"format":1}', b'{"format":3}']


@pytest.mark.parametrize("data", BROKEN)
def test_a_sidecar_that_can_t_be_read_is_moved_aside_loudly_and_blocks_nobody(
    store: ObjectStore, opened: Callable[..., Parts], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    left = left_by(store, DIED_BEFORE)
    store.put(f"{FOLDER}/{UNREAD}.json", data)
    healer = opened()
    with caplog.at_level(logging.ERROR, logger="omniray"):
        assert recovered(healer).rolled_back == (left,)
    (told,) = caplog.messages
    assert told.startswith(f"event=unreadable_sidecar path={FOLDER}/{UNREAD}.json kept_as={UNREADABLE}/{UNREAD}.json")
    assert store.get(f"{UNREADABLE}/{UNREAD}.json") == data
    assert healer.sidecars.listed() == []
    add(healer, "ann")
    assert healer.rows() == ["ann"]


def test_a_graph_with_an_unreadable_sidecar_is_opened_and_written_to(store: ObjectStore) -> None:
    store.put(f"{FOLDER}/{UNREAD}.json", b"not json")
    with omniray.open(store.uri) as graph:
        insert(graph, "ann")
        assert people(graph) == ["ann"]
    assert store.get(f"{UNREADABLE}/{UNREAD}.json") == b"not json"


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "twin"])
def test_who_only_looks_moves_nothing(store: ObjectStore, caplog: pytest.LogCaptureFixture, read_only: bool) -> None:
    """The twin may write, and moves it."""
    store.put(f"{FOLDER}/{UNREAD}.json", b"not json")
    before = list(store.files(""))
    sidecars = Sidecars(store, read_only=read_only)
    with caplog.at_level(logging.ERROR, logger="omniray"):
        assert sidecars.read_all(sidecars.listed()) == []
    assert any("event=unreadable_sidecar" in message for message in caplog.messages), "told all the same"
    assert (list(store.files("")) == before) is read_only


@pytest.mark.parametrize("read_only", [True, False])
def test_since_when_an_operation_is_unreadable_is_known_wherever_its_sidecar_lies(
    store: ObjectStore, read_only: bool
) -> None:
    sidecars = Sidecars(store, read_only=read_only)
    sidecars.put(ONE)
    assert sidecars.unreadable_since_us() is None
    store.put(f"{FOLDER}/{UNREAD}.json", b"not json")
    sidecars.read_all(sidecars.listed())
    assert sidecars.unreadable_since_us() == int(ULID.from_str(UNREAD).milliseconds) * 1000


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
