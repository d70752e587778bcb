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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from omniray.engine.errors import ConstraintViolation, KeyConflict, OmnirayError, QueryError, RecordError
from omniray.engine.schema import (
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
COMPARE = {
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
    affected_nodes: int = 0
    affected_edges: int = 0
    commits: bool = True


@dataclass(frozen=True)
class GraphModel:
    schema: Schema
    tables: Tables = field(default_factory=dict)

    @classmethod
    def empty(cls, schema: Schema) -> GraphModel:
        return cls(schema, {type.name: {} for type in schema})

    def load(self, mode: str, records: Sequence[Record], types: Sequence[ElementType]) -> Outcome:
        """Load records in one of the three modes; `types` are touched even if they get no record."""
        if not all(_fits(record) for record in records):
            raise Refused(RecordError)
        after, touched = dict(self.tables), dict.fromkeys(self.tables, 0)
        for type in self.schema:
            before = self.tables[type.name]
            if type in types:
                of_type = [record for record in records if record.type == type]
                after[type.name], landed = _landed(mode, before, of_type)
                touched[type.name] = landed + (len(before) if mode == "overwrite" else 0)
            self._check(type, after)
        return self._outcome(after, touched, commits=bool(types if mode == "overwrite" else records))

    def mutate(self, statements: Sequence[Statement]) -> Outcome:
        """Run the statements of one query, each on what the ones before it left."""
        if not all(_can_be_bound(statement) for statement in statements):
            raise Refused(QueryError)
        after = {name: dict(table) for name, table in self.tables.items()}
        touched: dict[str, set[Id]] = {name: set() for name in after}
        for statement in statements:
            match statement:
                case Insert(record):
                    self._insert(record, after, touched)
                case Update():
                    _update(statement, after, touched)
                case Delete():
                    self._delete(statement, after, touched)
        for type in self.schema:
            self._check(type, after)
        counts = {name: len(ids) for name, ids in touched.items()}
        return self._outcome(after, counts, commits=any(counts.values()))

    def _insert(self, record: Record, after: dict[str, dict[Id, Row]], touched: dict[str, set[Id]]) -> None:
        """A keyed node takes the place of the one with its key; anything else is new."""
        if not _fits(record):
            raise Refused(RecordError)
        id = key_text(record) if is_keyed(record.type) else Minted()
        after[record.type.name][id] = record.row
        touched[record.type.name].add(id)

    def _delete(self, statement: Delete, after: dict[str, dict[Id, Row]], touched: dict[str, set[Id]]) -> None:
        """The rows that match and, of nodes, the edges that start or end there."""
        doomed = _matching(after[statement.type.name], statement.predicate)
        _remove(statement.type.name, doomed, after, touched)
        for edge in self.schema.edges if isinstance(statement.type, NodeType) else ():
            ends = [end for end, node in ((SRC, edge.source), (DST, edge.target)) if node == statement.type.name]
            loose = [id for id, row in after[edge.name].items() if any(row[end] in doomed for end in ends)]
            _remove(edge.name, loose, after, touched)

    def _check(self, type: ElementType, after: Tables) -> None:
        """Hold every rule over several rows against a whole table; all tables of nodes are complete before any edges."""
        table = after[type.name]
        for constraint in type.constraints:
            if isinstance(constraint, Unique) and not _all_differ(table.values(), constraint.properties):
                raise Refused(ConstraintViolation)
        if not isinstance(type, EdgeType):
            return
        for row in table.values():
            if row[SRC] not in after[type.source] or row[DST] not in after[type.target]:
                raise Refused(ConstraintViolation)
        # Nodes that never had an edge are free to have none: somebody has to be first.
        sources = {row[SRC] for row in (*table.values(), *self.tables[type.name].values())}
        for source in sources & after[type.source].keys():
            degree = sum(row[SRC] == source for row in table.values())
            bounds = type.cardinality
            if degree < bounds.low or (bounds.high is not None and degree > bounds.high):
                raise Refused(ConstraintViolation)

    def _outcome(self, after: Tables, touched: Mapping[str, int], *, commits: bool) -> Outcome:
        nodes = sum(touched[type.name] for type in self.schema.nodes)
        edges = sum(touched[type.name] for type in self.schema.edges)
        return Outcome(after, nodes, edges, commits)


def key_text(record: Record) -> str:
    """The id of a keyed node: the text of its key, or a JSON array of texts for a key of several properties."""
    assert isinstance(record.type, NodeType)
    texts = [_scalar_text(record.values[name], record.type.property(name)) for name in record.type.key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def is_equal(left: Any, right: Any) -> bool:
    """Whether two values are the same value to a rule: NaN is, and the two zeros are."""
    return bool(left == right or (left != left and right != right))


def _landed(mode: str, before: Table, records: Iterable[Record]) -> tuple[Table, int]:
    """A table after a load of it, and how many rows of the load are in it."""
    after = {} if mode == "overwrite" else dict(before)
    landed: set[Id] = set()
    new: dict[tuple[str, str], Minted] = {}
    for record in records:
        id = _identity(mode, record, before, new)
        if mode != "merge" and id in after:
            raise Refused(KeyConflict if mode == "append" and id in before else ConstraintViolation)
        after[id] = record.row
        landed.add(id)
    return after, len(landed)


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


def _update(statement: Update, after: dict[str, dict[Id, Row]], touched: dict[str, set[Id]]) -> None:
    table = after[statement.type.name]
    for id in _matching(table, statement.predicate):
        updated = {**table[id], **statement.values}
        if not _fits(Record(statement.type, updated)):
            raise Refused(RecordError)
        table[id] = updated
        touched[statement.type.name].add(id)


def _remove(name: str, ids: Iterable[Id], after: dict[str, dict[Id, Row]], touched: dict[str, set[Id]]) -> None:
    for id in ids:
        del after[name][id]
        touched[name].add(id)


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
    return all(
        _keeps(type.property(name), values[name], constraint)
        for constraint in type.constraints
        for name in getattr(constraint, "properties", None) or (constraint.property,)  # type: ignore[union-attr]
        if values.get(name) is not None
    )


def _keeps(property: Property | None, value: Any, constraint: Constraint) -> bool:
    match constraint:
        case Key():
            return not isinstance(value, float) or math.isfinite(value)
        case Range(_, low, high):
            above = low is None or value >= _rounded(low, property)
            below = high is None or value <= _rounded(high, property)
            return bool(above and below and value == value)
        case Check(_, pattern):
            # To RE2 `$` is the very end, to Python also the place before a last line break.
            return re.search(pattern.replace("$", r"\Z"), value) is not None
    return True


def _rounded(bound: float, property: Property | None) -> float:
    """A bound as the property would hold it: a 32-bit float can't be compared with 0.1."""
    return single(bound) if property is not None and property.type == ScalarType(Scalar.F32) else bound


def single(value: float) -> float:
    """The 32-bit float nearest to a number."""
    rounded: float = pa.scalar(value, pa.float32()).as_py()
    return rounded


def _all_differ(rows: Iterable[Row], columns: Sequence[str]) -> bool:
    """Whether no two rows share their values; one with a null among them is exempt."""
    tuples = [values for row in rows if None not in (values := [row[name] for name in columns])]
    return not any(
        all(map(is_equal, one, other)) for n, one in enumerate(tuples) for other in tuples[:n]
    )


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
