"""The values between a source and the tables: raw rows, rows that fit their type, and rejections.

A source yields `Block`s; `row_validation.py` turns each into `ConformedBatch`es and `Rejection`s. A record is known by
its source and its number there, counted from one: the line of a text file, the row of any other source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from omniray.engine.base.errors import ConstraintViolation, InputError, KeyConflict, RecordError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, Literal_

BLOCK_ROWS_MAX = 65_536
BLOCK_BYTES_TARGET = 8 << 20

ENDS: Mapping[str, str] = {"from": SRC, "to": DST, SRC: SRC, DST: DST}
"""The names that a record may use for the two ends of an edge, and the column of each."""

STDIN = "stdin"
"""The name of standard input as a source."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Rows of one type as read from a source: values are not checked yet.

    `columns` are keyed by property name, `id`, `src` and `dst`; a missing one is left out by every row: it has the
    default of its property, or is null. Each is an Arrow array or a sequence of Python values. `unknown` says for each
    name that the type does not have which rows carry it. `text` says that every value is still the text of a cell, to
    be read as its property's type.
    """

    type: ElementType
    columns: Mapping[str, pa.Array | Sequence[Any]]
    records: pa.Int64Array
    source: str = ""
    unknown: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    text: bool = False


@dataclass(frozen=True, slots=True)
class ConformedBatch:
    """Rows that fit their type: exactly the columns of `type.arrow`.

    Ids of edges and of keyless nodes may still be null, which means: to be assigned (`row_ids.fill_ids`).
    """

    type: ElementType
    rows: pa.RecordBatch
    records: pa.Int64Array
    source: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One refused record: its place and the reason; `kind` is that of the error it would raise.

    `values` are the record's own, as far as it could be read. `table_key` and `key` are given for `key_conflict` only,
    because its error contains them.
    """

    source: str
    record: int
    reason: str
    kind: str = RecordError.kind
    table_key: str = ""
    key: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{place(self.source, self.record)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Block:
    """A section of a source: its rows, one batch per type, and the records that could not be read at all."""

    batches: tuple[RawBatch, ...] = ()
    rejections: tuple[Rejection, ...] = ()


@dataclass(slots=True)
class Progress:
    """How far a source has been read; `bytes_total` is None if unknown."""

    bytes_done: int = 0
    bytes_total: int | None = None


_OF_LINES = ("jsonl", "ndjson", "json", "csv")
_OF_ROWS = ("parquet", "pq")

ReadBlocks = Callable[[Progress], Iterable[Block]]


def place(source: str, record: int) -> str:
    """The place of a record in words: its source and its line, row or record number."""
    suffix = source.rpartition(".")[2].lower()
    unit = "line" if suffix in _OF_LINES or source == STDIN else "row" if suffix in _OF_ROWS else "record"
    return f"{source} {unit} {record}" if source else f"{unit} {record}"


def as_error(rejection: Rejection) -> RecordError | ConstraintViolation | KeyConflict:
    """The error to raise where rejections are not accepted."""
    where = place(rejection.source, rejection.record)
    if rejection.kind == KeyConflict.kind:
        return KeyConflict(rejection.table_key, rejection.key, record=where)
    error = ConstraintViolation if rejection.kind == ConstraintViolation.kind else RecordError
    return error(str(rejection), source=rejection.source, record=rejection.record)


def numbered(first: int, count: int) -> pa.Int64Array:
    """The record numbers of `count` consecutive rows."""
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def raw_from_dicts(
    type: ElementType, rows: Sequence[Mapping[str, Any]], records: Sequence[int] | None = None, source: str = ""
) -> RawBatch:
    """Rows of one type from plain dicts of properties; `id` may be among them, and for edges `from` and `to`."""
    columns, unknown = columns_of(rows, row_names(type), defaults_of(type))
    if isinstance(type, EdgeType):
        for given, end in (("from", SRC), ("to", DST)):
            _rename_end(given, end, rows, columns, unknown)
    numbers = numbered(1, len(rows)) if records is None else pa.array(records, pa.int64())
    return RawBatch(type, columns, numbers, source, unknown)


def columns_of(
    rows: Sequence[Mapping[str, Any]], known: Set[str], defaults: Mapping[str, Literal_]
) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[bool]]]:
    """Turn dicts into columns: known names with their values, unknown names with the rows that carry them.

    A row that leaves out a known name has its default, or null.
    """
    names = set().union(*rows)
    columns: dict[str, Sequence[Any]] = {}
    for name in names & known:
        default = defaults.get(name)
        columns[name] = [row.get(name, default) for row in rows]
    # Sorted, so that of several unknown names in a record the same one is reported each time.
    return columns, {str(name): [name in row for row in rows] for name in sorted(names - known, key=str)}


def _rename_end(
    given: str,
    end: str,
    rows: Sequence[Mapping[str, Any]],
    columns: dict[str, Sequence[Any]],
    unknown: dict[str, Sequence[bool]],
) -> None:
    """Rename `from` to `src`, or `to` to `dst`; in a row that gives both, `src` or `dst` counts as unknown."""
    if columns.pop(given, None) is None:
        return
    both = [given in row and end in row for row in rows]
    if any(both):
        unknown[end] = both
    columns[end] = [row[given] if given in row else row.get(end) for row in rows]


def row_names(type: ElementType) -> set[str]:
    """Every name that a plain row of the type may use."""
    ends = ENDS if isinstance(type, EdgeType) else ()
    return {ID, *ends, *(p.name for p in type.properties)}


def defaults_of(type: ElementType) -> dict[str, Literal_]:
    """The properties that have a default, and theirs."""
    return {p.name: p.default for p in type.properties if p.default is not None}


def known_columns(type: ElementType, names: Sequence[str], source: str) -> list[str]:
    """Map a source's column names to columns, in its order; an unknown or repeated name refuses the whole source."""
    known = row_names(type)
    for name in names:
        if name not in known:
            raise InputError(f"{source or 'the source'}: {unknown_property(type, name)}", source=source, property=name)
    columns = [ENDS.get(name, name) if isinstance(type, EdgeType) else name for name in names]
    twice = next((given for given, name in zip(names, columns, strict=True) if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{source or 'the source'}: more than one column for {twice!r}; keep one", source=source)
    return columns


def unknown_property(type: ElementType, name: str) -> str:
    """Say that a type lacks a property, and suggest the one that was probably meant."""
    names = [p.name for p in type.properties]
    if isinstance(type, EdgeType):
        if name in ENDS:
            ends = "its ends are 'from' and 'to', given once each, beside 'data' and not in it"
            return f"{type.name} has no property {name!r}: {ends}"
        names = ["from", "to", *names]
    return f"{type.name} has no property {name!r}; {did_you_mean(name, names)}"
