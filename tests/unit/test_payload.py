"""The hash of what a write says: the same for the same data however it comes, another for anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniray import LineageEntry, WriteResult
from omniray.engine.base.errors import PayloadMismatch
from omniray.engine.base.principal import Author
from omniray.engine.commit.first_outcome import first_outcome
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.payload import LoadPayload
from omniray.engine.rows.records import raw_from_dicts
from omniray.engine.rows.row_validation import conform, conform_block
from omniray.engine.rows.sources import open_source
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ElementType
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.terms import WriteTerms

SCHEMA = parse_schema("""
node Person { name: String @key   age: I32?   since: Date? }
node City { name: String @key   age: I32?   since: Date? }
node Thing {
    text: String?   flag: Bool?   i32: I32?   i64: I64?   u32: U32?   u64: U64?   f32: F32?   f64: F64?
    day: Date?   at: DateTime?   blob: Blob?   tags: [String]?   days: [Date]?   vector: Vector(2)?
    role: enum(dev, ops)?
}
edge Knows: Person -> Person
""")
PERSON, CITY, THING, KNOWS = (SCHEMA.type(name) for name in ("Person", "City", "Thing", "Knows"))
ID = "01J00000000000000000000000"

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "text": "a", "flag": True, "i32": 1, "i64": 1, "u32": 1, "u64": 1, "f32": 1.5, "f64": 1.5, "day": NOON.date(),
    "at": NOON, "blob": b"a", "tags": ["a", "b"], "days": [NOON.date()], "vector": [1.0, 2.0], "role": "dev",
}  # fmt: skip
OTHER: dict[str, Any] = {
    "text": "A", "flag": False, "i32": 2, "i64": -1, "u32": 2, "u64": 2**64 - 1, "f32": -0.0, "f64": math.inf,
    "day": date(2026, 2, 1), "at": NOON + timedelta(microseconds=1), "blob": b"", "tags": ["ab"], "days": [],
    "vector": [2.0, 1.0], "role": "ops",
}  # fmt: skip


def rows_of(type: ElementType, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    batch, rejections = conform(raw_from_dicts(type, rows))
    assert rejections == []
    return batch.rows


def load_hash(*batches: pa.RecordBatch, type: ElementType = THING, mode: Mode = Mode.APPEND) -> str:
    payload = LoadPayload(mode)
    for rows in batches:
        payload.add(type, rows)
    return payload.hexdigest()


def things(*rows: dict[str, Any]) -> str:
    return load_hash(rows_of(THING, rows))


# Loads


values_of_things = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "flag": st.none() | st.booleans(),
        "u64": st.none() | st.integers(0, 2**64 - 1),
        "f64": st.none() | st.floats(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "blob": st.none() | st.binary(max_size=5),
        "tags": st.none() | st.lists(st.sampled_from(["", "a", "bc"]), max_size=3),
        "vector": st.none() | st.lists(st.sampled_from([0.0, 1.5, -2.0]), min_size=2, max_size=2),
    },
)


@settings(max_examples=50)
@given(st.lists(values_of_things, max_size=8), st.data())
def test_rows_cut_into_other_batches_are_the_same_load(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = rows_of(THING, rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = list(zip([0, *cuts], [*cuts, len(rows)], strict=True))
    assert load_hash(*(whole.slice(start, end - start) for start, end in parts)) == load_hash(whole)
    assert load_hash(*(rows_of(THING, rows[start:end]) for start, end in parts)) == load_hash(whole)


@given(st.lists(values_of_things, max_size=3), st.lists(values_of_things, max_size=3))
def test_loads_are_the_same_exactly_if_their_rows_are(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    """By their text, in which NaN is equal to itself and -0.0 is not equal to 0.0."""
    one, other = rows_of(THING, a), rows_of(THING, b)
    assert (load_hash(one) == load_hash(other)) == (repr(one.to_pylist()) == repr(other.to_pylist()))


@pytest.mark.parametrize("name", list(ROW))
def test_another_value_or_none_is_another_load(name: str) -> None:
    seen = {things(ROW), things({**ROW, name: OTHER[name]}), things({**ROW, name: None})}
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"text": "ab"}, {"text": "c"}], [{"text": "a"}, {"text": "bc"}]),
        ([{"text": ""}, {}], [{}, {"text": ""}]),
        ([{"tags": ["a"]}, {"tags": ["b", "c"]}], [{"tags": ["a", "b"]}, {"tags": ["c"]}]),
        ([{"tags": []}], [{}]),
        ([{"f64": 0.0}], [{"f64": -0.0}]),
        ([{"f64": math.nan}], [{}]),
        ([{"i32": 0}], [{}]),
        ([{"i32": 1}], [{"u32": 1}]),
        ([{"i32": 1}], [{"i32": 1}, {}]),
        ([{"i32": 1}, {"i32": 2}], [{"i32": 2}, {"i32": 1}]),
        ([{"id": "x"}], [{}]),
    ],
)
def test_what_only_looks_alike_is_another_load(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert things(*one) != things(*other)


def test_every_nan_is_one() -> None:
    quiet, odd = (np.array([bits], np.uint64).view(np.float64) for bits in (0x7FF8000000000000, 0xFFF8000000000001))
    rows = rows_of(THING, [{}])
    place = rows.schema.get_field_index("f64")
    hashes = {load_hash(rows.set_column(place, rows.schema.field(place), pa.array(nan))) for nan in (quiet, odd)}
    assert len(hashes) == 1


def test_what_lies_in_the_place_of_a_null_does_not_count() -> None:
    rows = rows_of(THING, [{"i32": 7}, {}])
    place = rows.schema.get_field_index("i32")
    null = pa.array([True, False]).buffers()[1]
    filled = pa.Array.from_buffers(pa.int32(), 2, [null, pa.array([7, 13], pa.int32()).buffers()[1]])
    assert load_hash(rows.set_column(place, rows.schema.field(place), filled)) == load_hash(rows)


def test_the_mode_and_the_type_of_the_rows_count() -> None:
    rows = [{"name": "x", "age": 1}]
    hashes = {load_hash(rows_of(type, rows), type=type, mode=mode) for type in (PERSON, CITY) for mode in Mode}
    assert len(hashes) == 2 * len(Mode)


def test_the_type_of_a_property_counts() -> None:
    """The same bits say one thing in a number and another in a date."""
    number, day = (parse_schema(f"node P {{ x: {type} }}").type("P") for type in ("I32", "Date"))
    hashes = {
        load_hash(rows_of(type, [{"x": value}]), type=type) for type, value in ((number, 1), (day, date(1970, 1, 2)))
    }
    assert len(hashes) == 2


def test_the_order_in_which_tables_come_does_not_count() -> None:
    """Where records of several types are mixed, it depends on how much of the source is read at once."""
    one, other = LoadPayload(Mode.MERGE), LoadPayload(Mode.MERGE)
    person, knows = rows_of(PERSON, [{"name": "x"}]), rows_of(KNOWS, [{"from": "x", "to": "x"}])
    one.add(PERSON, person)
    one.add(KNOWS, knows)
    other.add(KNOWS, knows)
    other.add(PERSON, person)
    assert one.hexdigest() == other.hexdigest()


def test_a_table_of_no_rows_is_not_nothing() -> None:
    """An overwrite empties it."""
    assert load_hash(rows_of(THING, [])) != load_hash()


def test_every_kind_of_source_gives_the_same_hash(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"name": "x", "age": 1, "since": "2026-01-31"}, {"name": "y"}]
    days = pa.array([date(2026, 1, 31), None])
    table = pa.table({"since": days, "age": pa.array([1, None], pa.int64()), "name": ["x", "y"]})
    pq.write_table(table, tmp_path / "p.parquet")
    (tmp_path / "p.csv").write_text("age,name,since\n1,x,2026-01-31\n,y,\n")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turned = [dict(reversed(row.items())) for row in rows]
    sources = [
        rows,
        turned,
        table,
        table.to_reader(1),
        *(tmp_path / f"p.{kind}" for kind in ("parquet", "csv", "jsonl")),
    ]
    hashes = set()
    for source in sources:
        blocks = open_source(source, SCHEMA, type_name="Person", format=None)
        batches = [batch.rows for block in blocks for batch in conform_block(block)[0]]
        hashes.add(load_hash(*batches, type=PERSON))
    assert hashes == {load_hash(rows_of(PERSON, rows), type=PERSON)}


# Mutations

ADD = "query add($name: String, $age: I32?, $since: Date?) { insert Person { name: $name, age: $age, since: $since } }"
SET = """query q($f: F32, $at: DateTime, $blob: Blob, $tags: [String]) {
    update Thing set { f32: $f, at: $at, blob: $blob, tags: $tags } where i32 = 1
}"""
SET_PARAMS = {"f": 1, "at": NOON, "blob": b"a", "tags": ["a", "b"]}


def mutation_hash(text: str, params: dict[str, Any] | None = None, **given: Any) -> str:
    terms = WriteTerms(Author(), txn_id=given.pop("txn_id", ID))
    of = {"name": None, "now": NOON, **given}
    return MutationIntent.of(text, params or {}, SCHEMA, terms, **of).payload_hash


@pytest.mark.parametrize(
    ("text", "one", "other"),
    [
        (ADD, {"name": "x", "age": 1}, {"age": 1, "name": "x"}),
        (ADD, {"name": "x", "age": None}, {"name": "x"}),
        (ADD, {"name": "x", "age": 1}, {"name": "x", "age": np.int64(1)}),
        (ADD, {"name": "x", "since": "2026-01-31"}, {"name": "x", "since": NOON.date()}),
        (SET, SET_PARAMS, {**SET_PARAMS, "f": 1.0}),
        (SET, SET_PARAMS, {**SET_PARAMS, "at": "2026-01-31T12:00:00Z"}),
        (SET, SET_PARAMS, {**SET_PARAMS, "at": NOON.astimezone(timezone(timedelta(hours=2)))}),
        (SET, SET_PARAMS, {**SET_PARAMS, "blob": "base64:YQ=="}),
        (SET, SET_PARAMS, {**SET_PARAMS, "tags": ("a", "b")}),
    ],
)
def test_equal_parameters_are_the_same_mutation(text: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert mutation_hash(text, one) == mutation_hash(f"\n {text}\n", other)


@pytest.mark.parametrize(
    "other",
    [
        {**SET_PARAMS, "f": 1.5},
        {**SET_PARAMS, "at": NOON + timedelta(microseconds=1)},
        {**SET_PARAMS, "blob": b"b"},
        {**SET_PARAMS, "tags": ["b", "a"]},
        {**SET_PARAMS, "tags": ["a,b"]},
    ],
)
def test_another_parameter_is_another_mutation(other: dict[str, Any]) -> None:
    assert mutation_hash(SET, SET_PARAMS) != mutation_hash(SET, other)


def test_another_text_is_another_mutation() -> None:
    assert mutation_hash("query q() { delete Person where age = 1 }") != mutation_hash(
        "query q() { delete Person where age = 2 }"
    )


def test_the_query_that_was_chosen_counts_and_not_how() -> None:
    one, two = "query one() { delete Person where age = 1 }", "query two() { delete Person where age = 2 }"
    assert mutation_hash(f"{one} {two}", name="one") != mutation_hash(f"{one} {two}", name="two")
    assert mutation_hash(one, name="one") == mutation_hash(one)


def test_the_time_of_a_mutation_does_not_count() -> None:
    text = "query q() { update Thing set { at: now() } where i32 = 1 }"
    assert mutation_hash(text) == mutation_hash(text, now=NOON + timedelta(days=1))


# The lineage keeps hashes


def test_hashes_stay_what_they_are() -> None:
    """A day later, maybe with a newer omniray, a write is compared with the hash of its first time."""
    assert things(ROW, {}) == "2a6541ec56c2dcb7af615c495c8c1dc8aa0c87e04987192cfc9de1253e783bcc"
    assert mutation_hash(SET, SET_PARAMS) == "a62b5efcab771bba7b9afb054184ff9db68a91f9c383bf841ff3725004b8b19c"


FIRST = LineageEntry(
    commit_id=ID, parent="", seq=3, kind="Load", actor="ann", tenant="", at=NOON, tables=("node:Person",), op_id="op",
    payload_hash="abc", nodes=5, edges=6, rejected=7,
)  # fmt: skip


def test_a_write_that_is_sent_again_is_told_what_its_first_time_did() -> None:
    result = first_outcome(FIRST, {"node:Person": 4}, "abc")
    assert result == WriteResult(ID, 5, 6, 7, {"node:Person": 4}, repeated=True)


def test_an_id_that_was_committed_with_other_data_is_refused() -> None:
    with pytest.raises(PayloadMismatch, match=f"{ID} was committed with other data; use a new id") as refused:
        first_outcome(FIRST, {"node:Person": 4}, "def")
    assert (refused.value.kind, refused.value.retry, refused.value.facts) == (
        "payload_mismatch",
        "never",
        {"txn_id": ID},
    )


def test_an_id_that_a_caller_was_told_by_an_unclear_outcome_can_be_sent_again() -> None:
    assert first_outcome(replace(FIRST, payload_hash=""), {}, "abc").repeated
