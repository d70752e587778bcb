"""The write queues of the random world: what their owners promise a publisher, without Lance.

A version of a table is a file with its rows. An owner keeps the newest one that it made or opened warm, as the real
one does, loses it when it is restarted, and opens others by their names. Rows go by their addresses, so whoever is told
a wrong address removes a wrong row, and a row that is added twice is there twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from omniray.coordinator.door.questions import Existing, Matching, Question
from omniray.engine.base.errors import OmnirayError, StorageError, TableDrift
from omniray.engine.commit.staging import Base, Cold, Staged, StagedPin, TableStage, Taken
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.schema.types import ID
from tests.model.round_requests import located, rows_of
from tests.model.round_storage import Storage
from tests.model.round_tasks import Tasks
from tests.model.round_terms import Violation, Weather, pin_of

Rows = list[tuple[str, str, int]]  # key, by whom, address
FOREIGN = b"foreign"
_ROWS_PER_VERSION_MAX = 1_000

_read_rows = msgspec.json.Decoder(Rows).decode


@dataclass(frozen=True, slots=True)
class Warm:
    version: int
    transaction: str
    rows: Rows


def staging_path(table_key: str, transaction: str) -> str:
    return f"{table_key}/staged/{transaction}"


def final_path(table_key: str, version: int) -> str:
    return f"{table_key}/final/{version}"


def read_version(storage: Storage, table_key: str, pin: Pin) -> Rows | None:
    """The rows of a pinned version, by its path or its final name; None if it has neither."""
    data = storage.objects.get(staging_path(table_key, pin.transaction))
    if data is None:
        data = storage.objects.get(final_path(table_key, pin.version))
    return None if data in (None, FOREIGN) else _read_rows(data)


class Read:
    """The graph at an object of the line, for whoever judges a write elsewhere."""

    def __init__(self, storage: Storage, obj: CommitObject) -> None:
        self._storage, self._obj = storage, obj

    def rows(self, table_key: str) -> Rows:
        rows = read_version(self._storage, table_key, self._obj.pins[table_key])
        assert rows is not None, "a pinned version is somewhere"
        return rows

    def count(self, table_key: str) -> int:
        return self._obj.pins[table_key].rows

    def version(self, table_key: str) -> int:
        return self._obj.pins[table_key].version

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        return located(self.rows(table_key), ids)[ID].combine_chunks()

    def matching(self, table_key: str, column: str, values: pa.Array, columns: object) -> pa.Table:
        return located(self.rows(table_key), values)


def next_rows(rows: Rows, write: TableWrite, version: int) -> Rows:
    """The rows of the version after a write."""
    gone = set(write.replaced[ROWADDR].to_pylist())
    first = version * _ROWS_PER_VERSION_MAX
    added = [(key, by, first + n) for n, (key, by) in enumerate(rows_of(write))]
    return [row for row in rows if row[2] not in gone] + added


class QueueOwners:
    """The processes that own the queues of one cluster; publishers come and go beside them."""

    def __init__(self, storage: Storage, has_landed: Callable[[str], bool]) -> None:
        self._storage, self._has_landed = storage, has_landed
        self._warm: dict[str, Warm] = {}

    def restart(self) -> None:
        self._warm.clear()

    def drop(self, table_key: str) -> None:
        self._warm.pop(table_key, None)

    def answer(self, base: Base, question: Question) -> pa.Table:
        rows = self._at(base, question.type.table_key).rows
        if isinstance(question, Existing):
            return located(rows, question.ids).select([ID])
        assert isinstance(question, Matching), f"no request here asks {question}"
        assert (question.column, question.columns) == (ID, (ID,)), f"no request here asks {question}"
        return located(rows, question.values)

    def stage(self, base: Base, stage: TableStage, by: str) -> Staged:
        table_key = stage.announced.table_key
        try:
            at = self._at(base, table_key)
        except OmnirayError as error:
            self.drop(table_key)
            return error
        version = at.version + 1
        if final_path(table_key, version) in self._storage.objects:
            self.drop(table_key)
            return Taken(table_key, version)
        assert isinstance(stage.change, TableWrite), "no round does anything else to a table"
        rows = next_rows(at.rows, stage.change, version)
        path = staging_path(table_key, stage.announced.transaction_uuid)
        self._storage.put_if_absent(path, msgspec.json.encode(rows), by)
        self._keep(table_key, Warm(version, stage.announced.transaction_uuid, rows))
        return StagedPin(pin_of(table_key, version, stage.announced.transaction_uuid, len(rows)), (path,))

    def _at(self, base: Base, table_key: str) -> Warm:
        pin = base.pins[table_key]
        warm = self._warm.get(table_key)
        if warm is not None and (warm.version, warm.transaction) == (pin.version, pin.transaction):
            return warm
        if not base.is_landed(table_key):
            raise Cold(f"{table_key}: version {pin.version} is staged and its queue has lost it")
        self.drop(table_key)
        return self._open(table_key, pin)

    def _open(self, table_key: str, pin: Pin) -> Warm:
        """Open a version by its name, which gives it its final one."""
        if not self._has_landed(pin.transaction):
            raise Violation(f"{table_key}: version {pin.version} is given its final name and is not in the line")
        final = final_path(table_key, pin.version)
        if self._storage.objects.get(final) == FOREIGN:
            raise TableDrift(f"{final} is somebody else's", table_key=table_key)
        rows = read_version(self._storage, table_key, pin)
        if rows is None:
            raise Violation(f"{table_key}: version {pin.version} is pinned and nowhere")
        self._storage.put_if_absent(final, msgspec.json.encode(rows), "")
        warm = Warm(pin.version, pin.transaction, rows)
        self._keep(table_key, warm)
        return warm

    def _keep(self, table_key: str, opened: Warm) -> None:
        warm = self._warm.get(table_key)
        if warm is None or warm.version <= opened.version:
            self._warm[table_key] = opened


class ProcessQueues:
    """The owners as one publisher reaches them: by calls that take their time and may fail before or after the work."""

    def __init__(
        self, owners: QueueOwners, tasks: Tasks, weather: Callable[[], Weather], rng: random.Random, name: str
    ) -> None:
        self._owners, self._tasks, self._weather, self._rng, self._name = owners, tasks, weather, rng, name

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        self._call("judge")
        answers = [self._owners.answer(base, question) for question in questions]
        self._answered("judge")
        return answers

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        outcomes: list[Staged] = []
        for stage in stages:
            self._call("stage")
            outcomes.append(self._owners.stage(base, stage, self._name))
        self._answered("stage")
        return outcomes

    def drop(self, table_keys: Sequence[str]) -> None:
        """At once: the publisher holds its lock meanwhile, so nothing can be seen in between. A call may get lost."""
        if self._rng.random() >= self._weather().store:
            for table_key in table_keys:
                self._owners.drop(table_key)

    def _call(self, kind: str) -> None:
        self._tasks.pause(kind)
        if self._rng.random() < self._weather().cold:
            self._owners.restart()
        self._answered_by_nobody()

    def _answered(self, kind: str) -> None:
        self._answered_by_nobody()
        self._tasks.pause(kind)

    def _answered_by_nobody(self) -> None:
        if self._rng.random() < self._weather().store / 2:
            raise StorageError("the owner of a write queue is gone; tried again")
