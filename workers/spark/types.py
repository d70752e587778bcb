"""Spark types of a graph's types: the schema of a read, and the check of a written frame.

A frame is checked by its columns alone, on the driver and before any task runs. It is refused if no value of a column
could fit; single values are checked like those of every record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from omniray.engine.base.errors import InputError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.rows.records import ENDS, row_names, unknown_property
from omniray.engine.schema.types import (
    DST,
    ID,
    SRC,
    EdgeType,
    ElementType,
    EnumType,
    ListType,
    NodeType,
    Property,
    PropertyType,
    Scalar,
    ScalarType,
    VectorType,
)

_SPARK_OF_SCALAR: Mapping[Scalar, DataType] = {
    Scalar.STRING: StringType(),
    Scalar.BOOL: BooleanType(),
    Scalar.I32: IntegerType(),
    Scalar.I64: LongType(),
    Scalar.U32: LongType(),
    Scalar.U64: DecimalType(20, 0),  # Spark has no unsigned integers
    Scalar.F32: FloatType(),
    Scalar.F64: DoubleType(),
    Scalar.DATE: DateType(),
    Scalar.DATETIME: TimestampType(),
    Scalar.BLOB: BinaryType(),
}

_NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType)
_TIMES = (DateType, TimestampType, TimestampNTZType, StringType)
# The types that `engine/rows/casts.py` accepts: a test keeps the two equal.
_ACCEPTED: Mapping[Scalar, tuple[type[DataType], ...]] = {
    Scalar.STRING: (StringType,),
    Scalar.BOOL: (BooleanType,),
    Scalar.I32: _NUMBERS,
    Scalar.I64: _NUMBERS,
    Scalar.U32: _NUMBERS,
    Scalar.U64: _NUMBERS,
    Scalar.F32: _NUMBERS,
    Scalar.F64: _NUMBERS,
    Scalar.DATE: _TIMES,
    Scalar.DATETIME: _TIMES,
    Scalar.BLOB: (BinaryType, StringType),
}
_TEXT = ScalarType(Scalar.STRING)


# Reading


def spark_type(type: PropertyType) -> DataType:
    """The Spark type that holds every value of a property's type."""
    match type:
        case ListType(item):
            return ArrayType(spark_type(item), containsNull=False)
        case VectorType():
            return ArrayType(FloatType(), containsNull=False)
        case EnumType():
            return StringType()
        case ScalarType(scalar):
            return _SPARK_OF_SCALAR[scalar]


def spark_schema(type: ElementType, columns: Sequence[str] | None = None) -> StructType:
    """The schema of a type as a read gives it: all columns, or the named ones in that order."""
    properties = {p.name: StructField(p.name, spark_type(p.type), p.nullable) for p in type.properties}
    names: list[str] = type.arrow.names
    fields = {name: properties.get(name, StructField(name, StringType(), nullable=False)) for name in names}
    for name in columns or ():
        if name not in fields:
            raise InputError(f"{type.name} has no column {name!r}; {did_you_mean(name, fields)}")
    return StructType([fields[name] for name in columns or fields])


def as_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema that Spark made, in its Arrow types."""
    columns = [_cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_list(target):
        return array if array.type == target else array.cast(target)
    # By hand: Arrow's cast can't mark list items as not nullable.
    lists = array.cast(pa.list_(array.type.value_type)) if pa.types.is_fixed_size_list(array.type) else array
    items = _cast(lists.flatten(), target.value_type)
    lengths = lists.value_lengths().fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(offsets, items, type=target, mask=mask)


# Writing


def check_frame(schema: StructType, type: ElementType) -> None:
    """Refuse a frame whose columns do not fit a type; the error lists all faults."""
    if problems := list(_problems(schema, type)):
        raise InputError(f"the frame does not fit {type.name}: {'; '.join(problems)}", type=type.name)


def _problems(schema: StructType, type: ElementType) -> Iterator[str]:
    known = row_names(type)
    given: dict[str, StructField] = {}
    for field in schema.fields:
        name = ENDS.get(field.name, field.name) if isinstance(type, EdgeType) else field.name
        if field.name not in known:
            yield unknown_property(type, field.name)
        elif name in given:
            yield f"more than one column for {_spoken(name)!r}, keep one"
        else:
            given[name] = field
    for name in (ID, SRC, DST) if isinstance(type, EdgeType) else (ID,):
        if name in given and not accepts(_TEXT, given[name].dataType):
            yield f"{given[name].name!r} is {given[name].dataType.simpleString()}, but an id is text"
    if isinstance(type, EdgeType):
        yield from (f"column {_spoken(end)!r} is missing" for end in (SRC, DST) if end not in given)
    for p in type.properties:
        yield from _problems_of(p, given.get(p.name), _needed(type, p))


def _problems_of(p: Property, field: StructField | None, needed: str) -> Iterator[str]:
    if field is None:
        if needed and p.default is None:
            yield f"column {p.name!r} is missing, which {needed}"
    elif isinstance(field.dataType, NullType):
        if needed:
            yield f"{p.name!r} is null throughout, but it {needed}"
    elif not accepts(p.type, field.dataType):
        yield f"{p.name!r} is {field.dataType.simpleString()}, which never becomes {p.type}"


def _needed(type: ElementType, p: Property) -> str:
    """Why a row of the type needs the property; empty if it does not."""
    if isinstance(type, NodeType) and p.name in type.key:
        return "is part of the key"
    return "" if p.nullable else "is required"


def _spoken(column: str) -> str:
    """The user-facing name of an edge's end."""
    return {SRC: "from", DST: "to"}.get(column, column)


def accepts(type: PropertyType, given: DataType) -> bool:
    """Whether some value of a Spark type can become a value of a property's type; null always can."""
    if isinstance(given, NullType):
        return True
    match type:
        case ListType(item):
            return isinstance(given, ArrayType) and accepts(item, given.elementType)
        case VectorType():
            return isinstance(given, ArrayType) and accepts(ScalarType(Scalar.F32), given.elementType)
        case EnumType():
            return isinstance(given, StringType)
        case ScalarType(scalar):
            return isinstance(given, _ACCEPTED[scalar])
