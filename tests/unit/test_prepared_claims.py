"""Prepared loads: what their clients claim of the graph, of rows and of files is compared with what is there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from omniray.coordinator.door.requests import decode_request, encode_request
from omniray.coordinator.rounds.conflicts import judge_round
from omniray.engine.base.errors import ConstraintViolation, InputError, KeyConflict, OmnirayError, RecordError
from omniray.engine.judge import claims
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.engine.tables.storage import NOTHING_REPLACED
from omniray.engine.writes.write_requests import PreparedRequest
from tests.coordination import Held, Sender
from tests.graphs import KNOWS, PERSON

SCHEMA = parse_schema(
    "node Person { name: String @key   age: I32?   @range(age, 0..150) }\nedge Knows: Person -> Person"
)
TYPE = SCHEMA.by_table_key[PERSON]
SENDER = Sender(SCHEMA)
VERSION = 7


def people(**ages: int | None) -> pa.Table:
    return pa.table({ID: list(ages), "name": list(ages), "age": pa.array(ages.values(), pa.int32())}, TYPE.arrow)


STATE = Held(SCHEMA, {PERSON: people(ann=1, bob=2, cid=3)}, VERSION)
"""Three people, at the addresses 0, 1 and 2."""


def replaced(**addresses: int) -> pa.Table:
    return pa.table({ID: pa.array(addresses, pa.string()), ROWADDR: pa.array(addresses.values(), pa.uint64())})


def prepared(
    rows: pa.Table, gone: pa.Table = NOTHING_REPLACED, mode: Mode = Mode.MERGE, table_key: str = PERSON
) -> PreparedRequest:
    header = SENDER.load_request([{"name": "x"}], type="Person").header
    resolution = Resolution({table_key: TableWrite(mode, rows, gone)}, Affected(nodes=rows.num_rows))
    return PreparedRequest(header, resolution, {table_key: VERSION})


def told(request: PreparedRequest, state: Held = STATE) -> OmnirayError | None:
    """What the client of a load is told when it has arrived and was judged; None if it may land."""
    try:
        arrived = decode_request(encode_request(request), SCHEMA, SENDER.schema_hash)
    except OmnirayError as error:
        return error
    round = judge_round([arrived], state, SCHEMA)
    if not round.answers:
        return None
    (answer,) = round.answers.values()
    assert isinstance(answer, OmnirayError)
    return answer


# The rows that it carries


def test_a_load_that_was_judged_well_may_land() -> None:
    assert told(prepared(people(bob=9, eve=None), replaced(bob=1))) is None
    assert told(prepared(people(eve=5), mode=Mode.APPEND)) is None
    assert told(prepared(people(ann=5), mode=Mode.OVERWRITE)) is None


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE, Mode.OVERWRITE])
def test_two_rows_of_one_id_can_not_land(mode: Mode) -> None:
    error = told(prepared(pa.concat_tables([people(eve=1), people(eve=2)]), mode=mode))
    assert isinstance(error, ConstraintViolation)
    assert "two rows of the id 'eve'" in str(error)


def test_a_value_beyond_its_range_can_not_land() -> None:
    error = told(prepared(people(eve=5, fay=151)))
    assert isinstance(error, RecordError)
    assert str(error).startswith(f"{PERSON} record 2: @range violation")


def test_an_id_that_its_key_does_not_make_can_not_land() -> None:
    error = told(prepared(people(eve=5).set_column(0, TYPE.arrow.field(ID), pa.array(["other"]))))
    assert isinstance(error, RecordError)
    assert "differs from 'eve'" in str(error)


@pytest.mark.parametrize("table_key", [PERSON, KNOWS])
def test_a_row_without_an_id_can_not_land(table_key: str) -> None:
    columns: dict[str, Any] = {PERSON: {ID: [None], "name": ["eve"], "age": [1]}, KNOWS: {ID: [None], "src": ["ann"]}}
    schema = SCHEMA.by_table_key[table_key].arrow
    rows = pa.Table.from_pylist([{name: values[0] for name, values in columns[table_key].items()}], schema)
    error = told(prepared(rows, mode=Mode.APPEND, table_key=table_key))
    assert isinstance(error, InputError)
    assert "without an id" in str(error)


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE])
def test_a_second_row_of_an_id_that_is_there_can_not_land(mode: Mode) -> None:
    error = told(prepared(people(bob=9), mode=mode))
    assert isinstance(error, KeyConflict)
    assert error.facts["key"] == "bob"


# The rows that it replaces


@pytest.mark.parametrize(
    "gone",
    [
        replaced(bob=2),  # the address of another row
        replaced(bob=1, eve=2),  # an id that is not there, under the address of one that is
        replaced(bob=1, eve=1 << 40),  # in a fragment that is not there
        replaced(bob=1, eve=1 << 63),  # as a row of the same round would have it
    ],
)
def test_rows_that_are_not_there_can_not_be_replaced(gone: pa.Table) -> None:
    error = told(prepared(people(bob=9), gone))
    assert isinstance(error, InputError)
    assert "are not those of the graph" in str(error)


def test_a_row_is_replaced_once() -> None:
    error = told(prepared(people(bob=9), pa.concat_tables([replaced(bob=1), replaced(bob=1)])))
    assert isinstance(error, ConstraintViolation)


def test_rows_of_an_empty_table_can_not_be_replaced() -> None:
    error = told(prepared(people(bob=9), replaced(bob=1)), Held(SCHEMA, {}, VERSION))
    assert isinstance(error, InputError)


def test_an_overwrite_names_no_rows_that_it_replaces() -> None:
    error = told(prepared(people(bob=9), replaced(bob=1), Mode.OVERWRITE))
    assert isinstance(error, InputError)


def test_many_rows_are_looked_up_in_several_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOKUP_IDS_MAX", 2)
    asked = STATE.asked
    assert told(prepared(people(ann=7, bob=8, cid=9, dan=1), replaced(cid=2, ann=0, bob=1))) is None
    assert STATE.asked == asked + 2
    assert told(prepared(people(ann=7, bob=8, cid=9), replaced(cid=1, ann=0, bob=2))) is not None
