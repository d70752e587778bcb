"""Random writes to a graph, each in two forms: the call as a user makes it, and what it means to the model.

Values come from small pools, so that keys meet, with the ugly ones of every type among them. What a value becomes in
the graph is known because it is drawn first and spelled afterwards; nothing here parses or casts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from omniray.engine.schema import (
    DST,
    ID,
    INTEGER_LIMITS,
    SRC,
    EdgeType,
    ElementType,
    EnumType,
    ListType,
    NodeType,
    Property,
    PropertyType,
    Scalar,
    ScalarType,
    VectorType,
)
from tests.model.graph_model import (
    COMPARE,
    MISFIT,
    Delete,
    GraphModel,
    Insert,
    Predicate,
    Record,
    Statement,
    Update,
    is_fit,
    key_text,
    single,
)

TEXTS = (
    "Ada1", "Bob2", "", "' OR 1=1 --", "'; drop table Person; --", 'say "no"', "back\\slash", "two\nlines\r\n", "tab\t",
    "\x00", "a\x00b", "\x7f", "é", "e\u0301", "😀", "\ufeffbom", "\u202eback", "%_*?", "{0} {name} ${x} $x", "NULL", "null",
    "[\"a\",\"b\"]", " ", "-0.0", "x" * 1024, "x" * 1025,
)  # fmt: skip
STRANGERS = ("nobody", "", "' OR 1=1 --", "Ada1\x00")
GIVEN_IDS = ("1", "it's", "ß\n")
_FLOATS = (0.0, 0.5, 1.0, -0.0, 0.1, 1e-07, -5.0, 2.0**53, float("inf"), float("-inf"), float("nan"))
_UTC_MIN, _UTC_MAX = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_LITERAL_FREE = (float("inf"), float("-inf"))

POOLS: Mapping[Scalar, tuple[Any, ...]] = {
    Scalar.STRING: TEXTS,
    Scalar.BOOL: (False, True),
    **{scalar: (0, 1, 2, 7, *limits, limits[1] // 2 + 1) for scalar, limits in INTEGER_LIMITS.items()},
    Scalar.F32: (*map(single, _FLOATS), single(3.4028234663852886e38), single(1e-45)),
    Scalar.F64: (*_FLOATS, 1.7976931348623157e308, 5e-324),
    Scalar.DATE: (date(2024, 2, 29), date(1970, 1, 1), date(1969, 12, 31), date.min, date.max),
    Scalar.DATETIME: (
        datetime(2024, 2, 29, 12, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), _UTC_MIN, _UTC_MAX,
    ),
    Scalar.BLOB: (b"", b"\x00\xff", b"base64:", b"\n" * 70),
}  # fmt: skip
"""Values as the graph holds them; the first ones keep most of the rules that a schema may have."""

MISFITS: Mapping[Scalar, tuple[Any, ...]] = {
    Scalar.STRING: (5, True, b"bytes", ["a"]),
    Scalar.BOOL: (1, "true", 0.0),
    **{scalar: (low - 1, high + 1, "7", True, 0.5, 10**60) for scalar, (low, high) in INTEGER_LIMITS.items()},
    Scalar.F32: ("1.5", 1e39, True),
    Scalar.F64: ("1.5", True, [1.0]),
    Scalar.DATE: ("2024-02-30", 19_000, "' OR 1=1 --"),
    Scalar.DATETIME: ("2024-02-30T00:00:00Z", 0, "' OR 1=1 --"),
    Scalar.BLOB: ("not base64", 5, "base64:?"),
}


@dataclass(frozen=True)
class Cell:
    """A value as the caller gives it, and as the graph holds it."""

    given: Any
    held: Any


@dataclass(frozen=True)
class LoadCall:
    """The arguments of a load, and the records they are."""

    source: Any
    type: str | None
    mode: str
    records: tuple[Record, ...]
    types: tuple[ElementType, ...]


@dataclass(frozen=True)
class MutateCall:
    """The arguments of a mutation, and the statements they are."""

    text: str
    params: Mapping[str, Any]
    statements: tuple[Statement, ...]


# Values


@cache
def held_values(type: PropertyType) -> st.SearchStrategy[Any]:
    """Values of a type as the graph holds them."""
    match type:
        case EnumType(values):
            return st.sampled_from(values)
        case ListType(item):
            return st.lists(held_values(item), max_size=3)
        case VectorType(size):
            finite = st.sampled_from([v for v in POOLS[Scalar.F32] if _is_finite(v)])
            return st.lists(finite, min_size=size, max_size=size)
    pool = st.sampled_from(POOLS[type.scalar])
    return pool if type.scalar not in _BROAD else st.one_of(pool, pool, _BROAD[type.scalar])


_BROAD: Mapping[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: st.text(max_size=4),
    **{scalar: st.integers(*limits) for scalar, limits in INTEGER_LIMITS.items()},
    Scalar.F32: st.floats(width=32),
    Scalar.F64: st.floats(),
    Scalar.DATE: st.dates(),
    Scalar.DATETIME: st.datetimes(timezones=st.just(UTC)),
    Scalar.BLOB: st.binary(max_size=4),
}


@cache
def _harmless_values(type: ElementType, property: Property) -> st.SearchStrategy[Any]:
    """Values that keep the property's own rules, as far as a pool has any."""
    if not isinstance(property.type, ScalarType):
        return held_values(property.type)
    pool = [value for value in POOLS[property.type.scalar] if is_fit(type, property, value)]
    return st.sampled_from(pool) if pool else held_values(property.type)


@cache
def _misfits(type: PropertyType) -> st.SearchStrategy[Any]:
    match type:
        case EnumType():
            return st.sampled_from(("nobody", "' OR 1=1 --", 1))
        case ListType(item):
            bad = st.one_of(st.none(), _misfits(item))
            return st.one_of(st.just("text"), st.tuples(held_values(item), bad).map(list))
        case VectorType(size):
            good = [0.5] * size
            return st.sampled_from(([*good, 0.5], [float("nan"), *good[1:]], [None, *good[1:]], "text"))
    return st.sampled_from(MISFITS[type.scalar])


@cache
def _spellings(type: PropertyType, *, query: bool) -> Any:
    """A function from a held value to the ways in which a caller may write it."""

    def spell(held: Any) -> list[Any]:
        match held:
            case datetime():
                east = timezone(timedelta(hours=5, minutes=30))
                zoned = [held.astimezone(east)] if _UTC_MIN < held < _UTC_MAX - timedelta(days=1) else []
                return [held, held.isoformat(), held.replace(tzinfo=None), *zoned]
            case date():
                return [held, held.isoformat()]
            case bytes():
                return [held, "base64:" + base64.b64encode(held).decode()]
            case list() if not query:
                return [held, tuple(held)]
            case bool():
                return [held]
            case int() if not query and float(held) == held and abs(held) <= 1 << 53:
                return [held, float(held)]
            case float() if held.is_integer() and abs(held) <= 1 << 53 and str(held) != "-0.0":
                return [held, int(held)]
        return [held]

    return spell


@st.composite
def _cells(draw: st.DrawFn, type: ElementType, property: Property, *, spoiled: bool, query: bool) -> Cell:
    if spoiled:
        return Cell(draw(_misfits(property.type)), MISFIT)
    if property.nullable and draw(_SELDOM):
        return Cell(None, None)
    held = draw(held_values(property.type) if draw(_SELDOM) else _harmless_values(type, property))
    if query and not _all_finite(held):
        held = 0.0 if isinstance(held, float) else []
    return Cell(draw(st.sampled_from(_spellings(property.type, query=query)(held))), held)


_SELDOM = st.sampled_from((False, False, False, True))
_RARELY = st.sampled_from((False,) * 24 + (True,))


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


def _all_finite(value: Any) -> bool:
    return all(map(_is_finite, value)) if isinstance(value, list) else _is_finite(value)
