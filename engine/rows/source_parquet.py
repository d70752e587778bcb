"""Parquet files, one type each, read in batches whose decoded size is bounded, however small the file is.

A few bytes of Parquet can stand for gigabytes: a run of one dictionary entry, a page of zeros, a shared prefix. Arrow
bounds a batch by its rows alone, so the file's metadata and dictionaries say how many rows it may have. Where those
prove little, few rows are read at a time, which is slow and refuses nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from omniray.engine.base.errors import InputError, RecordError
from omniray.engine.rows.parquet_dictionary import largest_entry_bytes
from omniray.engine.rows.records import BLOCK_BYTES_TARGET, BLOCK_ROWS_MAX, Block, Progress, place
from omniray.engine.rows.source_arrow import blocks_of
from omniray.engine.rows.source_files import LINE_BYTES_MAX, SourceFile
from omniray.engine.schema.types import ElementType

VALUE_BYTES_MAX = LINE_BYTES_MAX
"""As much as a whole record of JSON may have."""

BATCH_BYTES_MAX = 64 << 20  # as far as that can be told before a batch is read
LISTS_BYTES_MAX = 1 << 30  # of a row group: one of its lists may hold nearly all of their values
DICTIONARY_BYTES_MAX = 1 << 28
_RATIO_USUAL, _RATIO_MAX = 100, 1000  # decoded bytes by bytes in the file
_ROWS_UNPROVEN = 8
_ROWS_GATHERED = 1024
_READ_BYTES = 1 << 22
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LEVELS_BYTES = 4  # of a value in a list, beside itself
_TEXTS = ("NONE", "STRING", "JSON", "BSON", "ENUM")
_WITH_LENGTHS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)

Sizes = npt.NDArray[np.int64]


def parquet_blocks(file: SourceFile, type: ElementType, progress: Progress) -> Iterator[Block]:
    """The blocks of a Parquet file, read one at a time."""
    if not file.replayable:
        message = f"{file.name}: Parquet is read from its end, which a pipe lacks; save it to a file and load that"
        raise InputError(message, source=file.name)
    # Arrow opens a path itself, and its reads don't wait for the interpreter.
    opened = file.open() if file.remote else nullcontext(file.path)
    with _errors(file.name), opened as data, BoundedParquet(data, file.name) as parquet:
        rows_total = max(1, parquet.metadata.num_rows)
        for block, rows_done in blocks_of(parquet.batches(), parquet.schema, type, file.name):
            progress.bytes_done = (file.size or 0) * rows_done // rows_total
            yield block


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        fault = str(error).partition("\n")[0]
        message = f"{name} can't be read as Parquet, it may be cut off or damaged: {fault}"
        raise InputError(message, source=name) from error


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of values; a list's values are a column, too."""

    at: int
    path: str
    width: int  # of a value; 0 for texts and bytes
    is_text: bool
    is_flat: bool
    in_list: bool

    @classmethod
    def of(cls, at: int, column: pq.ColumnSchema, names: Collection[str]) -> _Leaf:
        is_bytes = column.physical_type == "BYTE_ARRAY"
        width = 0 if is_bytes else _WIDTHS.get(column.physical_type) or max(1, column.length)
        is_text = is_bytes and column.logical_type.type in _TEXTS
        in_list = column.max_repetition_level > 0
        is_flat = not in_list and column.max_definition_level <= 1 and column.path in names
        return cls(at, column.path, width, is_text, is_flat, in_list)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What is known of a column's values in a row group; `entry_bytes` is the largest entry of their dictionary."""

    leaf: _Leaf
    values: int
    stored_bytes: int
    unzipped_bytes: int
    encodings: tuple[str, ...]
    entry_bytes: int = 0

    @classmethod
    def of(cls, leaf: _Leaf, found: pq.ColumnChunkMetaData) -> _Chunk:
        sizes = found.total_compressed_size, found.total_uncompressed_size
        chunk = cls(leaf, found.num_values, *sizes, found.encodings)
        return replace(chunk, entry_bytes=min(sizes[1], VALUE_BYTES_MAX)) if chunk.has_dictionary else chunk

    @property
    def has_dictionary(self) -> bool:
        return not self.leaf.width and any(one.endswith("DICTIONARY") for one in self.encodings)

    @property
    def repeats_much(self) -> bool:
        return self.values * self.entry_bytes > BATCH_BYTES_MAX

    @property
    def usual_bytes(self) -> int:
        """About how much it takes decoded, if it repeats little."""
        return self.values * self.leaf.width or self.unzipped_bytes

    @property
    def decoded_bytes(self) -> int:
        """About how much it takes decoded; for a list it is the most that it can take."""
        return self.usual_bytes + self.values * (self.entry_bytes + _LEVELS_BYTES) * self.leaf.in_list

    @property
    def is_unproven(self) -> bool:
        """Whether few of its rows may take much more than the mean says."""
        if self.leaf.in_list or (self.leaf.is_flat and self.leaf.is_text):
            is_dense = self.decoded_bytes <= max(BATCH_BYTES_MAX, _RATIO_USUAL * self.stored_bytes)
            return not is_dense or "DELTA_BYTE_ARRAY" in self.encodings  # which repeats any part of a value
        return not self.leaf.width  # other bytes are converted, or are in structs, whose dictionaries are not read


class BoundedParquet:
    """A Parquet file, open to be read in bounded batches."""

    def __init__(self, data: Any, name: str, **options: Any) -> None:
        self._name = name
        self._opened = contextlib.ExitStack()
        options |= {"buffer_size": _READ_BYTES}
        self._file = self._opened.enter_context(pq.ParquetFile(data, **options))
        self.metadata = self._file.metadata
        self.schema: pa.Schema = self._file.schema_arrow
        columns = (self.metadata.schema.column(at) for at in range(self.metadata.num_columns))
        self._leaves = [_Leaf.of(at, column, self.schema.names) for at, column in enumerate(columns)]
        path = Path(data) if isinstance(data, str | os.PathLike) else None
        self._bytes = data if path is None else self._opened.enter_context(path.open("rb"))

    def __enter__(self) -> BoundedParquet:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in their order; raises `InputError` for a value that is too large."""
        rows_of_groups = [(self._rows_per_batch(group), group) for group in range(self.metadata.num_row_groups)]
        done = 0
        for rows, groups in groupby(rows_of_groups, key=lambda one: one[0]):
            batches = self._read(rows, [group for _, group in groups], done)
            for batch in batches if rows >= _ROWS_GATHERED else _gathered(batches):
                done += len(batch)
                yield batch

    def _read(self, rows: int, groups: list[int], done: int) -> Iterator[pa.RecordBatch]:
        for batch in self._file.iter_batches(batch_size=rows, row_groups=groups):
            columns = [_without_dictionary(column) for column in batch.columns]
            for name, column in zip(batch.schema.names, columns, strict=True):
                if column.nbytes > VALUE_BYTES_MAX:
                    self._refuse_large_values(name, column, done)
            done += len(batch)
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _rows_per_batch(self, group: int) -> int:
        """How many rows of a row group may be read at once; rounded, so that like groups are read together."""
        found = self.metadata.row_group(group)
        chunks = [self._described(leaf, found.column(leaf.at)) for leaf in self._leaves]
        for chunk in chunks:
            self._refuse_boundless(chunk, group)
        mean_bytes = sum(chunk.usual_bytes for chunk in chunks) // max(1, found.num_rows)
        entry_bytes = sum(chunk.entry_bytes for chunk in chunks if chunk.repeats_much and not chunk.leaf.in_list)
        rows = min(BLOCK_ROWS_MAX, BLOCK_BYTES_TARGET // max(1, mean_bytes), BATCH_BYTES_MAX // max(1, entry_bytes))
        if any(chunk.is_unproven for chunk in chunks):
            rows = min(rows, _ROWS_UNPROVEN)
        rows = max(1, int(rows))
        return rows - rows % _ROWS_GATHERED or 1 << (rows.bit_length() - 1)

    def _described(self, leaf: _Leaf, found: pq.ColumnChunkMetaData) -> _Chunk:
        """A column chunk with the largest entry of its dictionary, if that matters."""
        chunk = _Chunk.of(leaf, found)
        if not chunk.repeats_much:
            return chunk
        largest = largest_entry_bytes(self._bytes, found, DICTIONARY_BYTES_MAX)
        if largest is not None and largest > VALUE_BYTES_MAX:
            raise self._too_large(chunk.leaf.path)
        return chunk if largest is None else replace(chunk, entry_bytes=largest)

    def _refuse_boundless(self, chunk: _Chunk, group: int) -> None:
        if chunk.leaf.width > VALUE_BYTES_MAX:
            raise self._too_large(chunk.leaf.path)
        if chunk.leaf.in_list and chunk.decoded_bytes > max(LISTS_BYTES_MAX, _RATIO_MAX * chunk.stored_bytes):
            raise InputError(
                f"{self._name}: the lists of {chunk.leaf.path} in row group {group} take up to "
                f"{chunk.decoded_bytes >> 20} MiB, from {chunk.stored_bytes} bytes in the file, and one of them may be "
                "nearly all of that; write the file with smaller row groups",
                source=self._name,
            )  # fmt: skip

    def _refuse_large_values(self, name: str, column: pa.Array, done: int) -> None:
        sizes = _sizes(column)
        at = int(sizes.argmax())
        if sizes[at] > VALUE_BYTES_MAX:
            raise self._too_large(name, done + at + 1)

    def _too_large(self, name: str, row: int = 0) -> InputError:
        reason = f"a value of {name!r} is larger than {VALUE_BYTES_MAX >> 20} MiB; split it, or leave it out"
        if not row:
            return InputError(f"{self._name}: {reason}", source=self._name)
        return RecordError(f"{place(self._name, row)}: {reason}", source=self._name, record=row)


def _without_dictionary(column: pa.Array) -> pa.Array:
    """The same values: a file may ask for a dictionary, whose size says nothing of theirs."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        return column.cast(pa.list_(column.type.value_type.value_type))
    return column


def _sizes(column: pa.Array) -> Sizes:
    """How many bytes each value of a column takes; for types whose values differ otherwise, the mean of all."""
    type = column.type
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(counts)
        through = np.concatenate(([0], np.cumsum(_sizes(column.flatten()))))
        return np.asarray(through[ends] - through[ends - counts], np.int64)
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        return _sizes(column.cast(pa.large_binary()))
    if any(is_a(type) for is_a in _WITH_LENGTHS):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches: checks of many small ones would be slow."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _ROWS_GATHERED or size >= BLOCK_BYTES_TARGET:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
