"""Queries against a schema: what fits, what is refused before a call, and what values a call binds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniray.engine.base.errors import QueryError
from omniray.engine.query.check import bind, check_query
from omniray.engine.query.parser import parse_queries
from omniray.engine.query.statements import (
    BoundDelete,
    BoundInsert,
    BoundPredicate,
    BoundQuery,
    BoundUpdate,
    Delete,
    Literal,
    Predicate,
    Query,
)
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import INTEGER_LIMITS, Scalar

SCHEMA = parse_schema(
    """
    node Person {
      name: String @key
      age: I32?  big: U64?  score: F64?  ratio: F32?  ok: Bool?  born: Date?  seen: DateTime?
      role: enum(dev, ops)?  pic: Blob?  tags: [String]?  years: [I32]?  bio: Vector(2)?
    }
    node Note { text: String  at: DateTime? }
    edge Knows: Person -> Person { since: Date?  weight: F64 }
    """
)
NOW = datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))


def one(statements: str, params: str = "") -> Query:
    (query,) = parse_queries(f"query q({params}) {{ {statements} }}")
    return query


def bound(statements: str, params: str = "", **given: Any) -> BoundQuery:
    return bind(one(statements, params), given, SCHEMA, NOW)


def assigned(type: str, value: Any) -> Any:
    """What a parameter of a type becomes in the property of that type."""
    property = {
        "String": "name", "I32": "age", "U64": "big", "F64": "score", "F32": "ratio", "Bool": "ok", "Date": "born",
        "DateTime": "seen", "Blob": "pic", "[String]": "tags", "[I32]": "years", "Vector(2)": "bio",
    }[type]  # fmt: skip
    if property == "name":
        (insert,) = bound("insert Person { name: $v }", "$v: String", v=value).statements
        assert isinstance(insert, BoundInsert)
        return insert.values["name"]
    (update,) = bound(f'update Person set {{ {property}: $v }} where name = "x"', f"$v: {type}", v=value).statements
    assert isinstance(update, BoundUpdate)
    return update.values[property]


REFUSED = {
    "an unknown type": ("delete Persn where name = 1", "", "no type 'Persn'; did you mean 'Person'?"),
    "an unknown property": ('insert Person { nme: "x" }', "", "Person has no property 'nme'; did you mean 'name'?"),
    "an unknown property in a predicate": ("delete Person where agee = 1", "", "no property 'agee'; did you mean"),
    "an end on a node": ('delete Person where from = "x"', "", "Person has no property 'from'"),
    "a property twice": ('insert Person { name: "a" name: "b" }', "", "Person.name is assigned twice"),
    "a missing property": ("insert Person { age: 1 }", "", "insert of Person without name"),
    "missing ends": ("insert Knows { weight: 1 }", "", "insert of Knows without from, to"),
    "a missing property of an edge": ('insert Knows { from: "a" to: "b" }', "", "insert of Knows without weight"),
    "null for a required property": ("insert Person { name: null }", "", "Person.name: null, but the property is requ"),
    "an update of a key": ('update Person set { name: "b" } where name = "a"', "", "Person.name is part of the key"),
    "an update of an end": ('update Knows set { from: "b" } where from = "a"', "", "Knows.from can't be updated"),
    "an update to null": ('update Note set { text: null } where text = "a"', "", "null, but the property is required"),
    "an id": ('insert Note { text: "a" id: "1" }', "", "Note.id can't be assigned; ids are made by the graph"),
    "an update of an id": ('update Note set { id: "1" } where text = "a"', "", "Note.id can't be assigned"),
    "a physical end": ('insert Knows { src: "a" to: "b" weight: 1 }', "", "is written 'from', not 'src'"),
    "a physical end in a predicate": ('delete Knows where dst = "a"', "", "is written 'to', not 'dst'"),
    "text for a number": ('delete Person where age = "1"', "", "Person.age: expected I32, got '1'"),
    "a number for text": ("delete Person where name = 1", "", "Person.name: expected String, got 1"),
    "a number for an end": ("delete Knows where from = 1", "", "Knows.from: expected String, got 1"),
    "a fraction for an integer": ("delete Person where age = 1.0", "", "expected I32, got 1.0"),
    "a bool for an integer": ("delete Person where age = true", "", "expected I32, got True"),
    "a bool for a float": ("delete Person where score = true", "", "expected F64, got True"),
    "a number for a bool": ("delete Person where ok = 1", "", "expected Bool, got 1"),
    "an integer too large": (f"delete Person where age = {1 << 31}", "", "out of the range of I32"),
    "a negative unsigned": ("delete Person where big = -1", "", "out of the range of U64"),
    "a float too large": ("delete Person where ratio = 1e39", "", "out of the range of F32"),
    "text for a date": ('delete Person where born = "2020-01-01"', "", '; write date("2026-01-31")'),
    "a moment for a date": ('delete Person where born = datetime("2020-01-01T00:00Z")', "", "expected Date, got"),
    "a date for a moment": ('delete Person where seen = date("2020-01-01")', "", "; write datetime("),
    "a value that is not in the enum": ('delete Person where role = "dve"', "", "did you mean 'dev'?"),
    "a number for an enum": ("delete Person where role = 1", "", "as the values of an enum are, got 1"),
    "text that is no base64": ('insert Person { name: "a" pic: "hello" }', "", "write its bytes as text"),
    "broken base64": ('insert Person { name: "a" pic: "base64:a" }', "", "is not base64"),
    "a scalar for a list": ('insert Person { name: "a" tags: "b" }', "", "expected [String], got 'b'"),
    "a list with a null": ('insert Person { name: "a" tags: [null] }', "", "a list with a null in it"),
    "a list of others": ('insert Person { name: "a" tags: [1] }', "", "expected String, got 1"),
    "a vector too short": ('insert Person { name: "a" bio: [1] }', "", "a vector of 1 numbers where 2 are needed"),
    "a list for a scalar": ("delete Person where age = [1]", "", "expected I32, got"),
    "now() for text": ('insert Note { text: now() }', "", "now() is a moment, but the property is String"),
    "an undeclared parameter": ("delete Person where name = $nme", "$name: String", "$nme is not declared; did you me"),
    "a parameter of another type": ("delete Person where age = $a", "$a: String", "$a is String, but the property is"),
    "a parameter that is too wide": ("delete Person where age = $a", "$a: I64", "$a is I64, but the property is I32"),
    "a parameter that may be null": ("insert Note { text: $a }", "$a: String?", "$a may be null, but a value is need"),
    "a comparison with what may be null": ("delete Person where age = $a", "$a: I32?", "$a may be null"),
    "a comparison with null": ("delete Person where age != null", "", "Person.age is compared with null"),
    "an order of bools": ("delete Person where ok > false", "", "its values have no order; use = or !="),
    "an order of enums": ('delete Person where role <= "dev"', "", "its values have no order"),
    "a comparison of lists": ("delete Person where tags = []", "", "Person.tags is [String], which can't be compared"),
    "an order of lists": ("delete Person where tags < []", "", "which can't be compared"),
    "a comparison of vectors": ("delete Person where bio = [1, 2]", "", "which can't be compared"),
    "a comparison of blobs": ('delete Person where pic >= "base64:"', "", "which can't be compared"),
}  # fmt: skip


@pytest.mark.parametrize(("statements", "params", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_query_that_can_not_work_is_refused_before_it_is_called(statements: str, params: str, message: str) -> None:
    with pytest.raises(QueryError) as refused:
        check_query(one(statements, params), SCHEMA)
    assert message in refused.value.message
    assert refused.value.message.startswith("query q, line 1, column ")


def test_a_refusal_carries_its_place_as_facts() -> None:
    (query,) = parse_queries("query add() {\n  insert Note { text: 1 }\n}")
    with pytest.raises(QueryError) as refused:
        check_query(query, SCHEMA)
    assert refused.value.facts == {"query": "add", "line": 2, "column": 17, "type": "Note", "property": "text"}


def test_a_query_built_by_hand_is_refused_without_a_made_up_place() -> None:
    query = Query("q", (), (Delete("Nobody", Predicate("a", "=", Literal(1))),))
    with pytest.raises(QueryError, match=r"^query q: no type 'Nobody'"):
        check_query(query, SCHEMA)


def test_a_parameter_that_nobody_uses_is_fine() -> None:
    check_query(one('delete Note where text = "a"', "$x: I32"), SCHEMA)


@pytest.mark.parametrize(
    ("param", "property"),
    [
        ("I32", "score"), ("U32", "big"), ("U32", "score"), ("F32", "score"), ("String", "role"), ("[F64]", "bio"),
        ("Vector(2)", "bio"), ("[I32]", "years"), ("I32?", "age"),
    ],
)  # fmt: skip
def test_a_parameter_fits_a_property_that_holds_all_its_values(param: str, property: str) -> None:
    check_query(one(f'update Person set {{ {property}: $p }} where name = "a"', f"$p: {param}"), SCHEMA)


@pytest.mark.parametrize(
    ("param", "property"),
    [("U32", "age"), ("I64", "score"), ("F64", "ratio"), ("[I64]", "years"), ("Vector(3)", "bio"), ("Date", "seen")],
)
def test_a_parameter_does_not_fit_a_property_that_could_lose_something(param: str, property: str) -> None:
    with pytest.raises(QueryError, match="but the property is"):
        check_query(one(f'update Person set {{ {property}: $p }} where name = "a"', f"$p: {param}"), SCHEMA)


def test_an_insert_binds_every_column_but_the_id() -> None:
    query = bound(
        """
        insert Person { name: $n, age: 3, score: 1, ok: true, role: "ops", pic: "base64:aGk=", bio: [1, 0.5], tags: [] }
        insert Knows { from: $n, to: "b", weight: 2 }
        """,
        "$n: String",
        n="a",
    )
    assert query.name == "q"
    assert not query.destructive
    assert query.statements == (
        BoundInsert(
            SCHEMA.node("Person"),
            {
                "name": "a", "age": 3, "big": None, "score": 1.0, "ratio": None, "ok": True, "born": None, "seen": None,
                "role": "ops", "pic": b"hi", "tags": [], "years": None, "bio": [1.0, 0.5],
            },
        ),
        BoundInsert(SCHEMA.edge("Knows"), {"src": "a", "dst": "b", "since": None, "weight": 2.0}),
    )  # fmt: skip
    assert type(query.statements[0].values["score"]) is float


def test_an_update_and_a_delete_bind_their_predicates_to_columns() -> None:
    query = bound('update Knows set { since: null, weight: 0.5 } where to = "b"')
    values = {"since": None, "weight": 0.5}
    assert query.statements == (BoundUpdate(SCHEMA.edge("Knows"), values, BoundPredicate("dst", "=", "b")),)
    query = bound('delete Knows where from != $a delete Note where id = "01J"', "$a: String", a="x")
    assert query.destructive
    assert query.statements == (
        BoundDelete(SCHEMA.edge("Knows"), BoundPredicate("src", "!=", "x")),
        BoundDelete(SCHEMA.node("Note"), BoundPredicate("id", "=", "01J")),
    )


def test_now_is_the_same_moment_everywhere_and_a_day_where_a_day_is_wanted() -> None:
    query = bound(
        'insert Note { text: "a" at: now() } update Person set { born: now() seen: now() } where seen < now()'
    )
    insert, update = query.statements
    assert isinstance(insert, BoundInsert)
    assert isinstance(update, BoundUpdate)
    assert insert.values["at"] == update.values["seen"] == update.predicate.value == NOW
    assert insert.values["at"].tzinfo is UTC  # type: ignore[union-attr]
    assert update.values["born"] == date(2026, 2, 28)


@pytest.mark.parametrize(
    ("type", "given", "value"),
    [
        ("String", "é", "é"),
        ("Bool", False, False),
        ("Bool", np.bool_(True), True),
        ("I32", 5, 5),
        ("I32", np.int64(5), 5),
        ("U64", (1 << 64) - 1, (1 << 64) - 1),
        ("F64", 2, 2.0),
        ("F64", np.float32(0.5), 0.5),
        ("F32", 0.1, float(np.float32(0.1))),
        ("Date", "2024-02-29", date(2024, 2, 29)),
        ("Date", date(2024, 2, 29), date(2024, 2, 29)),
        ("DateTime", "2024-02-29T10:00:00+02:00", datetime(2024, 2, 29, 8, tzinfo=UTC)),
        ("DateTime", "2024-02-29T10:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("DateTime", datetime(2024, 2, 29, 10), datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("DateTime", NOW, datetime(2026, 2, 28, 22, 30, tzinfo=UTC)),
        ("Blob", "base64:AAE=", b"\x00\x01"),
        ("Blob", b"\x00", b"\x00"),
        ("[String]", ["a", ""], ["a", ""]),
        ("[String]", (), []),
        ("[I32]", np.array([1, 2]), [1, 2]),
        ("Vector(2)", [1, 0.5], [1.0, 0.5]),
        ("Vector(2)", np.array([1.0, 0.5], dtype=np.float32), [1.0, 0.5]),
    ],
)
def test_a_parameter_becomes_a_plain_python_value_of_its_type(type: str, given: Any, value: Any) -> None:
    found = assigned(type, given)
    assert found == value
    assert found.__class__ is value.__class__


@pytest.mark.parametrize(
    ("type", "given", "message"),
    [
        ("String", 1, "the parameter $v: expected String, got 1"),
        ("String", "\ud800", "half of a surrogate pair"),
        ("Bool", 1, "expected Bool, got"),
        ("I32", True, "expected I32, got"),
        ("I32", 1.0, "expected I32, got"),
        ("I32", "1", "expected I32, got"),
        ("I32", 1 << 31, "out of the range of I32"),
        ("I32", 10**5000, "a very large value is out of the range"),
        ("U64", -1, "out of the range of U64"),
        ("F64", float("nan"), "not finite"),
        ("F64", float("inf"), "not finite"),
        ("F64", 10**400, "out of the range of F64"),
        ("F32", 1e39, "out of the range of F32"),
        ("F32", 10**400, "out of the range of F32"),
        ("Date", "2023-02-29", "expected a date, got"),
        ("Date", datetime(2023, 2, 1, tzinfo=UTC), "expected Date, got"),
        ("Date", 19000, "expected Date, got"),
        ("DateTime", "yesterday", "expected a date and time, got"),
        ("DateTime", date(2023, 2, 1), "expected DateTime, got"),
        ("DateTime", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "beyond the years"),
        ("Blob", "AAE=", "expected Blob, got"),
        ("Blob", "base64:AAE", "is not base64"),
        ("Blob", "base64:A A=", "is not base64"),
        ("[String]", "ab", "expected [String], got"),
        ("[String]", ["a", None], "a list with a null"),
        ("[I32]", [[1]], "expected I32, got"),
        ("[I32]", [10**5000, "x"], "out of the range"),
        ("Vector(2)", [1.0], "a vector of 1 numbers where 2 are needed"),
        ("Vector(2)", [1.0, "x"], "expected F32, got"),
        ("String", {"a": 10**5000}, "expected String, got"),
        ("I32", None, "the parameter $v is null; it needs a value of type I32"),
    ],
    # pytest would print the values, and Python refuses to print the largest.
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_a_parameter_of_another_type_is_refused_and_named(type: str, given: Any, message: str) -> None:
    with pytest.raises(QueryError) as refused:
        assigned(type, given)
    assert message in refused.value.message
    assert refused.value.facts["param"] == "v"
    assert len(refused.value.message) < 300


def test_a_missing_or_unknown_parameter_is_refused_but_one_that_may_be_null_may_be_left_out() -> None:
    update = "update Person set { age: $age } where name = $name"
    with pytest.raises(QueryError, match=r"the parameter \$name is missing; it needs a value of type String"):
        bound(update, "$name: String, $age: I32?", age=1)
    with pytest.raises(QueryError, match=r"no parameter \$nme; did you mean 'name'\?"):
        bound(update, "$name: String, $age: I32?", name="a", nme="b")
    (left_out,) = bound(update, "$name: String, $age: I32?", name="a").statements
    assert isinstance(left_out, BoundUpdate)
    assert left_out.values == {"age": None}


def test_a_parameter_is_held_against_the_property_too() -> None:
    update = 'update Person set { role: $v } where name = "a"'
    with pytest.raises(QueryError, match=r"Person\.role: 'boss' is not among the enum's values"):
        bound(update, "$v: String", v="boss")
    update = 'update Person set { bio: $v } where name = "a"'
    with pytest.raises(QueryError, match="a vector of 3 numbers where 2 are needed"):
        bound(update, "$v: [F32]", v=[1, 2, 3])


def test_binding_checks_the_query_first() -> None:
    with pytest.raises(QueryError, match="no type"):
        bound("delete Nobody where a = 1")


@pytest.mark.parametrize("scalar", INTEGER_LIMITS)
def test_the_limits_of_integers_are_those_of_their_columns(scalar: Scalar) -> None:
    low, high = INTEGER_LIMITS[scalar]
    schema = parse_schema(f"node T {{ a: {scalar}? }}")
    for value, fits in [(low, True), (high, True), (low - 1, False), (high + 1, False)]:
        query = one("insert T { a: $a }", f"$a: {scalar}")
        if fits:
            (insert,) = bind(query, {"a": value}, schema, NOW).statements
            assert isinstance(insert, BoundInsert)
            assert pa.array([insert.values["a"]], schema.node("T").arrow.field("a").type).to_pylist() == [value]
        else:
            with pytest.raises(QueryError, match="out of the range"):
                bind(query, {"a": value}, schema, NOW)


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
ALL_PARAMS = "$a: String?, $b: I32?, $c: U64?, $d: F64?, $e: F32?, $f: Bool?, $g: Date?, $h: DateTime?, " \
    "$i: Blob?, $j: [String]?, $k: [I32]?, $l: Vector(2)?"  # fmt: skip
ALL_PROPERTIES = (
    "role: $a age: $b big: $c score: $d ratio: $e ok: $f born: $g seen: $h pic: $i tags: $j years: $k bio: $l"
)


@given(st.dictionaries(st.sampled_from("abcdefghijklmz"), ANYTHING, max_size=3))
def test_whatever_is_passed_is_bound_to_values_that_its_columns_hold_or_refused(params: Mapping[str, Any]) -> None:
    query = one(f'insert Person {{ name: "x" {ALL_PROPERTIES} }}', ALL_PARAMS)
    try:
        (insert,) = bind(query, params, SCHEMA, NOW).statements
    except QueryError:
        return
    assert isinstance(insert, BoundInsert)
    person = SCHEMA.node("Person")
    for name, value in insert.values.items():
        held = pa.array([value], person.arrow.field(name).type).to_pylist()
        assert held == [value]


def test_the_examples_of_the_language_reference_parse_and_fit_each_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "languages.md").read_text(encoding="utf-8")
    (schema,) = re.findall(r"```pg\n(.*?)```", page, re.DOTALL)
    (queries,) = re.findall(r"```gq\n(.*?)```", page, re.DOTALL)
    for query in parse_queries(queries):
        check_query(query, parse_schema(schema))
