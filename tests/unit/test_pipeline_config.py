"""The file of a pipeline: what it may say, and that everything wrong with it is told with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omniray.engine.base.errors import InputError
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import raw_from_dicts
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.workers.spark.pipeline.config import (
    Clean,
    Deduplicate,
    Format,
    Keep,
    Pipeline,
    parse_pipeline,
    read_pipeline,
)
from omniray.workers.spark.pipeline.plan import plan
from omniray.workers.spark.pipeline.reasons import Reason, reason_of
from omniray.workers.spark.pipeline.yaml_nodes import Text
from tests.source import REPOSITORY

WHOLE = """\
graph:
  uri: s3://bucket/social
  storage_options: {aws_region: eu-west-1, aws_secret_access_key: "${SECRET}"}
mode: merge
actor: nightly
rejects: out/rejects
sources:
  people:
    format: csv
    path: [a.csv, /data/b.csv]
    header: no
    schema: full_name string, age string
    options: {sep: ";"}
  knows:
    format: jdbc
    url: jdbc:postgresql://host/db
    table: knows
    options: {user: me, password: "${SECRET}"}
nodes:
  Person:
    from: people
    where: age is not null
    columns:
      name: trim(full_name)
      age: age
    clean: [trim, empty-to-null]
    deduplicate: last by updated at time zone
edges:
  Knows:
    from: knows
    columns: {from: a, to: b}
    deduplicate: fail
branch: trial
"""
SMALL = """\
graph: {uri: g}
rejects: r
sources:
  people: {format: parquet, path: p}
nodes:
  Person:
    from: people
    columns: {name: n}
"""
SCHEMA = """
node Person { name: String @key  age: I32?  born: Date  @range(age, 0..150) }
node Note { text: String }
edge Knows: Person -> Person { since: Date? }
"""


def parsed(text: str, **environ: str) -> Pipeline:
    return parse_pipeline(text, file="pipeline.yml", folder=Path("/home/me"), environ=environ)


def faults(text: str, **environ: str) -> list[str]:
    """What is told about a text, line by line."""
    with pytest.raises(InputError) as caught:
        parsed(text, **environ)
    return str(caught.value).splitlines()


def changed(old: str, new: str, text: str = SMALL) -> str:
    assert old in text
    return text.replace(old, new)


# What it says


def test_a_whole_file_is_read() -> None:
    pipeline = parsed(WHOLE, SECRET="x y")
    assert pipeline.mode is Mode.MERGE
    assert (pipeline.actor, pipeline.rejects) == ("nightly", "/home/me/out/rejects")
    assert pipeline.branch == "trial"
    assert pipeline.graph.uri == "s3://bucket/social"
    assert pipeline.graph.storage_options == {"aws_region": "eu-west-1", "aws_secret_access_key": "x y"}
    (person,), (knows,) = pipeline.nodes, pipeline.edges
    assert person.source.paths == ("/home/me/a.csv", "/data/b.csv")
    assert (person.source.format, person.source.header) == (Format.CSV, False)
    assert person.source.schema == Text("full_name string, age string", 12)
    assert person.where == Text("age is not null", 22)
    assert person.columns == {"name": Text("trim(full_name)", 24), "age": Text("age", 25)}
    assert person.clean == (Clean.TRIM, Clean.EMPTY_TO_NULL)
    assert person.deduplicate == Deduplicate(Keep.LAST, Text("updated at time zone", 27))
    assert (knows.source.url, knows.source.table) == ("jdbc:postgresql://host/db", "knows")
    assert knows.source.options == {"user": "me", "password": "x y"}
    assert knows.deduplicate == Deduplicate(Keep.FAIL)


def test_a_small_file_has_sensible_defaults() -> None:
    pipeline = parsed(SMALL)
    (person,) = pipeline.nodes
    assert (pipeline.mode, pipeline.actor, pipeline.branch) == (Mode.APPEND, "", "main")
    assert (person.where, person.clean, person.deduplicate) == (None, (), Deduplicate(Keep.FIRST))


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(parsed(WHOLE, SECRET="hush"))


def test_a_value_is_taken_as_it_is_written() -> None:
    (person,) = parsed(changed("{name: n}", "{name: 'yes', on: 1, age: null + 1}")).nodes
    assert {name: text.value for name, text in person.columns.items()} == {"name": "yes", "on": "1", "age": "null + 1"}


def test_the_example_is_read() -> None:
    pipeline = read_pipeline(REPOSITORY / "examples/pipeline/pipeline.yml")
    schema = parse_schema((REPOSITORY / "examples/pipeline/social.pg").read_text())
    assert [one.name for one in plan(pipeline, schema)] == ["Person", "City", "Knows", "LivesIn"]


# What is wrong with it


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- a", "1: the pipeline is not a mapping: write `key: value`, one below the other"),
        ("graph: {uri: g", "1: no YAML: expected ',' or '}', but got '<stream end>'"),
        ("graph: [\n  a: b\n", "3: no YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: \x07", "1: no YAML: the character #x0007 can't stand in it"),
        (changed("rejects: r", "rejekts: r"), "2: unknown key 'rejekts' in the pipeline; did you mean 'rejects'?"),
        (changed("rejects: r\n", ""), "1: the pipeline lacks 'rejects': name a folder for the rows"),
        (changed("rejects: r", "rejects: r\nmode: insert"), "3: mode is 'insert'; it is one of append, merge"),
        (changed("rejects: r", "rejects: r\nrejects: s"), "3: 'rejects' stands twice in the pipeline; keep one"),
        (changed("{uri: g}", "{url: g}"), "1: unknown key 'url' in graph; did you mean 'uri'?"),
        (changed("{uri: g}", "g"), "1: graph is not a mapping: write `key: value`, one below the other"),
        (changed("format: parquet, ", ""), "4: sources.people lacks 'format': one of parquet, csv, json, jdbc"),
        (changed("parquet", "avro"), "4: sources.people.format is 'avro'; it is one of parquet, csv, json, jdbc"),
        (changed(", path: p", ""), "4: sources.people lacks 'path': give it, such as `path: people.csv`"),
        (changed("path: p", "path: p, header: true"), "4: unknown key 'header' in sources.people; there are"),
        (changed("parquet, path: p", "jdbc, url: u"), "4: sources.people needs 'table' or 'query', one of the two"),
        (changed("path: p", "path: '${HOME}/p'"), "4: ${…} is filled in under options and storage_options alone"),
        (changed("path: p", "path: p, options: {a: '${NOT_SET}'}"), "4: the environment variable NOT_SET is not set"),
        (changed("path: p", "path: p, options: {a: '${a-b}'}"), "4: ${a-b} is not a variable: write ${NAME}"),
        (changed("from: people", "from: peple"), "7: no source 'peple'; did you mean 'people'?"),
        (changed("    from: people\n", ""), "6: nodes.Person lacks 'from': give it, such as `from: people`"),
        (changed("columns:", "colums:"), "8: unknown key 'colums' in nodes.Person; did you mean 'columns'?"),
        (changed("{name: n}", "{}"), "8: nodes.Person lacks 'columns': write `property: expression` for each"),
        (changed("{name: n}", "{name: {a: b}}"), "8: nodes.Person.columns.name is not a text"),
        (changed("{name: n}", "{name: }"), "8: nodes.Person.columns.name is not a text"),
        (SMALL + "    clean: [trin]\n", "9: no cleaning step 'trin' in nodes.Person; did you mean 'trim'?"),
        (SMALL + "    deduplicate: last\n", "9: nodes.Person.deduplicate is 'last'; write first, first by EXPRESSION"),
        (SMALL + "    deduplicate: fail by x\n", "9: nodes.Person.deduplicate is 'fail by x'; write first"),
        (changed("path: p", "path: p").replace("parquet", "csv, header: maybe"), "4: sources.people.header is 'maybe'"),
        (changed("rejects: r", "rejects: ''"), "2: the pipeline lacks 'rejects': give it, such as `rejects:"),
        (changed("path: p", "path: []"), "4: sources.people lacks 'path': give it, such as `path: people.csv`"),
        (changed("path: p", "path: [p, '']"), "4: sources.people lacks 'path': give it, such as `path: people.csv`"),
        (changed("{name: n}", "[name]"), "8: nodes.Person.columns is not a mapping: write `key: value`"),
        (SMALL.partition("nodes:")[0] + "nodes: {}\n", "5: the pipeline lacks 'nodes': say what becomes of"),
        (SMALL + "    <<: {where: a}\n", "9: a merge key (<<) stands in nodes.Person: write out what it would bring"),
        (SMALL + "---\na: b\n", "9: no YAML: expected a single document in the stream, but found another document"),
        ("[" * 100_000, "1: no pipeline: it is nested too deep"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line(text: str, fault: str) -> None:
    (told,) = faults(text)
    assert told.startswith(f"pipeline.yml:{fault}")


def test_all_faults_are_told_at_once_in_the_order_of_the_lines() -> None:
    text = changed("rejects: r", "rejekts: r").replace("columns:", "colums:").replace("parquet", "avro")
    told = [line.split(":")[1] for line in faults(text)]
    assert told == ["2", "4", "8"]


def test_an_empty_file_is_told_all_that_it_lacks() -> None:
    assert [line.split("'")[1] for line in faults("# nothing\n")] == ["graph", "rejects", "sources", "nodes"]


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't read the pipeline .*missing\.yml: No such file"):
        read_pipeline(tmp_path / "missing.yml")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_pipeline(tmp_path / "binary.yml")


def test_variables_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    (tmp_path / "pipeline.yml").write_text(WHOLE)
    assert read_pipeline(tmp_path / "pipeline.yml", os.environ).edges[0].source.options["password"] == "s"


# What does not fit the graph


def misfits(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        plan(parsed(text), parse_schema(SCHEMA))
    return [line.partition(":")[2] for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (changed("Person:", "Persn:"), "6: the graph has no node type 'Persn'; did you mean 'Person'?"),
        (changed("Person:", "../x:"), "6: the graph has no node type '../x'; there are Person, Note"),
        (changed("Person:", "Knows:"), "6: Knows is no node type: move it to 'edges'"),
        (changed("nodes:", "edges:"), "6: Person is no edge type: move it to 'nodes'"),
        (changed("name: n", "name: n, agee: a, born: b"), "8: Person has no property 'agee'; did you mean 'age'?"),
        (SMALL, "6: nodes.Person.columns lacks 'born', which is required: give it an expression"),
        (changed("name: n", "born: b"), "6: nodes.Person.columns lacks 'name', which is part of the key"),
        (
            changed("nodes:", "edges:").replace("Person", "Knows").replace("name: n", "from: a"),
            "6: edges.Knows.columns lacks 'to', which is the id of a Person: give it an expression",
        ),
        (
            changed("nodes:", "edges:").replace("Person", "Knows").replace("name: n", "from: a, src: b, to: c"),
            "8: edges.Knows.columns gives 'src' twice, once under its other name; keep one",
        ),
    ],
)
def test_a_name_that_the_graph_lacks_is_told_with_its_line(text: str, fault: str) -> None:
    (told,) = misfits(text)
    assert told.startswith(fault)


def test_a_required_column_with_a_default_needs_no_expression() -> None:
    schema = parse_schema('node Person { name: String @key  born: Date @default("2000-01-01") }')
    (person,) = plan(parsed(SMALL), schema)
    assert set(person.columns) == {"name"}


def test_a_row_is_known_by_its_id_or_a_merged_edge_by_its_ends() -> None:
    schema = parse_schema("node P { name: String @key }  node N { a: I32? }  edge K: P -> P { @unique(src, dst) }")
    text = changed("{name: n}", "{a: n}").replace("Person", "N") + (
        "  P: {from: people, columns: {name: n}}\nedges:\n  K: {from: people, columns: {from: a, to: b}}\n"
    )
    person, keyless, edge = plan(parsed(text), schema)
    assert (person.name, person.identity(Mode.APPEND)) == ("P", (ID,))
    assert (keyless.name, keyless.identity(Mode.MERGE)) == ("N", ())
    assert (edge.identity(Mode.APPEND), edge.identity(Mode.MERGE)) == ((), ("src", "dst"))


# Reasons


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"name": 7}, Reason.BAD_VALUE),
        ({"name": ""}, Reason.BAD_VALUE),
        ({"name": "a", "id": "b"}, Reason.BAD_VALUE),
        ({}, Reason.NULL),
        ({"name": "a", "role": "boss"}, Reason.ENUM),
        ({"name": "a", "age": 151}, Reason.RANGE),
        ({"name": "a", "mail": "nowhere"}, Reason.CHECK),
    ],
)
def test_each_rule_of_the_engine_has_its_code(row: dict[str, object], reason: Reason) -> None:
    rules = '@range(age, 0..150)  @check(mail, "@")'
    text = f"node P {{ name: String @key  age: I32?  role: enum(dev)?  mail: String?  {rules} }}"
    (type,) = parse_schema(text).nodes
    _, (refused,) = conform(raw_from_dicts(type, [row]))
    assert reason_of(refused.reason) is reason
