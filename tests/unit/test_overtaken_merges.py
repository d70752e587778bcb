"""Merges beside writers of other processes: what is planned and checked again, and who lands in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omniray
from omniray.engine.base.errors import MergeConflicts
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches import merge_plan
from omniray.engine.branches.merge import LOSSES_MIN
from omniray.engine.branches.merge_keys import MergeKeys
from omniray.engine.branches.merge_plan import MergePlan
from omniray.engine.branches.merge_result import MergeOutcome, MergeResult
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.tables import storage, table
from tests.merging import ages, conflicts_of, people, remove, seeded, set_age, state_of
from tests.stores import Root

SIDE = "side"
Rival = Callable[[omniray.Graph], Any]


@pytest.fixture(params=[1024, 0], ids=["tails", "no tails"])
def graph(disk: Root, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[omniray.Graph]:
    """A graph with a branch, on which many types changed; with tails, a small write moves rows that it leaves alone."""
    monkeypatch.setattr(storage, "TAIL_ROWS_MAX", request.param)
    monkeypatch.setattr(table, "TAIL_ROWS_MAX", request.param)
    with seeded(disk) as graph:
        graph.load([{"id": "l1", "from": "ann", "to": "acme"}], type="Leads")
        graph.create_branch(SIDE)
        set_age(graph, "ann", 1, SIDE)
        graph.load(people("eve", email="e@x"), type="Person", branch=SIDE)
        remove(graph, "dan", SIDE)
        graph.load([{"id": "k2", "from": "cid", "to": "bob"}], type="Knows", branch=SIDE)
        graph.load([{"id": "w2", "from": "cid", "to": "bolt", "role": "ops"}], type="WorksAt", branch=SIDE)
        graph.load([{"id": "o2", "from": "bob", "to": "bolt"}], type="Owns", branch=SIDE)
        graph.load([{"id": "l2", "from": "ann", "to": "bolt"}], type="Leads", branch=SIDE)
        for at in ("Knows", "WorksAt", "Owns", "Leads"):  # each table has something new on both sides
            graph.load([{"id": f"{at}-main", "from": "ann", "to": "cid" if at == "Knows" else "bolt"}], type=at)
        set_age(graph, "bob", 2)
        yield graph


def overtaken(graph: omniray.Graph, by: Rival) -> MergeResult:
    """A merge during whose first attempt another process commits."""
    with omniray.open(graph.uri) as other, armed({Point.C_BEFORE_PUT: Action(lambda: by(other), nth=1)}):
        return graph.merge(SIDE)


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


HARMLESS: dict[str, Rival] = {
    "a new node": lambda g: g.load(people("fay", email="f@x"), type="Person"),
    "another node": lambda g: set_age(g, "cid", 7),
    "a new edge": lambda g: g.load([{"from": "bob", "to": "cid"}], type="Knows"),
    "a new edge of a unique type": lambda g: g.load([{"from": "bob", "to": "acme"}], type="WorksAt"),
    "an edge that goes": lambda g: g.mutate('query q() { delete WorksAt where from = "ann" }'),
    "an edge with bounds": lambda g: g.load([{"from": "cid", "to": "acme"}], type="Owns"),
    "a table that the source left alone": lambda g: g.load([{"name": "coil"}], type="Company"),
}


@pytest.mark.parametrize("by", HARMLESS.values(), ids=HARMLESS)
def test_a_write_that_does_not_concern_a_merge_makes_no_table_be_planned_again(
    graph: omniray.Graph, planned: list[str], by: Rival
) -> None:
    assert overtaken(graph, by).outcome is MergeOutcome.MERGED
    assert planned == [type.name for type in graph.schema]
    found, there = state_of(graph), state_of(graph, SIDE)
    assert {"k2", "Knows-main"} <= found["Knows"].keys()
    assert (found["Person"]["ann"], "dan" in found["Person"], "eve" in found["Person"]) == (
        there["Person"]["ann"], False, True,
    )  # fmt: skip


HARMFUL: dict[str, tuple[Rival, tuple[str, str, str, tuple[str, ...]]]] = {
    "a value that must be unique": (
        lambda g: g.load(people("fay", email="e@x"), type="Person"),
        ("unique_violation", "Person", "eve", ("email",)),
    ),
    "an edge that must be unique": (
        lambda g: g.load([{"id": "w9", "from": "cid", "to": "bolt", "role": "dev"}], type="WorksAt"),
        ("unique_violation", "WorksAt", "w2", ("src", "dst")),
    ),
    "a node of a new edge": (lambda g: remove(g, "cid"), ("orphan_edge", "Knows", "k2", ("src",))),
    "an edge of a node that goes": (
        lambda g: g.load([{"id": "k9", "from": "bob", "to": "dan"}], type="Knows"),
        ("orphan_edge", "Knows", "k9", ("dst",)),
    ),
    "one edge too many": (
        lambda g: g.load([{"id": "o9", "from": "bob", "to": "bolt"}], type="Owns"),
        ("cardinality_violation", "Owns", "bob", ("src",)),
    ),
}


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
@pytest.mark.parametrize(("by", "conflict"), HARMFUL.values(), ids=HARMFUL)
def test_a_write_that_breaks_a_rule_together_with_a_merge_is_found_by_its_keys(
    graph: omniray.Graph,
    monkeypatch: pytest.MonkeyPatch,
    by: Rival,
    conflict: tuple[str, str, str, tuple[str, ...]],
    has_guard: bool,
) -> None:
    """The twin looks at no key again: it lands."""
    if not has_guard:
        monkeypatch.setattr(merge_plan, "concerned", lambda schema, keys, moved: MergeKeys(schema))
        monkeypatch.setattr(merge_plan, "may_agree", lambda edge, keys, moved: False)
        assert overtaken(graph, by).outcome is MergeOutcome.MERGED
        return
    with pytest.raises(MergeConflicts) as found:
        overtaken(graph, by)
    assert conflict in conflicts_of(found.value)


def test_an_edge_that_comes_meanwhile_and_is_equal_agrees(graph: omniray.Graph) -> None:
    overtaken(graph, lambda g: g.load([{"id": "w9", "from": "cid", "to": "bolt", "role": "ops"}], type="WorksAt"))
    assert "w9" in state_of(graph)["WorksAt"]
    assert "w2" not in state_of(graph)["WorksAt"]


def test_an_edge_that_agreed_and_goes_meanwhile_is_written(graph: omniray.Graph) -> None:
    graph.load([{"id": "w9", "from": "cid", "to": "bolt", "role": "ops"}], type="WorksAt")
    overtaken(graph, lambda g: g.mutate('query q() { delete WorksAt where from = "cid" }'))
    assert "w9" not in state_of(graph)["WorksAt"]
    assert "w2" in state_of(graph)["WorksAt"]


def test_a_merge_that_another_process_sent_too_is_told_its_outcome_while_it_is_planned(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id, plan, sent = new_ulid(), MergePlan.on, list[MergeResult]()

    def overtaken(self: MergePlan, head: CommitObject) -> Any:
        verdict = plan(self, head)
        monkeypatch.setattr(MergePlan, "on", plan)
        sent.append(other.merge(SIDE, txn_id=txn_id))
        return verdict

    with omniray.open(graph.uri) as other:
        monkeypatch.setattr(MergePlan, "on", overtaken)
        result = graph.merge(SIDE, txn_id=txn_id)
    assert (result.repeated, result.commit_id, result.outcome) == (True, txn_id, sent[0].outcome)


# Who lands


class Faster:
    """A writer of another process that lands during each of the merge's first tries."""

    def __init__(self, other: omniray.Graph, tries: int) -> None:
        self.other, self.left, self.is_writing = other, tries, False

    def __call__(self) -> None:
        if not self.left or self.is_writing:
            return
        self.left, self.is_writing = self.left - 1, True
        set_age(self.other, "cid", self.left)
        self.is_writing = False


@pytest.mark.parametrize("losses", [LOSSES_MIN - 1, LOSSES_MIN])
def test_a_merge_that_loses_race_after_race_makes_the_others_start_with_it(graph: omniray.Graph, losses: int) -> None:
    """It puts an object that changes nothing: whoever is staging loses a try, and no write is refused."""
    before = graph._branch.newest().seq
    with omniray.open(graph.uri) as other:
        with armed({Point.C_BEFORE_PUT: Action(Faster(other, losses))}):
            assert graph.merge(SIDE).outcome is MergeOutcome.MERGED
        newest = graph._branch.newest()
    claims = [obj for obj in graph._branch.log.down_to(newest, before + 1) if not obj.commits]
    assert (len(claims), newest.seq - before) == (losses // LOSSES_MIN, losses + losses // LOSSES_MIN + 1)
    assert ages(graph)["cid"] == 0


def test_a_conflict_is_told_although_others_write_without_a_pause(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was there on two heads is told, whatever comes after them."""
    set_age(graph, "ann", 3)
    plan, heads = MergePlan.on, []

    def overtaken(self: MergePlan, head: CommitObject) -> Any:
        heads.append(head.seq)
        verdict = plan(self, head)
        set_age(other, "cid", len(heads))
        return verdict

    with omniray.open(graph.uri) as other:
        monkeypatch.setattr(MergePlan, "on", overtaken)
        with pytest.raises(MergeConflicts):
            graph.merge(SIDE)
    assert len(heads) == 2
