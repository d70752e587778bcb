"""A part of a load that a worker read: rows of one table, few of them in memory, many in data files.

Any number of workers make parts at the same time, and the committing process combines them. The keys of rows in data
files are read back from there, so that a part stays small to send however many rows it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import StorageError
from omniray.engine.judge.keylog import key_columns
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.rows.records import (
    BLOCK_BYTES_TARGET,
    BLOCK_ROWS_MAX,
    ConformedBatch,
    RawBatch,
    as_error,
    known_columns,
    numbered,
)
from omniray.engine.rows.row_ids import fill_ids
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.row_sink import RowSink
from omniray.engine.writes.staging_tables import StagingTables

INLINE_ROWS_MAX = 2048
"""So few that all parts of a load together stay small even if each carries its rows."""


@dataclass(frozen=True, slots=True)
class Minted:
    """Which rows had no id and were given one: all, none, or the marked ones."""

    marks: bytes = b""
    all: bool = False

    @classmethod
    def of(cls, marks: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Minted:
        return cls(all=True) if marks.all() else cls(np.packbits(marks).tobytes() if marks.any() else b"")

    def forgotten(self, ids: pa.Array, first: int) -> pa.Array:
        """The ids of rows `first`, `first + 1`, … with minted ones null, as in their source."""
        if not self.marks:
            return ids
        marks = np.unpackbits(np.frombuffer(self.marks, np.uint8), count=first + len(ids))[first:]
        return pc.if_else(pa.array(marks.astype(np.bool_)), pa.scalar(None, pa.string()), ids)


@dataclass(frozen=True, slots=True)
class TablePart:
    """The rows, the operations that announced their files, and their source."""

    table_key: str
    source: str
    rows: pa.Table | StagedRows
    minted: Minted
    announced: tuple[str, ...] = ()

    @property
    def row_count(self) -> int:
        return self.rows.rows if isinstance(self.rows, StagedRows) else int(self.rows.num_rows)

    def keys(self, type: ElementType, tables: StagingTables) -> Iterator[pa.RecordBatch]:
        """The key columns of the rows in their order; a minted id is null."""
        columns = [name for name in key_columns(type) if not (self.minted.all and name == ID)]
        if isinstance(self.rows, StagedRows):
            path = tables.open(self.table_key).path
            read = tables.storage.read_staged
            batches = read(type, path, self.rows, columns) if columns else _nameless(self.rows.rows)
        else:
            batches = iter(self.rows.select(columns).to_batches())
        first = 0
        for batch in batches:
            ids = pa.nulls(len(batch), pa.string()) if self.minted.all else batch.column(ID)
            named = {name: batch.column(name) for name in columns} | {ID: self.minted.forgotten(ids, first)}
            yield pa.RecordBatch.from_pydict(named)
            first += len(batch)


def _nameless(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a type without key columns, whose ids were all minted."""
    yield pa.RecordBatch.from_pydict({ID: pa.nulls(rows, pa.string())})


def read_part(
    batches: Iterable[pa.RecordBatch],
    type: ElementType,
    source: str,
    tables: StagingTables,
    announced: SidecarIntent,
) -> TablePart:
    """Check rows as a stream and stage them if they are many; raises the error of the first one that does not fit.

    `announced` is the write that they belong to.
    """
    lease = tables.new_lease()
    sink = RowSink(type, tables, lambda table: lease.take(announced, table), inline_rows_max=INLINE_ROWS_MAX)
    marks: list[pa.BooleanArray] = []
    try:
        for batch in _conformed(batches, type, source):
            marks.append(pc.is_null(batch.rows[ID]))
            sink.write(fill_ids(batch).rows)
        sink.finish()
    except BaseException:
        sink.close(used=False)
        lease.release()
        raise
    rows = sink.staged if sink.inline is None else sink.inline.combine_chunks()
    minted = pa.chunked_array(marks, pa.bool_()).to_numpy()
    part = TablePart(type.table_key, source, rows, Minted.of(minted), lease.taken)
    sink.close(used=True)
    if part.row_count != len(minted):
        raise StorageError(
            f"{source}: {len(minted)} rows were read and {part.row_count} staged; nothing was written: try again"
        )
    return part


def _conformed(batches: Iterable[pa.RecordBatch], type: ElementType, source: str) -> Iterator[ConformedBatch]:
    first = 1
    for batch in _gathered(batches):
        columns = dict(zip(known_columns(type, batch.schema.names, source), batch.columns, strict=True))
        row, rejections = conform(RawBatch(type, columns, numbered(first, len(batch)), source))
        if rejections:
            raise as_error(rejections[0])
        yield row
        first += len(batch)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about one block: checks of many small batches would be slow."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        for start in range(0, len(batch), BLOCK_ROWS_MAX):
            waiting.append(batch.slice(start, BLOCK_ROWS_MAX))
            if sum(map(len, waiting)) >= BLOCK_ROWS_MAX or sum(one.nbytes for one in waiting) >= BLOCK_BYTES_TARGET:
                yield pa.concat_batches(waiting)
                waiting = []
    if waiting:
        yield pa.concat_batches(waiting)
