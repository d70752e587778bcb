"""Phase B: the next version of every table that an operation touches, each staged under its own name.

No version counts before the commit object pins it, and no other attempt uses the files that one attempt made.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from omniray.engine.base.errors import InvariantViolation, OmnirayError, StorageError, TableDrift
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.commit.table_change import Adopt, Create, Restore, TableChange
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.line.sidecar import SidecarTable
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID
from omniray.engine.tables.final_names import DRIFT_ADVICE
from omniray.engine.tables.storage import StagedChange, StagedVersion, VersionTaken
from omniray.engine.tables.table import Table
from omniray.engine.tables.versions import VersionReader

THREADS = 16


@dataclass(frozen=True, slots=True)
class Base:
    """The versions that an attempt builds on; those above `landed_through` are staged and may yet be lost."""

    pins: Mapping[str, Pin]
    line: str
    landed_through: int
    finalised_through: int = 0

    @classmethod
    def on(cls, base: CommitObject, newest: CommitObject) -> Base:
        """The versions of an object, if the line is known to end with `newest`.

        Another object may have the number of one that never landed, so a number alone does not decide.
        """
        has_landed = base.op_id == newest.op_id
        through = base.seq if has_landed else min(newest.seq, base.seq - 1)
        return cls(base.pins, base.line, through, base.finalised_through)

    def is_landed(self, table_key: str) -> bool:
        """Whether the version of a table is in the line; one of another line was there before this line began."""
        pin = self.pins[table_key]
        return pin.line != self.line or pin.since <= self.landed_through

    def is_final(self, pin: Pin) -> bool:
        """Where to look for a version first, as `CommitObject.is_final`."""
        return pin.line == self.line and pin.since <= self.finalised_through


@dataclass(frozen=True, slots=True)
class TableStage:
    """One table's part of an attempt."""

    announced: SidecarTable
    change: TableChange


@dataclass(frozen=True, slots=True)
class StagedPin:
    """A staged version as its attempt knows it; `files` were made for it alone."""

    pin: Pin
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """Another writer has made a table's next version; `found` is the number that the staged one got."""

    table_key: str
    expected: int
    found: int | None = None


Staged = StagedPin | Taken | OmnirayError


class Stager(Protocol):
    """Stages tables, in this process or in others."""

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        """Stage the tables in parallel; for each the staged version, or why there is none."""

    def drop(self, table_keys: Sequence[str]) -> None:
        """Drop handles of staged versions that are lost: they show rows that were never committed."""


class Cold(StorageError):
    """A version that was staged and has not landed is gone: the round on top of it is tried again."""

    kind = "cold"


class TableStager:
    """Stages tables in this process: each table's attempts one after the other, tables in parallel."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._storage, self._cache = branch.storage, branch.cache
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-stage")

    def close(self) -> None:
        self._pool.shutdown()

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        if len(stages) == 1:  # as in most writes: no thread is needed
            return [self._stage(base, stages[0])]
        return list(self._pool.map(lambda stage: self._stage(base, stage), stages))

    def drop(self, table_keys: Sequence[str]) -> None:
        for table_key in table_keys:
            with self._turns[table_key]:
                self._cache.drop(table_key)

    def open(self, base: Base, table_key: str) -> Table:
        """A table as it is in `base`."""
        pin = base.pins[table_key]
        try:
            return self._cache.open(table_key, pin, is_final=base.is_final(pin))
        except InvariantViolation as error:
            if base.is_landed(table_key):
                raise
            raise Cold(f"{table_key}: version {pin.version} was staged and is gone") from error

    def turn(self, table_key: str) -> threading.Lock:
        """The lock whose holder has the table to itself."""
        return self._turns[table_key]

    def _stage(self, base: Base, stage: TableStage) -> Staged:
        table_key = stage.announced.table_key
        with self.turn(table_key):
            try:
                reach(Point.B_BEFORE_TABLE)
                staged = self._staged(base, stage)
                reach(Point.B_AFTER_TABLE)
                return staged
            except VersionTaken as taken:
                self._cache.drop(table_key)
                return Taken(table_key, taken.expected, taken.found)
            except OmnirayError as error:
                self._cache.drop(table_key)
                return error

    def _staged(self, base: Base, stage: TableStage) -> StagedPin:
        table_key, transaction = stage.announced.table_key, stage.announced.transaction_uuid
        match stage.change:
            case TableWrite() as write:
                table = self.open(base, table_key)
                version = self._written(table, write, transaction)
                self._cache.follow(table, version, removed=write.replaced[ID])
                return self._pinned(base.pins[table_key], version, content=transaction)
            case Restore(source=source, head=head):
                newest = self.open(base, table_key) if head is None else self._foreign(table_key, source, head)
                version = self._storage.commit_restored(newest, source, transaction)
                return self._pinned(base.pins[table_key], version, content=source.content)
            case Adopt(version=number, rows=rows):
                pin = replace(base.pins[table_key], version=number, transaction=transaction, rows=rows)
                # Of two versions whose writers left no transaction, nothing else says that their rows differ.
                return StagedPin(replace(pin, content=transaction or str(uuid.uuid4())), ())
            case Create(table_id=table_id, path=path, first=first):
                for file, data in first.files.items():
                    self._branch.store.put(file, data)
                return StagedPin(Pin(table_id, path, 1, transaction, 0, content=transaction), tuple(first.files))

    def _foreign(self, table_key: str, source: Pin, head: int) -> Table:
        """A table's newest final version, which a foreign writer made."""
        return VersionReader(self._branch.store).open_foreign(
            self._branch.schema.by_table_key[table_key], source.path, head
        )

    def _written(self, table: Table, write: TableWrite, transaction: str) -> StagedVersion:
        change = self._changed(table, write)
        reach(Point.B_AFTER_ROWS)
        try:
            return self._storage.commit_staged(table, change, transaction)
        except VersionTaken:
            if change.inline is not None:
                self._storage.forget_rows(table.path, change.inline)
            raise

    def _changed(self, table: Table, write: TableWrite) -> StagedChange:
        match write.mode:
            case Mode.APPEND:
                return self._storage.stage_append(table, write.rows)
            case Mode.MERGE:
                return self._storage.stage_merge(table, write.rows, write.replaced)
            case Mode.OVERWRITE:
                return self._storage.stage_overwrite(table, write.rows)
            case Mode.DELETE:
                return self._storage.stage_delete(table, write.replaced)

    def _pinned(self, before: Pin, version: StagedVersion, *, content: str) -> StagedPin:
        pin = replace(
            before, version=version.version, transaction=version.transaction, rows=version.rows, content=content
        )
        return StagedPin(pin, version.files)


def drifted(table_key: str, expected: int) -> TableDrift:
    """The error for a table whose next version is taken, which no object of the line explains."""
    return TableDrift(
        f"{table_key} was changed by something other than omniray: its next version should be {expected} and that is "
        f"taken; {DRIFT_ADVICE}",
        table_key=table_key, expected=expected,
    )  # fmt: skip
