"""Filters that are pushed down select the rows that Spark would have selected, and the others are left to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import omniray
from omniray.workers.spark.pushdown import pushed

SCHEMA = """
node Item {
    name: String @key
    flag: Bool?
    small: I32?
    count: U32?
    huge: U64?
    x: F64?
    day: Date?
    at: DateTime?
    role: enum(dev, ops)?
    tags: [String]?
    data: Blob?
}
"""
NOON = datetime(2024, 5, 31, 12, tzinfo=UTC)
DAY = date(2024, 5, 31)
JUNE = date(2024, 6, 1)
FIRST = {"name": "a", "flag": True, "small": 1, "count": 2**32 - 1, "huge": 2**64 - 1, "day": DAY, "role": "dev"}
SECOND = {"name": "ab", "flag": False, "small": -1, "count": 0, "huge": 0, "day": JUNE, "role": "ops"}
ITEMS = [
    {**FIRST, "x": 0.0, "at": NOON},
    {**SECOND, "x": -0.0, "at": NOON},
    {"name": "b", "small": 7, "huge": 7},
    {"name": "é", "tags": ["a"], "data": b"a"},
]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Snapshot]:
    with omniray.init(str(tmp_path_factory.mktemp("graph") / "items"), schema=SCHEMA) as graph:
        graph.load(ITEMS, type="Item")
        yield graph.snapshot()


def on(column: str, filter: type[Any], *value: Any) -> Filter:
    made: Filter = filter((column,), *value)
    return made


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        (on("name", EqualTo, "a"), ["a"]),
        (on("id", In, ("a", "é", "nobody")), ["a", "é"]),
        (on("name", GreaterThan, "ab"), ["b", "é"]),
        (on("name", StringStartsWith, "a"), ["a", "ab"]),
        (on("name", StringStartsWith, "é"), ["é"]),
        (Not(on("name", StringStartsWith, "a")), ["b", "é"]),
        (on("flag", EqualTo, True), ["a"]),
        (Not(on("flag", EqualTo, True)), ["ab"]),
        (on("flag", EqualNullSafe, True), ["a"]),
        (Not(on("flag", EqualNullSafe, True)), ["ab", "b", "é"]),
        (on("flag", EqualNullSafe, None), ["b", "é"]),
        (on("small", LessThan, 1), ["ab"]),
        (on("small", LessThanOrEqual, 1), ["a", "ab"]),
        (on("small", GreaterThanOrEqual, 1), ["a", "b"]),
        (Not(on("small", In, (1, 7))), ["ab"]),
        (on("count", EqualTo, 2**32 - 1), ["a"]),
        (on("count", GreaterThan, 0), ["a"]),
        (on("huge", EqualTo, Decimal(2**64 - 1)), ["a"]),
        (on("huge", In, (Decimal(7), Decimal(2**64 - 1))), ["a", "b"]),
        (on("huge", LessThan, Decimal(7)), ["ab"]),
        (on("day", LessThanOrEqual, DAY), ["a"]),
        (on("at", EqualTo, NOON), ["a", "ab"]),
        (on("at", LessThan, NOON), []),
        (on("role", EqualTo, "ops"), ["ab"]),
        (on("role", IsNull), ["b", "é"]),
        (on("role", IsNotNull), ["a", "ab"]),
        (Not(on("role", IsNull)), ["a", "ab"]),
    ],
    ids=str,
)
def test_a_pushed_filter_selects_what_spark_would(snapshot: omniray.Snapshot, filter: Filter, names: list[str]) -> None:
    where = pushed(filter, snapshot.schema.type("Item"))
    assert where is not None
    assert sorted(snapshot.table("Item", ["name"], where)["name"].to_pylist()) == names


@pytest.mark.parametrize(
    "filter",
    [
        on("x", EqualTo, 0.0),
        on("x", GreaterThan, 1.0),
        on("tags", EqualTo, ["a"]),
        on("data", EqualTo, b"a"),
        on("name", StringEndsWith, "a"),
        on("name", StringContains, "a"),
        on("name", StringStartsWith, ""),
        on("name", StringStartsWith, "a\U0010ffff"),
        on("name", StringStartsWith, "\ud7ff"),
        on("small", EqualTo, None),
        on("small", In, (1, None)),
        on("small", In, ()),
        on("small", EqualTo, 2**40),
        on("count", GreaterThan, -1),
        on("huge", EqualTo, Decimal("1.5")),
        on("_commit_id", EqualTo, "a"),
        EqualTo(("name", "first"), "a"),
        Not(on("x", EqualTo, 0.0)),
    ],
    ids=repr,
)
def test_a_filter_that_the_store_might_see_otherwise_is_left_to_spark(
    snapshot: omniray.Snapshot, filter: Filter
) -> None:
    assert pushed(filter, snapshot.schema.type("Item")) is None
