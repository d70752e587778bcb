"""Mutations from end to end: what a query does, sees, counts and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import omniray
from omniray import (
    ConstraintViolation,
    ExpectedVersionMismatch,
    Graph,
    InputError,
    NotFound,
    ParseError,
    RecordError,
)
from omniray.engine.base.errors import PayloadMismatch, QueryError
from omniray.engine.base.principal import Author
from omniray.engine.tables import table
from omniray.engine.tables.table import Table
from omniray.engine.writes import mutate
from omniray.engine.writes.mutate import STATEMENTS_MAX, MutationIntent, Scope
from omniray.engine.writes.terms import WriteTerms

SCHEMA = """
node Person { name: String @key   age: I32?   seen: DateTime?   @range(age, 0..150) }
node Note { text: String }
edge Knows: Person -> Person @card(0..2) { since: Date? }
edge Wrote: Person -> Note
"""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with omniray.init(str(tmp_path / "g"), schema=SCHEMA) as graph:
        graph.load(
            [
                *(
                    {"type": "Person", "data": {"name": name, "age": age}}
                    for name, age in (("a", 1), ("b", 2), ("c", 3))
                ),
                {"edge": "Knows", "from": "a", "to": "b"},
                {"edge": "Knows", "from": "b", "to": "c"},
                {"edge": "Knows", "from": "c", "to": "c"},
            ]
        )
        yield graph


def ages(graph: Graph) -> dict[str, int | None]:
    rows = graph.snapshot().table("Person", ["name", "age"]).to_pylist()
    return {row["name"]: row["age"] for row in rows}


def ends(graph: Graph) -> set[tuple[str, str]]:
    return {(row["src"], row["dst"]) for row in graph.snapshot().table("Knows").to_pylist()}


def test_an_insert_of_an_existing_key_replaces_the_node(graph: Graph) -> None:
    result = graph.mutate('query q() { insert Person { name: "a", age: 9 } }')
    assert (result.affected_nodes, result.affected_edges) == (1, 0)
    assert ages(graph) == {"a": 9, "b": 2, "c": 3}


def test_later_statements_see_what_earlier_ones_did(graph: Graph) -> None:
    result = graph.mutate(
        """query q() {
            insert Person { name: "d", age: 40 }
            insert Knows { from: "d", to: "a" }
            update Person set { age: 41 } where age = 40
            update Person set { age: 50 } where age > 2
        }"""
    )
    assert ages(graph) == {"a": 1, "b": 2, "c": 50, "d": 50}
    assert (result.affected_nodes, result.affected_edges) == (2, 1)
    assert [entry.kind for entry in graph.history()] == ["Mutation", "Load", "Init"]


def test_an_update_hides_the_committed_row_from_the_next_statement(graph: Graph) -> None:
    graph.mutate(
        "query q() { update Person set { age: 100 } where age = 1 update Person set { age: 7 } where age = 1 }"
    )
    assert ages(graph)["a"] == 100


def test_a_deleted_node_takes_its_edges_along_on_both_ends(graph: Graph) -> None:
    result = graph.mutate('query q() { delete Person where name = "c" }')
    assert (result.affected_nodes, result.affected_edges) == (1, 2)
    assert ends(graph) == {("a", "b")}


def test_rows_that_several_deletes_match_are_counted_once(graph: Graph) -> None:
    result = graph.mutate('query q() { delete Knows where from = "b" delete Person where age >= 2 }')
    assert (result.affected_nodes, result.affected_edges) == (2, 3)
    assert (list(ages(graph)), ends(graph)) == (["a"], set())


@pytest.mark.parametrize("statement", ["update Person set { age: 1 } where age > 99", "delete Person where age > 99"])
def test_a_predicate_that_matches_nothing_commits_nothing(graph: Graph, statement: str) -> None:
    before = graph.history()
    result = graph.mutate(f"query q() {{ {statement} }}")
    assert (result.commit_id, result.affected_nodes, result.affected_edges) == (None, 0, 0)
    assert graph.history() == before


def test_building_and_deleting_in_one_query_is_refused_before_anything_is_read(graph: Graph) -> None:
    with pytest.raises(ParseError, match=r"[Ss]plit"):
        graph.mutate('query q() { insert Person { name: "x" } delete Person where name = "a" }')


def test_a_key_can_t_be_updated(graph: Graph) -> None:
    with pytest.raises(QueryError, match="key"):
        graph.mutate('query q() { update Person set { name: "z" } where name = "a" }')


def test_now_is_one_moment_in_the_whole_query(graph: Graph) -> None:
    before = datetime.now(UTC)
    graph.mutate(
        'query q() { update Person set { seen: now() } where age > 0 insert Person { name: "d", seen: now() } }'
    )
    seen = set(graph.snapshot().table("Person", ["seen"])["seen"].to_pylist())
    assert len(seen) == 1
    assert before <= seen.pop() <= datetime.now(UTC)


def test_a_value_out_of_range_names_the_statement(graph: Graph) -> None:
    with pytest.raises(RecordError, match=r"statement 2: @range violation on Person\.age"):
        graph.mutate('query q() { insert Person { name: "d" } update Person set { age: 151 } where name = "d" }')
    assert "d" not in ages(graph)


def test_an_edge_to_nobody_is_refused(graph: Graph) -> None:
    with pytest.raises(ConstraintViolation, match=r"^dst 'nobody' not found in Person"):
        graph.mutate('query q() { insert Knows { from: "a", to: "nobody" } }')


def test_an_edge_too_many_is_refused(graph: Graph) -> None:
    add = 'query q($to: String) { insert Knows { from: "a", to: $to } }'
    graph.mutate(add, {"to": "c"})
    with pytest.raises(ConstraintViolation, match=r"^@card violation on edge Knows"):
        graph.mutate(add, {"to": "a"})


def test_keyless_nodes_and_edges_are_new_each_time(graph: Graph) -> None:
    for _ in range(2):
        graph.mutate('query q() { insert Note { text: "hm" } }')
    assert len(set(graph.snapshot().table("Note")["id"].to_pylist())) == 2


def test_a_query_is_chosen_by_its_name(graph: Graph) -> None:
    text = "query one() { update Person set { age: 11 } where age > 0 } query two() { delete Person where age > 0 }"
    with pytest.raises(QueryError, match="say which one"):
        graph.mutate(text)
    with pytest.raises(NotFound, match="it has one, two"):
        graph.mutate(text, name="three")
    assert graph.mutate(text, name="one").affected_nodes == 3


def test_a_strict_write_says_which_table_moved_and_how_far(graph: Graph) -> None:
    expected = graph.snapshot().versions["node:Person"]
    graph.mutate('query q() { insert Person { name: "d" } }')
    with pytest.raises(ExpectedVersionMismatch) as lost:
        graph.mutate('query q() { insert Person { name: "e" } }', expected_versions={"node:Person": expected})
    assert lost.value.facts == {"table_key": "node:Person", "expected": expected, "actual": expected + 1}


def intent(graph: Graph, txn_id: str | None) -> MutationIntent:
    text = 'query q() { insert Note { text: "hm" } }'
    terms = WriteTerms(Author(), txn_id=txn_id)
    return MutationIntent.of(text, {}, graph.schema, terms, name=None, now=datetime.now(UTC))


def test_an_id_of_the_caller_s_is_the_commit_s_and_what_it_says_is_hashed(graph: Graph) -> None:
    first, again = (intent(graph, txn_id) for txn_id in ("01J0000000000000000000000A", "01j0000000000000000000000a"))
    assert first.commit_id == again.commit_id == "01J0000000000000000000000A"
    assert first.resubmittable
    assert first.payload_hash == again.payload_hash != ""


def test_a_mutation_without_an_id_gets_a_new_one_and_is_not_hashed(graph: Graph) -> None:
    first, other = intent(graph, None), intent(graph, None)
    assert first.commit_id != other.commit_id
    assert (first.resubmittable, first.payload_hash) == (False, "")


def test_an_id_that_is_no_ulid_is_refused(graph: Graph) -> None:
    with pytest.raises(InputError, match="invalid txn_id"):
        intent(graph, "order-17")


def test_the_same_id_again_applies_nothing_and_returns_the_first_outcome(graph: Graph) -> None:
    add = "query q($text: String) { insert Note { text: $text } }"
    first = graph.mutate(add, {"text": "hm"}, txn_id="01J0000000000000000000000A")
    again = graph.mutate(add, {"text": "hm"}, txn_id="01J0000000000000000000000A", actor="bob")
    assert again == replace(first, repeated=True)
    with pytest.raises(PayloadMismatch, match="committed with other data"):
        graph.mutate(add, {"text": "other"}, txn_id="01J0000000000000000000000A")
    assert graph.snapshot().count("Note") == 1


def test_a_large_value_for_many_rows_is_refused_before_the_rows_are_made(graph: Graph) -> None:
    """An update sets its value in every row that it meets: 2 MiB become gigabytes."""
    graph.load([{"text": f"note {n}"} for n in range(200)], type="Note")
    query = 'query all($text: String) { update Note set { text: $text } where text != "" }'
    before = graph.snapshot().versions
    with pytest.raises(QueryError, match="narrow its 'where'"):
        graph.mutate(query, {"text": "x" * (2 << 20)})
    assert graph.snapshot().versions == before
    assert graph.mutate(query, {"text": "x" * (1 << 10)}).affected_nodes == 200


@pytest.mark.parametrize(
    "query",
    [
        "update Person set { age: 9 } where age > 0",
        "update Person set { age: 9 } where age = 1 update Person set { age: 8 } where age >= 2",
        "update Person set { age: 9 } where age <= 2 update Person set { age: 8 } where age = 9",
        "delete Person where age > 0",
        'delete Person where name = "c"',
        'delete Knows where from = "a" delete Person where age >= 3',
    ],
)
def test_a_mutation_that_matches_too_many_rows_is_refused(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """All of its statements count, rows that an earlier one changed, and edges that go with deleted nodes."""
    monkeypatch.setattr(mutate, "MATCHED_ROWS_MAX", 2)
    before = graph.snapshot().versions
    with pytest.raises(QueryError, match=r"^statement \d: more than \d rows are matched; .* narrow its 'where'"):
        graph.mutate(f"query q() {{ {query} }}")
    assert graph.snapshot().versions == before
    monkeypatch.setattr(mutate, "MATCHED_ROWS_MAX", 10)
    assert graph.mutate(f"query q() {{ {query} }}").affected_nodes


def test_of_rows_that_are_too_many_no_more_are_read_than_there_is_room_for(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: an update meets rows of a gigabyte. Oracle: how much of them is read until it is refused."""
    monkeypatch.setattr(mutate, "MATCHED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(table, "SCANNED_BYTES_MAX", 1 << 18)
    graph.load([{"text": "x" * (1 << 18)} for _ in range(40)], type="Note")
    read: list[int] = []
    guarded = Table._guarded

    def counted(self: Table, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in guarded(self, reader):
            read.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(Table, "_guarded", counted)
    with pytest.raises(QueryError, match=r"take more than \d+ bytes; .* narrow its 'where'"):
        graph.mutate('query q() { update Note set { text: "y" } where text != "" }')
    assert 1 << 20 < sum(read) < 3 << 20


def test_a_query_of_too_many_statements_is_refused(graph: Graph) -> None:
    inserts = '  insert Note { text: "one" }\n' * (STATEMENTS_MAX + 1)
    with pytest.raises(QueryError, match="load the rows"):
        graph.mutate(f"query many() {{\n{inserts}}}")


@pytest.mark.parametrize(
    ("statements", "tables"),
    [
        (['insert Person { name: "x" }', 'insert Knows { from: "x", to: "a" }'], {"node:Person", "edge:Knows"}),
        (['update Note set { text: "x" } where text = "y"'], {"node:Note"}),
        (['delete Person where name = "x"'], {"node:Person", "edge:Knows", "edge:Wrote"}),
        (['delete Note where text = "x"', 'delete Knows where from = "x"'], {"node:Note", "edge:Wrote", "edge:Knows"}),
    ],
)
def test_its_text_tells_how_many_statements_a_mutation_has_and_which_tables_it_may_write_to(
    graph: Graph, statements: list[str], tables: set[str]
) -> None:
    scope = Scope.of(f"query q() {{ {' '.join(statements)} }}", None, graph.schema)
    assert scope == Scope(len(statements), frozenset(tables))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("query q() { insert Nobody { } }", QueryError),
        ('query p() { delete Note where text = "x" }', NotFound),
        ("nonsense", ParseError),
    ],
)
def test_a_text_that_can_t_be_read_or_names_an_unknown_type_has_no_scope(
    graph: Graph, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Scope.of(text, "q", graph.schema)
