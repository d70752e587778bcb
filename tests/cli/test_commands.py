"""The command line: each verb does what it says, in words and in JSON, and ends with the documented exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import pytest

import omniray
from omniray.coordinator.cli import output as cli_output
from omniray.coordinator.cli.app import app as cli
from omniray.engine.base import errors
from tests.commands import TIMEOUT_S, environment, omniray_command, omniray_process, run

SCHEMA = """\
node Person { name: String @key   age: I32?   @range(age, 0..150) }
edge Knows: Person -> Person { since: Date? }
"""
RECORDS = """\
{"type": "Person", "data": {"name": "Ann", "age": 41}}
{"type": "Person", "data": {"name": "Bob"}}
{"edge": "Knows", "from": "Ann", "to": "Bob", "data": {"since": "2020-02-29"}}
"""
QUERIES = """\
query add($name: String, $age: I32?) { insert Person { name: $name, age: $age } }
query drop($name: String) { delete Person where name = $name }
"""
VERBS = [
    "init",
    "load",
    "mutate",
    "snapshot",
    "history",
    "export",
    "schema show",
    "schema plan",
    "schema lint",
    "sql",
    "version",
]
HEAVY = ("lance", "duckdb", "pyarrow", "numpy", "s3fs", "rich")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a schema, records and queries."""
    (tmp_path / "social.pg").write_text(SCHEMA)
    (tmp_path / "people.jsonl").write_text(RECORDS)
    (tmp_path / "people.gq").write_text(QUERIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    return tmp_path


@pytest.fixture
def graph(files: Path) -> str:
    """A graph with two people who know each other."""
    run("init", "graph", "--schema", "social.pg")
    run("load", "graph", "people.jsonl")
    return str(files / "graph")


# Verbs


def test_init_creates_a_graph_and_says_where(files: Path) -> None:
    document = run("init", "graph", "--schema", "social.pg", "--json").document
    assert document["uri"] == str(files / "graph")
    assert document["branch"] == "main"
    assert document["tables"] == [
        {"table_key": "edge:Knows", "version": 1, "row_count": 0},
        {"table_key": "node:Person", "version": 1, "row_count": 0},
    ]
    assert run("snapshot", "graph", "--json").document["commit_id"] == document["commit_id"]


def test_init_reads_its_schema_from_stdin(files: Path) -> None:
    assert "created" in run("init", "graph", "--schema", "-", stdin=SCHEMA).out
    assert run("schema", "show", "graph").out == SCHEMA


def test_load_says_what_it_wrote(graph: str) -> None:
    more = written("more.jsonl", '{"type": "Person", "data": {"name": "Cy"}}\n')
    assert run("load", graph, more).out.startswith("1 node and 0 edges written, commit 01")


def test_load_takes_several_files_in_one_commit(files: Path) -> None:
    run("init", "graph", "--schema", "social.pg")
    (files / "Person.csv").write_text("name,age\nAnn,41\nBob,\n")
    (files / "knows.jsonl").write_text('{"edge": "Knows", "from": "Ann", "to": "Bob"}\n')
    document = run("load", "graph", "Person.csv", "knows.jsonl", "--json").document
    assert set(document) == {
        "commit_id",
        "affected_nodes",
        "affected_edges",
        "versions",
        "rejected",
        "rejects",
        "repeated",
    }
    assert (document["affected_nodes"], document["affected_edges"]) == (2, 1)
    assert document["versions"] == {"node:Person": 2, "edge:Knows": 2}
    assert (document["rejected"], document["rejects"]) == (0, None)
    assert len(run("history", "graph", "--json").document["commits"]) == 2


def test_load_takes_the_type_of_a_file_from_the_command_line(graph: str, files: Path) -> None:
    (files / "guests.csv").write_text("name,age\nCy,20\n")
    assert run("load", graph, "guests.csv", "--type", "Person", "--json").document["affected_nodes"] == 1


def test_load_reads_csv_from_stdin_and_names_what_it_refuses_by_line(graph: str, files: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "omniray.coordinator.cli.app",
        "load",
        graph,
        "-",
        "--format",
        "csv",
        "--type",
        "Person",
    ]
    done = subprocess.run(
        [*command, "--on-error", "reject", "--json"],
        input=b"name,age\nCy,20\nDi,old\n", capture_output=True, timeout=TIMEOUT_S, env=environment(), cwd=files,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert (document["affected_nodes"], document["rejected"], document["rejects"]) == (1, 1, "rejects.jsonl")
    (rejected,) = [json.loads(line) for line in (files / "rejects.jsonl").read_text().splitlines()]
    assert (rejected["source"], rejected["line"]) == ("stdin", 3)


def test_a_bad_line_on_stdin_is_named_by_its_line(graph: str) -> None:
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "load", graph, "-"]
    done = subprocess.run(command, input=b"\n{}\n", capture_output=True, timeout=TIMEOUT_S, env=environment())
    assert done.returncode == 3
    assert done.stderr.startswith(b"error: stdin line 2: not a record")


def test_the_format_of_a_file_may_be_told(graph: str) -> None:
    guests = written("guests.txt", "name,age\nCy,20\n")
    refused = omniray_command("load", graph, guests, "--type", "Person")
    assert (refused.code, "--format" in refused.err) == (3, True)
    assert run("load", graph, guests, "--type", "Person", "--format", "csv", "--json").document["affected_nodes"] == 1


@pytest.mark.parametrize("durability", ["process", "power"])
def test_verbs_that_write_take_a_durability(files: Path, monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    asked = []

    def noting(real: Any) -> Any:
        def note(*arguments: Any, **options: Any) -> Any:
            asked.append(options["durability"])
            return real(*arguments, **options)

        return note

    monkeypatch.setattr("omniray.engine.graph.init", noting(omniray.init))
    monkeypatch.setattr("omniray.engine.graph.open", noting(omniray.open))
    run("init", "graph", "--schema", "social.pg", "--durability", durability)
    run("load", "graph", "people.jsonl", "--durability", durability)
    run("mutate", "graph", "people.gq", "--name", "add", "--params", '{"name": "Cy"}', "--durability", durability)
    assert asked == [durability] * 3


def test_load_merges_and_overwrites(graph: str) -> None:
    older = '{"type": "Person", "data": {"name": "Ann", "age": 42}}\n'
    run("load", graph, written("older.jsonl", older), "--mode", "merge")
    assert ages(graph) == {"Ann": 42, "Bob": None}
    everybody = older + '{"type": "Person", "data": {"name": "Bob", "age": 1}}\n'
    run("load", graph, written("everybody.jsonl", everybody), "--mode", "overwrite")
    assert ages(graph) == {"Ann": 42, "Bob": 1}


def test_load_sets_bad_records_aside_and_names_their_file(graph: str, files: Path) -> None:
    written("more.jsonl", '{"type": "Person", "data": {"name": "Cy"}}\n{"type": "Person", "data": {"age": 7}}\n')
    answer = run("load", graph, "more.jsonl", "--on-error", "reject", "--rejects", "bad.jsonl")
    assert answer.out.endswith("1 record rejected, with the reasons in bad.jsonl\n")
    (rejected,) = [json.loads(line) for line in (files / "bad.jsonl").read_text().splitlines()]
    assert (rejected["source"], rejected["line"]) == ("more.jsonl", 2)
    assert ages(graph) == {"Ann": 41, "Bob": None, "Cy": None}


def test_rejected_records_go_to_a_file_of_the_current_directory_by_default(graph: str, files: Path) -> None:
    strange = written("strange.jsonl", '{"type": "Nobody"}\n')
    document = run("load", graph, strange, "--on-error", "reject", "--json").document
    assert (document["commit_id"], document["rejected"], document["rejects"]) == (None, 1, "rejects.jsonl")
    assert (files / "rejects.jsonl").exists()


def test_mutate_runs_the_named_query_with_its_parameters(graph: str) -> None:
    document = run(
        "mutate", graph, "people.gq", "--name", "add", "--params", '{"name": "Cy", "age": 7}', "--json"
    ).document
    assert set(document) == {"commit_id", "affected_nodes", "affected_edges", "versions", "repeated"}
    assert (document["affected_nodes"], document["affected_edges"], document["versions"]) == (1, 0, {"node:Person": 3})
    assert ages(graph)["Cy"] == 7


def test_mutate_reads_its_query_from_stdin(graph: str) -> None:
    text = 'query q() { delete Person where name = "Bob" }'
    assert run("mutate", graph, "-", stdin=text).out.startswith("1 node and 1 edge written, commit 01")


def test_a_mutation_without_effect_says_so_and_commits_nothing(graph: str) -> None:
    answer = run("mutate", graph, "people.gq", "--name", "drop", "--params", '{"name": "Nobody"}')
    assert answer.out == "nothing changed, nothing was committed\n"
    assert len(run("history", graph, "--json").document["commits"]) == 2


def test_mutate_with_an_expected_version_wins_once(graph: str) -> None:
    arguments = ["mutate", graph, "people.gq", "--name", "drop", "--expect", "node:Person=2", "--json", "--params"]
    assert run(*arguments, '{"name": "Ann"}').document["versions"]["node:Person"] == 3
    lost = omniray_command(*arguments, '{"name": "Bob"}')
    assert (lost.code, lost.out) == (4, "")
    assert lost.error == {
        "kind": "expected_version_mismatch",
        "retry": "after_refresh",
        "message": lost.error["message"],
        "table_key": "node:Person",
        "expected": 2,
        "actual": 3,
    }


def test_snapshot_shows_the_tables_now_and_then(graph: str) -> None:
    first = run("history", graph, "--json").document["commits"][-1]
    assert run("snapshot", graph, "--json").document["tables"] == [
        {"table_key": "edge:Knows", "version": 2, "row_count": 1},
        {"table_key": "node:Person", "version": 2, "row_count": 2},
    ]
    for at in (first["commit_id"], first["at"]):
        then = run("snapshot", graph, "--at", at, "--json").document
        assert then["commit_id"] == first["commit_id"]
        assert [table["row_count"] for table in then["tables"]] == [0, 0]


def test_snapshot_draws_a_table(graph: str) -> None:
    lines = [line.split() for line in run("snapshot", graph).out.splitlines()]
    assert lines[0][:2] == ["main", "at"]
    assert lines[1] == ["table", "version", "rows"]
    assert ["node:Person", "2", "2"] in lines


def test_history_tells_who_did_what_newest_first(graph: str) -> None:
    document = run("history", graph, "--json").document
    assert document["branch"] == "main"
    newest, oldest = document["commits"]
    assert set(newest) == {"commit_id", "parent", "kind", "actor", "tenant", "at", "tables", "message", "merged"}
    assert (newest["kind"], newest["actor"], sorted(newest["tables"])) == (
        "Load",
        "tester",
        ["edge:Knows", "node:Person"],
    )
    assert (newest["parent"], oldest["parent"]) == (oldest["commit_id"], None)
    assert datetime.fromisoformat(oldest["at"]) <= datetime.fromisoformat(newest["at"]) <= datetime.now(UTC)
    assert [c["kind"] for c in run("history", graph, "--limit", "1", "--json").document["commits"]] == ["Load"]
    assert newest["commit_id"] in run("history", graph).out


def test_what_export_writes_loads_back_to_the_same_graph(graph: str) -> None:
    exported = run("export", graph).out
    run("init", "copy", "--schema", "social.pg")
    run("load", "copy", written("exported.jsonl", exported))
    assert run("export", "copy").out == exported
    assert [json.loads(line)["data"] for line in exported.splitlines()[:2]] == [
        {"name": "Ann", "age": 41},
        {"name": "Bob"},
    ]


def test_export_writes_one_type_as_of_a_commit(graph: str) -> None:
    first = run("history", graph, "--json").document["commits"][-1]["commit_id"]
    assert run("export", graph, "--at", first).out == ""
    assert [json.loads(line)["edge"] for line in run("export", graph, "--type", "Knows").out.splitlines()] == ["Knows"]


def test_schema_show_prints_the_text_of_its_author(graph: str) -> None:
    assert run("schema", "show", graph).out == SCHEMA
    document = run("schema", "show", graph, "--json").document
    assert document["schema"] == SCHEMA
    assert document["tables"] == ["node:Person", "edge:Knows"]
    assert set(document) == {"schema", "tables", "graph_id", "branch", "schema_version", "schema_hash", "format"}


def test_sql_shows_rows(graph: str) -> None:
    query = "select p.name, k.since, p.age as name from Person p left join Knows k on k.src = p.id order by 1"
    assert run("sql", graph, query, "--json").document == {
        "columns": ["name", "since", "name_2"],
        "rows": [{"name": "Ann", "since": "2020-02-29", "name_2": 41}, {"name": "Bob", "since": None, "name_2": None}],
    }
    assert [line.split() for line in run("sql", graph, query).out.splitlines()][2:] == [
        ["Ann", "2020-02-29", "41"],
        ["Bob"],
    ]


def test_sql_reads_the_past(graph: str) -> None:
    first = run("history", graph, "--json").document["commits"][-1]["commit_id"]
    assert run("sql", graph, "select count(*) as n from Person", "--at", first, "--json").document["rows"] == [{"n": 0}]


def test_version_names_the_versions_that_matter() -> None:
    document = run("version", "--json").document
    assert document["omniray"] == omniray.__version__
    assert set(document) == {"omniray", "format", "pylance", "python"}
    assert run("version").out.startswith(
        f"omniray {omniray.__version__} (storage format {document['format']}, pylance "
    )


# Output


def test_data_is_neither_markup_nor_able_to_steer_the_terminal(graph: str) -> None:
    query = "select '[red]' || chr(27) || '[2J' as \"[b]x\""
    assert [line.rstrip() for line in run("sql", graph, query).out.splitlines()][::2] == ["[b]x", "[red]\\x1b[2J"]


def test_a_long_answer_is_cut_for_a_person_and_whole_in_json(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_output, "ROWS_SHOWN_MAX", 3)
    query = "select range as n from range(10)"
    shown = run("sql", graph, query).out.splitlines()
    assert [line.strip() for line in shown[2:]] == ["0", "1", "2", "7 more rows are not shown; --json shows all"]
    assert len(run("sql", graph, query, "--json").document["rows"]) == 10


def test_nothing_is_cut_to_the_width_of_a_window_that_is_not_there(graph: str) -> None:
    assert "x" * 500 in run("sql", graph, "select repeat('x', 500) as wide").out


def test_an_actor_is_named_by_option_environment_or_user(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    add = ["mutate", graph, "people.gq", "--name", "add", "--params"]
    run(*add, '{"name": "a"}', "--actor", "given")
    run(*add, '{"name": "b"}')
    monkeypatch.delenv("OMNIRAY_ACTOR")
    run(*add, '{"name": "c"}')
    actors = [commit["actor"] for commit in run("history", graph, "--json").document["commits"]]
    assert actors == ["me", "tester", "given", "tester", "tester"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_examples_in_its_help(verb: str) -> None:
    text = run(*verb.split(), "--help").out
    assert "--json" in text
    assert f"Examples:\n    omniray {verb}" in text


def test_a_progress_bar_shows_on_a_terminal_only(graph: str, files: Path) -> None:
    """The bar goes to stderr, and a pipe is no terminal; a pseudo-terminal is."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "load", graph, "people.jsonl", "--mode", "merge"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=follower, timeout=TIMEOUT_S, env=environment(TERM="xterm"), cwd=files
    )
    os.close(follower)
    drawn = os.read(leader, 100_000).decode()
    os.close(leader)
    assert done.returncode == 0, drawn
    assert "3 records" in drawn
    assert run("load", graph, "people.jsonl", "--mode", "merge").err == ""


# Processes


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["load", "--help"]])
def test_help_and_version_are_quick_because_they_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, omniray.coordinator.cli.app as cli\n"
        "try:\n    cli.app(sys.argv[1:])\n"
        f"finally:\n    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_when_a_command_has_ended_plain_lance_sees_what_it_wrote(files: Path) -> None:
    run("init", "graph", "--schema", "social.pg")
    loaded = omniray_process("load", files / "graph", files / "people.jsonl", "--json")
    assert (loaded.code, loaded.err) == (0, "")
    assert lance.dataset(files / "graph" / "nodes" / "Person.lance").count_rows() == 2
    assert lance.dataset(files / "graph" / "edges" / "Knows.lance").count_rows() == 1


def test_an_export_can_be_piped_into_a_load(graph: str) -> None:
    run("init", "copy", "--schema", "social.pg")
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "load", "copy", "-", "--json"]
    exported = run("export", graph).out.encode()
    done = subprocess.run(command, input=exported, capture_output=True, timeout=TIMEOUT_S, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["affected_nodes"] == 2


def test_an_export_whose_reader_has_gone_ends_quietly(graph: str) -> None:
    many = "".join(f'{{"type": "Person", "data": {{"name": "person number {n}"}}}}\n' for n in range(5000))
    run("load", graph, written("many.jsonl", many))
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", "export", graph]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == cli_output.READER_GONE


# Exit codes


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["init", "graph"],
        ["load", "graph"],
        ["load", "graph", "a.jsonl", "--mode", "replace"],
        ["load", "graph", "a.jsonl", "--on-error", "ignore"],
        ["load", "graph", "a.jsonl", "--rejects", "bad.jsonl"],
        ["load", "graph", "a.jsonl", "-"],
        ["load", "graph", "a.jsonl", "--format", "xml"],
        ["mutate", "graph", "a.gq", "--durability", "luck"],
        ["mutate", "graph", "a.gq", "--params", "{"],
        ["mutate", "graph", "a.gq", "--params", "[1]"],
        ["mutate", "graph", "a.gq", "--expect", "node:Person"],
        ["mutate", "graph", "a.gq", "--expect", "node:Person=new"],
        ["history", "graph", "--limit", "0"],
        ["snapshot", "graph", "--storage-option", "aws_region"],
        ["sql", "graph"],
    ],
)
def test_a_wrong_command_line_ends_with_2_before_anything_is_opened(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert omniray_command(*arguments).code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("x"), 3),
        (errors.KeyConflict("node:Person", "Ann"), 4),
        (errors.StorageError("x"), 5),
        (errors.OutcomeUnknown("x", txn_id="1"), 5),
        (errors.RecoveryRequired("x"), 6),
    ],
)
def test_an_error_of_each_branch_of_the_tree_has_its_exit_code(
    error: omniray.OmnirayError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, error)
    plain, as_json = omniray_command("snapshot", "graph"), omniray_command("snapshot", "graph", "--json")
    assert (plain.code, plain.out, plain.err) == (code, "", f"error: {error}\n")
    assert (as_json.code, as_json.out, as_json.error) == (code, "", error.as_json())


def test_any_other_exception_is_a_bug_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, RuntimeError("first\nsecond"))
    answer = omniray_command("snapshot", "graph")
    assert answer.code == 1
    assert answer.err == "error: this is a bug in omniray: RuntimeError: first; OMNIRAY_DEBUG=1 shows where\n"
    assert omniray_command("snapshot", "graph", "--json").error["kind"] == "bug"


def test_the_traceback_of_a_bug_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIRAY_DEBUG", "1")
    raising(monkeypatch, RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        cli(["snapshot", "graph"])


def test_an_interrupted_command_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    answer = omniray_command("snapshot", "graph")
    assert (answer.code, answer.err.count("\n")) == (130, 1)
    assert "omniray history" in answer.err


def test_a_parse_error_shows_the_place(graph: str) -> None:
    answer = omniray_command("mutate", graph, "-", stdin="query q() { insert Person { name: } }")
    assert answer.code == 3
    assert answer.err.splitlines()[:3] == [
        "error: " + answer.err.splitlines()[0].removeprefix("error: "),
        "    query q() { insert Person { name: } }",
        "    " + " " * 34 + "^",
    ]
    error = omniray_command("mutate", graph, "-", "--json", stdin="query q() { insert Person { name: } }").error
    assert (error["kind"], error["line"], error["column"]) == ("parse", 1, 35)


def written(name: str, text: str) -> str:
    """A file in the current directory."""
    Path(name).write_text(text)
    return name


def ages(graph: str) -> dict[str, int | None]:
    rows = run("sql", graph, "select name, age from Person", "--json").document["rows"]
    return {row["name"]: row["age"] for row in rows}


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("omniray.engine.graph.open", fail)
