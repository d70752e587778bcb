"""The incarnations of a publisher without Ray: how one follows another, what each leaves, how the last one ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omniray.coordinator.actors import incarnations as incarnations_module
from omniray.coordinator.actors import line_service
from omniray.coordinator.actors.cluster import Storage
from omniray.coordinator.actors.incarnations import HasLeft, Incarnations
from omniray.coordinator.door.calls import RepairTerms
from omniray.coordinator.door.record import FOLDER, find_door, path_of
from omniray.engine.base.errors import (
    Fenced,
    GraphGone,
    InputError,
    LineOwned,
    OmnirayError,
    OutcomeUnknown,
    StorageError,
    Unreachable,
)
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import DOOR, EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.recovery.recoverer import GRACE_S
from omniray.engine.store import directory
from omniray.engine.store.object_store import ObjectStore
from tests import foreign
from tests.coordination import TIMEOUT_S, Sender
from tests.graphs import PERSON, main_of, parts_of
from tests.housing import begun

Begin = Callable[..., Incarnations]


@pytest.fixture
def begin(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Begin:
    return lambda **options: begun(store, monkeypatch, **options)


def newest_of(store: ObjectStore) -> CommitObject:
    newest = CommitLog(store, main_of(store)).newest()
    assert newest is not None
    return newest


def load(serving: Incarnations, name: str) -> Any:
    sender = Sender(serving.branch.schema, serving.branch.schema_hash)
    request = sender.load_request([{"name": name}], type="Person")
    return serving.admit().submit(request).result(TIMEOUT_S)


def _fail(*_: object) -> None:
    raise StorageError("no route to the store")


# Beginning


def test_who_begins_is_found_by_the_line_and_no_earlier_record_is_left(store: ObjectStore, begin: Begin) -> None:
    first = begin()
    found = find_door(store, newest_of(store))
    assert found is not None
    assert first.door_places == {found.place}
    second = begin(instead_of=newest_of(store).owner)
    again = find_door(store, newest_of(store))
    assert again is not None
    assert again.record.secret != found.record.secret
    assert list(store.names(FOLDER)) == [path_of(newest_of(store).epoch).rpartition("/")[2]]
    assert second.is_serving


def test_a_late_end_of_an_earlier_incarnation_does_not_end_the_one_after_it(begin: Begin) -> None:
    serving = begin()
    first = serving.publisher
    first.end(Fenced("another owner took the line over"))
    assert not serving.is_serving
    serving.begin("")
    second = serving.publisher
    assert second is not first
    first.end(Fenced("a step that was still under way has found the same"))
    serving.begin("")
    assert serving.publisher is second
    assert serving.is_serving


def test_the_next_incarnation_knows_the_client_that_read_the_record_of_the_one_before_it(
    store: ObjectStore, begin: Begin
) -> None:
    """It is no copy of the graph that such a client has read, and it must not be told so."""
    serving = begin()
    places = set(serving.door_places)
    serving.publisher.end(Fenced("a put of unknown fate"))
    serving.begin("")
    found = find_door(store, newest_of(store))
    assert found is not None
    assert serving.door_places == {*places, found.place}
    assert len(serving.door_places) == 2


def test_a_publisher_that_ended_for_a_fate_that_is_open_begins_anew_by_itself(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = begin()
    first, has_begun = serving.publisher, threading.Event()
    opens = serving._open

    def open_and_tell() -> None:
        opens()
        has_begun.set()

    monkeypatch.setattr(serving, "_open", open_and_tell)
    first.end(OutcomeUnknown("the connection is gone", txn_id=""))
    assert has_begun.wait(TIMEOUT_S)
    assert serving.publisher is not first
    load(serving, "ann")


def test_a_publisher_that_was_fenced_does_not_begin_anew_unless_it_is_asked_to(
    store: ObjectStore, begin: Begin
) -> None:
    serving = begin()
    take_over(parts_of(store).tip, EMBEDDED)
    with pytest.raises(Fenced):
        load(serving, "ann")
    with pytest.raises(Fenced, match="the same id"):
        serving.admit()
    assert newest_of(store).owner == EMBEDDED
    serving.begin("")
    load(serving, "ann")


def test_the_line_is_not_taken_from_a_coordinator_of_another_cluster_unless_it_was_named(
    store: ObjectStore, begin: Begin
) -> None:
    other = str(Incarnation.new("10.0.0.2:6379"))
    take_over(parts_of(store).tip, other)
    with pytest.raises(LineOwned, match=r"10\.0\.0\.2"):
        begin()
    begin(instead_of=other)
    assert newest_of(store).owner != other


def test_a_graph_that_is_gone_ends_the_other_actors_and_is_told_to_its_clients(begin: Begin) -> None:
    serving = begin()
    serving.publisher.end(GraphGone("the graph was deleted"))
    with pytest.raises(GraphGone, match="was deleted"):
        serving.admit()
    queues, reconciler = (getattr(serving, name) for name in ("queues", "reconciler"))
    assert queues.has_ended
    assert reconciler.asked[-1] == "end"
    assert not serving.is_serving


# Durability


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_publisher_is_as_durable_as_it_was_told_to_be(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """A version's files are synced before Phase C by whoever stages them, and the folders of the line by who puts."""
    synced: list[Path] = []
    monkeypatch.setattr(directory, "_fsync", synced.append)
    serving = begin(durability=durability)
    folders = [path for path in synced if "__commits" in path.parts]
    assert bool(folders) is (durability == "power")
    serving.drain()


@pytest.mark.parametrize(
    ("is_drained", "takes_over", "durability"),
    [(False, False, "power"), (False, True, "process"), (True, False, "process")],
)
def test_a_publisher_that_is_created_again_is_as_durable_as_before_unless_somebody_meant_to_change_it(
    store: ObjectStore, begin: Begin, is_drained: bool, takes_over: bool, durability: str
) -> None:
    """Fault: the first one dies, and a client that wants the default creates it again."""
    first = begin(durability="power")
    if is_drained:
        first.drain()
    again: Any = begin(instead_of=first._owner if takes_over else "")
    held = [again.storage, again.queues.storage, again.reconciler.storage]
    assert [storage.durability for storage in held] == [durability] * 3
    again.drain()
    assert newest_of(store).policy == {}, "embedded writers choose for themselves"


def test_the_secrets_of_a_storage_are_not_in_its_text() -> None:
    assert "hush" not in repr(Storage("s3://bucket/graph", {"secret_access_key": "hush"}, "graph"))


# Draining


def test_a_publisher_that_was_drained_says_that_it_has_left_and_takes_the_line_no_more(
    store: ObjectStore, begin: Begin
) -> None:
    """Whoever drained it may have gone before it could end it: then the next one to start a coordinator does so."""
    drained = begin()
    drained.drain()
    with pytest.raises(HasLeft):
        drained.begin("")
    newest = newest_of(store)
    assert (newest.owner, newest.policy.get(DOOR)) == (EMBEDDED, None)
    assert list(store.names(FOLDER)) == [], "its secret is of no use any more"
    with pytest.raises(Unreachable, match="was taken down"):
        drained.admit("01K9ZQ5T7Z0000000000000000")


def test_a_publisher_that_is_restarted_after_it_has_handed_the_line_back_leaves_it_to_everybody(
    store: ObjectStore, begin: Begin
) -> None:
    """Fault: it is killed after it handed the line back and before its own end, and Ray starts it again."""
    begin().drain()
    with pytest.raises(Fenced, match="handed back"):
        begin(is_asked_for=False)
    assert newest_of(store).owner == EMBEDDED
    assert begin().is_serving, "one that was asked for"


def test_a_publisher_that_is_restarted_while_it_serves_takes_the_line_again(store: ObjectStore, begin: Begin) -> None:
    begin()
    first = newest_of(store).owner
    assert begin(is_asked_for=False).is_serving
    assert newest_of(store).owner not in (EMBEDDED, first)


def test_a_publisher_that_ended_and_whose_line_was_freed_begins_only_when_it_is_asked_to(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: somebody has freed the line on purpose, and a put of unknown fate ends the publisher."""
    serving = begin()
    serving.begin("")  # as whoever starts a coordinator does, also if it serves already
    take_over(serving.branch.tip.another(), EMBEDDED)
    lost = threading.Event()
    monkeypatch.setattr(serving, "_lost", lambda error: lost.set())
    serving.publisher.end(OutcomeUnknown("the connection is gone", txn_id=""))
    assert lost.wait(TIMEOUT_S)
    assert newest_of(store).owner == EMBEDDED
    serving.begin("")
    assert serving.is_serving


def test_a_publisher_that_could_not_hand_the_line_back_has_not_left(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained = begin()
    with monkeypatch.context() as failing:
        failing.setattr(line_service, "release", _fail)
        with pytest.raises(StorageError, match="no route"):
            drained.drain()
    with pytest.raises(Unreachable) as leaving:
        drained.begin("")
    assert not isinstance(leaving.value, HasLeft)
    drained.drain()
    with pytest.raises(HasLeft):
        drained.begin("")


def test_a_store_that_fails_for_a_moment_does_not_keep_a_publisher_from_handing_the_line_back(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the first try of handing it back fails. Expected: embedded writers may write once it is drained."""
    drained = begin()
    tries = [_fail, line_service.release]
    monkeypatch.setattr(line_service, "release", lambda *line: tries.pop(0)(*line))
    drained.drain()
    assert (newest_of(store).owner, tries) == (EMBEDDED, [])


def test_a_record_that_can_not_be_deleted_does_not_make_a_failure_of_a_line_that_was_handed_back(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained = begin()
    monkeypatch.setattr(incarnations_module, "delete_records", _fail)
    drained.drain()
    assert newest_of(store).owner == EMBEDDED
    with pytest.raises(HasLeft):
        drained.begin("")


def test_a_write_that_is_under_way_is_not_turned_away_while_its_publisher_leaves(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may ask again, and waits for the same answer."""
    serving = begin()
    sender = Sender(serving.branch.schema, serving.branch.schema_hash)
    plug = sender.plug()
    under_way = serving.admit().submit(plug)
    plug.gate.wait_until_reached()
    looked = threading.Event()
    monkeypatch.setattr(line_service.time, "sleep", lambda seconds: (looked.set(), under_way.exception(60)))
    draining = threading.Thread(target=serving.drain)
    draining.start()
    assert looked.wait(TIMEOUT_S)
    assert serving.admit(plug.header.commit_id).under_way(plug.header.commit_id) is under_way
    with pytest.raises(Unreachable, match="was taken down"):
        serving.admit("01K9ZQ5T7Z0000000000000000")
    plug.gate.open()
    under_way.result(TIMEOUT_S)
    draining.join(TIMEOUT_S)
    with pytest.raises(HasLeft):
        serving.begin("")


# Repairing


def test_a_repair_through_the_publisher_adopts_what_a_foreign_writer_wrote_and_writes_go_on(
    store: ObjectStore, begin: Begin
) -> None:
    serving = begin()
    load(serving, "ann")
    parts = parts_of(store)
    parts.finaliser.notice(newest_of(store))
    parts.finaliser.flush()
    foreign.append(store, "mallory")
    shown = serving.repair(RepairTerms())
    assert ([drift.table_key for drift in shown.found], shown.commit_id) == ([PERSON], None)
    repaired = serving.repair(RepairTerms(adopt=True, actor="ann"))
    assert repaired.commit_id == newest_of(store).head
    reconciler: Any = serving.reconciler
    assert reconciler.asked[-2:] == ["flush", ("recover", GRACE_S)], "operations may have waited for the repair"
    assert newest_of(store).seq in reconciler.asked
    load(serving, "bob")
    assert parts_of(store).rows(PERSON) == ["ann", "bob", "mallory"]


def test_a_repair_that_adopts_and_discards_is_bad_input_and_holds_nobody_up(begin: Begin) -> None:
    serving = begin()
    with pytest.raises(InputError, match="one of them"):
        serving.repair(RepairTerms(adopt=True, discard=True))
    load(serving, "ann")


def test_nothing_is_repaired_by_a_publisher_that_leaves(begin: Begin) -> None:
    serving = begin()
    serving.drain()
    with pytest.raises(OmnirayError, match="was taken down"):
        serving.repair(RepairTerms(discard=True))
