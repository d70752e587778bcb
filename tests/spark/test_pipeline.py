"""Pipelines on a real Spark: what is accepted, what is rejected and why, and that a run is one commit, once."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import omniray
from bench.social import compared
from bench.social_graph import SCHEMA as SOCIAL
from bench.social_graph import SocialGraph
from omniray.coordinator.cli.pipeline import app
from omniray.engine.base.ulids import new_ulid
from omniray.spark import run_pipeline
from omniray.workers.spark.pipeline import checks, run
from omniray.workers.spark.pipeline.checks import Judgement
from omniray.workers.spark.pipeline.report import Report
from tests.source import REPOSITORY
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = """
node Person { name: String @key  age: I32?  mail: String?  @range(age, 0..150)  @unique(mail) }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge Reports: Person -> Person @card(0..2)
"""
Row = dict[str, Any]


class Project:
    """A graph, a folder with sources, and the pipeline over them."""

    def __init__(self, root: Root, folder: Path, spark: SparkSession, schema: str = SCHEMA) -> None:
        self.uri, self.storage_options, self.folder, self.spark = (
            f"{root.uri}/graph",
            root.storage_options,
            folder,
            spark,
        )
        omniray.init(self.uri, schema=schema, storage_options=root.storage_options).close()

    def open(self) -> omniray.Graph:
        return omniray.open(self.uri, storage_options=self.storage_options)

    def rows(self, type: str, *columns: str) -> list[tuple[Any, ...]]:
        with self.open() as graph:
            table = graph.snapshot().table(type, list(columns)).to_pylist()
        return sorted(tuple(row[name] for name in columns) for row in table)

    def commits(self) -> int:
        with self.open() as graph:
            return len(graph.history()) - 1

    def write(self, people: Sequence[Row] = (), knows: Sequence[Row] = (), **told: str) -> Path:
        """The pipeline, as JSON, which is YAML; `told` are more keys of the mapping of each type."""
        self._source("people.json", people)
        self._source("knows.json", knows)
        options = {key: value for key, value in told.items() if key in ("mode", "edge", "rejects")}
        more = {key: value for key, value in told.items() if key not in options}
        document = {
            "graph": {"uri": self.uri, "storage_options": dict(self.storage_options)},
            "mode": options.get("mode", "append"),
            "rejects": options.get("rejects", "rejects"),
            "sources": {
                "people": {"format": "json", "path": "people.json", "schema": "n string, a string, m string, v int"},
                "knows": {"format": "json", "path": "knows.json", "schema": "i string, f string, t string, s string"},
            },
            "nodes": {"Person": {"from": "people", "columns": {"name": "n", "age": "a", "mail": "m"}, **more}},
            "edges": {options.get("edge", "Knows"): {"from": "knows", "columns": {"from": "f", "to": "t"}}},
        }
        file = self.folder / "pipeline.yml"
        file.write_text(json.dumps(document, indent=1))
        return file

    def _source(self, name: str, rows: Sequence[Row]) -> None:
        (self.folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(self, *args: Any, run_id: str | None = None, dry_run: bool = False, **told: Any) -> Report:
        return run_pipeline(self.write(*args, **told), self.spark, run_id=run_id, dry_run=dry_run)

    def rejects(self, report: Report) -> list[tuple[str, str, Any]]:
        found = self.spark.read.parquet(str(self.folder / "rejects")).where(f"run_id = '{report.run_id}'").collect()
        return sorted((row["type"], row["reason"], json.loads(row["row"]).get("name")) for row in found)


@pytest.fixture
def project(spark: SparkSession, disk: Root, tmp_path: Path) -> Project:
    return Project(disk, tmp_path, spark)


@pytest.fixture
def faulty_file(project: Project) -> Callable[[str, str], Path]:
    """The pipeline's file with something in it replaced."""

    def make(old: str, new: str) -> Path:
        file = project.write([{"n": "ann"}])
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        return file

    return make


def person(name: str | None, age: Any = None, mail: str | None = None, version: int = 0) -> Row:
    return {"n": name, "a": age, "m": mail, "v": version}


def edge(start: str, end: str, id: str | None = None) -> Row:
    return {"i": id, "f": start, "t": end}


def counts(report: Report, type: str) -> tuple[int, int, dict[str, int], int]:
    (found,) = [one for one in report.types if one.type == type]
    return found.read, found.accepted, dict(found.rejected), found.committed


# What is accepted, and what is not


def test_planted_faults_are_found_by_reason_in_one_commit(spark: SparkSession, disk: Root, tmp_path: Path) -> None:
    social = SocialGraph(people=1_000, acquaintances=5_000)
    omniray.init(str(tmp_path / "graph"), schema=SOCIAL).close()
    report = run_pipeline(social.write(spark, tmp_path), spark)
    rows = list(compared(social, report, tmp_path / "graph"))
    assert [row for row in rows if row[2] != row[3]] == []
    assert len(rows) == 6 + 3 + 5 + 3 + 1


def test_rejected_rows_are_told_with_type_reason_and_row(project: Project) -> None:
    people = [person("ann", "41"), person("old", "151"), person(None, "1"), person("odd", "young"), person("ann", "7")]
    report = project.run(people, [edge("ann", "old"), edge("ann", "ann"), edge("ann", "nobody")])
    assert counts(report, "Person") == (5, 1, {"bad_value": 1, "null": 1, "range": 1, "duplicate": 1}, 1)
    assert counts(report, "Knows") == (3, 1, {"orphan": 2}, 1)
    assert project.rejects(report) == [
        ("Knows", "orphan", None),
        ("Knows", "orphan", None),
        ("Person", "bad_value", "odd"),
        ("Person", "duplicate", "ann"),
        ("Person", "null", None),
        ("Person", "range", "old"),
    ]
    assert project.rows("Person", "name", "age") == [("ann", 41)]
    assert project.rows("Knows", "src", "dst") == [("ann", "ann")]


@pytest.mark.parametrize(("told", "age"), [("last by v", 2), ("first by v", 1)])
def test_of_several_rows_with_a_key_the_one_stays_that_the_file_says(project: Project, told: str, age: int) -> None:
    people = [person("ann", "2", version=2), person("ann", "1", version=1), person("ann", "3", version=1)]
    report = project.run(people, deduplicate=told)
    assert counts(report, "Person") == (3, 1, {"duplicate": 2}, 1)
    assert project.rows("Person", "age") == [(age,)]


def test_a_duplicate_ends_the_run_where_the_file_says_so(project: Project) -> None:
    with pytest.raises(omniray.ConstraintViolation, match="several rows have the key 'ann', and deduplicate is 'fail'"):
        project.run([person("ann"), person("ann")], deduplicate="fail")
    assert project.commits() == 0


def test_rows_are_chosen_and_texts_cleaned_before_they_are_checked(project: Project) -> None:
    people = [person(" \tAnn  Lee "), person("  "), person("ANN LEE", " 7 "), person("bob", version=9)]
    report = project.run(people, clean=["trim", "collapse-spaces", "lower", "empty-to-null"], where="v < 9")
    assert counts(report, "Person") == (3, 1, {"null": 1, "duplicate": 1}, 1)
    assert project.rows("Person", "name") == [("ann lee",)]


def test_edges_may_point_to_nodes_of_the_graph(spark: SparkSession, s3: Root, tmp_path: Path) -> None:
    project = Project(s3, tmp_path, spark)
    project.run([person("ann")])
    report = project.run([person("bob"), person("ann")], [edge("bob", "ann"), edge("bob", "eve")])
    assert counts(report, "Person") == (2, 1, {"exists": 1}, 1)
    assert counts(report, "Knows") == (2, 1, {"orphan": 1}, 1)
    assert project.rows("Knows", "src", "dst") == [("bob", "ann")]


def test_an_overwrite_forgets_the_nodes_of_the_graph(project: Project) -> None:
    project.run([person("ann")])
    report = project.run([person("bob")], [edge("bob", "ann"), edge("bob", "bob")], mode="overwrite")
    assert counts(report, "Knows") == (2, 1, {"orphan": 1}, 1)
    assert project.rows("Person", "name") == [("bob",)]


def test_an_overwrite_by_a_source_without_rows_leaves_none(project: Project) -> None:
    project.run([person("ann")])
    assert project.run(mode="overwrite").commit_id is not None
    assert project.rows("Person", "name") == []


def test_an_overwrite_by_rows_that_are_all_bad_is_refused(project: Project) -> None:
    project.run([person("ann")])
    with pytest.raises(omniray.InputError, match="all 1 rows of Person were rejected"):
        project.run([person("bob", "151")], mode="overwrite")
    assert project.rows("Person", "name") == [("ann",)]


def test_a_merge_replaces_by_key_and_edges_by_their_ends(project: Project) -> None:
    project.run([person("ann", "1"), person("bob", "1")], [edge("ann", "bob")])
    report = project.run(
        [person("ann", "2")], [edge("ann", "bob"), edge("ann", "bob"), edge("bob", "ann")], mode="merge"
    )
    assert counts(report, "Person") == (1, 1, {}, 1)
    assert counts(report, "Knows") == (3, 2, {"duplicate": 1}, 2)
    assert project.rows("Person", "name", "age") == [("ann", 2), ("bob", 1)]
    assert project.rows("Knows", "src", "dst") == [("ann", "bob"), ("bob", "ann")]


def test_a_merged_edge_without_an_id_replaces_the_one_between_its_nodes_though_others_have_ids(
    project: Project,
) -> None:
    project.run([person("ann"), person("bob")], [edge("ann", "bob")])
    before = project.rows("Knows", "id")
    file = project.write([], [edge("ann", "bob"), edge("bob", "ann", "b-a")], mode="merge")
    document = json.loads(file.read_text())
    document["edges"]["Knows"]["columns"]["id"] = "i"
    file.write_text(json.dumps(document))
    assert counts(run_pipeline(file, project.spark), "Knows") == (2, 2, {}, 2)
    assert project.rows("Knows", "id") == sorted([*before, ("b-a",)])


def test_unique_values_are_held_against_the_run_and_the_graph(project: Project) -> None:
    project.run([person("ann", mail="a@x")])
    people = [person("bob", mail="a@x"), person("cleo", mail="c@x"), person("dan", mail="c@x"), person("eve")]
    assert counts(project.run(people), "Person") == (4, 2, {"unique": 2}, 2)
    assert project.rows("Person", "name") == [("ann",), ("cleo",), ("eve",)]


def test_what_is_no_number_is_unique_too(spark: SparkSession, disk: Root, tmp_path: Path) -> None:
    schema = "node Person { name: String @key  age: F64?  mail: String?  @unique(age) }\nedge Knows: Person -> Person"
    project = Project(disk, tmp_path, spark, schema)
    report = project.run([person("ann", "NaN"), person("bob", "NaN"), person("cleo"), person("dan")])
    assert counts(report, "Person") == (4, 3, {"unique": 1}, 3)


def test_merged_rows_may_swap_unique_values(project: Project) -> None:
    project.run([person("ann", mail="a@x"), person("bob", mail="b@x")])
    report = project.run([person("ann", mail="b@x"), person("bob", mail="a@x")], mode="merge")
    assert counts(report, "Person") == (2, 2, {}, 2)


def test_a_merged_row_that_falls_leaves_its_values_taken(project: Project) -> None:
    """`bob` would give b@x up, but falls himself, so that `cleo` can't have it; found in a second pass."""
    project.run([person("ann", mail="a@x"), person("bob", mail="b@x")])
    report = project.run([person("bob", mail="a@x"), person("cleo", mail="b@x")], mode="merge")
    assert counts(report, "Person") == (2, 0, {"unique": 2}, 0)
    assert project.rows("Person", "name") == [("ann",), ("bob",)]


def test_a_source_gets_as_many_edges_as_it_may_have(project: Project) -> None:
    people = [person(name) for name in "abcd"]
    first = project.run(people, [edge("a", "b"), edge("b", "a"), edge("b", "c"), edge("b", "d")], edge="Reports")
    assert counts(first, "Reports") == (4, 3, {"cardinality": 1}, 3)
    second = project.run([], [edge("a", "c"), edge("a", "d")], edge="Reports")
    assert counts(second, "Reports") == (2, 1, {"cardinality": 1}, 1)
    assert Counter(row[0] for row in project.rows("Reports", "src")) == {"a": 2, "b": 2}


# Databases


@pytest.fixture
def database(spark: SparkSession) -> str:
    """A table of people in a database that lives in Spark's own JVM; its address."""
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", os.devnull)  # else it logs where we are
    url = f"jdbc:derby:memory:{new_ulid()}"
    connection = spark._jvm.java.sql.DriverManager.getConnection(f"{url};create=true")
    statement = connection.createStatement()
    statement.execute("create table people (n varchar(40), a integer)")
    statement.execute("insert into people values ('ann', 41), ('bob', null), ('old', 151)")
    connection.close()
    return url


def from_database(project: Project, **source: str) -> Path:
    file = project.write()
    document = json.loads(file.read_text())
    document["sources"]["people"] = {"format": "jdbc", **source}
    document["nodes"]["Person"]["columns"] = {"name": "N", "age": "A"}
    file.write_text(json.dumps(document, indent=1))
    return file


@pytest.mark.parametrize(("place", "names"), [("table", ["ann", "bob"]), ("query", ["ann"])])
def test_tables_and_queries_of_a_database_are_sources(
    project: Project, database: str, place: str, names: list[str]
) -> None:
    read = {"table": "people", "query": "select n, a from people where a is not null"}[place]
    report = run_pipeline(from_database(project, url=database, **{place: read}), project.spark)
    assert counts(report, "Person") == (len(names) + 1, len(names), {"range": 1}, len(names))
    assert [name for (name,) in project.rows("Person", "name")] == names


@pytest.mark.parametrize(
    ("url", "table", "fault"),
    [
        ("jdbc:derby:memory:nowhere", "people", "sources.people can't be read: "),
        ("jdbc:nosuch://host/db", "people", "sources.people can't be read: No suitable driver"),
        ("", "nobody", "sources.people can't be read: "),
    ],
)
def test_a_database_that_can_t_be_read_is_one_line(
    project: Project, database: str, url: str, table: str, fault: str
) -> None:
    with pytest.raises(omniray.InputError) as caught:
        run_pipeline(from_database(project, url=url or database, table=table), project.spark)
    (told,) = str(caught.value).splitlines()
    assert fault in told
    assert project.commits() == 0


# A run is one commit, once


def test_a_run_commits_once_however_often_it_is_run(project: Project) -> None:
    first = project.run([person("ann")])
    again = project.run([person("bob")], run_id=first.run_id)
    assert (first.repeated, again.repeated, again.commit_id) == (False, True, first.commit_id)
    assert first.commit_id == first.run_id
    assert project.rows("Person", "name") == [("ann",)]
    assert project.commits() == 1


def test_the_rejects_of_a_run_that_is_run_again_are_replaced(project: Project) -> None:
    run_id = new_ulid()
    project.run([person("ann", "151")], run_id=run_id, dry_run=True)
    report = project.run([person("ann", "151")], run_id=run_id)
    assert project.rejects(report) == [("Person", "range", "ann")]


def test_a_dry_run_does_everything_but_the_commit(project: Project) -> None:
    report = project.run([person("ann"), person("bob", "151")], dry_run=True)
    assert counts(report, "Person") == (2, 1, {"range": 1}, 0)
    assert (report.commit_id, project.commits()) == (None, 0)
    assert project.rejects(report) == [("Person", "range", "bob")]


def test_a_run_of_bad_rows_alone_commits_nothing(project: Project) -> None:
    report = project.run([person(None)])
    assert (report.commit_id, project.commits()) == (None, 0)


# What is wrong is told before anything runs


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"a"', '"agee"', "nodes.Person.columns.age: [UNRESOLVED_COLUMN"),
        ('"a"', '"a +"', "nodes.Person.columns.age: [PARSE_SYNTAX_ERROR"),
        ('"a"', '"array(a)"', "Person.age: `array(a)` is array<string>, never I32"),
        ('"f"', '"1"', "Knows.src: `1` is int, never String; an id is text: cast(1 as string)"),
        ('"people.json"', '"missing.json"', "sources.people can't be read: [PATH_NOT_FOUND]"),
        ('"n string,', '"n strin,', "sources.people.schema: "),
        ('"Person": {', '"Person": { "where": "n",', "nodes.Person.where is not a condition"),
        ('"Person": {', '"Person": { "deduplicate": "last by w",', "nodes.Person.deduplicate: [UNRESOLVED_COLUMN"),
        ('"a"', '"max(a)"', "nodes.Person.columns.age: [MISSING_GROUP_BY]"),
        ('"a"', '"explode(array(a))"', "nodes.Person.columns.age: [UNSUPPORTED_GENERATOR"),
        ('"a"', '"*"', "nodes.Person.columns.age: `*` gives 4 values: write an expression of one"),
        ('"Person": {', '"Person": { "where": "count(*) > 1",', "nodes.Person.where: "),
        ('"Person": {', '"Person": { "deduplicate": "last by map(1, v)",', "nodes.Person.deduplicate: [DATATYPE_MISM"),
        ('"Person": {', '"Persona": {', "the graph has no node type 'Persona'; did you mean 'Person'?"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(
    project: Project, faulty_file: Callable[[str, str], Path], old: str, new: str, fault: str
) -> None:
    file = faulty_file(old, new)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), start=1) if new in text)
    with pytest.raises(omniray.InputError) as caught:
        run_pipeline(file, project.spark)
    (told,) = str(caught.value).splitlines()
    where, _, message = told.removeprefix(f"{file}:").partition(": ")
    assert message.startswith(fault)
    assert int(where) == line
    assert project.commits() == 0


def test_a_place_that_takes_no_rejects_is_told_before_anything_is_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "taken").write_text("a file")
    monkeypatch.setattr(run, "judge", lambda *arguments: pytest.fail("rows were read"))
    with pytest.raises(omniray.InputError, match=r"rejects can't be written to .*taken: ") as caught:
        project.run([person("ann")], rejects="taken")
    assert "\n" not in str(caught.value)


def test_an_expression_that_fails_on_a_value_ends_the_run_with_one_line(
    project: Project, faulty_file: Callable[[str, str], Path]
) -> None:
    with pytest.raises(omniray.InputError, match=r"Spark gave up on the pipeline: .*CAST_INVALID_INPUT") as caught:
        run_pipeline(faulty_file('"a"', '"cast(n as int)"'), project.spark)
    assert "\n" not in str(caught.value)


def test_a_store_that_fails_in_a_task_is_a_failure_of_the_store(project: Project) -> None:
    (Path(project.uri) / "nodes" / "Person.lance" / "data").write_text("where data files would be")
    with pytest.raises(omniray.StorageError) as caught:
        project.run([person(f"p{n}") for n in range(3_000)])
    assert "\n" not in str(caught.value)
    assert project.commits() == 0


def test_a_row_that_gets_lost_on_the_way_ends_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a source that gives other rows when a part of it is read once more."""

    def lose(judgement: Judgement, *others: Any) -> None:
        checks.judge(judgement, *others)
        if judgement.plan.name == "Person":
            judgement.live = judgement.live.where("name != 'bob'")

    monkeypatch.setattr(run, "judge", lose)
    with pytest.raises(omniray.InputError, match="2 of 3 rows were accepted, but 1 came to be staged"):
        project.run([person("ann"), person("ann"), person("bob")])
    assert project.commits() == 0


def test_what_a_rule_finds_lies_in_few_partitions_and_the_session_is_its_owners_again(
    spark: SparkSession,
) -> None:
    owners = spark.newSession()
    for name, value in {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "50"}.items():
        owners.conf.set(name, value)
    with checks.Held(owners) as held:
        found = held.found(owners.range(100).selectExpr("id % 7 as k").groupBy("k").count())
        assert found is not None
        assert found.rdd.getNumPartitions() < 5
    assert owners.conf.get(checks.CHOOSES_PARTITIONS) == "false"
    assert not found.is_cached


# As a user runs it


def command(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["pipeline", "run", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_tells_in_words_or_in_one_document(project: Project) -> None:
    file = project.write([person("ann"), person("bob", "151")])
    code, out, err = command(file)
    assert (code, "note" in err) == (0, False)
    assert "Person: 1 of 2 rows accepted, rejected: range 1" in err
    cells = [line.split() for line in out.splitlines()]
    assert ["Person", "2", "1", "1", "1"] in cells
    assert ["Person", "range", "1"] in cells
    (entry,) = [line for line in out.splitlines() if "committed as" in line]
    code, out, err = command(file, "--run-id", entry.split()[-1], "--json")
    document = json.loads(out)
    assert (code, err, document["repeated"], document["commit_id"]) == (0, "", True, entry.split()[-1])


def test_the_command_ends_with_one_line_for_a_broken_file(project: Project) -> None:
    file = project.write()
    file.write_text("graph: {}\n")
    code, out, err = command(file)
    assert (code, out) == (3, "")
    assert err.startswith(f"error: {file}:1: ")
    code, _, err = command(project.folder / "missing.yml", "--json")
    assert (code, json.loads(err)["error"]["kind"]) == (3, "bad_input")
    code, _, err = command(project.write(), "--run-id", "today")
    assert (code, "invalid txn_id" in err) == (3, True)


def test_the_example_runs_as_a_job_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(REPOSITORY / "examples/pipeline", folder)
    omniray.init(str(folder / "social"), schema=(folder / "social.pg").read_text()).close()
    monkeypatch.setattr(sys, "argv", ["job.py", str(folder / "pipeline.yml")])
    runpy.run_path(str(folder / "job.py"), run_name="__main__")
    assert "committed as" in capsys.readouterr().out.splitlines()[-1]
    with omniray.open(str(folder / "social"), read_only=True) as graph:
        snapshot = graph.snapshot()
        assert sorted(snapshot.table("Person")["name"].to_pylist()) == ["Ann", "Bob", "Cleo"]
        assert snapshot.table("Person", filter="name = 'Bob'")["age"].to_pylist() == [36]
        assert snapshot.table("Knows").num_rows == 2
        assert sorted(snapshot.table("LivesIn")["src"].to_pylist()) == ["Ann", "Bob", "Cleo"]
