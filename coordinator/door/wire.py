"""Encodes writes and answers as bytes, for the calls between clients and actors.

Ray would pickle them in Python and column by column: for a hundred rows that costs each side more than reading and
judging them. Here a table is one Arrow stream, which holds only its own rows even if it is a slice of a larger table.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import pyarrow as pa


def packed(value: Any) -> bytes:
    """Encode any value that can be pickled."""
    target = io.BytesIO()
    pickler = pickle.Pickler(target, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {pa.Table: _reduced}
    pickler.dump(value)
    return target.getvalue()


def unpacked(data: bytes) -> Any:
    """Decode a value; its tables refer to the bytes, without a copy."""
    return pickle.loads(data)


def _reduced(table: pa.Table) -> tuple[Any, ...]:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return _table, (stream.getvalue().to_pybytes(),)


def _table(stream: bytes) -> pa.Table:
    return pa.ipc.open_stream(stream).read_all()
