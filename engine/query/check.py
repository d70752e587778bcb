"""Checks a query against a schema, and binds its values.

`check_query` needs no parameters, so it can check a query before it is ever called. `bind` gives the executor plain
values under the names of physical columns: `from` and `to` of an edge become `src` and `dst`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omniray.engine.base.errors import QueryError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.query.statements import (
    NOWHERE,
    Assignment,
    BoundDelete,
    BoundInsert,
    BoundPredicate,
    BoundQuery,
    BoundStatement,
    BoundUpdate,
    Delete,
    Expression,
    Insert,
    Literal,
    Now,
    ParamRef,
    Position,
    Predicate,
    Query,
    Statement,
    Update,
    Value,
)
from omniray.engine.query.values import Misfit, default_of, fit, fits, read_param
from omniray.engine.schema.types import (
    DST,
    ID,
    SRC,
    EdgeType,
    ElementType,
    EnumType,
    ListType,
    NodeType,
    PropertyType,
    Scalar,
    ScalarType,
    Schema,
    VectorType,
)

_TEXT = ScalarType(Scalar.STRING)
ENDPOINTS: Mapping[str, str] = {"from": SRC, "to": DST}


def check_query(query: Query, schema: Schema) -> None:
    """Refuse a query that can't work with the schema, whatever its parameters; raises `QueryError`."""
    for statement in query.statements:
        _StatementCheck(query, type_of(query, statement, schema), statement).run()


def bind(query: Query, params: Mapping[str, Any], schema: Schema, now: datetime) -> BoundQuery:
    """The query with every value resolved, in the Python type of its property; raises `QueryError`."""
    assert now.tzinfo is not None, "a moment needs a time zone"
    check_query(query, schema)
    binder = _Binder(query, _read_params(query, params), now.astimezone(UTC))
    return BoundQuery(query.name, tuple(binder.statement(s, type_of(query, s, schema)) for s in query.statements))


@dataclass(frozen=True, slots=True)
class _Column:
    """The column that a name in a query refers to."""

    column: str
    type: PropertyType
    nullable: bool


def _column(type: ElementType, name: str) -> _Column | None:
    if isinstance(type, EdgeType) and name in ENDPOINTS:
        return _Column(ENDPOINTS[name], _TEXT, nullable=False)
    if name == ID:
        return _Column(ID, _TEXT, nullable=False)
    property = type.property(name)
    return _Column(name, property.type, property.nullable) if property else None


def _error(query: Query, position: Position, message: str, **facts: Any) -> QueryError:
    where = "" if position == NOWHERE else f", line {position.line}, column {position.column}"
    return QueryError(
        f"query {query.name}{where}: {message}",
        query=query.name, line=position.line, column=position.column, **facts,
    )  # fmt: skip


def type_of(query: Query, statement: Statement, schema: Schema) -> ElementType:
    """The type that a statement names; raises `QueryError` if there is none."""
    name = statement.type_name
    names = [type.name for type in schema]
    if name not in names:
        raise _error(query, statement.position, f"no type {name!r}; {did_you_mean(name, names)}", type=name)
    return schema.type(name)


@dataclass(frozen=True, slots=True)
class _StatementCheck:
    """Checks one statement of a query against its type."""

    query: Query
    type: ElementType
    statement: Statement

    def run(self) -> None:
        statement = self.statement
        if not isinstance(statement, Delete):
            self._assignments(statement.assignments)
        if isinstance(statement, Insert):
            self._nothing_missing(statement)
        else:
            self._predicate(statement.predicate)

    def _error(self, position: Position, message: str, property: str) -> QueryError:
        return _error(self.query, position, message, type=self.type.name, property=property)

    def _assignments(self, assignments: tuple[Assignment, ...]) -> None:
        seen: set[str] = set()
        for one in assignments:
            if one.property in seen:
                raise self._error(one.position, f"{self._name(one.property)} is assigned twice", one.property)
            seen.add(one.property)
            self._refuse_unassignable(one)
            self._value(one, self._known(one), nullable_fits=True)

    def _refuse_unassignable(self, one: Assignment) -> None:
        name = self._name(one.property)
        inserts = isinstance(self.statement, Insert)
        if one.property == ID:
            raise self._error(one.position, f"{name} can't be assigned; ids are made by the graph", ID)
        if isinstance(self.type, EdgeType) and one.property in ENDPOINTS and not inserts:
            message = f"{name} can't be updated: an edge keeps its ends; delete it and insert another"
            raise self._error(one.position, message, one.property)
        if isinstance(self.type, NodeType) and one.property in self.type.key and not inserts:
            message = f"{name} is part of the key and can't be updated; delete the node and insert another"
            raise self._error(one.position, message, one.property)

    def _nothing_missing(self, insert: Insert) -> None:
        given = {one.property for one in insert.assignments}
        ends = list(ENDPOINTS) if isinstance(self.type, EdgeType) else []
        required = ends + [p.name for p in self.type.properties if p.must_be_given]
        missing = [name for name in required if name not in given]
        if missing:
            message = f"insert of {self.type.name} without {', '.join(missing)}; each needs a value"
            raise self._error(insert.position, message, missing[0])

    def _predicate(self, predicate: Predicate) -> None:
        column = self._known(predicate)
        name = self._name(predicate.property)
        if isinstance(column.type, ListType | VectorType) or column.type == ScalarType(Scalar.BLOB):
            raise self._error(
                predicate.position, f"{name} is {column.type}, which can't be compared", predicate.property
            )
        unordered = isinstance(column.type, EnumType) or column.type == ScalarType(Scalar.BOOL)
        if unordered and predicate.op not in ("=", "!="):
            message = f"{name} {predicate.op} …: its values have no order; use = or !="
            raise self._error(predicate.position, message, predicate.property)
        if predicate.value == Literal(None):
            message = f"{name} is compared with null, which is neither equal nor unequal to anything"
            raise self._error(predicate.position, message, predicate.property)
        self._value(predicate, column, nullable_fits=False)

    def _known(self, one: Assignment | Predicate) -> _Column:
        column = _column(self.type, one.property)
        if column is None:
            names = [p.name for p in self.type.properties]
            if isinstance(self.type, EdgeType):
                names += ENDPOINTS
                if one.property in (SRC, DST):
                    word = "from" if one.property == SRC else "to"
                    raise self._error(
                        one.position, f"the end of an edge is written {word!r}, not {one.property!r}", one.property
                    )
            message = f"{self.type.name} has no property {one.property!r}; {did_you_mean(one.property, names)}"
            raise self._error(one.position, message, one.property)
        return column

    def _value(self, one: Assignment | Predicate, column: _Column, *, nullable_fits: bool) -> None:
        """Check that the value fits its column, as far as known before the call."""
        try:
            self._fits(one.value, column, nullable_fits=nullable_fits)
        except Misfit as misfit:
            raise self._error(one.position, f"{self._name(one.property)}: {misfit}", one.property) from None

    def _fits(self, value: Expression, column: _Column, *, nullable_fits: bool) -> None:
        match value:
            case Now() if column.type not in (ScalarType(Scalar.DATE), ScalarType(Scalar.DATETIME)):
                raise Misfit(f"now() is a moment, but the property is {column.type}")
            case Literal(None) if not column.nullable:
                raise Misfit("null, but the property is required")
            case Literal(given) if given is not None:
                fit(given, column.type)
            case ParamRef(name):
                param = next((p for p in self.query.params if p.name == name), None)
                if param is None:
                    declared = (f"${p.name}" for p in self.query.params)
                    raise Misfit(f"the parameter ${name} is not declared; {did_you_mean(f'${name}', declared)}")
                if not fits(param.type, column.type):
                    raise Misfit(f"the parameter ${name} is {param.type}, but the property is {column.type}")
                if param.nullable and not (nullable_fits and column.nullable):
                    raise Misfit(f"the parameter ${name} may be null, but a value is needed; declare it without '?'")

    def _name(self, property: str) -> str:
        return f"{self.type.name}.{property}"


def _read_params(query: Query, given: Mapping[str, Any]) -> Mapping[str, Value]:
    """The parameters by name as Python values; a nullable one may be left out."""
    declared = [param.name for param in query.params]
    for name in given:
        if name not in declared:
            message = f"no parameter ${name}; {did_you_mean(str(name), declared)}"
            raise _error(query, query.position, message, param=name)
    values: dict[str, Value] = {}
    for param in query.params:
        value = given.get(param.name)
        if value is None and not param.nullable:
            how = "is null" if param.name in given else "is missing"
            message = f"the parameter ${param.name} {how}; it needs a value of type {param.type}"
            raise _error(query, param.position, message, param=param.name)
        try:
            values[param.name] = None if value is None else read_param(value, param.type)
        except Misfit as misfit:
            message = f"the parameter ${param.name}: {misfit}"
            raise _error(query, param.position, message, param=param.name) from None
    return values


@dataclass(frozen=True, slots=True)
class _Binder:
    """Replaces literals, parameters and now() with values."""

    query: Query
    params: Mapping[str, Value]
    now: datetime

    def statement(self, statement: Statement, type: ElementType) -> BoundStatement:
        match statement:
            case Insert(assignments=assignments):
                blank: dict[str, Value] = {p.name: default_of(p) for p in type.properties}
                ends: dict[str, Value] = {SRC: None, DST: None} if isinstance(type, EdgeType) else {}
                return BoundInsert(type, {**ends, **blank, **self._values(assignments, type)})
            case Update(assignments=assignments, predicate=predicate):
                return BoundUpdate(type, self._values(assignments, type), self._predicate(predicate, type))
        return BoundDelete(type, self._predicate(statement.predicate, type))

    def _values(self, assignments: tuple[Assignment, ...], type: ElementType) -> dict[str, Value]:
        bound = (self._resolve(one, type) for one in assignments)
        return {column.column: value for column, value in bound}

    def _predicate(self, predicate: Predicate, type: ElementType) -> BoundPredicate:
        column, value = self._resolve(predicate, type)
        return BoundPredicate(column.column, predicate.op, value)

    def _resolve(self, one: Assignment | Predicate, type: ElementType) -> tuple[_Column, Value]:
        column = _column(type, one.property)
        assert column is not None, "checked before"
        try:
            return column, self._value(one.value, column)
        except Misfit as misfit:
            name = f"{type.name}.{one.property}"
            message = f"{name}: {misfit}"
            raise _error(self.query, one.position, message, type=type.name, property=one.property) from None

    def _value(self, value: Expression, column: _Column) -> Value:
        match value:
            case Now():
                return self.now.date() if column.type == ScalarType(Scalar.DATE) else self.now
            case Literal(literal):
                return None if literal is None else fit(literal, column.type)
            case ParamRef(name):
                given = self.params[name]
                return None if given is None else fit(given, column.type)
