"""The keys of a merge's rows, of which some are in memory and some in files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from omniray.engine.branches.merge_keys import REMOVED, WRITTEN, MergeKeys
from omniray.engine.judge.keylog import KeyMemory
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ElementType

SCHEMA = parse_schema("node Person {\n    name: String @key\n}\nedge Knows: Person -> Person\n")
PERSON, KNOWS = SCHEMA.type("Person"), SCHEMA.type("Knows")
FILES = KeyMemory(2_000, 64)


def rows(type: ElementType, *ids: str) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(type.arrow.names, id) for id in ids], schema=type.arrow)


@pytest.mark.parametrize(
    ("memory_rows", "memory"),
    [(100_000, FILES), (100, FILES), (100, KeyMemory(1 << 20, 64))],
    ids=["files", "files and many", "many"],
)
def test_a_rule_sees_every_key_wherever_it_is(memory_rows: int, memory: KeyMemory) -> None:
    """Keys of the last rows were still in memory when the connection was opened, and it never saw them."""
    many = [f"e{n}" for n in range(200)]
    with MergeKeys(SCHEMA, memory_rows=memory_rows, memory=memory) as keys:
        keys.add(PERSON, rows(PERSON, "ann"), rows(PERSON, "bob"))
        keys.add(KNOWS, rows(KNOWS, *many), rows(KNOWS))
        keys.add(KNOWS, rows(KNOWS, "last"), rows(KNOWS, "gone"))
        with keys.sets() as sets:
            people = sets.query("from {keys} order by id", keys=keys.of(PERSON))
            edges = sets.query("from {keys} order by row", keys=keys.of(KNOWS))
    assert people["id"].to_pylist() == ["ann", "bob"]
    assert edges["id"].to_pylist() == [*many, "last", "gone"]
    assert edges["record"].to_pylist() == [*[WRITTEN] * 201, REMOVED]
