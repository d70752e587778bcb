"""The record of a door: found by the line alone, believed only if the line names its digest, of use to few."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omniray.coordinator.door.record import (
    FOLDER,
    DoorRecord,
    FoundDoor,
    delete_records,
    find_door,
    is_loopback,
    path_of,
    put_record,
)
from omniray.engine.base.errors import InvariantViolation
from omniray.engine.line.commit_object import DOOR, EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import create_store, parts_of
from tests.stores import Root

RECORD = DoorRecord.new("http://127.0.0.1:4321")
OWNER = str(Incarnation.new("10.0.0.1:6379"))


@pytest.fixture
def store(any_root: Root) -> ObjectStore:
    """A graph on a disk and on S3."""
    return create_store(any_root)


def taken_over(store: ObjectStore, data: bytes) -> CommitObject:
    """The newest object of a line whose owner has put a record."""
    taken = take_over(parts_of(store).tip, OWNER, door=hashlib.sha256(data).hexdigest())
    store.put(path_of(taken.epoch), data)
    return taken


def encoded(**fields: Any) -> bytes:
    return msgspec.json.encode({"url": RECORD.url, "secret": RECORD.secret, "certificate": "", **fields})


# What is put is found


def test_a_record_is_found_by_the_line_that_names_it(store: ObjectStore) -> None:
    taken = take_over(parts_of(store).tip, OWNER, door=RECORD.digest)
    place = put_record(store, RECORD, taken.epoch)
    assert find_door(store, taken) == FoundDoor(RECORD, place)
    assert place == store.place_of(path_of(taken.epoch)) != ""


def test_a_record_comes_back_from_its_bytes_and_a_field_of_a_later_omniray_does_no_harm(store: ObjectStore) -> None:
    assert msgspec.json.decode(RECORD.encoded(), type=DoorRecord) == RECORD
    found = find_door(store, taken_over(store, encoded(later=7)))
    assert found is not None
    assert found.record == RECORD


def test_two_records_never_share_a_secret_and_it_is_not_in_their_text() -> None:
    one, other = (DoorRecord.new("http://127.0.0.1:1", "PRIVATE") for _ in range(2))
    assert one.secret != other.secret
    assert len(one.secret) >= 43, "256 bits"
    assert one.secret not in repr(one)
    assert one.digest != other.digest


def test_a_later_epoch_of_the_same_owner_keeps_the_door_of_the_earlier_one(store: ObjectStore) -> None:
    """A recovery raises the epoch for an owner that goes on."""
    taken = take_over(parts_of(store).tip, OWNER, door=RECORD.digest)
    place = put_record(store, RECORD, taken.epoch)
    raised = take_over(parts_of(store).tip, OWNER)
    assert raised.epoch == taken.epoch + 1
    assert find_door(store, raised) == FoundDoor(RECORD, place)


@pytest.mark.parametrize("successor", [EMBEDDED, str(Incarnation.new("10.0.0.2:6379"))], ids=["nobody", "another"])
def test_a_door_ends_with_its_owner(store: ObjectStore, successor: str) -> None:
    """Its record is still there, and nobody may be led to it."""
    taken_over(store, RECORD.encoded())
    newest = take_over(parts_of(store).tip, successor)
    assert DOOR not in newest.policy
    assert find_door(store, newest) is None


def test_a_new_door_takes_the_place_of_the_one_before_it(store: ObjectStore) -> None:
    taken_over(store, RECORD.encoded())
    second = DoorRecord.new("http://127.0.0.1:4322")
    taken = take_over(parts_of(store).tip, OWNER, door=second.digest)
    assert find_door(store, taken) is None, "not the record of before"
    place = put_record(store, second, taken.epoch)
    assert find_door(store, taken) == FoundDoor(second, place)


# What is not believed


def test_a_line_without_a_door_leads_nowhere(store: ObjectStore) -> None:
    assert find_door(store, parts_of(store).newest()) is None
    assert find_door(store, take_over(parts_of(store).tip, OWNER)) is None


@pytest.mark.parametrize("policy", ["", "7", "x:00", "-1:00", "²:00", "9" * 21 + ":00", "../7:00", "7:"])
def test_a_policy_that_is_no_door_leads_nowhere(store: ObjectStore, policy: str) -> None:
    taken = taken_over(store, RECORD.encoded())
    assert find_door(store, replace(taken, policy={DOOR: policy})) is None


def test_a_record_that_somebody_else_has_put_is_not_believed(store: ObjectStore) -> None:
    """Whoever may write files beside the graph, but not extend its line, can't lead its clients anywhere."""
    taken = taken_over(store, RECORD.encoded())
    store.put(path_of(taken.epoch), DoorRecord("http://127.0.0.1:6666", RECORD.secret).encoded())
    assert find_door(store, taken) is None


def test_a_record_that_is_not_there_yet_or_no_more_is_none(store: ObjectStore) -> None:
    taken = taken_over(store, RECORD.encoded())
    store.delete(path_of(taken.epoch))
    assert find_door(store, taken) is None


REFUSED = {
    "http beyond this machine": (encoded(url="http://10.0.0.1:80"), "https"),
    "http to a name": (encoded(url="http://graphs.example.com:80"), "https"),
    "a path": (encoded(url="http://169.254.169.254:80/latest"), "HOST:PORT"),
    "https without a certificate": (encoded(url="https://10.0.0.1:80"), "no certificate"),
    "a file": (encoded(url="file:///etc/passwd"), "HOST:PORT"),
    "a socket": (encoded(url="unix://127.0.0.1:1"), "HOST:PORT"),
    "no port": (encoded(url="http://127.0.0.1"), "HOST:PORT"),
    "a port that there is not": (encoded(url="http://127.0.0.1:99999"), "[Pp]ort"),
    "no host": (encoded(url="http://:80"), "HOST:PORT"),
    "no url": (encoded(url=""), "HOST:PORT"),
    "a secret of two lines": (encoded(secret="two\r\nlines"), "can't be sent"),
    "a secret beyond ASCII": (encoded(secret="ß"), "can't be sent"),
    "too large": (encoded(certificate="x" * (64 << 10)), "bytes"),
    "another type": (encoded(url=7), "str"),
    "nothing in it": (b"{}", "url"),
    "not JSON": (b"\xff\xfe", "record of a door"),
    "empty": (b"", "record of a door"),
    "deeply nested": (b"[" * 100_000, "bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_record_that_leads_elsewhere_or_is_none_is_refused_with_what_to_do(store: ObjectStore, what: str) -> None:
    """Even if the line names its digest: then a later omniray has put it, or somebody who may write to the line."""
    data, reason = REFUSED[what]
    with pytest.raises(InvariantViolation, match=rf"(?s)__door/.*{reason}.*recover --take-over"):
        find_door(store, taken_over(store, data))


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
        ("10.0.0.1", False), ("localhost.example.com", False), ("127.0.0.1.nip.io", False), ("", False),
    ],
)  # fmt: skip
def test_what_is_on_this_machine_alone(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here


# Where it lies


def test_records_of_earlier_owners_are_deleted_and_no_others(store: ObjectStore) -> None:
    for epoch in (1, 2, 10, 11):
        put_record(store, RECORD, epoch)
    delete_records(store, 10)
    assert sorted(store.names(FOLDER)) == [path_of(epoch).rpartition("/")[2] for epoch in (10, 11)]
    delete_records(store, 1)
    delete_records(store, 1 << 63)
    assert list(store.names(FOLDER)) == []


def test_the_place_of_a_record_stays_and_one_that_is_not_there_has_none(store: ObjectStore) -> None:
    place = put_record(store, RECORD, 7)
    assert store.get(path_of(7)) == RECORD.encoded()
    assert store.place_of(path_of(7)) == place
    assert store.place_of(path_of(8)) is None


def test_a_copy_of_a_record_has_another_place(store: ObjectStore) -> None:
    """By that a coordinator notices a client that has read a copy of its graph."""
    place = put_record(store, RECORD, 7)
    store.put(path_of(8), RECORD.encoded())
    assert store.place_of(path_of(8)) != place


def test_a_copied_folder_has_another_place_though_its_files_look_the_same(disk: Root, tmp_path: Path) -> None:
    store = create_store(disk)
    place = put_record(store, RECORD, 7)
    shutil.copytree(store.uri, tmp_path / "copy")
    copy = open_store(str(tmp_path / "copy"))
    assert copy.get(path_of(7)) == store.get(path_of(7))
    assert (tmp_path / "copy" / path_of(7)).stat().st_mtime_ns == Path(store.uri, path_of(7)).stat().st_mtime_ns
    assert copy.place_of(path_of(7)) != place
    os.rename(store.uri, tmp_path / "moved")
    assert open_store(str(tmp_path / "moved")).place_of(path_of(7)) == place, "a graph that was moved is the same one"


def test_on_a_disk_only_its_owner_may_read_a_record(disk: Root) -> None:
    store = create_store(disk)
    before = os.umask(0)
    try:
        put_record(store, RECORD, 7)
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(store.uri, path_of(7)).stat().st_mode) == 0o600
