"""Casts columns of Python values (from JSON, dicts and CSV cells) to a property's type.

The values of a column are grouped by their Python type, in one pass in C. Each group becomes an Arrow column of its
natural type and is cast as such, so the rules are those of `casts.py`; most columns have one group only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.casts import Cast, Mask, cast, either, item_type, mask_of, nest
from omniray.engine.rows.json_bounds import too_many_values
from omniray.engine.rows.texts import parse_cells
from omniray.engine.schema.types import EnumType, ListType, PropertyType, VectorType

_LISTS = (list, tuple, np.ndarray)
_UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)

# In this order, since in Python a bool is an int and a datetime is a date. Where there are two Arrow types, the second
# one is for values that overflow the first.
_KINDS: Mapping[tuple[type, ...], tuple[pa.DataType, ...]] = {
    (str,): (pa.string(),),
    (bool, np.bool_): (pa.bool_(),),
    (int, np.integer): (pa.int64(), pa.decimal128(38, 0)),
    (float, np.floating): (pa.float64(),),
    (datetime,): (pa.timestamp("us", tz="UTC"),),
    (date,): (pa.date32(),),
    (bytes, bytearray, memoryview): (pa.large_binary(),),
    (Decimal,): (pa.decimal128(38, 18), pa.decimal256(76, 18)),
}


def cast_objects(values: Sequence[Any], target: PropertyType) -> Cast:
    """Cast a column of Python values to a property's type."""
    if isinstance(target, ListType | VectorType):
        return _cast_lists(values, target)
    types = set(map(type, values)) - {type(None)}
    kinds = {_kind(t): {u for u in types if _kind(u) == _kind(t)} for t in types}
    if len(kinds) == 1:
        return _cast_kind(values, next(iter(kinds)), target)
    parts = [_cast_kind([v if type(v) in of else None for v in values], kind, target) for kind, of in kinds.items()]
    bad: Mask | None = None
    for part in parts:
        bad = either(bad, part.bad)
    return Cast(pc.coalesce(pa.nulls(len(values), target.arrow), *(part.values for part in parts)), bad)


def cast_cells(cells: Sequence[str | None], target: PropertyType) -> Cast:
    """Cast the cells of a CSV column; lists and vectors are written as JSON."""
    if isinstance(target, ListType | VectorType):
        return cast_objects([None if cell is None else _json_or_text(cell) for cell in cells], target)
    texts = pa.array(cells, pa.string())
    if isinstance(target, EnumType):
        return cast(texts, target)
    values, readable = parse_cells(texts, target.scalar)
    fitting = cast(values, target)
    unread = mask_of(pc.and_not(pc.is_valid(texts), pc.fill_null(readable, False)))
    return Cast(fitting.values, either(fitting.bad, unread) if unread.any() else fitting.bad)


def _kind(t: type) -> tuple[type, ...]:
    return next((kind for kind in _KINDS if issubclass(t, kind)), (t,))


def _cast_kind(values: Sequence[Any], kind: tuple[type, ...], target: PropertyType) -> Cast:
    if kind not in _KINDS:
        return Cast(pa.nulls(len(values), target.arrow), _lost(values, [None] * len(values)))
    for natural in _KINDS[kind]:
        try:
            return cast(pa.array(values, natural), target)
        except _UNFIT:
            continue
    return _cast_each(values, _KINDS[kind][-1], target)


def _cast_each(values: Sequence[Any], natural: pa.DataType, target: PropertyType) -> Cast:
    """Cast values of which Arrow can't hold some, such as an integer of a hundred digits."""
    held = [_held(value, natural) for value in values]
    fitting = cast(pa.array(held, natural), target)
    return Cast(fitting.values, either(fitting.bad, _lost(values, held)))


def _lost(values: Sequence[Any], held: Sequence[Any]) -> Mask:
    """Which values are not null but could not be held."""
    pairs = zip(values, held, strict=True)
    return np.fromiter((value is not None and kept is None for value, kept in pairs), np.bool_, len(values))


def _held(value: Any, natural: pa.DataType) -> Any:
    try:
        return pa.scalar(value, natural).as_py()
    except _UNFIT:
        return None


def _cast_lists(values: Sequence[Any], target: ListType | VectorType) -> Cast:
    lists = [value if isinstance(value, _LISTS) else None for value in values]
    lengths = pa.array([None if value is None else len(value) for value in lists], pa.int32())
    items = list(chain.from_iterable(value for value in lists if value is not None))
    nested = nest(cast_objects(items, item_type(target)), lengths, target)
    other = _lost(values, lists)
    return Cast(nested.values, either(nested.bad, other) if other.any() else nested.bad)


def _json_or_text(cell: str) -> Any:
    """A cell's JSON; what can't be read, or takes too much memory, stays text, which is refused."""
    data = cell.encode()
    try:
        return cell if too_many_values(data) else msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return cell
