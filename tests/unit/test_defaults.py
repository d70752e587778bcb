"""`@default`: what it may be, and that a record which leaves a property out has it, wherever the record comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omniray
from omniray import Graph
from omniray.engine.base.errors import QueryError, RecordError, SchemaError
from omniray.engine.query.check import bind
from omniray.engine.query.parser import parse_queries
from omniray.engine.query.statements import BoundInsert
from omniray.engine.rows.defaults import default_scalar
from omniray.engine.schema.defaults import TEXT_BYTES_MAX
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import print_schema, schema_hash
from omniray.engine.schema.types import Literal_, Property

SCHEMA = """
node Person {
  name: String @key
  role: enum(dev, ops) @default(ops)
  age: I32? @default(18) @range(0..150)
  at: DateTime @default("2026-01-31T12:00:00+02:00")
  born: Date? @default("2000-02-29")
}
edge Knows: Person -> Person { weight: F64 @default(1) }
"""
FILLED = {
    "role": "ops",
    "age": 18,
    "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
    "born": date(2000, 2, 29),
}


def property_of(written: str) -> Property:
    return parse_schema(f"node T {{ p: {written} }}").nodes[0].properties[0]


# In a schema


@pytest.mark.parametrize(
    ("written", "default", "value"),
    [
        ('String @default("a b")', "a b", "a b"),
        ("enum(a, b) @default(b)", "b", "b"),
        ('enum(true, 2nd) @default("2nd")', "2nd", "2nd"),
        ("enum(true, 2nd) @default(true)", "true", "true"),
        ("Bool? @default(false)", False, False),
        ("I32 @default(-7)", -7, -7),
        (f"U64 @default({(1 << 64) - 1})", (1 << 64) - 1, (1 << 64) - 1),
        ("F32 @default(1)", 1.0, 1.0),
        ("F64 @default(-0.0)", 0.0, 0.0),
        ('Date @default("2026-01-31")', "2026-01-31", date(2026, 1, 31)),
        ('DateTime @default("2026-01-31 14:00+02:00")', "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("F32 @default(0.1) @range(0.1..0.1)", 0.1, pytest.approx(0.1)),
        ("I64 @range(0..) @default(0)", 0, 0),
        ('String @check("^[A-Z]") @default("Ada")', "Ada", "Ada"),
    ],
)
def test_a_default_is_a_literal_of_its_propertys_type(written: str, default: Literal_, value: Any) -> None:
    property = property_of(written)
    assert property.default == default
    assert isinstance(property.default, type(default))
    assert default_scalar(property).type == property.type.arrow
    assert default_scalar(property).as_py() == value


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("I32 @default", "@default takes one value"),
        ("I32 @default()", "@default takes one value"),
        ("I32 @default(1, 2)", "@default takes one value"),
        ("I32 @default(p, 2)", "@default takes one value"),
        ("I32 @default(0..1)", "@default takes one value"),
        ("I32 @default(a=1)", "@default takes one value"),
        ("I32 @default(1) @default(2)", "a second @default; remove one"),
        ("I32? @default(null)", "@default(null): leave it out"),
        ("String @default(dev)", 'write a text in quotes, @default("dev")'),
        ('I32 @default("1")', "does not fit I32; write a whole number in -2147483648..2147483647"),
        ("I32 @default(2147483648)", "does not fit I32"),
        ("U32 @default(-1)", "does not fit U32"),
        ("I64 @default(1.0)", "does not fit I64"),
        ("I64 @default(true)", "does not fit I64"),
        ("F64 @default(true)", "does not fit F64; write a number"),
        ("F32 @default(1e39)", "does not fit F32; write a number"),
        ("Bool @default(1)", "does not fit Bool; write true or false"),
        ("String @default(1)", "does not fit String; write a text in quotes"),
        (f'String @default("{"x" * (TEXT_BYTES_MAX + 1)}")', "does not fit String; write a text in quotes, of at most"),
        ('Date @default("31.1.2026")', 'does not fit Date; write a day as "2026-01-31"'),
        ('Date @default("2026-02-30")', "does not fit Date"),
        ('DateTime @default("now")', 'does not fit DateTime; write a moment as "2026-01-31T12:00:00Z"'),
        ('DateTime @default("0001-01-01T00:00+01:00")', "does not fit DateTime"),
        ("enum(dev, ops) @default(op)", "is not among the enum's values; did you mean 'ops'"),
        ("[I32] @default(1)", "@default on a property of type [I32]"),
        ("Vector(2) @default(1)", "@default on a property of type Vector(2)"),
        ('Blob @default("base64:")', "@default on a property of type Blob"),
        ("I32 @default(151) @range(0..150)", "@default(151) is outside its @range"),
        ("F32 @range(0.5..) @default(0.25)", "@default(0.25) is outside its @range"),
        ('String @default("ada") @check("^[A-Z]")', "@default('ada') does not match its @check"),
        ('String @key @default("a")', "@default on a property of the key"),
    ],
)
def test_a_default_that_does_not_fit_is_refused_with_its_place(written: str, message: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_schema(f"node T {{\n  p: {written} }}")
    assert message in refused.value.message
    assert refused.value.message.startswith("line 2: T.p: ")
    assert refused.value.facts == {"line": 2, "type": "T", "property": "p"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node T @default(1) {}", "line 1: T: @default before the body"),
        ("node T {} edge E: T -> T @default(1)", "line 1: E: @default before the body"),
        ("node T {} interface I { p: I32 @default(7) @range(8..) }", "I.p: @default(7) is outside its @range"),
        ("interface I { p: I32 @default(7) }\nnode T implements I { @key(p) }", "line 2: T.p: @default on a"),
        ("node T { @unique(p) @default(1) p: I32 }", "@default belongs to no property here"),
    ],
)  # fmt: skip
def test_a_default_elsewhere_than_at_a_property_that_may_have_one_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_schema(text)
    assert message in refused.value.message


def test_a_type_that_declares_an_inherited_property_again_says_its_default() -> None:
    interface = "interface I { p: I32 @default(1) }"
    schema = parse_schema(f"{interface} node A implements I {{}} node B implements I {{ p: I32 @default(2) }}")
    assert [node.properties[0].default for node in schema.nodes] == [1, 2]


def test_a_default_is_printed_and_is_part_of_what_a_schema_means() -> None:
    one = parse_schema("node T { p: F64 @note @default(1) @index }")
    assert print_schema(one) == "node T {\n  p: F64 @index @default(1.0) @note\n}\n"
    assert parse_schema(print_schema(one)) == one
    assert schema_hash(one) == schema_hash(parse_schema("node T { p: F64 @index @default(1.0) @note }"))
    assert schema_hash(one) != schema_hash(parse_schema("node T { p: F64 @index @note }"))


# In rows


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with omniray.init(tmp_path / "g", schema=SCHEMA) as graph:
        yield graph


def person(graph: Graph) -> dict[str, Any]:
    """The one person there is, without the name."""
    (row,) = graph.snapshot().table("Person").to_pylist()
    return {name: value for name, value in row.items() if name not in ("id", "name")}


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def parquet(path: Path) -> str:
    pq.write_table(pa.table({"name": ["Ann"]}), path)
    return str(path)


SOURCES = {
    "dicts": lambda folder: [{"name": "Ann"}],
    "records": lambda folder: [{"type": "Person", "data": {"name": "Ann"}}],
    "JSON": lambda folder: written(folder / "a.jsonl", '{"type": "Person", "data": {"name": "Ann"}}\n'),
    "plain JSON": lambda folder: written(folder / "a.jsonl", '{"name": "Ann"}\n'),
    "CSV": lambda folder: written(folder / "a.csv", "name\nAnn\n"),
    "Parquet": lambda folder: parquet(folder / "a.parquet"),
    "Arrow": lambda folder: pa.table({"name": ["Ann"]}),
    "pandas": lambda folder: pd.DataFrame({"name": ["Ann"]}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_record_that_leaves_properties_out_has_their_defaults(graph: Graph, tmp_path: Path, source: str) -> None:
    graph.load(SOURCES[source](tmp_path), type=None if source in ("records", "JSON") else "Person")
    assert person(graph) == FILLED


def test_each_record_is_filled_for_itself(graph: Graph) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "A", "age": 7},
        {"name": "B"},
        {"name": "C", "age": None, "role": "dev", "born": date(1999, 1, 1)},
    ]
    graph.load(rows, type="Person")
    found = {row["name"]: row for row in graph.snapshot().table("Person").to_pylist()}
    assert [found[name]["age"] for name in "ABC"] == [7, 18, None]
    assert [found[name]["role"] for name in "ABC"] == ["ops", "ops", "dev"]
    assert [found[name]["born"] for name in "ABC"] == [date(2000, 2, 29), date(2000, 2, 29), date(1999, 1, 1)]


@pytest.mark.parametrize("source", [[{"name": "A", "role": None}], pa.table({"name": ["A"], "role": pa.nulls(1)})])
def test_an_explicit_null_is_not_a_property_left_out(graph: Graph, source: Any) -> None:
    with pytest.raises(RecordError, match=r"null value for Person\.role which is required"):
        graph.load(source, type="Person")


def test_an_edge_has_defaults_too(graph: Graph) -> None:
    graph.load([{"name": "A"}, {"name": "B"}], type="Person")
    graph.load([{"edge": "Knows", "from": "A", "to": "B"}, {"edge": "Knows", "from": "B", "to": "A"}])
    assert graph.snapshot().table("Knows", ["weight"])["weight"].to_pylist() == [1.0, 1.0]


def test_a_row_that_is_merged_without_a_property_gets_the_default_again(graph: Graph) -> None:
    graph.load([{"name": "A", "age": 40, "role": "dev"}], type="Person")
    graph.load([{"name": "A", "role": "dev"}], type="Person", mode="merge")
    assert person(graph) == {**FILLED, "role": "dev"}


def test_a_rejected_record_does_not_stop_others_from_being_filled(graph: Graph, tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    graph.load([{"name": "A", "age": -1}, {"name": "B"}], type="Person", on_error="reject", rejects=rejects)
    assert person(graph) == FILLED
    assert len(rejects.read_text().splitlines()) == 1
    assert "age" in json.loads(rejects.read_text())["reason"]


# In queries


def test_an_insert_that_leaves_properties_out_has_their_defaults(graph: Graph) -> None:
    graph.mutate('query q() { insert Person { name: "Ann" } }')
    assert person(graph) == FILLED


def test_an_insert_may_set_null_where_a_default_is(graph: Graph) -> None:
    graph.mutate('query q($age: I32?) { insert Person { name: "Ann", age: $age, born: null } }')
    assert person(graph) == {**FILLED, "age": None, "born": None}
    with pytest.raises(QueryError, match=r"Person\.role: null, but the property is required"):
        graph.mutate('query q() { insert Person { name: "Ann", role: null } }')


def test_an_update_sets_no_defaults(graph: Graph) -> None:
    graph.load([{"name": "Ann", "age": None}], type="Person")
    graph.mutate('query q() { update Person set { role: "dev" } where name = "Ann" }')
    assert person(graph) == {**FILLED, "age": None, "role": "dev"}


def test_a_bound_insert_has_values_of_python_and_not_literals() -> None:
    (query,) = parse_queries('query q() { insert Person { name: "Ann" } }')
    (insert,) = bind(query, {}, parse_schema(SCHEMA), datetime(2026, 1, 1, tzinfo=UTC)).statements
    assert isinstance(insert, BoundInsert)
    assert insert.values == {**FILLED, "name": "Ann"}
