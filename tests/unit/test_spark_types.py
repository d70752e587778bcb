"""Types as Spark has them: every property can be read, and a frame that can't fit is refused by its columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
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
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import omniray
from omniray.engine.rows.casts import cast
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ElementType, EnumType, ListType, PropertyType, Scalar, ScalarType, VectorType
from omniray.workers.spark.types import accepts, as_spark, check_frame, spark_schema, spark_type

SCHEMA = parse_schema("""
node Person {
    name: String @key
    active: Bool
    small: I32?
    large: I64?
    count: U32?
    huge: U64?
    weight: F32?
    height: F64?
    born: Date?
    seen: DateTime?
    photo: Blob?
    role: enum(dev, ops)?
    tags: [String]?
    totals: [U64]?
    place: Vector(2)?
}
node Note { text: String }
edge Knows: Person -> Person { since: Date }
""")
PERSON, NOTE, KNOWS = (SCHEMA.type(name) for name in ("Person", "Note", "Knows"))
SCALARS = [ScalarType(scalar) for scalar in Scalar]
EVERY_TYPE: list[PropertyType] = [*SCALARS, EnumType(("a", "b")), VectorType(1), *map(ListType, SCALARS)]


TEXT, BOOL, INT, LONG, DAY = StringType(), BooleanType(), IntegerType(), LongType(), DateType()


def frame(**columns: DataType) -> StructType:
    schema = StructType()
    for name, type in columns.items():
        schema.add(name, type)
    return schema


def refusal(schema: StructType, type: ElementType) -> str:
    with pytest.raises(omniray.InputError) as refused:
        check_frame(schema, type)
    return str(refused.value)


# Reading

ROWS = [
    {
        "id": "ann", "name": "ann", "active": True, "small": -1, "large": 2**62, "count": 2**32 - 1, "huge": 2**64 - 1,
        "weight": 0.5, "height": float("inf"), "born": date(2000, 2, 29), "seen": datetime(2024, 1, 1, 12, tzinfo=UTC),
        "photo": b"\x00", "role": "dev", "tags": ["a", ""], "totals": [2**64 - 1], "place": [1.0, -0.0],
    },
    {"id": "bob", "name": "bob", "active": False},
    {"id": "cid", "name": "cid", "active": False, "tags": [], "totals": [], "photo": b""},
]  # fmt: skip


@pytest.mark.parametrize("rows", [ROWS, ROWS[1:], ROWS[::-1], []])
def test_every_value_of_every_type_reaches_spark_as_it_is(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=PERSON.arrow)
    arrow = to_arrow_schema(spark_schema(PERSON), timezone="UTC")
    given = as_spark(batch, arrow)
    given.validate(full=True)
    assert given.schema.equals(arrow)
    expected = [{name: row.get(name) for name in PERSON.arrow.names} for row in rows]
    for row in expected:
        row["huge"] = None if row["huge"] is None else Decimal(row["huge"])
        row["totals"] = None if row["totals"] is None else [Decimal(total) for total in row["totals"]]
    assert given.to_pylist() == expected


def test_a_slice_of_a_batch_keeps_its_own_lists() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=PERSON.arrow)
    arrow = to_arrow_schema(spark_schema(PERSON, ["id", "tags", "place"]), timezone="UTC")
    assert as_spark(batch.slice(1), arrow).to_pylist() == as_spark(batch, arrow).to_pylist()[1:]


def test_a_read_of_some_columns_has_them_in_the_order_asked_for() -> None:
    assert spark_schema(KNOWS, ["since", "src"]).simpleString() == "struct<since:date,src:string>"
    with pytest.raises(omniray.InputError, match="Knows has no column 'sinc'; did you mean 'since'"):
        spark_schema(KNOWS, ["sinc"])


def test_required_columns_are_never_null_in_the_frame() -> None:
    nullable = {field.name: field.nullable for field in spark_schema(KNOWS)}
    assert nullable == {"id": False, "src": False, "dst": False, "since": False}
    assert spark_schema(PERSON)["small"].nullable


# Writing


def test_a_frame_that_fits_is_accepted_whichever_way_its_ends_are_called() -> None:
    check_frame(frame(name=TEXT, active=BOOL, huge=LONG, born=TEXT, place=ArrayType(DoubleType())), PERSON)
    check_frame(frame(**{"from": TEXT, "to": TEXT, "since": TimestampType()}), KNOWS)
    check_frame(frame(src=TEXT, dst=TEXT, id=TEXT, since=DAY), KNOWS)
    check_frame(frame(text=TEXT), NOTE)


def test_everything_that_is_wrong_with_a_frame_is_said_at_once() -> None:
    given = frame(nme=TEXT, active=INT, small=TEXT, tags=ArrayType(INT), place=FloatType())
    assert refusal(given, PERSON) == (
        "the frame does not fit Person: Person has no property 'nme'; did you mean 'name'?; "
        "column 'name' is missing, which is part of the key; 'active' is int, which never becomes Bool; "
        "'small' is string, which never becomes I32; 'tags' is array<int>, which never becomes [String]; "
        "'place' is float, which never becomes Vector(2)"
    )


def test_a_column_with_a_default_may_be_missing_but_not_null_throughout() -> None:
    type = parse_schema("node Person { name: String @key  active: Bool @default(true) }").type("Person")
    check_frame(frame(name=TEXT), type)
    assert "'active' is null throughout, but it is required" in refusal(frame(name=TEXT, active=NullType()), type)


def test_missing_and_doubled_ends_are_named() -> None:
    assert "column 'to' is missing" in refusal(frame(src=TEXT, since=DAY), KNOWS)
    doubled = frame(**{"from": TEXT, "src": TEXT, "dst": TEXT, "since": DAY})
    assert refusal(doubled, KNOWS) == "the frame does not fit Knows: more than one column for 'from', keep one"


def test_an_id_is_text() -> None:
    assert "'to' is bigint, but an id is text" in refusal(frame(**{"from": TEXT, "to": LONG, "since": DAY}), KNOWS)
    assert "'id' is int, but an id is text" in refusal(frame(id=INT, text=TEXT), NOTE)


def test_a_column_of_nulls_is_refused_only_where_a_value_is_needed() -> None:
    check_frame(frame(name=TEXT, active=BOOL, small=NullType()), PERSON)
    assert "'active' is null throughout, but it is required" in refusal(frame(name=TEXT, active=NullType()), PERSON)


# One value of each Spark type that more or less anything can be made of, where anything can be made of the type at all.
SAMPLES: list[tuple[DataType, list[Any]]] = [
    (StringType(), ["a", "2024-05-31", "2024-05-31T12:00:00Z", "base64:AA=="]),
    (BooleanType(), [True]),
    (ByteType(), [1]),
    (ShortType(), [1]),
    (IntegerType(), [1]),
    (LongType(), [1]),
    (FloatType(), [1.0]),
    (DoubleType(), [1.0]),
    (DecimalType(10, 2), [Decimal("1.00")]),
    (DecimalType(38, 0), [Decimal(1)]),
    (DateType(), [date(2024, 5, 31)]),
    (TimestampType(), [datetime(2024, 5, 31, tzinfo=UTC)]),
    (TimestampNTZType(), [datetime(2024, 5, 31)]),
    (BinaryType(), [b"\x00"]),
    (MapType(StringType(), StringType()), [{"a": "b"}]),
    (StructType().add("a", "string"), [{"a": "b"}]),
]
SAMPLES += [(ArrayType(type), [[value] for value in values]) for type, values in SAMPLES]


@pytest.mark.parametrize("type", EVERY_TYPE, ids=str)
@pytest.mark.parametrize(("given", "values"), SAMPLES, ids=[type.simpleString() for type, _ in SAMPLES])
def test_a_spark_type_is_accepted_exactly_where_a_value_of_it_can_be_cast(
    type: PropertyType, given: DataType, values: list[Any]
) -> None:
    column = pa.array(values, to_arrow_type(given, timezone="UTC"))
    bad = cast(column, type).bad
    fits = bad is None or not bad.all()
    assert accepts(type, given) == fits


@pytest.mark.parametrize("type", EVERY_TYPE, ids=str)
def test_what_is_read_can_be_written_back(type: PropertyType) -> None:
    assert accepts(type, spark_type(type))
