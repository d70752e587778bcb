"""Collects the rows that a merge writes to one table: in memory while they are few, in data files of their own after
that.

Files are written ahead of the commit and any later attempt may use them; a preview writes none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.failpoints import Point, reach
from omniray.engine.branches.table_merge import MergedBatch
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.row_stream import RowStream
from omniray.engine.tables.storage import StagedRows, TableStorage
from omniray.engine.tables.table import ROWADDR

INLINE_ROWS_MAX = 16_384
INLINE_BYTES_MAX = 8 << 20


class MergeRows:
    """The rows of one table as they come. `begin_staging` opens the files for them; without it none are written."""

    def __init__(self, type: ElementType, begin_staging: Callable[[], RowStream] | None) -> None:
        self._type, self._begin_staging = type, begin_staging
        self._rows: list[pa.Table] = []
        self._replaced: list[pa.Table] = []  # while the rows are few
        self._removed_at: list[npt.NDArray[np.uint64]] = []  # when they are many: addresses alone, of millions
        self._bytes = 0
        self._stream: RowStream | None = None
        self._staged: StagedRows | None = None
        self.written = self.removed = self.affected = self.settled = 0

    @property
    def is_large(self) -> bool:
        """Whether the rows are, or would be, in files."""
        return self._stream is not None or self._bytes > INLINE_BYTES_MAX or self.written > INLINE_ROWS_MAX

    def add(self, batch: MergedBatch) -> None:
        self.written += batch.rows.num_rows
        self.removed += batch.replaced.num_rows
        self.settled += batch.settled
        self.affected += _ids_of(batch.rows, batch.replaced)
        self._bytes += batch.rows.nbytes
        self._replaced.append(batch.replaced)
        self._rows.append(batch.rows)
        if self.is_large:
            if self._begin_staging is not None:  # of a preview only the numbers are wanted
                self._stage(self._begin_staging)
            self._rows, self._replaced = [], []

    def _stage(self, begin: Callable[[], RowStream]) -> None:
        """Write what has come to files, and keep no more of the rows to remove than where they are."""
        self._stream = self._stream or begin()
        for rows in self._rows:
            for one in rows.to_batches():
                self._stream.write(one)
        self._removed_at += [replaced[ROWADDR].to_numpy() for replaced in self._replaced]

    def move(self, moved: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]) -> None:
        """Follow the rows to remove to another version of the table, which has all of them."""
        self._removed_at = [moved(addresses) for addresses in self._removed_at]
        for at, replaced in enumerate(self._replaced):
            addresses = pa.array(moved(replaced[ROWADDR].to_numpy()))
            self._replaced[at] = pa.table({ID: replaced[ID], ROWADDR: addresses})

    def finish(self) -> None:
        """All rows have come."""
        if self._stream is not None:
            self._staged = self._stream.finish()
            reach(Point.MERGE_AFTER_ROWS)

    def write(self) -> TableWrite | None:
        """What is to be done to the table; None if nothing."""
        if self.written + self.removed == 0:
            return None
        if self._staged is None:
            replaced = pa.concat_tables(self._replaced).combine_chunks()
            rows = pa.concat_tables([self._type.arrow.empty_table(), *self._rows]).combine_chunks()
            return TableWrite(Mode.MERGE if rows.num_rows else Mode.DELETE, rows, replaced)
        addresses = pa.array(np.concatenate(self._removed_at))
        no_ids = pa.nulls(len(addresses), pa.string())
        return TableWrite(Mode.MERGE, self._staged, pa.table({ID: no_ids, ROWADDR: addresses}))

    def close(self, storage: TableStorage, table_path: str, *, used: bool) -> None:
        """Release everything; files that nothing refers to are deleted."""
        if self._stream is None:
            return
        staged = self._staged or self._stream.abandon()
        if staged is not None and not used:
            storage.forget_rows(table_path, staged)
        self._stream.close()


def _ids_of(rows: pa.Table, replaced: pa.Table) -> int:
    """How many ids a write touches: those written, and those only removed."""
    again = pc.is_in(replaced[ID], value_set=rows[ID].combine_chunks())
    return int(rows.num_rows + replaced.num_rows - np.count_nonzero(again.to_numpy()))
