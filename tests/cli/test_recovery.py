"""The verbs that heal, and what all others say of it: in words for a person, in one document for a program."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omniray.coordinator.cli.recovery import seconds
from omniray.coordinator.client import link
from omniray.engine.base.failpoints import Point
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.clocks import SleepersClock
from tests.commands import Answer, omniray_command, omniray_process, run
from tests.foreign import PEOPLE, append, commit_and_die, people, plain, plain_ids, with_people, write
from tests.graphs import INSERT, PERSON, Adding, Parts, parts_of
from tests.kit.mortal import crash
from tests.stores import Root

VERBS = ["recover", "recoveries", "repair", "cleanup", "outcome"]
BEFORE_COMMIT, AFTER_COMMIT = Point.C_BEFORE_PUT, Point.C_AFTER_PUT
DEAD = dataclasses.replace(this_process(), started="at another time")
ELSEWHERE = Process("elsewhere", 1, "1")
HEALED = "note: healed after writers that died: {}; 'omniray recoveries' lists what was done\n"
WAITING = "note: 1 write can't be finished, since something else wrote to a table; 'omniray repair' shows what\n"
OPENING = {
    "snapshot": [],
    "history": [],
    "export": [],
    "schema show": [],
    "schema plan": ["--schema", "person.pg"],
    "schema lint": [],
    "sql": ["select 1"],
    "recoveries": [],
    "cleanup": ["--orphans"],
    "outcome": [new_ulid()],
    "mutate": ["-", "--params", '{"name": "cy"}'],
    "load": ["more.jsonl"],
}
"""The verbs that do something else, with what they need beside a graph."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph with ann and bob, made once and copied for each test."""
    return with_people(Root(str(tmp_path_factory.mktemp("template")), {})).uri


@pytest.fixture
def store(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    shutil.copytree(template, "graph")
    store = open_store(tmp_path / "graph")
    yield store
    store.close()


@pytest.fixture
def graph(store: ObjectStore) -> str:
    return store.uri


def leave(store: ObjectStore, point: Point, name: str = "ghost", by: Process = DEAD) -> str:
    """Have a process die at a point while it inserts a person; the id of the operation that it left."""

    def insert(parts: Parts) -> None:
        parts.writer.attempts._process = by
        parts.writer.commit(Adding(parts.schema, {PERSON: [name]}))

    before = set(parts_of(store).sidecars.listed())
    crash(store, point, insert)
    (left,) = set(parts_of(store).sidecars.listed()) - before
    return left


def leave_waiting(store: ObjectStore) -> str:
    """A committed write of a dead process, whose place a foreign writer has taken; the operation's id."""
    left = leave(store, AFTER_COMMIT)
    append(store, "mallory")
    return left


def names(graph: str) -> list[str]:
    rows = run("sql", graph, "select name from Person order by 1", "--json").document["rows"]
    return [row["name"] for row in rows]


def words(answer: Answer) -> list[list[str]]:
    return [line.split() for line in answer.out.splitlines()]


# recover


def test_recover_tells_what_it_finished_and_what_it_cleared_away(store: ObjectStore, graph: str) -> None:
    leave(store, BEFORE_COMMIT, "never")
    leave(store, AFTER_COMMIT, "landed")
    answer = run("recover", graph)
    assert answer.out == (
        "rolled forward: 1 operation, committed before and finished now\n"
        "rolled back: 1 operation, never committed and cleared away now\n"
    )
    assert answer.err == ""
    assert plain_ids(store) == ["ann", "bob", "landed"]


def test_recover_names_the_operations_in_its_document(store: ObjectStore, graph: str) -> None:
    back, forward = leave(store, BEFORE_COMMIT, "never"), leave(store, AFTER_COMMIT, "landed")
    lives = leave(store, BEFORE_COMMIT, "living", by=this_process())
    answer = run("recover", graph, "--json")
    assert answer.document == {
        "rolled_forward": [forward],
        "rolled_back": [back],
        "left": [lives],
        "awaiting_repair": [],
    }
    assert answer.err == ""


def test_recover_says_that_there_was_nothing_to_do(graph: str) -> None:
    assert run("recover", graph).out == "nothing to recover\n"


def test_recover_leaves_a_writer_elsewhere_alone_until_its_grace_is_over(store: ObjectStore, graph: str) -> None:
    left = leave(store, BEFORE_COMMIT, by=ELSEWHERE)
    assert run("recover", graph).out.startswith("left alone: 1 operation of writers that may live; --grace sets when")
    assert run("recover", graph, "--grace", "0.000001s", "--json").document["rolled_back"] == [left]


def test_recover_points_to_repair_where_a_foreign_writer_stands_in_the_way(store: ObjectStore, graph: str) -> None:
    left = leave_waiting(store)
    answer = run("recover", graph)
    assert answer.out == "waiting: 1 operation, since something else wrote to a table; 'omniray repair' shows it\n"
    assert run("recover", graph, "--json").document["awaiting_repair"] == [left]
    run("repair", graph, "--discard")
    assert run("recover", graph).out == "nothing to recover\n"
    assert left in {told["operation_id"] for told in run("recoveries", graph, "--json").document["recoveries"]}


def test_a_branch_is_taken_from_a_coordinator_on_demand_only(
    store: ObjectStore, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "time", SleepersClock())
    take_over(parts_of(store).tip, str(Incarnation(new_ulid(), ELSEWHERE, "there:1234")))
    add = ["mutate", graph, "-", "--params", '{"name": "eve"}']
    for command in (["recover", graph], add):
        refused = omniray_command(*command, stdin=INSERT)
        assert (refused.code, "'omniray recover --take-over'" in refused.err) == (5, True)
    run("recover", graph, "--take-over")
    run(*add, stdin=INSERT)
    assert names(graph) == ["ann", "bob", "eve"]


# What other verbs say of it


@pytest.mark.parametrize("verb", OPENING)
def test_whoever_opens_a_graph_is_told_what_that_has_healed(store: ObjectStore, graph: str, verb: str) -> None:
    Path("more.jsonl").write_text('{"type": "Person", "data": {"name": "di"}}\n')
    Path("person.pg").write_text("node Person { name: String @key }")
    leave(store, BEFORE_COMMIT)
    answer = run(*verb.split(), graph, *OPENING[verb], stdin=INSERT)
    assert answer.err == HEALED.format("1 uncommitted write cleared away")


def test_committed_and_uncommitted_writes_are_told_apart_and_told_once(store: ObjectStore, graph: str) -> None:
    leave(store, BEFORE_COMMIT, "never")
    leave(store, AFTER_COMMIT, "landed")
    told = HEALED.format("1 committed write finished, 1 uncommitted write cleared away")
    assert [run("history", graph).err, run("history", graph).err] == [told, ""]


def test_a_program_is_told_nothing_on_the_side(store: ObjectStore, graph: str) -> None:
    leave(store, AFTER_COMMIT)
    answer = run("snapshot", graph, "--json")
    assert answer.err == ""
    assert [table["row_count"] for table in answer.document["tables"]] == [0, 0, 3]


def test_readers_are_told_of_a_write_that_waits_for_a_repair(store: ObjectStore, graph: str) -> None:
    leave_waiting(store)
    assert run("history", graph).err == WAITING
    assert run("repair", graph).err == ""


def test_a_killed_process_is_healed_by_the_next_without_a_line_of_the_log(graph: str) -> None:
    """In processes of their own: in this one the log would go to the handlers of the tests."""
    txn_id = new_ulid()
    Path("add.gq").write_text(INSERT)
    add = ["mutate", graph, "add.gq", "--params", '{"name": "eve"}', "--txn-id", txn_id]
    killed = omniray_process(*add, OMNIRAY_FAILPOINTS="phase_c.after_put=kill")
    assert (killed.code, killed.out, killed.err) == (-9, "", "")
    asked = omniray_process("outcome", graph, txn_id)
    assert (asked.out, asked.err) == (f"{txn_id} was committed\n", HEALED.format("1 committed write finished"))


@pytest.mark.parametrize(("debug", "is_heard"), [("", False), ("1", True)])
def test_the_log_is_heard_on_demand_only(
    debug: str, is_heard: bool, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python shows warnings by itself where a logger and those above it have no handler at all."""
    log = logging.getLogger("omniray")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setenv("OMNIRAY_DEBUG", debug)
    run("history", graph)
    assert (log.handlers == []) == is_heard


# recoveries


def test_recoveries_lists_what_was_done_newest_first(store: ObjectStore, graph: str) -> None:
    back = leave(store, BEFORE_COMMIT, "never")
    run("recover", graph)
    forward = leave(store, AFTER_COMMIT, "landed")
    run("recover", graph)
    newest, oldest = run("recoveries", graph, "--json").document["recoveries"]
    assert {key: newest[key] for key in newest if key != "created_at"} == {
        "operation_id": forward,
        "recovery_kind": "RolledForward",
        "recovery_for_actor": "ann",
        "sidecar_writer_kind": "Mutation",
        "outcomes": {PERSON: "RolledPastExpected"},
        "actor": "omniray:recovery",
    }
    assert (oldest["operation_id"], oldest["recovery_kind"]) == (back, "RolledBack")
    assert oldest["created_at"] <= newest["created_at"]
    header, _, first, second = words(run("recoveries", graph))
    assert header == ["time", "recovery", "operation", "kind", "actor", "tables"]
    assert first[2:] == ["RolledForward", forward, "Mutation", "ann", "node:Person=RolledPastExpected"]
    assert second[2:] == ["RolledBack", back, "Mutation", "ann", "node:Person=NoMovement"]
    limited = run("recoveries", graph, "--limit", "1", "--json").document["recoveries"]
    assert [one["operation_id"] for one in limited] == [forward]


def test_a_graph_whose_writers_all_lived_has_no_recoveries(graph: str) -> None:
    assert run("recoveries", graph).out == "nothing had to be recovered so far\n"
    assert run("recoveries", graph, "--json").document == {"recoveries": []}


# repair


def test_repair_says_that_nobody_else_wrote(graph: str) -> None:
    for flags in ([], ["--adopt"], ["--discard"]):
        assert run("repair", graph, *flags).out == "nothing but omniray has written to the tables\n"
    assert run("repair", graph, "--json").document == {"found": [], "commit_id": None, "versions": {}, "aside": []}


def test_repair_shows_what_somebody_else_wrote_and_changes_nothing(store: ObjectStore, graph: str) -> None:
    append(store, "mallory", "max")
    plain(store).add_columns({"extra": "age + 1"})
    shown = run("repair", graph)
    assert [row[:-2] for row in words(shown)[2:4]] == [
        [PERSON, "5", "6", "Append", "2", "->", "4"],
        [PERSON, "5", "7", "Merge,", "with", "another", "schema", "4", "->", "4"],
    ]
    assert shown.out.splitlines()[-1] == (
        "nothing was changed. Stop what wrote it, then make it a commit of the graph with --adopt, "
        "or set it aside with --discard"
    )
    (found,) = run("repair", graph, "--json").document["found"]
    assert (found["table_key"], found["pinned"], found["head"]) == (PERSON, 5, 7)
    assert [(one["rows_before"], one["rows_after"]) for one in found["foreign"]] == [(2, 4), (4, 4)]
    assert plain(store).version == 7


def test_a_write_to_a_table_that_somebody_else_changed_points_to_repair(store: ObjectStore, graph: str) -> None:
    append(store, "mallory")
    answer = omniray_command("mutate", graph, "-", "--params", '{"name": "eve"}', stdin=INSERT)
    assert (answer.code, "'omniray repair'" in answer.err) == (6, True)


def test_what_is_adopted_becomes_a_commit_of_its_actor(store: ObjectStore, graph: str) -> None:
    append(store, "mallory")
    answer = run("repair", graph, "--adopt")
    newest = run("history", graph, "--json").document["commits"][0]
    assert answer.out.splitlines()[-1] == f"adopted as commit {newest['commit_id']}"
    assert (newest["kind"], newest["actor"], newest["tables"]) == ("Repair", "tester", [PERSON])
    assert names(graph) == ["ann", "bob", "mallory"]


def test_what_breaks_a_rule_is_not_adopted_and_the_way_out_is_told(store: ObjectStore, graph: str) -> None:
    write(store, people("mallory", "mallory"))
    answer = omniray_command("repair", graph, "--adopt")
    assert (answer.code, answer.out) == (3, "")
    assert "can't be adopted" in answer.err
    assert "'omniray repair --discard'" in answer.err
    assert names(graph) == ["ann", "bob"]


def test_what_is_discarded_is_gone_from_the_table_by_a_commit(store: ObjectStore, graph: str) -> None:
    append(store, "mallory")
    answer = run("repair", graph, "--discard")
    newest = run("history", graph, "--json").document["commits"][0]
    assert answer.out.splitlines()[-1] == (
        f"discarded: the tables hold what the graph committed, by commit {newest['commit_id']}"
    )
    assert plain_ids(store) == ["ann", "bob"]


def test_a_foreign_version_in_the_place_of_a_commit_can_only_be_discarded(store: ObjectStore, graph: str) -> None:
    commit_and_die(store, "dan")
    append(store, "mallory")
    commit = run("history", graph, "--json").document["commits"][0]["commit_id"]
    advice = run("repair", graph).out.splitlines()[-1]
    assert f"plain Lance can't see them: {commit}" in advice
    assert "--adopt" not in advice
    assert omniray_command("repair", graph, "--adopt").code == 6
    first, aside = run("repair", graph, "--discard").out.splitlines()[-2:]
    assert first == "discarded: the tables hold what the graph committed"
    assert (Path(graph) / aside.removeprefix("set aside as ")).is_file()
    assert aside.startswith(f"set aside as {PEOPLE}/")
    assert plain_ids(store) == ["ann", "bob", "dan"]


def test_repair_looks_at_the_named_tables_only(store: ObjectStore, graph: str) -> None:
    append(store, "mallory")
    assert run("repair", graph, "--discard", "--table", "node:City", "--json").document["found"] == []
    unknown = omniray_command("repair", graph, "--table", "Person")
    assert (unknown.code, PERSON in unknown.err) == (3, True)


# cleanup


def test_cleanup_deletes_what_writers_that_died_left_and_a_dry_run_only_says_so(store: ObjectStore, graph: str) -> None:
    leave(store, BEFORE_COMMIT)
    run("recover", graph)
    sweep = ["cleanup", graph, "--orphans", "--older-than", "0s"]
    would = run(*sweep, "--dry-run", "--json").document
    assert would["dry_run"]
    orphans = [path for table in would["tables"] for path in table["paths"]]
    assert any(path.startswith(f"{PEOPLE}/data/") for path in orphans)
    assert all((Path(graph) / path).is_file() for path in orphans)
    assert f"{would['files']} files" in run(*sweep, "--dry-run").out.splitlines()[0]
    text = run(*sweep).out.splitlines()
    assert text[0].endswith(" deleted")
    assert any(line.startswith(f"  {PEOPLE}: ") for line in text[1:])
    assert not any((Path(graph) / path).exists() for path in orphans if path.startswith(PEOPLE))
    assert names(graph) == ["ann", "bob"]


def test_cleanup_leaves_young_files_alone(store: ObjectStore, graph: str) -> None:
    leave(store, BEFORE_COMMIT)
    assert run("cleanup", graph, "--orphans").out == "0 files (0 bytes) deleted\n"


def test_cleanup_tells_what_it_spared_and_what_it_does_not_know(store: ObjectStore, graph: str) -> None:
    leave(store, BEFORE_COMMIT, by=this_process())
    (Path(graph) / "notes.txt").write_text("mine")
    text = run("cleanup", graph, "--orphans", "--older-than", "0s").out.splitlines()
    assert any(line.startswith(f"  {PEOPLE}: spared, in use by ") for line in text)
    assert text[-1] == "left alone: 1 file of which omniray knows nothing"
    assert (Path(graph) / "notes.txt").exists()


# outcome, and writes that may be repeated


def test_a_write_is_applied_once_by_its_id_and_says_when_it_was_repeated(graph: str) -> None:
    txn_id = new_ulid()
    add = ["mutate", graph, "-", "--txn-id", txn_id, "--params"]
    first = run(*add, '{"name": "eve"}', "--json", stdin=INSERT).document
    again = run(*add, '{"name": "eve"}', "--json", stdin=INSERT).document
    assert (first["commit_id"], first["repeated"]) == (txn_id, False)
    assert again == {**first, "repeated": True}
    assert run(*add, '{"name": "eve"}', stdin=INSERT).out == (
        f"written before, nothing was applied now: 1 node and 0 edges, commit {txn_id}\n"
    )
    other = omniray_command(*add, '{"name": "mallory"}', "--json", stdin=INSERT)
    assert (other.code, other.error["kind"], other.error["txn_id"]) == (4, "payload_mismatch", txn_id)
    assert len(run("history", graph, "--json").document["commits"]) == 6


def test_a_load_is_applied_once_by_its_id(graph: str) -> None:
    Path("more.jsonl").write_text('{"type": "Person", "data": {"name": "eve"}}\n{"type": "Person"}\n')
    load = ["load", graph, "more.jsonl", "--on-error", "reject", "--txn-id", new_ulid(), "--json"]
    first = run(*load).document
    assert (first["affected_nodes"], first["rejected"], first["repeated"]) == (1, 1, False)
    assert run(*load).document == {**first, "repeated": True}
    assert names(graph) == ["ann", "bob", "eve"]


def test_outcome_tells_a_committed_write_from_one_that_was_not(store: ObjectStore, graph: str) -> None:
    committed = run("history", graph, "--json").document["commits"][0]["commit_id"]
    assert run("outcome", graph, committed).out == f"{committed} was committed\n"
    assert run("outcome", graph, committed, "--json").document == {
        "txn_id": committed,
        "committed": True,
        "commit_id": committed,
    }
    never = new_ulid()
    text = f"{never} was not committed, and no try of it so far will be\n"
    assert run("outcome", graph, never).out == text
    assert run("outcome", graph, never, "--json").document == {"txn_id": never, "committed": False, "commit_id": None}


@pytest.mark.parametrize("verb", ["outcome", "mutate"])
def test_what_is_no_id_is_refused_with_the_way_to_make_one(graph: str, verb: str) -> None:
    arguments = {"outcome": ["mine"], "mutate": ["-", "--params", '{"name": "eve"}', "--txn-id", "mine"]}
    answer = omniray_command(verb, graph, *arguments[verb], stdin=INSERT)
    assert (answer.code, "ULID" in answer.err) == (3, True)


# Usage


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_examples_in_its_help(verb: str) -> None:
    text = run(verb, "--help").out
    assert "--json" in text
    assert f"Examples:\n    omniray {verb}" in text


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["recover"], "URI"),
        (["recover", "graph", "--grace", "soon"], "write 90s, 30m, 1h or 2d"),
        (["recover", "graph", "--grace", "-5s"], "write 90s, 30m, 1h or 2d"),
        (["recover", "graph", "--grace", "0s"], "would take every writer for dead"),
        (["recoveries", "graph", "--limit", "0"], "--limit"),
        (["repair", "graph", "--adopt", "--discard"], "not both"),
        (["cleanup", "graph"], "say what to clean up: --orphans"),
        (["cleanup", "graph", "--orphans", "--older-than", "1w"], "write 90s, 30m, 1h or 2d"),
        (["cleanup", "graph", "--orphans", "--older-than", "99999999999d"], "write 90s, 30m, 1h or 2d"),
        (["outcome", "graph"], "TXN_ID"),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_anything_is_opened(
    arguments: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = omniray_command(*arguments)
    assert (answer.code, hint in answer.err) == (2, True), answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "length_s"), [("90", 90), ("90s", 90), ("1.5m", 90), (" 2 h ", 7200), ("1d", 86400), ("0s", 0)]
)
def test_a_time_is_a_number_with_a_unit(text: str, length_s: float) -> None:
    assert seconds(text, "--grace") == length_s


@pytest.mark.parametrize("verb", VERBS)
def test_where_no_graph_is_every_verb_says_so(verb: str, tmp_path: Path) -> None:
    more = {"cleanup": ["--orphans"], "outcome": [new_ulid()]}.get(verb, [])
    answer = omniray_command(verb, tmp_path / "nowhere", *more, "--json")
    assert (answer.code, answer.out, answer.error["kind"]) == (3, "", "not_found")


def test_an_interrupted_write_names_both_ways_to_learn_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omniray.engine.graph.open", interrupt)
    answer = omniray_command("snapshot", "graph")
    assert answer.code == 130
    assert "'omniray history'" in answer.err
    assert "'omniray outcome'" in answer.err
