"""Random writes to a graph, each in two forms: the call as a user makes it, and what it means to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from omniray.engine.schema.types import (
    DST,
    ID,
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
    MISFIT,
    Delete,
    GraphModel,
    Insert,
    Predicate,
    Record,
    Refused,
    Row,
    Statement,
    Update,
    is_keyed,
    key_text,
)
from tests.model.graph_values import any_values, for_query, lawful_values, literal, misfits, spellings

STRANGERS = ("nobody", "", "' OR 1=1 --", "Ada1\x00")
GIVEN_IDS = ("1", "it's", "ß\n")
TEXT = ScalarType(Scalar.STRING)
IN_QUERY = {SRC: "from", DST: "to"}

_SELDOM = st.sampled_from((False, False, False, True))
_RARELY = st.sampled_from((False,) * 14 + (True,))
_EITHER = st.booleans()
_MODES = st.sampled_from(("append", "merge", "overwrite"))
_SHAPES = st.sampled_from(("records", "records", "rows", "arrow"))
_FEW = st.sampled_from((0, 1, 2, 3, 1, 2, 3))
_ORDERED = st.sampled_from(("=", "=", "!=", "<", "<=", ">", ">="))
_UNORDERED = st.sampled_from(("=", "!="))


@dataclass(frozen=True)
class LoadCall:
    """The arguments of a load; then the records that they are, and the types that they touch."""

    source: Any
    type: str | None
    mode: str
    records: tuple[Record, ...]
    types: tuple[ElementType, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis shows: the call alone, to be pasted into a test."""
        source = f"pa.table({self.source.to_pydict()})" if isinstance(self.source, pa.Table) else repr(self.source)
        printer.text(f"graph.load({source}, type={self.type!r}, mode={self.mode!r})")


@dataclass(frozen=True)
class MutateCall:
    """The arguments of a mutation; then the statements that they are."""

    text: str
    params: Mapping[str, Any]
    statements: tuple[Statement, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis shows: the call alone, to be pasted into a test."""
        printer.text(f"graph.mutate({self.text!r}, {self.params!r})")


@dataclass(frozen=True)
class _Row:
    """A record beside the values as its caller gives them."""

    given: Row
    record: Record


@st.composite
def first_loads(draw: st.DrawFn, model: GraphModel, type: ElementType) -> LoadCall:
    """A load that gives a table some rows to begin with."""
    return _LoadMaker(draw, model).of_one_type("append", "rows", type, 4, lawful=True)


@st.composite
def loads(draw: st.DrawFn, model: GraphModel) -> LoadCall:
    """A load into one table or several, of records, of plain rows or of an Arrow table."""
    return _LoadMaker(draw, model).call()


@st.composite
def mutations(draw: st.DrawFn, model: GraphModel) -> MutateCall:
    """A query of up to three statements that insert and update, or that delete."""
    return _QueryMaker(draw, model).call()


@dataclass(frozen=True)
class _Maker:
    """Draws the parts of one write."""

    draw: st.DrawFn
    model: GraphModel

    def cell(self, type: ElementType, property: Property, *, spoiled: bool, in_query: bool) -> tuple[Any, Any]:
        """A value as it is given and as it is held."""
        if spoiled:
            # A null is fine in some places and wrong in others.
            return (None, None) if self.draw(_EITHER) else (self.draw(misfits(property.type)), MISFIT)
        if property.nullable and self.draw(_SELDOM):
            return None, None
        held = self.draw(any_values(property.type) if self.draw(_RARELY) else lawful_values(type, property))
        held = for_query(held) if in_query else held
        return self.draw(st.sampled_from(spellings(held, in_query=in_query))), held

    def end(self, node: str, planned: Sequence[str] = ()) -> str:
        """The id of a node that is there or in the same write; now and then of one that is not."""
        known = [*self.ids(node), *planned]
        return self.draw(st.sampled_from(STRANGERS if not known or self.draw(_RARELY) else known))

    def ids(self, name: str) -> list[str]:
        return [str(id) for id in self.model.tables[name]]

    def spoiled_among(self, names: Sequence[str]) -> str | None:
        return self.draw(st.sampled_from(names)) if names and self.draw(_RARELY) else None


class _LoadMaker(_Maker):
    def call(self) -> LoadCall:
        mode, shape = self.draw(_MODES), self.draw(_SHAPES)
        types = st.sampled_from(list(self.model.schema))
        if shape == "records":
            return self.of_several_types(mode, self.draw(st.lists(types, min_size=1, max_size=3, unique_by=_name)))
        return self.of_one_type(mode, shape, self.draw(types), self.draw(_FEW), lawful=self.draw(_EITHER))

    def of_one_type(self, mode: str, shape: str, type: ElementType, count: int, *, lawful: bool) -> LoadCall:
        rows = [self._row(type, {}, spoilable=shape == "rows") for _ in range(count)]
        rows = self._acceptable(mode, rows) if lawful else rows
        source = [_as_plain(row) for row in rows] if shape == "rows" else self._arrow(type, rows)
        return LoadCall(source, type.name, mode, tuple(row.record for row in rows), (type,))

    def of_several_types(self, mode: str, types: Sequence[ElementType]) -> LoadCall:
        planned: dict[str, list[str]] = {}
        rows: list[_Row] = []
        for type in sorted(types, key=lambda t: t.kind == "edge"):
            of_type = [self._row(type, planned, spoilable=True) for _ in range(self.draw(_FEW))]
            planned[type.name] = [id for row in of_type if (id := _planned_id(row.record))]
            rows += of_type
        rows = self._acceptable(mode, rows) if self.draw(_EITHER) else rows
        if self.draw(_EITHER):
            rows.reverse()
        records = tuple(row.record for row in rows)
        touched = tuple(type for type in types if any(record.type is type for record in records))
        return LoadCall([_as_record(row) for row in rows], None, mode, records, touched)

    def _acceptable(self, mode: str, rows: Sequence[_Row]) -> list[_Row]:
        """Those of the rows that can be loaded together: by chance alone, hardly a longer load would be."""
        kept: list[_Row] = []
        for row in rows:
            records = [one.record for one in (*kept, row)]
            with suppress(Refused):
                self.model.load(mode, records, [record.type for record in records])
                kept.append(row)
        return kept

    def _row(self, type: ElementType, planned: Mapping[str, Sequence[str]], *, spoilable: bool) -> _Row:
        spoiled = self.spoiled_among([p.name for p in type.properties]) if spoilable else None
        cells = {p.name: self.cell(type, p, spoiled=p.name == spoiled, in_query=False) for p in type.properties}
        if isinstance(type, EdgeType):
            for end, node in ((SRC, type.source), (DST, type.target)):
                id = self.end(node, planned.get(node, ()))
                cells[end] = (id, id)
        given, held = ({name: pair[n] for name, pair in cells.items()} for n in (0, 1))
        brought = self._brought_id(Record(type, held))
        with_id = {} if brought is None else {ID: brought}
        return _Row({**given, **with_id}, Record(type, {**held, **with_id}))

    def _brought_id(self, record: Record) -> str | None:
        """An id where a record may bring one: a keyed node only the one that it has anyway."""
        if not self.draw(_SELDOM):
            return None
        if is_keyed(record.type):
            return self.draw(st.sampled_from(GIVEN_IDS)) if self.draw(_RARELY) else _planned_id(record)
        return self.draw(st.sampled_from((*GIVEN_IDS, *self.ids(record.type.name))))

    def _arrow(self, type: ElementType, rows: Sequence[_Row]) -> pa.Table:
        """The rows as a table of the physical types, or of others that hold the same values."""
        with_id = self.draw(_EITHER) or len(type.arrow) == 1 or any(ID in row.given for row in rows)
        names = [name for name in type.arrow.names if name != ID or with_id]
        columns = {}
        for name in names:
            array = pa.array([row.record.values.get(name) for row in rows], type.arrow.field(name).type)
            if pa.types.is_string(array.type) and self.draw(_EITHER):
                array = array.cast(pa.large_string()).dictionary_encode()
            columns[name] = array
        return pa.table(columns)


class _QueryMaker(_Maker):
    def call(self) -> MutateCall:
        types = list(self.model.schema)
        deletes, count = self.draw(_SELDOM), self.draw(st.integers(1, 3))
        scribe = _Scribe(self.draw)
        statements: list[Statement] = []
        for _ in range(count):
            type = self.draw(st.sampled_from(types))
            if deletes:
                statements.append(self._delete(type, scribe))
            elif self.draw(_EITHER) or not _updatable(type):
                statements.append(self._insert(type, scribe))
            else:
                statements.append(self._update(type, scribe))
        return MutateCall(scribe.text(), scribe.params, tuple(statements))

    def _insert(self, type: ElementType, scribe: _Scribe) -> Insert:
        values = self._assigned(type, type.properties, scribe)
        if isinstance(type, EdgeType):
            for end, node in ((SRC, type.source), (DST, type.target)):
                values[end] = self.end(node)
                scribe.take(f"{IN_QUERY[end]}: {scribe.value(values[end], values[end], TEXT)}")
        scribe.statement(f"insert {type.name} {{ {', '.join(scribe.taken())} }}")
        return Insert(Record(type, values))

    def _update(self, type: ElementType, scribe: _Scribe) -> Update:
        properties = st.sampled_from(_updatable(type))
        chosen = self.draw(st.lists(properties, min_size=1, max_size=2, unique_by=_name))
        values = self._assigned(type, chosen, scribe)
        assignments = ", ".join(scribe.taken())
        predicate = self._predicate(type, scribe)
        scribe.statement(f"update {type.name} set {{ {assignments} }} where {scribe.taken()[0]}")
        return Update(type, values, predicate)

    def _delete(self, type: ElementType, scribe: _Scribe) -> Delete:
        predicate = self._predicate(type, scribe)
        scribe.statement(f"delete {type.name} where {scribe.taken()[0]}")
        return Delete(type, predicate)

    def _assigned(self, type: ElementType, properties: Sequence[Property], scribe: _Scribe) -> dict[str, Any]:
        spoiled = self.spoiled_among([p.name for p in properties])
        values = {}
        for p in properties:
            given, held = self.cell(type, p, spoiled=p.name == spoiled, in_query=True)
            values[p.name] = held
            scribe.take(f"{p.name}: {scribe.value(given, held, p.type)}")
        return values

    def _predicate(self, type: ElementType, scribe: _Scribe) -> Predicate:
        comparable = {p.name: p.type for p in type.properties if _is_comparable(p.type)}
        columns: dict[str, PropertyType] = {ID: TEXT, **comparable}
        if isinstance(type, EdgeType):
            columns |= {SRC: TEXT, DST: TEXT}
        column = self.draw(st.sampled_from(list(columns)))
        kind = columns[column]
        held = for_query(self._compared_with(type, column, kind))
        given = self.draw(st.sampled_from(spellings(held, in_query=True)))
        # Where an id comes in the order of ids that are still to be made, nobody knows.
        made = column == ID and not is_keyed(type)
        unordered = made or isinstance(kind, EnumType) or kind == ScalarType(Scalar.BOOL)
        op = self.draw(_UNORDERED if unordered else _ORDERED)
        scribe.take(f"{IN_QUERY.get(column, column)} {op} {scribe.value(given, held, kind)}")
        return Predicate(column, op, held)

    def _compared_with(self, type: ElementType, column: str, kind: PropertyType) -> Any:
        """Mostly a value that a row has."""
        table = self.model.tables[type.name]
        seen = [id if column == ID else row[column] for id, row in table.items()]
        seen = [value for value in seen if value is not None]
        return self.draw(any_values(kind) if not seen or self.draw(_RARELY) else st.sampled_from(seen))


class _Scribe:
    """Writes a query: values go into its text or become parameters."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.params: dict[str, Any] = {}
        self._draw = draw
        self._declared: list[str] = []
        self._statements: list[str] = []
        self._parts: list[str] = []

    def value(self, given: Any, held: Any, type: PropertyType) -> str:
        if held is not MISFIT and self._draw(_EITHER):
            return literal(held)
        name = f"p{len(self.params)}"
        self.params[name] = given
        self._declared.append(f"${name}: {TEXT if isinstance(type, EnumType) else type}{'?' if given is None else ''}")
        return f"${name}"

    def take(self, part: str) -> None:
        self._parts.append(part)

    def taken(self) -> list[str]:
        parts, self._parts = self._parts, []
        return parts

    def statement(self, text: str) -> None:
        self._statements.append(text)

    def text(self) -> str:
        return f"query q({', '.join(self._declared)}) {{\n  " + "\n  ".join(self._statements) + "\n}"


def _planned_id(record: Record) -> str | None:
    """The id that a record will have, as far as that is known beforehand."""
    if not is_keyed(record.type):
        return record.values.get(ID)
    assert isinstance(record.type, NodeType)
    key = [record.values[name] for name in record.type.key]
    return None if any(value is None or value is MISFIT for value in key) else key_text(record)


def _name(named: ElementType | Property) -> str:
    return named.name


def _as_plain(row: _Row) -> dict[str, Any]:
    return {IN_QUERY.get(name, name): given for name, given in row.given.items()}


def _as_record(row: _Row) -> dict[str, Any]:
    """The record as a line of JSON has it, with what is null left out."""
    type = row.record.type
    data = {name: given for name, given in row.given.items() if given is not None and name not in (ID, SRC, DST)}
    ends = {"from": row.given[SRC], "to": row.given[DST]} if isinstance(type, EdgeType) else {}
    id = {ID: row.given[ID]} if ID in row.given else {}
    return {"edge" if type.kind == "edge" else "type": type.name, **id, **ends, "data": data}


def _updatable(type: ElementType) -> list[Property]:
    key = type.key if isinstance(type, NodeType) else ()
    return [p for p in type.properties if p.name not in key]


def _is_comparable(type: PropertyType) -> bool:
    return not isinstance(type, ListType | VectorType) and type != ScalarType(Scalar.BLOB)
