"""Sidecars: what an operation is about to do, and for whom, written before it can have any effect.

One JSON object per attempt in `__recovery/`, created in Phase A beside the staging and deleted last in Phase D, so in
the steady state there is none. Recovery finishes or clears away the operation of a dead writer by it. A load that
stages data files for a while puts one too, its lease, of kind `Staging`: it protects the files from the sweep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
from ulid import ULID

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.process import Process
from omniray.engine.base.ulids import is_ulid
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.stored_names import StoredName, StoredPath, StoredVersion
from omniray.engine.store.object_store import Answer, ObjectStore

FORMAT = 2
FOLDER = "__recovery"
UNREADABLE = f"{FOLDER}/unreadable"
STAGING = "Staging"
_SUFFIX = ".json"
_PUT_TRIES_MAX = 4
_READING_THREADS = 16

log = logging.getLogger("omniray")


@dataclass(frozen=True, slots=True)
class SidecarIntent:
    """One write of the operation."""

    commit_id: str
    actor: str


@dataclass(frozen=True, slots=True)
class SidecarTable:
    """What the operation does to one table: its next version, by this transaction. `files` were staged before it."""

    table_key: str
    table_path: StoredPath
    expected_version: StoredVersion  # of the pin that it builds on
    transaction_uuid: StoredName
    files: tuple[StoredPath, ...] = ()


@dataclass(frozen=True, slots=True)
class Sidecar:
    operation_id: StoredName
    kind: str
    line: StoredName  # the branch by its ULID: the operation is judged on this line and no other
    epoch: int
    owner: str
    process: Process
    created_at_us: int
    intents: tuple[SidecarIntent, ...]
    tables: tuple[SidecarTable, ...]
    format: int = FORMAT

    @classmethod
    def on(
        cls,
        base: CommitObject,
        operation_id: str,
        kind: str,
        process: Process,
        intents: Iterable[SidecarIntent],
        tables: Iterable[SidecarTable],
    ) -> Sidecar:
        """The sidecar of an operation that begins now, on top of one object of the line."""
        return cls(
            operation_id=operation_id,
            kind=kind,
            line=base.line,
            epoch=base.epoch,
            owner=base.owner,
            process=process,
            created_at_us=time.time_ns() // 1000,
            intents=tuple(intents),
            tables=tuple(tables),
        )

    def __str__(self) -> str:
        tables = ", ".join(table.table_key for table in self.tables)
        return f"{self.kind} {self.operation_id} of {self.process} on {tables}"

    @property
    def actor(self) -> str:
        return ", ".join(dict.fromkeys(intent.actor for intent in self.intents))


class _Stamp(msgspec.Struct):
    format: int = 0


# Made here, by one thread: msgspec inspects a type on first use, and two threads that do so at once crash.
_read_stamp = msgspec.json.Decoder(_Stamp).decode
_read_sidecar = msgspec.json.Decoder(Sidecar).decode


def encode(sidecar: Sidecar) -> bytes:
    return msgspec.json.encode(sidecar)


def decode(data: bytes, *, where: str) -> Sidecar:
    """Decode a sidecar; raises `InvariantViolation` if it can't be read."""
    try:
        found = _read_stamp(data).format
        if found == FORMAT:
            return _read_sidecar(data)
        reason = f"it has format {found}, and this omniray reads only {FORMAT}"
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvariantViolation(f"{where} is not a sidecar: {error}", path=where) from error
    raise InvariantViolation(f"{where} is not a sidecar that can be read here: {reason}", path=where)


def _lost(operation_id: str) -> Sidecar:
    """Stands for a sidecar whose content was lost in a power cut, since sidecars need not be fsynced.

    Its content is unknown, so there is nothing to finish or to record: like a lease it is deleted in time.
    """
    created_at_us = int(ULID.from_str(operation_id).milliseconds) * 1000
    return Sidecar(operation_id, STAGING, "", 0, "", Process("", 0, ""), created_at_us, (), ())


class Sidecars:
    """The sidecars of a graph. They never change, so they are cached until they are gone from the listing.

    An unreadable sidecar blocks nothing: it is logged as an error and moved to `__recovery/unreadable/`, unless
    `read_only`. Its tables are unknown, so while it is there the sweep spares all younger files.
    """

    def __init__(self, store: ObjectStore, *, read_only: bool = False) -> None:
        self._store, self._read_only = store, read_only
        self._read: dict[str, Sidecar] = {}

    def path(self, operation_id: str) -> str:
        return f"{FOLDER}/{operation_id}{_SUFFIX}"

    def put(self, sidecar: Sidecar) -> None:
        """Put a sidecar; when this returns it is known to be there, and when it raises no table has changed."""
        path, data = self.path(sidecar.operation_id), encode(sidecar)
        self._read[sidecar.operation_id] = sidecar  # our own sidecars need no read
        for _ in range(_PUT_TRIES_MAX):
            answer = self._store.put_if_absent(path, data, lasting=False)
            # The operation's id is unique, so an object there is our own put, whose answer got lost.
            if answer is not Answer.UNCLEAR or self._store.get(path) is not None:
                return
        raise StorageError(f"no clear answer to putting {path}: nothing was written; try again", path=path)

    def listed(self) -> list[str]:
        """The operations that have a sidecar, oldest first."""
        names = self._store.names(FOLDER)
        found = sorted(n.removesuffix(_SUFFIX) for n in names if n.endswith(_SUFFIX) and is_ulid(n[: -len(_SUFFIX)]))
        there = set(found)
        self._read = {one: sidecar for one, sidecar in list(self._read.items()) if one in there}  # threads share it
        return found

    def read(self, operation_id: str) -> Sidecar | None:
        """An operation's sidecar; None if it is gone, because its owner or another recovery finished the operation."""
        if (known := self._read.get(operation_id)) is not None:
            return known
        path = self.path(operation_id)
        data = self._store.get(path)
        if data is None:
            return None
        try:
            sidecar = decode(data, where=path) if data.strip(b"\0") else _lost(operation_id)
            if sidecar.operation_id != operation_id:  # it would be taken for another operation, and deleted as that
                raise InvariantViolation(f"{path} is the sidecar of {sidecar.operation_id!r}", path=path)
        except InvariantViolation as error:
            self._set_aside(operation_id, data, error)
            return None
        self._read[operation_id] = sidecar
        return sidecar

    def _set_aside(self, operation_id: str, data: bytes, error: InvariantViolation) -> None:
        aside = f"{UNREADABLE}/{operation_id}{_SUFFIX}"
        log.error("event=unreadable_sidecar path=%s kept_as=%s error=%s", self.path(operation_id), aside, error)
        if not self._read_only:
            self._store.put(aside, data)
            self._store.delete(self.path(operation_id))

    def unreadable_since_us(self) -> int | None:
        """When the oldest operation with an unreadable sidecar began, now or earlier; None if there is none."""
        listed = self.listed()
        read = {sidecar.operation_id for sidecar in self.read_all(listed)}  # first: it sets aside what can't be read
        there = [one for one in listed if self._read_only and one not in read]
        aside = [file.path.rpartition("/")[2].removesuffix(_SUFFIX) for file in self._store.files(UNREADABLE)]
        began = [int(ULID.from_str(one).milliseconds) * 1000 for one in (*aside, *there) if is_ulid(one)]
        return min(began, default=None)

    def read_all(self, operation_ids: Iterable[str]) -> list[Sidecar]:
        with ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="omniray-sidecar") as pool:
            return [sidecar for sidecar in pool.map(self.read, operation_ids) if sidecar is not None]

    def dated_us(self, operation_id: str) -> int:
        """When a sidecar was put, by the store's own clock."""
        found = next(self._store.files(FOLDER, after=operation_id), None)
        if found is None or found.path != self.path(operation_id):
            raise StorageError(f"{self.path(operation_id)} was put and is not listed; try again")
        return found.modified_us

    def delete(self, operation_ids: Sequence[str]) -> None:
        self._store.delete_all([self.path(one) for one in operation_ids])
