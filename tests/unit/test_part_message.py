"""Parts of a load as messages: each kind arrives as it was made, and what arrives is checked against the schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from omniray.engine.base import errors
from omniray.engine.base.errors import GraphGone, InputError, NotFound, OmnirayError, RecordError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.keylog import KeyLog, PackedKeys
from omniray.engine.load_stager import LoadStager
from omniray.engine.rows.arrow_stream import encode_rows
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import Rejection, numbered
from omniray.engine.rows.source_files import find_file, proof_of
from omniray.engine.schema.parser import parse_schema
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.fragment_text import read_fragment
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import KeysInRows, Minted, Part
from omniray.engine.writes.part_message import decode_part, encode_part
from omniray.engine.writes.terms import WriteTerms
from omniray.workers import staging
from omniray.workers.staging import FileTerms
from tests.graphs import CITY, KNOWS, PERSON, SCHEMA, new_graph, opened
from tests.staged_fragments import FRAGMENT, fragment_json
from tests.stores import Root

_SCHEMA = parse_schema(SCHEMA)
_CITY, _KNOWS = _SCHEMA.by_table_key[CITY], _SCHEMA.by_table_key[KNOWS]
_STAGED = StagedRows((read_fragment(fragment_json(FRAGMENT)),), 2, 1_700_000_000_000_000)
_ROME = pa.table([["rome"], ["rome"]], schema=_CITY.arrow)


def _packed(mode: Mode = Mode.MERGE) -> PackedKeys:
    """The keys of one city in memory, and of two edges in a file; an id of them was not given."""
    edges = pa.table({"id": ["x", None], "src": ["a", "b"], "dst": ["b", "c"]})
    with KeyLog(_SCHEMA) as log:
        log.begin(_CITY, mode)
        log.add(_CITY, _ROME, numbered(7, 1), "a.csv")
        log.begin(_KNOWS, mode)
        log.add(_KNOWS, edges, numbered(1, 2), "b.csv")
        return log.packed()


_REJECTED = (
    Rejection("a.csv", 3, "no", "constraint", PERSON, "ann", {"name": "ann", "tags": ["a", None], "age": 2**70}),
    Rejection("a.csv", 4, "no"),
)
_LOGGED = Part({CITY: _ROME, KNOWS: _STAGED}, _packed(), _REJECTED)
_IN_ROWS = Part({KNOWS: _STAGED}, KeysInRows("partition 3", Minted(marks=b"\x80")), announced=(new_ulid(), new_ulid()))
_PARTS = {
    "keys logged": _LOGGED,
    "keys in staged rows": _IN_ROWS,
    "keys in rows that are sent": Part({CITY: _ROME}, KeysInRows("partition 3", Minted())),
    "all ids minted": Part({CITY: _ROME}, KeysInRows("partition 3", Minted(all=True))),
    "no rows": Part({CITY: _ROME.slice(0, 0)}, KeysInRows("partition 3", Minted())),
    "nothing": Part({}, PackedKeys((), {})),
}


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_arrives(name: str) -> None:
    assert decode_part(encode_part(_PARTS[name]), _SCHEMA) == _PARTS[name]


def test_the_values_of_a_rejected_record_arrive_as_a_file_of_rejects_shows_them() -> None:
    """Numbers may be too large for MessagePack, and values of any Python class."""
    rejection = Rejection("here", 1, "no", values={"a": 2**70, "b": date(2020, 1, 2), "c": b"x", "d": {1}, "e": None})
    arrived = decode_part(encode_part(Part({}, PackedKeys((), {}), (rejection,))), _SCHEMA)
    assert isinstance(arrived, Part)
    assert arrived.rejections[0].values == {"a": 2**70, "b": "2020-01-02", "c": "base64:eA==", "d": [1], "e": None}


def test_a_log_of_keys_that_is_more_than_a_stream_holds_arrives_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omniray.engine.rows.arrow_stream.PIECE_BYTES_MAX", 40)
    message = msgspec.msgpack.decode(encode_part(_LOGGED))
    assert len(message["keys"]["tables"][KNOWS]["keys"]) == 2
    assert decode_part(encode_part(_LOGGED), _SCHEMA) == _LOGGED


def test_every_class_of_errors_arrives_as_itself() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, OmnirayError)]
    assert len(classes) > 20
    for one in classes:
        arrived = decode_part(encode_part(errors.rebuilt(one, "x", {"record": 3})), _SCHEMA)
        assert type(arrived) is one
        assert (str(arrived), arrived.facts) == ("x", {"record": 3})


def test_a_part_that_a_worker_staged_is_committed_by_whom_it_reaches(disk: Root) -> None:
    rows = [{"name": f"p{n}", "age": n} for n in range(5)] + [{"name": "old", "age": "x"}]
    with new_graph(disk) as graph:
        stager = LoadStager(opened(open_store(graph.uri, graph.storage_options)))
        options = LoadOptions.checked("append", "reject", str(disk.uri) + "-rejects")
        arrived = decode_part(encode_part(stager.stage_part(rows, options, 0, type="Person")), graph.schema)
        assert isinstance(arrived, Part)
        assert (arrived.row_count, len(arrived.rejections), arrived.is_staged) == (5, 1, True)
        intent = graph.begin_load(options, WriteTerms(Author("test")))
        intent.take_parts(["Person"], [arrived])
        assert graph.commit_load(intent).rejected == 1
        assert graph.snapshot().count("Person") == 5


def test_a_worker_answers_with_a_message_whatever_becomes_of_its_part(disk: Root) -> None:
    with new_graph(disk) as graph:
        where = (graph.uri, None, graph.graph_id, graph.line)
        for record, expected in (('{"name": "ann"}', Part), ('{"name": null}', RecordError)):
            answer = staging._stage(where, _file_terms(disk, record))
            assert isinstance(answer, bytes)
            assert isinstance(decode_part(answer, graph.schema), expected)
    gone = decode_part(staging._stage((graph.uri, None, new_ulid(), ""), _file_terms(disk, "{}")), _SCHEMA)
    assert isinstance(gone, GraphGone)


def test_a_worker_stages_no_file_that_its_client_has_not_shown_to_be_able_to_read(disk: Root) -> None:
    """Whoever may ask for files of the workers' machine to be loaded could read all that they may."""
    with new_graph(disk) as graph:
        where = (graph.uri, None, graph.graph_id, graph.line)
        terms = _file_terms(disk, '{"name": "ann"}')
        os.mkfifo(f"{disk.uri}/pipe")  # to wait for it would take a worker for ever
        strange = [f"{disk.uri}/nothing.jsonl", f"{disk.uri}/pipe", "a\0b", "~nobody-of-that-name/x", "http://[x"]
        others = [replace(terms, source=source) for source in strange]
        for other in (replace(terms, proof="0" * 64), replace(terms, proof="é"), *others):
            refused = decode_part(staging._stage(where, other), graph.schema)
            assert isinstance(refused, NotFound)
            assert refused.facts["source"] == other.source, "so that the client stages it itself"
        Path(terms.source).write_text('{"name": "bob"}\n')
        assert isinstance(decode_part(staging._stage(where, terms), graph.schema), NotFound), "it is another file now"


def _file_terms(root: Root, record: str) -> FileTerms:
    path = Path(root.uri, "rows.jsonl")
    path.write_text(f"{record}\n")
    options = LoadOptions.checked("append", "fail", None)
    return FileTerms(str(path), proof_of(find_file(path)), options, 0, "Person", None)


# What arrives is checked


def _changed(part: Part, change: Callable[[dict[str, Any]], object]) -> None:
    message = msgspec.msgpack.decode(encode_part(part))
    change(message)
    decode_part(msgspec.msgpack.encode(message), _SCHEMA)


def test_a_message_of_an_unknown_version_is_refused_by_name() -> None:
    for other in ({"version": 9}, {"version": 9, "message": "later"}, {"version": 9, "keys": 3}):
        with pytest.raises(InputError, match="a message of version 9, and this omniray understands 1"):
            _changed(_IN_ROWS, lambda message, other=other: message.update(other))  # type: ignore[misc]


def _keys(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["keys"].update(fields)


def _logged(table_key: str, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["keys"]["tables"][table_key].update(fields)


def _log_of(**columns: list[Any]) -> list[bytes]:
    given = {"record": [7], "source": [0], "id": ["rome"], "u0": ["rome"]} | columns
    schema = pa.schema({"record": pa.int64(), "source": pa.int32(), "id": pa.string(), "u0": pa.string()})
    return [encode_rows(pa.table(given, schema=schema))]


def _staged(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["tables"][KNOWS].update(fields)


def _rejected(values: bytes) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["rejections"][0].__setitem__(-1, values)


_NULLS = encode_rows(pa.table([[None], ["rome"]], schema=_CITY.arrow))
_OUTSIDE = {**FRAGMENT, "files": [{**FRAGMENT["files"][0], "path": "../x.lance"}]}


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        (_LOGGED, lambda message: message["tables"].update({"node:X": b""}), "no table 'node:X'"),
        (_LOGGED, lambda message: message["tables"].update({CITY: b""}), "the rows of node:City: expected an Arrow"),
        (_LOGGED, lambda message: message["tables"].update({CITY: _NULLS}), "column 'id' has nulls"),
        (_LOGGED, lambda message: message["tables"].pop(CITY), "keys are not of the tables"),
        (_LOGGED, lambda message: message.update(announced=["../x"]), r"invalid id '\.\./x' of an announced operation"),
        (_LOGGED, _staged(rows=5), "hold 2 rows, and 5 are claimed"),
        (_LOGGED, _staged(since_us=-1), "can't be negative"),
        (_LOGGED, _staged(fragments=[fragment_json(_OUTSIDE)]), "named without a folder"),
        (_LOGGED, _keys(sources=[]), "a source that is not listed"),
        (_LOGGED, _logged(CITY, mode="delete"), "invalid mode 'delete'"),
        (_LOGGED, _logged(CITY, keys=[]), "1 rows of node:City, and the keys of 0"),
        (_LOGGED, _logged(CITY, keys=[encode_rows(_ROME)]), "the keys of node:City: expected the columns record"),
        (_LOGGED, _rejected(b"["), "values of a rejected record"),
        (
            _LOGGED,
            lambda message: message["rejections"][0].__setitem__(6, b'{"\xcc":1}'),
            "values of a rejected record",
        ),
        (_IN_ROWS, _keys(marks=b"\x80\x80"), "2 bytes of marks for 2 rows: must be 1"),
        (_IN_ROWS, lambda message: message["tables"].clear(), "of 0 tables: must be of one"),
        (_IN_ROWS, _keys(case="elsewhere"), "does not have the form"),
    ],
)
def test_a_part_of_another_form_is_refused(part: Part, change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _changed(part, change)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"source": [2]}, "not listed"),
        ({"source": [-1]}, "not listed"),
        ({"source": [None]}, "don't say where they come from"),
        ({"record": [None]}, "don't say where they come from"),
    ],
)
def test_keys_that_do_not_say_where_they_come_from_are_refused(columns: Mapping[str, list[Any]], reason: str) -> None:
    schema = parse_schema("node City { name: String @key @unique }")
    message = msgspec.msgpack.decode(encode_part(Part({CITY: _ROME}, PackedKeys((), {}))))
    logged = {"mode": "merge", "keys": _log_of(**columns)}
    message["keys"] = {"case": "packed", "sources": ["a", "b"], "tables": {CITY: logged}}
    with pytest.raises(InputError, match=reason):
        decode_part(msgspec.msgpack.encode(message), schema)
