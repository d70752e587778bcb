"""Bad input, from a broken schema to wrong credentials: one clear line, the exit code, and nothing written."""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from omniray.engine.rows.records import BLOCK_ROWS_MAX
from omniray.engine.writes.row_sink import INLINE_ROWS_MAX
from tests.commands import TIMEOUT_S, Answer, omniray_command, options_of, run
from tests.stores import Root

SCHEMA = """\
node Person { name: String @key   age: I32?   @range(age, 0..150) }
edge Knows: Person -> Person
"""
ANN = '{"type": "Person", "data": {"name": "Ann"}}\n'

# Every type of a property, and values that none of them takes.
WRONG_VALUES = {
    "String": [1, True, ["a"], {"a": 1}],
    "Bool": ["true", 1, 0.5],
    "I32": ["1", 1.5, True, 2**31, -(2**31) - 1],
    "I64": ["1", 1.5, 2**63],
    "U32": [-1, 2**32, "1"],
    "U64": [-1, 2**64, "1"],
    "F32": ["1.5", True, 1e39],
    "F64": ["1.5", True],
    "Date": ["2026-02-30", "yesterday", 1.5],
    "DateTime": ["2026-01-31T25:00:00Z", "now", True],
    "Blob": ["plain text", 1, "base64:?"],
    "Vector(2)": [[1.0], [1.0, 2.0, 3.0], ["a", "b"], 1.0, [1.0, None]],
    "[I32]": [1, ["a"], [1.5], [2**31]],
    "enum(dev, ops)": ["boss", 1, ""],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which must stay as it is too: no file of rejects, no temporary file."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def contents(root: Path) -> dict[str, int]:
    """Every file below a path with its size, and what lies directly in it."""
    files = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    return {path.name: 0 for path in root.iterdir()} | files


def graph_of(schema: str = SCHEMA) -> Path:
    """A graph in the current directory."""
    written("good.pg", schema)
    run("init", "graph", "--schema", "good.pg")
    return Path("graph")


def written(name: str, content: str | bytes) -> Path:
    path = Path(name)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def people(count: int) -> str:
    return "".join(f'{{"type": "Person", "data": {{"name": "p{n}"}}}}\n' for n in range(count))


def refused(*arguments: str | Path, code: int = 3) -> str:
    """Run a command that must fail with one line and leave everything as it was; gives the line."""
    before = contents(Path.cwd())
    answer = omniray_command(*arguments)
    assert_one_line(answer, code)
    assert contents(Path.cwd()) == before
    return answer.err


def assert_one_line(answer: Answer, code: int) -> None:
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err


def refused_load(record: object, *, code: int = 3) -> str:
    bad = written("bad.jsonl", json.dumps(record) + "\n")
    return refused("load", "graph", bad, code=code)


# Schemas


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("node Person { name: Strin @key }", "Strin"),
        ("node Person { name String }", "line 1, column 20"),
        ("node Person {\n  name: String\n", "line 2, column 15: the text ends too early"),
        ("edge Knows: Person -> Nobody\nnode Person { name: String @key }", "Nobody"),
        ("node Person { name: String }\nnode Person { name: String }", "Person"),
        ("node Person { name: String @key   @range(age, 0..150) }", "age"),
        ("# a comment", "line 1, column 1"),
        ("", ""),
    ],
)
def test_a_broken_schema_creates_nothing(schema: str, told: str) -> None:
    written("bad.pg", schema)
    before = contents(Path.cwd())
    answer = omniray_command("init", "graph", "--schema", "bad.pg")
    assert (answer.code, answer.out) == (3, "")
    first, *place = answer.err.splitlines()
    assert first.startswith("error: ")
    assert told in first
    assert len(place) <= 3, "at most the line, the caret and what was expected"
    assert contents(Path.cwd()) == before


def test_a_schema_that_is_not_utf8_creates_nothing() -> None:
    bad = written("bad.pg", b"node Person { name: String @key }\n// caf\xe9\n")
    assert "bad.pg line 2: not UTF-8: byte 0xe9" in refused("init", "graph", "--schema", bad)


def test_a_missing_schema_creates_nothing() -> None:
    assert "no such file: none.pg" in refused("init", "graph", "--schema", "none.pg")


def test_a_second_init_changes_nothing() -> None:
    graph_of()
    assert "there is a graph at" in refused("init", "graph", "--schema", "good.pg")


def test_a_folder_with_other_files_is_not_touched() -> None:
    written("good.pg", SCHEMA)
    assert "is not empty" in refused("init", ".", "--schema", "good.pg")


# Records


def test_a_record_of_an_unknown_type_is_refused_with_a_hint() -> None:
    graph_of()
    line = refused_load({"type": "Persn", "data": {"name": "Ann"}})
    assert "bad.jsonl line 1" in line
    assert "'Persn'" in line
    assert "did you mean 'Person'" in line


def test_an_unknown_type_on_the_command_line_is_refused() -> None:
    graph_of()
    file = written("people.csv", "name\nAnn\n")
    assert "'Persn'" in refused("load", "graph", file, "--type", "Persn")
    assert "'Persn'" in refused("export", "graph", "--type", "Persn")


def test_an_unknown_property_is_refused_with_a_hint() -> None:
    graph_of()
    line = refused_load({"type": "Person", "data": {"name": "Ann", "agee": 1}})
    assert "bad.jsonl line 1: Person has no property 'agee'; did you mean 'age'?" in line


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_unknown_column_refuses_the_file(suffix: str) -> None:
    graph_of()
    file = Path(f"Person.{suffix}")
    if suffix == "csv":
        written(file.name, "name,agee\nAnn,1\n")
    else:
        pq.write_table(pa.table({"name": ["Ann"], "agee": [1]}), file)
    assert f"Person.{suffix}: Person has no property 'agee'" in refused("load", "graph", file)


@pytest.mark.parametrize("type", WRONG_VALUES)
def test_a_wrong_value_of_any_type_is_refused_and_named(type: str) -> None:
    graph_of(f"node Thing {{ name: String @key   value: {type}? }}")
    for value in WRONG_VALUES[type]:
        line = refused_load({"type": "Thing", "data": {"name": "a", "value": value}})
        assert "bad.jsonl line 1: " in line, value
        assert "value" in line, value


def test_a_missing_required_value_is_refused() -> None:
    graph_of()
    assert "name" in refused_load({"type": "Person", "data": {"age": 1}})


def test_a_key_twice_in_one_file_is_refused_and_both_are_left_out() -> None:
    graph_of()
    twice = written("twice.jsonl", ANN + '{"type": "Person", "data": {"name": "Bob"}}\n' + ANN)
    line = refused("load", "graph", twice)
    assert "twice.jsonl line 3: @unique violation on Person.name: duplicate key 'Ann'" in line
    assert "first at twice.jsonl line 1" in line


def test_an_edge_to_nobody_is_refused_and_names_both() -> None:
    graph_of()
    file = written("edges.jsonl", ANN + '{"edge": "Knows", "from": "Ann", "to": "Nobody"}\n')
    line = refused("load", "graph", file)
    assert "edges.jsonl line 2: dst 'Nobody' not found in Person" in line


def test_a_bad_record_after_many_good_ones_leaves_no_data_file() -> None:
    """So many rows are written to data files while the load is still reading; they must go again."""
    graph_of()
    file = written("many.jsonl", people(BLOCK_ROWS_MAX) + '{"type": "Person", "data": {"name": 1}}\n')
    assert f"many.jsonl line {BLOCK_ROWS_MAX + 1}" in refused("load", "graph", file)


def test_an_edge_to_nobody_after_many_good_nodes_leaves_no_data_file() -> None:
    graph_of()
    file = written("many.jsonl", people(INLINE_ROWS_MAX + 1) + '{"edge": "Knows", "from": "p1", "to": "Nobody"}\n')
    assert "dst 'Nobody' not found in Person" in refused("load", "graph", file)


# Files


def test_a_truncated_parquet_file_is_refused() -> None:
    graph_of()
    pq.write_table(pa.table({"name": [f"p{n}" for n in range(1000)]}), "whole.parquet")
    whole = Path("whole.parquet").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        file = written("Person.parquet", whole[:size])
        assert "Person.parquet" in refused("load", "graph", file)


def test_a_parquet_file_with_damaged_pages_is_refused() -> None:
    graph_of()
    pq.write_table(pa.table({"name": [f"p{n}" for n in range(1000)]}), "whole.parquet")
    whole = bytearray(Path("whole.parquet").read_bytes())
    whole[100:400] = bytes(300)
    assert "Person.parquet" in refused("load", "graph", written("Person.parquet", bytes(whole)))


def test_a_line_of_50_mb_is_refused_without_being_parsed() -> None:
    graph_of()
    long = written("long.jsonl", ANN.encode() + b'{"type": "Person", "data": {"name": "' + b"x" * 50_000_000 + b'"}}\n')
    line = refused("load", "graph", long)
    assert "long.jsonl line 2: the line is longer than 32 MiB" in line
    assert len(line) < 500


@pytest.mark.parametrize("name", ["people.jsonl", "Person.csv"])
def test_a_file_that_is_not_utf8_is_refused_with_the_byte(name: str) -> None:
    graph_of()
    good = b"name\nAnn\n" if name.endswith("csv") else ANN.encode()
    bad = b"Andr\xe9\n" if name.endswith("csv") else b'{"type": "Person", "data": {"name": "Andr\xe9"}}\n'
    line = refused("load", "graph", written(name, good + bad))
    assert name in line
    assert "not UTF-8" in line
    assert "0xe9" in line


def test_a_query_that_is_not_utf8_is_refused() -> None:
    graph_of()
    bad = written("bad.gq", b'query q() { insert Person { name: "Andr\xe9" } }')
    assert "bad.gq line 1: not UTF-8" in refused("mutate", "graph", bad)


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_can_not_be_read_is_refused(name: str) -> None:
    graph_of()
    assert name in refused("load", "graph", name)


def test_one_missing_file_of_several_loads_none_of_them() -> None:
    graph_of()
    assert "none.jsonl" in refused("load", "graph", written("ann.jsonl", ANN), "none.jsonl")


def test_json_that_breaks_off_is_refused() -> None:
    graph_of()
    assert "cut.jsonl line 2" in refused("load", "graph", written("cut.jsonl", ANN + ANN[:20]))


# Queries


@pytest.mark.parametrize(
    ("query", "params", "told"),
    [
        ("query q() { insert Persn { name: 1 } }", "{}", "Persn"),
        ('query q() { insert Person { nme: "Ann" } }', "{}", "nme"),
        ("query q() { insert Person { name: 1 } }", "{}", "name"),
        ("query q($n: String) { insert Person { name: $n } }", "{}", "n"),
        ("query q($n: String) { insert Person { name: $n } }", '{"n": 1}', "n"),
        ('query q() { update Person set { name: "Bob" } where name = "Ann" }', "{}", "name"),
        ('query q() { insert Person { name: "Ann", age: 151 } }', "{}", "@range violation on Person.age"),
    ],
)
def test_a_query_that_does_not_fit_is_refused(query: str, params: str, told: str) -> None:
    graph_of()
    assert told in refused("mutate", "graph", written("bad.gq", query), "--params", params)


def test_a_query_that_inserts_and_deletes_is_refused_with_the_way_out() -> None:
    graph_of()
    both = 'query q() { insert Person { name: "Ann" } delete Person where name = "Bob" }'
    before = contents(Path("graph"))
    answer = omniray_command("mutate", "graph", written("both.gq", both))
    assert answer.code == 3
    assert "split" in answer.err
    assert contents(Path("graph")) == before


@pytest.mark.parametrize("query", ["drop table Person", "select 1; select 2", "insert into Person values (1)"])
def test_sql_that_is_not_one_select_is_refused(query: str) -> None:
    graph_of()
    refused("sql", "graph", query)


# Places


def test_a_graph_that_is_not_there_is_refused_by_every_verb() -> None:
    written("ann.jsonl", ANN)
    written("good.gq", 'query q() { delete Person where name = "Ann" }')
    for command in (["load", "g", "ann.jsonl"], ["mutate", "g", "good.gq"], ["snapshot", "g"], ["history", "g"]):
        assert "no graph at" in refused(*command)
    for command in (["export", "g"], ["schema", "show", "g"], ["sql", "g", "select 1"]):
        assert "no graph at" in refused(*command)


@pytest.mark.parametrize("at", ["01K9ZQ5T7Z0000000000000000", "1999-12-31", "yesterday"])
def test_a_time_or_commit_that_is_not_there_is_refused(at: str) -> None:
    graph_of()
    refused("snapshot", "graph", "--at", at)


def test_a_branch_that_is_not_there_is_refused() -> None:
    graph_of()
    assert "'feature'" in refused("load", "graph", written("ann.jsonl", ANN), "--branch", "feature")


@pytest.mark.parametrize("uri", ["ftp://host/graph", "s3://", "s3://bucket"])
def test_a_uri_that_can_not_be_a_graph_is_refused(uri: str) -> None:
    written("good.pg", SCHEMA)
    assert "s3://bucket/prefix" in refused("init", uri, "--schema", "good.pg")


def test_a_path_below_a_file_is_a_storage_error() -> None:
    """No user may create it, not even root, for whom permissions mean nothing."""
    written("good.pg", SCHEMA)
    written("file", "")
    line = refused("init", "file/graph", "--schema", "good.pg", code=5)
    assert "file/graph" in line
    assert "check the path and its permissions" in line


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where nobody may make a folder")
def test_a_place_where_nobody_may_write_is_a_storage_error() -> None:
    written("good.pg", SCHEMA)
    assert "check the path and its permissions" in refused("init", "/proc/graph", "--schema", "good.pg", code=5)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions mean nothing to root")
def test_a_folder_without_permission_is_a_storage_error() -> None:
    written("good.pg", SCHEMA)
    Path("closed").mkdir(mode=0o500)
    assert "Permission denied" in refused("init", "closed/graph", "--schema", "good.pg", code=5)


# S3


@pytest.fixture
def s3(moto_bucket: Root) -> Root:
    """A bucket whose server knows users and what each may do."""
    return moto_bucket


@pytest.fixture
def guarded(s3: Root) -> Iterator[Root]:
    """A bucket whose server checks credentials while the test runs: those of the root are unknown to it."""
    endpoint = s3.storage_options["aws_endpoint"]
    _free_requests(endpoint, "0")
    yield s3
    _free_requests(endpoint, "inf")


def _free_requests(endpoint: str, count: str) -> None:
    """How many requests moto answers before it begins to check credentials."""
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", data=count.encode(), headers={"Content-Type": "text/plain"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass


def keys(root: Root) -> list[str]:
    fs = s3fs.S3FileSystem(
        key="key",
        secret="secret",
        endpoint_url=root.storage_options["aws_endpoint"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    return sorted(fs.find(root.uri))


def test_a_missing_bucket_is_told_by_its_name(s3: Root) -> None:
    written("good.pg", SCHEMA)
    line = refused("init", "s3://no-such-bucket-here/graph", "--schema", "good.pg", *options_of(s3), code=5)
    assert "s3://no-such-bucket-here/graph" in line
    assert "the bucket does not exist" in line
    line = refused("snapshot", "s3://no-such-bucket-here/graph", *options_of(s3), code=5)
    assert "the bucket does not exist" in line


def test_wrong_credentials_create_nothing(guarded: Root) -> None:
    written("good.pg", SCHEMA)
    line = refused("init", f"{guarded.uri}/graph", "--schema", "good.pg", *options_of(guarded), code=5)
    assert "AWS_ACCESS_KEY_ID" in line
    _free_requests(guarded.storage_options["aws_endpoint"], "inf")
    assert keys(guarded) == []


def test_credentials_that_went_wrong_write_nothing(s3: Root) -> None:
    written("good.pg", SCHEMA)
    endpoint, graph = s3.storage_options["aws_endpoint"], f"{s3.uri}/graph"
    run("init", graph, "--schema", "good.pg", *options_of(s3))
    before = keys(s3)
    _free_requests(endpoint, "0")
    try:
        line = refused("load", graph, written("ann.jsonl", ANN), *options_of(s3), code=5)
    finally:
        _free_requests(endpoint, "inf")
    assert "AWS_ACCESS_KEY_ID" in line
    assert keys(s3) == before


def test_credentials_that_may_only_read_can_read_and_not_write(s3: Root) -> None:
    written("good.pg", SCHEMA)
    written("add.gq", 'query q() { insert Person { name: "Ann" } }')
    endpoint, graph = s3.storage_options["aws_endpoint"], f"{s3.uri}/graph"
    run("init", graph, "--schema", "good.pg", *options_of(s3))
    before = keys(s3)
    reader = read_only_credentials(s3)
    _free_requests(endpoint, "0")
    try:
        rows = run("sql", graph, "select count(*) as n from Person", "--json", *options_of(reader)).document["rows"]
        line = refused("mutate", graph, "add.gq", *options_of(reader), code=5)
    finally:
        _free_requests(endpoint, "inf")
    assert rows == [{"n": 0}]
    assert "access denied" in line
    assert keys(s3) == before


def read_only_credentials(root: Root) -> Root:
    """The same bucket for a user who may read it and nothing else."""
    iam = boto3.client(
        "iam",
        endpoint_url=root.storage_options["aws_endpoint"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    name = f"reader-{uuid.uuid4()}"
    allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}
    iam.create_user(UserName=name)
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName=name, PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    iam.close()
    given = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    return Root(root.uri, {**root.storage_options, **given})


def test_an_endpoint_where_nobody_listens_is_a_storage_error(s3: Root) -> None:
    written("good.pg", SCHEMA)
    nowhere = Root(s3.uri, {**s3.storage_options, "aws_endpoint": "http://127.0.0.1:9"})
    line = refused("init", f"{s3.uri}/graph", "--schema", "good.pg", *options_of(nowhere), code=5)
    assert "127.0.0.1:9" in line


def test_a_bad_record_writes_nothing_to_a_bucket(s3: Root) -> None:
    written("good.pg", SCHEMA)
    graph = f"{s3.uri}/graph"
    run("init", graph, "--schema", "good.pg", *options_of(s3))
    before = keys(s3)
    file = written("edges.jsonl", ANN + '{"edge": "Knows", "from": "Ann", "to": "Nobody"}\n')
    assert "dst 'Nobody' not found" in refused("load", graph, file, *options_of(s3))
    assert keys(s3) == before
