"""JSON records, one per line of a file, and dicts from Python.

A record names its type, `{"type": "Person", "data": {…}}` or `{"edge": "Knows", "from": "a", "to": "b", "data": {…}}`;
where the caller names one type for all, a record is just the object of its properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import msgspec
import pyarrow as pa

from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.rows.json_bounds import too_many_values
from omniray.engine.rows.records import (
    BLOCK_BYTES_TARGET,
    BLOCK_ROWS_MAX,
    Block,
    Progress,
    RawBatch,
    Rejection,
    columns_of,
    defaults_of,
    raw_from_dicts,
    row_names,
)
from omniray.engine.rows.source_files import SourceFile, not_utf8, read_lines, too_long
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, Schema

_BLOCK_ROWS_MIN = 256
_Numbered = list[tuple[int, Any]]


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    type: str | None = None
    edge: str | None = None
    from_: Any = msgspec.field(default=None, name="from")
    to: Any = None
    id: Any = None
    data: dict[str, Any] = msgspec.field(default_factory=dict)


_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(_Record))
_TYPE_FIELDS = frozenset({"type", "edge"})


class _Unfit(Exception):
    """A value that is not a valid record; the text is the reason."""


_FORMS = '{"type": …, "data": {…}} or {"edge": …, "from": …, "to": …, "data": {…}}'
_RECORDS = f"{_FORMS}, or plain rows and their type with type= (--type)"
_READ_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _Unfit)


@dataclass(slots=True)
class _Typed:
    """The records of one type within a block."""

    type: ElementType
    numbers: list[int] = field(default_factory=list)
    records: list[_Record] = field(default_factory=list)

    def batch(self, source: str) -> RawBatch:
        names = {ID, *(p.name for p in self.type.properties)}
        columns, unknown = columns_of([record.data for record in self.records], names, defaults_of(self.type))
        columns[ID] = [record.data.get(ID) if record.id is None else record.id for record in self.records]
        if isinstance(self.type, EdgeType):
            columns |= {SRC: [record.from_ for record in self.records], DST: [record.to for record in self.records]}
        return RawBatch(self.type, columns, pa.array(self.numbers, pa.int64()), source, unknown)


def jsonl_blocks(file: SourceFile, schema: Schema, type: ElementType | None, progress: Progress) -> Iterator[Block]:
    """The blocks of a file with one JSON object per line; blank lines are skipped."""
    number = 1
    read = msgspec.json.Decoder(_Record if type is None else dict[str, Any]).decode
    if type is not None:
        yield _nothing_of(type)
    for lines in read_lines(file, progress):
        for start in range(0, len(lines), BLOCK_ROWS_MAX):
            part = lines[start : start + BLOCK_ROWS_MAX]
            filled = [(n, line) for n, line in enumerate(part, number) if line and not line.isspace()]
            yield _block(filled, read, schema, type, file.name)
            number += len(part)


def dict_blocks(rows: Iterable[Any], schema: Schema, type: ElementType | None, progress: Progress) -> Iterator[Block]:
    """The blocks of dicts: plain properties if a type is given, else records as in JSON."""
    rows, number = iter(rows), 1
    read = _as_record if type is None else _as_mapping
    if type is not None:
        yield _nothing_of(type)
    for first in rows:
        # Rows may be vectors of thousands of floats: the size of the first one decides how many fit into a block.
        count = max(_BLOCK_ROWS_MIN, min(BLOCK_ROWS_MAX, BLOCK_BYTES_TARGET // max(1, len(repr(first)))))
        part = list(chain((first,), islice(rows, count - 1)))
        yield _block(list(enumerate(part, number)), read, schema, type, "")
        number += len(part)


def _nothing_of(type: ElementType) -> Block:
    """An empty block of a type: a load without rows still names its type."""
    return Block((raw_from_dicts(type, []),))


def _block(
    given: _Numbered, read: Callable[[Any], Any], schema: Schema, type: ElementType | None, source: str
) -> Block:
    records, rejections = _read_all(given, read, source, _RECORDS if type is None else "the properties of a row")
    if type is None:
        batches = _by_type(records, schema, source, rejections)
        return Block(tuple(batches), tuple(rejections))
    batch = _rows(type, records, source)
    if not batch.unknown.keys().isdisjoint(_TYPE_FIELDS):
        batch = _rows(type, _without_records(records, type, source, rejections), source)
    return Block((batch,), tuple(rejections))


def _rows(type: ElementType, records: _Numbered, source: str) -> RawBatch:
    return raw_from_dicts(type, [row for _, row in records], [number for number, _ in records], source)


def _without_records(records: _Numbered, type: ElementType, source: str, rejections: list[Rejection]) -> _Numbered:
    """The plain rows; a record that names its own type is refused, since the caller has named one."""
    strange = _TYPE_FIELDS - row_names(type)
    plain: _Numbered = []
    for number, row in records:
        if strange.isdisjoint(row) or not _FIELDS.issuperset(row):
            plain.append((number, row))
            continue
        reason = f"a record that says its type, where type= (--type) asks for plain rows of {type.name}; leave that out"
        rejections.append(Rejection(source, number, reason, values=row))
    return plain


def _read_all(
    given: _Numbered, read: Callable[[Any], Any], source: str, wanted: str
) -> tuple[_Numbered, list[Rejection]]:
    """Read every record, in one call as long as none is faulty."""
    numbers, items = [number for number, _ in given], [item for _, item in given]
    try:
        if not any(map(_is_too_much, items)):
            return list(zip(numbers, map(read, items), strict=True)), []
    except _READ_ERRORS:
        pass
    records, rejections = [], []
    for number, item in given:
        if reason := _fault(item, read, wanted):
            rejections.append(Rejection(source, number, reason))
        else:
            records.append((number, read(item)))
    return records, rejections


def _is_too_much(item: Any) -> bool:
    return isinstance(item, bytes) and (too_long(item) or too_many_values(item)) is not None


def _fault(item: Any, read: Callable[[Any], Any], wanted: str) -> str | None:
    """Why a line or a Python value is not a record; None if it is one."""
    if isinstance(item, bytes) and (reason := too_long(item) or not_utf8(item) or too_many_values(item)):
        return reason
    try:
        read(item)
    except RecursionError:
        return "not a record: nested too deeply"
    except _READ_ERRORS as error:
        each = "one object per line" if isinstance(item, bytes) else "dicts"
        return f"not a record: {error}; give {each}: {wanted}"
    return None


def _as_mapping(item: Any) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise _Unfit(f"expected a dict, got {item.__class__.__name__}")
    return item


def _as_record(item: Any) -> _Record:
    return msgspec.convert(_as_mapping(item), _Record)


def _by_type(records: _Numbered, schema: Schema, source: str, rejections: list[Rejection]) -> Iterator[RawBatch]:
    typed: dict[tuple[str | None, str | None], _Typed] = {}
    for number, record in records:
        name = (record.type, record.edge)
        try:
            if name not in typed:
                typed[name] = _Typed(_type_of(record, schema))
            if record.edge is None and (record.from_ is not None or record.to is not None):
                raise _Unfit(f"a node has no ends: {record.type} is given 'from' or 'to'")
            if record.id is not None and ID in record.data:
                raise _Unfit("the id is given twice, beside 'data' and in it; keep one")
        except _Unfit as unfit:
            rejections.append(Rejection(source, number, str(unfit), values=record.data))
            continue
        typed[name].numbers.append(number)
        typed[name].records.append(record)
    return (of_type.batch(source) for of_type in typed.values() if of_type.records)


def _type_of(record: _Record, schema: Schema) -> ElementType:
    if (record.type is None) == (record.edge is None):
        fault = "it names no type" if record.type is None else "it has both 'type' and 'edge'"
        raise _Unfit(f"not a record: {fault}; give {_RECORDS}")
    kind, name = ("node", record.type) if record.edge is None else ("edge", record.edge)
    types: tuple[ElementType, ...] = schema.nodes if record.edge is None else schema.edges
    found = next((t for t in types if t.name == name), None)
    if found is None:
        names = [t.name for t in types]
        raise _Unfit(f"no {kind} type {name!r}; {did_you_mean(str(name), names)}")
    return found
