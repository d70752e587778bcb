"""A part of a load, made by a worker: rows in data files, or few rows in memory, and their keys.

Any number of workers make parts at the same time, from sources that can be read again: a part that fails is made anew
from its beginning, and the files of the first try are left to the sweep. Nothing refers to them before the committing
process has combined all parts and committed the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import StorageError
from omniray.engine.judge.keylog import KeyLog, PackedKeys, key_columns
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.rows.records import (
    BLOCK_BYTES_TARGET,
    BLOCK_ROWS_MAX,
    ConformedBatch,
    RawBatch,
    Rejection,
    as_error,
    known_columns,
    numbered,
)
from omniray.engine.rows.row_ids import fill_ids
from omniray.engine.rows.row_validation import conform, conform_block
from omniray.engine.rows.sources import Source
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.row_sink import RowSink
from omniray.engine.writes.staging_tables import StagingTables

INLINE_ROWS_MAX = 2048
"""So few that all parts of a load together stay small even if each carries its rows."""

Rows: TypeAlias = pa.Table | StagedRows


def count_of(rows: Rows) -> int:
    return rows.rows if isinstance(rows, StagedRows) else int(rows.num_rows)


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
class KeysInRows:
    """The keys are read back from the rows, so that a part stays small to send however many rows it has."""

    source: str
    minted: Minted

    def read(self, rows: Rows, type: ElementType, tables: StagingTables) -> Iterator[pa.RecordBatch]:
        """The key columns of the rows in their order; a minted id is null."""
        columns = [name for name in key_columns(type) if not (self.minted.all and name == ID)]
        if isinstance(rows, StagedRows):
            path = tables.open(type.table_key).path
            read = tables.storage.read_staged
            batches = read(type, path, rows, columns) if columns else _nameless(rows.rows)
        else:
            batches = iter(rows.select(columns).to_batches())
        first = 0
        for batch in batches:
            ids = pa.nulls(len(batch), pa.string()) if self.minted.all else batch.column(ID)
            named = {name: batch.column(name) for name in columns} | {ID: self.minted.forgotten(ids, first)}
            yield pa.RecordBatch.from_pydict(named)
            first += len(batch)


def _nameless(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a type without key columns, whose ids were all minted."""
    yield pa.RecordBatch.from_pydict({ID: pa.nulls(rows, pa.string())})


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of each table, their keys, the refused records, and the operations that announced the data files."""

    tables: Mapping[str, Rows]
    keys: PackedKeys | KeysInRows
    rejections: tuple[Rejection, ...] = ()
    announced: tuple[str, ...] = ()

    @property
    def row_count(self) -> int:
        return sum(map(count_of, self.tables.values()))

    @property
    def is_staged(self) -> bool:
        """Whether all rows are in data files."""
        return all(isinstance(rows, StagedRows) for rows in self.tables.values())

    def add_keys(self, log: KeyLog, tables: StagingTables) -> None:
        """Add the keys of the rows to the log of a load that has begun their tables."""
        if isinstance(self.keys, PackedKeys):
            log.extend(self.keys)
            return
        for table_key, rows in self.tables.items():
            type = tables.schema.by_table_key[table_key]
            first = 1
            for keys in self.keys.read(rows, type, tables):
                log.add(type, keys, numbered(first, len(keys)), self.keys.source)
                first += len(keys)


def stage_part(source: Source, tables: StagingTables, options: LoadOptions, since_us: int) -> Part:
    """Read and check a source of any types, and stage all rows; `since_us` is when the load announced its files.

    The part carries the keys, with the place of each record in the source.
    """
    sinks: dict[str, RowSink] = {}
    rejected: list[Rejection] = []
    records = 0
    with KeyLog(tables.schema) as log:
        for block in source:
            batches, rejections = conform_block(block)
            if rejections and options.on_error is OnError.FAIL:
                raise as_error(min(rejections, key=lambda r: r.record))
            rejected += rejections
            for batch in batches:
                key = batch.type.table_key
                if key not in sinks:
                    log.begin(batch.type, options.mode)
                    sinks[key] = RowSink(batch.type, tables, lambda _: since_us, inline_rows_max=0)
                log.add(batch.type, batch.rows, batch.records, batch.source)
                sinks[key].write(fill_ids(batch).rows)
                records += batch.rows.num_rows
        for sink in sinks.values():
            sink.finish()
        part = Part({key: sink.staged for key, sink in sinks.items()}, log.packed(), tuple(rejected))
    _check_count(part, records, source.name)
    return part


def read_part(
    batches: Iterable[pa.RecordBatch],
    type: ElementType,
    source: str,
    tables: StagingTables,
    announced: SidecarIntent,
) -> Part:
    """Check rows of one type as a stream, and stage them if they are many; raises the error of the first unfit row.

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
    sink.close(used=True)
    part = Part({type.table_key: rows}, KeysInRows(source, Minted.of(minted)), announced=lease.taken)
    _check_count(part, len(minted), source)
    return part


def _check_count(part: Part, read: int, source: str) -> None:
    """Raise unless as many rows were staged as read: a retry could lose rows silently."""
    if part.row_count != read:
        raise StorageError(
            f"{source}: {read} rows were read and {part.row_count} staged; nothing was written: try again"
        )


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
