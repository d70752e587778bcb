"""Each rule over several rows: both sides of its boundary, within a write and against the pinned graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.judge import constraints
from omniray.engine.judge import relations as sets
from omniray.engine.judge.constraints import Counts, Verdict, judge
from omniray.engine.judge.keylog import KeyLog
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import (
    Cardinality,
    EdgeType,
    EnumType,
    Key,
    NodeType,
    Property,
    Scalar,
    ScalarType,
    Schema,
    Unique,
)
from tests.pinned_rows import FIRST_ADDRESS, Graph, PinnedRows, Row, nullable

TEXT, NUMBER, FLOAT = ScalarType(Scalar.STRING), ScalarType(Scalar.I64), ScalarType(Scalar.F64)
PERSON = NodeType(
    "Person",
    (
        Property("name", TEXT),
        Property("email", TEXT, True),
        Property("team", EnumType(("red", "blue")), True),
        Property("rank", NUMBER, True),
        Property("height", FLOAT, True),
    ),
    (),
    constraints=(Key(("name",)), Unique(("email",)), Unique(("team", "rank")), Unique(("height",))),
)
COMPANY = NodeType("Company", (Property("title", TEXT, True),), ())
KNOWS = EdgeType("Knows", "Person", "Person", cardinality=Cardinality(0, 3), constraints=(Unique(("src", "dst")),))
WORKS = EdgeType("Works", "Person", "Company", cardinality=Cardinality(1, 2))
VISITS = EdgeType("Visits", "Person", "Company", cardinality=Cardinality(2, None))
LIKES = EdgeType("Likes", "Person", "Company", (Property("source", TEXT, True),), constraints=(Unique(("source",)),))
SCHEMA = Schema((PERSON, COMPANY), (KNOWS, WORKS, VISITS, LIKES))


@dataclass(frozen=True)
class Judge:
    """Judges writes on one path; every test of a rule runs on all of them."""

    memory_rows: int
    lookup_keys_max: int

    def __call__(
        self,
        modes: Mode | dict[str, Mode],
        rows: Graph,
        pinned: Graph | None = None,
        *,
        reject: bool = False,
        source: str = "graph.jsonl",
    ) -> Verdict:
        with KeyLog(SCHEMA, memory_rows=self.memory_rows) as log:
            for name, written in rows.items():
                type = SCHEMA.type(name)
                mode = modes if isinstance(modes, Mode) else modes[name]
                log.begin(type, mode)
                if mode is Mode.DELETE:
                    log.delete(type, pa.array([row["id"] for row in written], pa.string()))
                else:
                    table = pa.Table.from_pylist(written, schema=nullable(type.arrow))
                    log.add(type, table, pa.array(range(11, 11 + len(written)), pa.int64()), source)
            return judge(
                log, SCHEMA, PinnedRows(SCHEMA, pinned or {}, self.lookup_keys_max),
                reject=reject, lookup_keys_max=self.lookup_keys_max,
            )  # fmt: skip


@pytest.fixture(params=[(100_000, 5_000), (0, 0)], ids=["few rows", "many rows"])
def judged(request: pytest.FixtureRequest) -> Judge:
    return Judge(*request.param)


def person(name: str, **more: Any) -> Row:
    return {"id": name, "name": name, **more}


def people(names: str) -> list[Row]:
    return [person(name) for name in names]


def edge(src: str, dst: str, id: str | None = None, **more: Any) -> Row:
    return {"id": id, "src": src, "dst": dst, **more}


def knows(*ends: str) -> list[Row]:
    """Pinned edges `ab`, whose ids are the same two letters."""
    return [edge(e[0], e[1], e) for e in ends]


def only(verdict: Verdict) -> tuple[str, int | None, str]:
    """The single violation of a refused write: its kind, record and reason."""
    (violation,) = verdict.violations
    assert verdict.refusal == violation
    assert verdict.tables == {}
    return violation.kind, violation.record, violation.reason


def rejected(verdict: Verdict) -> list[int | None]:
    assert verdict.refusal is None
    return [violation.record for violation in verdict.violations]


# Keys


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
def test_a_key_given_twice_is_refused_and_names_the_first_record(judged: Judge, mode: Mode) -> None:
    reason = "@unique violation on Person.name: duplicate key 'a', first at graph.jsonl line 11"
    assert only(judged(mode, {"Person": people("aba")})) == ("constraint", 13, reason)


def test_a_keyless_id_given_twice_is_refused_by_its_id(judged: Judge) -> None:
    verdict = judged(Mode.APPEND, {"Company": [{"id": "A"}, {"id": "A"}]}, source="")
    assert only(verdict) == ("constraint", 12, "@unique violation on Company.id: duplicate key 'A', first at record 11")


def test_an_appended_key_that_exists_is_a_conflict_with_that_key(judged: Judge) -> None:
    verdict = judged(Mode.APPEND, {"Person": people("xa")}, {"Person": people("ab")})
    assert only(verdict) == ("key_conflict", 12, "key conflict on node:Person: 'a' exists already")
    assert verdict.refusal is not None
    assert (verdict.refusal.key, verdict.refusal.row, verdict.refusal.source) == ("a", 1, "graph.jsonl")


def test_the_first_broken_record_is_named_whether_it_is_repeated_or_exists(judged: Judge) -> None:
    pinned = {"Person": people("z")}
    assert only(judged(Mode.APPEND, {"Person": people("aaz")}, pinned))[:2] == ("constraint", 12)
    assert only(judged(Mode.APPEND, {"Person": people("zaa")}, pinned))[:2] == ("key_conflict", 11)


def test_an_overwrite_may_write_keys_that_exist(judged: Judge) -> None:
    table = judged(Mode.OVERWRITE, {"Person": people("ab")}, {"Person": people("abc")}).tables["node:Person"]
    assert table.counts == Counts(inserted=2, deleted=3)
    assert table.replaced.num_rows == 0


def test_ids_that_are_still_to_be_minted_never_collide(judged: Judge) -> None:
    rows = {"Company": [{"id": None}, {"id": None}]}
    for mode in (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE):
        assert judged(mode, rows, {"Company": [{"id": "A"}]}).tables["node:Company"].counts.inserted == 2


def test_in_a_merge_the_last_row_of_a_key_wins_and_replaces_the_pinned_one(judged: Judge) -> None:
    verdict = judged(Mode.MERGE, {"Person": people("abaxa")}, {"Person": people("qa")})
    table = verdict.tables["node:Person"]
    assert table.dropped.to_pylist() == [0, 2]
    assert table.replaced.to_pylist() == [{"id": "a", "_rowaddr": FIRST_ADDRESS + 1}]
    assert table.counts == Counts(inserted=2, replaced=1)
    assert verdict.counts("node").affected == 3
    assert verdict.counts("edge").affected == 0


def test_an_edge_merged_by_its_id_replaces_the_pinned_one_wherever_that_led(judged: Judge) -> None:
    pinned = {"Person": people("abc"), "Knows": knows("ab")}
    table = judged(Mode.MERGE, {"Knows": [edge("a", "c", "ab")]}, pinned).tables["edge:Knows"]
    assert table.replaced["id"].to_pylist() == ["ab"]


def test_deleted_rows_are_listed_with_their_addresses(judged: Judge) -> None:
    table = judged(Mode.DELETE, {"Person": people("cax")}, {"Person": people("abc")}).tables["node:Person"]
    assert sorted(table.replaced["_rowaddr"].to_pylist()) == [FIRST_ADDRESS, FIRST_ADDRESS + 2]
    assert table.counts == Counts(deleted=2)


# @unique


def test_equal_values_in_one_write_are_refused_and_name_the_other_record(judged: Judge) -> None:
    rows = {"Person": [person("a", email="e"), person("b"), person("c", email="e")]}
    reason = "@unique violation on Person.email: 'e' is also at graph.jsonl line 11"
    assert only(judged(Mode.APPEND, rows)) == ("constraint", 13, reason)


def test_several_values_are_compared_and_shown_together(judged: Judge) -> None:
    rows = [person("a", team="red", rank=3), person("b", team="red", rank=4), person("c", team="blue", rank=3)]
    assert judged(Mode.APPEND, {"Person": rows}).refusal is None
    rows.append(person("d", team="red", rank=4))
    reason = "@unique violation on Person.team,rank: ('red', 4) is also at graph.jsonl line 12"
    assert only(judged(Mode.APPEND, {"Person": rows})) == ("constraint", 14, reason)


def test_a_null_among_the_values_exempts_a_row(judged: Judge) -> None:
    rows = [person("a", team="red"), person("b", team="red"), person("c", rank=1), person("d", rank=1)]
    pinned = [person("e", team="red"), person("f", rank=1), person("g")]
    assert judged(Mode.APPEND, {"Person": rows}, {"Person": pinned}).refusal is None


def test_values_that_a_pinned_row_has_are_refused_and_name_it(judged: Judge) -> None:
    pinned = {"Person": [person("a", email="e", team="red", rank=1), person("b", team="blue", rank=2)]}
    verdict = judged(Mode.APPEND, {"Person": [person("c", email="e")]}, pinned)
    assert only(verdict) == ("constraint", 11, "@unique violation on Person.email: 'e' is taken by 'a'")
    crossed = [person("c", team="red", rank=2), person("d", team="blue", rank=1)]
    assert judged(Mode.APPEND, {"Person": crossed}, pinned).refusal is None
    verdict = judged(Mode.APPEND, {"Person": [person("c", team="blue", rank=2)]}, pinned)
    assert only(verdict)[2] == "@unique violation on Person.team,rank: ('blue', 2) is taken by 'b'"


def test_a_row_may_keep_its_own_values_and_take_those_that_another_gives_up(judged: Judge) -> None:
    pinned = {"Person": [person("a", email="e"), person("b", email="f")]}
    assert judged(Mode.MERGE, {"Person": [person("a", email="e")]}, pinned).refusal is None
    swapped = [person("a", email="f"), person("b", email="e")]
    assert judged(Mode.MERGE, {"Person": swapped}, pinned).refusal is None
    assert only(judged(Mode.MERGE, {"Person": swapped[:1]}, pinned))[2].endswith("'f' is taken by 'b'")


def test_values_of_a_superseded_row_are_nobodys(judged: Judge) -> None:
    rows = {"Person": [person("a", email="e"), person("b", email="e"), person("a", email="f")]}
    assert judged(Mode.MERGE, rows).refusal is None


def test_values_of_an_overwritten_table_are_free(judged: Judge) -> None:
    pinned = {"Person": [person("a", email="e")]}
    assert judged(Mode.OVERWRITE, {"Person": [person("b", email="e")]}, pinned).refusal is None


@pytest.mark.parametrize("pinned", [-0.0, float("nan")])
def test_floats_are_compared_by_value(judged: Judge, pinned: float) -> None:
    same = [person("b", height=abs(pinned))]
    assert only(judged(Mode.APPEND, {"Person": same}, {"Person": [person("a", height=pinned)]}))[1] == 11


def test_a_property_may_have_a_name_that_the_log_uses_itself(judged: Judge) -> None:
    pinned = {"Person": people("a"), "Company": [{"id": "A"}]}
    rows = {"Likes": [edge("a", "A", source="s"), edge("a", "A", source="s")]}
    assert only(judged(Mode.APPEND, rows, pinned))[2] == (
        "@unique violation on Likes.source: 's' is also at graph.jsonl line 11"
    )


def test_a_long_value_is_cut_in_the_message(judged: Judge) -> None:
    rows = {"Person": [person("a", email="e" * 80), person("b", email="e" * 80)]}
    assert f"'{'e' * 80}'" in only(judged(Mode.APPEND, rows))[2]
    rows = {"Person": [person("a", email="e" * 81), person("b", email="e" * 81)]}
    assert f"'{'e' * 80}…'" in only(judged(Mode.APPEND, rows))[2]


@pytest.mark.parametrize("hostile", ["'", "''; drop table keys_0; --", "{live}", "{", "\\", "\x00", "é\u202e"])
def test_a_value_is_never_read_as_sql(judged: Judge, hostile: str) -> None:
    rows = {"Person": [person(hostile, email=hostile), person("b", email=hostile)], "Knows": [edge(hostile, "b")]}
    verdict = judged(Mode.APPEND, rows, reject=True)
    assert rejected(verdict) == [12, 11]
    assert verdict.violations[0].reason.startswith(f"@unique violation on Person.email: '{hostile}' is")
    assert verdict.violations[1].reason == "dst 'b' not found in Person"


# Edges known by their ends


def test_an_edge_without_an_id_takes_over_the_pinned_edge_between_its_nodes(judged: Judge) -> None:
    pinned = {"Person": people("abc"), "Knows": knows("ab", "ac")}
    verdict = judged(Mode.MERGE, {"Knows": [edge("c", "a"), edge("a", "b"), edge("a", "b")]}, pinned)
    table = verdict.tables["edge:Knows"]
    assert table.adopted.to_pylist() == [{"row": 2, "id": "ab"}]
    assert table.dropped.to_pylist() == [1]
    assert table.replaced.to_pylist() == [{"id": "ab", "_rowaddr": FIRST_ADDRESS}]
    assert table.counts == Counts(inserted=1, replaced=1)


def test_of_two_new_edges_between_the_same_nodes_the_last_wins_in_a_merge(judged: Judge) -> None:
    rows = {"Person": people("ab"), "Knows": [edge("a", "b"), edge("b", "a"), edge("a", "b")]}
    table = judged(Mode.MERGE, rows).tables["edge:Knows"]
    assert table.dropped.to_pylist() == [0]
    assert table.adopted.num_rows == 0
    assert only(judged(Mode.APPEND, rows))[1] == 13


def test_an_edge_with_an_id_adopts_none_even_if_it_takes_the_place_of_another(judged: Judge) -> None:
    pinned = {"Person": people("abc"), "Knows": knows("ab")}
    rows = [edge("a", "c", "ab"), edge("a", "b", "new"), edge("b", "c")]
    table = judged(Mode.MERGE, {"Knows": rows}, pinned).tables["edge:Knows"]
    assert table.adopted.num_rows == 0
    assert table.counts == Counts(inserted=2, replaced=1)


def test_a_merged_edge_with_an_id_of_its_own_may_not_double_another(judged: Judge) -> None:
    pinned = {"Person": people("ab"), "Knows": knows("ab")}
    verdict = judged(Mode.MERGE, {"Knows": [edge("a", "b", "other")]}, pinned)
    assert only(verdict)[2] == "@unique violation on Knows.src,dst: ('a', 'b') is taken by 'ab'"


# Ends


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (edge("x", "A"), "src 'x' not found in Person"),
        (edge("a", "y"), "dst 'y' not found in Company"),
        (edge("x", "y"), "src 'x' not found in Person"),
        (edge("A", "A"), "src 'A' not found in Person"),
    ],
)
def test_an_edge_to_nobody_is_refused_and_names_the_record(judged: Judge, row: Row, reason: str) -> None:
    pinned = {"Person": people("a"), "Company": [{"id": "A"}]}
    assert only(judged(Mode.APPEND, {"Likes": [edge("a", "A"), row]}, pinned)) == ("constraint", 12, reason)


def test_the_nodes_of_an_edge_may_be_pinned_or_written_with_it(judged: Judge) -> None:
    rows = {"Person": people("b"), "Knows": [edge("a", "b"), edge("b", "a")]}
    assert judged(Mode.APPEND, rows, {"Person": people("a")}).refusal is None
    assert judged(Mode.MERGE, rows, {"Person": people("ab")}).refusal is None
    assert only(judged(Mode.OVERWRITE, rows, {"Person": people("a")}))[2] == "src 'a' not found in Person"


def test_an_edge_to_a_node_that_the_same_write_deletes_is_refused(judged: Judge) -> None:
    modes = {"Person": Mode.DELETE, "Knows": Mode.APPEND}
    rows = {"Person": people("b"), "Knows": [edge("a", "c"), edge("a", "b")]}
    verdict = judged(modes, rows, {"Person": people("abc")})
    assert only(verdict) == ("constraint", 12, "dst 'b' not found in Person")


def test_an_edge_falls_with_a_rejected_node_unless_a_pinned_one_has_its_id(judged: Judge) -> None:
    pinned = {"Person": [person("a"), person("p", email="e")]}
    rows = {"Person": [person("a"), person("n", email="e")], "Knows": [edge("a", "p"), edge("n", "p"), edge("p", "n")]}
    verdict = judged(Mode.APPEND, rows, pinned, reject=True)
    assert [(v.table_key, v.record, v.reason) for v in verdict.violations] == [
        ("node:Person", 11, "key conflict on node:Person: 'a' exists already"),
        ("node:Person", 12, "@unique violation on Person.email: 'e' is taken by 'p'"),
        ("edge:Knows", 12, "src 'n' not found in Person"),
        ("edge:Knows", 13, "dst 'n' not found in Person"),
    ]
    assert verdict.tables["edge:Knows"].dropped.to_pylist() == [1, 2]


@pytest.mark.parametrize(("end", "gone"), [("src", "a"), ("dst", "b")])
def test_a_node_that_a_staying_edge_needs_can_not_be_deleted(judged: Judge, end: str, gone: str) -> None:
    pinned = {"Person": people("abc"), "Knows": knows("ab")}
    reason = f"{end} '{gone}' not found in Person: edge 'ab' of Knows still needs it"
    assert only(judged(Mode.DELETE, {"Person": people(gone)}, pinned)) == ("constraint", None, reason)
    assert judged(Mode.DELETE, {"Person": people("c")}, pinned).refusal is None
    assert judged(Mode.DELETE, {"Person": people(gone), "Knows": knows("ab")}, pinned).refusal is None


def test_an_overwrite_that_leaves_out_a_node_which_a_staying_edge_needs_is_refused_even_when_rejecting(
    judged: Judge,
) -> None:
    pinned = {"Person": people("abc"), "Knows": knows("ab", "ca")}
    for reject in (False, True):
        verdict = judged(Mode.OVERWRITE, {"Person": people("ac")}, pinned, reject=reject)
        assert only(verdict)[2] == "dst 'b' not found in Person: edge 'ab' of Knows still needs it"
    assert judged(Mode.OVERWRITE, {"Person": people("abc")}, pinned).refusal is None
    assert judged(Mode.OVERWRITE, {"Person": people("ac"), "Knows": [edge("c", "a")]}, pinned).refusal is None
    assert only(judged(Mode.OVERWRITE, {"Person": []}, pinned))[1] is None
    assert judged(Mode.OVERWRITE, {"Person": [], "Knows": []}, pinned).refusal is None


# @card


def test_a_source_may_have_as_many_edges_as_allowed_and_not_one_more(judged: Judge) -> None:
    nodes = people("abcde")
    three = [edge("a", "b"), edge("a", "c"), edge("a", "d")]
    assert judged(Mode.APPEND, {"Person": nodes, "Knows": three}).refusal is None
    four = [edge("b", "a"), *three, edge("a", "e")]
    reason = "@card violation on edge Knows: source 'a' has 4 edges, allowed 0..3"
    assert only(judged(Mode.APPEND, {"Person": nodes, "Knows": four})) == ("constraint", 15, reason)


def test_pinned_edges_of_a_source_count(judged: Judge) -> None:
    pinned = {"Person": people("abcde"), "Knows": knows("ab", "ac", "bc")}
    assert judged(Mode.APPEND, {"Knows": [edge("a", "d")]}, pinned).refusal is None
    assert only(judged(Mode.APPEND, {"Knows": [edge("a", "d"), edge("a", "e")]}, pinned))[1] == 12
    assert judged(Mode.OVERWRITE, {"Knows": [edge("a", "d"), edge("a", "e")]}, pinned).refusal is None


def test_a_replaced_edge_counts_once_and_a_moved_one_where_it_goes(judged: Judge) -> None:
    pinned = {"Person": people("abcde"), "Knows": knows("ab", "ac", "ad", "ba")}
    assert judged(Mode.MERGE, {"Knows": [edge("a", "b", "ab"), edge("a", "c")]}, pinned).refusal is None
    moved_in = [edge("a", "e", "ba")]
    assert "source 'a' has 4 edges" in only(judged(Mode.MERGE, {"Knows": moved_in}, pinned))[2]
    assert judged(Mode.MERGE, {"Knows": [*moved_in, edge("b", "e", "ab")]}, pinned).refusal is None


def test_of_an_overfull_source_just_enough_of_the_latest_newcomers_are_rejected(judged: Judge) -> None:
    pinned = {"Person": people("abcdef"), "Knows": knows("ab", "ac")}
    rows = [edge("a", "d"), edge("a", "e"), edge("a", "f"), edge("a", "b")]
    assert rejected(judged(Mode.MERGE, {"Knows": rows}, pinned, reject=True)) == [12, 13]


def test_a_source_that_gets_edges_needs_enough_of_them(judged: Judge) -> None:
    pinned = {"Person": people("ab"), "Company": [{"id": "A"}]}
    assert judged(Mode.APPEND, {"Visits": [edge("a", "A"), edge("a", "A")]}, pinned).refusal is None
    rows = {"Visits": [edge("a", "A"), edge("b", "A"), edge("a", "A")]}
    reason = "@card violation on edge Visits: source 'b' has 1 edges, allowed 2..*"
    assert only(judged(Mode.APPEND, rows, pinned)) == ("constraint", 12, reason)
    assert rejected(judged(Mode.APPEND, rows, pinned, reject=True)) == [12]


def test_a_source_that_loses_its_edges_breaks_a_lower_bound_even_when_rejecting(judged: Judge) -> None:
    pinned = {"Person": people("ab"), "Company": [{"id": "A"}], "Works": [edge("a", "A", "1"), edge("b", "A", "2")]}
    reason = "@card violation on edge Works: source 'a' has 0 edges, allowed 1..2"
    gone = [{"id": "1"}]
    for reject in (False, True):
        assert only(judged(Mode.DELETE, {"Works": gone}, pinned, reject=reject)) == ("constraint", None, reason)
        rows = {"Works": [edge("b", "A")]}
        assert only(judged(Mode.OVERWRITE, rows, pinned, reject=reject)) == ("constraint", None, reason)
        moved = {"Works": [edge("b", "A", "1")]}
        assert only(judged(Mode.MERGE, moved, pinned, reject=reject)) == ("constraint", None, reason)


def test_a_source_that_goes_with_its_edges_needs_none(judged: Judge) -> None:
    pinned = {"Person": people("ab"), "Company": [{"id": "A"}], "Works": [edge("a", "A", "1"), edge("b", "A", "2")]}
    assert judged(Mode.DELETE, {"Person": people("a"), "Works": [{"id": "1"}]}, pinned).refusal is None
    rows = {"Person": people("b"), "Works": [edge("b", "A")]}
    assert judged(Mode.OVERWRITE, rows, pinned).refusal is None


# Rejecting


def test_a_row_that_a_rejected_one_had_superseded_lands_after_all(judged: Judge) -> None:
    pinned = {"Person": [person("p", email="taken")]}
    rows = {"Person": [person("a", email="free"), person("a", email="taken")]}
    verdict = judged(Mode.MERGE, rows, pinned, reject=True)
    assert rejected(verdict) == [12]
    assert verdict.tables["node:Person"].dropped.to_pylist() == [1]


def test_a_pinned_row_stays_when_the_row_that_was_to_replace_it_is_rejected(judged: Judge) -> None:
    pinned = {"Person": [person("a", email="e"), person("b", email="f")]}
    rows = {"Person": [person("c", email="e"), person("a", email="f"), person("d")]}
    verdict = judged(Mode.MERGE, rows, pinned, reject=True)
    assert rejected(verdict) == [12, 11]
    assert verdict.tables["node:Person"].replaced.num_rows == 0


def test_rejecting_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "PASSES_MAX", 3)
    pinned = {"Person": [person("p", email="taken")]}
    rows = {"Person": [person("a", email="taken")] * 2}
    assert rejected(Judge(100_000, 5_000)(Mode.MERGE, rows, pinned, reject=True)) == [12, 11]
    with pytest.raises(ConstraintViolation, match="node:Person: records still break rules after 3 passes"):
        Judge(100_000, 5_000)(Mode.MERGE, {"Person": [person("a", email="taken")] * 3}, pinned, reject=True)


# Asking the pinned state


def asked(mode: Mode, rows: Graph, pinned: Graph, lookup_keys_max: int = 5_000) -> list[tuple[str, str]]:
    return state_after(mode, rows, pinned, lookup_keys_max).asked


def state_after(mode: Mode, rows: Graph, pinned: Graph, lookup_keys_max: int = 5_000) -> PinnedRows:
    state = PinnedRows(SCHEMA, pinned, lookup_keys_max)
    with KeyLog(SCHEMA) as log:
        for name, written in rows.items():
            type = SCHEMA.type(name)
            log.begin(type, mode)
            table = pa.Table.from_pylist(written, schema=nullable(type.arrow))
            log.add(type, table, pa.array(range(len(written)), pa.int64()), "")
        judge(log, SCHEMA, state, lookup_keys_max=lookup_keys_max)
    return state


def test_few_keys_are_looked_up_and_many_are_met_in_one_pass() -> None:
    pinned = {"Company": [{"id": c} for c in "ABCD"]}
    rows = {"Company": [{"id": c} for c in "XYZ"]}
    assert asked(Mode.APPEND, rows, pinned, 3) == [("matching", "node:Company")]
    assert asked(Mode.APPEND, rows, pinned, 2) == [("scan", "node:Company")]
    assert asked(Mode.APPEND, rows, {"Company": [{"id": "A"}]}, 3) == [("scan", "node:Company")]


def test_an_edge_with_a_new_id_asks_for_its_nodes_alone_and_once() -> None:
    pinned = {"Person": people("ab"), "Company": [{"id": "A"}], "Likes": [edge("a", "A", "1")], "Knows": knows("ba")}
    assert asked(Mode.APPEND, {"Likes": [edge("a", "A")]}, pinned) == [
        ("existing", "node:Person"),
        ("existing", "node:Company"),
    ]
    tables = [table for _, table in asked(Mode.APPEND, {"Knows": [edge("a", "b")]}, pinned)]
    assert tables.count("node:Person") == 1


def test_an_overwrite_asks_nothing_of_the_rows_that_go() -> None:
    rows = {"Company": [{"id": "A", "title": "t"}]}
    assert asked(Mode.OVERWRITE, rows, {"Company": [{"id": "A", "title": "t"}]}) == []


def test_a_row_with_a_new_id_does_not_depend_on_its_table() -> None:
    """A judgement is made anew when a table that it asked about has moved: that must not be every table it writes."""
    pinned = {"Company": [{"id": "A"}]}
    assert state_after(Mode.APPEND, {"Company": [{"id": None}]}, pinned).counted == set()
    assert state_after(Mode.APPEND, {"Company": [{"id": "B"}]}, pinned).counted == {"node:Company"}


def test_several_values_are_looked_up_by_the_one_that_tells_most() -> None:
    pinned = {"Person": people("ab"), "Knows": knows("ab")}
    row = person("c", team="red", rank=1)
    assert state_after(Mode.APPEND, {"Person": [row]}, pinned).looked_up == ["id", "rank"]
    ends = state_after(Mode.APPEND, {"Knows": [edge("b", "a")]}, pinned).looked_up
    assert "src" in ends
    assert "dst" not in ends


@pytest.mark.parametrize("joined_row_bytes", [256, 1 << 27], ids=["in one pass", "in several passes"])
def test_every_missing_end_is_found_in_however_many_passes(
    joined_row_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many nodes for one join are asked in parts: no id may fall between them, and none be found missing in all."""
    monkeypatch.setattr(sets, "JOINED_ROW_BYTES", joined_row_bytes)
    there, missing = [f"p{n}" for n in range(20)], [f"m{n}" for n in range(20)]
    likes = [edge(f"p{n}", "c") for n in range(20)] + [edge(f"m{n}", "c") for n in range(20)]
    rows = {"Person": [person(name) for name in there], "Company": [{"id": "c"}], "Likes": likes}
    verdict = Judge(memory_rows=0, lookup_keys_max=0)(Mode.APPEND, rows, reject=True)
    assert sorted(v.reason for v in verdict.violations) == sorted(f"src '{m}' not found in Person" for m in missing)
