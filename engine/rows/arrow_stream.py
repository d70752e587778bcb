"""Rows in a message: one Arrow IPC stream of at most one batch, read without believing its sender.

What a stream claims is checked before it costs anything: its schema is compared before a batch is read, and a
compressed batch is refused, because its decoded size is only a claim. So the rows are never larger than the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from omniray.engine.base.errors import InputError

PIECE_BYTES_MAX = 64 << 20
MESSAGES_MAX = 2
_END = struct.pack("<iI", -1, 0)
_ALIGNMENT = 16
_HEADER_SLOT = 2  # of an Arrow `Message`
_COMPRESSION_SLOT = 3  # of an Arrow `RecordBatch`


def encode_rows(table: pa.Table) -> bytes:
    """The rows of a table; of a slice, its own rows alone.

    The messages of a stream are put together here, since Arrow's writer of streams takes several times as long.
    """
    parts = [table.schema.serialize()]
    if table.num_rows:
        parts.append(table.combine_chunks().to_batches()[0].serialize())
    return b"".join((*parts, _END))


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns that a stream must have, and how it begins if it was written by this release of Arrow."""

    schema: pa.Schema
    beginning: bytes

    @classmethod
    def of(cls, schema: pa.Schema) -> RowShape:
        return cls(schema, schema.serialize().to_pybytes())


def encode_pieces(table: pa.Table) -> list[bytes]:
    """The rows of a table of any size, in several streams: one batch can't hold more than 2 GiB of text."""
    return [encode_rows(piece) for piece in _pieces(table)]


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows <= 1 or table.nbytes <= PIECE_BYTES_MAX:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half))
    yield from _pieces(table.slice(half))


def decode_pieces(pieces: Sequence[memoryview | bytes], schema: pa.Schema, what: str) -> pa.Table:
    """The rows of several streams, as one table."""
    tables = [decode_rows(piece, schema, what) for piece in pieces]
    return tables[0] if len(tables) == 1 else pa.concat_tables([schema.empty_table(), *tables])


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly this schema: which of its fields may be null differs by what made it."""
    if table.schema.equals(schema):
        return table
    if table.schema.names == schema.names and table.schema.types == schema.types:
        return pa.Table.from_arrays(table.columns, schema=schema)
    return table.cast(schema)


def refuse_nulls(rows: pa.Table, what: str) -> None:
    """Raise `InputError` if a column has nulls that its schema does not allow."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InputError(f"{what}: column {field.name!r} has nulls")


def decode_rows(data: memoryview | bytes, schema: pa.Schema, what: str) -> pa.Table:
    """The rows of a stream that has exactly this schema; they may refer to `data`. `what` names them in an error."""
    return decode_shaped(data, RowShape.of(schema), what)


def decode_shaped(data: memoryview | bytes, shape: RowShape, what: str) -> pa.Table:
    """The same, for a receiver of many streams of one shape."""
    try:
        return _decoded(memoryview(data), shape, what)
    except (pa.ArrowException, StopIteration, struct.error, ValueError, OSError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what}: expected an Arrow stream: {reason[:200]}") from error


def _decoded(data: memoryview, shape: RowShape, what: str) -> pa.Table:
    schema, beginning = shape.schema, shape.beginning
    if data[: len(beginning)] == beginning:
        messages = _messages(_aligned(data).slice(len(beginning)), MESSAGES_MAX)
    else:
        first, *messages = _messages(_aligned(data), MESSAGES_MAX + 1)
        if first.type != "schema":  # PyArrow would read it as one all the same, and end the process
            raise InputError(f"{what}: expected an Arrow stream: it begins with a message of type {first.type}")
        given = pa.ipc.read_schema(first)
        if not given.equals(schema):
            raise InputError(f"{what}: expected the columns {_shown(schema)}, got {_shown(given)}")
    batches: list[pa.RecordBatch] = []
    for message in messages:
        if batches or message.type != "record batch":
            raise InputError(f"{what}: expected a single batch of rows, got another {message.type}")
        if _is_compressed(message.metadata):
            raise InputError(f"{what}: compressed rows are not taken; send them as they are")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def _aligned(data: memoryview | bytes) -> pa.Buffer:
    """The data where Lance can read them: it panics at a number that does not lie at a multiple of its size."""
    buffer = pa.py_buffer(data)
    return buffer if buffer.address % _ALIGNMENT == 0 else pa.py_buffer(bytes(data))


def _messages(data: pa.Buffer, at_most: int) -> list[pa.ipc.Message]:
    """The messages of a stream; one more than is allowed is enough to refuse them."""
    messages = pa.ipc.MessageReader.open_stream(data)
    rest: list[pa.ipc.Message] = []
    while len(rest) < at_most:
        try:
            rest.append(messages.read_next_message())
        except StopIteration:
            break
    return rest


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch says that its buffers are compressed; PyArrow does not tell.

    The metadata are a flatbuffer, which Arrow has verified when it read the message.
    """
    data = memoryview(metadata)
    (root,) = struct.unpack_from("<I", data, 0)
    header = _field(data, root, _HEADER_SLOT)
    (distance,) = struct.unpack_from("<I", data, header)
    return _field(data, header + distance, _COMPRESSION_SLOT) != 0


def _field(data: memoryview, table: int, slot: int) -> int:
    """The position of a table's field in a flatbuffer; 0 if the field is not there."""
    (to_vtable,) = struct.unpack_from("<i", data, table)
    vtable = table - to_vtable
    size, offset = struct.unpack_from("<H", data, vtable)[0], 4 + 2 * slot
    if offset + 2 > size:
        return 0
    (distance,) = struct.unpack_from("<H", data, vtable + offset)
    return table + distance if distance else 0


def _shown(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return text if len(text) <= 500 else f"{text[:499]}…"
