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


def pushed_down(where: pc.Expression, schema: pa.Schema) -> bytes:
    """The expression over a table of the schema as Substrait that Lance can read."""
    declared = pa.schema([pa.field(field.name, _declared(field.type)) for field in schema])
    return bytes(serialize_expressions([where], ["filter"], declared))


def _declared(type: pa.DataType) -> pa.DataType:
    if pa.types.is_nested(type):
        return pa.int8()  # only holds its place: lists are not compared
    return _DECLARED_AS.get(type, type)
