"""CSV files: one type each, a header row of property names, cells read as their property's type.

An empty cell is null, quoted or not, except for a required String, which can't be null: there it is the empty string.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import pyarrow as pa

from omniray.engine.base.errors import InputError, RecordError
from omniray.engine.rows.records import (
    BLOCK_BYTES_TARGET,
    BLOCK_ROWS_MAX,
    Block,
    Progress,
    RawBatch,
    Rejection,
    known_columns,
    place,
)
from omniray.engine.rows.source_files import LINE_BYTES_MAX, SourceFile, not_utf8, read_lines, too_long
from omniray.engine.schema.types import ElementType, Scalar, ScalarType


def csv_blocks(file: SourceFile, type: ElementType, progress: Progress) -> Iterator[Block]:
    """The blocks of a CSV file; a row with too few or too many cells is refused alone."""
    # The limit is process-wide; it is only raised, so that the files of other callers stay readable.
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
    lines = _Lines(file, progress)
    reader = csv.reader(lines, strict=True)
    columns = _header(reader, type, file.name)
    yield Block((_batch(type, columns, [], [], file.name),))
    rows: list[list[str]] = []
    numbers: list[int] = []
    rejections: list[Rejection] = []
    for number, cells in _numbered(reader):
        if isinstance(cells, list) and len(cells) == len(columns):
            rows.append(cells)
            numbers.append(number)
        else:
            uneven = f"expected {len(columns)} cells as in the header, got {len(cells)}"
            rejections.append(Rejection(file.name, number, cells if isinstance(cells, str) else uneven))
        if len(rows) + len(rejections) >= BLOCK_ROWS_MAX or lines.bytes_taken >= BLOCK_BYTES_TARGET:
            yield Block((_batch(type, columns, rows, numbers, file.name),), tuple(rejections))
            rows, numbers, rejections, lines.bytes_taken = [], [], [], 0
    yield Block((_batch(type, columns, rows, numbers, file.name),), tuple(rejections))


class _Lines:
    """The lines of a file as text; counts the bytes handed out, which the reader resets."""

    def __init__(self, file: SourceFile, progress: Progress) -> None:
        self.bytes_taken = 0
        self._name = file.name
        self._number = 0
        self._lines = (line for lines in read_lines(file, progress) for line in lines)

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._number += 1
            # Such a line may contain the end of a quoted cell, so nothing after it can be trusted either.
            if reason := too_long(line) or (not_utf8(line) if not line.isascii() else None):
                where = place(self._name, self._number)
                raise RecordError(f"{where}: {reason}", source=self._name, record=self._number)
            self.bytes_taken += len(line)
            yield line.decode() + "\n"


def _header(reader: Iterator[list[str]], type: ElementType, name: str) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InputError(f"{name}: the header row can't be read: {error}", source=name) from error
    if not header:
        raise InputError(f"{name} has no header row; its first line must name the properties", source=name)
    return known_columns(type, [cell.strip() for cell in header], name)


def _numbered(reader: csv._reader) -> Iterator[tuple[int, list[str] | str]]:  # type: ignore[name-defined]
    """The rows that are not blank, each with its first line; for a row that can't be parsed, the reason instead."""
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, f"not a row of CSV: {error}"
            continue
        if cells:
            yield number, cells


def _batch(
    type: ElementType, columns: Sequence[str], rows: Sequence[list[str]], numbers: Sequence[int], name: str
) -> RawBatch:
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    values = {column: _nulled(texts, type, column) for column, texts in zip(columns, cells, strict=True)}
    return RawBatch(type, values, pa.array(numbers, pa.int64()), name, text=True)


def _nulled(cells: Sequence[str], type: ElementType, column: str) -> Sequence[str | None]:
    p = type.property(column)
    if p is not None and not p.nullable and p.type == ScalarType(Scalar.STRING):
        return cells
    return [cell or None for cell in cells]
