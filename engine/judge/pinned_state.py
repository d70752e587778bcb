"""The pinned graph that a write is judged against: tables at the versions of one object of the line.

Handles are kept warm between writes by `TableCache`: a writer reads nothing that it wrote itself. `PinnedState` notes
which tables a judgement consulted, so that it stands when only other tables have moved.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.filters import among
from omniray.engine.finalise import give_final_name, wait_for_final_name
from omniray.engine.line import CommitObject, Pin
from omniray.engine.schema import ID, Schema
from omniray.engine.store import ObjectStore
from omniray.engine.table import ROWADDR, Table
from omniray.engine.tables import StagedVersion, TableStorage

KNOWN_IDS_ROWS_MAX = 500_000


class KnownIds:
    """All ids of a table of moderate size and where their rows are, in memory: asking for a key costs no request."""

    __slots__ = ("_addresses", "version")

    def __init__(self, version: int, addresses: dict[str, int]) -> None:
        self.version = version
        self._addresses = addresses

    @classmethod
    def read(cls, table: Table) -> KnownIds:
        addresses: dict[str, int] = {}
        for batch in table.scan([ID], addresses=True):
            addresses.update(zip(batch.column(ID).to_pylist(), batch.column(ROWADDR).to_pylist(), strict=True))
        return cls(table.version, addresses)

    def among(self, values: pa.Array) -> pa.Array:
        """Those of the values that exist."""
        return pa.array([v for v in values.to_pylist() if v in self._addresses], pa.string())

    def located(self, values: pa.Array) -> pa.Table:
        """Those of the values that exist, with their addresses."""
        found = {v: self._addresses[v] for v in values.to_pylist() if v in self._addresses}
        return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})

    def advance(self, version: int, *, removed: pa.Array, placed: pa.Table) -> None:
        """Follow a version that this process made itself: ids that went, and where those that came are."""
        for value in removed.to_pylist():
            self._addresses.pop(value, None)
        self._addresses.update(zip(placed[ID].to_pylist(), placed[ROWADDR].to_pylist(), strict=True))
        self.version = version


class TableCache:
    """Warm handles, one per table: the newest version this process wrote or opened."""

    def __init__(self, store: ObjectStore, storage: TableStorage, schema: Schema, *, read_only: bool) -> None:
        self._store, self._storage, self._schema, self._read_only = store, storage, schema, read_only
        self._tables: dict[str, Table] = {}
        self._known: dict[str, KnownIds] = {}
        self._lock = threading.Lock()

    def open(self, table_key: str, pin: Pin) -> Table:
        """The table at a pin: the warm handle if it is that version, else by URI once it has its final name."""
        if (warm := self._warm(table_key, pin)) is not None:
            return warm
        finish = wait_for_final_name if self._read_only else give_final_name
        finish(self._store, table_key, pin)
        table = self._storage.open(self._schema.by_table_key[table_key], pin.version, pin.transaction, pin.rows)
        self.keep(table)
        return table

    def is_warm(self, table_key: str, pin: Pin) -> bool:
        """Whether opening the table at this pin costs nothing."""
        return self._warm(table_key, pin) is not None

    def _warm(self, table_key: str, pin: Pin) -> Table | None:
        with self._lock:
            warm = self._tables.get(table_key)
        return warm if warm is not None and (warm.version, warm.transaction) == (pin.version, pin.transaction) else None

    def keep(self, table: Table) -> None:
        with self._lock:
            warm = self._tables.get(table.type.table_key)
            if warm is None or warm.version <= table.version:
                self._tables[table.type.table_key] = table

    def drop(self, table_key: str) -> None:
        """After a lost race the handle must not be used again: at the same number it shows the loser's rows."""
        with self._lock:
            self._tables.pop(table_key, None)
            self._known.pop(table_key, None)

    def known_ids(self, table: Table) -> KnownIds | None:
        """The ids of a table at its version, if it is small enough to keep them all."""
        if table.rows > KNOWN_IDS_ROWS_MAX:
            return None
        known = self._known.get(table.type.table_key)
        if known is None or known.version != table.version:
            known = KnownIds.read(table)
            self._known[table.type.table_key] = known
        return known

    def follow(self, version: StagedVersion, *, removed: pa.Array) -> None:
        """Keep the handle of a version that this process made, and its ids: the next write reads nothing of them."""
        self.keep(version.table)
        key = version.table.type.table_key
        known = self._known.get(key)
        if known is None:
            return
        if version.placed is None or known.version != version.version - 1 or version.rows > KNOWN_IDS_ROWS_MAX:
            self._known.pop(key, None)
        else:
            known.advance(version.version, removed=removed, placed=version.placed)


class PinnedState:
    """The graph at one object of the line."""

    def __init__(self, cache: TableCache, pins: Mapping[str, Pin]) -> None:
        self._cache = cache
        self._pins = pins
        self.consulted: set[str] = set()

    def count(self, table_key: str) -> int:
        self.consulted.add(table_key)
        return self._pins[table_key].rows

    def version(self, table_key: str) -> int:
        return self._pins[table_key].version

    def table(self, table_key: str) -> Table:
        self.consulted.add(table_key)
        return self._cache.open(table_key, self._pins[table_key])

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        """Those of the ids that the table holds."""
        if self.count(table_key) == 0 or len(ids) == 0:
            return pa.array([], pa.string())
        table = self.table(table_key)
        known = self._cache.known_ids(table)
        if known is not None:
            return known.among(ids)
        return _read(table, [ID], pc.field(ID).isin(ids))[ID].combine_chunks()

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The rows whose column is one of a few values, with their addresses."""
        table = self.table(table_key)
        if column == ID:
            known = self._cache.known_ids(table)
            if known is not None and set(columns) <= {ID}:
                return known.located(values)
            values = self.existing(table_key, values)
        if len(values) == 0:
            return _empty(table, columns)
        return _read(table, columns, among(column, values), addresses=True)

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self.table(table_key).scan(columns, addresses=True)

    def select(self, table_key: str, columns: Sequence[str], where: pc.Expression) -> pa.Table:
        """The rows that satisfy a condition."""
        return _read(self.table(table_key), columns, where)


def _read(table: Table, columns: Sequence[str], where: pc.Expression, *, addresses: bool = False) -> pa.Table:
    return table.scan(columns, where, addresses=addresses).read_all()


def _empty(table: Table, columns: Sequence[str]) -> pa.Table:
    fields = [table.type.arrow.field(name) for name in columns]
    return pa.schema([*fields, pa.field(ROWADDR, pa.uint64())]).empty_table()


def moved(tables: set[str], before: CommitObject, after: CommitObject) -> set[str]:
    """Those of the tables whose version differs between two objects."""
    return {t for t in tables if before.pins[t].transaction != after.pins[t].transaction}
