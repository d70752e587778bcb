"""The verbs of schemas: what they say in words and in JSON, and that they end with 0 whatever they find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import omniray_command, run

SCHEMA = "node Person { name: String @key   age: I32? }\nedge Knows: Person -> Person\n"
NEXT = """
node Human @rename_from("Person") { name: String @key  age: I64?  role: enum(dev, ops) @default(dev)  shoe: F32 }
"""


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph with three people, and a branch with one more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    Path("social.pg").write_text(SCHEMA)
    Path("next.pg").write_text(NEXT)
    run("init", "graph", "--schema", "social.pg")
    load("graph", "Ann", "Bob", "Cy")
    run("branch", "create", "graph", "trial")
    load("graph", "Di", "--branch", "trial")
    return "graph"


def load(graph: str, *names: str) -> None:
    people, options = [n for n in names if n[0].isupper()], [n for n in names if not n[0].isupper()]
    Path("some.jsonl").write_text("".join(json.dumps({"name": name}) + "\n" for name in people))
    run("load", graph, "some.jsonl", "--type", "Person", *options)


def planned(*arguments: str) -> Any:
    return run("schema", "plan", *arguments, "--json").document


def test_a_plan_lists_its_steps_with_their_costs_and_refusals(graph: str) -> None:
    document = planned(graph, "--schema", "next.pg")
    assert set(document) == {"uri", "branch", "commit_id", "supported", "step_count", "steps"}
    assert (document["branch"], document["supported"], document["step_count"]) == ("main", False, 5)
    assert document["uri"].endswith("/graph")
    assert document["commit_id"] == run("history", graph, "--json").document["commits"][0]["commit_id"]
    common = {"type": "Human", "loses_data": False, "refusal": None}
    renamed, retyped, filled, refused, dropped = document["steps"]
    nothing, writes = {"kind": "metadata", "rows": 0}, {"kind": "backfill", "rows": 3}
    assert renamed == {**common, "kind": "rename_type", "property": None, "cost": nothing, "from": "Person"}
    assert retyped == {**common, "kind": "change_type", "property": "age", "cost": writes, "from": "I32", "to": "I64"}
    assert (filled["kind"], filled["property"], filled["cost"], filled["default"]) == (
        "add_property", "role", writes, "dev"
    )  # fmt: skip
    assert (refused["property"], refused["refusal"]["code"]) == ("shoe", "required_without_default")
    assert set(refused["refusal"]) == {"code", "reason", "advice"}
    assert (dropped["kind"], dropped["type"], dropped["loses_data"]) == ("drop_type", "Knows", True)


def test_a_plan_is_a_table_for_a_person(graph: str) -> None:
    said = run("schema", "plan", graph, "--schema", "next.pg").out.splitlines()
    assert said[0] == "5 steps from the schema of main, of which 1 can't be taken"
    assert said[1].split() == ["step", "type", "property", "what", "cost", "data", "refused"]
    assert said[4].split() == ["change_type", "Human", "age", "I32", "->", "I64", "writes", "3", "rows"]
    assert "required_without_default: the rows that are there" in said[6]
    assert said[7].split()[:2] == ["drop_type", "Knows"]
    assert "is lost" in said[7]


def test_a_plan_counts_the_rows_of_its_branch(graph: str) -> None:
    document = planned(graph, "--schema", "next.pg", "--branch", "trial")
    assert document["branch"] == "trial"
    assert [step["cost"]["rows"] for step in document["steps"]] == [0, 4, 4, 0, 0]


def test_a_plan_to_the_schema_that_is_there_has_no_steps(graph: str) -> None:
    assert planned(graph, "--schema", "social.pg")["steps"] == []
    said = run("schema", "plan", graph, "--schema", "-", stdin=SCHEMA + "// edited\n").out
    assert said.startswith("the schema of main is this one already\n")


def test_a_plan_that_can_be_taken_says_so_and_what_it_needs(graph: str) -> None:
    fine = run("schema", "plan", graph, "--schema", "-", stdin=SCHEMA + "node City { name: String @key }").out
    assert fine.startswith("1 step from the schema of main; all can be taken\n")
    lossy = run("schema", "plan", graph, "--schema", "-", stdin=SCHEMA.partition("edge")[0]).out
    assert lossy.startswith("1 step from the schema of main; all can be taken, with --allow-data-loss\n")


def test_a_plan_writes_nothing(graph: str) -> None:
    before = run("snapshot", graph, "--json").document
    planned(graph, "--schema", "next.pg")
    assert run("snapshot", graph, "--json").document == before
    assert run("schema", "show", graph).out == SCHEMA


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--schema", "no.pg"], "no.pg"),
        (["--schema", "-"], "line 1"),
        (["--schema", "social.pg", "--branch", "trail"], "did you mean 'trial'"),
    ],
)
def test_a_plan_to_no_schema_or_on_no_branch_is_bad_input(graph: str, arguments: list[str], text: str) -> None:
    answer = omniray_command("schema", "plan", graph, *arguments, stdin="node T { a: Nope }")
    assert (answer.code, answer.out) == (3, "")
    assert text in answer.err


def test_the_schema_of_a_branch_is_shown(graph: str) -> None:
    assert run("schema", "show", graph, "--branch", "trial").out == SCHEMA
    assert run("schema", "show", graph, "--branch", "trial", "--json").document["branch"] == "trial"


@pytest.mark.parametrize("source", ["graph", "social.pg", "-"])
def test_lint_takes_a_graph_a_file_or_standard_input(graph: str, source: str) -> None:
    document = run("schema", "lint", source, "--json", stdin=SCHEMA).document
    assert set(document) == {"finding_count", "findings"}
    (found,) = document["findings"]
    assert (found["code"], found["type"], found["property"]) == ("repeatable_edge", "Knows", None)
    said = run("schema", "lint", source, stdin=SCHEMA).out.splitlines()
    assert said[0] == "1 finding"
    assert said[3].split()[:2] == ["repeatable_edge", "Knows"]


def test_lint_of_what_is_no_schema_is_bad_input(graph: str) -> None:
    assert omniray_command("schema", "lint", "-", stdin="node T {").code == 3
    assert omniray_command("schema", "lint", "no.pg").code == 3
    assert omniray_command("schema", "lint", "nowhere").code == 3
