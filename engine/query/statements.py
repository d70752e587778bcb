"""A mutation: the meaning of `.gq` text as immutable values.

`parser.py` reads a `Query` from text; `check.py` checks it against a schema and binds its parameters, which gives a
`BoundQuery` of plain Python values under the names of physical columns. Positions never take part in equality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Literal as OneOf

from omniray.engine.schema.types import Annotation, ElementType, PropertyType

Operator = OneOf["=", "!=", "<", "<=", ">", ">="]
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=")

LiteralScalar = str | int | float | bool | date | datetime | None
# The Python value of a property once it is bound.
Value = str | int | float | bool | date | datetime | bytes | list["Value"] | None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the query's text, counted from 1."""

    line: int
    column: int


NOWHERE = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value written in the query; a list is a tuple."""

    value: LiteralScalar | tuple[LiteralScalar, ...]


@dataclass(frozen=True, slots=True)
class ParamRef:
    """`$name`: the value comes with the call."""

    name: str


@dataclass(frozen=True, slots=True)
class Now:
    """`now()`: the time of the call, the same throughout the query."""


Expression = Literal | ParamRef | Now


@dataclass(frozen=True, slots=True)
class Assignment:
    property: str
    value: Expression
    position: Position = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Predicate:
    property: str
    op: Operator
    value: Expression
    position: Position = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Insert:
    type_name: str
    assignments: tuple[Assignment, ...]
    position: Position = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Update:
    type_name: str
    assignments: tuple[Assignment, ...]
    predicate: Predicate
    position: Position = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Delete:
    type_name: str
    predicate: Predicate
    position: Position = field(default=NOWHERE, compare=False, repr=False)


Statement = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: PropertyType
    nullable: bool = False
    position: Position = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """A named mutation: all of its statements insert or update, or all of them delete."""

    name: str
    params: tuple[Param, ...]
    statements: tuple[Statement, ...]
    annotations: tuple[Annotation, ...] = ()
    position: Position = field(default=NOWHERE, compare=False, repr=False)

    @property
    def description(self) -> str:
        """The text of its `@description`, or nothing."""
        return next((str(a.args[0]) for a in self.annotations if a.name == "description"), "")

    @property
    def destructive(self) -> bool:
        return isinstance(self.statements[0], Delete)


@dataclass(frozen=True, slots=True)
class BoundPredicate:
    column: str
    op: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class BoundInsert:
    """A row to insert: a value for every column but `id`; a property that was left out has its default, or is None."""

    type: ElementType
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class BoundUpdate:
    type: ElementType
    values: Mapping[str, Value]
    predicate: BoundPredicate


@dataclass(frozen=True, slots=True)
class BoundDelete:
    type: ElementType
    predicate: BoundPredicate


BoundStatement = BoundInsert | BoundUpdate | BoundDelete


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query ready to run: it fits the schema, and nothing in it is left to resolve."""

    name: str
    statements: tuple[BoundStatement, ...]

    @property
    def destructive(self) -> bool:
        return isinstance(self.statements[0], BoundDelete)
