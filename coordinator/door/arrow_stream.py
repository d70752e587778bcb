"""Rows on the wire: one Arrow IPC stream of at most one batch, read without believing its sender.

What a stream claims is checked before it costs anything: its schema is compared before a batch is read, and a
compressed batch is refused, because its decoded size is only a claim. So the rows are never larger than the message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from omniray.engine.base.errors import InputError

MESSAGES_MAX = 2
_END = struct.pack("<iI", -1, 0)
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


def decode_rows(data: memoryview | bytes, schema: pa.Schema, what: str) -> pa.Table:
    """The rows of a stream that has exactly this schema; they refer to `data`. `what` names them in an error."""
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
        messages = _rest(pa.py_buffer(data[len(beginning) :]))
    else:
        first, *messages = _rest(pa.py_buffer(data), at_most=MESSAGES_MAX + 1)
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


def _rest(data: pa.Buffer, at_most: int = MESSAGES_MAX) -> list[pa.ipc.Message]:
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
    text = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return text if len(text) <= 500 else f"{text[:499]}…"
