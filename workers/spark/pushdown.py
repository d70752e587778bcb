"""Translates Spark's filters to filters of a table, where both mean exactly the same.

Floats are left to Spark: for Spark -0.0 equals 0.0 and NaN is the largest number, which is not so in the store. So are
lists, vectors and blobs, and comparisons with null.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from omniray.engine.schema.grammar import is_unicode
from omniray.engine.schema.types import ElementType, EnumType, PropertyType, Scalar, ScalarType
from omniray.engine.tables.filters import among

_COMPARISONS: Mapping[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: lambda column, value: column == value,
    GreaterThan: lambda column, value: column > value,
    GreaterThanOrEqual: lambda column, value: column >= value,
    LessThan: lambda column, value: column < value,
    LessThanOrEqual: lambda column, value: column <= value,
}
_LEFT_TO_SPARK = (Scalar.F32, Scalar.F64, Scalar.BLOB)
_TEXT = ScalarType(Scalar.STRING)


def pushed(filter: Filter, type: ElementType) -> pc.Expression | None:
    """A Spark filter as a filter of the table; None if it is left to Spark."""
    if isinstance(filter, Not):
        child = pushed(filter.child, type)
        return None if child is None else ~child
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    arrow = _comparable(type, path[0]) if len(path) == 1 else None
    if arrow is None:
        return None
    column = pc.field(path[0])
    if isinstance(filter, IsNull) or filter == EqualNullSafe(path, None):
        return column.is_null()
    if isinstance(filter, IsNotNull):
        return column.is_valid()
    return _compared(filter, column, path[0], arrow)


def _compared(filter: Filter, column: pc.Expression, name: str, arrow: pa.DataType) -> pc.Expression | None:
    given = filter.value if isinstance(filter, In) else [getattr(filter, "value", None)]
    values = _values(given, arrow)
    if values is None:
        return None
    if isinstance(filter, In):
        return among(name, values)
    if isinstance(filter, StringStartsWith):
        return _starts_with(column, filter.value)
    if isinstance(filter, EqualNullSafe):
        return column.is_valid() & (column == values[0])
    compare = _COMPARISONS.get(type(filter))
    return None if compare is None else compare(column, values[0])


def _comparable(type: ElementType, name: str) -> pa.DataType | None:
    """The column's Arrow type, if the store compares its values as Spark does."""
    p = type.property(name)
    of: PropertyType = _TEXT if p is None else p.type
    scalar = isinstance(of, ScalarType) and of.scalar not in _LEFT_TO_SPARK
    return of.arrow if name in type.arrow.names and (scalar or isinstance(of, EnumType)) else None


def _values(given: Any, arrow: pa.DataType) -> pa.Array | None:
    """Spark's values in the column's type; None if one can't be converted, such as a null or a too large integer."""
    try:
        values = pa.array([_whole(value) for value in given], arrow)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return values if len(values) and not values.null_count else None


def _whole(value: Any) -> Any:
    """A whole decimal as an integer: Spark has no unsigned integers, and holds them as decimals."""
    if not isinstance(value, Decimal):
        return value
    if value != int(value):
        raise ValueError(f"{value} is not an integer")
    return int(value)


def _starts_with(column: pc.Expression, prefix: str) -> pc.Expression | None:
    """A prefix filter as a range, since texts are ordered by code point; None if the range has no upper bound."""
    following = 1 + ord(prefix[-1]) if prefix else 1 + sys.maxunicode
    if following > sys.maxunicode or not is_unicode(chr(following)):
        return None
    return (column >= prefix) & (column < prefix[:-1] + chr(following))
