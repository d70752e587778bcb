"""Parsing queries: what every construct means, what is refused, and how errors read."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniray.engine.base.errors import ParseError
from omniray.engine.query.parser import parse_queries
from omniray.engine.query.statements import (
    OPERATORS,
    Assignment,
    Delete,
    Insert,
    Literal,
    Now,
    Param,
    ParamRef,
    Position,
    Predicate,
    Query,
    Update,
)
from omniray.engine.schema.grammar import TEXT_BYTES_MAX
from omniray.engine.schema.types import Annotation, ListType, Scalar, ScalarType, VectorType
from tests.parsing import assert_refused_at

STRING = ScalarType(Scalar.STRING)

PEOPLE = """
// who
query add($name: String, $tags: [I64]?, $v: Vector(3)) @description("a \\"person\\"") {
  insert Person { name: $name, age: 3, at: now() tags: $tags }
  /* and a friend */
  update Knows set { since: date("2020-02-29"), } where from = $name
}
query drop() { delete Person where age >= -1.5 delete Knows where to != "b" }
"""


def value_of(written: str) -> object:
    (query,) = parse_queries(f"query q() {{ insert T {{ a: {written} }} }}")
    (insert,) = query.statements
    assert isinstance(insert, Insert)
    value = insert.assignments[0].value
    assert isinstance(value, Literal)
    return value.value


def test_queries_become_the_values_that_they_describe() -> None:
    assert parse_queries(PEOPLE) == (
        Query(
            "add",
            (
                Param("name", STRING),
                Param("tags", ListType(ScalarType(Scalar.I64)), nullable=True),
                Param("v", VectorType(3)),
            ),
            (
                Insert(
                    "Person",
                    (
                        Assignment("name", ParamRef("name")),
                        Assignment("age", Literal(3)),
                        Assignment("at", Now()),
                        Assignment("tags", ParamRef("tags")),
                    ),
                ),
                Update(
                    "Knows",
                    (Assignment("since", Literal(date(2020, 2, 29))),),
                    Predicate("from", "=", ParamRef("name")),
                ),
            ),
            (Annotation("description", ('a "person"',)),),
        ),
        Query(
            "drop",
            (),
            (
                Delete("Person", Predicate("age", ">=", Literal(-1.5))),
                Delete("Knows", Predicate("to", "!=", Literal("b"))),
            ),
        ),
    )


def test_a_query_knows_its_description_and_whether_it_deletes() -> None:
    add, drop = parse_queries(PEOPLE)
    assert (add.description, add.destructive) == ('a "person"', False)
    assert (drop.description, drop.destructive) == ("", True)


def test_positions_are_kept_but_make_no_difference() -> None:
    (one,) = parse_queries("query q() { delete T where a = 1 }")
    (other,) = parse_queries("query q()\n{\n  delete T where a = 1 }")
    assert one == other
    assert hash(one) == hash(other)
    assert other.statements[0].position == Position(3, 10)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('""', ""),
        (r'"a\"b\\c\n\u00e9\/"', 'a"b\\c\né/'),
        ('"it\'s // no comment /* */"', "it's // no comment /* */"),
        (r'"\ud83d\ude00"', "😀"),
        ("0", 0),
        ("-9223372036854775808", -(1 << 63)),
        ("18446744073709551615", (1 << 64) - 1),
        ("1.5e-3", 0.0015),
        ("2e3", 2000.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("[]", ()),
        ('[1, -2.5, "x", null, true]', (1, -2.5, "x", None, True)),
        ('[date("2024-01-31")]', (date(2024, 1, 31),)),
        ('date("2024-01-31")', date(2024, 1, 31)),
        ('datetime("2024-01-31T12:30:00.000001Z")', datetime(2024, 1, 31, 12, 30, 0, 1, tzinfo=UTC)),
        ('datetime("2024-01-31 12:30")', datetime(2024, 1, 31, 12, 30, tzinfo=UTC)),
        ('datetime("2024-01-31T12:30:00+02:00")', datetime(2024, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_literals_are_read_as_they_are_written(written: str, value: object) -> None:
    found = value_of(written)
    assert found == value
    assert type(found) is type(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_as_a_literal_when_it_is_written_as_in_json(text: str) -> None:

    assert value_of(json.dumps(text)) == text
    assert value_of(json.dumps(text, ensure_ascii=False)) == text


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_is_read(operator: str) -> None:
    (query,) = parse_queries(f"query q() {{ delete T where a {operator} 1 }}")
    assert query.statements == (Delete("T", Predicate("a", operator, Literal(1))),)  # type: ignore[arg-type]


def test_words_of_the_language_are_fine_names_of_properties() -> None:
    names = ("insert", "update", "delete", "set", "where", "query", "now", "date", "null", "true")
    body = "  ".join(f"{name}: 1" for name in names)
    (query,) = parse_queries(f"query query() {{ update T set {{ {body} }} where delete = 1 insert T {{}} }}")
    update, insert = query.statements
    assert isinstance(update, Update)
    assert tuple(a.property for a in update.assignments) == names
    assert update.predicate.property == "delete"
    assert insert == Insert("T", ())


@pytest.mark.parametrize(
    "statements",
    ["insert T { a: 1 } delete T where a = 1", "delete T where a = 1 update T set { a: 1 } where a = 1"],
)
def test_a_query_that_deletes_and_does_something_else_is_told_to_split(statements: str) -> None:
    with pytest.raises(ParseError, match="split it in two queries") as refused:
        parse_queries(f"query q() {{\n{statements} }}")
    assert refused.value.facts["line"] == 2


UNREADABLE = {
    "nothing": ("", 1, 1, "ends too early", ["'query'"]),
    "no name": ("query (", 1, 7, "unexpected '('", ["the query's name"]),
    "no parameter list": ("query q {", 1, 9, "unexpected '{'", ["'('"]),
    "no statement": ("query q() { }", 1, 13, "unexpected '}'", ["'delete'", "'insert'", "'update'"]),
    "an open query": ("query q() {\n  delete T where a = 1\n", 2, 23, "ends too early", ["'}'", "'delete'"]),
    "no predicate": ("query q() { delete T }", 1, 22, "unexpected '}'", ["'where'"]),
    "no operator": ("query q() { delete T where a ~ 1 }", 1, 30, "unexpected '~'", ["one of = !="]),
    "no value": ("query q() { delete T where a = }", 1, 32, "unexpected '}'", ["a literal", "now()", "a parameter"]),
    "a bare word": ("query q() { insert T { a: foo } }", 1, 27, "unexpected 'foo'", ["a literal"]),
    "a nested list": ("query q() { insert T { a: [[1]] } }", 1, 28, "unexpected '['", ["a literal"]),
    "an update of nothing": ("query q() { update T set { } where a = 1 }", 1, 28, "unexpected '}'", ["a property"]),
    "an equals sign in an assignment": ("query q() { insert T { a = 1 } }", 1, 26, "unexpected '='", ["':'"]),
    "an unknown type": ("query q($a: Strin) { delete T where a = 1 }", 1, 13, "did you mean 'String'?", []),
    "an unknown type in a list": ("query q($a: [I3]) { delete T where a = 1 }", 1, 14, "no type I3", []),
    "a vector of nothing": ("query q($a: Vector(0)) { delete T where a = 1 }", 1, 20, "1..65536", []),
    "a parameter twice": ("query q($a: I32, $a: I32) { delete T where a = 1 }", 1, 18, "a second parameter", []),
    "a query twice": ("query q() { insert T {} }\nquery q() { insert T {} }", 2, 7, "a second query", []),
    "a read": ("query q() { match { } }", 1, 13, "read with a snapshot or with SQL", []),
    "a conjunction": ("query q() { delete T where a = 1 and b = 2 }", 1, 34, "takes one predicate", []),
    "a disjunction": ("query q() { delete T where a = 1 or b = 2 }", 1, 34, "takes one predicate", []),
    "a semicolon": ("query q() { delete T where a = 1; }", 1, 33, "nothing ends with ';'", []),
    "a hash": ("# add", 1, 1, "write // to the end of the line", []),
    "no such date": ('query q() { delete T where a = date("2023-02-29") }', 1, 37, "got '2023-02-29'; write", []),
    "a date in another form": ('query q() { delete T where a = date("20230201") }', 1, 37, "expected a date, got", []),
    "no such moment": ('query q() { delete T where a = datetime("2023-02-01T25:00") }', 1, 41, "expected a date", []),
    "too many decimals": (
        'query q() { delete T where a = datetime("2023-02-01T05:00:00.1234567Z") }', 1, 41, "at most 6 decimals", [],
    ),
    "a moment before time": (
        'query q() { delete T where a = datetime("0001-01-01T00:00+01:00") }', 1, 41, "expected a date and time", [],
    ),
    "an integer of 65 bits": (f"query q() {{ delete T where a = {1 << 64} }}", 1, 32, "64 bits", []),
    "half a pair": (r'query q() { delete T where a = "\udc00" }', 1, 32, "surrogate", []),
    "a text without an end": ('query q() { delete T where a = "x }', 1, 32, "no closing quote", []),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message", "expected"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_query_is_refused_at_its_place_in_plain_words(
    text: str, line: int, column: int, message: str, expected: list[str]
) -> None:
    assert_refused_at(parse_queries, text, line, column, message, expected)


def test_a_text_of_more_than_a_mebibyte_is_refused_unread() -> None:
    with pytest.raises(ParseError, match="more than 1048576 bytes"):
        parse_queries("//" + "x" * TEXT_BYTES_MAX)


def refusal_of(text: str) -> ParseError | None:
    try:
        parse_queries(text)
    except ParseError as error:
        return error
    return None


@given(st.one_of(st.text(max_size=60), st.text('query q(){}$:?[]"\\/*.,-01=<>a\n#\x00\ud800é', max_size=60)))
def test_any_text_parses_or_is_refused_with_a_parse_error(text: str) -> None:
    error = refusal_of(text)
    assert error is None or error.facts["line"] >= 1


@given(
    st.integers(0, len(PEOPLE)), st.integers(0, 12), st.sampled_from(["", "}", "{", "$", "now(", '"', "[", "9" * 30])
)
def test_a_damaged_query_parses_or_is_refused_with_a_parse_error(start: int, length: int, put: str) -> None:
    error = refusal_of(PEOPLE[:start] + put + PEOPLE[start + length :])
    assert error is None or not any(said.strip("_").isupper() for said in error.facts["expected"])
