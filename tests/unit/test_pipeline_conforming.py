"""Rows of a pipeline's source, held against their type: each is refused for itself alone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from omniray.engine.schema.parser import parse_schema
from omniray.workers.spark.pipeline.conforming import REASON, ROW, conform_batch, conformed_schema

SCHEMA = """node Person {
    name: String @key
    age: I32?
    is_old: Bool?
    tags: [String]?
}"""


def conformed(**columns: pa.Array) -> tuple[list[str], list[tuple[str, str]]]:
    """The names of the rows that fit, and of the others the reason and the row."""
    type = parse_schema(SCHEMA).type("Person")
    out = to_arrow_schema(conformed_schema(type, None), timezone="UTC")
    rows = pa.Table.from_batches(list(conform_batch(type, pa.record_batch(columns), out)), out).to_pylist()
    fitting = [row["name"] for row in rows if row[REASON] is None]
    return fitting, [(row[REASON], row[ROW]) for row in rows if row[REASON] is not None]


def test_a_column_that_is_missing_has_the_default_of_its_property() -> None:
    type = parse_schema("node Person { name: String @key  role: enum(dev, ops) @default(dev) }").type("Person")
    out = to_arrow_schema(conformed_schema(type, None), timezone="UTC")
    (rows,) = conform_batch(type, pa.record_batch({"name": ["ann", "bob"]}), out)
    assert rows["role"].to_pylist() == ["dev", "dev"]


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("age", b"41", b"4\xff"), ("is_old", b"true", b"\xff"), ("tags", b'["a"]', b'["\xff"]')],
)
@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_bytes_that_are_no_text_are_refused_alone(column: str, good: bytes, bad: bytes, text: pa.DataType) -> None:
    names = pa.array(["ann", "bob", "cleo"])
    storage = pa.large_binary() if text == pa.large_string() else pa.binary()
    cells = pa.array([good, bad, None], storage).view(text)
    fitting, refused = conformed(name=names, **{column: cells})
    assert fitting == ["ann", "cleo"]
    ((reason, row),) = refused
    assert (reason, '"bob"' in row) == ("bad_value", True)
