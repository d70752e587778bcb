"""The sink for a load's rows of one table: in memory while they are few, in data files of their own after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from omniray.engine.base.failpoints import Point, reach
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.row_stream import RowStream
from omniray.engine.tables.storage import StagedRows
from omniray.engine.tables.table import Table
from omniray.engine.writes.staging_tables import StagingTables

INLINE_ROWS_MAX = 16_384
INLINE_BYTES_MAX = 8 << 20


class RowSink:
    """Takes batches in order; afterwards gives the rows without those that a judgement drops.

    `announce` is called with the table before the first data file is written, so that a sweep spares the files. It
    returns the time by the store's clock, which the staged rows carry: a sweep with a later time may delete them.
    """

    def __init__(
        self,
        type: ElementType,
        tables: StagingTables,
        announce: Callable[[Table], int],
        *,
        inline_rows_max: int | None = None,
    ) -> None:
        self._type, self._tables, self._announce = type, tables, announce
        self._storage = tables.storage
        self._inline_rows_max = INLINE_ROWS_MAX if inline_rows_max is None else inline_rows_max
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._since_us = 0
        self._stream: RowStream | None = None
        self._finished = False
        self._inline: pa.Table | None = None
        self._staged: StagedRows | None = None
        self._rewritten: tuple[pa.Array, pa.Table, StagedRows] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._stream is not None:
            self._stream.write(batch)
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows > self._inline_rows_max or self._bytes > INLINE_BYTES_MAX:
            self._start_staging()

    def take(self, staged: StagedRows) -> None:
        """Add rows that a worker staged; rows added by `write` come after all of them."""
        self._staged = staged if self._staged is None else self._staged.and_then(staged)

    @property
    def staged(self) -> StagedRows:
        """The staged rows."""
        return self._staged or StagedRows((), 0, self._since_us)

    def finish(self) -> None:
        """The source has ended."""
        if self._staged is not None and self._batches:
            self._start_staging()
        if self._stream is not None:
            self.take(self._stream.finish())
            reach(Point.STAGE_AFTER_ROWS)
        elif self._staged is None:
            self._inline = pa.Table.from_batches(self._batches, self._type.arrow)
        self._batches, self._finished = [], True

    def rows(self, *, dropped: pa.Int64Array, adopted: pa.Table) -> pa.Table | StagedRows:
        """The rows without the dropped positions; adopted rows (`row`, `id`) get the id of the row they replace."""
        if self._inline is not None:
            return edited(self._inline, 0, dropped.to_numpy(), adopted)
        assert self._staged is not None, "rows() before finish()"
        if len(dropped) == 0 and adopted.num_rows == 0:
            self._forget_rewritten()  # from an earlier judgement on an older state
            return self._staged
        if self._rewritten is None or not (self._rewritten[0].equals(dropped) and self._rewritten[1].equals(adopted)):
            self._forget_rewritten()
            self._rewritten = (dropped, adopted, self._rewrite(self._staged, dropped, adopted))
        return self._rewritten[2]

    @property
    def inline(self) -> pa.Table | None:
        """All rows, if they are in memory."""
        return self._inline

    def rows_at(self, positions: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The rows at sorted positions, as they were written, without null values."""
        wanted = np.asarray(positions, np.int64)
        first = 0
        for batch in self._written():
            low, high = np.searchsorted(wanted, [first, first + batch.num_rows])
            for row in batch.take(pa.array(wanted[low:high] - first)).to_pylist():
                yield {name: value for name, value in row.items() if value is not None}
            first += batch.num_rows

    def _written(self) -> Iterator[pa.RecordBatch]:
        if self._inline is not None:
            yield from self._inline.to_batches()
        elif self._staged is not None:
            yield from self._storage.read_staged(self._type, self._table().path, self._staged)

    def close(self, *, used: bool) -> None:
        """Delete staged files that the graph does not refer to: all, or the ones that a rewrite replaced."""
        if self._stream is not None and not self._finished and (staged := self._stream.abandon()) is not None:
            self.take(staged)
        if self._staged is not None and (not used or self._rewritten is not None):
            self._storage.forget_rows(self._table().path, self._staged)
        if not used:
            self._forget_rewritten()
        if self._stream is not None:
            self._stream.close()

    # Staging

    def _table(self) -> Table:
        return self._tables.open(self._type.table_key)

    def _start_staging(self) -> None:
        table = self._table()
        self._since_us = self._announce(table)
        self._stream = RowStream(self._storage, table, self._since_us)
        for batch in self._batches:
            self._stream.write(batch)
        self._batches = []

    def _stage(self, table: Table, rows: pa.RecordBatchReader, since_us: int) -> StagedRows:
        return replace(self._storage.stage_rows(table, rows), staged_since_us=since_us)

    # Editing

    def _rewrite(self, staged: StagedRows, dropped: pa.Int64Array, adopted: pa.Table) -> StagedRows:
        """Stage the edited rows anew, with the time of the old files: a sink of staged rows alone has no other."""
        table = self._table()
        reader = pa.RecordBatchReader.from_batches(self._type.arrow, self._edited_batches(staged, dropped, adopted))
        return self._stage(table, reader, staged.staged_since_us)

    def _edited_batches(
        self, staged: StagedRows, dropped: pa.Int64Array, adopted: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        position = 0
        positions = dropped.to_numpy()
        for batch in self._storage.read_staged(self._type, self._table().path, staged):
            yield from edited(pa.Table.from_batches([batch]), position, positions, adopted).to_batches()
            position += batch.num_rows

    def _forget_rewritten(self) -> None:
        if self._rewritten is not None:
            self._storage.forget_rows(self._table().path, self._rewritten[2])
            self._rewritten = None


def edited(
    rows: pa.Table, first: int, dropped: np.ndarray[tuple[int], np.dtype[np.int64]], adopted: pa.Table
) -> pa.Table:
    """Rows at positions `first`, `first + 1`, … with adopted ids set and dropped rows left out."""
    adopted_at = adopted["row"].to_numpy()
    low, high = np.searchsorted(adopted_at, [first, first + rows.num_rows])
    if high > low:
        ids = rows[ID].to_numpy().copy()
        ids[adopted_at[low:high] - first] = adopted["id"].slice(low, high - low).to_numpy()
        rows = rows.set_column(0, rows.schema.field(0), pa.array(ids, pa.string()))
    low, high = np.searchsorted(dropped, [first, first + rows.num_rows])
    if high == low:
        return rows
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[dropped[low:high] - first] = False
    return rows.filter(pa.array(kept))
