"""Row validation: rows of a source become rows that fit their type; other rows are refused with a reason.

Every check is a mask over a whole column; Python loops over rows only to word the reasons of refused rows.
A record is refused once, for the first thing that is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.casts import Cast, Mask, cast, integer_bounds, mask_of
from omniray.engine.rows.defaults import default_column
from omniray.engine.rows.python_values import cast_cells, cast_objects
from omniray.engine.rows.records import Block, ConformedBatch, RawBatch, Rejection, unknown_property
from omniray.engine.rows.row_ids import ID_BYTES_MAX, derive_ids
from omniray.engine.schema.types import (
    DST,
    ID,
    SRC,
    Check,
    EdgeType,
    EnumType,
    ListType,
    NodeType,
    Property,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    VectorType,
)

_TEXT = ScalarType(Scalar.STRING)
_SHOWN_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class _Findings:
    """The reasons found so far, by row; the first reason of a row is kept."""

    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, bad: Mask, reason: str | Callable[[int], str]) -> None:
        for row in np.flatnonzero(bad).tolist():
            if row not in self.reasons:
                self.reasons[row] = reason if isinstance(reason, str) else reason(row)


def conform_block(block: Block) -> tuple[list[ConformedBatch], list[Rejection]]:
    """Validate a block's batches; rejections, by the source or from here, come in record order.

    A batch whose rows were all refused is left out: it must not look like a load of no rows, which empties a table when
    it overwrites.
    """
    conformed, rejections = [], list(block.rejections)
    for raw in block.batches:
        batch, refused = conform(raw)
        rejections += refused
        if len(batch.rows) or not refused:
            conformed.append(batch)
    return conformed, sorted(rejections, key=lambda rejection: rejection.record)


def conform(raw: RawBatch) -> tuple[ConformedBatch, list[Rejection]]:
    """Split rows into rows that fit their type and rejections."""
    found = _Findings()
    for name, marks in raw.unknown.items():
        found.add(np.asarray(marks, np.bool_), unknown_property(raw.type, name))
    columns = {p.name: _conform_property(raw, p, found) for p in raw.type.properties}
    _check_constraints(raw, columns, found)
    if isinstance(raw.type, EdgeType):
        columns |= {SRC: _conform_end(raw, SRC, found), DST: _conform_end(raw, DST, found)}
    columns[ID] = _conform_ids(raw, columns, found)
    rows = pa.RecordBatch.from_arrays([columns[name] for name in raw.type.arrow.names], schema=raw.type.arrow)
    return _split(raw, rows, found)


def _split(raw: RawBatch, rows: pa.RecordBatch, found: _Findings) -> tuple[ConformedBatch, list[Rejection]]:
    if not found.reasons:
        return ConformedBatch(raw.type, rows, raw.records, raw.source), []
    refused = sorted(found.reasons)
    keep = np.ones(len(rows), np.bool_)
    keep[refused] = False
    kept = ConformedBatch(raw.type, rows.filter(pa.array(keep)), raw.records.filter(pa.array(keep)), raw.source)
    rejections = [
        Rejection(raw.source, raw.records[row].as_py(), found.reasons[row], values=_values(raw, row)) for row in refused
    ]
    return kept, rejections


def _values(raw: RawBatch, row: int) -> dict[str, Any]:
    """A row's values as they were given, without missing ones."""
    values = {name: _plain(column[row]) for name, column in raw.columns.items()}
    return {name: value for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    try:
        return value.as_py() if isinstance(value, pa.Scalar) else value
    except (OverflowError, ValueError):  # a date that Python can't represent, or bytes that are not text
        return f"a {value.type} that can't be shown"


def _cast_column(raw: RawBatch, name: str, type: PropertyType) -> Cast:
    column = raw.columns.get(name)
    if column is None:
        return Cast(pa.nulls(len(raw.records), type.arrow))
    if isinstance(column, pa.Array):
        return cast(column, type)
    return cast_cells(column, type) if raw.text else cast_objects(column, type)


def _conform_property(raw: RawBatch, p: Property, found: _Findings) -> pa.Array:
    left_out = raw.columns.get(p.name) is None
    result = Cast(default_column(p, len(raw.records))) if left_out else _cast_column(raw, p.name, p.type)
    where = f"{raw.type.name}.{p.name}"
    if result.bad is not None:
        found.add(result.bad, lambda row: _misfit(raw.columns[p.name], row, where, p.type))
    if result.values.null_count and (not p.nullable or p.name in _key(raw)):
        why = "is required" if not p.nullable else "is part of the key"
        found.add(mask_of(pc.is_null(result.values)), f"null value for {where} which {why}")
    if isinstance(p.type, EnumType):
        known = pc.is_in(result.values, value_set=pa.array(p.type.values, pa.string()))
        strange = mask_of(pc.and_not(pc.is_valid(result.values), known))
        expected = f"expected one of {', '.join(p.type.values)}"
        found.add(strange, lambda row: f"invalid enum value {_at(result.values, row)} for {where}: {expected}")
    return result.values


def _key(raw: RawBatch) -> tuple[str, ...]:
    return raw.type.key if isinstance(raw.type, NodeType) else ()


def _check_constraints(raw: RawBatch, columns: dict[str, pa.Array], found: _Findings) -> None:
    for constraint in raw.type.constraints:
        match constraint:
            case Range(name, low, high):
                _check_range(columns[name], f"{raw.type.name}.{name}", low, high, found)
            case Check(name, pattern):
                _check_pattern(columns[name], f"{raw.type.name}.{name}", pattern, found)


def _check_range(values: pa.Array, where: str, low: float | None, high: float | None, found: _Findings) -> None:
    """Refuse values that are not within the bounds; tested that way round, NaN is outside: no comparison holds."""
    inside = pc.is_valid(values)
    if low is not None:
        inside = pc.and_(inside, _compared(pc.greater_equal, values, low))
    if high is not None:
        inside = pc.and_(inside, _compared(pc.less_equal, values, high))
    bounds = f"{'' if low is None else low}..{'' if high is None else high}"
    outside = mask_of(pc.and_not(pc.is_valid(values), inside))
    found.add(outside, lambda row: f"@range violation on {where}: {_at(values, row)} is outside {bounds}")


def _compared(compare: Callable[..., pa.BooleanArray], values: pa.Array, bound: float) -> pa.BooleanArray:
    """Compare with a bound in the values' own type, so that 0.1 is one number on both sides."""
    if not pa.types.is_integer(values.type):
        return compare(values, pa.scalar(float(bound), values.type))
    rising = compare is pc.greater_equal
    whole = math.ceil(bound) if rising else math.floor(bound)
    least, greatest = integer_bounds(values.type)
    if least <= whole <= greatest:
        return compare(values, pa.scalar(whole, values.type))
    return pa.array(np.full(len(values), (whole < least) == rising))


def _check_pattern(values: pa.Array, where: str, pattern: str, found: _Findings) -> None:
    unmatched = mask_of(pc.invert(pc.match_substring_regex(values, pattern)))
    found.add(unmatched, lambda row: f"@check violation on {where}: {_at(values, row)} does not match {pattern!r}")


def _conform_end(raw: RawBatch, end: str, found: _Findings) -> pa.Array:
    result = _cast_column(raw, end, _TEXT)
    where = f"{raw.type.name}.{'from' if end == SRC else 'to'}"
    if result.bad is not None:
        hint = "name the node by its id, which is text"
        found.add(result.bad, lambda row: f"{_misfit(raw.columns[end], row, where, _TEXT)}; {hint}")
    if result.values.null_count:
        found.add(mask_of(pc.is_null(result.values)), f"null value for {where} which is required")
    return result.values


def _conform_ids(raw: RawBatch, columns: dict[str, pa.Array], found: _Findings) -> pa.Array:
    where = f"{raw.type.name}.{ID}"
    given = _cast_column(raw, ID, _TEXT)
    if given.bad is not None:
        found.add(given.bad, lambda row: _misfit(raw.columns[ID], row, where, _TEXT))
    if not isinstance(raw.type, NodeType) or not raw.type.key:
        return _check_ids(given.values, where, found)
    key = ", ".join(raw.type.key)
    for name in raw.type.key:
        _check_finite(columns[name], f"{raw.type.name}.{name}", found)
    ids = _check_ids(derive_ids(raw.type, columns), f"{raw.type.name}.{key} (the key)", found)
    if given.values.null_count < len(ids):
        other = mask_of(pc.not_equal(given.values, ids))
        found.add(other, lambda row: f"invalid value for {where}: {_other_id(given.values, ids, row, key)}")
    return ids


def _other_id(given: pa.Array, ids: pa.Array, row: int, key: str) -> str:
    return f"{_at(given, row)} differs from {_at(ids, row)}, which its key ({key}) makes; leave it out"


def _check_finite(values: pa.Array, where: str, found: _Findings) -> None:
    if pa.types.is_floating(values.type):
        endless = mask_of(pc.invert(pc.is_finite(values)))
        found.add(endless, lambda row: f"invalid value for {where}: {_at(values, row)} can't be a key")


def _check_ids(ids: pa.Array, where: str, found: _Findings) -> pa.Array:
    sizes = pc.binary_length(ids)
    found_sizes = pc.min_max(sizes)
    if _is_within(found_sizes["min"].as_py(), found_sizes["max"].as_py()):
        return ids
    bad = mask_of(pc.or_(pc.equal(sizes, 0), pc.greater(sizes, ID_BYTES_MAX)))
    found.add(bad, lambda row: f"invalid value for {where}: {_at(ids, row)}; an id has 1 to {ID_BYTES_MAX} bytes")
    return ids


def _is_within(least: int | None, most: int | None) -> bool:
    """Whether all sizes of ids are allowed; there are none of null ids."""
    return least is None or most is None or (least > 0 and most <= ID_BYTES_MAX)


def _misfit(column: pa.Array | Sequence[Any], row: int, where: str, type: PropertyType) -> str:
    """The reason to refuse a value that is not of its property's type."""
    value = _given(column, row)
    return f"invalid value for {where}: {_show(value)} is not {type}, {_expected(type)}{_hint(value, type)}"


def _given(column: pa.Array | Sequence[Any], row: int) -> Any:
    if not isinstance(column, pa.Array):
        return column[row]
    value = column[row]
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # Python has no non-Unicode text and no year 10000
        is_text = isinstance(value, pa.StringScalar)
        return value.as_buffer().to_pybytes() if is_text else getattr(value, "value", value.type)


def _expected(type: PropertyType) -> str:
    match type:
        case VectorType(size):
            return f"{size} finite numbers"
        case ListType(item):
            return f"a list without nulls, of {_expected(item)}"
        case ScalarType(Scalar.I32 | Scalar.I64 | Scalar.U32 | Scalar.U64):
            low, high = integer_bounds(type.arrow)
            return f"a whole number from {low} to {high}"
        case ScalarType(scalar) if scalar in _EXPECTED:
            return _EXPECTED[scalar]
        case _:
            return "text in UTF-8"


_EXPECTED = {
    Scalar.BOOL: "true or false",
    Scalar.F32: "a number of at most 3.4e38 either way",
    Scalar.F64: "a number",
    Scalar.DATE: "a day such as 2024-05-31",
    Scalar.DATETIME: "a time such as 2024-05-31T12:00:00Z",
    Scalar.BLOB: "bytes, or text that begins with base64:",
}


def _hint(value: Any, type: PropertyType) -> str:
    if type == ScalarType(Scalar.BLOB) and isinstance(value, str) and "://" in value:
        return "; an address is not fetched, give the content itself"
    return ""


def _at(values: pa.Array, row: int) -> str:
    return _show(values[row].as_py())


def _show(value: Any) -> str:
    """A value as a message shows it, truncated if long."""
    if isinstance(value, str | bytes):
        value = value[:_SHOWN_CHARS_MAX]  # before it is quoted: it may be megabytes
    try:
        shown = value.isoformat() if isinstance(value, date) else repr(value)
    except RecursionError:
        return f"a {value.__class__.__name__} nested too deeply"
    return shown if len(shown) <= _SHOWN_CHARS_MAX else shown[:_SHOWN_CHARS_MAX] + "…"
