"""Every kind of change on one branch, merged into every kind of change on another: the outcome and the end state."""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omniray
from omniray.engine.base.errors import MergeConflicts
from omniray.engine.branches.merge_result import MergeOutcome
from tests.merging import State, conflicts_of, move, people, remove, seeded, set_age, state_of, unchanged
from tests.stores import Root

SOURCE, TARGET = "source", "target"
AGES = {SOURCE: 41, TARGET: 42}  # what each side sets where both set the same


def _add_node(graph: omniray.Graph, side: str) -> None:
    graph.load(people("eve", age=AGES[side]), type="Person", branch=side)


def _remove_node(graph: omniray.Graph, side: str) -> None:
    remove(graph, "dan", side)


def _add_edge(graph: omniray.Graph, side: str) -> None:
    graph.load([{"id": f"k-{side}", "from": "bob", "to": "dan", "since": 9}], type="Knows", branch=side)


def _remove_edge(graph: omniray.Graph, side: str) -> None:
    graph.mutate('query q() { delete Knows where from = "ann" }', branch=side)


def _set_property(graph: omniray.Graph, side: str) -> None:
    set_age(graph, "dan", AGES[side], side)


def _set_same(graph: omniray.Graph, side: str) -> None:
    set_age(graph, "dan", 50, side)


def _set_other(graph: omniray.Graph, side: str) -> None:
    move(graph, "dan", "Rome", side)


def _net_zero_edge(graph: omniray.Graph, side: str) -> None:
    graph.load([{"id": "k-zero", "from": "cid", "to": "dan"}], type="Knows", branch=side)
    graph.mutate('query q() { delete Knows where from = "cid" }', branch=side)


def _add_keyed_edge(graph: omniray.Graph, side: str) -> None:
    graph.load([{"id": f"w-{side}", "from": "dan", "to": "bolt", "role": side}], type="WorksAt", branch=side)


CHANGES: dict[str, Callable[[omniray.Graph, str], None]] = {
    "noop": lambda graph, side: None,
    "add node": _add_node,
    "remove node": _remove_node,
    "add edge": _add_edge,
    "remove edge": _remove_edge,
    "set property": _set_property,
    "set it to the same": _set_same,
    "set another property": _set_other,
    "net zero edge": _net_zero_edge,
    "add keyed edge": _add_keyed_edge,
}
SETS = ("set property", "set it to the same", "set another property")
EDGES_TO_DAN = ("add edge", "add keyed edge")


def applied(state: State, change: str, side: str) -> State:
    """The plain rows after a change."""
    state = copy.deepcopy(state)
    dan = state["Person"].get("dan", {})
    match change:
        case "add node":
            state["Person"]["eve"] = {"name": "eve", "age": AGES[side]}
        case "remove node":
            state["Person"].pop("dan", None)
        case "add edge":
            state["Knows"][f"k-{side}"] = {"src": "bob", "dst": "dan", "since": 9}
        case "remove edge":
            state["Knows"].pop("k1", None)
        case "set property":
            dan["age"] = AGES[side]
        case "set it to the same":
            dan["age"] = 50
        case "set another property":
            dan["city"] = "Rome"
        case "add keyed edge":
            state["WorksAt"][f"w-{side}"] = {"src": "dan", "dst": "bolt", "role": side}
    return state


def expected_conflicts(there: str, here: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The conflicts of a cell of the table."""
    pair = {there, here}
    if pair == {"add node"}:
        return [("divergent_insert", "Person", "eve", ("age",))]
    if "set property" in pair and pair <= {"set property", "set it to the same"}:
        return [("divergent_update", "Person", "dan", ("age",))]
    if "remove node" in pair and (edited := pair & set(SETS)):
        about = "city" if "set another property" in edited else "age"
        return [("delete_vs_update", "Person", "dan", (about,))]
    if "remove node" in pair and (added := pair & set(EDGES_TO_DAN)):
        side = SOURCE if there in added else TARGET
        keyed = "add keyed edge" in added
        edge = ("WorksAt", f"w-{side}", ("src",)) if keyed else ("Knows", f"k-{side}", ("dst",))
        return [("orphan_edge", *edge)]
    if pair == {"add keyed edge"}:
        return [("unique_violation", "WorksAt", f"w-{SOURCE}", ("src", "dst"))]
    return []


def expected_outcome(there: str, here: str) -> MergeOutcome:
    if there == "noop":
        return MergeOutcome.ALREADY_UP_TO_DATE
    return MergeOutcome.FAST_FORWARD if here == "noop" else MergeOutcome.MERGED


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, State]:
    """A graph with two branches on which nothing was changed yet."""
    root = Root(str(tmp_path_factory.mktemp("truth")), {})
    with seeded(root) as graph:
        for side in (SOURCE, TARGET):
            graph.create_branch(side)
        return graph.uri, state_of(graph)


@pytest.mark.parametrize(("there", "here"), list(itertools.product(CHANGES, CHANGES)))
def test_a_change_on_one_branch_merged_into_a_change_on_another(
    begun: tuple[str, State], tmp_path: Path, there: str, here: str
) -> None:
    uri, seed = begun
    shutil.copytree(uri, tmp_path / "graph")
    with omniray.open(tmp_path / "graph") as graph:
        CHANGES[there](graph, SOURCE)
        CHANGES[here](graph, TARGET)
        assert state_of(graph, TARGET) == applied(seed, here, TARGET)
        foretold = graph.merge(SOURCE, TARGET, preview=True)
        conflicts = expected_conflicts(there, here)
        assert conflicts_of(foretold) == conflicts
        if conflicts:
            assert foretold.outcome is MergeOutcome.CONFLICTS
            with unchanged(graph, TARGET), pytest.raises(MergeConflicts) as refused:
                graph.merge(SOURCE, TARGET)
            assert conflicts_of(refused.value) == conflicts
            assert refused.value.facts["conflict_count"] == len(conflicts)
            return
        before = graph.snapshot(branch=TARGET).commit_id
        result = graph.merge(SOURCE, TARGET)
        assert result.outcome is foretold.outcome is expected_outcome(there, here)
        assert (result.commit_id is None) == (there == "noop")
        assert graph.snapshot(branch=TARGET).commit_id == (result.commit_id or before)
        assert state_of(graph, TARGET) == applied(applied(seed, here, TARGET), there, SOURCE)
        assert state_of(graph, SOURCE) == applied(seed, there, SOURCE)
        with unchanged(graph, TARGET):
            assert graph.merge(SOURCE, TARGET).outcome is MergeOutcome.ALREADY_UP_TO_DATE
