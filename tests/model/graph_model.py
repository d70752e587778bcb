"""A graph in plain Python: dicts of rows, one write after the other, every rule checked over whole tables.

Slow and meant to be obviously right. It shares the values of a schema with the engine and nothing else: what a write
does is written down here once more, in the words of the documentation. A write gives the graph after it, or is
`Refused` with the class of the error that the engine must raise.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from omniray.engine.base.errors import ConstraintViolation, KeyConflict, OmnirayError, QueryError, RecordError
from omniray.engine.schema.types import (
    DST,
    ID,
    SRC,
    Check,
    Constraint,
    EdgeType,
    ElementType,
    EnumType,
    Key,
    NodeType,
    Property,
    Range,
    Scalar,
    ScalarType,
    Schema,
    Unique,
)

MISFIT: Final = object()
"""Stands for a value that is not of its property's type."""

ID_BYTES_MAX = 1024
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Row = Mapping[str, Any]
"""The values of all columns but `id`."""


@dataclass(frozen=True, eq=False)
class Minted:
    """An id that the engine has made and the model does not know yet; no two are equal."""


Id = str | Minted
Table = Mapping[Id, Row]
Tables = Mapping[str, Table]
"""The tables by type name, rows in the order in which they were written."""


@dataclass(frozen=True)
class Record:
    """A row to load or to insert; what it does not mention is null."""

    type: ElementType
    values: Row

    @property
    def row(self) -> Row:
        columns = [name for name in self.type.arrow.names if name != ID]
        return {name: self.values.get(name) for name in columns}


@dataclass(frozen=True)
class Predicate:
    column: str
    op: str
    value: Any


@dataclass(frozen=True)
class Insert:
    record: Record


@dataclass(frozen=True)
class Update:
    type: ElementType
    values: Row
    predicate: Predicate


@dataclass(frozen=True)
class Delete:
    type: ElementType
    predicate: Predicate


Statement = Insert | Update | Delete


class Refused(Exception):
    """The write changes nothing; the engine must raise just this class."""

    def __init__(self, error: type[OmnirayError]) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(frozen=True)
class Outcome:
    """What a write did: the tables after it, how many rows it touched, and whether there is a commit at all."""

    tables: Tables
    affected_nodes: int
    affected_edges: int
    commits: bool


@dataclass(frozen=True)
class GraphModel:
    """A graph at one commit."""

    schema: Schema
    tables: Tables

    @classmethod
    def empty(cls, schema: Schema) -> GraphModel:
        return cls(schema, {type.name: {} for type in schema})

    def load(self, mode: str, records: Sequence[Record], types: Sequence[ElementType]) -> Outcome:
        """Load records in one of the three modes; `types` are touched even if they get no record."""
        if not all(_fits(record) for record in records):
            raise Refused(RecordError)
        draft = _Draft(self)
        for type in self.schema:
            if type in types:
                draft.load(mode, type.name, [record for record in records if record.type == type])
            draft.check(type)
        return draft.outcome(commits=bool(types if mode == "overwrite" else records))

    def mutate(self, statements: Sequence[Statement]) -> Outcome:
        """Run the statements of one query, each on what the ones before it left."""
        if not all(_can_be_bound(statement) for statement in statements):
            raise Refused(QueryError)
        draft = _Draft(self)
        for statement in statements:
            match statement:
                case Insert(record):
                    draft.insert(record)
                case Update():
                    draft.update(statement)
                case Delete():
                    draft.delete(statement)
        for type in self.schema:
            draft.check(type)
        return draft.outcome(commits=any(draft.touched.values()))


class _Draft:
    """The tables while a write changes them, and the ids of the rows that it touches."""

    def __init__(self, before: GraphModel) -> None:
        self.schema, self.before = before.schema, before.tables
        self.tables: dict[str, dict[Id, Row]] = {name: dict(table) for name, table in before.tables.items()}
        self.touched: dict[str, set[Id]] = {name: set() for name in before.tables}
        self.replaced = dict.fromkeys(before.tables, 0)

    def load(self, mode: str, name: str, records: Iterable[Record]) -> None:
        """Bring records into a table: no id twice, but in a merge the last record of an id wins."""
        before = self.before[name]
        if mode == "overwrite":
            self.tables[name] = {}
            self.replaced[name] = len(before)
        new: dict[tuple[str, str], Minted] = {}
        for record in records:
            id = _identity(mode, record, before, new)
            if mode != "merge" and id in self.tables[name]:
                raise Refused(KeyConflict if mode == "append" and id in before else ConstraintViolation)
            self._put(name, id, record.row)

    def insert(self, record: Record) -> None:
        """A keyed node takes the place of the one with its key; anything else is new."""
        if not _fits(record):
            raise Refused(RecordError)
        self._put(record.type.name, key_text(record) if is_keyed(record.type) else Minted(), record.row)

    def update(self, statement: Update) -> None:
        table = self.tables[statement.type.name]
        for id in _matching(table, statement.predicate):
            updated = {**table[id], **statement.values}
            if not _fits(Record(statement.type, updated)):
                raise Refused(RecordError)
            self._put(statement.type.name, id, updated)

    def delete(self, statement: Delete) -> None:
        """The rows that match and, of nodes, the edges that start or end there."""
        name = statement.type.name
        doomed = _matching(self.tables[name], statement.predicate)
        self._remove(name, doomed)
        for edge in self.schema.edges if isinstance(statement.type, NodeType) else ():
            ends = [end for end, node in ((SRC, edge.source), (DST, edge.target)) if node == name]
            loose = [id for id, row in self.tables[edge.name].items() if any(row[end] in doomed for end in ends)]
            self._remove(edge.name, loose)

    def check(self, type: ElementType) -> None:
        """Hold every rule over several rows against a whole table; edges come when all nodes are there."""
        rows = self.tables[type.name].values()
        for constraint in type.constraints:
            if isinstance(constraint, Unique) and not _all_differ(rows, constraint.properties):
                raise Refused(ConstraintViolation)
        if not isinstance(type, EdgeType):
            return
        sources, targets = self.tables[type.source], self.tables[type.target]
        if not all(row[SRC] in sources and row[DST] in targets for row in rows):
            raise Refused(ConstraintViolation)
        # A node that never had an edge is free to have none: somebody has to be first.
        for source in {row[SRC] for row in (*rows, *self.before[type.name].values())} & sources.keys():
            degree = sum(row[SRC] == source for row in rows)
            if not type.cardinality.low <= degree <= (math.inf if (high := type.cardinality.high) is None else high):
                raise Refused(ConstraintViolation)

    def outcome(self, *, commits: bool) -> Outcome:
        affected = {name: len(self.touched[name]) + self.replaced[name] for name in self.tables}
        nodes = sum(affected[type.name] for type in self.schema.nodes)
        edges = sum(affected[type.name] for type in self.schema.edges)
        return Outcome(self.tables, nodes, edges, commits)

    def _put(self, name: str, id: Id, row: Row) -> None:
        self.tables[name][id] = row
        self.touched[name].add(id)

    def _remove(self, name: str, ids: Iterable[Id]) -> None:
        for id in ids:
            del self.tables[name][id]
            self.touched[name].add(id)


def key_text(record: Record) -> str:
    """The id of a keyed node: the text of its key, or a JSON array of texts for a key of several properties."""
    assert isinstance(record.type, NodeType)
    texts = [_scalar_text(record.values[name], record.type.property(name)) for name in record.type.key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def _is_equal(left: Any, right: Any) -> bool:
    """Whether two values are the same value to a rule: NaN is, and the two zeros are."""
    return bool(left == right or (left != left and right != right))


def _identity(mode: str, record: Record, before: Table, new: dict[tuple[str, str], Minted]) -> Id:
    """Whose row a record is: by its key, by the id it gives, or where its ends say so by them; else it is a new one."""
    if is_keyed(record.type):
        return key_text(record)
    if record.values.get(ID) is not None:
        return str(record.values[ID])
    if mode == "merge" and isinstance(record.type, EdgeType) and record.type.unique_by_endpoints:
        ends = (record.values[SRC], record.values[DST])
        known = next((id for id, row in before.items() if (row[SRC], row[DST]) == ends), None)
        return known or new.setdefault(ends, Minted())
    return Minted()


def _matching(table: Table, predicate: Predicate) -> list[Id]:
    """The ids of rows whose value stands in that relation to the predicate's; null stands in none."""
    compare = COMPARE[predicate.op]
    values = {id: id if predicate.column == ID else row[predicate.column] for id, row in table.items()}
    return [id for id, value in values.items() if value is not None and compare(value, predicate.value)]


def _can_be_bound(statement: Statement) -> bool:
    """Whether a query's values are all of their property's type, and none is null that must not be."""
    match statement:
        case Insert(record):
            type, given = record.type, record.row
        case Update(type, given, _):
            pass
        case Delete():
            return True
    required = [p.name for p in type.properties if not p.nullable]
    return MISFIT not in given.values() and not any(given.get(name, "") is None for name in (*required, SRC, DST))


def is_keyed(type: ElementType) -> bool:
    return isinstance(type, NodeType) and bool(type.key)


def _fits(record: Record) -> bool:
    """Whether a record can be read and keeps the rules that concern it alone."""
    type, values = record.type, record.values
    if any(value is MISFIT for value in values.values()):
        return False
    required = [p.name for p in type.properties if not p.nullable] + ([SRC, DST] if isinstance(type, EdgeType) else [])
    if any(values.get(name) is None for name in required):
        return False
    return keeps_own_rules(type, values) and _has_fit_id(record)


def _has_fit_id(record: Record) -> bool:
    given = record.values.get(ID)
    if not is_keyed(record.type):
        return given is None or _is_id(given)
    return _is_id(key_text(record)) and given in (None, key_text(record))


def _is_id(text: str) -> bool:
    return 1 <= len(text.encode()) <= ID_BYTES_MAX


def keeps_own_rules(type: ElementType, values: Row) -> bool:
    """Whether the values, of a row or of a part of it, keep the rules over single values."""
    return all(_keeps(type, values, constraint) for constraint in type.constraints)


def _keeps(type: ElementType, values: Row, constraint: Constraint) -> bool:
    match constraint:
        case Key(names):
            return all(math.isfinite(value) for name in names if isinstance(value := values.get(name), float))
        case Range(name, low, high) if (value := values.get(name)) is not None:
            above = low is None or value >= _as_held(low, type.property(name))
            below = high is None or value <= _as_held(high, type.property(name))
            return bool(above and below and value == value)
        case Check(name, pattern) if (value := values.get(name)) is not None:
            # To RE2 `$` is the very end, to Python also the place before a last line break.
            return re.search(pattern.replace("$", r"\Z"), value) is not None
    return True


def _as_held(bound: float, property: Property | None) -> float:
    """A bound as the property would hold it: no 32-bit float is 0.1."""
    return single(bound) if property is not None and property.type == ScalarType(Scalar.F32) else bound


def single(value: float) -> float:
    """The 32-bit float nearest to a number."""
    rounded: float = pa.scalar(value, pa.float32()).as_py()
    return rounded


def _all_differ(rows: Iterable[Row], columns: Sequence[str]) -> bool:
    """Whether no two rows share their values; one with a null among them is exempt."""
    tuples = [values for row in rows if None not in (values := [row[name] for name in columns])]
    return not any(all(map(_is_equal, one, other)) for n, one in enumerate(tuples) for other in tuples[:n])


def _scalar_text(value: Any, property: Property | None) -> str:
    assert property is not None
    match property.type:
        case EnumType() | ScalarType(Scalar.STRING):
            return str(value)
        case ScalarType(Scalar.BOOL):
            return "true" if value else "false"
        case ScalarType(Scalar.DATE):
            return str((value - date(1970, 1, 1)).days)
        case ScalarType(Scalar.DATETIME):
            return str((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
        case ScalarType(Scalar.F32 | Scalar.F64):
            # The shortest text that reads back as the number, in Arrow's spelling.
            return "0" if value == 0 else str(pa.scalar(value, property.type.arrow).cast(pa.string()))
    return str(value)
