"""Parsing schemas: what every construct means, what is refused, and how errors read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark.lexer import PatternStr

from omniray.engine.base.errors import ParseError, SchemaError
from omniray.engine.query import parser as query_parser
from omniray.engine.schema import syntax as schema_syntax
from omniray.engine.schema.grammar import TEXT_BYTES_MAX, Language
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import print_schema
from omniray.engine.schema.types import (
    ANY_CARDINALITY,
    Annotation,
    Cardinality,
    Check,
    EdgeType,
    EnumType,
    Interface,
    Key,
    ListType,
    NodeType,
    Property,
    Range,
    Scalar,
    ScalarType,
    Schema,
    Unique,
    VectorType,
)
from tests.parsing import assert_refused_at
from tests.strategies import schemas

STRING, I32 = ScalarType(Scalar.STRING), ScalarType(Scalar.I32)


def node_of(body: str) -> NodeType:
    return parse_schema(f"node T {{ {body} }}").nodes[0]


def edge_of(rest: str) -> EdgeType:
    return parse_schema(f"node T {{}} edge E: T -> T {rest}").edges[0]


def test_nodes_edges_and_constraints_become_the_values_that_they_describe() -> None:
    schema = parse_schema(
        """
        node Person { name: String @key   age: I32?   role: enum(dev, ops)   bio: Vector(8)?
          @range(age, 0..150)  @check(name, "^[A-Z]")  @unique(role, age) }
        edge Knows: Person -> Person @card(0..3) { since: Date?  @unique(src, dst) }
        """
    )
    properties = (
        Property("name", STRING),
        Property("age", I32, nullable=True),
        Property("role", EnumType(("dev", "ops"))),
        Property("bio", VectorType(8), nullable=True),
    )
    constraints = (Key(("name",)), Unique(("role", "age")), Range("age", 0, 150), Check("name", "^[A-Z]"))
    since = Property("since", ScalarType(Scalar.DATE), nullable=True)
    assert schema == Schema(
        (NodeType("Person", properties, properties, constraints=constraints),),
        (EdgeType("Knows", "Person", "Person", (since,), Cardinality(0, 3), (Unique(("src", "dst")),)),),
    )


@pytest.mark.parametrize("scalar", Scalar)
def test_every_scalar_can_be_plain_nullable_or_in_a_list(scalar: Scalar) -> None:
    node = node_of(f"a: {scalar}  b: {scalar}?  c: [{scalar}]  d: [{scalar}]?")
    plain, listed = ScalarType(scalar), ListType(ScalarType(scalar))
    assert [(p.type, p.nullable) for p in node.properties] == [
        (plain, False), (plain, True), (listed, False), (listed, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at_the_property", "in_the_body"),
    [
        ("a: String @key", "a: String @key(a)"),
        ("a: String? @unique b: I32 @index", "@index(b) a: String? b: I32 @unique(a)"),
        ("a: I32 @range(-5..10)", "a: I32 @range(a, -5..10)"),
        ("a: I32 @range(..10) @unique", "@unique(a) @range(a, ..10) a: I32"),
        ("a: F64 @range(0..1)", "a: F64 @range(a, 0.0..1.0)"),
        ("a: F64 @range(-0.0..)", "a: F64 @range(a, 0..)"),
        ('a: String @check("^x") @check("a")', 'a: String @check(a, "a") @check(a, "^x")'),
        ("a: String @key @key", "@key(a) a: String"),
    ],
)
def test_a_constraint_means_the_same_at_its_property_and_in_the_body(at_the_property: str, in_the_body: str) -> None:
    one, other = parse_schema(f"node T {{ {at_the_property} }}"), parse_schema(f"node T {{ {in_the_body} }}")
    assert one == other
    assert print_schema(one) == print_schema(other)


def test_a_composite_key_keeps_the_order_of_its_properties() -> None:
    assert node_of("a: String b: I64 @key(b, a)").key == ("b", "a")


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [("0..150", 0, 150), ("0..", 0, None), ("..150", None, 150), ("-7..-3", -7, -3), ("4 .. 4", 4, 4)],
)
def test_ranges_may_be_open_negative_or_a_point(written: str, low: int | None, high: int | None) -> None:
    assert node_of(f"a: I64 @range({written})").constraints == (Range("a", low, high),)


def test_float_ranges_take_fractions_and_exponents() -> None:
    assert node_of("a: F32 @range(-1.5e-3..2e3)").constraints == (Range("a", -0.0015, 2000.0),)


def test_annotations_are_kept_with_their_arguments_known_or_not() -> None:
    schema = parse_schema(
        """
        node T @rename_from("Old") @owner(team, 3, -1.5, true, kind="x", n=2) {
          title: String @description("the \\u00e9\\n\\"title\\"") @rename_from("name")
          bio: Vector(3)? @embed("title", model="m") @todo
        }
        edge E: T -> T @instruction("how") @card(1..)
        """
    )
    node, edge = schema.nodes[0], schema.edges[0]
    assert node.annotations == (
        Annotation("rename_from", ("Old",)),
        Annotation("owner", ("team", 3, -1.5, True), (("kind", "x"), ("n", 2))),
    )
    assert node.properties[0].annotations == (
        Annotation("description", ('the é\n"title"',)), Annotation("rename_from", ("name",)),
    )  # fmt: skip
    assert node.properties[1].annotations == (
        Annotation("embed", ("title",), (("model", "m"),)), Annotation("todo"),
    )  # fmt: skip
    assert edge.annotations == (Annotation("instruction", ("how",)),)
    assert edge.cardinality == Cardinality(1)


@pytest.mark.parametrize(
    ("written", "cardinality"),
    [("", ANY_CARDINALITY), ("@card(0..)", ANY_CARDINALITY), ("@card(2..2)", Cardinality(2, 2))],
)
def test_a_cardinality_has_a_least_and_perhaps_a_most(written: str, cardinality: Cardinality) -> None:
    assert edge_of(written).cardinality == cardinality


def test_a_node_has_its_interfaces_properties_first_and_their_constraints_too() -> None:
    schema = parse_schema(
        """
        node Person implements Named, Dated { age: I32  name: String @description("own") }
        interface Named { name: String @key }
        interface Dated { at: DateTime? }
        """
    )
    own_name = Property("name", STRING, annotations=(Annotation("description", ("own",)),))
    at = Property("at", ScalarType(Scalar.DATETIME), nullable=True)
    person = schema.nodes[0]
    assert person.properties == (own_name, at, Property("age", I32))
    assert person.own == (Property("age", I32), own_name)
    assert person.key == ("name",)
    assert schema.interfaces == (Interface("Named", (Property("name", STRING),)), Interface("Dated", (at,)))


def test_words_of_the_language_are_fine_names_of_properties() -> None:
    names = ("node", "edge", "interface", "implements", "enum", "true", "type", "key")
    body = "\n".join(f"{name} : String @index @note(1)" for name in names)
    node = node_of(f"{body} @unique({', '.join(names)})")
    assert tuple(p.name for p in node.properties) == names
    assert Unique(names) in node.constraints


def test_a_declaration_may_follow_an_annotation_that_ends_an_edge() -> None:
    schema = parse_schema("node A {} edge E: A -> A @x edge F: A -> A @x(1) node B @y implements I {} interface I {}")
    assert [t.name for t in schema] == ["A", "B", "E", "F"]


def test_comments_and_any_white_space_are_skipped() -> None:
    text = "\ufeff// first\r\nnode T/* a ** b\n*/{\ta/**/:// c\n String?/***/@key(b)b:I64}// no newline at the end"
    assert parse_schema(text) == parse_schema("node T { a: String? b: I64 @key }")


REFUSED = {
    "no node type": ("interface I { a: String }", "no node type"),
    "nothing at all": ("  // only a comment", "no node type"),
    "a type twice": ("node T {}\nnode T {}", "line 2: T: declared already in line 1"),
    "an edge with the name of a node": ("node T {}\nedge T: T -> T", "line 2: T: declared already"),
    "an interface with the name of a node": ("node T {} interface T {}", "T: declared already"),
    "types that differ in case": ("node Item {} node ITEM {}", "ITEM: differs from 'Item' (line 1) only in case"),
    "a property twice": ("node T {\n a: String\n a: I32 }", "line 3: T.a: declared twice"),
    "properties that differ in case": ("node T { userId: I32 userid: I32 }", "'userId' and 'userid' differ only in"),
    "an inherited property in another case": (
        "interface I { userId: I32 } node T implements I { userid: I32 }",
        "'userId' and 'userid' differ only in",
    ),
    "an unknown interface": ("node T implements Nmed {} interface Named {}", "T: implements the unknown interface 'Nm"),
    "an interface twice": ("node T implements I, I {} interface I {}", "implements an interface twice"),
    "an unknown end": ("node Person {} edge E: Person -> Persn", "no node type 'Persn' to connect; did you mean 'Per"),
    "an interface as an end": ("node T {} interface I {} edge E: T -> I", "'I' is an interface"),
    "an inherited property of another type": (
        "interface I { a: String }\nnode T implements I {\n a: I32 }",
        "line 3: T.a: declares 'a' as I32, but an interface has it as String",
    ),
    "an inherited property that may be null": (
        "interface I { a: String } node T implements I { a: String? }",
        "declares 'a' as String?, but an interface has it as String",
    ),
    "interfaces that disagree": (
        "interface I { a: String } interface J { a: I32 } node T implements I, J {}",
        "T: declares 'a' as I32, but",
    ),
    "an unknown scalar": ("node T { a: string }", "line 1: T.a: no type 'string'; did you mean 'String'?"),
    "an unknown scalar in a list": ("node T { a: [Flot] }", "T.a: no type 'Flot'"),
    "an enum without values": ("node T { a: enum() }", "T.a: an enum without values"),
    "an enum value twice": ("node T { a: enum(x, y, x) }", "T.a: the enum value 'x' twice"),
    "a long enum value": (f"node T {{ a: enum({'x' * 129}) }}", "an enum value of 129 characters"),
    "a vector of nothing": ("node T { a: Vector(0) }", "T.a: Vector(0); the size is a whole number in 1..65536"),
    "a vector of less": ("node T { a: Vector(-1) }", "T.a: Vector(-1)"),
    "a vector too large": ("node T { a: Vector(65537) }", "T.a: Vector(65537)"),
    "a vector of a half": ("node T { a: Vector(1.5) }", "T.a: Vector(1.5)"),
    "a long type name": (f"node {'T' * 129} {{}}", "has 129 characters; at most 128"),
    "a long property name": (f"node T {{ {'a' * 129}: String }}", "has 129 characters; at most 128"),
    "a constraint on an unknown property": (
        "node T { name: String\n @unique(nme) }", "line 2: T: @unique names the unknown property 'nme'; did you mean"
    ),
    "a property named twice in a constraint": ("node T { a: String @unique(a, a) }", "@unique names a property twice"),
    "a key on an edge": ("node T {} edge E: T -> T { a: String @key }", "E.a: @key on an edge type"),
    "a range on an edge": ("node T {} edge E: T -> T { a: I32 @range(a, 0..) }", "E: @range on an edge type"),
    "a check on an edge": ('node T {} edge E: T -> T { a: String @check("x") }', "E.a: @check on an edge type"),
    "two keys": ("node T { a: String @key b: String @key }", "T.b: a second @key; for a key of several"),
    "a key beside an inherited one": (
        "interface I { a: String @key } node T implements I { b: I32 @key }", "T.b: a second @key"
    ),
    "a key that may be null": ("node T { a: String? @key }", "T.a: @key on 'a', which may be null"),
    "a key of a list": ("node T { a: [String] @key }", "@key on 'a', but values of [String]"),
    "a key of a vector": ("node T { a: Vector(2) @key }", "@key on 'a', but values of Vector(2)"),
    "a key of a blob": ("node T { a: Blob @key }", "@key on 'a', but values of Blob"),
    "a unique list": ("node T { a: [String] @unique }", "@unique on 'a'"),
    "an indexed blob": ("node T { a: Blob @index }", "@index on 'a'"),
    "the ends of an edge in a node": ("node T { @unique(src, dst) }", "@unique names the unknown property 'src'"),
    "a range of text": ("node T { a: String @range(0..1) }", "T.a: @range on 'a', which is String; only numbers"),
    "a range of dates": ("node T { a: Date @range(0..1) }", "only numbers have a range"),
    "a range of a list": ("node T { a: [I32] @range(0..1) }", "only numbers have a range"),
    "a range upside down": ("node T { a: I32 @range(2..1) }", "@range from 2 to 1 is empty"),
    "a range without bounds": ("node T { a: I32 @range(..) }", "@range without a bound"),
    "a fractional range of integers": ("node T { a: I32 @range(0.5..) }", "its bounds are whole"),
    "a range beyond the type": ("node T { a: U32 @range(-1..) }", "lie in 0..4294967295"),
    "two ranges": ("node T { a: I32 @range(0..) @range(..5) }", "a second @range on 'a'"),
    "a check of a number": ('node T { a: I32 @check("x") }', "T.a: @check on 'a', which is I32; only a String"),
    "a check of an enum": ('node T { a: enum(x) @check("x") }', "which is an enum"),
    "a broken pattern": ('node T { a: String @check("(") }', "T.a: @check has a pattern that is not an RE2 regular"),
    "a pattern that only Python knows": ('node T { a: String @check("(?=x)") }', "not an RE2 regular expression"),
    "a key with a text": ('node T { a: String @key("a") }', "T.a: @key is written @key at a property, or"),
    "a key of nothing": ("node T { a: String @key() }", "@key is written"),
    "a range without a range": ("node T { a: I32 @range(a) }", "T: @range is written"),
    "a check without a text": ("node T { a: String @check(a) }", "T: @check is written"),
    "a constraint before the body": ("node T @key(a) { a: String }", "T: @key before the body"),
    "an annotation of nothing": ('node T { @description("x") a: String }', "@description belongs to no property"),
    "an annotation after a constraint": ("node T { a: String @unique(a) @note }", "@note belongs to no property here"),
    "a cardinality on a node": ("node T @card(0..1) {}", "@card belongs to the head of an edge type"),
    "a cardinality on a property": ("node T { a: I32 @card(0..1) }", "@card belongs to the head of an edge type"),
    "two cardinalities": ("node T {} edge E: T -> T @card(0..1) @card(0..1)", "a second @card"),
    "a cardinality of one number": ("node T {} edge E: T -> T @card(1)", "@card takes two counts"),
    "a cardinality without a least": ("node T {} edge E: T -> T @card(..1)", "@card takes two counts"),
    "a cardinality upside down": ("node T {} edge E: T -> T @card(3..2)", "@card takes two counts"),
    "a cardinality of nothing": ("node T {} edge E: T -> T @card(0..0)", "at least 1"),
    "a negative cardinality": ("node T {} edge E: T -> T @card(-1..2)", "@card takes two counts"),
    "a fractional cardinality": ("node T {} edge E: T -> T @card(0..1.5)", "@card takes two counts"),
    "a former name that is no text": ("node T @rename_from(3) {}", "@rename_from takes one text"),
    "a description of nothing": ("node T @description {}", "@description takes one text"),
    "two descriptions": ('node T @description("a") @description("b") {}', "a second @description"),
    "an option twice": ("node T @x(a=1, a=2) {}", "@x has an option twice"),
    "bounds where none belong": ("node T @x(0..1) {}", "@x has bounds"),
    "an embedding that is no vector": ('node T { a: String b: String @embed("a") }', "an embedding is a Vector"),
    "an embedding of nothing": ('node T { b: Vector(2) @embed("a") }', "@embed names 'a', which is not a String"),
    "a broken interface that nobody implements": ("node T {} interface I { a: String @range(0..) }", "only numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_schema_that_makes_no_sense_is_refused_and_says_why(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_schema(text)
    assert message in refused.value.message


@pytest.mark.parametrize(
    "name",
    ["id", "src", "dst", "from", "to", "iD", "_rowid", "_rowaddr", "_rowoffset",
     "_row_created_at_version", "_row_last_updated_at_version"],
)  # fmt: skip
def test_a_reserved_name_is_no_name_for_a_property(name: str) -> None:
    with pytest.raises(SchemaError, match=f"line 2: T.{name}: the name '{name}' is reserved"):
        parse_schema(f"node T {{\n {name}: String }}")


def test_a_refused_schema_carries_its_place_as_facts() -> None:
    with pytest.raises(SchemaError) as refused:
        parse_schema("node T {\n  a: String? @key\n}")
    assert refused.value.facts == {"line": 2, "type": "T", "property": "a"}


UNREADABLE = {
    "an open body": ("node T {\n  a: String", 2, 12, "ends too early", ["'?'", "'}'"]),
    "a lower-case type": ("node person {}", 1, 6, "unexpected 'person'", ["a type name (first letter upper-case)"]),
    "an upper-case property": ("node T {\n\tName: I32 }", 2, 2, "unexpected 'Name'", ["a property name (first letter"]),
    "no declaration": ("\n  type T {}", 2, 3, "unexpected 'type'", ["'edge'", "'interface'", "'node'"]),
    "a keyword that runs on": ("nodeT {}", 1, 1, "unexpected 'nodeT'", ["'node'"]),
    "no type": ("node T { a: }", 1, 13, "unexpected '}'", ["'enum'", "'['", "a type such as String or I64"]),
    "a vector without a size": ("node T { a: Vector? }", 1, 19, "unexpected '?'", ["'('"]),
    "an edge to nowhere": ("edge E: A", 1, 10, "ends too early", ["'->'"]),
    "a hash": ("# people\nnode T {}", 1, 1, "write // to the end of the line", []),
    "a text without an end": ('node T @x("a) {}\n"', 1, 11, "no closing quote", []),
    "a comment without an end": ("node T {}\n/* * /", 2, 1, "close it with */", []),
    "single quotes": ("node T @x('a') {}", 1, 11, "double quotes", []),
    "a semicolon": ("node T { a: I32; }", 1, 16, "nothing ends with ';'", []),
    "an unknown escape": (r'node T @x("a\d") {}', 1, 13, r"\d is not an escape", []),
    "half an escape": (r'node T @x("\u12") {}', 1, 12, r"\u is not an escape", []),
    "half a pair in an escape": (r'node T @x("\ud800") {}', 1, 11, "surrogate", []),
    "half a pair": ("node T {} // \ud800", 1, 14, "surrogate", []),
    "a huge integer": (f"node T @x({'9' * 5000}) {{}}", 1, 11, "64 bits", []),
    "an integer of 65 bits": (f"node T @x({1 << 64}) {{}}", 1, 11, "64 bits", []),
    "a huge float": ("node T @x(1e999) {}", 1, 11, "64-bit float", []),
    "digits of another script": ("node T { a: Vector(٣) }", 1, 20, "unexpected '٣'", ["a number"]),
    "an upper-case annotation": ("node T { a: String @Key }", 1, 20, "unexpected '@'", ["an annotation such as @key"]),
}


@pytest.mark.parametrize(("text", "line", "column", "message", "expected"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_schema_is_refused_at_its_place_in_plain_words(
    text: str, line: int, column: int, message: str, expected: list[str]
) -> None:
    assert_refused_at(parse_schema, text, line, column, message, expected)


def test_the_message_shows_the_line_with_a_caret_under_the_place() -> None:
    with pytest.raises(ParseError) as refused:
        parse_schema("node T {\n\ta:\tString\tB: I32\n}")
    assert refused.value.message.splitlines()[:3] == [
        "line 2, column 12: unexpected 'B'", "     a: String B: I32", "               ^",
    ]  # fmt: skip


def test_a_line_of_a_megabyte_and_control_characters_stay_out_of_the_message() -> None:
    with pytest.raises(ParseError) as refused:
        parse_schema("node T { " + " " * 100_000 + "! }")
    assert len(refused.value.message) < 300
    with pytest.raises(ParseError) as refused:
        parse_schema("node T { \x1b[31m }")
    assert "\x1b" not in refused.value.message


def test_an_unknown_name_is_answered_with_a_few_of_the_known_ones() -> None:
    properties = " ".join(f"p{n}: String" for n in range(100))
    with pytest.raises(SchemaError, match=r"'zzz'; there are p0, p1, .*, p11, …$"):
        parse_schema(f"node T {{ {properties} @unique(zzz) }}")


def test_a_schema_of_more_than_a_mebibyte_is_refused_unread() -> None:
    text = "node T {} //" + "é" * (TEXT_BYTES_MAX // 2)
    with pytest.raises(ParseError, match="more than 1048576 bytes"):
        parse_schema(text)


@pytest.mark.parametrize("character", ["[", "{", "(", '"', "/*", "@x(", "a: [", "-", "\\"])
def test_no_repetition_exhausts_the_stack(character: str) -> None:
    with pytest.raises((ParseError, SchemaError)):
        parse_schema("node T { a: " + character * 20_000)


@pytest.mark.parametrize(
    "language", [schema_syntax.LANGUAGE, query_parser.LANGUAGE], ids=lambda language: language.name
)
def test_every_terminal_of_a_grammar_has_a_name_in_plain_words(language: Language) -> None:
    patterns = {t.name for t in language.lark.terminals if not isinstance(t.pattern, PatternStr)}
    ignored = set(language.lark.ignore_tokens)
    assert patterns - ignored == set(language.words)


def refusal_of(text: str) -> ParseError | SchemaError | None:
    try:
        parse_schema(text)
    except (ParseError, SchemaError) as error:
        return error
    return None


def check_parses_or_is_refused(text: str) -> None:
    error = refusal_of(text)
    if error is None:
        schema = parse_schema(text)
        assert parse_schema(print_schema(schema)) == schema
    elif isinstance(error, ParseError):
        assert error.facts["line"] >= 1
        assert error.facts["column"] >= 1
        assert not any(said.strip("_").isupper() for said in error.facts["expected"])


@given(st.one_of(st.text(max_size=60), st.text('nodeT {}:@()[]"\\/*.,-01?_a\n#\x00\ud800é', max_size=60)))
def test_any_text_parses_or_is_refused_with_an_error_of_ours(text: str) -> None:
    check_parses_or_is_refused(text)


@settings(max_examples=80)
@given(schemas(nodes=(1, 2), edges=(0, 1)), st.data())
def test_a_damaged_schema_parses_or_is_refused_with_an_error_of_ours(schema: Schema, data: st.DataObject) -> None:
    text = print_schema(schema)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    fragments = ["", "}", "{", "@key", "@range(name, 0..", "..", "9" * 30, "enum(", '"', "//", "/*", "[", "?", "node"]
    check_parses_or_is_refused(text[:start] + data.draw(st.sampled_from(fragments)) + text[end:])
