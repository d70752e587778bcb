"""The ids of rows: derived from the key where a node type has one, ULIDs everywhere else.

Edges refer to a written id, and later loads must derive the same one, so the texts made here never change: they are
part of the storage format.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.records import ConformedBatch
from omniray.engine.schema.types import ID, NodeType, PropertyType, Scalar, ScalarType

ID_BYTES_MAX = 1024

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = np.frombuffer("".join(a + b for a in _ALPHABET for b in _ALPHABET).encode(), np.uint16)
_ULID_CHARS = 26
_HALF_BITS = 40
_CONTROL = {chr(code): f"\\u{code:04x}" for code in range(0x20)} | {
    "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
}  # fmt: skip


def derive_ids(type: NodeType, rows: pa.RecordBatch | pa.Table | Mapping[str, pa.Array]) -> pa.StringArray:
    """The ids of keyed nodes: the key's canonical text, or a JSON array of texts for a key of several properties.

    A row with a null in its key has a null id.
    """
    texts = [_canonical(_array(rows[p.name]), p.type) for name in type.key if (p := type.property(name)) is not None]
    if len(texts) == 1:
        return texts[0]
    inner = pc.binary_join_element_wise(*(_json_escaped(text) for text in texts), '","')
    return pc.binary_join_element_wise('["', inner, '"]', "")


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _canonical(values: pa.Array, type: PropertyType) -> pa.StringArray:
    """The canonical text of each value: equal values have the same text, whatever their source."""
    match type:
        case ScalarType(Scalar.DATE):
            return values.view(pa.int32()).cast(pa.string())
        case ScalarType(Scalar.DATETIME):
            return values.view(pa.int64()).cast(pa.string())
        case ScalarType(Scalar.F32 | Scalar.F64):
            texts = values.cast(pa.string())
            return pc.if_else(pc.equal(values, pa.scalar(0, values.type)), "0", texts)
        case _:
            return values.cast(pa.string())


def _json_escaped(texts: pa.StringArray) -> pa.StringArray:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if not pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        return texts
    for char, escape in _CONTROL.items():
        texts = pc.replace_substring(texts, char, escape)
    return texts


def mint_ulids(
    count: int, *, timestamp_ms: int, randomness: Callable[[int], bytes] = secrets.token_bytes
) -> pa.StringArray:
    """`count` ULIDs of one millisecond, ascending from a random start.

    Counting up, instead of drawing each one, makes them unique by construction and keeps a bulk load's ids sorted.
    """
    if not 0 <= timestamp_ms < 1 << 48:
        raise ValueError(f"a ULID's time is 48 bits of milliseconds, not {timestamp_ms}")
    if count * _ULID_CHARS >= 1 << 31:
        raise ValueError(f"{count} ULIDs don't fit into one Arrow array; mint them in parts")
    start = int.from_bytes(randomness(10), "big") >> 1  # the top bit stays free: counting up never overflows
    low = np.arange(count, dtype=np.int64) + (start & (1 << _HALF_BITS) - 1)
    high = (low >> _HALF_BITS) + (start >> _HALF_BITS)
    pairs = np.empty((count, _ULID_CHARS // 2), np.uint16)
    _write_base32(pairs[:, 0:5], np.array([timestamp_ms]))
    _write_base32(pairs[:, 5:9], high[:1] if count and high[0] == high[-1] else high)
    _write_base32(pairs[:, 9:13], low)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(_ULID_CHARS)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(pairs))


def _write_base32(pairs: npt.NDArray[np.uint16], numbers: npt.NDArray[np.int64]) -> None:
    """Write the low bits of each number as Crockford base32 digits, two at a time; a single number fills all rows."""
    width = pairs.shape[1]
    for place in range(width):
        pairs[:, place] = _PAIRS[numbers >> 10 * (width - 1 - place) & 1023]


def fill_ids(
    batch: ConformedBatch,
    *,
    clock: Callable[[], float] = time.time,
    randomness: Callable[[int], bytes] = secrets.token_bytes,
) -> ConformedBatch:
    """The same batch with a ULID for every row without an id."""
    ids = batch.rows[ID]
    if ids.null_count == 0:
        return batch
    minted = mint_ulids(ids.null_count, timestamp_ms=int(clock() * 1000), randomness=randomness)
    filled = minted if len(minted) == len(ids) else pc.replace_with_mask(ids, pc.is_null(ids), minted)
    position = batch.rows.schema.get_field_index(ID)
    return replace(batch, rows=batch.rows.set_column(position, batch.rows.schema.field(ID), filled))
