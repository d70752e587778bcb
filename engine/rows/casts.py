"""Casts a source column to the physical type of a property, and marks the rows that do not fit.

Everything is decided by masks over whole columns. A value that does not fit becomes null and is marked, so that one
bad row costs no more than a good one. Typing is strict: a bool is not a number, a number is not text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.texts import base64_bytes, is_base64, is_date, is_datetime, to_dates, to_datetimes
from omniray.engine.schema.types import ListType, PropertyType, Scalar, ScalarType, VectorType

Mask = npt.NDArray[np.bool_]

_UTC = pa.timestamp("us", tz="UTC")
_EPOCH = date(1970, 1, 1)
_DAY_MIN, _DAY_MAX = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_TICKS_OF_DAY: Mapping[str, int] = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True, slots=True)
class Cast:
    """A column in its physical type, null where a value did not fit; `bad` marks those rows, None where all fit."""

    values: pa.Array
    bad: Mask | None = None


def cast(array: pa.Array, type: PropertyType) -> Cast:
    """Cast an Arrow column to a property's type, without a copy where it has that type already."""
    array = _plain(array)
    if pa.types.is_null(array.type):
        return Cast(pa.nulls(len(array), type.arrow))
    if isinstance(type, ListType | VectorType):
        if not _is_list(array.type):
            return _none_fit(array, type.arrow)
        lengths = pc.list_value_length(array)
        return nest(cast(array.flatten(), item_type(type)), lengths, type)
    scalar = type.scalar if isinstance(type, ScalarType) else Scalar.STRING
    return _CAST_OF_SCALAR[scalar](array, type.arrow)


def item_type(type: ListType | VectorType) -> ScalarType:
    return type.item if isinstance(type, ListType) else ScalarType(Scalar.F32)


def nest(items: Cast, lengths: pa.Int32Array, type: ListType | VectorType) -> Cast:
    """Put cast items back into lists of the given lengths (null: no list); a list with a bad or null item is bad."""
    bad_items = mask_of(pc.is_null(items.values)) if items.values.null_count else None
    bad_items = either(bad_items, items.bad)
    if isinstance(type, VectorType):
        finite = pc.is_finite(items.values)
        if not pc.all(finite).as_py():
            bad_items = either(bad_items, ~mask_of(finite))
    counts = lengths.fill_null(0).to_numpy().astype(np.int64)
    bad = np.zeros(len(counts), np.bool_)
    if bad_items is not None:
        bad[np.repeat(np.arange(len(counts)), counts)[bad_items]] = True
    if isinstance(type, VectorType):
        bad |= (counts != type.size) & mask_of(lengths.is_valid())
    absent = bad | mask_of(lengths.is_null())
    build = _vectors if isinstance(type, VectorType) else _lists
    return Cast(build(items.values, counts, absent, type.arrow), bad if bad.any() else None)


def _lists(items: pa.Array, counts: npt.NDArray[np.int64], absent: Mask, type: pa.DataType) -> pa.Array:
    if len(items) == 0:
        items = pa.array([], items.type)  # cut from longer texts, it would keep an offset at which Lance finds no bytes
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=type, mask=mask)


def _vectors(items: pa.Array, counts: npt.NDArray[np.int64], absent: Mask, type: pa.DataType) -> pa.Array:
    if not absent.any():
        return pa.FixedSizeListArray.from_arrays(items, type=type)
    # A fixed-size list has room for its items even where it is null.
    room = np.zeros((len(counts), type.list_size), np.float32)
    room[~absent] = items.filter(pa.array(~np.repeat(absent, counts))).to_numpy().reshape(-1, type.list_size)
    return pa.FixedSizeListArray.from_arrays(pa.array(room.ravel()), type=type, mask=pa.array(absent))


def _to_text(array: pa.Array, target: pa.DataType) -> Cast:
    if not is_text(array.type):
        return _none_fit(array, target)
    texts = array if array.type == target else array.cast(target)
    try:
        # Files may hold any bytes under the name of text, and Arrow's readers do not look.
        texts.validate(full=True)
    except pa.ArrowInvalid:
        fits = [value is None or _is_utf8(value) for value in texts.cast(pa.binary()).to_pylist()]
        return _where(pa.array(fits), texts)
    return Cast(texts)


def _to_bool(array: pa.Array, target: pa.DataType) -> Cast:
    return Cast(array) if pa.types.is_boolean(array.type) else _none_fit(array, target)


def _to_integer(array: pa.Array, target: pa.DataType) -> Cast:
    if array.type == target:
        return Cast(array)
    low, high = integer_bounds(target)
    if pa.types.is_integer(array.type):
        fits = _between(array, low, high)
    elif pa.types.is_floating(array.type):
        array = array.cast(pa.float64())
        # The next power of two is exact as a float where the bound itself is not.
        inside = pc.and_(pc.greater_equal(array, float(low)), pc.less(array, float(high + 1)))
        fits = pc.and_(inside, pc.equal(pc.floor(array), array))
    elif pa.types.is_decimal(array.type):
        if array.type.scale > 0:  # room for rounding up, and for comparing with a number of another scale
            array = array.cast(pa.decimal256(76, array.type.scale))
        least, greatest = pa.scalar(Decimal(low)), pa.scalar(Decimal(high))
        inside = pc.and_(pc.greater_equal(array, least), pc.less_equal(array, greatest))
        fits = pc.and_(inside, pc.equal(pc.floor(array), array))
    else:
        return _none_fit(array, target)
    return _where(fits, array, lambda fitting: fitting.cast(target, safe=False))


def _to_float(array: pa.Array, target: pa.DataType) -> Cast:
    if array.type == target:
        return Cast(array)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)):
        return _none_fit(array, target)
    wide = array.cast(pa.float64(), safe=False)
    values = wide.cast(target, safe=False)
    overflowed = pc.and_(pc.is_inf(values), pc.is_finite(wide))
    return _where(pc.invert(overflowed), values)


def _to_date(array: pa.Array, target: pa.DataType) -> Cast:
    if is_text(array.type):
        return _where(is_date(array), array, to_dates)
    if pa.types.is_timestamp(array.type):
        ticks, day = array.view(pa.int64()), _TICKS_OF_DAY[array.type.unit]
        days = pc.divide(ticks, day)
        midnight = pc.equal(pc.multiply(days, day), ticks)
        fits = pc.and_(_in_calendar(array), midnight)
        return _where(fits, days, lambda fitting: fitting.cast(pa.int32()).view(target))
    if not pa.types.is_date(array.type):
        return _none_fit(array, target)
    return _where(_in_calendar(array), array, lambda fitting: fitting.cast(target, safe=False))


def _to_datetime(array: pa.Array, target: pa.DataType) -> Cast:
    """Cast to UTC microseconds: a time without a zone is taken as UTC, finer digits are cut off."""
    if is_text(array.type):
        read = _where(is_datetime(array), array, to_datetimes)
        inside = _where(_in_calendar(read.values), read.values)  # converting a zone to UTC may leave the year 9999
        return Cast(inside.values, either(read.bad, inside.bad))
    if pa.types.is_date(array.type):
        return _where(_in_calendar(array), array, lambda days: days.cast(pa.timestamp("us")).cast(target))
    if not pa.types.is_timestamp(array.type):
        return _none_fit(array, target)
    return _where(_in_calendar(array), array, lambda times: times.cast(target, safe=False))


def _to_blob(array: pa.Array, target: pa.DataType) -> Cast:
    if is_text(array.type):
        return _where(is_base64(array), array, base64_bytes)
    types = pa.types
    binary = types.is_binary(array.type) or types.is_large_binary(array.type) or types.is_binary_view(array.type)
    if not binary and not types.is_fixed_size_binary(array.type):
        return _none_fit(array, target)
    return Cast(array if array.type == target else array.cast(target))


_CAST_OF_SCALAR: Mapping[Scalar, Callable[[pa.Array, pa.DataType], Cast]] = {
    Scalar.STRING: _to_text,
    Scalar.BOOL: _to_bool,
    Scalar.I32: _to_integer,
    Scalar.I64: _to_integer,
    Scalar.U32: _to_integer,
    Scalar.U64: _to_integer,
    Scalar.F32: _to_float,
    Scalar.F64: _to_float,
    Scalar.DATE: _to_date,
    Scalar.DATETIME: _to_datetime,
    Scalar.BLOB: _to_blob,
}


def integer_bounds(type: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    if pa.types.is_signed_integer(type):
        return -(1 << type.bit_width - 1), (1 << type.bit_width - 1) - 1
    return 0, (1 << type.bit_width) - 1


def mask_of(array: pa.BooleanArray) -> Mask:
    """An Arrow mask as a NumPy mask; null becomes false."""
    mask: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    """The union of two masks; None marks nothing."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _between(array: pa.Array, low: int, high: int) -> pa.BooleanArray:
    """Which integers lie within the bounds; a bound outside the range of their type is ignored."""
    least, greatest = integer_bounds(array.type)
    low, high = pa.scalar(max(low, least), array.type), pa.scalar(min(high, greatest), array.type)
    return pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))


def _in_calendar(array: pa.Array) -> pa.BooleanArray:
    """Which dates or times lie in the years 1 to 9999, which every calendar library supports."""
    if pa.types.is_date32(array.type):
        return _between(array.view(pa.int32()), _DAY_MIN, _DAY_MAX)
    day = _TICKS_OF_DAY["ms" if pa.types.is_date64(array.type) else array.type.unit]
    return _between(array.view(pa.int64()), _DAY_MIN * day, (_DAY_MAX + 1) * day - 1)


def _as_is(array: pa.Array) -> pa.Array:
    return array


def _where(fits: pa.BooleanArray, array: pa.Array, finish: Callable[[pa.Array], pa.Array] = _as_is) -> Cast:
    """Finish the values that fit; the others become null and are marked."""
    if pc.all(fits, min_count=0).as_py():
        return Cast(finish(array))
    return Cast(finish(pc.if_else(fits, array, pa.scalar(None, array.type))), ~mask_of(pc.fill_null(fits, True)))


def _none_fit(array: pa.Array, target: pa.DataType) -> Cast:
    present = mask_of(array.is_valid())
    return Cast(pa.nulls(len(array), target), present if present.any() else None)


def _plain(array: pa.Array) -> pa.Array:
    """The same values without an extension type or encoding that only concerns storage."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    return array


def is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_list(type: pa.DataType) -> bool:
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(type) for is_kind in lists)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
