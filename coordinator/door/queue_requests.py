"""What a publisher asks of its table queues, as messages, and what is checked of them where they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from omniray.coordinator.door.questions import Existing, Matching, Question, Scan, Select
from omniray.coordinator.door.queue_messages import (
    ADDRESS,
    DROP,
    READ,
    STAGE,
    Address,
    AdoptBody,
    BaseBody,
    CreateBody,
    DropMessage,
    ExistingBody,
    MatchingBody,
    QuestionBody,
    ReadMessage,
    RestoreBody,
    ScanBody,
    SelectBody,
    StageBody,
    StageMessage,
    WriteBody,
)
from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.base.messages import MISSHAPEN
from omniray.engine.commit.staging import Base, TableStage
from omniray.engine.commit.table_change import Adopt, Create, Restore, TableChange
from omniray.engine.judge.condition import COMPARISONS, Condition
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.judge.room import Room
from omniray.engine.line.commit_json import decode_pin, encode_pin
from omniray.engine.line.commit_object import Pin
from omniray.engine.rows.arrow_stream import decode_rows, encode_rows, refuse_nulls, shaped
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, ElementType, Schema
from omniray.engine.tables.fragment_text import fragment_text, read_staged
from omniray.engine.tables.storage import NOTHING_REPLACED, EmptyVersion, StagedRows

_VALUE = "value"

# Sending


def encode_read(base: Base, questions: Sequence[Question]) -> bytes:
    of = [question.type.table_key for question in questions]
    bodies = [_question_body(one) for one in questions]
    return READ.encode(ReadMessage(line=base.line, base=_base_body(base, of), questions=bodies))


def encode_stage(base: Base, stages: Sequence[TableStage]) -> bytes:
    of = [stage.announced.table_key for stage in stages]
    bodies = [StageBody(stage.announced, _change_body(stage.change)) for stage in stages]
    return STAGE.encode(StageMessage(line=base.line, base=_base_body(base, of), stages=bodies))


def encode_drop(line: str, table_keys: Sequence[str]) -> bytes:
    return DROP.encode(DropMessage(line=line, table_keys=list(table_keys)))


def _base_body(base: Base, table_keys: Iterable[str]) -> BaseBody:
    pins: dict[str, Any] = {key: encode_pin(base.pins[key]) for key in table_keys if key in base.pins}
    return BaseBody(pins, base.landed_through, base.finalised_through)


def _question_body(question: Question) -> QuestionBody:
    key = question.type.table_key
    match question:
        case Existing(type, ids):
            return ExistingBody(table_key=key, ids=_encoded_values(type, ID, ids))
        case Matching(type, column, values, columns):
            encoded = _encoded_values(type, column, values)
            return MatchingBody(table_key=key, column=column, values=encoded, columns=list(columns))
        case Scan(_, columns):
            return ScanBody(table_key=key, columns=list(columns))
        case Select(type, columns, where, room):
            encoded = _encoded_values(type, where.column, where.values)
            return SelectBody(
                table_key=key, columns=list(columns), column=where.column, comparison=where.comparison, values=encoded,
                rows_max=room.rows, bytes_max=room.size_bytes,
            )  # fmt: skip


def _encoded_values(type: ElementType, column: str, values: pa.Array) -> Any:
    return encode_rows(shaped(pa.table({_VALUE: values}), _values_schema(type, column)))


def _values_schema(type: ElementType, column: str) -> pa.Schema:
    return pa.schema({_VALUE: type.arrow.field(column).type})


def _change_body(change: TableChange) -> WriteBody | RestoreBody | AdoptBody | CreateBody:
    match change:
        case TableWrite():
            return _write_body(change)
        case Restore(source, head):
            return RestoreBody(source=encode_pin(source), head=head)  # type: ignore[arg-type]
        case Adopt(number, transaction, rows):
            return AdoptBody(number=number, transaction=transaction, rows=rows)
        case Create(table_id, path, first):
            files: dict[str, Any] = dict(first.files)
            return CreateBody(table_id=table_id, path=path, transaction=first.transaction, files=files)


def _write_body(write: TableWrite) -> WriteBody:
    replaced: Any = encode_rows(shaped(write.replaced, NOTHING_REPLACED.schema))
    if not isinstance(write.rows, StagedRows):
        return WriteBody(mode=write.mode, replaced=replaced, rows=encode_rows(write.rows))  # type: ignore[arg-type]
    return WriteBody(
        mode=write.mode, replaced=replaced, fragments=[fragment_text(one) for one in write.rows.fragments],
        staged_rows=write.rows.rows, staged_since_us=write.rows.staged_since_us,
    )  # fmt: skip


# Arriving


def line_of(data: bytes) -> str:
    """The line of the branch that a message is for; the rest of it can be read by the schema of that branch."""
    address: Address = ADDRESS.decode(data)
    return address.line


def decode_read(data: bytes, schema: Schema) -> tuple[Base, list[Question]]:
    """The look-ups in a message, checked against the schema; raises `InputError` for anything else."""
    message: ReadMessage = READ.decode(data)
    base = _base(message.base, message.line, schema)
    return base, [_question(body, base, schema) for body in message.questions]


def decode_stage(data: bytes, schema: Schema) -> tuple[Base, list[TableStage]]:
    """The stages in a message, checked against the schema and the base; raises `InputError` for anything else."""
    message: StageMessage = STAGE.decode(data)
    base = _base(message.base, message.line, schema)
    return base, [_stage(body, base, schema) for body in message.stages]


def decode_drop(data: bytes, schema: Schema) -> list[str]:
    message: DropMessage = DROP.decode(data)
    return [_type(key, schema).table_key for key in message.table_keys]


def _base(body: BaseBody, line: str, schema: Schema) -> Base:
    pins = {_type(key, schema).table_key: read_pin(data, key) for key, data in body.pins.items()}
    return Base(pins, line, body.landed_through, body.finalised_through)


def read_pin(data: memoryview, table_key: str) -> Pin:
    """The pin of a table, as `encode_pin` wrote it; raises `InputError` for anything else."""
    try:
        return decode_pin(data)
    except MISSHAPEN as error:
        raise InputError(f"the version of {table_key} can't be read: {str(error)[:300]}") from error


def _type(table_key: str, schema: Schema) -> ElementType:
    found = schema.by_table_key.get(table_key)
    if found is None:
        raise NotFound(f"no table {table_key[:80]!r}; the graph has {', '.join(schema.by_table_key)}")
    return found


def _pinned(table_key: str, base: Base) -> Pin:
    if table_key not in base.pins:
        raise InputError(f"{table_key}: the message does not say on which version")
    return base.pins[table_key]


def _question(body: QuestionBody, base: Base, schema: Schema) -> Question:
    type = _type(body.table_key, schema)
    _pinned(type.table_key, base)
    match body:
        case ExistingBody():
            return Existing(type, _values(body.ids, type, ID))
        case MatchingBody():
            (column,) = _columns([body.column], type)
            return Matching(type, column, _values(body.values, type, column), _columns(body.columns, type))
        case ScanBody():
            return Scan(type, _columns(body.columns, type))
        case SelectBody():
            room = Room(body.rows_max, body.bytes_max)
            return Select(type, _columns(body.columns, type), _condition(body, type), room)


def _columns(names: Sequence[str], type: ElementType) -> tuple[str, ...]:
    for name in names:
        if name not in type.arrow.names:
            raise InputError(f"{type.table_key} has no column {name[:80]!r}")
    if len(set(names)) < len(names):
        raise InputError(f"{type.table_key}: a column is asked for twice")
    return tuple(names)


def _values(data: memoryview, type: ElementType, column: str) -> pa.Array:
    what = f"the values of {type.table_key}.{column}"
    return decode_rows(data, _values_schema(type, column), what)[_VALUE].combine_chunks()


def _condition(body: SelectBody, type: ElementType) -> Condition:
    (column,) = _columns([body.column], type)
    comparison = next((one for one in COMPARISONS if one == body.comparison), None)
    if comparison is None:
        raise InputError(f"invalid comparison {body.comparison[:80]!r}: must be one of {', '.join(COMPARISONS)}")
    values = _values(body.values, type, column)
    if comparison != "in" and len(values) != 1:
        raise InputError(f"{type.table_key}.{column} {comparison} is asked of {len(values)} values: it takes one")
    return Condition(column, comparison, values)


def _stage(body: StageBody, base: Base, schema: Schema) -> TableStage:
    announced, type = body.announced, _type(body.announced.table_key, schema)
    path = body.change.path if isinstance(body.change, CreateBody) else _pinned(type.table_key, base).path
    if announced.table_path != path:
        raise InputError(f"{type.table_key} is announced at {announced.table_path[:200]!r}, and lies at {path[:200]!r}")
    return TableStage(announced, _change(body.change, type))


def _change(body: WriteBody | RestoreBody | AdoptBody | CreateBody, type: ElementType) -> TableChange:
    match body:
        case WriteBody():
            return _write(body, type)
        case RestoreBody():
            return Restore(read_pin(body.source, type.table_key), body.head)
        case AdoptBody():
            return Adopt(body.number, body.transaction, body.rows)
        case CreateBody():
            for file in body.files:
                refuse_outside(body.path, file)
            files = {file: bytes(data) for file, data in body.files.items()}
            return Create(body.table_id, body.path, EmptyVersion(body.transaction, files))


def _write(body: WriteBody, type: ElementType) -> TableWrite:
    key = type.table_key
    if body.mode not in set(Mode):
        raise InputError(f"invalid mode {body.mode[:80]!r} of a write to {key}")
    replaced = decode_rows(body.replaced, NOTHING_REPLACED.schema, f"the replaced rows of {key}")
    if any(column.null_count for column in replaced.columns):
        raise InputError(f"the replaced rows of {key} have nulls")
    if body.rows is not None:
        rows = decode_rows(body.rows, type.arrow, f"the rows of {key}")
        refuse_nulls(rows, f"the rows of {key}")
        return TableWrite(Mode(body.mode), rows, replaced)
    staged = read_staged(body.fragments, body.staged_rows, body.staged_since_us, key)
    return TableWrite(Mode(body.mode), staged, replaced)


def refuse_outside(table_path: str, file: str) -> None:
    """Raise `InputError` unless a file lies in the folder of a table."""
    inside = file.removeprefix(f"{table_path}/")
    if inside == file or any(segment in ("", ".", "..") for segment in inside.split("/")):
        raise InputError(f"{file[:200]!r} is not a file of the table at {table_path[:200]!r}")
