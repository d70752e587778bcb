"""Columnar sources in memory, one type each: Arrow tables, batches and streams, pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from omniray.engine.rows.records import (
    BLOCK_ROWS_MAX,
    Block,
    Progress,
    RawBatch,
    known_columns,
    numbered,
)
from omniray.engine.schema.types import ElementType


def arrow_blocks(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, type: ElementType, progress: Progress
) -> Iterator[Block]:
    """The blocks of Arrow data; a large batch is cut without copying it."""
    for block, _ in blocks_of(_cut(batches), schema, type, ""):
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


def blocks_of(
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
