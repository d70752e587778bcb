"""Filters over every type of column, those above all that Lance's own way of taking an Arrow expression refuses."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import omniray
from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.tables.filters import TEXT_CHARS_MAX, among, is_pushed_down
from omniray.engine.tables.storage import TableStorage

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _graph(tmp_path: Path, schema: str) -> omniray.Graph:
    return omniray.init(str(tmp_path / "graph"), schema=schema)


@pytest.mark.parametrize("type", ["[U32]", "[U64]", "[Blob]", "Vector(2)", "[F32]", "[DateTime]"])
def test_a_list_of_anything_does_not_stand_in_the_way_of_a_filter(tmp_path: Path, type: str) -> None:
    with _graph(tmp_path, f"node Item {{ code: String @key  n: I32 @unique  list: {type}? }}") as graph:
        graph.load([{"code": "a", "n": 1}, {"code": "b", "n": 2}], type="Item")
        with pytest.raises(omniray.KeyConflict):
            graph.load([{"code": "a", "n": 3}], type="Item")
        with pytest.raises(omniray.ConstraintViolation):
            graph.load([{"code": "c", "n": 1}], type="Item")
        assert graph.mutate('query q() { update Item set { n: 5 } where code = "a" }').affected_nodes == 1
        assert graph.snapshot().table("Item", filter=pc.field("n") == 5)["id"].to_pylist() == ["a"]


@pytest.mark.parametrize(("type", "greatest"), [("U32", 2**32 - 1), ("U64", 2**64 - 1)])
def test_unsigned_numbers_are_compared_as_the_numbers_they_are(tmp_path: Path, type: str, greatest: int) -> None:
    values = [0, 1, greatest // 2, greatest // 2 + 1, greatest - 1, greatest]
    with _graph(tmp_path, f"node Item {{ n: {type} @key  seen: Bool }}") as graph:
        for op, compare in COMPARE.items():
            for value in values:
                graph.load([{"n": n, "seen": False} for n in values], type="Item", mode="overwrite")
                graph.mutate(
                    f"query q($n: {type}) {{ update Item set {{ seen: true }} where n {op} $n }}", {"n": value}
                )
                rows = graph.snapshot().table("Item", filter=pc.field("seen"))["n"].to_pylist()
                assert sorted(rows) == [n for n in values if compare(n, value)]


@pytest.mark.parametrize(("type", "greatest"), [("U32", 2**32 - 1), ("U64", 2**64 - 1)])
def test_uniqueness_of_unsigned_numbers_is_judged_against_what_is_there(
    tmp_path: Path, type: str, greatest: int
) -> None:
    with _graph(tmp_path, f"node Item {{ n: {type} @unique }}") as graph:
        graph.load([{"n": greatest}, {"n": 0}, {"n": 1}], type="Item")
        with pytest.raises(omniray.ConstraintViolation, match=f"{greatest} is taken by"):
            graph.load([{"n": greatest}], type="Item")
        assert graph.load([{"n": greatest - 1}], type="Item").affected_nodes == 1


def test_a_snapshot_is_filtered_by_unsigned_numbers_and_blobs(tmp_path: Path) -> None:
    with _graph(tmp_path, "node Item { n: U64  data: Blob }") as graph:
        graph.load([{"id": "a", "n": 2**64 - 1, "data": b"\x00"}, {"id": "b", "n": 7, "data": b""}], type="Item")
        snapshot = graph.snapshot()
        for where, found in [
            (pc.field("n") == 7, ["b"]),
            (pc.field("n") > 7, ["a"]),
            (pc.field("n") == pa.scalar(2**64 - 1, pa.uint64()), ["a"]),
            (among("n", pa.array([7, 2**64 - 1], pa.uint64())), ["a", "b"]),
            (pc.field("data") == b"\x00", ["a"]),
            ("n = 7", ["b"]),
        ]:
            assert snapshot.table("Item", filter=where)["id"].to_pylist() == found, where


@pytest.mark.parametrize("type", ["F32", "F64"])
@pytest.mark.parametrize("op", list(COMPARE))
def test_nan_is_unequal_to_every_number_and_neither_above_nor_below(tmp_path: Path, type: str, op: str) -> None:
    """For rows that are committed and for rows that the same query has written before, which others compare."""
    values = [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
    with _graph(tmp_path, f"node Item {{ x: {type}  seen: Bool  touched: Bool? }}") as graph:
        for touch in ("", "update Item set { touched: true } where seen = false"):
            for value in (0.0, -0.0, 1.5):
                rows = [{"id": f"{n}", "x": x, "seen": False} for n, x in enumerate(values)]
                graph.load(rows, type="Item", mode="overwrite")
                query = f"query q($x: {type}) {{ {touch} update Item set {{ seen: true }} where x {op} $x }}"
                graph.mutate(query, {"x": value})
                seen = graph.snapshot().table("Item", filter=pc.field("seen"))["id"].to_pylist()
                assert sorted(seen) == [f"{n}" for n, x in enumerate(values) if COMPARE[op](x, value)]


# Filters out of all bounds


def any_of(numbers: range) -> pc.Expression:
    """One of these ages, as a chain: the deepest way to say so."""
    return functools.reduce(operator.or_, (pc.field("age") == number for number in numbers))


@pytest.fixture
def ages(tmp_path: Path) -> omniray.Snapshot:
    graph = omniray.init(tmp_path / "ages", schema="node Person { name: String @key\n age: I32? }")
    graph.load([{"name": f"p{n}", "age": n} for n in range(100)], type="Person")
    return graph.snapshot()


@pytest.mark.parametrize("terms", [3, 30, 150])
def test_a_chain_of_terms_is_applied_at_its_own_cost(ages: omniray.Snapshot, terms: int) -> None:
    """As Substrait it doubles with each term: thirty take minutes and gigabytes."""
    found = ages.table("Person", ["name"], any_of(range(terms)))
    assert found.schema.names == ["name"]
    assert sorted(found["name"].to_pylist()) == sorted(f"p{n}" for n in range(min(terms, 100)))
    assert ages.table("Person", filter=any_of(range(terms))).schema.names == ages.table("Person").schema.names


def test_a_small_filter_is_pushed_down_and_a_chain_of_many_terms_is_not() -> None:
    assert is_pushed_down(any_of(range(8)))
    assert is_pushed_down(pc.field("name").isin([f"a ( b {n}" for n in range(10_000)]))
    assert is_pushed_down(pc.field("name") == "(" * 1000)
    assert not is_pushed_down(any_of(range(20)))


def test_an_expression_that_nests_without_bounds_is_refused_with_the_way_out(ages: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError, match="nests 2,000 deep, more than 200: use isin"):
        ages.table("Person", filter=any_of(range(2_000)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" or ".join(f"age = {n}" for n in range(40_000)), "joins 40,000 terms, more than 4,000: use 'column in"),
        ("age = 1" + " + 1" * 40_000, "more than 200 operators in a row"),
        ("age" + " is null" * 40_000, "more than 200 operators in a row"),
        ("name = 'a'" + " || 'b'" * 40_000, "more than 200 operators in a row"),
        ("age = 1" + " " * TEXT_CHARS_MAX, "characters, more than"),
    ],
)
def test_a_text_that_would_end_the_process_is_refused(ages: omniray.Snapshot, text: str, why: str) -> None:
    with pytest.raises(omniray.InputError, match=why):
        ages.table("Person", filter=text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (f"age in ({', '.join(str(-n) for n in range(5_000))})", 1),
        (" or ".join(f"age = {n}" for n in range(3_000)), 100),
        ("name = '" + "+ or " * 5_000 + "'", 0),
    ],
)
def test_a_long_text_is_no_obstacle_where_nothing_nests(ages: omniray.Snapshot, text: str, rows: int) -> None:
    assert ages.table("Person", filter=text).num_rows == rows


@pytest.mark.parametrize("where", ["age = 1", pc.field("age") == 1], ids=["text", "expression"])
def test_a_store_that_fails_while_a_filter_is_applied_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | pc.Expression
) -> None:
    """Lance asks for the version's path while it filters, and tells of our error in the words of a bad filter."""
    with omniray.init(tmp_path / "graph", schema="node Person { name: String @key  age: I32? }") as graph:
        graph.load([{"name": "ann", "age": 1}], type="Person")
    with omniray.open(tmp_path / "graph", read_only=True) as graph:
        snapshot = graph.snapshot()
        find, calls = TableStorage._find, []

        def fails_when_asked_again(self: TableStorage, *arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 1:
                raise StorageError("the store is down")
            return find(self, *arguments, **options)

        monkeypatch.setattr(TableStorage, "_find", fails_when_asked_again)
        with pytest.raises(StorageError, match="the store is down"):
            snapshot.table("Person", filter=where)
        monkeypatch.undo()
        with pytest.raises(InputError, match="can't filter"):
            snapshot.table("Person", filter="nonsense = 1")
