"""Values written as text: ISO dates and times, base64, and the cells of a CSV file.

For each kind there is a mask (`is_…`), exact enough that converting the texts it accepts can't fail.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.schema.types import Scalar

_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_ZONE = r"(?:Z|[+-](?:0\d|1\d|2[0-3])(?::?[0-5]\d)?)"
_TIME = rf"[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{{1,9}})?)?{_ZONE}?"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_BASE64_PREFIX = "base64:"


def _matches(texts: pa.Array, pattern: str) -> pa.BooleanArray:
    return pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")


def is_date(texts: pa.Array) -> pa.BooleanArray:
    """Which texts are calendar dates, `2024-02-29`, from the year 1 on."""
    return pc.and_not(_matches(texts, _DAY), pc.starts_with(texts, "0000"))


def to_dates(texts: pa.Array) -> pa.Date32Array:
    return texts.cast(pa.string()).cast(pa.date32())


def is_datetime(texts: pa.Array) -> pa.BooleanArray:
    """Which texts are times, `2024-02-29T12:30:00.25+02:00`; seconds, zone, or all but the date may be missing."""
    return pc.and_not(_matches(texts, rf"{_DAY}(?:{_TIME})?"), pc.starts_with(texts, "0000"))


def to_datetimes(texts: pa.Array) -> pa.TimestampArray:
    """Parse texts with and without a zone to times in UTC."""
    utc = pa.timestamp("us", tz="UTC")
    texts = pc.replace_substring_regex(texts.cast(pa.string()), r"(\.\d{6})\d+", r"\1")
    nothing = pa.scalar(None, pa.string())
    zoned = _matches(texts, rf".*[T ].*{_ZONE}")
    aware = pc.if_else(zoned, texts, nothing).cast(utc)
    naive = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")).cast(utc)
    return pc.coalesce(aware, naive)


def is_base64(texts: pa.Array) -> pa.BooleanArray:
    """Which texts are bytes written as `base64:…`."""
    return _matches(texts, _BASE64_PREFIX + _BASE64)


def base64_bytes(texts: pa.Array) -> pa.LargeBinaryArray:
    # Arrow has no kernel for it; for blobs the cost of the Python loop is small.
    values = (None if text is None else binascii.a2b_base64(text[len(_BASE64_PREFIX) :]) for text in texts.to_pylist())
    return pa.array(values, pa.large_binary())


def parse_cells(cells: pa.StringArray, scalar: Scalar) -> tuple[pa.Array, pa.BooleanArray]:
    """Parse CSV cells to values that `casts.cast` accepts for the scalar, and mark the cells that could be parsed.

    Numbers and booleans are parsed here; dates, times and blobs are written as text in every format.
    """
    if scalar in (Scalar.STRING, Scalar.BLOB):
        return cells, pc.is_valid(cells)
    cells = pc.utf8_trim_whitespace(cells)
    if scalar not in _CELL:
        return cells, pc.is_valid(cells)
    pattern, type = _CELL[scalar]
    readable = _matches(cells, pattern)
    values = pc.if_else(readable, cells, pa.scalar(None, pa.string())).cast(type)
    if pa.types.is_floating(type):
        overflowed = pc.and_not(pc.is_inf(values), pc.match_substring(cells, "inf", ignore_case=True))
        readable = pc.and_not(readable, pc.fill_null(overflowed, False))
    return values, readable


_INTEGER = (r"[+-]?\d{1,38}", pa.decimal128(38, 0))
_FLOAT = (r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:nan|[+-]?inf(?:inity)?)", pa.float64())
_CELL: Mapping[Scalar, tuple[str, pa.DataType]] = {
    Scalar.BOOL: ("(?i:true|false|0|1)", pa.bool_()),
    **dict.fromkeys((Scalar.I32, Scalar.I64, Scalar.U32, Scalar.U64), _INTEGER),
    **dict.fromkeys((Scalar.F32, Scalar.F64), _FLOAT),
}
