"""Merges of branches: what is taken over and how, what is refused, and that each is applied once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

import omniray
from omniray.engine.base.errors import (
    Expired,
    InputError,
    MergeConflicts,
    NotFound,
    PayloadMismatch,
    Withdrawn,
    error_of_kind,
)
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches import conflicts, merge_plan, merge_rows, table_merge
from omniray.engine.branches.merge_plan import MergePlan
from omniray.engine.branches.merge_result import MergeOutcome
from omniray.engine.branches.states import States
from omniray.engine.branches.table_merge import How
from omniray.engine.history.merged_commits import OtherLines
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.reading import table_diff
from omniray.engine.tables import storage
from tests.graphs import files_below
from tests.merging import (
    ages,
    conflicts_of,
    move,
    people,
    remove,
    seeded,
    set_age,
    state_of,
    unchanged,
)
from tests.stores import Root

SIDE = "side"
WITH_TWIN = pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    """A graph with a branch on which nothing was changed yet."""
    with seeded(disk) as graph:
        graph.create_branch(SIDE)
        yield graph


def newest(graph: omniray.Graph, branch: str = "main") -> CommitObject:
    return graph._on(branch)._branch.newest()


def data_files(graph: omniray.Graph) -> set[str]:
    """The data files of all types, and none that is folded behind the answers."""
    files = (file.path for file in graph._branch.store.files(""))
    return {path for path in files if "/data/" in path and not path.startswith("__")}


def settle(graph: omniray.Graph) -> None:
    """Finish everything behind the answers: from here on only what a test does leaves sidecars."""
    for one in (graph, graph._on(SIDE)):
        one._finaliser.flush()
        one._finaliser.tidy()
    assert graph._branch.sidecars.listed() == []


def refused(graph: omniray.Graph, **options: Any) -> MergeConflicts:
    """The error of a merge of the side branch, which changes nothing."""
    with unchanged(graph), pytest.raises(MergeConflicts) as found:
        graph.merge(SIDE, **options)
    return found.value


# Adoption


def test_a_branch_beside_an_unchanged_target_is_adopted_and_no_data_is_written(any_root: Root) -> None:
    with seeded(any_root) as graph:
        graph.create_branch(SIDE)
        graph.load(people("eve", "fay"), type="Person", branch=SIDE)
        remove(graph, "dan", SIDE)
        set_age(graph, "ann", 9, SIDE)
        before = data_files(graph)
        result = graph.merge(SIDE)
        assert (result.outcome, [one.how for one in result.tables]) == (MergeOutcome.FAST_FORWARD, [How.ADOPT])
        assert data_files(graph) == before
        assert state_of(graph) == state_of(graph, SIDE)
        pins = newest(graph).pins, newest(graph, SIDE).pins
        assert pins[0]["node:Person"].content == pins[1]["node:Person"].content
        assert pins[0]["node:Person"].line == graph.graph_id
        graph.flush()
        table = lance.dataset(f"{graph.uri}/nodes/Person.lance", storage_options=any_root.storage_options)
        assert sorted(table.to_table()["name"].to_pylist()) == ["ann", "bob", "cid", "eve", "fay"]


def test_the_changed_rows_of_adopted_tables_are_counted(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 9, SIDE)
    remove(graph, "dan", SIDE)
    graph.load(people("eve"), type="Person", branch=SIDE)
    graph.load([{"from": "ann", "to": "eve"}], type="Knows", branch=SIDE)
    foretold, result = graph.merge(SIDE, preview=True), graph.merge(SIDE)
    assert result.outcome is MergeOutcome.FAST_FORWARD
    assert (result.affected_nodes, result.affected_edges) == (3, 1)
    assert (foretold.affected_nodes, foretold.affected_edges) == (3, 1)


def test_a_target_whose_version_has_the_source_s_number_adopts_it(graph: omniray.Graph) -> None:
    """Both lines have a version of that number, with other rows: only contents are compared."""
    graph.create_branch("other")
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "ann", 2, "other")
    graph.revert(graph.snapshot(branch="other").commit_id, branch="other")
    set_age(graph, "bob", 3, SIDE)
    person = "node:Person"
    assert newest(graph, SIDE).pins[person].version == newest(graph, "other").pins[person].version
    assert graph.merge(SIDE, "other").outcome is MergeOutcome.FAST_FORWARD
    assert state_of(graph, "other") == state_of(graph, SIDE)
    graph.load(people("eve"), type="Person", branch="other")
    assert ages(graph, "other") == {**ages(graph, SIDE), "eve": None}


def _by_number(source: Any, target: Any, bases: Any) -> How:
    """A table is untouched if its number is that of the base."""
    if source.version == target.version:
        return How.SKIP
    return How.ADOPT if all(base.version == target.version for base in bases) else How.ROWS


@WITH_TWIN
def test_numbers_of_versions_say_nothing_about_another_line(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin compares version numbers, and takes two versions of one number for the same."""
    if not has_guard:
        monkeypatch.setattr(merge_plan, "how", _by_number)
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    graph.merge(SIDE)
    assert (ages(graph)["ann"] == 1) == has_guard
    assert ages(graph)["bob"] == 2


def test_tables_that_only_one_side_changed_are_taken_as_they_are(graph: omniray.Graph) -> None:
    graph.load([{"name": "coil"}], type="Company", branch=SIDE)
    set_age(graph, "ann", 1)
    before = data_files(graph)
    result = graph.merge(SIDE)
    assert (result.outcome, result.tables[0].how, len(result.tables)) == (MergeOutcome.MERGED, How.ADOPT, 1)
    assert data_files(graph) == before
    assert result.versions.keys() == {"node:Company"}
    assert (ages(graph)["ann"], "coil" in state_of(graph)["Company"]) == (1, True)


# By row and property


def test_two_edits_of_different_properties_of_one_row_are_both_there(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 41, SIDE)
    move(graph, "ann", "Rome")
    result = graph.merge(SIDE, actor="ann", message="what side did")
    assert state_of(graph)["Person"]["ann"] == {"name": "ann", "age": 41, "city": "Rome"}
    entry = graph.history(1)[0]
    assert (entry.commit_id, entry.kind, entry.actor, entry.message) == (
        result.commit_id, "BranchMerge", "ann", "what side did",
    )  # fmt: skip
    (parent,) = entry.merged
    assert (parent.line, parent.commit_id) == (graph._on(SIDE).line, graph.snapshot(branch=SIDE).commit_id)
    assert (entry.tables, entry.nodes, entry.edges, entry.outcome) == (("node:Person",), 1, 0, "merged")


def test_lists_vectors_and_blobs_are_compared_whole_and_null_is_not_empty(graph: omniray.Graph) -> None:
    whole = {"tags": ["a", "b"], "place": [1.0, 2.0], "photo": b"\x01"}
    graph.load(people("ann", **whole), type="Person", mode="merge")
    graph.merge("main", SIDE)
    graph.load(people("ann", **{**whole, "tags": []}), type="Person", mode="merge", branch=SIDE)
    graph.load(people("ann", **{**whole, "tags": None, "place": [1.0, 3.0]}), type="Person", mode="merge")
    assert conflicts_of(refused(graph)) == [("divergent_update", "Person", "ann", ("tags",))]
    graph.load(people("ann", **{**whole, "photo": b""}), type="Person", mode="merge")
    graph.merge(SIDE)
    assert state_of(graph)["Person"]["ann"] == {"name": "ann", **whole, "tags": [], "photo": b""}


def test_nodes_without_properties_are_merged_row_by_row(disk: Root) -> None:
    with omniray.init(disk.uri, schema="node Token {}\n") as graph:
        graph.load([{"id": "t1"}, {"id": "t2"}], type="Token")
        for name in (SIDE, "other"):
            graph.create_branch(name)
            graph.load([{"id": f"t-{name}"}], type="Token", branch=name)
        graph.load([{"id": "t1"}, {"id": "t3"}], type="Token", mode="overwrite", branch=SIDE)
        graph.load([{"id": "t4"}], type="Token")
        assert [one.how for one in graph.merge(SIDE).tables] == [How.ROWS]
        assert state_of(graph)["Token"].keys() == {"t1", "t3", "t4"}
        graph.merge("other")
        graph.merge("other", SIDE)
        graph.load([{"id": "t5"}], type="Token")
        graph.merge("main", SIDE)
        assert state_of(graph, SIDE)["Token"].keys() == {"t1", "t3", "t4", "t5", "t-other"}


def test_a_row_that_was_only_moved_is_no_change(graph: omniray.Graph) -> None:
    """Each small write puts the table's tail into a new file, with rows that it did not change."""
    set_age(graph, "ann", 1, SIDE)
    graph.load(people("eve"), type="Person", branch=SIDE)
    set_age(graph, "bob", 2)
    graph.load(people("fay"), type="Person")
    result = graph.merge(SIDE)
    assert [(one.how, one.written, one.removed) for one in result.tables] == [(How.ROWS, 2, 1)]
    assert ages(graph) == {"ann": 1, "bob": 2, "cid": 30, "dan": 30, "eve": None, "fay": None}


SETTLED: Mapping[str, tuple[Callable[[omniray.Graph, str], Any], Callable[[omniray.Graph, str], Any]]] = {
    "divergent_update": (lambda g, b: set_age(g, "ann", 1, b), lambda g, b: set_age(g, "ann", 2, b)),
    "divergent_insert": (
        lambda g, b: g.load(people("eve", age=1), type="Person", branch=b),
        lambda g, b: g.load(people("eve", age=2), type="Person", branch=b),
    ),
    "delete_vs_update": (lambda g, b: remove(g, "dan", b), lambda g, b: set_age(g, "dan", 2, b)),
    "update_vs_delete": (lambda g, b: set_age(g, "dan", 2, b), lambda g, b: remove(g, "dan", b)),
}


@pytest.mark.parametrize("kind", SETTLED)
@pytest.mark.parametrize("how", ["ours", "theirs"])
def test_a_conflict_of_values_is_settled_as_the_caller_says(graph: omniray.Graph, kind: str, how: str) -> None:
    there, here = SETTLED[kind]
    there(graph, SIDE)
    here(graph, "main")
    move(graph, "bob", "Rome", SIDE)
    assert refused(graph).facts["conflict_count"] == 1
    expected = ages(graph, SIDE if how == "theirs" else "main")
    result = graph.merge(SIDE, on_conflict=how)
    assert (result.outcome, result.conflict_count, result.tables[0].settled) == (MergeOutcome.MERGED, 0, 1)
    assert ages(graph) == expected
    assert state_of(graph)["Person"]["bob"]["city"] == "Rome", "what does not conflict is merged all the same"
    assert graph.merge(SIDE).outcome is MergeOutcome.ALREADY_UP_TO_DATE


# Rules over several rows


def test_a_new_edge_in_an_adopted_table_needs_its_nodes_on_the_target(graph: omniray.Graph) -> None:
    """The target changed nodes and no edge; so the edges' table would be adopted as it is."""
    graph.load([{"id": "k9", "from": "bob", "to": "dan"}], type="Knows", branch=SIDE)
    remove(graph, "dan")
    error = refused(graph)
    assert conflicts_of(error) == [("orphan_edge", "Knows", "k9", ("dst",))]
    assert error.facts["conflicts"][0]["values"] == {"source": {"dst": "dan"}, "target": None}
    assert "on_conflict" not in error.message  # neither side's value settles it
    assert conflicts_of(refused(graph, on_conflict="theirs")) == [("orphan_edge", "Knows", "k9", ("dst",))]
    graph.load(people("dan"), type="Person")
    graph.merge(SIDE)
    assert "k9" in state_of(graph)["Knows"]


def test_a_new_edge_of_the_target_keeps_nodes_from_being_deleted_by_an_adopted_table(graph: omniray.Graph) -> None:
    graph.load([{"id": "k9", "from": "dan", "to": "bob"}, {"id": "k8", "from": "bob", "to": "ann"}], type="Knows")
    remove(graph, "dan", SIDE)
    error = refused(graph)
    assert conflicts_of(error) == [("orphan_edge", "Knows", "k9", ("src",))]
    assert error.facts["conflicts"][0]["values"] == {"source": None, "target": {"src": "dan"}}
    graph.mutate('query q() { delete Knows where from = "dan" }')
    graph.merge(SIDE)
    assert "dan" not in ages(graph)


def test_an_edge_that_the_target_moved_to_a_node_that_the_source_deleted_is_a_conflict(graph: omniray.Graph) -> None:
    """The merged edge has the source's value and the target's end; the node's table is adopted."""
    graph.load([{"id": "k1", "from": "ann", "to": "bob", "since": 2}], type="Knows", mode="merge", branch=SIDE)
    remove(graph, "dan", SIDE)
    graph.load([{"id": "k1", "from": "dan", "to": "bob", "since": 1}], type="Knows", mode="merge")
    assert conflicts_of(refused(graph)) == [("orphan_edge", "Knows", "k1", ("src",))]


def test_an_edge_between_two_nodes_that_the_target_deleted_is_one_conflict(graph: omniray.Graph) -> None:
    graph.load([{"id": "k9", "from": "cid", "to": "dan"}], type="Knows", branch=SIDE)
    set_age(graph, "ann", 1, SIDE)
    remove(graph, "cid")
    remove(graph, "dan")
    assert conflicts_of(refused(graph)) == [("orphan_edge", "Knows", "k9", ("src", "dst"))]


@WITH_TWIN
def test_the_ends_of_edges_are_checked_also_if_their_table_is_adopted(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin takes an adopted table for valid by itself, and leaves an edge without its node."""
    if not has_guard:
        monkeypatch.setattr(MergePlan, "_add_adopted", lambda *arguments: None)
    graph.load([{"id": "k9", "from": "bob", "to": "dan"}], type="Knows", branch=SIDE)
    remove(graph, "dan")
    if has_guard:
        refused(graph)
    else:
        graph.merge(SIDE)
    assert ("k9" in state_of(graph)["Knows"]) == (not has_guard)


def test_values_that_must_be_unique_are_held_against_the_other_side_s(graph: omniray.Graph) -> None:
    graph.load(people("eve", email="e@x"), type="Person", branch=SIDE)
    graph.load(people("ann", age=30, city="Bonn", email="f@x"), type="Person", mode="merge", branch=SIDE)
    graph.load(people("fay", email="e@x"), type="Person")
    graph.load(people("gil", email="f@x"), type="Person")
    error = refused(graph)
    assert conflicts_of(error) == [
        ("unique_violation", "Person", "ann", ("email",)),
        ("unique_violation", "Person", "eve", ("email",)),
    ]
    first = error.facts["conflicts"][0]
    assert first["values"] == {"source": {"email": "f@x"}, "target": {"email": "f@x"}}
    assert "'gil'" in first["reason"]
    graph.load(people("gil", email="g@x"), type="Person", mode="merge")
    graph.load(people("fay", email=None), type="Person", mode="merge")
    graph.merge(SIDE)
    assert state_of(graph)["Person"]["eve"]["email"] == "e@x"


def test_a_value_that_the_target_gave_up_is_free(graph: omniray.Graph) -> None:
    graph.load(people("ann", age=30, city="Bonn", email="a@x"), type="Person", mode="merge")
    graph.merge("main", SIDE)
    graph.load(people("ann", age=30, city="Bonn", email="b@x"), type="Person", mode="merge", branch=SIDE)
    graph.load(people("eve", email="a@x"), type="Person", branch=SIDE)
    set_age(graph, "bob", 7)
    graph.merge(SIDE)
    assert {id: row.get("email") for id, row in state_of(graph)["Person"].items() if id in ("ann", "eve")} == {
        "ann": "b@x", "eve": "a@x",
    }  # fmt: skip


def test_edges_of_both_sides_together_may_be_too_many(graph: omniray.Graph) -> None:
    """Bob may own two companies and owns one; each side gives him another."""
    graph.load([{"id": "o2", "from": "bob", "to": "bolt"}], type="Owns", branch=SIDE)
    graph.load([{"id": "o3", "from": "bob", "to": "bolt"}], type="Owns")
    error = refused(graph)
    assert conflicts_of(error) == [("cardinality_violation", "Owns", "bob", ("src",))]
    (conflict,) = error.facts["conflicts"]
    assert conflict["values"] == {"source": {"edges": 2}, "target": {"edges": 2}}
    assert "would have 3 edges, allowed 0..2" in conflict["reason"]
    graph.mutate('query q() { delete Owns where from = "bob" }')
    graph.merge(SIDE)
    assert state_of(graph)["Owns"].keys() == {"o2"}


def test_edges_that_both_sides_left_may_be_too_few(graph: omniray.Graph) -> None:
    """Who leads must lead one at least; each side takes another one of two away."""
    graph.load([{"id": "l1", "from": "ann", "to": "acme"}, {"id": "l2", "from": "ann", "to": "bolt"}], type="Leads")
    graph.merge("main", SIDE)
    graph.mutate('query q() { delete Leads where to = "acme" }', branch=SIDE)
    graph.mutate('query q() { delete Leads where to = "bolt" }')
    assert conflicts_of(refused(graph)) == [("cardinality_violation", "Leads", "ann", ("src",))]
    remove(graph, "ann")
    graph.merge(SIDE)
    assert "ann" not in ages(graph), "who is gone need not lead"


UNRELATED = pytest.mark.parametrize("is_adopted", [True, False], ids=["adopted", "row by row"])


def lead(graph: omniray.Graph, id: str, person: str) -> None:
    graph.load([{"id": id, "from": person, "to": "acme"}], type="Leads")


@UNRELATED
def test_a_node_that_only_the_target_keeps_needs_its_edges(graph: omniray.Graph, is_adopted: bool) -> None:
    """The source deleted ann, and her edge with her; the target changed her, and she is to stay."""
    lead(graph, "l1", "ann")
    graph.merge("main", SIDE)
    remove(graph, "ann", SIDE)
    set_age(graph, "ann", 7)
    graph.mutate('query q() { delete Knows where from = "ann" }')
    graph.mutate('query q() { delete WorksAt where from = "ann" }')
    if not is_adopted:
        lead(graph, "l2", "bob")
    found = conflicts_of(refused(graph, on_conflict="ours"))
    assert found == [("cardinality_violation", "Leads", "ann", ("src",))]


@UNRELATED
def test_a_node_with_as_few_edges_as_on_the_source_is_no_conflict(graph: omniray.Graph, is_adopted: bool) -> None:
    """A node that was deleted and inserted anew has no edges, and the source is valid so."""
    lead(graph, "l1", "dan")
    graph.merge("main", SIDE)
    remove(graph, "dan", SIDE)
    graph.load(people("dan", age=30, city="Bonn"), type="Person", branch=SIDE)
    set_age(graph, "bob", 7)
    if not is_adopted:
        lead(graph, "l2", "bob")
    graph.merge(SIDE)
    assert {"dan"} == ages(graph).keys() - {"ann", "bob", "cid"}
    assert state_of(graph)["Leads"].keys() == (set() if is_adopted else {"l2"})


@UNRELATED
def test_the_first_edge_of_a_node_is_reverted(graph: omniray.Graph, is_adopted: bool) -> None:
    """Before it the node had none; whether an unrelated edge came since makes no difference."""
    lead(graph, "l1", "dan")
    first = graph.snapshot().commit_id
    if not is_adopted:
        lead(graph, "l2", "bob")
    graph.revert(first)
    assert state_of(graph)["Leads"].keys() == (set() if is_adopted else {"l2"})


def test_all_conflicts_are_told_and_no_more_are_listed_than_fit(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "LISTED_MAX", 10)
    names = [f"p{n:03}" for n in range(30)]
    for side, age in ((SIDE, 1), ("main", 2)):
        graph.load(people(*names, age=age, tags=["x" * 400]), type="Person", branch=side)
        graph.load([{"id": f"k-{side}", "from": "bob", "to": "dan"}], type="Knows", branch=side)
    remove(graph, "dan")
    foretold = graph.merge(SIDE, preview=True)
    assert (foretold.conflict_count, len(foretold.conflicts)) == (31, 10)
    assert [one.id for one in foretold.conflicts] == names[:10]
    error = refused(graph)
    assert (error.facts["conflict_count"], len(error.facts["conflicts"])) == (31, 10)
    commits = {"source": graph.snapshot(branch=SIDE).commit_id, "target": graph.snapshot().commit_id}
    assert all(one["commits"] == commits for one in error.facts["conflicts"])


def test_conflicts_travel_with_their_error(graph: omniray.Graph) -> None:
    graph.load(people("eve", tags=["x" * 500], photo=b"\x00" * 500), type="Person", branch=SIDE)
    graph.load(people("eve", tags=[], photo=b""), type="Person")
    error = refused(graph)
    for copy in (
        pickle.loads(pickle.dumps(error)),
        error_of_kind(error.kind, error.message, json.loads(json.dumps(error.facts))),
    ):
        assert copy.facts == error.facts
        assert isinstance(copy, MergeConflicts)
    (conflict,) = error.facts["conflicts"]
    assert conflict["values"]["source"] == {"tags": ["x" * 256 + "… (500 characters)"], "photo": "<500 bytes>"}
    assert (error.exit_code, error.http_status) == (4, 409)
    assert "--on-conflict" in error.message
    assert error.facts.keys() == graph.merge(SIDE, preview=True).as_json().keys()


def test_conflicts_of_any_values_are_valid_json(disk: Root) -> None:
    schema = "node Reading {\n    name: String @key\n    x: F64?\n    at: DateTime?\n    raw: Blob?\n    v: [F64]?\n}\n"
    with omniray.init(disk.uri, schema=schema) as graph:
        graph.create_branch(SIDE)
        there = {"name": "r", "x": float("nan"), "at": "2020-01-01T00:00:00Z", "raw": b"\xff", "v": [float("-inf")]}
        here = {"name": "r", "x": float("inf"), "at": "2021-01-01T00:00:00Z", "raw": b"\xfe", "v": [0.5]}
        graph.load([there], type="Reading", branch=SIDE)
        graph.load([here], type="Reading")
        told = graph.merge(SIDE, preview=True).as_json()
        assert json.loads(json.dumps(told, allow_nan=False)) == told
        assert told["conflicts"][0]["values"] == {
            "source": {"x": "NaN", "at": "2020-01-01T00:00:00+00:00", "raw": "base64:/w==", "v": ["-Infinity"]},
            "target": {"x": "Infinity", "at": "2021-01-01T00:00:00+00:00", "raw": "base64:/g==", "v": [0.5]},
        }


# Bases


def test_branches_that_merged_each_other_merge_again_without_conflict(graph: omniray.Graph) -> None:
    """Each side took in the other's first edit at its commit; then both have two bases in common."""
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    there, here = graph.snapshot(branch=SIDE).commit_id, graph.snapshot().commit_id
    graph.merge(there)
    graph.merge(here, SIDE)
    assert ages(graph) == ages(graph, SIDE) == {"ann": 1, "bob": 2, "cid": 30, "dan": 30}
    set_age(graph, "ann", 3)
    set_age(graph, "bob", 4, SIDE)
    assert graph.merge(SIDE).outcome is MergeOutcome.MERGED
    assert ages(graph) == {"ann": 3, "bob": 4, "cid": 30, "dan": 30}
    set_age(graph, "ann", 5)
    graph.merge("main", SIDE)
    assert ages(graph, SIDE) == {"ann": 5, "bob": 4, "cid": 30, "dan": 30}


def _the_first(self: MergePlan, head: CommitObject, *, of_all: Any = MergePlan.bases) -> Any:
    return of_all(self, head)[:1]


@WITH_TWIN
def test_where_several_bases_disagree_the_newer_value_wins(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Both sides hold both edits; the next edit on one side has seen both. The twin goes by one base alone."""
    if not has_guard:
        monkeypatch.setattr(MergePlan, "bases", _the_first)
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    there, here = graph.snapshot(branch=SIDE).commit_id, graph.snapshot().commit_id
    graph.merge(there)
    graph.merge(here, SIDE)
    set_age(graph, "ann", 3)
    set_age(graph, "bob", 4)
    if has_guard:
        assert graph.merge("main", SIDE).outcome is MergeOutcome.MERGED
        assert ages(graph, SIDE) == {"ann": 3, "bob": 4, "cid": 30, "dan": 30}
    else:
        assert graph.merge("main", SIDE, preview=True).conflict_count == 1


def test_merges_to_and_fro_end_when_nothing_is_new(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    outcomes = [graph.merge(*pair).outcome for pair in ((SIDE, "main"), ("main", SIDE), (SIDE, "main"), ("main", SIDE))]
    assert outcomes == [
        MergeOutcome.MERGED,
        MergeOutcome.FAST_FORWARD,
        MergeOutcome.ALREADY_UP_TO_DATE,
        MergeOutcome.ALREADY_UP_TO_DATE,
    ]


def test_three_branches_pass_their_work_around(graph: omniray.Graph) -> None:
    graph.create_branch("third", SIDE)
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2, "third")
    set_age(graph, "cid", 3)
    graph.merge(SIDE, "third")
    graph.merge("third")
    assert ages(graph) == {"ann": 1, "bob": 2, "cid": 3, "dan": 30}
    assert graph.merge(SIDE).outcome is MergeOutcome.ALREADY_UP_TO_DATE, "it came with the third"
    set_age(graph, "ann", 4, SIDE)
    graph.merge(SIDE)
    assert ages(graph) == {"ann": 4, "bob": 2, "cid": 3, "dan": 30}
    graph.merge("main", "third")
    graph.merge("third", SIDE)
    assert ages(graph) == ages(graph, "third") == ages(graph, SIDE)


def test_a_commit_of_a_branch_is_merged_without_what_came_after_it(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    at = graph.snapshot(branch=SIDE).commit_id
    set_age(graph, "bob", 2, SIDE)
    result = graph.merge(at)
    assert (result.source_commit, ages(graph)) == (at, {"ann": 1, "bob": 30, "cid": 30, "dan": 30})
    graph.merge(SIDE)
    assert ages(graph)["bob"] == 2


# Exactly once


def test_a_merge_that_is_sent_again_is_applied_once(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "bob", 2)
    first = graph.merge(SIDE, txn_id=txn_id)
    set_age(graph, "cid", 3, SIDE)
    set_age(graph, "ann", 9)
    with unchanged(graph):
        second = graph.merge(SIDE, txn_id=txn_id)
    assert second.repeated
    assert (second.outcome, second.commit_id, second.versions) == (first.outcome, txn_id, first.versions)
    assert (second.affected_nodes, second.source_commit != "") == (first.affected_nodes, True)
    for other in ({"source": SIDE, "on_conflict": "ours"}, {"source": graph.snapshot(branch=SIDE).commit_id}):
        with pytest.raises(PayloadMismatch):
            graph.merge(**other, txn_id=txn_id)
    with pytest.raises(PayloadMismatch):
        graph.load(people("eve"), type="Person", txn_id=txn_id)


def test_a_merge_that_deleted_its_source_is_told_again(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    set_age(graph, "ann", 1, SIDE)
    first = graph.merge(SIDE, txn_id=txn_id, delete_source=True)
    assert [info.name for info in graph.branches()] == ["main"]
    second = graph.merge(SIDE, txn_id=txn_id, delete_source=True)
    assert (second.commit_id, second.outcome, second.repeated) == (first.commit_id, first.outcome, True)
    with pytest.raises(NotFound):
        graph.merge(SIDE, txn_id=new_ulid())


def test_a_merge_that_conflicts_or_finds_nothing_leaves_its_id_free(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    assert graph.merge(SIDE, txn_id=txn_id).commit_id is None
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "ann", 2)
    with pytest.raises(MergeConflicts):
        graph.merge(SIDE, txn_id=txn_id)
    set_age(graph, "ann", 1)
    assert graph.merge(SIDE, txn_id=txn_id).commit_id == txn_id


def test_a_merge_that_was_reported_as_not_committed_does_not_land(disk: Root) -> None:
    txn_id = new_ulid()
    with seeded(disk) as graph, omniray.open(graph.uri) as other:
        graph.create_branch(SIDE)
        set_age(graph, "ann", 1, SIDE)
        with (
            armed({Point.C_BEFORE_PUT: Action(lambda: other.outcome(txn_id), nth=1)}),
            pytest.raises(Withdrawn),
        ):
            graph.merge(SIDE, txn_id=txn_id)
        assert ages(graph)["ann"] == 30
        assert graph.merge(SIDE, txn_id=txn_id).commit_id == txn_id


@WITH_TWIN
def test_a_write_that_came_with_a_merge_is_not_applied_again(
    any_root: Root, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Its caller, who heard nothing, sends it to main after its branch was merged there, and is gone.

    The twin looks for the id in main's own history alone.
    """
    if not has_guard:
        monkeypatch.setattr(OtherLines, "find", lambda *arguments: [])
    txn_id = new_ulid()
    with seeded(any_root) as graph:
        graph.create_branch(SIDE)
        edge = [{"from": "bob", "to": "dan"}]
        graph.load(edge, type="Knows", branch=SIDE, txn_id=txn_id)
        set_age(graph, "ann", 1)
        graph.merge(SIDE, delete_source=True)
    with omniray.open(graph.uri, storage_options=any_root.storage_options) as graph:
        result = graph.load(edge, type="Knows", txn_id=txn_id)
        assert result.repeated == has_guard
        assert len(state_of(graph)["Knows"]) == (2 if has_guard else 3)
        if has_guard:
            assert graph.outcome(txn_id).committed
            with pytest.raises(PayloadMismatch):
                graph.load([{"from": "bob", "to": "ann"}], type="Knows", txn_id=txn_id)
        assert not graph.outcome(new_ulid()).committed


def test_an_id_of_a_branch_that_was_not_merged_is_new_on_main(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    edge = [{"from": "bob", "to": "dan"}]
    graph.load(edge, type="Knows", branch=SIDE, txn_id=txn_id)
    assert not graph.load(edge, type="Knows", txn_id=txn_id).repeated
    assert conflicts_of(refused(graph)) == [("duplicate_commit", "", txn_id, ())]
    result = graph.merge(SIDE, on_conflict="ours")
    assert (result.outcome, len(state_of(graph)["Knows"])) == (MergeOutcome.MERGED, 3)


# Beside other writers


def overtaken(graph: omniray.Graph, by: Callable[[omniray.Graph], Any], point: Point = Point.C_BEFORE_PUT) -> Any:
    """A merge during whose first attempt another process commits."""
    with omniray.open(graph.uri) as other, armed({point: Action(lambda: by(other), nth=1)}):
        return graph.merge(SIDE)


def test_a_merge_is_judged_again_on_what_overtook_it(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    result = overtaken(graph, lambda other: set_age(other, "bob", 2))
    assert (result.outcome, [one.how for one in result.tables]) == (MergeOutcome.MERGED, [How.ROWS])
    assert ages(graph) == {"ann": 1, "bob": 2, "cid": 30, "dan": 30}
    set_age(graph, "cid", 3, SIDE)
    with pytest.raises(MergeConflicts):
        overtaken(graph, lambda other: set_age(other, "cid", 4))
    assert ages(graph)["cid"] == 4


@WITH_TWIN
def test_a_table_that_moved_meanwhile_is_decided_anew(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin keeps its plan for a table although the target's version moved: what overtook it is lost."""
    if not has_guard:
        monkeypatch.setattr(MergePlan, "_plan_tables", _planned_once)
    set_age(graph, "ann", 1, SIDE)
    overtaken(graph, lambda other: set_age(other, "bob", 2))
    assert (ages(graph)["bob"] == 2) == has_guard


def _planned_once(self: MergePlan, head: CommitObject, *, plans: Any = MergePlan._plan_tables) -> Any:
    return True if self._tables else plans(self, head)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types that were planned, each time that one was."""
    found: list[str] = []
    of_table = MergePlan._planned

    def noted(self: MergePlan, type: Any, head: CommitObject) -> Any:
        found.append(type.name)
        return of_table(self, type, head)

    monkeypatch.setattr(MergePlan, "_planned", noted)
    return found


def test_tables_that_did_not_move_are_not_planned_again(graph: omniray.Graph, planned: list[str]) -> None:
    set_age(graph, "ann", 1, SIDE)
    overtaken(graph, lambda other: other.load([{"name": "coil"}], type="Company"))
    assert planned == [type.name for type in graph.schema]


SINCE = "query q($to: String, $since: I32) { update Knows set { since: $since } where to = $to }"


@pytest.mark.parametrize(
    ("by", "again", "since"),
    [
        (lambda g: g.load([{"id": "k7", "from": "cid", "to": "ann"}], type="Knows"), [], {"k1": 5, "k2": 2}),
        (lambda g: g.mutate(SINCE, {"to": "cid", "since": 7}), [], {"k1": 5, "k2": 7}),
        (lambda g: g.mutate(SINCE, {"to": "bob", "since": 5}), ["Knows"], {"k1": 5, "k2": 2}),
        (lambda g: g.mutate(SINCE, {"to": "dan", "since": 8}), ["Knows"], None),
    ],
    ids=["an insert", "another row", "the same row", "a row that the source deleted"],
)
def test_a_table_whose_changed_rows_did_not_move_is_not_planned_again(
    graph: omniray.Graph,
    planned: list[str],
    by: Callable[[omniray.Graph], Any],
    again: list[str],
    since: dict[str, int] | None,
) -> None:
    """Only where its rows are is found out anew: a small write moves other rows too, with the tail."""
    for n, to in ((2, "cid"), (3, "dan")):
        graph.load([{"id": f"k{n}", "from": "bob", "to": to, "since": n}], type="Knows")
    graph.merge("main", SIDE)
    graph.mutate(SINCE, {"to": "bob", "since": 5}, branch=SIDE)
    graph.mutate('query q() { delete Knows where to = "dan" }', branch=SIDE)
    graph.load([{"id": "k9", "from": "dan", "to": "ann"}], type="Knows")
    planned.clear()
    if since is None:
        with pytest.raises(MergeConflicts) as found:
            overtaken(graph, by)
        assert conflicts_of(found.value) == [("delete_vs_update", "Knows", "k3", ("since",))]
    else:
        overtaken(graph, by)
        edges = state_of(graph)["Knows"]
        assert {id: edge.get("since") for id, edge in edges.items() if id in ("k1", "k2", "k3")} == since
        assert "k9" in edges
    assert planned == [*(type.name for type in graph.schema), *again]


def test_a_merge_into_a_busy_branch_lands_while_its_writers_wait(graph: omniray.Graph) -> None:
    """The writers of this process are held for the last judgement and the commit, and only for these."""
    set_age(graph, "ann", 1, SIDE)
    held: list[bool] = []
    writer = graph._writer
    with armed({Point.C_BEFORE_PUT: Action(lambda: held.append(writer._lock.locked()), nth=1)}):
        graph.merge(SIDE)
    assert (held, writer._lock.locked()) == ([True], False)


def test_a_merge_of_a_merge_that_lands_meanwhile_finds_it_done(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    result = overtaken(graph, lambda other: other.merge(SIDE))
    assert result.outcome is MergeOutcome.ALREADY_UP_TO_DATE
    assert [entry.kind for entry in graph.history(2)] == ["BranchMerge", "BranchCreate"]


# Leases


def test_what_a_merge_stages_is_leased_while_it_runs_and_no_longer(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    _everything_is_large(monkeypatch)
    graph.load(people("eve", "fay", "gil"), type="Person", branch=SIDE)
    set_age(graph, "ann", 2)
    sidecars = graph._branch.sidecars
    settle(graph)
    seen: list[list[str]] = []

    def look() -> None:
        found = sidecars.read_all(sidecars.listed())
        seen.append(sorted(f"{one.kind} {len(one.tables)}" for one in found))

    with armed({Point.C_BEFORE_PUT: Action(look, nth=1)}):
        graph.merge(SIDE)
    assert seen == [["BranchMerge 1", f"Staging {len(list(graph.schema))}"]]
    settle(graph)


@pytest.mark.parametrize("announced", ["the branch", "the version"])
def test_a_merge_stops_if_what_it_needs_was_announced_as_going(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, announced: str
) -> None:
    """Lease first, then look: the announcement is read after the lease was put."""
    set_age(graph, "ann", 1, SIDE)
    settle(graph)
    line, main_head = graph._on(SIDE).line, States.main_head
    leases: list[int] = []

    def looked(self: States) -> CommitObject:
        leases.append(len(graph._branch.sidecars.listed()))
        found = main_head(self)
        if announced == "the branch":
            return replace(found, going=(line,))
        return replace(found, horizons={"edge:Knows": 10**6})

    monkeypatch.setattr(States, "main_head", looked)
    with unchanged(graph), pytest.raises(Expired):
        graph.merge(SIDE)
    assert leases == [1]
    assert graph._branch.sidecars.listed() == []


def test_a_recovery_that_raises_the_epoch_makes_a_merge_lease_anew(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    epochs: list[list[int]] = []
    sidecars = graph._branch.sidecars

    def raise_it(other: omniray.Graph) -> None:
        other._tip.raise_epoch(other._tip.refresh().epoch, EMBEDDED)

    def look() -> None:
        epochs.append([one.epoch for one in sidecars.read_all(sidecars.listed()) if one.kind == "Staging"])

    with omniray.open(graph.uri) as other:
        actions = iter((lambda: raise_it(other), look))
        with armed({Point.C_BEFORE_PUT: Action(lambda: next(actions)())}):
            graph.merge(SIDE)
    assert epochs == [[2]]
    assert ages(graph)["ann"] == 1


# Previews and bad input


def test_a_preview_writes_nothing_and_tells_what_a_merge_would_do(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    graph.load([{"name": "coil"}], type="Company", branch=SIDE)
    set_age(graph, "bob", 2)
    settle(graph)
    before = files_below(graph.uri)
    with unchanged(graph):
        foretold = graph.merge(SIDE, preview=True)
    assert files_below(graph.uri) == before
    result = graph.merge(SIDE)
    assert foretold.commit_id is None
    assert (foretold.outcome, foretold.tables, foretold.affected_nodes) == (
        result.outcome, result.tables, result.affected_nodes,
    )  # fmt: skip
    assert json.loads(json.dumps(foretold.as_json()))["outcome"] == "merged"


def test_a_graph_that_was_opened_read_only_previews_and_does_not_merge(graph: omniray.Graph) -> None:
    set_age(graph, "ann", 1, SIDE)
    with omniray.open(graph.uri, read_only=True) as reader:
        assert reader.merge(SIDE, preview=True).outcome is MergeOutcome.FAST_FORWARD
        with pytest.raises(InputError, match="read-only"):
            reader.merge(SIDE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source": "main"}, "into itself"),
        ({"source": SIDE, "into": SIDE}, "into itself"),
        ({"source": "nowhere"}, "no branch 'nowhere'"),
        ({"source": SIDE, "into": "nowhere"}, "no branch 'nowhere'"),
        ({"source": new_ulid()}, "no branch and no commit"),
        ({"source": SIDE, "on_conflict": "mine"}, "on_conflict 'mine': give one of fail, ours, theirs"),
        ({"source": SIDE, "txn_id": "x"}, "invalid txn_id"),
        ({"source": SIDE, "message": "x" * 5000}, "invalid message"),
    ],
)
def test_a_merge_that_makes_no_sense_is_refused(graph: omniray.Graph, options: Any, words: str) -> None:
    with unchanged(graph), pytest.raises(InputError, match=words):
        graph.merge(**options)


# Large merges


def _everything_is_large(patch: pytest.MonkeyPatch) -> None:
    """Take a few rows for many: rows go to files, ids are cut into ranges, keys are joined on disk."""
    patch.setattr(merge_rows, "INLINE_ROWS_MAX", 1)
    patch.setattr(table_diff, "ROWS_AT_ONCE", 3)
    patch.setattr(table_merge, "LOOKUP_IDS_MAX", 2)
    patch.setattr(storage, "TAIL_ROWS_MAX", 2)


def test_a_merge_of_many_rows_gives_what_one_of_few_gives(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    _everything_is_large(monkeypatch)
    names = [f"p{n:02}" for n in range(20)]
    graph.load(people(*names, age=0), type="Person")
    graph.merge("main", SIDE)
    for n, name in enumerate(names):
        branch = SIDE if n % 2 else "main"
        set_age(graph, name, n, branch)
    for name in names[3:9:2]:
        move(graph, name, "Rome")
    remove(graph, names[11], SIDE)
    remove(graph, names[12])
    graph.load([{"from": name, "to": "ann"} for name in names[1:7]], type="Knows", branch=SIDE)
    result = graph.merge(SIDE)
    assert result.outcome is MergeOutcome.MERGED
    found = state_of(graph)
    assert {id: row["age"] for id, row in found["Person"].items() if id in names} == {
        name: n for n, name in enumerate(names) if n not in (11, 12)
    }
    assert {id for id, row in found["Person"].items() if row.get("city") == "Rome"} == set(names[3:9:2])
    assert len(found["Knows"]) == 7
    graph.load([{"from": names[18], "to": "ann"}], type="Knows", branch=SIDE)
    remove(graph, names[18])
    assert [one[0] for one in conflicts_of(refused(graph))] == ["orphan_edge"]


def test_files_of_a_merge_that_conflicts_or_is_overtaken_do_not_stay(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    _everything_is_large(monkeypatch)
    graph.load(people("eve", "fay", "gil"), type="Person", branch=SIDE)
    set_age(graph, "ann", 1, SIDE)
    set_age(graph, "ann", 2)
    before = data_files(graph)
    refused(graph)
    assert data_files(graph) == before
    set_age(graph, "ann", 30)
    names = {"eve", "fay", "gil"}
    overtaken(graph, lambda other: set_age(other, "bob", 5))
    assert names <= ages(graph).keys()
    assert (ages(graph)["ann"], ages(graph)["bob"]) == (1, 5)
    referred = {
        f"{pin.path}/data/{file}"
        for branch in ("main", SIDE)
        for obj in graph._on(branch)._branch.log.down_to(newest(graph, branch), 1)
        for key, pin in obj.pins.items()
        for fragment in graph._on(branch)._branch.storage.open(graph.schema.by_table_key[key], pin).fragments()
        for file in fragment.files
    }
    assert {Path(file).name for file in data_files(graph)} == {Path(file).name for file in referred}
