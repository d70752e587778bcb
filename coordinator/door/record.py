"""The record of a door: how a process that may read the graph's storage reaches the coordinator that owns a branch.

It lies beside the graph as `__door/<epoch>.json` and holds a secret, so that whoever may read it may write through the
coordinator, and nobody else. The line names its digest: a record that somebody else has put there is not believed.
Nothing else that is found in storage is ever contacted.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from omniray.coordinator.door.messages import VERSIONS
from omniray.engine.base.errors import InvariantViolation
from omniray.engine.line.commit_object import DOOR, CommitObject
from omniray.engine.store.object_store import ObjectStore

FOLDER = "__door"
_BYTES_MAX = 64 << 10
_EPOCH_DIGITS = 20


@dataclass(frozen=True, slots=True)
class DoorRecord:
    """Where a door is and what it wants to hear. `certificate`: the only one that it may show, as PEM.

    `versions`: of the messages that it understands; a record that says none is of a release that spoke only the first.
    """

    url: str
    secret: str = field(repr=False)
    certificate: str = field(default="", repr=False)
    versions: tuple[int, ...] = (1,)

    @classmethod
    def new(cls, url: str, certificate: str = "") -> DoorRecord:
        return cls(url, secrets.token_urlsafe(32), certificate, VERSIONS)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded()).hexdigest()


@dataclass(frozen=True, slots=True)
class FoundDoor:
    """A record, and the place that it was read from, by which a door notices a client that read a copy."""

    record: DoorRecord
    place: str


def path_of(epoch: int) -> str:
    return f"{FOLDER}/{epoch:0{_EPOCH_DIGITS}}.json"


def put_record(store: ObjectStore, record: DoorRecord, epoch: int) -> str:
    """Put the record of the coordinator that owns the line since `epoch`; returns its place."""
    path = path_of(epoch)
    store.put(path, record.encoded())
    place = store.place_of(path)
    if place is None:
        raise InvariantViolation(f"{store.uri}/{path} was put and is not there", path=path)
    return place


def delete_records(store: ObjectStore, before: int) -> None:
    """Delete the records of coordinators that owned the line before an epoch: their secrets are of no use."""
    older = sorted(name for name in store.names(FOLDER) if name < path_of(before).rpartition("/")[2])
    store.delete_all([f"{FOLDER}/{name}" for name in older])


def find_door(store: ObjectStore, newest: CommitObject) -> FoundDoor | None:
    """The door of the coordinator that owns the line; None if its record is not there, or not the one that it put."""
    epoch, _, digest = newest.policy.get(DOOR, "").partition(":")
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= _EPOCH_DIGITS):
        return None
    path = path_of(int(epoch))
    place, data = store.place_of(path), store.get(path)
    if place is None or data is None or hashlib.sha256(data).hexdigest() != digest:
        return None
    return FoundDoor(_checked(data, f"{store.uri}/{path}"), place)


def _checked(data: bytes, where: str) -> DoorRecord:
    try:
        if len(data) > _BYTES_MAX:
            raise ValueError(f"it has {len(data)} bytes")
        record = msgspec.json.decode(data, type=DoorRecord)
        parts = urlsplit(record.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port or parts.path.strip("/"):
            raise ValueError("its url is not http(s)://HOST:PORT")
        if not record.secret.isascii() or not record.secret.isprintable():
            raise ValueError("its secret can't be sent")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("a door beyond this machine needs https")
        if parts.scheme == "https" and not record.certificate:
            raise ValueError("it has no certificate")
    except (msgspec.DecodeError, ValueError) as error:
        raise InvariantViolation(
            f"{where} is not the record of a door: {error}; 'omniray recover --take-over' frees the branch", path=where
        ) from error
    return record


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
