"""Handles and ids that are cached between writes: a writer reads nothing that it wrote itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pyarrow as pa

from omniray.engine.line.commit_object import Pin
from omniray.engine.schema.types import ID, Schema
from omniray.engine.tables.storage import StagedVersion, TableStorage
from omniray.engine.tables.table import ROWADDR, Table

KNOWN_IDS_ROWS_MAX = 500_000
_CHANGING = (-1, "")  # the identity of no version


class KnownIds:
    """All ids of a table of moderate size and where their rows are, in memory: asking for a key costs no request."""

    __slots__ = ("_addresses", "identity")

    def __init__(self, identity: tuple[int, str], addresses: dict[str, int]) -> None:
        self.identity = identity
        self._addresses = addresses

    @classmethod
    def read(cls, table: Table) -> KnownIds:
        addresses: dict[str, int] = {}
        for batch in table.scan([ID], addresses=True):
            addresses.update(zip(batch.column(ID).to_pylist(), batch.column(ROWADDR).to_pylist(), strict=True))
        return cls(table.identity, addresses)

    def copied(self, identity: tuple[int, str]) -> KnownIds | None:
        """A copy, if these are the ids of this version; another thread may be changing them."""
        if self.identity != identity:
            return None
        try:
            addresses = dict(self._addresses)
        except RuntimeError:
            return None
        return KnownIds(identity, addresses) if self.identity == identity else None

    def among(self, values: pa.Array) -> pa.Array:
        """The values that exist."""
        return pa.array([v for v in values.to_pylist() if v in self._addresses], pa.string())

    def located(self, values: pa.Array) -> pa.Table:
        """The values that exist, with their addresses."""
        found = {v: self._addresses[v] for v in values.to_pylist() if v in self._addresses}
        return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})

    def advance(self, identity: tuple[int, str], *, removed: pa.Array, placed: pa.Table) -> None:
        """Follow a version that this process made: ids that were removed, and the addresses of those added."""
        self.identity = _CHANGING
        for value in removed.to_pylist():
            self._addresses.pop(value, None)
        self._addresses.update(zip(placed[ID].to_pylist(), placed[ROWADDR].to_pylist(), strict=True))
        self.identity = identity


class TableCache:
    """Warm handles, one per table: the newest version this process wrote or opened."""

    def __init__(self, storage: TableStorage, schema: Schema) -> None:
        self._storage, self._schema = storage, schema
        self._tables: dict[str, Table] = {}
        self._known: dict[str, KnownIds] = {}
        self._lock = threading.Lock()
        self._others: Callable[[], Iterable[TableCache]] = tuple

    def look_beside(self, others: Callable[[], Iterable[TableCache]]) -> None:
        """Take what is equal from the caches of other branches of this process, instead of reading it."""
        self._others = others

    def open(self, table_key: str, pin: Pin, *, is_final: bool = False) -> Table:
        """The table at a pin: the warm handle if it is that version, else by its path."""
        if (warm := self._warm(table_key, pin)) is not None:
            return warm
        type = self._schema.by_table_key[table_key]
        beside = next((t for other in self._others() if (t := other._warm(table_key, pin)) is not None), None)
        if beside is not None:
            table = self._storage.open_beside(type, pin, beside)
        else:
            table = self._storage.open(type, pin, is_final=is_final)
        self.keep(table)
        return table

    def is_warm(self, table_key: str, pin: Pin) -> bool:
        """Whether opening the table at this pin costs nothing."""
        return self._warm(table_key, pin) is not None

    def _warm(self, table_key: str, pin: Pin) -> Table | None:
        with self._lock:
            warm = self._tables.get(table_key)
        return warm if warm is not None and warm.identity == pin.identity else None

    def keep(self, table: Table) -> None:
        with self._lock:
            warm = self._tables.get(table.type.table_key)
            if warm is None or warm.version <= table.version:
                self._tables[table.type.table_key] = table

    def drop(self, table_key: str) -> None:
        """Drop a handle after a lost race: at the same number it shows the loser's rows."""
        with self._lock:
            self._tables.pop(table_key, None)
            self._known.pop(table_key, None)

    def known_ids(self, table: Table) -> KnownIds | None:
        """The ids of a table at its version, if it is small enough to keep them all."""
        if table.rows > KNOWN_IDS_ROWS_MAX:
            return None
        known = self._known.get(table.type.table_key)
        if known is None or known.identity != table.identity:
            known = self._known_beside(table) or KnownIds.read(table)
            self._known[table.type.table_key] = known
        return known

    def copied_ids(self, table: Table) -> KnownIds | None:
        """The ids of a table if they are known, for a reader beside the writer: it moves the known ones on."""
        known = self._known.get(table.type.table_key)
        return None if known is None else known.copied(table.identity)

    def _known_beside(self, table: Table) -> KnownIds | None:
        for other in self._others():
            known = other._known.get(table.type.table_key)
            if known is not None and (copied := known.copied(table.identity)) is not None:
                return copied
        return None

    def follow(self, before: Table, version: StagedVersion, *, removed: pa.Array) -> None:
        """Cache the handle and the ids of a version that this process made: the next write reads neither."""
        self.keep(version.table)
        key = version.table.type.table_key
        known = self._known.get(key)
        if known is None:
            return
        if version.placed is None or known.identity != before.identity or version.rows > KNOWN_IDS_ROWS_MAX:
            self._known.pop(key, None)
        else:
            known.advance(version.table.identity, removed=removed, placed=version.placed)
