"""`@default(value)`: what a property has in a record that leaves it out.

A default is kept as the literal that its canonical text has: a date is `"2026-01-31"`, a moment is in UTC, a float is
a float. Whatever fills it in later need not check it again: it fits the property's type and its constraints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.schema.constraints import Place, properties_of
from omniray.engine.schema.syntax import Word, WrittenAnnotation
from omniray.engine.schema.times import date_of, moment_of
from omniray.engine.schema.types import (
    INTEGER_LIMITS,
    Check,
    Constraint,
    EnumType,
    Key,
    ListType,
    Literal_,
    Property,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    VectorType,
)

DEFAULT = "default"
TEXT_BYTES_MAX = 1024  # a load holds it once for each row of a block
_WORDS = {"true": True, "false": False}


def read_default(written: WrittenAnnotation, type: PropertyType, place: Place) -> Literal_:
    """The default that an annotation gives a property of a type."""
    match written.arguments:
        case (str() | int() | float() as given,):
            return _fitting(given, type, place)
        case (Word("null"),):
            raise place.error("@default(null): leave it out; a property that may be null is null without a default")
        case (Word(text),) if isinstance(type, EnumType):
            return _fitting(text, type, place)
        case (Word(text),) if text in _WORDS:
            return _fitting(_WORDS[text], type, place)
        case (Word(text),):
            raise place.error(f'@default({text}): write a text in quotes, @default("{text}")')
    raise place.error('@default takes one value: @default("dev"), @default(0) or @default(true)')


def check_defaults(
    columns: Mapping[str, Property], constraints: Iterable[Constraint], place: Callable[[str], Place]
) -> None:
    """Refuse defaults that break a rule of their type, and those of a key: every node would have the same one."""
    for constraint in constraints:
        for name in properties_of(constraint):
            property = columns.get(name)
            if property is None or property.default is None:
                continue
            if isinstance(constraint, Key):
                raise place(name).error("@default on a property of the key, which every record must give; remove one")
            if isinstance(constraint, Range) and not _is_within(property, constraint):
                raise place(name).error(f"@default({property.default}) is outside its @range; change one of them")
            if isinstance(constraint, Check) and not _matches(property.default, constraint.pattern):
                raise place(name).error(f"@default({property.default!r}) does not match its @check; change one of them")


def _fitting(given: Literal_, type: PropertyType, place: Place) -> Literal_:
    match type:
        case EnumType(values):
            if given in values:
                return given
            raise place.error(f"@default({given!r}) is not among the enum's values; {did_you_mean(str(given), values)}")
        case ListType() | VectorType() | ScalarType(Scalar.BLOB):
            raise place.error(f"@default on a property of type {type}; only single values other than blobs have one")
        case ScalarType(scalar):
            fitting = _as_scalar(given, scalar)
            if fitting is not None:
                return fitting
            raise place.error(f"@default({given!r}) does not fit {scalar}; {_EXPECTED.get(scalar, 'write a number')}")


_EXPECTED = {
    Scalar.STRING: f"write a text in quotes, of at most {TEXT_BYTES_MAX} bytes",
    Scalar.BOOL: "write true or false",
    Scalar.DATE: 'write a day as "2026-01-31"',
    Scalar.DATETIME: 'write a moment as "2026-01-31T12:00:00Z"',
    **{scalar: f"write a whole number in {low}..{high}" for scalar, (low, high) in INTEGER_LIMITS.items()},
}


def _as_scalar(given: Literal_, scalar: Scalar) -> Literal_ | None:
    """The literal in its canonical form; None if it is no value of the type."""
    # In Python True is an int; here it is none.
    if isinstance(given, bool):
        return given if scalar is Scalar.BOOL else None
    if isinstance(given, str):
        return _as_text(given, scalar)
    if scalar in INTEGER_LIMITS:
        low, high = INTEGER_LIMITS[scalar]
        return given if isinstance(given, int) and low <= given <= high else None
    if scalar not in (Scalar.F32, Scalar.F64):
        return None
    # Adding zero turns -0.0 into 0.0, which is equal to it but printed differently.
    real = float(given) + 0.0
    return real if math.isfinite(_stored(real, scalar)) else None


def _as_text(given: str, scalar: Scalar) -> str | None:
    match scalar:
        case Scalar.STRING:
            return given if len(given.encode()) <= TEXT_BYTES_MAX else None
        case Scalar.DATE:
            day = date_of(given)
            return None if day is None else day.isoformat()
        case Scalar.DATETIME:
            moment = moment_of(given)
            return None if moment is None else moment.isoformat().replace("+00:00", "Z")
    return None


def _stored(number: float, scalar: Scalar) -> float:
    """The number as a column of the type holds it."""
    stored: float = pa.scalar(number, ScalarType(scalar).arrow).as_py()
    return stored


def _is_within(property: Property, range: Range) -> bool:
    """Whether a default lies within the bounds, compared as its column compares them."""
    type, default = property.type, property.default
    assert isinstance(type, ScalarType), "only numbers have a range"
    assert isinstance(default, int | float), "and their defaults are numbers"
    if type.scalar in INTEGER_LIMITS:
        value, low, high = default, range.low, range.high
    else:
        value = _stored(default, type.scalar)
        low, high = (None if bound is None else _stored(bound, type.scalar) for bound in (range.low, range.high))
    return (low is None or low <= value) and (high is None or value <= high)


def _matches(text: Literal_, pattern: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([text], pa.string()), pattern)[0].as_py())
