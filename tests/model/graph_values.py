"""Values for every property type: as the graph holds them, as callers may spell them, and ones that don't fit.

Most come from small pools, so that keys meet, with the ugly ones of every type among them. A value is drawn as the
graph holds it and spelled afterwards, so what it becomes is known without parsing or casting anything.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from typing import Any

from hypothesis import strategies as st

from omniray.engine.schema.types import (
    INTEGER_LIMITS,
    ElementType,
    EnumType,
    ListType,
    Property,
    PropertyType,
    Scalar,
    ScalarType,
    VectorType,
)
from tests.model.graph_model import keeps_own_rules, single

HOSTILE_TEXTS = (
    "", " ", "'", "''", '"', "\\", "\\'", ";", "--", "/*", "' OR 1=1 --", "'; drop table Person; --", "x' or 'x'='x",
    "name = 'Ada1'", "NULL", "null", "true", "0", "-0.0", "%", "_", "*", "{0} {name}", "$x", "${x}", '["a","b"]',
    "two\nlines\r\n", "tab\t", "\x00", "a\x00b", "a\x00c", "\x1b[31m", "\x7f", "é", "e\u0301", "É", "ß", "😀",
    "\ufeffa", "\u202eback", "\u00a0", "\U0010ffff", "x" * 1024,
)  # fmt: skip
TOO_LONG_FOR_AN_ID = "x" * 1025

_FLOATS = (0.0, 0.5, 1.0, -0.0, 0.1, 1e-07, -5.0, 2.0**53, math.inf, -math.inf, math.nan)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EAST = timezone(timedelta(hours=5, minutes=30))

POOLS: Mapping[Scalar, tuple[Any, ...]] = {
    # Ada1 and Bob2 match every pattern that a random schema has.
    Scalar.STRING: ("Ada1", "Bob2", *HOSTILE_TEXTS, TOO_LONG_FOR_AN_ID),
    Scalar.BOOL: (False, True),
    **{scalar: (0, 1, 2, 7, *limits, limits[1] // 2 + 1) for scalar, limits in INTEGER_LIMITS.items()},
    Scalar.F32: (*map(single, _FLOATS), single(3.4028234663852886e38), single(1e-45)),
    Scalar.F64: (*_FLOATS, 1.7976931348623157e308, 5e-324),
    Scalar.DATE: (date(2024, 2, 29), date(1970, 1, 1), date(1969, 12, 31), date.min, date.max),
    Scalar.DATETIME: (
        datetime(2024, 2, 29, 12, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), _FIRST, _LAST,
    ),
    Scalar.BLOB: (b"", b"\x00\xff", b"base64:", b"\n" * 70),
}  # fmt: skip

_BEYOND_THE_POOL: Mapping[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: st.text(max_size=4),
    Scalar.BOOL: st.booleans(),
    **{scalar: st.integers(*limits) for scalar, limits in INTEGER_LIMITS.items()},
    Scalar.F32: st.floats(width=32),
    Scalar.F64: st.floats(),
    Scalar.DATE: st.dates(),
    Scalar.DATETIME: st.datetimes(timezones=st.just(UTC)),
    Scalar.BLOB: st.binary(max_size=4),
}

_MISFITS: Mapping[Scalar, tuple[Any, ...]] = {
    Scalar.STRING: (5, True, b"bytes", ["a"]),
    Scalar.BOOL: (1, "true", 0.0),
    **{scalar: (low - 1, high + 1, "7", True, 0.5, 10**60) for scalar, (low, high) in INTEGER_LIMITS.items()},
    Scalar.F32: ("1.5", 1e39, True),
    Scalar.F64: ("1.5", True, [1.0]),
    Scalar.DATE: ("2024-02-30", 19_000, "' OR 1=1 --"),
    Scalar.DATETIME: ("2024-02-30T00:00:00Z", 0, "' OR 1=1 --"),
    Scalar.BLOB: ("not base64", 5, "base64:?"),
}


@cache
def any_values(type: PropertyType) -> st.SearchStrategy[Any]:
    """Values of a type, whatever the rules of their property."""
    match type:
        case EnumType(values):
            return st.sampled_from(values)
        case ListType(item):
            return st.lists(any_values(item), max_size=3)
        case VectorType(size):
            finite = st.sampled_from([value for value in POOLS[Scalar.F32] if math.isfinite(value)])
            return st.lists(finite, min_size=size, max_size=size)
    return st.one_of(st.sampled_from(POOLS[type.scalar]), _BEYOND_THE_POOL[type.scalar])


@cache
def lawful_values(type: ElementType, property: Property) -> st.SearchStrategy[Any]:
    """Values that keep the rules of their property, as far as the pool has any."""
    if not isinstance(property.type, ScalarType):
        return any_values(property.type)
    pool = [value for value in POOLS[property.type.scalar] if keeps_own_rules(type, {property.name: value})]
    return st.sampled_from(pool[:12]) if pool else any_values(property.type)


@cache
def misfits(type: PropertyType) -> st.SearchStrategy[Any]:
    """What a caller may give that is no value of the type, to a load or to a query."""
    match type:
        case EnumType():
            return st.sampled_from(("nobody", "' OR 1=1 --", 1))
        case ListType(item):
            wrong = st.one_of(st.none(), misfits(item))
            return st.one_of(st.just("text"), wrong.map(lambda one: [one]))
        case VectorType(size):
            good = [0.5] * size
            return st.sampled_from(([*good, 0.5], [math.nan, *good[1:]], [None, *good[1:]], "text"))
    return st.sampled_from(_MISFITS[type.scalar])


def for_query(held: Any) -> Any:
    """The value, or another of its type if queries don't take it: they know finite floats only."""
    if isinstance(held, list):
        return [for_query(item) for item in held]
    return 0.5 if isinstance(held, float) and not math.isfinite(held) else held


def spellings(held: Any, *, in_query: bool) -> list[Any]:
    """The ways in which a caller may give a value; queries are stricter than loads."""
    match held:
        case datetime():
            elsewhere = [held.astimezone(_EAST)] if held < _LAST - timedelta(days=1) else []
            return [held, held.isoformat(), held.replace(tzinfo=None), *elsewhere]
        case date():
            return [held, held.isoformat()]
        case bytes():
            return [held, _base64(held)]
        case bool():
            return [held]
        case int() if not in_query and abs(held) <= 1 << 53:
            return [held, float(held)]
        case float() if held.is_integer() and 0 < abs(held) <= 1 << 53:
            return [held, int(held)]
        case list() if not in_query:
            return [held, tuple(held)]
    return [held]


def literal(held: Any) -> str:
    """The value as it is written in the text of a query."""
    match held:
        case None:
            return "null"
        case bool():
            return str(held).lower()
        case datetime():
            return f'datetime("{held.isoformat()}")'
        case date():
            return f'date("{held.isoformat()}")'
        case bytes():
            return literal(_base64(held))
        case list():
            return f"[{', '.join(map(literal, held))}]"
        case str():
            return json.dumps(held, ensure_ascii=False)
    return repr(held)


def _base64(held: bytes) -> str:
    return "base64:" + base64.b64encode(held).decode()
