"""Messages between a publisher and its table queues: each case arrives as it was sent, and no claim is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from omniray.coordinator.door.questions import Existing, Matching, Question, Scan, Select
from omniray.coordinator.door.queue_answers import (
    decode_dropped,
    decode_found,
    decode_staged,
    encode_dropped,
    encode_failed,
    encode_found,
    encode_staged,
)
from omniray.coordinator.door.queue_messages import ASKED_BYTES_MAX, READ
from omniray.coordinator.door.queue_requests import (
    decode_drop,
    decode_read,
    decode_stage,
    encode_drop,
    encode_read,
    encode_stage,
)
from omniray.engine.base.errors import InputError, KeyConflict, NotFound, StorageError
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.staging import Base, Cold, Staged, StagedPin, TableStage, Taken
from omniray.engine.commit.table_change import Adopt, Create, Restore, TableChange
from omniray.engine.judge.condition import COMPARISONS, Condition
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.judge.room import Room
from omniray.engine.line.commit_json import decode_pin, encode_pin
from omniray.engine.line.commit_object import Pin
from omniray.engine.line.sidecar import SidecarTable
from omniray.engine.rows.arrow_stream import encode_rows
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.engine.tables.fragment_text import read_fragment
from omniray.engine.tables.storage import NOTHING_REPLACED, EmptyVersion, StagedRows
from tests.graphs import CITY, PERSON
from tests.staged_fragments import FRAGMENT, fragment_json

_SCHEMA = parse_schema(
    """
node Person {
    name: String @key   age: I32?   height: F32?   wealth: U64?   tall: Bool?   born: Date?   seen: DateTime?
    mood: enum(good, bad)?   tags: [String]?   place: Vector(2)?   photo: Blob?
}
node City { name: String @key }
"""
)
_PERSON, _CITY = _SCHEMA.by_table_key[PERSON], _SCHEMA.by_table_key[CITY]
_LINE = new_ulid()
_PIN = Pin("person", "nodes/Person.lance", 41, "before", 7, "content", _LINE, 40)
_LATER = decode_pin(encode_pin(replace(_PIN, table_id="city", path="nodes/City.lance"))[:-1] + b',"colour":{"a":[1]}}')
_BASE = Base({PERSON: _PIN, CITY: _LATER}, _LINE, 40, 39)

# Asking


def _read(*questions: Question, base: Base = _BASE) -> tuple[Base, list[Question]]:
    return decode_read(encode_read(base, questions), _SCHEMA)


_VALUES: dict[str, list[Any]] = {
    "name": ["ann", "", "ß"],
    "age": [-1, 2**31 - 1],
    "height": [1.5, float("inf")],
    "wealth": [0, 2**64 - 1],
    "tall": [True, False],
    "born": [date(2020, 1, 2)],
    "seen": [datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC)],
    "mood": ["good"],
}


def _values(column: str) -> pa.Array:
    return pa.array(_VALUES[column], _PERSON.arrow.field(column).type)


@pytest.mark.parametrize(
    "question",
    [
        Existing(_PERSON, pa.array(["ann", "bob"])),
        Existing(_PERSON, pa.array([], pa.string())),
        *(Matching(_PERSON, column, _values(column), (ID, column)) for column in _VALUES),
        Scan(_PERSON, ("name", ID)),
        Scan(_PERSON, ()),
        *(Select(_PERSON, (ID,), Condition("age", one, pa.array([3], pa.int32())), Room()) for one in COMPARISONS),
        Select(_PERSON, (ID,), Condition("age", "=", pa.array([3], pa.int32())), Room(3, 500)),
        *(
            Select(_PERSON, tuple(_PERSON.arrow.names), Condition(column, "in", _values(column)), Room())
            for column in _VALUES
        ),
    ],
    ids=lambda question: f"{type(question).__name__} {getattr(question, 'column', '')}",
)
def test_a_question_arrives(question: Question) -> None:
    base, (arrived,) = _read(question)
    assert arrived == question
    assert base == replace(_BASE, pins={PERSON: _PIN})


def test_a_condition_arrives_as_the_same_expression() -> None:
    for comparison in ("<", ">="):
        where = Condition("height", comparison, pa.array([1.5], pa.float32()))
        _, (arrived,) = _read(Select(_PERSON, (ID,), where, Room()))
        assert isinstance(arrived, Select)
        assert arrived.where.expression.equals(where.expression)


def test_values_are_sent_in_the_type_of_their_column() -> None:
    """SQL gives times in a zone that is spelt otherwise."""
    moments = pa.array([datetime(2020, 1, 2, tzinfo=UTC)], pa.timestamp("us", "Etc/UTC"))
    _, (arrived,) = _read(Matching(_PERSON, "seen", moments, (ID,)))
    assert isinstance(arrived, Matching)
    assert arrived.values.type == _PERSON.arrow.field("seen").type


def test_only_the_pins_of_the_tables_that_are_asked_are_sent_with_what_a_later_omniray_added() -> None:
    base, _ = _read(Scan(_CITY, (ID,)))
    assert base == replace(_BASE, pins={CITY: _LATER})
    assert bytes(base.pins[CITY].later["colour"]) == b'{"a":[1]}'  # type: ignore[index]


def _rows(*names: str) -> pa.Table:
    return pa.table({ID: names, "name": names}, schema=_CITY.arrow)


def _replaced(*ids: str) -> pa.Table:
    return pa.table({ID: ids, ROWADDR: range(len(ids))}, schema=NOTHING_REPLACED.schema)


_FILES = StagedRows((read_fragment(fragment_json(FRAGMENT)),), 2, 1_700_000_000_000_000)
_EMPTY = EmptyVersion("first", {"nodes/City.lance/_transactions/0-first.txn": b"\x00\xff", "nodes/City.lance/m": b""})
_WRITES = [
    TableWrite(Mode.APPEND, _rows("rome"), NOTHING_REPLACED),
    TableWrite(Mode.MERGE, _rows("rome", "oslo"), _replaced("rome")),
    TableWrite(Mode.OVERWRITE, _rows(), NOTHING_REPLACED),
    TableWrite(Mode.DELETE, _rows(), _replaced("rome", "oslo")),
    TableWrite(Mode.APPEND, _FILES, NOTHING_REPLACED),
    TableWrite(Mode.OVERWRITE, StagedRows((), 0), NOTHING_REPLACED),
]
_CHANGES: list[TableChange] = [
    *_WRITES,
    Restore(replace(_LATER, version=12), 41),
    Adopt(42, "foreign", 9),
    Adopt(42, "", 9),
    Create("city", "nodes/City.lance", _EMPTY),
]


def _stage(change: TableChange, **announced: Any) -> TableStage:
    table = SidecarTable(CITY, "nodes/City.lance", 41, "own", ("a.lance",))
    return TableStage(replace(table, **announced), change)


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: type(change).__name__)
def test_a_stage_arrives(change: TableChange) -> None:
    sent = _stage(change)
    base, (arrived,) = decode_stage(encode_stage(_BASE, [sent]), _SCHEMA)
    assert arrived == sent
    assert base == replace(_BASE, pins={CITY: _LATER})


def test_a_table_that_is_created_has_no_version_before() -> None:
    sent = _stage(Create("city", "nodes/City.lance", _EMPTY))
    _, (arrived,) = decode_stage(encode_stage(replace(_BASE, pins={}), [sent]), _SCHEMA)
    assert arrived == sent


def test_rows_that_were_read_by_lance_are_replaced_like_others() -> None:
    """Their ids are marked as not nullable."""
    schema = pa.schema([pa.field(ID, pa.string(), nullable=False), pa.field(ROWADDR, pa.uint64())])
    read = pa.table([["rome"], pa.array([0], pa.uint64())], schema=schema)
    sent = _stage(TableWrite(Mode.DELETE, _rows(), read))
    _, (arrived,) = decode_stage(encode_stage(_BASE, [sent]), _SCHEMA)
    assert isinstance(arrived.change, TableWrite)
    assert arrived.change.replaced == _replaced("rome")


def test_the_numbers_of_rows_lie_where_lance_can_read_them() -> None:
    """It panics at others; where a stream begins in a message follows from the names before it."""
    for length in range(16):
        write = _stage(TableWrite(Mode.DELETE, _rows(), _replaced("rome")), transaction_uuid="x" * length)
        _, (arrived,) = decode_stage(encode_stage(_BASE, [write]), _SCHEMA)
        assert isinstance(arrived.change, TableWrite)
        (addresses,) = arrived.change.replaced[ROWADDR].chunks
        assert addresses.buffers()[1].address % 8 == 0


def test_what_is_dropped_arrives() -> None:
    assert decode_drop(encode_drop(_LINE, [CITY, PERSON]), _SCHEMA) == [CITY, PERSON]


# Answering


def _found(question: Question, rows: pa.Table) -> pa.Table:
    found = decode_found(encode_found([question, question], [rows, rows]), [question, question])
    assert isinstance(found, list)
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("names", [(), ("ann",), ("ann", "bob")])
def test_rows_that_were_found_arrive(names: tuple[str, ...]) -> None:
    addresses = pa.array(range(len(names)), pa.uint64())
    located = pa.table({ID: pa.array(names, pa.string()), ROWADDR: addresses})
    every = pa.table({ID: located[ID], "name": located[ID]})
    assert _found(Existing(_CITY, pa.array([], pa.string())), located.select([ID])).to_pydict() == {ID: list(names)}
    for question in (Matching(_CITY, ID, pa.array([], pa.string()), (ID,)), Scan(_CITY, (ID,))):
        assert _found(question, located).to_pydict() == located.to_pydict()
    selected = _found(Select(_CITY, (ID, "name"), Condition(ID, "!=", pa.array(["x"])), Room()), every)
    assert selected.to_pydict() == every.to_pydict()
    assert selected.schema == _CITY.arrow, "rows of the table, to which others can be added"


def test_rows_that_are_more_than_a_stream_holds_arrive_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omniray.engine.rows.arrow_stream.PIECE_BYTES_MAX", 1_000)
    scan = Scan(_CITY, (ID,))
    rows = pa.table({ID: [f"{n:04}" for n in range(999)], ROWADDR: pa.array(range(999), pa.uint64())})
    message = msgspec.msgpack.decode(encode_found([scan], [rows]))
    assert len(message["rows"][0]) > 8
    assert _found(scan, rows).to_pydict() == rows.to_pydict()


_WRITE = _stage(_WRITES[0])
_STAGED_PIN = replace(_LATER, version=42, transaction="own", rows=8, content="own")


@pytest.mark.parametrize(
    "staged",
    [
        StagedPin(_STAGED_PIN, ("nodes/City.lance/data/a.lance", "nodes/City.lance/_staged/own/1.manifest")),
        StagedPin(_STAGED_PIN, ()),
        Taken(CITY, 42, 43),
        Taken(CITY, 42),
    ],
)
def test_what_became_of_a_stage_arrives(staged: Staged) -> None:
    assert decode_staged(encode_staged([staged]), _BASE, [_WRITE]) == [staged]


@pytest.mark.parametrize("error", [StorageError("full", path="x"), Cold("gone"), KeyConflict(CITY, "rome")])
def test_an_error_arrives_as_itself_for_one_stage_and_for_a_whole_message(error: StorageError) -> None:
    (staged,) = decode_staged(encode_staged([error]), _BASE, [_WRITE])  # type: ignore[misc]
    failed = encode_failed(error)
    others = (decode_staged(failed, _BASE, [_WRITE]), decode_found(failed, []), decode_dropped(failed))
    for arrived in (staged, *others):
        assert type(arrived) is type(error)
        assert (str(arrived), arrived.facts) == (str(error), error.facts)


def test_a_fact_may_have_any_name() -> None:
    message = msgspec.msgpack.decode(encode_failed(StorageError("full")))
    message["error"]["facts"] = {"message": 1, "self": 2}
    arrived = decode_dropped(msgspec.msgpack.encode(message))
    assert isinstance(arrived, StorageError)
    assert (str(arrived), arrived.facts) == ("full", {"message": 1, "self": 2})


def test_that_tables_were_dropped_arrives() -> None:
    assert decode_dropped(encode_dropped()) is None


# What arrives is not believed

_ASKED: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any]]] = {
    "read": (lambda: encode_read(_BASE, [Scan(_CITY, (ID,))]), lambda data: decode_read(data, _SCHEMA)),
    "stage": (lambda: encode_stage(_BASE, [_WRITE]), lambda data: decode_stage(data, _SCHEMA)),
    "drop": (lambda: encode_drop(_LINE, [CITY]), lambda data: decode_drop(data, _SCHEMA)),
    "found": (lambda: encode_found([], []), lambda data: decode_found(data, [])),
    "staged": (lambda: encode_staged([Taken(CITY, 1)]), lambda data: decode_staged(data, _BASE, [_WRITE])),
    "dropped": (encode_dropped, decode_dropped),
    "failed": (lambda: encode_failed(StorageError("x")), decode_dropped),
}


@pytest.mark.parametrize("name", _ASKED)
def test_a_message_of_an_unknown_version_is_refused_by_name(name: str) -> None:
    encode, decode = _ASKED[name]
    message = msgspec.msgpack.decode(encode())
    for other in ({"version": 9}, {"version": 9, "message": "later"}):
        with pytest.raises(InputError, match="a message of version 9, and this omniray understands 1"):
            decode(msgspec.msgpack.encode(message | other))
    for wrong in ({"version": "1"}, {"message": "later"}):
        with pytest.raises(InputError, match="does not have the form of version 1"):
            decode(msgspec.msgpack.encode(message | wrong))


@pytest.mark.parametrize("name", _ASKED)
def test_a_message_that_says_no_version_is_of_the_first(name: str) -> None:
    encode, decode = _ASKED[name]
    message = msgspec.msgpack.decode(encode())
    assert message.pop("version") == 1
    decode(msgspec.msgpack.encode(message))


def test_a_message_that_is_too_large_is_neither_sent_nor_read() -> None:
    with pytest.raises(InputError, match=f"at most {ASKED_BYTES_MAX} are taken"):
        READ.decode(memoryview(bytearray(ASKED_BYTES_MAX + 1)))  # type: ignore[arg-type]


def _with_read(question: Question, change: Callable[[dict[str, Any]], object]) -> None:
    message = msgspec.msgpack.decode(encode_read(_BASE, [question]))
    change(message)
    decode_read(msgspec.msgpack.encode(message), _SCHEMA)


def _asking(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["questions"][0].update(fields)


_SELECT = Select(_PERSON, (ID,), Condition("age", "<", pa.array([3], pa.int32())), Room())
_NUMBERS = encode_rows(pa.table({"value": pa.array([1, 2], pa.int32())}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_asking(table_key="node:Nobody"), "no table 'node:Nobody'"),
        (_asking(table_key=CITY), "does not say on which version"),
        (_asking(columns=["x"]), "has no column 'x'"),
        (_asking(columns=[ID, ID]), "asked for twice"),
        (_asking(column="x"), "has no column 'x'"),
        (_asking(column="name"), "the values of node:Person.name: expected the columns value: string"),
        (_asking(comparison="like"), "invalid comparison 'like'"),
        (_asking(values=_NUMBERS), "is asked of 2 values"),
        (_asking(values=_NUMBERS[:-9]), "expected an Arrow stream"),
        (lambda message: message["base"].update(pins={}), "does not say on which version"),
        (lambda message: message["base"]["pins"].update({"node:Nobody": b"{}"}), "no table 'node:Nobody'"),
        (lambda message: message["base"]["pins"].update({PERSON: b"{}"}), "the version of node:Person can't be read"),
        (lambda message: message["base"]["pins"].update({PERSON: b"[" * 9_999}), "the version of node:Person can't"),
    ],
)
def test_a_question_of_another_form_is_refused(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _with_read(_SELECT, change)


def _with_stage(sent: TableChange, change: Callable[[dict[str, Any]], object]) -> None:
    message = msgspec.msgpack.decode(encode_stage(_BASE, [_stage(sent)]))
    change(message["stages"][0])
    decode_stage(msgspec.msgpack.encode(message), _SCHEMA)


def _changing(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda stage: stage["change"].update(fields)


_NULLS = pa.table({ID: ["a"], "name": [None]}, schema=_CITY.arrow)
_NOT_ALL = pa.table({ID: ["a"], ROWADDR: [None]}, schema=NOTHING_REPLACED.schema)
_FILE = "nodes/City.lance/../x"


@pytest.mark.parametrize(
    ("sent", "change", "reason"),
    [
        (_WRITES[0], lambda stage: stage["announced"].update(table_key="node:X"), "no table 'node:X'"),
        (_WRITES[0], lambda stage: stage["announced"].update(table_key=PERSON), "does not say on which version"),
        (_WRITES[0], lambda stage: stage["announced"].update(table_path="nodes/X"), "is announced at 'nodes/X'"),
        (_WRITES[0], _changing(mode="x"), "invalid mode 'x'"),
        (_WRITES[0], _changing(rows=encode_rows(_rows("a").select([ID]))), "expected the columns id: string"),
        (_WRITES[0], _changing(rows=encode_rows(_NULLS)), "the rows of node:City: column 'name' has nulls"),
        (_WRITES[0], _changing(replaced=encode_rows(_rows("a"))), "the replaced rows of node:City: expected"),
        (_WRITES[0], _changing(replaced=encode_rows(_NOT_ALL)), "the replaced rows of node:City have nulls"),
        (_WRITES[4], _changing(staged_rows=5), "hold 2 rows, and 5 are claimed"),
        (_WRITES[4], _changing(staged_since_us=-5), "can't be negative"),
        (_WRITES[4], _changing(fragments=["{}"]), "a staged fragment of node:City"),
        (Restore(_PIN, 1), _changing(source=b"x"), "the version of node:City can't be read"),
        (Create("c", "nodes/City.lance", _EMPTY), _changing(path="x"), "is announced at"),
        (Create("c", "nodes/City.lance", _EMPTY), _changing(files={_FILE: b""}), "is not a file of the table"),
        (Create("c", "nodes/City.lance", _EMPTY), _changing(files={"/etc/x": b""}), "is not a file of the table"),
        (Adopt(1, "", 1), _changing(case="explode"), "does not have the form"),
    ],
)
def test_a_stage_of_another_form_is_refused(
    sent: TableChange, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        _with_stage(sent, change)


def test_an_unknown_table_is_not_dropped() -> None:
    with pytest.raises(NotFound, match="node:X"):
        decode_drop(encode_drop(_LINE, ["node:X"]), _SCHEMA)


def test_answers_that_are_not_as_many_as_the_questions_are_refused() -> None:
    scan = Scan(_CITY, (ID,))
    with pytest.raises(InputError, match="0 answers to 1 questions"):
        decode_found(encode_found([], []), [scan])
    with pytest.raises(InputError, match="2 answers to 1 questions"):
        decode_staged(encode_staged([Taken(CITY, 1), Taken(CITY, 1)]), _BASE, [_WRITE])


def test_rows_with_other_columns_than_were_asked_for_are_no_answer() -> None:
    rows = pa.table({ID: ["a"], "name": ["a"]})
    answer = encode_found([Select(_CITY, (ID, "name"), Condition(ID, "!=", pa.array(["x"])), Room())], [rows])
    with pytest.raises(InputError, match="in node:City: expected the columns id: string not null, _rowaddr"):
        decode_found(answer, [Scan(_CITY, (ID,))])


@pytest.mark.parametrize(
    "staged",
    [
        StagedPin(replace(_STAGED_PIN, transaction="another"), ()),
        StagedPin(replace(_STAGED_PIN, path="nodes/Person.lance"), ()),
        StagedPin(replace(_STAGED_PIN, table_id="person"), ()),
        StagedPin(_STAGED_PIN, ("nodes/Person.lance/data/a.lance",)),
        StagedPin(_STAGED_PIN, ("nodes/City.lance/../../x",)),
        StagedPin(_STAGED_PIN, ("nodes/City.lance/",)),
    ],
)
def test_a_version_that_is_not_of_this_table_and_attempt_was_not_staged(staged: Staged) -> None:
    """The attempt pins it, and deletes its files if it fails."""
    with pytest.raises(InputError, match=r"not of this table|not a file of the table"):
        decode_staged(encode_staged([staged]), _BASE, [_WRITE])
