"""The payload hash of a load: tells a repeated write from another write that reuses its id.

It covers the requested change only, not the author, the time or the format of the source. The lineage keeps the hash as
long as the id may be looked up, so what is hashed here never changes: it is part of the storage format.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ElementType, EnumType, Scalar


class LoadPayload:
    """Hashes the rows of a load as a stream, before ids are minted; the hash does not depend on batch boundaries.

    Each column of a table is a few streams of bytes, from which its values could be read back. Each stream is hashed
    on its own, so that batch boundaries don't matter.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._tables: dict[str, defaultdict[str, hashlib._Hash]] = {}

    def add(self, type: ElementType, rows: pa.RecordBatch) -> None:
        streams = self._tables.setdefault(type.table_key, defaultdict(hashlib.sha256))
        for name in rows.schema.names:
            for stream, data in _streams(f"{name} {_kind(type, name)}", rows.column(name)):
                streams[stream].update(data)

    def hexdigest(self) -> str:
        """The hash of everything so far."""
        tables = {
            table_key: {name: stream.hexdigest() for name, stream in streams.items()}
            for table_key, streams in self._tables.items()
        }
        return hash_of(["Load", self._mode, tables])


def hash_of(facts: list[Any]) -> str:
    """The hash of plain values."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def _kind(type: ElementType, name: str) -> str:
    """A column's type under a name of our own: Arrow may rename its types."""
    property = type.property(name)
    return str(Scalar.STRING if property is None or isinstance(property.type, EnumType) else property.type)


def _streams(name: str, column: pa.Array) -> Iterator[tuple[str, memoryview]]:
    """A column's bytes by stream; the bytes in the place of a null are left out."""
    yield f"{name} present", _fixed_width(pc.is_valid(column))
    values = column.drop_null() if column.null_count else column
    if pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        yield f"{name} lengths", _fixed_width(pc.list_value_length(values))
        yield from _streams(f"{name} items", values.flatten())
    elif pa.types.is_string(values.type) or pa.types.is_large_binary(values.type):
        yield f"{name} lengths", _fixed_width(pc.binary_length(values))
        yield f"{name} bytes", _contents(values)
    else:
        yield f"{name} values", _fixed_width(values)


def _fixed_width(values: pa.Array) -> memoryview:
    """The bytes of fixed-width values; all bit patterns of NaN become one."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    width = values.type.bit_width // 8
    return _slice(values.buffers()[1], values.offset * width, (values.offset + len(values)) * width)


def _contents(values: pa.Array) -> memoryview:
    """The bytes of texts or blobs, concatenated."""
    _, ends, contents = values.buffers()
    if len(values) == 0:
        return _slice(contents, 0, 0)
    offsets = np.frombuffer(ends, np.int32 if pa.types.is_string(values.type) else np.int64)
    return _slice(contents, int(offsets[values.offset]), int(offsets[values.offset + len(values)]))


def _slice(buffer: pa.Buffer | None, start: int, end: int) -> memoryview:
    return memoryview(buffer or b"")[start:end]
