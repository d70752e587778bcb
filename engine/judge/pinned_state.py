"""The pinned graph that a write is judged against: tables at the versions of one object of the line.

It notes which tables a judgement consulted, so that the judgement stays valid when only other tables have moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.judge.condition import Condition
from omniray.engine.judge.room import Room
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.schema.types import ID
from omniray.engine.tables.cache import KnownIds, TableCache
from omniray.engine.tables.filters import among
from omniray.engine.tables.table import ROWADDR, Table


class Pinning(Protocol):
    """An object of the line, or the base of an attempt."""

    @property
    def pins(self) -> Mapping[str, Pin]: ...

    def is_final(self, pin: Pin) -> bool: ...


class PinnedState:
    """The graph at one object of the line. `is_beside_writer` says that the branch may be written to meanwhile."""

    def __init__(self, cache: TableCache, base: Pinning, *, is_beside_writer: bool = False) -> None:
        self._cache, self._base, self._is_beside_writer = cache, base, is_beside_writer
        self._copies: dict[str, KnownIds | None] = {}
        self._pins = base.pins
        self.consulted: set[str] = set()

    def count(self, table_key: str) -> int:
        self.consulted.add(table_key)
        return self._pins[table_key].rows

    def version(self, table_key: str) -> int:
        return self._pins[table_key].version

    def table(self, table_key: str) -> Table:
        self.consulted.add(table_key)
        pin = self._pins[table_key]
        return self._cache.open(table_key, pin, is_final=self._base.is_final(pin))

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        """The ids that exist in the table."""
        if self.count(table_key) == 0 or len(ids) == 0:
            return pa.array([], pa.string())
        table = self.table(table_key)
        known = self._known_ids(table)
        if known is not None:
            return known.among(ids)
        return _read(table, [ID], pc.field(ID).isin(ids))[ID].combine_chunks()

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The rows whose column is one of a few values, with their addresses."""
        table = self.table(table_key)
        if column == ID:
            known = self._known_ids(table)
            if known is not None and set(columns) <= {ID}:
                return known.located(values)
            values = self.existing(table_key, values)
        if len(values) == 0:
            return _empty(table, columns)
        return _read(table, columns, among(column, values), addresses=True)

    def _known_ids(self, table: Table) -> KnownIds | None:
        if not self._is_beside_writer:
            return self._cache.known_ids(table)
        key = table.type.table_key
        if key not in self._copies:
            self._copies[key] = self._cache.copied_ids(table)
        return self._copies[key]

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self.table(table_key).scan(columns, addresses=True)

    def select(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        """The rows that satisfy a condition; no more of them are read than there is room for."""
        return room.read(self.table(table_key).scan(columns, where.expression))


def _read(table: Table, columns: Sequence[str], where: pc.Expression, *, addresses: bool = False) -> pa.Table:
    return table.scan(columns, where, addresses=addresses).read_all()


def _empty(table: Table, columns: Sequence[str]) -> pa.Table:
    fields = [table.type.arrow.field(name) for name in columns]
    return pa.schema([*fields, pa.field(ROWADDR, pa.uint64())]).empty_table()


def moved(tables: set[str], before: CommitObject, after: CommitObject) -> set[str]:
    """The tables whose version differs between two objects."""
    return {t for t in tables if before.pins[t].identity != after.pins[t].identity}
