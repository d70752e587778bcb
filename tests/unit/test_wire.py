"""What travels as bytes arrives as it was sent, and weighs no more than its own rows."""

from __future__ import annotations

import pyarrow as pa

from omniray.coordinator.door.wire import packed, unpacked
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import ExpectedVersionMismatch
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.schema.parser import parse_schema
from tests.coordination import Sender
from tests.graphs import AGE, SCHEMA

_SENDER = Sender(parse_schema(SCHEMA))


def test_a_load_arrives_with_its_rows_and_keys() -> None:
    sent = _SENDER.load_request([{"name": "ann", "age": 1}, {"name": "bob", "age": None}], type="Person")
    arrived = unpacked(packed(sent))
    assert (arrived.header, arrived.options, arrived.keys) == (sent.header, sent.options, sent.keys)
    assert arrived.tables == sent.tables
    for table in arrived.tables.values():
        table.validate(full=True)


def test_a_mutation_and_an_answer_arrive() -> None:
    mutation = _SENDER.mutation(AGE, {"name": "ann", "age": 1})
    answer = WriteAnswer(WriteResult("id", 1, 2, 3, versions={"node:Person": 4}))
    assert unpacked(packed([mutation, answer])) == [mutation, answer]


def test_an_error_arrives_with_its_facts() -> None:
    arrived = unpacked(packed(ExpectedVersionMismatch("node:Person", 1, 2)))
    assert isinstance(arrived, ExpectedVersionMismatch)
    assert arrived.facts == {"table_key": "node:Person", "expected": 1, "actual": 2}


def test_a_slice_travels_without_the_table_that_it_is_a_slice_of() -> None:
    large = pa.table({"id": [f"{number:010}" for number in range(100_000)]})
    sent = packed(large.slice(50_000, 10))
    assert len(sent) < 2_000
    assert unpacked(sent) == large.slice(50_000, 10)
