from __future__ import annotations

import gc
import json
import os
import tracemalloc
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omniray.engine.base.errors import InputError, NotFound, RecordError
from omniray.engine.rows.records import BLOCK_BYTES_TARGET, BLOCK_ROWS_MAX, Rejection
from omniray.engine.rows.rejects import RejectFile
from omniray.engine.rows.row_validation import conform_block
from omniray.engine.rows.source_files import LINE_BYTES_MAX
from omniray.engine.rows.sources import Source, open_source
from omniray.engine.schema.types import EdgeType, Key, NodeType, Property, Scalar, ScalarType, Schema, VectorType


def scalar(name: str, of: str, *, nullable: bool = True) -> Property:
    return Property(name, ScalarType(Scalar(of)), nullable)


_PERSON = (scalar("name", "String", nullable=False), scalar("age", "I32"), scalar("city", "String"))
PERSON = NodeType("Person", _PERSON, _PERSON, constraints=(Key(("name",)),))
_NOTE = (scalar("text", "String", nullable=False), Property("at", VectorType(2), nullable=True))
NOTE = NodeType("Note", _NOTE, _NOTE)
KNOWS = EdgeType("Knows", "Person", "Person", (scalar("since", "Date"),))
SCHEMA = Schema((PERSON, NOTE), (KNOWS,))


def read(source: Any, **options: Any) -> tuple[dict[str, list[dict]], list[str]]:
    """Everything a source gives: the rows that fit, by type and without what is null, and the refusals as text."""
    opened = source if isinstance(source, Source) else open_source(source, SCHEMA, **options)
    rows: dict[str, list[dict]] = {}
    refusals: list[str] = []
    for block in opened:
        batches, rejections = conform_block(block)
        refusals += map(str, rejections)
        for batch in batches:
            given = [{k: v for k, v in row.items() if v is not None} for row in batch.rows.to_pylist()]
            rows.setdefault(batch.type.name, []).extend(given)
    return rows, refusals


def write(path: Path, *lines: Any) -> Path:
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


FORMS = '{"type": …, "data": {…}} or {"edge": …, "from": …, "to": …, "data": {…}}'
EXPECTED = f"{FORMS}, or plain rows and their type with type= (--type)"
ENDS_STAND = "its ends are 'from' and 'to', given once each, beside 'data' and not in it"

ANN = {"name": "Ann", "age": 5}
ANN_ROW = {"id": "Ann", **ANN}


def test_jsonl_gives_nodes_and_edges_of_several_types(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.jsonl",
        {"type": "Person", "data": ANN},
        b"",
        b"  \t\r",
        {"edge": "Knows", "from": "Ann", "to": "Bob", "data": {"since": "2024-01-01", "id": "e1"}},
        {"type": "Note", "id": "n1", "data": {"text": "", "at": [1, 2.5]}},
        {"edge": "Knows", "from": "Bob", "to": "Ann"},
        {"data": {"name": "Bob", "id": "Bob"}, "type": "Person"},
    )
    rows, refusals = read(path)
    assert refusals == []
    assert rows == {
        "Person": [ANN_ROW, {"id": "Bob", "name": "Bob"}],
        "Knows": [{"id": "e1", "src": "Ann", "dst": "Bob", "since": date(2024, 1, 1)}, {"src": "Bob", "dst": "Ann"}],
        "Note": [{"id": "n1", "text": "", "at": [1.0, 2.5]}],
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"type": "Person", "data": {', "not a record: Input data was truncated"),
        (b"[1]", "not a record: Expected `object`, got `array`"),
        (b"nonsense", "not a record: JSON is malformed"),
        (b"[" * 100_000, "not a record: "),
        ({"type": "Person", "data": ANN, "extra": 1}, "not a record: Object contains unknown field `extra`"),
        ({"type": "Person", "data": [1]}, "not a record: Expected `object`, got `array` - at `$.data`"),
        ({"type": 5}, "not a record: Expected `str | null`, got `int` - at `$.type`"),
        ({"data": {}}, f"not a record: it names no type; give {EXPECTED}"),
        ({"name": "Z"}, f"not a record: Object contains unknown field `name`; give one object per line: {EXPECTED}"),
        ({"type": "Person", "name": "Z"}, "not a record: Object contains unknown field `name`; give one object per"),
        ([{"name": "Z"}], f"not a record: Expected `object`, got `array`; give one object per line: {EXPECTED}"),
        (b"[", f"not a record: Expected `object`, got `array`; give one object per line: {EXPECTED}"),
        (b"{", f"not a record: Input data was truncated; give one object per line: {EXPECTED}"),
        ({"type": "Person", "edge": "Knows"}, "not a record: it has both 'type' and 'edge'; give "),
        ({"type": "Persn"}, "no node type 'Persn'; did you mean 'Person'?"),
        ({"type": "Knows"}, "no node type 'Knows'; there are Person, Note"),
        ({"edge": "Knws", "from": "a", "to": "b"}, "no edge type 'Knws'; did you mean 'Knows'?"),
        ({"type": "Person", "data": {"name": "Z", "agee": 1}}, "Person has no property 'agee'; did you mean 'age'?"),
        ({"type": "Person", "data": {"name": "Z", "agee": None}}, "Person has no property 'agee'"),
        ({"type": "Person", "from": "a", "data": {"name": "Z"}}, "a node has no ends: Person is given 'from' or 'to'"),
        ({"type": "Note", "id": "a", "data": {"text": "x", "id": "b"}}, "the id is given twice"),
        ({"edge": "Knows", "data": {"from": "a", "to": "b"}}, f"Knows has no property 'from': {ENDS_STAND}"),
        ({"edge": "Knows", "from": "a", "to": "b", "data": {"src": "c"}}, f"Knows has no property 'src': {ENDS_STAND}"),
        ({"edge": "Knows", "from": "a"}, "null value for Knows.to which is required"),
        (b'{"type": "Person", "data": {"name": "\xff"}}', "not UTF-8: byte 0xff at position 38 of the line"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_bad_line_is_refused_by_its_number_and_the_lines_around_it_stay(
    tmp_path: Path, line: Any, reason: str
) -> None:
    path = write(
        tmp_path / "p.jsonl", {"type": "Person", "data": ANN}, line, {"type": "Person", "data": {"name": "Bob"}}
    )
    rows, refusals = read(path)
    assert rows == {"Person": [ANN_ROW, {"id": "Bob", "name": "Bob"}]}
    assert len(refusals) == 1
    assert refusals[0].startswith(f"{path} line 2: {reason}")


def test_a_line_of_a_hundred_megabytes_is_refused_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"type": "Person", "data": {"name": "Ann"}}\n{"type": "')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n{"type": "Person", "data": {"name": "Bob"}}')
    gc.collect()
    tracemalloc.start()
    rows, refusals = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusals == [f"{path} line 2: the line is longer than 32 MiB"]
    assert [row["id"] for row in rows["Person"]] == ["Ann", "Bob"]
    assert peak < 2 * (LINE_BYTES_MAX + 2 * BLOCK_BYTES_TARGET)


def test_a_line_over_the_limit_is_refused_even_if_it_is_a_record(tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", b'{"type": "Note", "data": {"text": "' + b"x" * LINE_BYTES_MAX + b'"}}')
    assert read(path) == ({}, [f"{path} line 1: the line is longer than 32 MiB"])


def test_lines_are_numbered_through_all_blocks(tmp_path: Path) -> None:
    count = BLOCK_ROWS_MAX + 10
    path = tmp_path / "many.jsonl"
    path.write_bytes(b'{"type":"Note","data":{"text":"x"}}\n' * count + b"oops\n")
    blocks = list(open_source(path, SCHEMA))
    assert len(blocks) > 1
    assert all(len(batch.records) <= BLOCK_ROWS_MAX for block in blocks for batch in block.batches)
    numbers = [n for block in blocks for batch in block.batches for n in batch.records.to_pylist()]
    assert numbers == list(range(1, count + 1))
    assert blocks[-1].rejections[0].record == count + 1


def test_a_line_across_two_reads_and_a_mark_at_the_beginning_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    text = "y" * (BLOCK_BYTES_TARGET - 60)
    first, second = ({"type": "Note", "data": {"text": t}} for t in (text, "é" * 100))
    encoded = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(r, ensure_ascii=False).encode() for r in (first, second))
    path.write_bytes(encoded)
    assert len(encoded) > BLOCK_BYTES_TARGET
    assert read(path) == ({"Note": [{"text": text}, {"text": "é" * 100}]}, [])


def test_with_a_type_lines_and_dicts_are_plain_properties(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", ANN, {"name": "Bob", "type": "x"}, b"[]")
    rows, refusals = read(path, type_name="Person")
    assert rows == {"Person": [ANN_ROW]}
    assert [r.partition(": ")[2][:32] for r in refusals] == [
        "Person has no property 'type'; t",
        "not a record: Expected `object`,",
    ]
    assert read([ANN], type_name="Person") == ({"Person": [ANN_ROW]}, [])
    assert read([{"from": "a", "to": "b"}], type_name="Knows") == ({"Knows": [{"src": "a", "dst": "b"}]}, [])


def test_with_a_type_a_record_that_says_its_own_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", ANN, {"type": "Person", "data": {"name": "Bob"}}, {"edge": "Knows", "from": "a"})
    rows, refusals = read(path, type_name="Person")
    assert rows == {"Person": [ANN_ROW]}
    reason = "a record that says its type, where type= (--type) asks for plain rows of Person; leave that out"
    assert refusals == [f"{path} line 2: {reason}", f"{path} line 3: {reason}"]


def test_a_plain_row_may_have_a_property_called_type() -> None:
    properties = (scalar("type", "String"),)
    schema = Schema((NodeType("Thing", properties, properties),), ())
    (_, block) = open_source([{"id": "a", "type": "x"}, {"edge": "y"}], schema, type_name="Thing")
    assert [rejection.record for rejection in block.rejections] == [2]


def test_dicts_without_a_type_are_told_what_a_record_is() -> None:
    assert read([ANN]) == (
        {},
        [f"record 1: not a record: Object contains unknown field `name`; give dicts: {EXPECTED}"],
    )


def test_dicts_may_be_records_with_python_values_in_them() -> None:
    edge = {"edge": "Knows", "from": "a", "to": "b", "data": {"since": date(2024, 1, 1)}}
    note = {"type": "Note", "data": {"text": np.str_("x"), "at": np.array([1, 2])}}
    rows, refusals = read(iter([edge, note, 5, {"type": "Person"}]))
    assert rows == {
        "Knows": [{"src": "a", "dst": "b", "since": date(2024, 1, 1)}],
        "Note": [{"text": "x", "at": [1.0, 2.0]}],
    }
    assert refusals == [
        f"record 3: not a record: expected a dict, got int; give dicts: {EXPECTED}",
        "record 4: null value for Person.name which is required",
    ]


def test_a_generator_is_taken_a_block_at_a_time_and_only_once() -> None:
    taken = 0

    def rows() -> Iterator[dict]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield {"text": "x" * (BLOCK_BYTES_TARGET // 100)}

    source = open_source(rows(), SCHEMA, type_name="Note")
    assert not source.replayable
    blocks = iter(source)
    assert sum(len(b.records) for b in next(blocks).batches) == 0
    next(blocks)
    assert taken < 1000
    with pytest.raises(InputError, match="has been read already"):
        iter(source)


CSV_TEXT = 'name,age,city\nAnn,5,"Oslo, ""the"" city"\n\nBob,,"two\nlines"\n,1,\nCid,x,\nDan,1\nEve,2,Rome\n'


def test_csv_cells_become_typed_values_and_bad_rows_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(CSV_TEXT)
    rows, refusals = read(path, type_name="Person")
    assert rows == {
        "Person": [
            {"id": "Ann", "name": "Ann", "age": 5, "city": 'Oslo, "the" city'},
            {"id": "Bob", "name": "Bob", "city": "two\nlines"},
            {"id": "Eve", "name": "Eve", "age": 2, "city": "Rome"},
        ]
    }
    assert [r.removeprefix(f"{path} ")[:50] for r in refusals] == [
        "line 6: invalid value for Person.name (the key): '",
        "line 7: invalid value for Person.age: 'x' is not I",
        "line 8: expected 3 cells as in the header, got 2",
    ]


def test_an_empty_cell_is_null_but_empty_text_for_a_required_string(tmp_path: Path) -> None:
    path = tmp_path / "Note.csv"
    path.write_text('text,at\n,\n"","[1,2]"\n')
    assert read(path) == ({"Note": [{"text": ""}, {"text": "", "at": [1.0, 2.0]}]}, [])


def test_a_csv_of_edges_names_its_ends_either_way(tmp_path: Path) -> None:
    (tmp_path / "Knows.csv").write_text("from,to,since\na,b,2024-01-01\n")
    (tmp_path / "more.csv").write_text("\ufeffdst, src ,id\nb,a,e\n")
    assert read(tmp_path / "Knows.csv")[0] == {"Knows": [{"src": "a", "dst": "b", "since": date(2024, 1, 1)}]}
    assert read(tmp_path / "more.csv", type_name="Knows")[0] == {"Knows": [{"id": "e", "src": "a", "dst": "b"}]}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", InputError, "has no header row"),
        (b"name,agee\n", InputError, r"Person has no property 'agee'; did you mean 'age'\?"),
        (b"name,name\n", InputError, "more than one column for 'name'"),
        (b"name\nAnn\n\xff\xfe\n", RecordError, "people.csv line 3: not UTF-8: byte 0xff at position 1"),
    ],
)
def test_a_csv_that_can_not_be_trusted_is_refused_whole(
    tmp_path: Path, content: bytes, error: type, message: str
) -> None:
    (tmp_path / "people.csv").write_bytes(content)
    with pytest.raises(error, match=message):
        read(tmp_path / "people.csv", type_name="Person")


def test_a_quote_that_never_ends_refuses_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "Person.csv").write_text('name,age\nAnn,5\n"Bob,6\n')
    rows, refusals = read(tmp_path / "Person.csv")
    assert rows == {"Person": [ANN_ROW]}
    assert refusals[0].startswith(f"{tmp_path}/Person.csv line 3: not a row of CSV")


TABLE = pa.table({"name": ["Ann", "Bob"], "age": pa.array([5, None], pa.int64())})
TABLE_ROWS = {"Person": [ANN_ROW, {"id": "Bob", "name": "Bob"}]}


@pytest.mark.parametrize(
    ("source", "replayable"),
    [
        (lambda: TABLE, True),
        (lambda: TABLE.to_batches()[0], True),
        (lambda: TABLE.to_reader(), False),
        (lambda: TABLE.to_pandas(), True),
        (lambda: pd.DataFrame({"name": ["Ann", "Bob"], "age": [5, None]}, dtype=object), True),
        (lambda: TABLE.to_pylist(), True),
        (lambda: iter(TABLE.to_pylist()), False),
        (lambda: [TABLE.slice(0, 1), TABLE.slice(1).to_pandas()], True),
        (lambda: [TABLE.slice(0, 1), TABLE.slice(1).to_reader()], False),
    ],
)  # fmt: skip
def test_data_in_memory_reads_the_same_whatever_holds_it(source: Any, replayable: bool) -> None:
    opened = open_source(source(), SCHEMA, type_name="Person")
    assert opened.replayable == replayable
    assert read(opened) == (TABLE_ROWS, [])
    if replayable:
        assert read(opened) == (TABLE_ROWS, [])


def test_a_frame_with_values_of_several_kinds_is_judged_value_by_value() -> None:
    frame = pd.DataFrame({"name": ["Ann", "Bob", "Cid"], "age": [5, "six", None]}, index=[7, 8, 9])
    rows, refusals = read(frame, type_name="Person")
    assert rows == {"Person": [ANN_ROW, {"id": "Cid", "name": "Cid"}]}
    assert refusals[0].startswith("record 2: invalid value for Person.age: 'six'")


@pytest.mark.parametrize("source", [TABLE, TABLE.to_batches()[0], TABLE.to_reader(), TABLE.to_pandas()])
def test_columns_alone_do_not_say_their_type(source: Any) -> None:
    with pytest.raises(InputError, match=r"say which one \(Person, Note, Knows\) with type= \(--type\)$"):
        open_source(source, SCHEMA)


def test_an_unknown_column_refuses_the_whole_source() -> None:
    strange = TABLE.rename_columns(["name", "agee"])
    for source in (strange, strange.to_pandas()):
        with pytest.raises(InputError, match=r"Person has no property 'agee'; did you mean 'age'\?"):
            read(source, type_name="Person")
    with pytest.raises(InputError, match="more than one column for 'from'"):
        read(pa.table({"from": ["a"], "src": ["a"], "to": ["b"]}), type_name="Knows")


def test_parquet_is_read_in_blocks_with_its_rows_numbered(tmp_path: Path) -> None:
    count = 2 * BLOCK_ROWS_MAX + 5
    pq.write_table(pa.table({"text": ["x"] * (count - 1) + [None]}), tmp_path / "Note.parquet", row_group_size=50_000)
    source = open_source(tmp_path / "Note.parquet", SCHEMA)
    sizes, refusals, done = [], [], []
    for block in source:
        (batch,), rejections = conform_block(block)
        sizes.append(len(batch.rows))
        refusals += rejections
        done.append(source.bytes_done)
    assert (sum(sizes), max(sizes)) == (count - 1, BLOCK_ROWS_MAX)
    assert refusals == [Rejection(f"{tmp_path}/Note.parquet", count, "null value for Note.text which is required")]
    assert done == sorted(done)
    assert done[-1] == source.bytes_total == (tmp_path / "Note.parquet").stat().st_size


def test_wide_rows_make_short_blocks(tmp_path: Path) -> None:
    wide = pa.table({"text": [f"{i:04d}" * 4000 for i in range(2000)]})
    pq.write_table(wide, tmp_path / "Note.parquet")
    assert (
        max(len(b.records) for block in open_source(tmp_path / "Note.parquet", SCHEMA) for b in block.batches) <= 1024
    )


@pytest.mark.parametrize("keep", [0, 3, 100, -200, -5])
def test_a_parquet_file_that_was_cut_off_is_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    whole, cut = tmp_path / "whole.parquet", tmp_path / "Person.parquet"
    pq.write_table(TABLE, whole)
    cut.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"Person.parquet can't be read as Parquet") as refused:
        read(cut)
    assert "\n" not in str(refused.value)


def test_a_parquet_file_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Person.parquet"
    pq.write_table(TABLE, path, compression="gzip")
    path.write_bytes(path.read_bytes()[:4] + b"\xff" * 40 + path.read_bytes()[44:])
    with pytest.raises(InputError, match="may be cut off or damaged"):
        read(path)


def test_a_file_that_is_not_there_or_not_a_file_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*nobody\.jsonl"):
        open_source([write(tmp_path / "a.jsonl", {}), tmp_path / "nobody.jsonl"], SCHEMA)
    with pytest.raises(InputError, match="is a directory"):
        open_source(tmp_path, SCHEMA)
    with pytest.raises(InputError, match=r"can't tell its format; .* or say it with format= \(--format\)"):
        open_source(write(tmp_path / "a.txt"), SCHEMA)
    with pytest.raises(InputError, match="invalid format 'xml'"):
        open_source(write(tmp_path / "a.txt"), SCHEMA, format="xml")
    with pytest.raises(InputError, match=r"say which one .* with type= \(--type\), or name .* such as Person\.csv"):
        open_source(write(tmp_path / "people.csv"), SCHEMA)
    with pytest.raises(NotFound, match="no type 'Nobody'"):
        open_source(write(tmp_path / "people.csv"), SCHEMA, type_name="Nobody")
    with pytest.raises(InputError, match="can't load from int"):
        open_source(5, SCHEMA)
    with pytest.raises(
        InputError, match=r"this mapping: .* 'type' is none of Person, Note, Knows; put a single record"
    ):
        open_source([TABLE, {"type": "Person"}], SCHEMA, type_name="Person")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is permitted to root")
def test_a_file_without_permission_is_told_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {})
    path.chmod(0)
    with pytest.raises(InputError, match=r"can't read .*a\.jsonl: Permission denied"):
        open_source(path, SCHEMA)


def test_a_refusal_of_the_system_becomes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", {})

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"can't read .*a\.jsonl: Permission denied"):
        open_source(path, SCHEMA)


def test_parquet_from_a_pipe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "Person.parquet")
    with pytest.raises(InputError, match="save it to a file and load that"):
        read(tmp_path / "Person.parquet")


def test_several_sources_of_several_kinds_are_one(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "a.jsonl", {"edge": "Knows", "from": "Ann", "to": "Bob"})
    pq.write_table(TABLE, tmp_path / "Person.parquet")
    source = open_source([str(jsonl), (tmp_path / "Person.parquet").as_uri()], SCHEMA)
    assert read(source) == ({**TABLE_ROWS, "Knows": [{"src": "Ann", "dst": "Bob"}]}, [])
    assert (
        source.bytes_done == source.bytes_total == jsonl.stat().st_size + (tmp_path / "Person.parquet").stat().st_size
    )


def test_a_mapping_gives_the_rows_of_each_type() -> None:
    source = open_source({"Person": TABLE, "Knows": [{"from": "Ann", "to": "Bob"}]}, SCHEMA)
    assert read(source) == ({**TABLE_ROWS, "Knows": [{"src": "Ann", "dst": "Bob"}]}, [])
    assert source.replayable
    assert not open_source({"Person": TABLE.to_reader()}, SCHEMA).replayable
    with pytest.raises(InputError, match=r"a mapping gives rows by type: leave out type='Person'"):
        open_source({"Person": TABLE}, SCHEMA, type_name="Person")


def test_the_format_may_be_told_and_the_path_may_be_an_address(tmp_path: Path) -> None:
    path = write(tmp_path / "with space.txt", {"type": "Person", "data": ANN})
    assert read(path, format="jsonl") == read(path.as_uri(), format="jsonl") == ({"Person": [ANN_ROW]}, [])


def test_other_stores_are_read_through_fsspec(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/in/a.jsonl", json.dumps({"type": "Person", "data": ANN}).encode())
    pq.write_table(TABLE, tmp_path / "t.parquet")
    memory.pipe("/in/Person.parquet", (tmp_path / "t.parquet").read_bytes())
    assert read("memory://in/a.jsonl") == ({"Person": [ANN_ROW]}, [])
    assert read("memory://in/Person.parquet") == (TABLE_ROWS, [])
    with pytest.raises(NotFound, match="no such file: memory://in/b"):
        open_source("memory://in/b.jsonl", SCHEMA)
    with pytest.raises(InputError, match="can't read nowhere://x"):
        open_source("nowhere://x.jsonl", SCHEMA)


@pytest.mark.parametrize(
    "source", [[], TABLE.slice(0, 0), TABLE.slice(0, 0).to_reader(), TABLE.slice(0, 0).to_pandas()]
)
def test_a_source_without_rows_still_names_its_type(source: Any) -> None:
    assert read(source, type_name="Person") == ({"Person": []}, [])


def test_a_file_without_rows_still_names_its_type(tmp_path: Path) -> None:
    (tmp_path / "Person.csv").write_text("name\n")
    pq.write_table(TABLE.slice(0, 0), tmp_path / "Person.parquet")
    write(tmp_path / "p.jsonl")
    for name in ("Person.csv", "Person.parquet", "p.jsonl"):
        assert read(tmp_path / name, type_name="Person") == ({"Person": []}, [])
    assert read(tmp_path / "p.jsonl") == ({}, [])


def test_rejected_records_go_to_a_file_that_exists_only_if_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "rejected.jsonl"
    rejects = RejectFile(path)
    rejects.write([Rejection("a.jsonl", 3, "not a record")])
    rejects.write([Rejection("stdin", 9, 'say "é"', "constraint", values={"name": "Ann", "since": date(2024, 1, 1)})])
    assert (rejects.count, path.exists()) == (2, False)
    rejects.finish()
    rejects.close()
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        {"source": "a.jsonl", "line": 3, "kind": "record", "reason": "not a record", "record": {}},
        {
            "source": "stdin", "line": 9, "kind": "constraint", "reason": 'say "é"',
            "record": {"name": "Ann", "since": "2024-01-01"},
        },
    ]  # fmt: skip
    empty = RejectFile(path)
    empty.finish()
    empty.close()
    assert list(tmp_path.iterdir()) == []


def test_a_reject_file_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't write rejected records"):
        RejectFile(tmp_path / "no" / "such" / "r.jsonl").write([Rejection("", 1, "x")])
