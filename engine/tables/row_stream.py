"""Writes rows to new data files while they are still being made: Lance pulls them in a thread of its own.

A bounded number of batches waits in between, so memory stays bounded for any number of rows.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from omniray.engine.tables.storage import StagedRows, TableStorage
from omniray.engine.tables.table import Table

_AHEAD_BATCHES = 4
_POLL_S = 0.2


class RowStream:
    """Data files that are being written; no table refers to them yet. `since_us` is a time before their first byte."""

    def __init__(self, storage: TableStorage, table: Table, since_us: int) -> None:
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(maxsize=_AHEAD_BATCHES)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"omniray-rows-{table.type.name}")
        reader = pa.RecordBatchReader.from_batches(table.type.arrow, self._arriving())
        self._staging = self._pool.submit(lambda: replace(storage.stage_rows(table, reader), staged_since_us=since_us))

    def write(self, batch: pa.RecordBatch) -> None:
        self._send(batch)

    def finish(self) -> StagedRows:
        """The files, once all rows are in them."""
        self._send(None)
        return self._staging.result()

    def abandon(self) -> StagedRows | None:
        """End early, after a failure; the files written so far, if they are known."""
        with contextlib.suppress(Exception):  # the failure itself is reported
            return self.finish()
        return None

    def close(self) -> None:
        self._pool.shutdown()

    def _arriving(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._queue.get()) is not None:
            yield batch

    def _send(self, batch: pa.RecordBatch | None) -> None:
        """Hand a batch to the thread; if the thread has failed, raise its error."""
        while True:
            if self._staging.done():
                self._staging.result()
            try:
                return self._queue.put(batch, timeout=_POLL_S)
            except queue.Full:
                continue
