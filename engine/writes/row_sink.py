"""The sink for a load's rows of one table: in memory while they are few, in data files of their own after that."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from omniray.engine.base.failpoints import Point, reach
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.storage import StagedRows
from omniray.engine.tables.table import Table
from omniray.engine.writes.staging_tables import StagingTables

INLINE_ROWS_MAX = 16_384
INLINE_BYTES_MAX = 8 << 20
_AHEAD_BATCHES = 4
_POLL_S = 0.2


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
        self._queue: queue.Queue[pa.RecordBatch | None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._staging: Future[StagedRows] | None = None
        self._finished = False
        self._inline: pa.Table | None = None
        self._staged: StagedRows | None = None
        self._rewritten: tuple[pa.Array, pa.Table, StagedRows] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._queue is not None:
            self._send(batch)
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
        if self._staging is not None:
            self._send(None)
            self.take(self._staging.result())
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
        if self._staging is not None and not self._finished:
            self._abandon(self._staging)
        if self._staged is not None and (not used or self._rewritten is not None):
            self._storage.forget_rows(self._table().path, self._staged)
        if not used:
            self._forget_rewritten()
        if self._pool is not None:
            self._pool.shutdown()

    # Staging

    def _table(self) -> Table:
        return self._tables.open(self._type.table_key)

    def _start_staging(self) -> None:
        table = self._table()
        self._since_us = self._announce(table)
        self._queue = queue.Queue(maxsize=_AHEAD_BATCHES)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"omniray-load-{self._type.name}")
        reader = pa.RecordBatchReader.from_batches(self._type.arrow, self._arriving(self._queue))
        self._staging = self._pool.submit(self._stage, table, reader, self._since_us)
        for batch in self._batches:
            self._send(batch)
        self._batches = []

    def _stage(self, table: Table, rows: pa.RecordBatchReader, since_us: int) -> StagedRows:
        return replace(self._storage.stage_rows(table, rows), staged_since_us=since_us)

    def _arriving(self, arrivals: queue.Queue[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
        while (batch := arrivals.get()) is not None:
            yield batch

    def _send(self, batch: pa.RecordBatch | None) -> None:
        """Hand a batch to the staging thread; if the thread has failed, raise its error."""
        assert self._queue is not None, "nothing is being staged"
        assert self._staging is not None, "nothing is being staged"
        while True:
            if self._staging.done():
                self._staging.result()
            try:
                return self._queue.put(batch, timeout=_POLL_S)
            except queue.Full:
                continue

    def _abandon(self, staging: Future[StagedRows]) -> None:
        """After a failure of the load, let the staging thread end, so that its files are known."""
        with contextlib.suppress(Exception):  # the load's own error is reported
            self._send(None)
            self.take(staging.result())

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
