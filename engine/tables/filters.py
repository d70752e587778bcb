"""Filters as they are pushed down to Lance.

Lance takes an Arrow expression as Substrait, which has no unsigned integers, no fixed-size lists and no large binaries;
its own serialiser refuses a filter on such a column, and any filter at all on a table that has a list of them. But
Lance finds the columns of a filter by position and compares them in the types that they are stored in. So it is enough
to declare such a column by a type that Substrait does have and that holds the same values.

Arrow writes each argument of a call twice, and so an expression that nests n deep in 2^n bytes: twenty values joined by
`|` are 200 MB. Lance's parser overflows its stack on a text with a long chain of operators, which ends the process. So
deep expressions are applied here, row batch by row batch, and what is out of all bounds is refused.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.substrait import serialize_expressions

from omniray.engine.base.errors import InputError

TEXT_CHARS_MAX = 1 << 20
TEXT_TERMS_MAX = 4_000  # joined by and, or
TERM_OPERATORS_MAX = 200  # in a row
DEPTH_MAX = 200
PUSHED_DOWN_WEIGHT_MAX = 1 << 13
_DECLARED_AS = {
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_binary(): pa.binary(),
}


def among(column: str, values: pa.Array) -> pc.Expression:
    """Whether the column has one of the values."""
    return pc.field(column).isin(values.cast(_DECLARED_AS.get(values.type, values.type)))


def refuse_boundless(where: str) -> None:
    """Raise `InputError` for a text that might overflow the stack of Lance's parser."""
    if len(where) > TEXT_CHARS_MAX:
        raise InputError(f"the filter has {len(where):,} characters, more than {TEXT_CHARS_MAX:,}: shorten it")
    terms, operators = 1, 0
    for token in _TOKEN.finditer(where):
        match token[0].lower():
            case "and" | "or":
                terms, operators = terms + 1, 0
            case ",":
                operators = 0
            case word if word in _OPERATOR_WORDS or not (word[0].isalnum() or word[0] in _NO_OPERATORS):
                operators += 1
        if operators > TERM_OPERATORS_MAX:
            raise InputError(f"the filter has more than {TERM_OPERATORS_MAX} operators in a row: split it")
    if terms > TEXT_TERMS_MAX:
        raise InputError(f"the filter joins {terms:,} terms, more than {TEXT_TERMS_MAX:,}: use 'column in (…)'")


def is_pushed_down(where: pc.Expression) -> bool:
    """Whether the expression is small enough as Substrait; raises `InputError` if it nests too deep to be applied."""
    depth, deepest, weight = 0, 0, 0
    for token in _PRINTED.finditer(str(where)):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
        weight += 1 << min(depth, DEPTH_MAX)
    if deepest > DEPTH_MAX:
        raise InputError(f"the filter nests {deepest:,} deep, more than {DEPTH_MAX}: use isin for values of one column")
    return weight <= PUSHED_DOWN_WEIGHT_MAX


_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|\w[\w.]*|\S""")
_OPERATOR_WORDS = frozenset({"is", "like", "ilike", "between"})
_NO_OPERATORS = "_'\"`()"
_PRINTED = re.compile(r"""[()]|"(?:[^"\\]|\\.)*"|[^()",]+""")


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
