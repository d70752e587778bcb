"""The verbs of branches: what they say in words and in JSON, how they end, and what bad input comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omniray
from tests.commands import Answer, omniray_command, run

SCHEMA = "node Person { name: String @key   age: I32? }\nedge Knows: Person -> Person\n"
ANN = '{"type": "Person", "data": {"name": "Ann", "age": 41}}\n'
SET = "query age($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
MERGED = {"outcome", "commit_id", "conflicts", "conflict_count", "source_commit", "source_group", "tables", "versions"}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A graph with Ann, and a branch of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    Path("social.pg").write_text(SCHEMA)
    run("init", "graph", "--schema", "social.pg")
    load("graph", "Ann", age=41)
    run("branch", "create", "graph", "trial")
    return "graph"


def load(graph: str, name: str, *arguments: str, **values: Any) -> Any:
    Path("one.jsonl").write_text(json.dumps({"type": "Person", "data": {"name": name, **values}}) + "\n")
    return run("load", graph, "one.jsonl", "--json", *arguments).document


def set_age(graph: str, age: int, *arguments: str) -> Any:
    return run("mutate", graph, "-", "--params", json.dumps({"name": "Ann", "age": age}), *arguments, stdin=SET)


def listed(graph: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("branch", "list", graph, "--json").document["branches"]
    return found


def people(graph: str, *arguments: str) -> list[str]:
    rows = run("sql", graph, "select name from Person order by name", "--json", *arguments).document["rows"]
    return [row["name"] for row in rows]


def error_of(answer: Answer) -> str:
    """The one line of a command that was refused."""
    assert (answer.out, answer.err.count("\n")) == ("", 1), answer
    assert answer.err.startswith("error: ")
    return answer.err


# Branches


def test_a_branch_is_created_written_and_listed(graph: str) -> None:
    load(graph, "Bob", "--branch", "trial", "--message", "on trial")
    load(graph, "Cy")
    main, trial = listed(graph)
    assert (main["name"], main["parent"], main["ahead"], main["behind"]) == ("main", None, 0, 0)
    assert (trial["name"], trial["parent"], trial["ahead"], trial["behind"]) == ("trial", "main", 1, 1)
    assert (trial["actor"], trial["tables"]) == ("tester", ["node:Person"])
    assert {"head", "head_at", "created_at", "start", "branch_id"} <= set(trial)
    text = run("branch", "list", graph).out
    assert text.splitlines()[0].split() == ["branch", "parent", "ahead", "behind", "head", "actor", "tables"]


def test_a_branch_begins_with_a_branch_a_commit_or_a_time(graph: str) -> None:
    load(graph, "Bob", "--branch", "trial")
    first = run("history", graph, "--json").document["commits"][-1]
    assert (
        run("branch", "create", graph, "a", "--from", "trial", "--json").document["start"] == listed(graph)[1]["head"]
    )
    assert run("branch", "create", graph, "b", "--from", first["commit_id"]).out.endswith(f"{first['commit_id']}\n")
    run("branch", "create", graph, "c", "--from", first["at"])
    assert [people(graph, "--branch", name) for name in "abc"] == [["Ann", "Bob"], [], []]


def test_a_branch_is_renamed_and_deleted(graph: str) -> None:
    renamed = run("branch", "rename", graph, "trial", "team/kept", "--json").document
    assert set(renamed) == {"name", "branch_id", "commit_id", "repeated"}
    assert (renamed["name"], renamed["branch_id"]) == ("team/kept", listed(graph)[1]["branch_id"])
    assert run("branch", "delete", graph, "team/kept").out == "deleted branch team/kept\n"
    assert [one["name"] for one in listed(graph)] == ["main"]
    assert [one["kind"] for one in run("history", graph, "--json").document["commits"]][:3] == [
        "BranchDelete", "BranchRename", "BranchCreate"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("create", ["one"]), ("delete", ["trial"]), ("rename", ["trial", "other"])],
)
def test_a_verb_with_an_id_is_carried_out_once(graph: str, verb: str, arguments: list[str]) -> None:
    txn_id = "01K9ZQ5T7Z0000000000000000"
    said = [run("branch", verb, graph, *arguments, "--txn-id", txn_id, "--json").document for _ in range(2)]
    assert [one["repeated"] for one in said] == [False, True]
    assert {one["commit_id"] for one in said} == {txn_id}
    again = run("branch", verb, graph, *arguments, "--txn-id", txn_id).out
    assert "before, nothing was done now" in again


def test_a_branch_with_children_is_deleted_with_force(graph: str) -> None:
    run("branch", "create", graph, "child", "--from", "trial")
    refused = omniray_command("branch", "delete", graph, "trial")
    assert (refused.code, "branches of its own: child" in error_of(refused)) == (4, True)
    run("branch", "delete", graph, "trial", "--force")
    assert [one["name"] for one in listed(graph)] == ["main"]


def test_every_verb_of_data_works_on_a_branch(graph: str) -> None:
    loaded = load(graph, "Bob", "--branch", "trial")
    set_age(graph, 50, "--branch", "trial")
    on = ("--branch", "trial")
    assert people(graph, *on) == ["Ann", "Bob"]
    assert people(graph) == ["Ann"]
    assert run("snapshot", graph, "--json", *on).document["branch"] == "trial"
    history = run("history", graph, "--json", *on).document
    assert (history["branch"], len(history["commits"])) == ("trial", 4)
    assert "Bob" in run("export", graph, *on).out
    assert run("outcome", graph, loaded["commit_id"], "--json", *on).document["committed"]
    assert not run("outcome", graph, loaded["commit_id"], "--json").document["committed"]
    assert run("recoveries", graph, "--json", *on).document == {"recoveries": []}


def test_a_message_is_in_the_history(graph: str) -> None:
    load(graph, "Bob", "--message", "because")
    set_age(graph, 3, "--message", "a birthday")
    assert [one["message"] for one in run("history", graph, "--json").document["commits"]][:2] == [
        "a birthday", "because"
    ]  # fmt: skip
    assert "a birthday" in run("history", graph).out


# Merging


def test_a_merge_says_what_it_did(graph: str) -> None:
    load(graph, "Bob", "--branch", "trial")
    foretold = run("branch", "merge", graph, "trial", "--preview").out
    assert foretold == "would be fast-forwarded: 1 node and 0 edges would change, nothing was written\n"
    load(graph, "Cy")
    merged = run("branch", "merge", graph, "trial", "--message", "tried", "--json").document
    assert set(merged) >= MERGED
    assert (merged["outcome"], merged["conflicts"], merged["conflict_count"]) == ("merged", [], 0)
    newest = run("history", graph, "--json").document["commits"][0]
    assert (newest["kind"], newest["message"], newest["merged"]) == ("BranchMerge", "tried", [merged["source_commit"]])
    assert run("branch", "merge", graph, "trial").out == "already up to date, nothing was committed\n"
    assert run("branch", "merge", graph, "main", "--into", "trial").out.startswith("fast-forwarded: 1 node and 0 edges")
    assert people(graph, "--branch", "trial") == ["Ann", "Bob", "Cy"]


def test_a_branch_is_deleted_when_it_is_merged(graph: str) -> None:
    load(graph, "Bob", "--branch", "trial")
    run("branch", "merge", graph, "trial", "--delete-source")
    assert [one["name"] for one in listed(graph)] == ["main"]
    assert people(graph) == ["Ann", "Bob"]


@pytest.mark.parametrize("preview", [["--preview"], []])
def test_conflicts_are_the_document_and_end_with_4(graph: str, preview: list[str]) -> None:
    set_age(graph, 1, "--branch", "trial")
    set_age(graph, 2)
    before = run("history", graph, "--json").document
    answer = omniray_command("branch", "merge", graph, "trial", *preview, "--json")
    assert (answer.code, answer.err) == (4, "")
    document = answer.document
    assert set(document) >= {"outcome", "commit_id", "conflicts", "conflict_count"}
    assert (document["outcome"], document["commit_id"], document["conflict_count"]) == ("conflicts", None, 1)
    (conflict,) = document["conflicts"]
    assert (conflict["kind"], conflict["type"], conflict["properties"]) == ("divergent_update", "Person", ["age"])
    assert conflict["values"] == {"source": {"age": 1}, "target": {"age": 2}}
    shown = omniray_command("branch", "merge", graph, "trial", *preview)
    assert (shown.code, shown.out.splitlines()[0]) == (4, "1 conflict")
    assert "divergent_update" in shown.out
    assert bool(shown.err) is not bool(preview), "a preview is no error"
    assert run("history", graph, "--json").document == before


def test_a_commit_is_reverted(graph: str) -> None:
    commit_id = load(graph, "Bob")["commit_id"]
    assert "would be reverted: 1 node and 0 edges" in run("revert", graph, commit_id, "--preview").out
    document = run("revert", graph, commit_id, "--message", "no", "--json").document
    assert (document["outcome"], document["source_commit"]) == ("reverted", commit_id)
    assert people(graph) == ["Ann"]


def test_a_diff_shows_rows_and_properties(graph: str) -> None:
    load(graph, "Bob", "--branch", "trial")
    set_age(graph, 50, "--branch", "trial")
    document = run("diff", graph, "main", "trial", "--json").document
    assert document["types"] == {"Person": {"insert": 1, "update": 1, "delete": 0}}
    by_id = {one["id"]: one for one in document["changes"]}
    assert by_id["Ann"] == {
        "type": "Person", "kind": "update", "id": "Ann", "changed": ["age"],
        "before": {"name": "Ann", "age": 41}, "after": {"name": "Ann", "age": 50},
    }  # fmt: skip
    assert (by_id["Bob"]["kind"], by_id["Bob"]["before"]) == ("insert", None)
    assert "changes" not in run("diff", graph, "main", "trial", "--summary", "--json").document
    assert run("diff", graph, "main", "trial", "--type", "Person").out.count("\n") >= 4
    assert run("diff", graph, "main", "main", "--json").document["changes"] == []


# Bad input


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["branch", "create", "graph", "main"], 3, "every graph has its main branch"),
        (["branch", "create", "graph", "trial"], 4, "there is a branch 'trial' already"),
        (["branch", "create", "graph", "a b"], 3, "invalid branch name 'a b'"),
        (["branch", "create", "graph", "../up"], 3, "may not contain '..'"),
        (["branch", "create", "graph", "x" * 129], 3, "has 129 characters"),
        (["branch", "create", "graph", ""], 3, "invalid branch name ''"),
        (["branch", "create", "graph", "new", "--from", "nobody"], 3, "nobody"),
        (["branch", "create", "graph", "new", "--txn-id", "no id"], 3, "no id"),
        (["branch", "delete", "graph", "main"], 3, "main"),
        (["branch", "delete", "graph", "tril"], 3, "no branch 'tril'"),
        (["branch", "rename", "graph", "nobody", "new"], 3, "no branch 'nobody'"),
        (["branch", "rename", "graph", "trial", "main"], 3, "every graph has its main branch"),
        (["branch", "merge", "graph", "trial", "--into", "trial"], 3, "into itself"),
        (["branch", "merge", "graph", "nobody"], 3, "no branch 'nobody'"),
        (["branch", "merge", "graph", "trial", "--into", "nobody"], 3, "no branch 'nobody'"),
        (["diff", "graph", "main", "nobody"], 3, "no branch 'nobody'"),
        (["diff", "graph", "main", "trial", "--type", "Nobody"], 3, "Nobody"),
        (["revert", "graph", "01K9ZQ5T7Z0000000000000000"], 3, "01K9ZQ5T7Z0000000000000000"),
        (["revert", "graph", "yesterday"], 3, "yesterday"),
        (["snapshot", "graph", "--branch", "nobody"], 3, "no branch 'nobody'"),
        (["load", "graph", "one.jsonl", "--branch", "nobody"], 3, "no branch 'nobody'"),
        (["outcome", "graph", "01K9ZQ5T7Z0000000000000000", "--branch", "nobody"], 3, "no branch 'nobody'"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    graph: str, arguments: list[str], code: int, told: str
) -> None:
    before = run("history", graph, "--json").document, listed(graph)
    answer = omniray_command(*arguments)
    assert answer.code == code, answer
    assert told in error_of(answer)
    as_json = omniray_command(*arguments, "--json")
    assert (as_json.code, as_json.out, told in as_json.error["message"]) == (code, "", True)
    assert (run("history", graph, "--json").document, listed(graph)) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["branch"],
        ["branch", "create", "graph"],
        ["branch", "merge", "graph", "trial", "--on-conflict", "both"],
        ["diff", "graph", "main"],
        ["revert", "graph"],
    ],
)
def test_a_wrong_command_line_is_a_usage_error(graph: str, arguments: list[str]) -> None:
    assert omniray_command(*arguments).code == 2


@pytest.mark.parametrize(
    "verb", ["branch create", "branch delete", "branch rename", "branch list", "branch merge", "diff", "revert"]
)
def test_every_verb_has_json_and_examples_in_its_help(verb: str) -> None:
    text = run(*verb.split(), "--help").out
    assert "--json" in text
    assert "Examples:" in text
    assert f"omniray {verb} ./social" in text


def test_what_the_command_line_writes_an_open_graph_reads(graph: str) -> None:
    with omniray.open(graph, read_only=True) as opened:
        run("branch", "create", graph, "late")
        load(graph, "Bob", "--branch", "late")
        assert opened.snapshot(branch="late").count("Person") == 2
