from __future__ import annotations

import base64
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniray.engine.base.errors import ConstraintViolation, KeyConflict, RecordError
from omniray.engine.rows.records import Block, RawBatch, Rejection, as_error, numbered, raw_from_dicts
from omniray.engine.rows.row_validation import conform, conform_block
from omniray.engine.schema.types import (
    Check,
    EdgeType,
    EnumType,
    Key,
    ListType,
    NodeType,
    Property,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    VectorType,
)

UTC = UTC


def scalar(name: str) -> ScalarType:
    return ScalarType(Scalar(name))


def node(*properties: Property, constraints: tuple = ()) -> NodeType:
    return NodeType("Person", properties, properties, constraints=constraints)


PERSON = node(
    Property("name", scalar("String")),
    Property("age", scalar("I32"), nullable=True),
    Property("role", EnumType(("dev", "ops")), nullable=True),
    Property("score", scalar("F64"), nullable=True),
    constraints=(Key(("name",)), Range("age", 0, 150), Range("score", -1.5, None), Check("name", "^[A-Z]")),
)
KNOWS = EdgeType("Knows", "Person", "Person", (Property("since", scalar("Date"), nullable=True),))
NOTE = node(Property("text", scalar("String"), nullable=True))


def one_column(type: PropertyType, values: Any, **raw: Any) -> tuple[list, dict[int, str]]:
    """What becomes of a nullable column: its values with None for the refused rows, and the reasons by row."""
    of = node(Property("p", type, nullable=True))
    batch, rejections = conform(RawBatch(of, {"p": values}, numbered(0, len(values)), **raw))
    assert batch.rows.schema == of.arrow
    batch.rows.validate(full=True)
    kept = dict(zip(batch.records.to_pylist(), batch.rows["p"].to_pylist(), strict=True))
    reasons = {r.record: r.reason for r in rejections}
    assert len(reasons) == len(rejections)
    assert kept.keys() | reasons.keys() == set(range(len(values)))
    assert not kept.keys() & reasons.keys()
    return [kept.get(row) for row in range(len(values))], reasons


def refused(type: PropertyType, values: Any, **raw: Any) -> set[int]:
    return set(one_column(type, values, **raw)[1])


def reasons_of(type: NodeType | EdgeType, *rows: dict[str, Any]) -> list[str]:
    return [r.reason for r in conform(raw_from_dicts(type, rows))[1]]


T0 = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
FITTING: list[tuple[PropertyType, list, list]] = [
    (scalar("String"), ["", "é\x00"], ["", "é\x00"]),
    (scalar("Bool"), [True, np.bool_(False)], [True, False]),
    (scalar("I32"), [1, -(2**31), 2.0, np.int8(3), Decimal("4.00")], [1, -(2**31), 2, 3, 4]),
    (scalar("I64"), [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
    (scalar("U32"), [0, 2**32 - 1], [0, 2**32 - 1]),
    (scalar("U64"), [0, 2**64 - 1, 3.0], [0, 2**64 - 1, 3]),
    (scalar("F32"), [1, 0.5, float("inf")], [1.0, 0.5, float("inf")]),
    (scalar("F64"), [1, 0.1, 2**60 + 1, 2**64, Decimal("0.25")], [1.0, 0.1, float(2**60), float(2**64), 0.25]),
    (scalar("Date"), ["2024-02-29", date(2024, 2, 29), datetime(2024, 2, 29)], [date(2024, 2, 29)] * 3),
    (
        scalar("DateTime"),
        ["2024-02-29T12:30Z", "2024-02-29 12:30:00", "2024-02-29T14:30:00.0000009+02:00", "2024-02-29T07:30-05", T0],
        [T0] * 5,
    ),
    (
        scalar("DateTime"),
        ["2024-02-29", date(2024, 2, 29), datetime(2024, 2, 29), T0.astimezone(timezone(timedelta(hours=9)))],
        [datetime(2024, 2, 29, tzinfo=UTC)] * 3 + [T0],
    ),
    (scalar("Blob"), [b"\xff\x00", "base64:aGk=", "base64:", bytearray(b"x")], [b"\xff\x00", b"hi", b"", b"x"]),
    (EnumType(("a", "b-c")), ["a", "b-c"], ["a", "b-c"]),
    (VectorType(2), [[1, 2.5], (0, 1), np.array([3.0, 4.0], np.float32)], [[1.0, 2.5], [0.0, 1.0], [3.0, 4.0]]),
    (ListType(scalar("String")), [["a", ""], []], [["a", ""], []]),
    (ListType(scalar("I32")), [[1, 2], [], [3.0]], [[1, 2], [], [3]]),
    (ListType(scalar("Date")), [["2024-02-29"], [date(2024, 1, 1)]], [[date(2024, 2, 29)], [date(2024, 1, 1)]]),
]  # fmt: skip


@pytest.mark.parametrize(("type", "values", "expected"), FITTING, ids=[str(type) for type, _, _ in FITTING])
def test_python_values_that_fit_are_taken_with_nulls_between_them(
    type: PropertyType, values: list, expected: list
) -> None:
    got, reasons = one_column(type, [None, *values, None])
    assert not reasons
    assert got == [None, *expected, None]


MISFITS: list[tuple[PropertyType, Any, list]] = [
    (scalar("String"), "a", [1, True, b"x", ["a"], {"a": 1}, "\ud800", object()]),
    (scalar("Bool"), True, [0, 1, "true", 1.0]),
    (scalar("I32"), 1, [True, "1", 1.5, 2**31, -(2**31) - 1, math.nan, math.inf, 1e300, 10**100, Decimal("1.5")]),
    (scalar("I64"), 1, [2**63, -(2**63) - 1, 2.0**63, "x"]),
    (scalar("U32"), 1, [-1, 2**32, -1.0]),
    (scalar("U64"), 1, [-1, 2**64, 2.0**64]),
    (scalar("F32"), 1.0, [1e39, -1e39, 10**40, "1.0", True]),
    (scalar("F64"), 1.0, ["1.0", False, b"1"]),
    (
        scalar("Date"),
        date(2024, 2, 29),
        ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-01-01", "2024-01-01T00:00", "0000-01-01",
         "2024-01-01 ", "2024-01-01\n", 0, datetime(2024, 1, 1, 1), True],
    ),
    (
        scalar("DateTime"),
        T0,
        ["2024-02-30T12:00Z", "2024-02-29T24:00", "2024-02-29T12:60", "2024-02-29T12", "noon", "",
         "2024-02-29T12:00:00+25:00", "9999-12-31T23:00-05:00", "0001-01-01T00:00+01:00", 1700000000],
    ),
    (scalar("Blob"), b"x", ["hello", "base64:a", "base64:a=b=", "s3://bucket/file", 5]),
    (EnumType(("a",)), "a", ["b", "A", "", 1]),
    (
        VectorType(2),
        [1.0, 2.0],
        [[1], [1, 2, 3], [], [1, None], [1, float("nan")], [1, float("inf")], [1, 1e39], [1, "2"], [1, True], "ab", 5],
    ),
    (ListType(scalar("String")), ["a"], [[None], ["a", 1], "ab", [["a"]]]),
    (ListType(scalar("I32")), [7], [[1, 2**31], [1, None], [1.5], 1]),
]  # fmt: skip


@pytest.mark.parametrize(("type", "good", "values"), MISFITS, ids=[str(type) for type, _, _ in MISFITS])
def test_python_values_that_do_not_fit_are_refused_each_by_itself(type: PropertyType, good: Any, values: list) -> None:
    for value in values:
        got, reasons = one_column(type, [good, value, None, good])
        assert set(reasons) == {1}, f"{value!r} should not be {type}"
        assert got == [good, None, None, good]
        assert "Person.p" in reasons[1]
    assert refused(type, [good, *values, good]) == set(range(1, len(values) + 1))


@pytest.mark.parametrize(
    ("type", "array", "expected"),
    [
        (scalar("String"), pa.array(["a", None], pa.large_string()), ["a", None]),
        (scalar("String"), pa.array(["a", None], pa.string_view()), ["a", None]),
        (scalar("String"), pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (scalar("String"), pa.nulls(2), [None, None]),
        (scalar("I32"), pa.array([1, None], pa.uint8()), [1, None]),
        (scalar("I64"), pa.array([1.0, None], pa.float32()), [1, None]),
        (scalar("I64"), pa.array([Decimal("12")], pa.decimal128(10, 2)), [12]),
        (scalar("U64"), pa.array([Decimal("12")], pa.decimal128(38, 20)), [12]),
        (scalar("I32"), pa.array([Decimal("-99")], pa.decimal128(4, 2)), [-99]),
        (scalar("I32"), pa.array([Decimal("0")], pa.decimal128(5, 5)), [0]),
        (scalar("U64"), pa.array([5], pa.int64()), [5]),
        (scalar("F32"), pa.array([0.5], pa.float64()), [0.5]),
        (scalar("F32"), pa.array([1.5], pa.float16()), [1.5]),
        (scalar("F64"), pa.array([2**62], pa.int64()), [float(2**62)]),
        (scalar("Date"), pa.array([date(2024, 1, 1)], pa.date64()), [date(2024, 1, 1)]),
        (scalar("Date"), pa.array([datetime(1969, 12, 31)], pa.timestamp("ns")), [date(1969, 12, 31)]),
        (scalar("Date"), pa.array([datetime(2024, 1, 1)], pa.timestamp("s", "America/Lima")), [date(2024, 1, 1)]),
        (scalar("DateTime"), pa.array([datetime(2024, 1, 1)], pa.timestamp("s")), [datetime(2024, 1, 1, tzinfo=UTC)]),
        (scalar("DateTime"), pa.array([1_709_209_800_000_000_999]).view(pa.timestamp("ns")), [T0]),
        (scalar("DateTime"), pa.array([T0], pa.timestamp("ms", "Asia/Tokyo")), [T0]),
        (scalar("Blob"), pa.array([b"a", None], pa.binary()), [b"a", None]),
        (scalar("Blob"), pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        (VectorType(2), pa.array([[1, 2], None], pa.list_(pa.float64())), [[1.0, 2.0], None]),
        (VectorType(2), pa.array([[9, 9], [1, 2], None], pa.list_(pa.float32(), 2)).slice(1), [[1.0, 2.0], None]),
        (ListType(scalar("I32")), pa.array([[9], [1], None, []], pa.large_list(pa.int64())).slice(1), [[1], None, []]),
        (ListType(scalar("String")), pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), [["a"]]),
    ],
)  # fmt: skip
def test_arrow_columns_of_a_kindred_type_are_cast(type: PropertyType, array: pa.Array, expected: list) -> None:
    got, reasons = one_column(type, array)
    assert not reasons
    assert got == expected


@pytest.mark.parametrize(
    ("type", "array", "rows"),
    [
        (scalar("String"), pa.array([1, None]), {0}),
        (scalar("Bool"), pa.array([1, 0]), {0, 1}),
        (scalar("I32"), pa.array([2**31, 1, -(2**31) - 1]), {0, 2}),
        (scalar("I32"), pa.array([1.5, 2.0, float("nan"), None]), {0, 2}),
        (scalar("I32"), pa.array([True]), {0}),
        (scalar("I32"), pa.array([Decimal("-99.50"), Decimal("99.00")], pa.decimal128(4, 2)), {0}),
        (scalar("I64"), pa.array([2**63, 1], pa.uint64()), {0}),
        (scalar("U32"), pa.array([-1, 1], pa.int8()), {0}),
        (scalar("F32"), pa.array([1e39, 1.0, float("inf")]), {0}),
        (scalar("Date"), pa.array([10**7, 0], pa.int32()).view(pa.date32()), {0}),
        (scalar("Date"), pa.array([datetime(2024, 1, 1, 1), datetime(2024, 1, 1)], pa.timestamp("us")), {0}),
        (scalar("DateTime"), pa.array([10**15, 0], pa.int64()).view(pa.timestamp("s")), {0}),
        (scalar("Blob"), pa.array([1]), {0}),
        (VectorType(2), pa.array([[1.0], [1.0, 2.0], None, [1.0, None]]), {0, 3}),
        (VectorType(3), pa.array([[1, 2], None], pa.list_(pa.float32(), 2)), {0}),
        (VectorType(2), pa.array([1.0]), {0}),
        (ListType(scalar("I32")), pa.array([[1], [None, 1], None, [2**40]]), {1, 3}),
        (ListType(scalar("String")), pa.array([[1]]), {0}),
    ],
)  # fmt: skip
def test_arrow_values_that_do_not_fit_are_refused_row_by_row(
    type: PropertyType, array: pa.Array, rows: set[int]
) -> None:
    assert refused(type, array) == rows


def test_bytes_that_call_themselves_text_are_refused() -> None:
    array = pa.array([b"ok", b"\xff\xfe", None], pa.binary()).view(pa.string())
    got, reasons = one_column(scalar("String"), array)
    assert got == ["ok", None, None]
    assert reasons == {1: r"invalid value for Person.p: b'\xff\xfe' is not String, text in UTF-8"}
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), array)
    assert refused(ListType(scalar("String")), lists.slice(0, 1)) == set()
    assert refused(ListType(scalar("String")), lists) == {1}


@pytest.mark.parametrize(
    ("type", "cells", "expected"),
    [
        (scalar("String"), ["1", " x "], ["1", " x "]),
        (scalar("Bool"), ["true", "False", "1", "0"], [True, False, True, False]),
        (scalar("I32"), ["+1", "-2", " 007 "], [1, -2, 7]),
        (scalar("U64"), ["18446744073709551615"], [2**64 - 1]),
        (scalar("F64"), ["1", ".5", "-1e3", "5.", "inf"], [1.0, 0.5, -1000.0, 5.0, math.inf]),
        (scalar("Date"), ["2024-02-29 "], [date(2024, 2, 29)]),
        (scalar("DateTime"), ["2024-02-29T12:30Z"], [T0]),
        (scalar("Blob"), ["base64:aGk="], [b"hi"]),
        (EnumType(("a",)), ["a"], ["a"]),
        (VectorType(2), ["[1, 2.5]"], [[1.0, 2.5]]),
        (ListType(scalar("String")), ['["a", "b"]', "[]"], [["a", "b"], []]),
    ],
)
def test_cells_are_read_as_their_propertys_type(type: PropertyType, cells: list, expected: list) -> None:
    got, reasons = one_column(type, [None, *cells], text=True)
    assert not reasons
    assert got == [None, *expected]


@pytest.mark.parametrize(
    ("type", "cells"),
    [
        (scalar("Bool"), ["yes", "2", "t"]),
        (scalar("I32"), ["1.0", "0x10", "1e3", "one", "2147483648", "9" * 39]),
        (scalar("F32"), ["1e39", "1,5", "1e999"]),
        (scalar("F64"), ["1e999", "0x10", "1.2.3"]),
        (scalar("Date"), ["29.02.2024"]),
        (scalar("Blob"), ["hi"]),
        (EnumType(("a",)), ["b"]),
        (VectorType(2), ["1;2", "[1]", "{}"]),
    ],
)
def test_cells_that_can_not_be_read_are_refused(type: PropertyType, cells: list) -> None:
    assert refused(type, [None, *cells], text=True) == set(range(1, len(cells) + 1))


def test_the_reasons_name_the_rule_the_property_and_the_value() -> None:
    assert reasons_of(
        PERSON,
        {"name": "Ann", "age": 200},
        {"name": "Bob", "age": "old"},
        {"age": 1},
        {"name": "cid"},
        {"name": "Dan", "role": "boss"},
        {"name": "Eve", "score": float("nan")},
        {"name": "Fay", "score": -2},
        {"name": "Gil", "agee": 3},
        {"name": ""},
    ) == [
        "@range violation on Person.age: 200 is outside 0..150",
        "invalid value for Person.age: 'old' is not I32, a whole number from -2147483648 to 2147483647",
        "null value for Person.name which is required",
        "@check violation on Person.name: 'cid' does not match '^[A-Z]'",
        "invalid enum value 'boss' for Person.role: expected one of dev, ops",
        "@range violation on Person.score: nan is outside -1.5..",
        "@range violation on Person.score: -2.0 is outside -1.5..",
        "Person has no property 'agee'; did you mean 'age'?",
        "@check violation on Person.name: '' does not match '^[A-Z]'",
    ]


def test_a_record_with_many_faults_is_refused_once_and_the_others_stay() -> None:
    rows = [{"name": "Ann", "age": 5}, {"name": 1, "age": 900, "role": "x", "nope": 1}, {"name": "Bob"}]
    batch, rejections = conform(raw_from_dicts(PERSON, rows, [10, 20, 30], "people.jsonl"))
    assert batch.rows["id"].to_pylist() == ["Ann", "Bob"]
    assert batch.records.to_pylist() == [10, 30]
    assert [(r.source, r.record) for r in rejections] == [("people.jsonl", 20)]


def test_a_long_value_is_cut_in_the_reason() -> None:
    (reason,) = reasons_of(PERSON, {"name": "a" * 10_000_000})
    assert len(reason) < 200
    (reason,) = reasons_of(node(Property("p", VectorType(2))), {"p": [1.5] * 100_000})
    assert len(reason) < 200


def test_bounds_that_the_type_can_not_hold_still_bound() -> None:
    def count(of: str, low: float | None, high: float | None, value: float) -> int:
        return len(reasons_of(node(Property("p", scalar(of)), constraints=(Range("p", low, high),)), {"p": value}))

    assert count("U32", -5, None, 0) == 0
    assert count("I32", 2**40, None, 2**31 - 1) == 1
    assert count("I32", None, 2**40, 2**31 - 1) == 0
    assert count("U32", None, -1, 0) == 1
    assert count("I32", 0.5, None, 0) == 1
    assert count("I32", 0.5, 1.5, 1) == 0
    assert count("F32", 0.1, 0.1, 0.1) == 0
    assert count("F64", 0, 1, float("inf")) == 1


def test_a_blob_given_by_its_address_is_refused_with_a_hint() -> None:
    (reason,) = reasons_of(node(Property("p", scalar("Blob"))), {"p": "s3://bucket/cat.png"})
    assert "not fetched" in reason


def test_an_id_beside_a_key_must_be_the_one_the_key_makes() -> None:
    batch, rejections = conform(raw_from_dicts(PERSON, [{"name": "Ann", "id": "Ann"}, {"name": "Bob", "id": "Rob"}]))
    assert batch.rows["id"].to_pylist() == ["Ann"]
    assert [r.reason for r in rejections] == [
        "invalid value for Person.id: 'Rob' differs from 'Bob', which its key (name) makes; leave it out"
    ]


def test_ids_and_keys_are_neither_empty_nor_long() -> None:
    keyed = node(Property("k", scalar("String")), constraints=(Key(("k",)),))
    assert [r[:28] for r in reasons_of(keyed, {"k": ""}, {"k": "é" * 512}, {"k": "é" * 512 + "x"})] == [
        "invalid value for Person.k (",
        "invalid value for Person.k (",
    ]
    assert len(reasons_of(NOTE, {"id": ""}, {"id": "x" * 1025}, {"id": 5}, {"id": "x" * 1024}, {"id": None}, {})) == 3


def test_a_key_is_finite_and_never_null() -> None:
    keyed = node(Property("k", scalar("F64"), nullable=True), constraints=(Key(("k",)),))
    assert reasons_of(keyed, {"k": float("nan")}, {"k": None}, {"k": -0.0}) == [
        "invalid value for Person.k: nan can't be a key",
        "null value for Person.k which is part of the key",
    ]


def test_ids_of_keyless_nodes_and_edges_stay_as_given_or_to_be_assigned() -> None:
    batch, rejections = conform(raw_from_dicts(NOTE, [{"text": "x"}, {"id": "mine"}]))
    assert not rejections
    assert batch.rows["id"].to_pylist() == [None, "mine"]
    rows = [{"from": "a", "to": "b"}, {"src": "a", "dst": "b", "id": "e", "since": "2024-01-01"}]
    batch, rejections = conform(raw_from_dicts(KNOWS, rows))
    assert not rejections
    assert batch.rows.to_pylist() == [
        {"id": None, "src": "a", "dst": "b", "since": None},
        {"id": "e", "src": "a", "dst": "b", "since": date(2024, 1, 1)},
    ]


def test_an_edge_needs_both_ends_as_text_and_each_of_them_once() -> None:
    reasons = reasons_of(
        KNOWS, {"from": "a"}, {"to": "b"}, {"from": 1, "to": "b"}, {"from": "a", "src": "x", "to": "b"}
    )
    assert reasons[:2] == ["null value for Knows.to which is required", "null value for Knows.from which is required"]
    assert reasons[2].startswith("invalid value for Knows.from: 1 is not String")
    assert "by its id" in reasons[2]
    assert reasons[3].startswith("Knows has no property 'src': its ends are 'from' and 'to', given once each")


def test_columns_of_the_right_type_are_not_copied() -> None:
    name, age = pa.array(["Ann", "Bob"]), pa.array([1, 2], pa.int32())
    batch, _ = conform(RawBatch(PERSON, {"name": name, "age": age}, numbered(1, 2)))
    assert batch.rows["age"].buffers()[1].address == age.buffers()[1].address
    assert batch.rows["name"].buffers()[2].address == batch.rows["id"].buffers()[2].address == name.buffers()[2].address


def test_no_rows_conform_to_no_rows() -> None:
    for raw in (
        raw_from_dicts(PERSON, []),
        RawBatch(KNOWS, {}, numbered(1, 0)),
        RawBatch(PERSON, {"name": []}, numbered(1, 0), text=True),
    ):
        batch, rejections = conform(raw)
        assert (len(batch.rows), rejections) == (0, [])
        assert batch.rows.schema == raw.type.arrow


def test_a_block_tells_what_was_refused_in_the_order_of_the_records() -> None:
    block = Block((raw_from_dicts(PERSON, [{}], [7], "f.jsonl"), raw_from_dicts(KNOWS, [{}], [3], "f.jsonl")),
                  (Rejection("f.jsonl", 5, "not a record"),))  # fmt: skip
    assert [r.record for r in conform_block(block)[1]] == [3, 5, 7]


def test_rows_that_were_all_refused_do_not_pass_for_a_load_of_none() -> None:
    assert conform_block(Block((raw_from_dicts(PERSON, [{}]),)))[0] == []
    assert [len(batch.rows) for batch in conform_block(Block((raw_from_dicts(PERSON, []),)))[0]] == [0]


def test_a_rejection_becomes_the_error_of_its_kind() -> None:
    error = as_error(Rejection("people.jsonl", 12, "@range violation on Person.age: 200 is outside 0..150"))
    assert isinstance(error, RecordError)
    assert str(error) == "people.jsonl line 12: @range violation on Person.age: 200 is outside 0..150"
    assert error.facts == {"source": "people.jsonl", "record": 12}
    assert str(as_error(Rejection("p.parquet", 3, "x"))) == "p.parquet row 3: x"
    assert str(as_error(Rejection("", 3, "x"))) == "record 3: x"
    assert isinstance(as_error(Rejection("", 3, "@unique violation", "constraint")), ConstraintViolation)
    conflict = as_error(Rejection("a.csv", 3, "exists", "key_conflict", "node:Person", "Ann"))
    assert isinstance(conflict, KeyConflict)
    assert str(conflict).startswith("a.csv line 3: key conflict on node:Person: 'Ann' exists already")


ITEMS = st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3))
TEXTS = st.one_of(
    st.text(max_size=5),
    st.dates().map(str),
    st.datetimes().map(lambda time: time.isoformat()),
    st.binary(max_size=4).map(lambda data: "base64:" + base64.b64encode(data).decode()),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXTS,
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(),
    st.decimals(),
    st.lists(ITEMS, max_size=3),
)
TYPES = st.one_of(
    st.sampled_from(Scalar).map(ScalarType),
    st.sampled_from(Scalar).map(lambda s: ListType(ScalarType(s))),
    st.just(VectorType(2)),
)


@settings(max_examples=150, deadline=None)
@given(TYPES, st.lists(VALUES, max_size=6))
def test_whatever_stands_beside_a_value_does_not_change_its_fate(type: PropertyType, values: list) -> None:
    together, reasons = one_column(type, values)
    for row, value in enumerate(values):
        alone, reason = one_column(type, [value])
        assert (row in reasons) == (0 in reason)
        assert repr(together[row]) == repr(alone[0])
