"""Parses `.gq` text to `Query` values.

Everything that needs no schema is checked here, above all that deletes are not mixed with other statements.
"""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

from lark import Token, v_args

from omniray.engine.base.errors import ParseError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.query.statements import (
    Assignment,
    Delete,
    Expression,
    Insert,
    Literal,
    LiteralScalar,
    Now,
    Operator,
    Param,
    ParamRef,
    Position,
    Predicate,
    Query,
    Statement,
    Update,
)
from omniray.engine.query.values import Misfit, read_date, read_datetime
from omniray.engine.schema.grammar import Builder, Language, Source
from omniray.engine.schema.parser import VECTOR_SIZE_MAX
from omniray.engine.schema.types import Annotation, ListType, PropertyType, Scalar, ScalarType, VectorType

LANGUAGE = Language(
    name="query",
    grammar=Path(__file__).with_name("query.lark"),
    words={
        "_QUERY": "'query'",
        "_INSERT": "'insert'",
        "_UPDATE": "'update'",
        "_DELETE": "'delete'",
        "_SET": "'set'",
        "_WHERE": "'where'",
        "_VECTOR": "'Vector'",
        "_NOW": "now()",
        "_TRUE": "a literal",
        "_FALSE": "a literal",
        "_NULL": "a literal",
        "_DATE": "a literal",
        "_DATETIME": "a literal",
        "QUERY_NAME": "the query's name",
        "TYPE_NAME": "a type name (first letter upper-case)",
        "PROPERTY_NAME": "a property name (first letter lower-case)",
        "SCALAR": "a type such as String or I64",
        "PARAM": "a parameter such as $name",
        "ANNOTATION": "an annotation such as @description",
        "OPERATOR": "one of = != < <= > >=",
        "NUMBER": "a literal",
        "STRING": "a literal",
    },
    hints={
        "match": "queries here only insert, update and delete; read with a snapshot or with SQL",
        "and": "a statement takes one predicate; where that is too coarse, find the rows first and name them by id",
        "or": "a statement takes one predicate; write a statement for each",
        ";": "nothing ends with ';' here; statements are separated by white space",
    },
)


def parse_queries(text: str) -> tuple[Query, ...]:
    """The queries of a `.gq` text in their order, at least one; raises `ParseError`."""
    queries: tuple[Query, ...] = LANGUAGE.read(text, _Builder)
    return queries


@v_args(inline=True)
class _Builder(Builder):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._names: set[str] = set()

    def start(self, *queries: Query) -> tuple[Query, ...]:
        return queries

    def query(
        self,
        name: Token,
        params: tuple[Param, ...],
        annotations: tuple[Annotation, ...],
        statements: tuple[Statement, ...],
    ) -> Query:
        if name in self._names:
            raise self._source.fault_at(name, f"a second query with the name {name!s}; rename one")
        self._names.add(str(name))
        self._refuse_mixing(statements)
        return Query(str(name), params, statements, annotations, _position(name))

    def params(self, *params: Param) -> tuple[Param, ...]:
        names: set[str] = set()
        for param in params:
            if param.name in names:
                raise self._at(param.position, f"a second parameter with the name ${param.name}; rename one")
            names.add(param.name)
        return params

    def param(self, name: Token, type: PropertyType, nullable: Token | None) -> Param:
        return Param(name.removeprefix("$"), type, nullable is not None, _position(name))

    def annotations(self, *annotations: Annotation) -> tuple[Annotation, ...]:
        return annotations

    def annotation(self, name: Token, text: str) -> Annotation:
        return Annotation(name.removeprefix("@"), (text,))

    def statements(self, *statements: Statement) -> tuple[Statement, ...]:
        return statements

    def insert(self, name: Token, *assignments: Assignment) -> Insert:
        return Insert(str(name), assignments, _position(name))

    def update(self, name: Token, *rest: Assignment | Predicate) -> Update:
        assignments = tuple(one for one in rest if isinstance(one, Assignment))
        (predicate,) = (one for one in rest if isinstance(one, Predicate))
        return Update(str(name), assignments, predicate, _position(name))

    def delete(self, name: Token, predicate: Predicate) -> Delete:
        return Delete(str(name), predicate, _position(name))

    def assignment(self, name: Token, value: Expression) -> Assignment:
        return Assignment(str(name), value, _position(name))

    def predicate(self, name: Token, op: Token, value: Expression) -> Predicate:
        operator: Operator = str(op)  # type: ignore[assignment]
        return Predicate(str(name), operator, value, _position(name))

    def scalar(self, name: Token) -> ScalarType:
        scalars = {scalar.value: scalar for scalar in Scalar}
        if name not in scalars:
            raise self._source.fault_at(name, f"no type {name!s}; {did_you_mean(name, scalars)}")
        return ScalarType(scalars[str(name)])

    def list_type(self, name: Token) -> ListType:
        return ListType(self.scalar(name))

    def vector(self, size: Token) -> VectorType:
        number = self._source.number(size)
        if not (isinstance(number, int) and 1 <= number <= VECTOR_SIZE_MAX):
            raise self._source.fault_at(size, f"a vector's size is a whole number in 1..{VECTOR_SIZE_MAX}")
        return VectorType(number)

    def param_ref(self, name: Token) -> ParamRef:
        return ParamRef(name.removeprefix("$"))

    def now(self) -> Now:
        return Now()

    def literal(self, value: LiteralScalar | tuple[LiteralScalar, ...]) -> Literal:
        return Literal(value)

    def list(self, *items: LiteralScalar) -> tuple[LiteralScalar, ...]:
        return items

    def true(self) -> bool:
        return True

    def false(self) -> bool:
        return False

    def null(self) -> None:
        return None

    def date(self, token: Token) -> date:
        try:
            return read_date(self._source.string(token))
        except Misfit as misfit:
            raise self._source.fault_at(token, str(misfit)) from None

    def datetime(self, token: Token) -> datetime:
        try:
            return read_datetime(self._source.string(token))
        except Misfit as misfit:
            raise self._source.fault_at(token, str(misfit)) from None

    def _refuse_mixing(self, statements: tuple[Statement, ...]) -> None:
        first = isinstance(statements[0], Delete)
        for statement in statements:
            if isinstance(statement, Delete) != first:
                raise self._at(
                    statement.position,
                    "one query either inserts and updates, or deletes, never both;"
                    " split it in two queries and run them one after the other",
                )

    def _at(self, position: Position, message: str) -> ParseError:
        before = 0
        for _ in range(position.line - 1):
            before = self._source.text.index("\n", before) + 1
        return self._source.fault(message, before + position.column - 1)


def _position(token: Token) -> Position:
    return Position(token.line or 0, token.column or 0)
