"""The write queues of some tables on one branch: what their owner keeps warm, and the work it does for a round.

A queue is its table's side of the rounds. It answers what a judgement asks of the table and stages the table's part of
a round, one after the other in the order of the rounds, other tables beside it. It decides nothing and commits nothing,
and what it keeps (handle, tail, ids) is read from storage again when it is lost: so it may die at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.engine.commit.staging import stage_table
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.line.sidecar import SidecarTable
from omniray.engine.schema.types import ID, Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.storage import TableStorage, VersionTaken

THREADS = 16


@dataclass(frozen=True, slots=True)
class Base:
    """The versions that a round builds on; those of a round that has not landed yet exist only in their queue."""

    pins: Mapping[str, Pin]
    landed_through: int

    @classmethod
    def on(cls, base: CommitObject, newest: CommitObject) -> Base:
        """The versions of an object, where the line is known to end with `newest`.

        Another object may have the number of one that never landed, so a number alone does not tell.
        """
        has_landed = base.op_id == newest.op_id
        return cls(base.pins, base.seq if has_landed else min(newest.seq, base.seq - 1))

    def is_landed(self, table_key: str) -> bool:
        return self.pins[table_key].since <= self.landed_through


@dataclass(frozen=True, slots=True)
class Question:
    """What a judgement wants to know of one table; the method is one of a state's."""

    method: Literal["existing", "matching", "scan", "select"]
    table_key: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TableStage:
    """One table's part of a round."""

    announced: SidecarTable
    write: TableWrite


@dataclass(frozen=True, slots=True)
class StagedPin:
    """A staged version as its round knows it; `files` were made for it alone."""

    pin: Pin
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """A table's next version is there already, and not by its queue."""

    table_key: str
    expected: int


class Cold(StorageError):
    """A queue has lost a version that it staged and that has not landed: the round on top of it is tried again."""

    kind = "cold"


class TableQueues:
    """The queues that one process owns, made when their tables are first used."""

    def __init__(self, store: ObjectStore, schema: Schema) -> None:
        self._store = store
        self._storage = TableStorage(store)
        self._cache = TableCache(store, self._storage, schema, read_only=False)
        self._turns = {key: threading.Lock() for key in schema.by_table_key}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-queue")

    def close(self) -> None:
        self._pool.shutdown()
        self._store.close()

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table | pa.Array]:
        """Answer questions about tables as they are in `base`, tables in parallel."""
        return list(self._pool.map(lambda question: self._answer(base, question), questions))

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[StagedPin | Taken | OmnirayError]:
        """Phase B of some tables in parallel: for each what was staged, or why it was not."""
        return list(self._pool.map(lambda stage: self._stage(base, stage), stages))

    def drop(self, table_keys: Sequence[str]) -> None:
        """Forget what a round staged that came to nothing."""
        for table_key in table_keys:
            with self._turns[table_key]:
                self._cache.drop(table_key)

    def _answer(self, base: Base, question: Question) -> pa.Table | pa.Array:
        with self._turns[question.table_key]:
            self._require_warm(base, question.table_key)
            state = PinnedState(self._cache, base.pins)
            answer = getattr(state, question.method)(question.table_key, *question.arguments)
            return answer.read_all() if question.method == "scan" else answer

    def _stage(self, base: Base, stage: TableStage) -> StagedPin | Taken | OmnirayError:
        table_key = stage.announced.table_key
        with self._turns[table_key]:
            try:
                self._require_warm(base, table_key)
                staged = stage_table(self._storage, self._cache, stage.announced, base.pins[table_key], stage.write)
            except VersionTaken as taken:
                self._cache.drop(table_key)
                return Taken(table_key, taken.expected)
            except OmnirayError as error:
                self._cache.drop(table_key)
                return error
            self._cache.follow(staged, removed=stage.write.replaced[ID])
        pin = Pin(staged.version, staged.transaction, since=0, rows=staged.rows, staging=staged.staging)
        return StagedPin(pin, tuple(self._storage.staged_for_itself(staged)))

    def _require_warm(self, base: Base, table_key: str) -> None:
        """Never open by its name a version that has not landed: opening would give it its final name."""
        if self._cache.is_warm(table_key, base.pins[table_key]):
            return
        if not base.is_landed(table_key):
            raise Cold(f"{table_key}: version {base.pins[table_key].version} is staged and its queue has lost it")
        self._cache.drop(table_key)
