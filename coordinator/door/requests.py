"""Writes as messages: how a client sends them, and what is checked of them where they arrive.

Nothing that a client claims is believed where it can be derived. The keys of a load are taken from its rows, and ids
that are to be new are made by the receiver, so that no claim can bring two rows of one id. Whether the values of its
rows fit is checked later, for all loads of a round at once (`rounds/fitting.py`).
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from omniray.coordinator.door.messages import (
    VERSION,
    Head,
    LoadMessage,
    MutationMessage,
    PreparedMessage,
    PreparedTable,
    ViolationBody,
    decode_write,
    encode,
)
from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.base.principal import Author, checked_message
from omniray.engine.base.ulids import is_ulid
from omniray.engine.judge.keylog import PackedKeys, key_columns
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.judge.verdict import Violation
from omniray.engine.rows.arrow_stream import RowShape, decode_shaped, encode_rows, shaped
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import ConformedBatch
from omniray.engine.rows.row_ids import fill_ids
from omniray.engine.schema.types import ID, ElementType, Schema
from omniray.engine.tables.fragment_text import fragment_text, read_staged
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.write_requests import Header, LoadRequest, MutationRequest, PreparedRequest, Request

RECORD, SOURCE = "@record", "@source"
"""Columns beside a row's own: where it comes from. No property can have such a name."""

_KINDS = ("Load", "Mutation")
_NAME_CHARS_MAX = 256
_QUERY_CHARS_MAX = 1 << 20
_SOURCES_MAX = 10_000
_REPLACED = RowShape.of(NOTHING_REPLACED.schema)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Sending


def encode_request(request: Request, version: int = VERSION) -> bytes:
    """The write as a message of a version."""
    match request:
        case LoadRequest():
            return encode(_load_message(request), version)
        case MutationRequest():
            return encode(_mutation_message(request), version)
        case PreparedRequest():
            return encode(_prepared_message(request), version)
    raise TypeError(f"{type(request).__name__} has no message")


def _head(header: Header) -> Head:
    return Head(
        commit_id=header.commit_id, kind=header.kind, actor=header.author.actor, tenant=header.author.tenant,
        expected_versions=dict(header.expected_versions), payload_hash=header.payload_hash,
        schema_hash=header.schema_hash, fresh=header.fresh, began=header.began, message=header.message,
    )  # fmt: skip


def _load_message(request: LoadRequest) -> LoadMessage:
    return LoadMessage(
        head=_head(request.header),
        mode=request.options.mode,
        on_error=request.options.on_error,
        rejected=request.rejected,
        sources=list(request.keys.sources),
        tables={key: encode_rows(_sent(rows, request.keys.tables[key][1])) for key, rows in request.tables.items()},  # type: ignore[misc]
    )


def _sent(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows and where they come from, without ids that were made for them here: the key log has none for those."""
    place = rows.schema.get_field_index(ID)
    sent = rows.set_column(place, rows.schema.field(ID), keys[ID]) if keys[ID].null_count else rows
    return sent.append_column(RECORD, keys["record"]).append_column(SOURCE, keys["source"])


def _mutation_message(request: MutationRequest) -> MutationMessage:
    return MutationMessage(
        head=_head(request.header),
        text=request.text,
        params=dict(request.params),
        name=request.name,
        now_us=(request.now - _EPOCH) // timedelta(microseconds=1),
    )


def _prepared_message(request: PreparedRequest) -> PreparedMessage:
    resolution = request.resolution
    return PreparedMessage(
        head=_head(request.header),
        tables={key: _prepared_table(write) for key, write in resolution.tables.items()},
        judged_on=dict(request.judged_on),
        read_strictly=sorted(resolution.read_strictly),
        affected_nodes=resolution.affected.nodes,
        affected_edges=resolution.affected.edges,
        rejected=resolution.rejected,
        unfit=[ViolationBody(**asdict(violation)) for violation in resolution.unfit],
    )


def _prepared_table(write: TableWrite) -> PreparedTable:
    replaced = encode_rows(shaped(write.replaced, NOTHING_REPLACED.schema))
    common: dict[str, Any] = {"mode": write.mode, "replaced": replaced}
    if not isinstance(write.rows, StagedRows):
        return PreparedTable(**common, rows=encode_rows(write.rows))  # type: ignore[arg-type]
    fragments = [fragment_text(fragment) for fragment in write.rows.fragments]
    return PreparedTable(
        **common, fragments=fragments, staged_rows=write.rows.rows, staged_since_us=write.rows.staged_since_us
    )


# Arriving


def decode_request(data: bytes, schema: Schema, schema_hash: str) -> Request:
    """The write in a message, checked against the schema of the graph; raises `InputError` for anything else."""
    return RequestDecoder(schema, schema_hash).decode(data)


class RequestDecoder:
    """Reads writes to a graph of one schema as they arrive."""

    def __init__(self, schema: Schema, schema_hash: str) -> None:
        self._schema, self._schema_hash = schema, schema_hash
        self._sent = {type.table_key: RowShape.of(_sent_schema(type)) for type in schema}
        self._stored = {type.table_key: RowShape.of(type.arrow) for type in schema}

    def decode(self, data: bytes) -> Request:
        """The write in a message, checked against the schema; raises `InputError` for anything else.

        Rows for another schema can't be read by this one: such a load arrives without them. If it was committed before,
        it has its first answer all the same; else it is refused when it is judged.
        """
        message = decode_write(data)
        header = _header(message.head, self._schema)
        match message:
            case MutationMessage():
                return _mutation(message, header, len(data))
            case _ if header.schema_hash != self._schema_hash:
                return LoadRequest(header, LoadOptions.sent(Mode.APPEND, OnError.FAIL), 0, PackedKeys((), {}), {})
            case LoadMessage():
                return self._load(message, header)
            case PreparedMessage():
                return self._prepared(message, header, len(data))

    def scoped(self, request: MutationRequest) -> MutationRequest:
        """The mutation with its cost and its tables, known from its text; raises `InputError` if that does not fit.

        One for another schema stays as it is, like a load: if it was committed before, it has its first answer.
        """
        return request.scoped(self._schema) if request.header.schema_hash == self._schema_hash else request

    def _load(self, message: LoadMessage, header: Header) -> LoadRequest:
        if len(message.sources) > _SOURCES_MAX:
            raise InputError(f"a load from {len(message.sources)} sources: at most {_SOURCES_MAX} are taken")
        options = LoadOptions.sent(message.mode, message.on_error)
        keys: dict[str, tuple[Mode, pa.Table]] = {}
        tables: dict[str, pa.Table] = {}
        for key, data in message.tables.items():
            type = _type(key, self._schema)
            rows = decode_shaped(data, self._sent[key], f"the rows of {key}")
            keys[key] = options.mode, _keys(type, rows, len(message.sources))
            tables[key] = _with_ids(type, rows)
        rejected = _at_least_zero(message.rejected, "the number of rejected records")
        return LoadRequest(header, options, rejected, PackedKeys(tuple(message.sources), keys), tables)

    def _prepared(self, message: PreparedMessage, header: Header, size_bytes: int) -> PreparedRequest:
        for key in (*message.tables, *message.judged_on):
            _type(key, self._schema)
        tables = {key: self._table_write(table, key) for key, table in message.tables.items()}
        unjudged = (tables.keys() | message.read_strictly) - message.judged_on.keys()
        if unjudged:
            raise InputError(
                f"the load touches {min(unjudged)[:80]!r}, but does not say on which version it was judged"
            )
        affected = Affected(
            _at_least_zero(message.affected_nodes, "the number of nodes"),
            _at_least_zero(message.affected_edges, "the number of edges"),
        )
        rejected = _at_least_zero(message.rejected, "the rejected records")
        unfit = tuple(Violation(*_fields(body)) for body in message.unfit)
        resolution = Resolution(tables, affected, frozenset(message.read_strictly), rejected, unfit)
        return PreparedRequest(header, resolution, message.judged_on, size_bytes=size_bytes)

    def _table_write(self, table: PreparedTable, table_key: str) -> TableWrite:
        mode = LoadOptions.sent(table.mode, OnError.FAIL).mode
        replaced = decode_shaped(table.replaced, _REPLACED, f"the replaced rows of {table_key}")
        if replaced.num_rows and (replaced[ID].null_count or replaced["_rowaddr"].null_count):
            raise InputError(f"the replaced rows of {table_key} have nulls")
        if table.rows is not None:
            rows = decode_shaped(table.rows, self._stored[table_key], f"the rows of {table_key}")
            if rows[ID].null_count:
                raise InputError(f"prepared rows of {table_key} without an id")
            return TableWrite(mode, rows, replaced)
        staged = read_staged(table.fragments, table.staged_rows, table.staged_since_us, table_key)
        return TableWrite(mode, staged, replaced)


def _header(head: Head, schema: Schema) -> Header:
    if not is_ulid(head.commit_id):
        raise InputError(f"invalid commit id {head.commit_id[:80]!r}: must be a ULID in its canonical spelling")
    if head.kind not in _KINDS:
        raise InputError(f"invalid kind of write {head.kind[:80]!r}: must be one of {', '.join(_KINDS)}")
    if max(len(head.payload_hash), len(head.schema_hash)) > _NAME_CHARS_MAX:
        raise InputError(f"a hash of more than {_NAME_CHARS_MAX} characters")
    if len(head.expected_versions) > len(schema.by_table_key):
        raise InputError("more expected versions than the graph has tables")
    return Header(
        head.commit_id, head.kind, Author(head.actor, head.tenant), head.expected_versions, head.payload_hash,
        head.schema_hash, head.fresh, _at_least_zero(head.began, "the number at which a write began"),
        checked_message(head.message),
    )  # fmt: skip


def _type(table_key: str, schema: Schema) -> ElementType:
    found = schema.by_table_key.get(table_key)
    if found is None:
        raise NotFound(f"no table {table_key[:80]!r}; the graph has {', '.join(schema.by_table_key)}")
    return found


def _at_least_zero(number: int, what: str) -> int:
    if number < 0:
        raise InputError(f"{what} can't be negative, got {number}")
    return number


def _mutation(message: MutationMessage, header: Header, size_bytes: int) -> MutationRequest:
    if len(message.text) > _QUERY_CHARS_MAX:
        raise InputError(f"a query of {len(message.text)} characters: at most {_QUERY_CHARS_MAX} are taken")
    try:
        now = _EPOCH + timedelta(microseconds=message.now_us)
    except OverflowError:
        raise InputError(f"the time of a query, {message.now_us} microseconds, is not a date") from None
    return MutationRequest(header, message.text, message.params, message.name, now, size_bytes)


def _sent_schema(type: ElementType) -> pa.Schema:
    return type.arrow.append(pa.field(RECORD, pa.int64())).append(pa.field(SOURCE, pa.int32()))


def _keys(type: ElementType, rows: pa.Table, sources: int) -> pa.Table:
    """The key log of the rows, as `KeyLog.packed` has it; rows without an id are to get a new one."""
    if rows[RECORD].null_count or rows[SOURCE].null_count:
        raise InputError(f"rows of {type.table_key} that don't say where they come from")
    numbers = rows[SOURCE].to_numpy()
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < sources):
        raise InputError(f"rows of {type.table_key} from a source that is not listed")
    named = key_columns(type)
    columns = [pa.array(np.arange(rows.num_rows, dtype=np.int64)), rows[RECORD], rows[SOURCE]]
    return pa.Table.from_arrays(
        [*columns, *(rows[column] for column in named)], ["row", "record", "source", *named.values()]
    )


def _with_ids(type: ElementType, arrived: pa.Table) -> pa.Table:
    rows = arrived.select(type.arrow.names)
    if rows[ID].null_count == 0:
        return rows
    (batch,) = rows.to_batches()
    return pa.Table.from_batches([fill_ids(ConformedBatch(type, batch, arrived[RECORD].chunk(0))).rows])


def _fields(body: ViolationBody) -> tuple[Any, ...]:
    return tuple(getattr(body, name) for name in body.__struct_fields__)
