"""A part of a load as a message, from the worker that made it to the process that commits it.

The rows of a part are few, in an Arrow stream, or in staged files, named by their bare names. An error of the rows is a
message too, by its kind, text and facts. What arrives is checked against the schema of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import InputError, NotFound, OmnirayError, error_of_kind
from omniray.engine.base.messages import MISSHAPEN, Form
from omniray.engine.base.ulids import is_ulid
from omniray.engine.judge.keylog import PackedKeys, logged_columns
from omniray.engine.rows.arrow_stream import (
    decode_pieces,
    decode_rows,
    encode_pieces,
    encode_rows,
    refuse_nulls,
)
from omniray.engine.rows.export import plain_value
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import Rejection
from omniray.engine.schema.types import ElementType, Schema
from omniray.engine.tables.fragment_text import fragment_text, read_staged
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.part import KeysInRows, Minted, Part, Rows, count_of

VERSION = 1
VERSIONS = (1,)
"""The versions that this omniray understands."""

BYTES_MAX = 16 << 30  # the keys of a large file may be many
_MODES = (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE)


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="message"):
    version: int = VERSION


class _Case(msgspec.Struct, frozen=True, kw_only=True, tag_field="case"):
    """One of several things that a message may have in one place."""


class StagedBody(msgspec.Struct, frozen=True):
    """The fields of `StagedRows`."""

    fragments: list[str]
    rows: int
    since_us: int


class LoggedKeys(msgspec.Struct, frozen=True):
    """The key log of a table, without the numbers of its rows."""

    mode: str
    keys: list[memoryview]


class PackedKeysBody(_Case, frozen=True, kw_only=True, tag="packed"):
    sources: list[str]
    tables: dict[str, LoggedKeys]


class KeysInRowsBody(_Case, frozen=True, kw_only=True, tag="in rows"):
    """`all_minted` and `marks` are the fields of `Minted`."""

    source: str
    all_minted: bool
    marks: bytes


class RejectionBody(msgspec.Struct, frozen=True, array_like=True):
    """The fields of `Rejection`, its values as JSON."""

    source: str
    record: int
    reason: str
    kind: str
    table_key: str
    key: str
    values: memoryview


class MadeMessage(_Message, frozen=True, kw_only=True, tag="part"):
    """A part: of each table its rows in a stream, or its staged files."""

    tables: dict[str, memoryview | StagedBody]
    keys: PackedKeysBody | KeysInRowsBody
    rejections: list[RejectionBody]
    announced: list[str]


class RefusedMessage(_Message, frozen=True, kw_only=True, tag="error"):
    """The error of a row: making the part once more would give the same."""

    kind: str
    text: str
    facts: dict[str, Any]


_PART = Form(MadeMessage | RefusedMessage, VERSIONS, BYTES_MAX)
_read_values = msgspec.json.Decoder(dict[str, Any]).decode

# Sending


def encode_part(part: Part | OmnirayError) -> bytes:
    if isinstance(part, OmnirayError):
        return _PART.encode(RefusedMessage(kind=part.kind, text=part.message, facts=part.facts))
    return _PART.encode(
        MadeMessage(
            tables={key: _rows_body(rows) for key, rows in part.tables.items()},
            keys=_keys_body(part.keys),
            rejections=[_rejection_body(rejection) for rejection in part.rejections],
            announced=list(part.announced),
        )
    )


def _rows_body(rows: Rows) -> Any:
    if not isinstance(rows, StagedRows):
        return encode_rows(rows)
    return StagedBody([fragment_text(fragment) for fragment in rows.fragments], rows.rows, rows.staged_since_us)


def _keys_body(keys: PackedKeys | KeysInRows) -> PackedKeysBody | KeysInRowsBody:
    if isinstance(keys, KeysInRows):
        return KeysInRowsBody(source=keys.source, all_minted=keys.minted.all, marks=keys.minted.marks)
    tables = {key: _logged_keys(mode, logged) for key, (mode, logged) in keys.tables.items()}
    return PackedKeysBody(sources=list(keys.sources), tables=tables)


def _logged_keys(mode: Mode, keys: pa.Table) -> LoggedKeys:
    return LoggedKeys(mode, encode_pieces(keys.select(keys.column_names[1:])))  # type: ignore[arg-type]


def _rejection_body(rejection: Rejection) -> RejectionBody:
    shown = {name: plain_value(value) for name, value in rejection.values.items()}
    values: Any = msgspec.json.encode(shown, enc_hook=str)
    return RejectionBody(
        rejection.source, rejection.record, rejection.reason, rejection.kind, rejection.table_key, rejection.key, values
    )


# Arriving


def decode_part(data: bytes, schema: Schema) -> Part | OmnirayError:
    """The part in a message, or the error of a row; raises `InputError` for anything that is neither."""
    message = _PART.decode(data)
    if isinstance(message, RefusedMessage):
        return error_of_kind(message.kind, message.text, message.facts)
    types = {key: _type(key, schema) for key in message.tables}
    tables = {key: _rows(body, types[key]) for key, body in message.tables.items()}
    for operation in message.announced:
        if not is_ulid(operation):
            raise InputError(f"invalid id {operation[:80]!r} of an announced operation: must be a ULID")
    keys = _keys(message.keys, tables, types)
    return Part(tables, keys, tuple(map(_rejection, message.rejections)), tuple(message.announced))


def _type(table_key: str, schema: Schema) -> ElementType:
    found = schema.by_table_key.get(table_key)
    if found is None:
        raise NotFound(f"no table {table_key[:80]!r}; the graph has {', '.join(schema.by_table_key)}")
    return found


def _rows(body: memoryview | StagedBody, type: ElementType) -> Rows:
    if isinstance(body, StagedBody):
        return read_staged(body.fragments, body.rows, body.since_us, type.table_key)
    what = f"the rows of {type.table_key}"
    rows = decode_rows(body, type.arrow, what)
    refuse_nulls(rows, what)
    return rows


def _keys(
    body: PackedKeysBody | KeysInRowsBody, tables: Mapping[str, Rows], types: Mapping[str, ElementType]
) -> PackedKeys | KeysInRows:
    if isinstance(body, KeysInRowsBody):
        return _keys_in_rows(body, tables)
    if body.tables.keys() != tables.keys():
        raise InputError("a part whose keys are not of the tables that it has rows of")
    keys = {key: _logged(logged, types[key], len(body.sources)) for key, logged in body.tables.items()}
    for key, (_, logged) in keys.items():
        if logged.num_rows != count_of(tables[key]):
            raise InputError(f"a part with {count_of(tables[key])} rows of {key}, and the keys of {logged.num_rows}")
    return PackedKeys(tuple(body.sources), keys)


def _logged(logged: LoggedKeys, type: ElementType, sources: int) -> tuple[Mode, pa.Table]:
    if logged.mode not in _MODES:
        raise InputError(f"invalid mode {logged.mode[:80]!r} of {type.table_key}")
    schema = logged_columns(type)
    keys = decode_pieces(logged.keys, schema.remove(0), f"the keys of {type.table_key}")
    if keys["record"].null_count or keys["source"].null_count:
        raise InputError(f"keys of {type.table_key} that don't say where they come from")
    if keys.num_rows and not 0 <= pc.min(keys["source"]).as_py() <= pc.max(keys["source"]).as_py() < sources:
        raise InputError(f"keys of {type.table_key} from a source that is not listed")
    return Mode(logged.mode), keys.add_column(0, schema.field(0), pa.array(np.arange(keys.num_rows, dtype=np.int64)))


def _keys_in_rows(body: KeysInRowsBody, tables: Mapping[str, Rows]) -> KeysInRows:
    if len(tables) != 1:
        raise InputError(f"a part whose keys are in its rows, of {len(tables)} tables: must be of one")
    (rows,) = tables.values()
    needed = (count_of(rows) + 7) // 8
    if body.marks and len(body.marks) != needed:
        raise InputError(f"{len(body.marks)} bytes of marks for {count_of(rows)} rows: must be {needed}")
    return KeysInRows(body.source, Minted(body.marks, body.all_minted))


def _rejection(body: RejectionBody) -> Rejection:
    try:
        values = _read_values(body.values)
    except MISSHAPEN as error:
        raise InputError(f"the values of a rejected record can't be read: {str(error)[:300]}") from error
    return Rejection(body.source, body.record, body.reason, body.kind, body.table_key, body.key, values)
