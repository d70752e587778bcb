"""Columnar sources, one type each: Parquet files, Arrow tables, batches and streams, pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from omniray.engine.base.errors import InputError
from omniray.engine.rows.records import (
    BLOCK_BYTES_TARGET,
    BLOCK_ROWS_MAX,
    Block,
    Progress,
    RawBatch,
    known_columns,
    numbered,
)
from omniray.engine.rows.source_files import SourceFile
from omniray.engine.schema.types import ElementType

_BLOCK_ROWS_MIN = 1024


def parquet_blocks(file: SourceFile, type: ElementType, progress: Progress) -> Iterator[Block]:
    """The blocks of a Parquet file, read one at a time."""
    if not file.replayable:
        message = f"{file.name}: Parquet is read from its end, which a pipe lacks; save it to a file and load that"
        raise InputError(message, source=file.name)
    try:
        # Arrow opens a path itself, and its reads don't wait for the interpreter.
        with file.open() if file.remote else nullcontext(file.path) as data, pq.ParquetFile(data) as parquet:
            rows_total = max(1, parquet.metadata.num_rows)
            batches = parquet.iter_batches(batch_size=rows_per_block(parquet.metadata))
            for block, rows_done in _blocks(batches, parquet.schema_arrow, type, file.name):
                progress.bytes_done = (file.size or 0) * rows_done // rows_total
                yield block
    except (pa.ArrowException, OSError) as error:
        fault = str(error).partition("\n")[0]
        message = f"{file.name} can't be read as Parquet, it may be cut off or damaged: {fault}"
        raise InputError(message, source=file.name) from error


def arrow_blocks(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, type: ElementType, progress: Progress
) -> Iterator[Block]:
    """The blocks of Arrow data; a large batch is cut without copying it."""
    for block, _ in _blocks(_cut(batches), schema, type, ""):
        progress.bytes_done += sum(getattr(column, "nbytes", 0) for column in block.batches[0].columns.values())
        yield block


def pandas_blocks(frame: Any, type: ElementType, progress: Progress) -> Iterator[Block]:
    """The blocks of a pandas frame without its index. NaN and NaT are null, as everywhere in pandas."""
    columns = known_columns(type, [str(name) for name in frame.columns], "")
    for start in range(0, max(1, len(frame)), BLOCK_ROWS_MAX):
        part = frame.iloc[start : start + BLOCK_ROWS_MAX]
        values = {name: _series(part.iloc[:, position]) for position, name in enumerate(columns)}
        yield Block((RawBatch(type, values, numbered(start + 1, len(part))),))


def _series(series: Any) -> Any:
    try:
        array = pa.Array.from_pandas(series)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Values of mixed types can't form an Arrow column; as Python values they are checked one by one.
        return [None if missing else value for value, missing in zip(series, series.isna(), strict=True)]
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _blocks(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, type: ElementType, source: str
) -> Iterator[tuple[Block, int]]:
    """Number the rows; a source without rows still yields one empty batch, since it names its type."""
    columns = known_columns(type, schema.names, source)
    done = 0
    for batch in batches:
        values = dict(zip(columns, batch.columns, strict=True))
        block = Block((RawBatch(type, values, numbered(done + 1, len(batch)), source),))
        done += len(batch)
        yield block, done
    if not done:
        yield Block((RawBatch(type, {}, numbered(1, 0), source),)), 0


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, len(batch), BLOCK_ROWS_MAX):
            yield batch.slice(start, BLOCK_ROWS_MAX)


def rows_per_block(metadata: pq.FileMetaData) -> int:
    """How many rows make a block, by the row size in the file's metadata."""
    size: int = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    row_size = max(1, size // max(1, int(metadata.num_rows)))
    return max(_BLOCK_ROWS_MIN, min(BLOCK_ROWS_MAX, BLOCK_BYTES_TARGET // row_size))
