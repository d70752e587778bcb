"""Constraints: from `@key`, `@unique(a, b)` … as written to values that are checked and in one order.

A constraint may stand at a property (`name: String @key`) or by itself in a body (`@key(name)`). Both mean the same,
so both give the same value, and the order in which a type holds its constraints does not depend on where they stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import SchemaError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.schema.syntax import Bounds, Word, WrittenAnnotation
from omniray.engine.schema.types import (
    INTEGER_LIMITS,
    Check,
    Constraint,
    EnumType,
    Index,
    Key,
    ListType,
    Property,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    Unique,
    VectorType,
)

USAGE = {
    "key": "@key at a property, or @key(a, b) in the body",
    "unique": "@unique at a property, or @unique(a, b) in the body",
    "index": "@index at a property, or @index(a, b) in the body",
    "range": "@range(0..150) at a property, or @range(age, 0..150) in the body; one bound may be left out",
    "check": '@check("^[A-Z]") at a property, or @check(name, "^[A-Z]") in the body',
}
_KIND_ORDER = (Key, Unique, Index, Range, Check)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a schema, for errors to name."""

    line: int
    type: str
    property: str = ""

    def error(self, message: str) -> SchemaError:
        name = f"{self.type}.{self.property}" if self.property else self.type
        facts = {"property": self.property} if self.property else {}
        return SchemaError(f"line {self.line}: {name}: {message}", line=self.line, type=self.type, **facts)


@dataclass(frozen=True, slots=True)
class Stated:
    """A constraint and where its author put it."""

    constraint: Constraint
    place: Place


def is_constraint(annotation: WrittenAnnotation) -> bool:
    return annotation.name in USAGE


def names_its_properties(annotation: WrittenAnnotation) -> bool:
    """Whether a constraint names its properties, and so belongs to the type rather than to a property."""
    return bool(annotation.arguments) and isinstance((annotation.arguments or ("",))[0], Word)


def read_constraint(annotation: WrittenAnnotation, property: str, place: Place) -> Constraint:
    """The constraint that an annotation states, about the property that it stands at unless it names others."""
    arguments = annotation.arguments
    words = tuple(a.text for a in arguments or () if isinstance(a, Word))
    match (annotation.name, arguments):
        case ("range", (Bounds() as bounds,)):
            return Range(property, bounds.low, bounds.high)
        case ("range", (Word() as word, Bounds() as bounds)):
            return Range(word.text, bounds.low, bounds.high)
        case ("check", (str() as pattern,)):
            return Check(property, pattern)
        case ("check", (Word() as word, str() as pattern)):
            return Check(word.text, pattern)
        case (("key" | "unique" | "index") as name, None):
            return _over_names(name, (property,))
        case (("key" | "unique" | "index") as name, _) if words and len(words) == len(arguments or ()):
            return _over_names(name, words)
    raise place.error(f"@{annotation.name} is written {USAGE[annotation.name]}")


def settle_constraints(
    stated: Iterable[Stated], columns: Mapping[str, Property], kind: Literal["node", "edge"]
) -> tuple[Constraint, ...]:
    """The constraints of a type, checked against its columns, each once, in the canonical order."""
    settled: dict[Constraint, None] = {}
    keyed = False
    ranged: set[str] = set()
    for one in stated:
        constraint = _checked(one.constraint, columns, kind, one.place)
        if constraint in settled:
            continue
        if isinstance(constraint, Key):
            if keyed:
                raise one.place.error("a second @key; for a key of several properties write @key(a, b)")
            keyed = True
        if isinstance(constraint, Range):
            if constraint.property in ranged:
                raise one.place.error(f"a second @range on {constraint.property!r}; write one with both bounds")
            ranged.add(constraint.property)
        settled[constraint] = None
    return in_canonical_order(settled, columns)


def in_canonical_order(constraints: Iterable[Constraint], columns: Iterable[str]) -> tuple[Constraint, ...]:
    """By kind, then by the columns in their own order, then by pattern."""
    position = {name: i for i, name in enumerate(columns)}

    def rank(constraint: Constraint) -> tuple[int, tuple[int, ...], str]:
        pattern = constraint.pattern if isinstance(constraint, Check) else ""
        return _KIND_ORDER.index(type(constraint)), tuple(position[n] for n in properties_of(constraint)), pattern

    return tuple(sorted(constraints, key=rank))


def properties_of(constraint: Constraint) -> tuple[str, ...]:
    """The columns that a constraint is about."""
    if isinstance(constraint, Range | Check):
        return (constraint.property,)
    return constraint.properties


def with_names(constraint: Constraint, new: Mapping[str, str]) -> Constraint:
    """The constraint with other names for some of its properties."""
    names = tuple(new.get(name, name) for name in properties_of(constraint))
    if isinstance(constraint, Range | Check):
        return replace(constraint, property=names[0])
    return replace(constraint, properties=names)


def _over_names(name: str, properties: tuple[str, ...]) -> Constraint:
    if name == "key":
        return Key(properties)
    return Unique(properties) if name == "unique" else Index(properties)


def _checked(constraint: Constraint, columns: Mapping[str, Property], kind: str, place: Place) -> Constraint:
    names = properties_of(constraint)
    word = f"@{type(constraint).__name__.lower()}"
    if kind == "edge" and not isinstance(constraint, Unique | Index):
        raise place.error(f"{word} on an edge type; edges take @unique and @index only")
    for name in names:
        if name not in columns:
            raise place.error(f"{word} names the unknown property {name!r}; {did_you_mean(name, columns)}")
    if len(set(names)) < len(names):
        raise place.error(f"{word} names a property twice")
    for name in names:
        _check_type(constraint, word, columns[name], place)
    if isinstance(constraint, Range):
        return _checked_range(constraint, columns[constraint.property].type, place)
    if isinstance(constraint, Check):
        _check_pattern(constraint.pattern, place)
    return constraint


def _check_type(constraint: Constraint, word: str, property: Property, place: Place) -> None:
    type, name = property.type, property.name
    match constraint:
        case Key() if property.nullable:
            raise place.error(f"{word} on {name!r}, which may be null; remove its '?'")
        case Key() | Unique() if isinstance(type, ListType | VectorType) or _is(type, Scalar.BLOB):
            raise place.error(f"{word} on {name!r}, but values of {type} can't be told apart by a key")
        case Index() if _is(type, Scalar.BLOB):
            raise place.error(f"{word} on {name!r}, but a Blob can't be indexed")
        case Range() if not _is(type, *INTEGER_LIMITS, Scalar.F32, Scalar.F64):
            raise place.error(f"{word} on {name!r}, which is {_shown(type)}; only numbers have a range")
        case Check() if not _is(type, Scalar.STRING):
            raise place.error(f"{word} on {name!r}, which is {_shown(type)}; only a String can be matched")


def _checked_range(range: Range, type: PropertyType, place: Place) -> Range:
    """The range with bounds of the property's own kind of number, so that `0..1` and `0.0..1.0` are one thing."""
    bounds = [bound for bound in (range.low, range.high) if bound is not None]
    if not bounds:
        raise place.error("@range without a bound; write at least one of the two")
    if range.low is not None and range.high is not None and range.low > range.high:
        raise place.error(f"@range from {range.low} to {range.high} is empty; swap the bounds")
    if isinstance(type, ScalarType) and type.scalar in INTEGER_LIMITS:
        least, most = INTEGER_LIMITS[type.scalar]
        if not all(isinstance(bound, int) and least <= bound <= most for bound in bounds):
            raise place.error(f"@range on a property of type {type}; its bounds are whole and lie in {least}..{most}")
        return range
    # Adding zero turns -0.0 into 0.0, which is equal to it but printed differently.
    low, high = (None if bound is None else float(bound) + 0.0 for bound in (range.low, range.high))
    return Range(range.property, low, high)


def _check_pattern(pattern: str, place: Place) -> None:
    try:
        # On an empty array Arrow never compiles the pattern.
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise place.error(f"@check has a pattern that is not an RE2 regular expression: {reason}") from None


def _is(type: PropertyType, *scalars: Scalar) -> bool:
    return isinstance(type, ScalarType) and type.scalar in scalars


def _shown(type: PropertyType) -> str:
    return "an enum" if isinstance(type, EnumType) else str(type)
