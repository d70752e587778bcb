"""Values are values: whatever is in a text, a query compares it and writes it, and never reads it as anything else."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import omniray
from omniray.engine.judge.condition import Condition
from tests.model.graph_values import HOSTILE_TEXTS, literal

SCHEMA = """
node Note { text: String?  seen: Bool }
node Person { name: String @key  motto: String? @unique }
edge Knows: Person -> Person { how: String }
"""
EXAMPLES = 30

texts = st.one_of(st.sampled_from(HOSTILE_TEXTS), st.text(max_size=6))
ids = texts.filter(lambda text: 1 <= len(text.encode()) <= 1024)
spelled = pytest.mark.parametrize(
    "written", [lambda text: "$x", literal], ids=["as a parameter", "in the query's text"]
)
Written = Callable[[str], str]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Graph]:
    with omniray.init(str(tmp_path_factory.mktemp("hostile") / "graph"), schema=SCHEMA) as graph:
        yield graph


def _mutate(graph: omniray.Graph, statement: str, text: str, written: Written) -> omniray.WriteResult:
    """Run a statement with a text in the place of `{}`."""
    value = written(text)
    declared, params = ("$x: String", {"x": text}) if value == "$x" else ("", {})
    return graph.mutate(f"query q({declared}) {{ {statement.replace('{}', value)} }}", params)


def _refill(graph: omniray.Graph, notes: list[str | None]) -> None:
    rows = [{"id": f"{n}", "text": text, "seen": False} for n, text in enumerate(notes)]
    graph.load(rows, type="Note", mode="overwrite")


def _notes(graph: omniray.Graph, **arguments: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = graph.snapshot().table("Note", **arguments).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


@spelled
@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(notes=st.lists(st.none() | texts, min_size=1, max_size=6), text=texts, known=st.booleans())
@example(notes=["Ada", "' OR 1=1 --", None], text="' OR 1=1 --", known=False)
@example(notes=["a", "a\x00", "a\x00b"], text="a\x00", known=False)
@example(notes=["é", "e\u0301", "E\u0301"], text="é", known=False)
def test_an_update_meets_exactly_the_rows_whose_text_is_equal(
    graph: omniray.Graph, written: Written, notes: list[str | None], text: str, known: bool
) -> None:
    text = notes[0] if known and notes[0] is not None else text
    _refill(graph, notes)
    result = _mutate(graph, "update Note set { seen: true } where text = {}", text, written)
    assert [row["seen"] for row in _notes(graph)] == [note == text for note in notes]
    assert [row["text"] for row in _notes(graph)] == notes
    assert result.affected_nodes == notes.count(text)


def test_the_property_notices_a_filter_that_is_made_of_text(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_text = property(lambda self: f"{self.column} = '{self.values[0].as_py()}'")
    monkeypatch.setattr(Condition, "expression", as_text)
    _refill(graph, ["Ada", "Bob"])
    result = _mutate(graph, "update Note set { seen: true } where text = {}", "' OR 1=1 --", lambda text: "$x")
    assert result.affected_nodes == 2


@pytest.mark.parametrize(
    ("op", "compare"),
    [("!=", operator.ne), ("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge)],
)
@settings(max_examples=EXAMPLES // 3, deadline=None, print_blob=True)
@given(notes=st.lists(st.none() | texts, min_size=1, max_size=6), text=texts)
def test_texts_are_in_the_order_of_their_characters_and_null_is_in_none(
    graph: omniray.Graph, op: str, compare: Callable[[str, str], bool], notes: list[str | None], text: str
) -> None:
    _refill(graph, notes)
    _mutate(graph, f"update Note set {{ seen: true }} where text {op} $x", text, lambda text: "$x")
    assert [row["seen"] for row in _notes(graph)] == [note is not None and compare(note, text) for note in notes]


@spelled
@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(notes=st.lists(texts, min_size=2, max_size=6))
def test_a_delete_takes_exactly_the_rows_whose_text_is_equal(
    graph: omniray.Graph, written: Written, notes: list[str]
) -> None:
    _refill(graph, list(notes))
    _mutate(graph, "delete Note where text = {}", notes[0], written)
    assert [row["text"] for row in _notes(graph)] == [note for note in notes if note != notes[0]]


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
@given(notes=st.lists(texts, min_size=1, max_size=6))
def test_a_filter_of_a_snapshot_finds_exactly_the_rows_whose_text_is_equal(
    graph: omniray.Graph, notes: list[str]
) -> None:
    _refill(graph, list(notes))
    found = _notes(graph, filter=pc.field("text") == notes[0])
    assert [row["id"] for row in found] == [f"{n}" for n, note in enumerate(notes) if note == notes[0]]


@spelled
@settings(max_examples=EXAMPLES // 3, deadline=None, print_blob=True)
@given(name=ids, other=ids, how=texts)
def test_a_text_may_be_key_end_and_property_and_comes_back_as_it_was(
    graph: omniray.Graph, written: Written, name: str, other: str, how: str
) -> None:
    """A node is inserted, known by an edge, found by its id and deleted together with that edge, and no other is."""
    graph.load([], type="Knows", mode="overwrite")
    graph.load([{"name": one} for one in {"bystander", other}], type="Person", mode="overwrite")
    _mutate(graph, "insert Person { name: {}, motto: {} }", name, written)
    _mutate(graph, f"insert Knows {{ from: {{}}, to: {literal(other)}, how: {literal(how)} }}", name, written)
    people = {row["id"]: row for row in graph.snapshot().table("Person").to_pylist()}
    (edge,) = graph.snapshot().table("Knows").to_pylist()
    assert people[name] == {"id": name, "name": name, "motto": name}
    assert (edge["src"], edge["dst"], edge["how"]) == (name, other, how)
    assert _mutate(graph, "update Knows set { how: {} } where from = {}", name, written).affected_edges == 1
    result = _mutate(graph, "delete Person where id = {}", name, written)
    assert (result.affected_nodes, result.affected_edges) == (1, 1)
    assert set(graph.snapshot().table("Person")["id"].to_pylist()) == {"bystander", other} - {name}


@settings(max_examples=EXAMPLES // 2, deadline=None, print_blob=True)
@given(motto=texts, names=st.tuples(ids, ids).filter(lambda pair: pair[0] != pair[1]))
def test_a_rule_that_a_text_breaks_is_broken_by_no_other_text(
    graph: omniray.Graph, motto: str, names: tuple[str, str]
) -> None:
    """Uniqueness is decided in SQL of our own, and its refusals show the text."""
    graph.load([], type="Knows", mode="overwrite")
    graph.load([{"name": names[0], "motto": motto}], type="Person", mode="overwrite")
    with pytest.raises(omniray.ConstraintViolation, match=r"@unique violation on Person\.motto"):
        graph.load([{"name": names[1], "motto": motto}], type="Person")
    with pytest.raises(omniray.KeyConflict):
        graph.load([{"name": names[0]}], type="Person")
    assert graph.load([{"name": names[1], "motto": motto + "!"}], type="Person").affected_nodes == 1
