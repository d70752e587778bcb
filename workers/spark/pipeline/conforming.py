"""Validates rows of a source by the engine's own rules, inside Spark's Python workers.

Rows that fit are returned as the type's columns, in Spark's types; other rows as a reason and the row as it was given.
Nothing here imports Lance: workers are forked from a process that has imported this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from omniray.engine.rows.casts import is_text
from omniray.engine.rows.export import plain_value
from omniray.engine.rows.records import ConformedBatch, RawBatch, Rejection, numbered
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import ElementType, EnumType, PropertyType, Scalar, ScalarType
from omniray.workers.spark.pipeline.reasons import reason_of
from omniray.workers.spark.types import as_spark, spark_schema

# No property can have such a name.
BY, REASON, DETAIL, ROW = "#by", "#reason", "#detail", "#row"

Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def conformed_schema(type: ElementType, by: DataType | None) -> StructType:
    """The result's columns: those of the type, an optional one to order duplicates by, and why a row was refused."""
    fields = [*spark_schema(type).fields, *([StructField(BY, by)] if by is not None else [])]
    told = (REASON, DETAIL, ROW)
    return StructType([StructField(f.name, f.dataType) for f in fields] + [StructField(n, StringType()) for n in told])


def conforming(type: ElementType, schema: StructType) -> Step:
    """The function that a task applies to its batches; `schema` is that of the result."""
    arrow = to_arrow_schema(schema, timezone="UTC")

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from conform_batch(type, batch, arrow)

    return step


def conform_batch(type: ElementType, batch: pa.RecordBatch, out: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that fit, then the refused ones."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    by = given.pop(BY, None)
    columns = {name: as_cells(array, _type_of(type, name)) for name, array in given.items()}
    rows, refused = conform(RawBatch(type, columns, numbered(0, len(batch)), text=True))
    if len(rows.rows):
        yield _accepted(rows, by, out)
    if refused:
        yield _refused(refused, out)


def as_cells(array: pa.Array, type: PropertyType) -> pa.Array | Sequence[Any]:
    """Text for a property of another type, as cells of a CSV file, which are parsed; other arrays unchanged."""
    is_text_property = isinstance(type, EnumType) or type == ScalarType(Scalar.STRING)
    if is_text_property or not is_text(array.type):
        return array
    try:
        cells: list[str | None] = array.to_pylist()
    except UnicodeDecodeError:
        cells = [None if value is None else _readable(value) for value in array.cast(pa.large_binary()).to_pylist()]
    return cells


def _readable(value: bytes) -> str:
    """Bytes as text; invalid UTF-8 gets a prefix that no valid value has, so that only this value is refused."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\N{REPLACEMENT CHARACTER}{value.decode(errors='replace')}"


def _type_of(type: ElementType, name: str) -> PropertyType:
    """The type of a column; ids and ends are text."""
    p = type.property(name)
    return ScalarType(Scalar.STRING) if p is None else p.type


def _accepted(rows: ConformedBatch, by: pa.Array | None, out: pa.Schema) -> pa.RecordBatch:
    batch = rows.rows
    if by is not None:
        batch = batch.append_column(BY, by.take(rows.records))
    return _filled_up(batch, out)


def _refused(refused: Sequence[Rejection], out: pa.Schema) -> pa.RecordBatch:
    told = {
        REASON: [reason_of(rejection.reason) for rejection in refused],
        DETAIL: [rejection.reason for rejection in refused],
        ROW: [_json(rejection) for rejection in refused],
    }
    return _filled_up(pa.RecordBatch.from_pydict({name: pa.array(v, pa.string()) for name, v in told.items()}), out)


def _filled_up(batch: pa.RecordBatch, out: pa.Schema) -> pa.RecordBatch:
    """The batch with missing columns filled with nulls, in Spark's Arrow types."""
    for field in out:
        if field.name not in batch.schema.names:
            batch = batch.append_column(field, pa.nulls(len(batch), field.type))
    return as_spark(batch, out)


def _json(rejection: Rejection) -> str:
    values = {name: plain_value(value) for name, value in rejection.values.items()}
    return msgspec.json.encode(values, enc_hook=str).decode()
