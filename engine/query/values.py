"""Values of queries: checks which Python value fits which property type, and converts it.

Two steps. `read_param` turns an argument (JSON or Python: dates may be text, arrays may be NumPy's) into a Python value
of the parameter's declared type. `fit` turns such a value, or a literal of the query, into the value that the property
holds. Both raise `Misfit`, whose message is the end of a sentence about the value.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.query.statements import Value
from omniray.engine.schema.grammar import is_unicode
from omniray.engine.schema.times import date_of, in_utc, moment_of
from omniray.engine.schema.types import (
    INTEGER_LIMITS,
    EnumType,
    ListType,
    Property,
    PropertyType,
    Scalar,
    ScalarType,
    VectorType,
)

BLOB_PREFIX = "base64:"
_FLOAT = ScalarType(Scalar.F32)


class Misfit(ValueError):
    """A value does not fit a type; never leaves the modules of the query language."""


def read_date(text: str) -> date:
    if (day := date_of(text)) is None:
        raise Misfit(f"expected a date, got {_shown(text)}; write it as 2026-01-31")
    return day


def read_datetime(text: str) -> datetime:
    """The moment in UTC."""
    if (moment := moment_of(text)) is None:
        raise Misfit(
            f"expected a date and time, got {_shown(text)}; write it as 2026-01-31T12:00:00Z, with at most 6 decimals"
        )
    return moment


def read_param(value: Any, type: PropertyType) -> Value:
    """The Python value of a parameter, which may be given in its JSON form."""
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        value = value.tolist()
    if isinstance(type, ListType | VectorType) and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        item = type.item if isinstance(type, ListType) else _FLOAT
        return fit([read_param(one, item) for one in _items(list(value), type)], type)
    if isinstance(value, str) and isinstance(type, ScalarType):
        if type.scalar is Scalar.DATE:
            return read_date(value)
        if type.scalar is Scalar.DATETIME:
            return read_datetime(value)
    return fit(value, type)


def default_of(property: Property) -> Value:
    """What an insert that leaves the property out gives it."""
    return None if property.default is None else read_param(property.default, property.type)


def fit(value: Any, type: PropertyType) -> Value:
    """The value as a property of the type holds it. Null fits no type: callers handle it."""
    match type:
        case EnumType(values):
            if not isinstance(value, str):
                raise Misfit(f"expected a text, as the values of an enum are, got {_shown(value)}")
            if value not in values:
                raise Misfit(f"{_shown(value)} is not among the enum's values; {did_you_mean(value[:80], values)}")
            return value
        case ListType(item):
            return [fit(one, item) for one in _items(value, type)]
        case VectorType(size):
            items = _items(value, type)
            if len(items) != size:
                raise Misfit(f"a vector of {len(items)} numbers where {size} are needed")
            return [fit(one, _FLOAT) for one in items]
    return _fit_scalar(value, type.scalar)


def fits(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether `wanted` holds any value of `given` without loss; sizes and enums are checked per value."""
    match given, wanted:
        case ScalarType(a), ScalarType(b):
            return a is b or b in _WIDENS_TO.get(a, ())
        case ScalarType(a), EnumType():
            return a is Scalar.STRING
        case ListType(a), ListType(b):
            return fits(a, b)
        case ListType(item), VectorType():
            return item.scalar in (Scalar.F32, Scalar.F64)
    return given == wanted


_WIDENS_TO = {
    Scalar.I32: (Scalar.I64, Scalar.F64),
    Scalar.U32: (Scalar.I64, Scalar.U64, Scalar.F64),
    Scalar.F32: (Scalar.F64,),
}


def _items(value: Any, type: PropertyType) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise Misfit(f"expected {type}, got {_shown(value)}")
    if any(one is None for one in value):
        raise Misfit("a list with a null in it")
    return value


def _fit_scalar(value: Any, scalar: Scalar) -> Value:
    # In Python True is an int and a datetime is a date; here neither is.
    if isinstance(value, bool):
        if scalar is Scalar.BOOL:
            return value
    elif scalar is Scalar.STRING and isinstance(value, str):
        if not is_unicode(value):
            raise Misfit("a text with half of a surrogate pair in it, which is not a character")
        return value
    elif scalar in INTEGER_LIMITS and isinstance(value, int):
        low, high = INTEGER_LIMITS[scalar]
        if not low <= value <= high:
            raise Misfit(f"{_shown(value)} is out of the range of {scalar}, {low}..{high}")
        return value
    elif scalar in (Scalar.F32, Scalar.F64) and isinstance(value, int | float):
        return _float(value, scalar)
    elif scalar is Scalar.DATE and isinstance(value, date) and not isinstance(value, datetime):
        return value
    elif scalar is Scalar.DATETIME and isinstance(value, datetime):
        return _moment(value)
    elif scalar is Scalar.BLOB and isinstance(value, bytes | str):
        return value if isinstance(value, bytes) else _blob(value)
    raise Misfit(f"expected {scalar}, got {_shown(value)}{_HOW_TO_WRITE.get(scalar, '')}")


_HOW_TO_WRITE = {
    Scalar.DATE: '; write date("2026-01-31")',
    Scalar.DATETIME: '; write datetime("2026-01-31T12:00:00Z")',
    Scalar.BLOB: f'; write its bytes as text, "{BLOB_PREFIX}…"',
}


def _float(value: int | float, scalar: Scalar) -> float:
    """The float as it will be stored, so that it equals the stored value in a comparison."""
    try:
        stored = float(value)
        if scalar is Scalar.F32:
            (stored,) = struct.unpack("<f", struct.pack("<f", stored))
    except OverflowError:
        raise Misfit(f"{_shown(value)} is out of the range of {scalar}") from None
    if not math.isfinite(stored):
        raise Misfit(f"{_shown(value)} is not finite, and can't be compared or written by a query")
    return stored


def _moment(value: datetime) -> datetime:
    """The moment in UTC; a value without a time zone is taken as UTC, as in a load."""
    try:
        return in_utc(value)
    except OverflowError:
        raise Misfit(f"{_shown(value)} is beyond the years 1 to 9999 in UTC") from None


def _blob(text: str) -> bytes:
    if not text.startswith(BLOB_PREFIX):
        raise Misfit(f'expected Blob, got {_shown(text)}; write its bytes as text, "{BLOB_PREFIX}…"')
    try:
        return base64.b64decode(text.removeprefix(BLOB_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise Misfit(f"what follows {BLOB_PREFIX!r} is not base64") from None


def _shown(value: Any) -> str:
    """The value as a message shows it, truncated if long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print integers of thousands of digits
        text = "a very large value"
    return text if len(text) <= 60 else f"{text[:59]}…"
