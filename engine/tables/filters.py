"""Filters as they are pushed down to Lance.

Lance takes an Arrow expression as Substrait, which has no unsigned integers, no fixed-size lists and no large binaries;
its own serialiser refuses a filter on such a column, and any filter at all on a table that has a list of them. But
Lance finds the columns of a filter by position and compares them in the types that they are stored in. So it is enough
to declare such a column by a type that Substrait does have and that holds the same values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.substrait import serialize_expressions

_DECLARED_AS = {
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_binary(): pa.binary(),
}


def among(column: str, values: pa.Array) -> pc.Expression:
    """Whether the column has one of the values."""
    return pc.field(column).isin(values.cast(_DECLARED_AS.get(values.type, values.type)))


def pushed_down(where: pc.Expression, schema: pa.Schema) -> bytes:
    """The expression over a table of the schema as Substrait that Lance can read."""
    try:
        return _serialised(where, schema, _DECLARED_AS)
    except pa.ArrowInvalid:
        # Arrow converts no integer below 2**63 to a decimal.
        return _serialised(where, schema, {**_DECLARED_AS, pa.uint64(): pa.int64()})


def _serialised(where: pc.Expression, schema: pa.Schema, declared_as: dict[pa.DataType, pa.DataType]) -> bytes:
    fields = []
    for field in schema:
        # Lists are not compared; the column only keeps its position.
        type = pa.int8() if pa.types.is_nested(field.type) else declared_as.get(field.type, field.type)
        fields.append(pa.field(field.name, type))
    return bytes(serialize_expressions([where], ["filter"], pa.schema(fields)))
