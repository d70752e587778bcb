"""A state with uncommitted writes laid over it: the next write of a round is judged on it.

The writes of a round go into one version per table. Each is resolved on top of the writes before it, as if these were
committed: it sees their rows, and not the rows that they removed. A pending row has an address too, outside the range
that Lance uses, so that a later write can replace it like any other row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import QueryError
from omniray.engine.judge.condition import Condition
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.judge.room import Room
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, ElementType, Schema
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows

PENDING_ADDRESS = 1 << 63
"""The first address of a pending row: Lance numbers fragments with 32 bits, and never uses the upper half."""


class _PendingTable:
    """The pending writes of one table: added rows, and removed pinned rows."""

    def __init__(self, type: ElementType) -> None:
        self.type = type
        self.emptied = False  # by an overwrite: no pinned row is left
        self.gone: dict[str, int] = {}  # addresses of removed pinned rows, by id
        self._places: dict[str, int] = {}  # positions of remaining pending rows, by id
        self._writers: dict[str, str] = {}  # the commit id that wrote a pending row, by row id
        self._unlisted: list[tuple[pa.ChunkedArray, str]] = []  # the last added ids, which are in neither of the two
        self._chunks: list[pa.Table] = []
        self._count = 0  # of all added rows
        self._listed = 0  # of those that are listed, or were emptied away
        self.staged: StagedRows | None = None

    def take(self, write: TableWrite, writer: str) -> None:
        if write.mode is Mode.OVERWRITE:
            self.emptied = True
            self.gone, self._places, self._writers = {}, {}, {}
            self._unlisted, self._listed = [], self._count
        for id, address in zip(*_columns(write.replaced, ID, ROWADDR), strict=True):
            if address < PENDING_ADDRESS:
                self.gone[id] = address
            else:
                del self.places[id]
        if isinstance(write.rows, StagedRows):
            self.staged = write.rows
            return
        self._unlisted.append((write.rows[ID], writer))
        self._chunks.append(write.rows)
        self._count += write.rows.num_rows

    @property
    def places(self) -> dict[str, int]:
        """The positions of the remaining rows, by id."""
        self._list()
        return self._places

    @property
    def writers(self) -> dict[str, str]:
        """The commit id that wrote a row, by the row's id."""
        self._list()
        return self._writers

    @property
    def has_rows(self) -> bool:
        """Whether an added row remains."""
        return any(len(ids) for ids, _ in self._unlisted) or bool(self._places)

    def _list(self) -> None:
        """List the ids that were added; in most rounds nobody asks for one, and this is most of their cost."""
        for column, writer in self._unlisted:
            ids = column.to_pylist()
            self._places.update(zip(ids, range(self._listed, self._listed + len(ids)), strict=True))
            self._writers.update(dict.fromkeys(ids, writer))
            self._listed += len(ids)
        self._unlisted = []

    def rows(self) -> pa.Table:
        """The remaining pending rows, in the order in which they were added."""
        if not self._chunks:
            return self.type.arrow.empty_table()
        self._chunks = [pa.concat_tables(self._chunks).combine_chunks()]
        if self._listed == 0 and pc.count_distinct(self._chunks[0][ID]).as_py() == self._count:
            return self._chunks[0]
        positions = np.fromiter(self.places.values(), np.int64, len(self.places))
        return self._chunks[0] if len(positions) == self._count else self._chunks[0].take(np.sort(positions))

    def located(self, columns: Sequence[str]) -> pa.Table:
        """The pending rows with their addresses."""
        rows = self.rows()
        places = np.sort(np.fromiter(self.places.values(), np.uint64, len(self.places)))
        return rows.select(columns).append_column(ROWADDR, pa.array(places + np.uint64(PENDING_ADDRESS)))

    def matching(self, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The pending rows whose column is one of the values, with their addresses."""
        if column == ID and set(columns) <= {ID}:  # every keyed write asks this: answered without reading rows
            found = {id: self.places[id] + PENDING_ADDRESS for id in values.to_pylist() if id in self.places}
            return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})
        rows = self.located(list(dict.fromkeys((*columns, column))))
        return rows.filter(pc.is_in(rows[column], value_set=values)).select([*columns, ROWADDR])

    def write(self) -> TableWrite:
        """All pending changes as one write."""
        gone = pa.table({ID: pa.array(self.gone, pa.string()), ROWADDR: pa.array(self.gone.values(), pa.uint64())})
        rows = self.staged or self.rows()
        if self.emptied:
            return TableWrite(Mode.OVERWRITE, rows, NOTHING_REPLACED)
        if not self.gone:
            return TableWrite(Mode.APPEND, rows, NOTHING_REPLACED)
        mode = Mode.MERGE if self.staged or self.has_rows else Mode.DELETE
        return TableWrite(mode, rows, gone)

    def is_void(self) -> bool:
        """Whether nothing is left to do: every added row was removed again."""
        return not (self.emptied or self.gone or self.has_rows or self.staged)


class Overlay:
    """The state after some uncommitted writes."""

    def __init__(self, state: State, schema: Schema) -> None:
        self._state, self._schema = state, schema
        self._pending: dict[str, _PendingTable] = {}
        self.matched = 0  # rows, by all conditions so far

    def take(self, tables: Mapping[str, TableWrite], writer: str) -> None:
        """Lay a resolved write over everything so far; `writer` is its commit id."""
        for key, write in tables.items():
            if key not in self._pending:
                self._pending[key] = _PendingTable(self._schema.by_table_key[key])
            self._pending[key].take(write, writer)

    def writes(self) -> dict[str, TableWrite]:
        """All writes together, as one write per table."""
        return {key: pending.write() for key, pending in self._pending.items() if not pending.is_void()}

    def writer_of(self, table_key: str, id: str) -> str | None:
        """The commit id of the pending write that wrote a row, if it still exists."""
        pending = self._pending.get(table_key)
        return pending.writers[id] if pending is not None and id in pending.places else None

    # As a state

    def version(self, table_key: str) -> int:
        """The version that the table will have; the writes of a round make one version together."""
        return self._state.version(table_key) + (1 if table_key in self._pending else 0)

    def count(self, table_key: str) -> int:
        pending = self._pending.get(table_key)
        if pending is None:
            return self._state.count(table_key)
        pinned = 0 if pending.emptied else self._state.count(table_key) - len(pending.gone)
        return pinned + len(pending.places)

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        pending = self._pending.get(table_key)
        if pending is None:
            return self._state.existing(table_key, ids)
        found = [id for id in ids.to_pylist() if id in pending.places]
        if self._hides_all(table_key, pending):
            return pa.array(found, pa.string())
        pinned = self._state.existing(table_key, ids).to_pylist()
        return pa.array([*found, *(id for id in pinned if id not in pending.gone)], pa.string())

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        pending = self._pending.get(table_key)
        if pending is None:
            return self._state.matching(table_key, column, values, columns)
        found = pending.matching(column, values, columns)
        if self._hides_all(table_key, pending):
            return found
        pinned = self._state.matching(table_key, column, values, list(dict.fromkeys((*columns, ID))))
        return _stacked(_left(pinned, pending).select(found.column_names), found)

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        pending = self._pending.get(table_key)
        if pending is None:
            return self._state.scan(table_key, columns)
        rows = pending.located(columns)
        return pa.RecordBatchReader.from_batches(rows.schema, self._scanned(table_key, columns, pending, rows))

    def select(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        try:
            found = self._selected(table_key, columns, where, room)
        except QueryError:  # so many were read before it was known that there are more
            self.matched += room.rows
            raise
        self.matched += found.num_rows
        return found

    def _selected(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        pending = self._pending.get(table_key)
        if pending is None:
            return self._state.select(table_key, columns, where, room)
        found = pending.rows().filter(where.expression).select(columns)
        if self._hides_all(table_key, pending):
            return found
        pinned = self._state.select(table_key, list(dict.fromkeys((*columns, ID))), where, room)
        return _stacked(_left(pinned, pending).select(columns), found)

    def _hides_all(self, table_key: str, pending: _PendingTable) -> bool:
        """Whether no pinned row can be left, so that no look-up is needed."""
        return pending.emptied or self._state.count(table_key) == 0

    def _scanned(
        self, table_key: str, columns: Sequence[str], pending: _PendingTable, rows: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        if not self._hides_all(table_key, pending):
            for batch in self._state.scan(table_key, list(dict.fromkeys((*columns, ID)))):
                left = _left(pa.Table.from_batches([batch]), pending).select(rows.column_names)
                yield from left.cast(rows.schema).to_batches()
        yield from rows.to_batches()


def _left(pinned: pa.Table, pending: _PendingTable) -> pa.Table:
    """The pinned rows that no pending write has removed."""
    if not pending.gone:
        return pinned
    return pinned.filter(pc.invert(pc.is_in(pinned[ID], value_set=pa.array(pending.gone, pa.string()))))


def _stacked(pinned: pa.Table, pending: pa.Table) -> pa.Table:
    """Both in one table. Their schemas differ: only rows read by Lance mark ids as not nullable."""
    return pa.concat_tables([pinned, pending], promote_options="default")


def _columns(table: pa.Table, *names: str) -> list[list[object]]:
    return [table[name].to_pylist() for name in names]
