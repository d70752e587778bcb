"""Messages: what is sent arrives, weighs no more than its own rows, and is believed in nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from omniray.coordinator.door.answers import decode_reply, encode_reply
from omniray.coordinator.door.requests import RECORD, SOURCE, decode_request, encode_request
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base import errors
from omniray.engine.base.errors import ExpectedVersionMismatch, InputError, OmnirayError
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite, WriteResult
from omniray.engine.judge.verdict import Violation
from omniray.engine.rows.arrow_stream import decode_rows, encode_rows
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.tables.storage import NOTHING_REPLACED
from omniray.engine.writes.write_requests import LoadRequest, MutationRequest, PreparedRequest, Request
from tests.coordination import Sender
from tests.graphs import AGE, SCHEMA
from tests.staged_fragments import FRAGMENT, fragment_json

_SCHEMA = parse_schema(SCHEMA)
_SENDER = Sender(_SCHEMA)
_PEOPLE = [{"name": "ann", "age": 1}, {"name": "bob", "age": None}]


def _arrived(request: Request) -> Any:
    return decode_request(encode_request(request), _SCHEMA, _SENDER.schema_hash)


def _changed(request: Request, change: Callable[[dict[str, Any]], object]) -> Any:
    """The request as it arrives after something has been changed in its message."""
    message = msgspec.msgpack.decode(encode_request(request))
    change(message)
    return decode_request(msgspec.msgpack.encode(message), _SCHEMA, _SENDER.schema_hash)


def _load() -> LoadRequest:
    return _SENDER.load_request(_PEOPLE, type="Person")


def _prepared(**given: Any) -> PreparedRequest:
    load = _load()
    rows = load.tables["node:Person"]
    resolution = Resolution({"node:Person": TableWrite(Mode.APPEND, rows, NOTHING_REPLACED)}, Affected(2, 0))
    return PreparedRequest(load.header, **{"resolution": resolution, "judged_on": {"node:Person": 3}, **given})


# What is sent arrives


def test_a_load_arrives_with_its_rows_and_keys() -> None:
    sent = _load()
    arrived = _arrived(sent)
    assert (arrived.header, arrived.options, arrived.rejected) == (sent.header, sent.options, sent.rejected)
    assert arrived.keys == sent.keys
    assert arrived.tables == sent.tables


def test_ids_that_are_to_be_new_are_made_by_the_receiver() -> None:
    new, named = {"edge": "Knows", "from": "a", "to": "b"}, {"edge": "Knows", "id": "k", "from": "b", "to": "a"}
    sent = _SENDER.load_request([new, named])
    first, again = _arrived(sent), _arrived(sent)
    ids, others = (one.tables["edge:Knows"]["id"].to_pylist() for one in (first, again))
    assert first.keys == sent.keys
    assert first.keys.tables["edge:Knows"][1]["id"].to_pylist() == [None, "k"]
    assert ids[1] == others[1] == "k"
    assert len({ids[0], others[0], sent.tables["edge:Knows"]["id"][0].as_py()}) == 3


def test_a_load_of_no_rows_arrives() -> None:
    sent = _SENDER.load_request(pa.table({"name": pa.array([], pa.string())}), mode="overwrite", type="Person")
    assert _arrived(sent).keys == sent.keys


def test_a_mutation_arrives_with_its_parameters_and_its_size() -> None:
    params = {"a": 1, "b": None, "c": [1.5], "d": b"x", "e": np.int64(3), "f": datetime(2026, 1, 2, tzinfo=UTC)}
    given = params | {"g": date(2026, 1, 2), "x": "y" * 5000}
    sent = replace(_SENDER.mutation(AGE, {"name": "ann", "age": 1}), params=given)
    arrived = _arrived(sent)
    assert isinstance(arrived, MutationRequest)
    assert arrived.params == params | {"e": 3, "g": "2026-01-02", "x": "y" * 5000}
    assert (arrived.header, arrived.text, arrived.name, arrived.now) == (sent.header, sent.text, sent.name, sent.now)
    assert arrived.size_bytes > 5000


def test_a_prepared_load_arrives() -> None:
    sent = _prepared()
    arrived = _arrived(sent)
    assert replace(arrived, size_bytes=0) == sent


def test_a_prepared_load_that_replaces_rows_read_by_lance_arrives() -> None:
    """Their ids are marked as not nullable; a table of moderate size knows its ids without reading them."""
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("_rowaddr", pa.uint64())])
    read = pa.table([["ann"], pa.array([0], pa.uint64())], schema=schema)
    write = TableWrite(Mode.MERGE, _load().tables["node:Person"], read)
    arrived = _arrived(_prepared(resolution=Resolution({"node:Person": write}, Affected(1, 0))))
    assert arrived.resolution.tables["node:Person"].replaced.to_pydict() == {"id": ["ann"], "_rowaddr": [0]}


def test_a_load_for_another_schema_arrives_without_rows_and_keeps_its_name() -> None:
    sent = _load()
    arrived = decode_request(encode_request(sent), parse_schema("node Other { a: String }"), "other")
    assert arrived.header == sent.header
    assert arrived.touched == frozenset()


def test_an_answer_arrives() -> None:
    unfit = (Violation("node:Person", 1, 2, "a.csv", "constraint", "no", "k"),)
    answer = WriteAnswer(WriteResult("id", 1, 2, 3, versions={"node:Person": 4}, repeated=True), unfit)
    assert decode_reply(encode_reply(answer)) == answer


def test_an_error_arrives_with_its_facts() -> None:
    arrived = decode_reply(encode_reply(ExpectedVersionMismatch("node:Person", 1, 2)))
    assert isinstance(arrived, ExpectedVersionMismatch)
    assert arrived.facts == {"table_key": "node:Person", "expected": 1, "actual": 2}


def test_every_class_of_errors_arrives_as_itself() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, OmnirayError)]
    assert len(classes) > 20
    for one in classes:
        assert type(decode_reply(encode_reply(errors.rebuilt(one, "x", {})))) is one


def test_a_slice_travels_without_the_table_that_it_is_a_slice_of() -> None:
    large = pa.table({"id": [f"{number:010}" for number in range(100_000)]})
    piece = large.slice(50_000, 10)
    assert len(encode_rows(piece)) < 2_000
    assert decode_rows(encode_rows(piece), piece.schema, "rows") == piece


# What arrives is not believed


def test_a_message_of_an_unknown_version_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="message of version 9"):
        _changed(_load(), lambda message: message.update(version=9))
    with pytest.raises(InputError, match="message of version 9"):
        _changed(_load(), lambda message: message.update(version=9, head=7))


def _head(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["head"].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.pop("head"),
        lambda message: message.update(message="other"),
        lambda message: message.update(mode="delete"),
        lambda message: message.update(on_error="ignore"),
        lambda message: message.update(rejected=-1),
        lambda message: message.update(sources=[]),
        lambda message: message.update(tables={"node:Nobody": b""}),
        lambda message: message.update(tables={"node:Person": b""}),
        lambda message: message.update(tables={"node:Person": b"\x00" * 1000}),
        lambda message: message.update(tables={"node:Person": encode_rows(pa.table({"id": ["a"]}))}),
        _head(commit_id="a"),
        _head(commit_id="../../../../../../../../../x"),
        _head(kind="Repair"),
        _head(actor="a\nb"),
        _head(tenant="x" * 300),
        _head(payload_hash="x" * 300),
        _head(expected_versions={str(n): n for n in range(100)}),
        _head(fresh="yes"),
    ],
)
def test_a_load_of_another_form_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(InputError):
        _changed(_load(), change)


def _rows(**columns: Any) -> pa.Table:
    whole = decode_rows(*_sent_person())
    for name, values in columns.items():
        place = whole.schema.get_field_index(name)
        whole = whole.set_column(place, whole.schema.field(name), pa.array(values, whole.schema.field(name).type))
    return whole


def _sent_person() -> tuple[bytes, pa.Schema, str]:
    message = msgspec.msgpack.decode(encode_request(_load()))
    arrow = _SCHEMA.type("Person").arrow
    schema = arrow.append(pa.field(RECORD, pa.int64())).append(pa.field(SOURCE, pa.int32()))
    return message["tables"]["node:Person"], schema, "rows"


@pytest.mark.parametrize(
    "rows",
    [{SOURCE: [0, 7]}, {SOURCE: [-1, 0]}, {SOURCE: [None, 0]}, {RECORD: [None, 0]}],
    ids=["a source not listed", "negative", "no source", "no record"],
)
def test_rows_that_do_not_say_where_they_come_from_are_refused(rows: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="rows of node:Person"):
        _changed(_load(), lambda message: message["tables"].update({"node:Person": encode_rows(_rows(**rows))}))


def test_compressed_rows_are_refused_before_they_are_decoded() -> None:
    table = pa.table({"id": ["x" * 1000] * 1000})
    for codec in ("zstd", "lz4"):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table)
        with pytest.raises(InputError, match="compressed"):
            decode_rows(sink.getvalue().to_pybytes(), table.schema, "rows")


@pytest.mark.parametrize("type", [0, 2, 3, 4, 5])
def test_a_stream_that_does_not_begin_with_a_schema_is_refused(type: int) -> None:
    """PyArrow reads whatever comes first as a schema: of another type, or of none, it ends the process."""
    table = pa.table({"id": ["a", "b"]})
    stream = bytearray(encode_rows(table))
    place = stream.index(b"\x00\x01\x04\x00") + 1  # the type of the first message, and its version
    stream[place] = type
    with pytest.raises(InputError, match="rows: expected an Arrow stream"):
        decode_rows(bytes(stream), table.schema, "rows")


def test_several_batches_and_truncated_streams_are_refused() -> None:
    table = pa.table({"id": ["a", "b"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table)
    with pytest.raises(InputError, match="a single batch"):
        decode_rows(sink.getvalue().to_pybytes(), table.schema, "rows")
    with pytest.raises(InputError, match="expected an Arrow stream"):
        decode_rows(encode_rows(table)[:-120], table.schema, "rows")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: message.update(judged_on={}), "on which version"),
        (lambda message: message.update(read_strictly=["edge:Knows"]), "on which version"),
        (lambda message: message.update(judged_on={"node:Person": 3, "node:X": 1}), "no table"),
        (lambda message: message.update(affected_nodes=-1), "negative"),
        (lambda message: message["tables"]["node:Person"].update(replaced=b""), "Arrow stream"),
        (lambda message: message["tables"]["node:Person"].update(mode="delete"), "invalid mode"),
    ],
)
def test_a_prepared_load_of_another_form_is_refused(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _changed(_prepared(), change)


def _with_fragment(fragment: Mapping[str, Any], rows: int = 2) -> Any:
    def change(message: dict[str, Any]) -> None:
        staged = {"fragments": [fragment_json(fragment)], "staged_rows": rows}
        message["tables"]["node:Person"].update(rows=None, **staged)

    return _changed(_prepared(), change)


def test_staged_files_arrive_by_their_bare_names() -> None:
    arrived = _with_fragment(FRAGMENT)
    assert arrived.resolution.tables["node:Person"].rows.files == ("a.lance",)


@pytest.mark.parametrize(
    "fragment",
    [
        {**FRAGMENT, "files": [{**FRAGMENT["files"][0], "path": "../../x.lance"}]},  # type: ignore[index,dict-item]
        {**FRAGMENT, "files": [{**FRAGMENT["files"][0], "path": "/etc/passwd"}]},  # type: ignore[index,dict-item]
        {**FRAGMENT, "files": [{**FRAGMENT["files"][0], "base_id": 1}]},  # type: ignore[index,dict-item]
        {**FRAGMENT, "files": []},
        {**FRAGMENT, "physical_rows": -2},
        {**FRAGMENT, "deletion_file": {"read_version": 1, "id": 1, "file_type": "array", "num_deleted_rows": 1}},
        {"files": 3},
    ],
)
def test_a_file_that_is_not_the_loads_own_is_refused(fragment: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="node:Person"):
        _with_fragment(fragment)


def test_staged_rows_are_counted() -> None:
    with pytest.raises(InputError, match="hold 2 rows, and 5 are claimed"):
        _with_fragment(FRAGMENT, rows=5)
