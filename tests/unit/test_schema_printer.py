"""Printing a schema: one text for one meaning, and it reads back."""

from __future__ import annotations

from hypothesis import given

from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import print_schema, schema_hash
from omniray.engine.schema.types import Annotation, NodeType, Property, Scalar, ScalarType, Schema
from tests.strategies import schemas


@given(schemas(defaults=True))
def test_a_printed_schema_parses_to_the_same_schema(schema: Schema) -> None:
    text = print_schema(schema)
    assert parse_schema(text) == schema
    assert print_schema(parse_schema(text)) == text


def test_the_canonical_text_is_what_a_person_would_write() -> None:
    schema = parse_schema(
        """
        edge Knows: Person->Person @card(0..3){since:Date? @unique(src,dst)} edge Likes: Person -> Person
        interface Named { name: String @key }
        node Person @description("A \\"person\\"") implements Named {
          @range(age, 0..150) @unique(role, age)
          age: I32? @index role: enum(dev, b-c) bio: Vector(8)? @embed(name, model="m") @check(name, "^[A-Z]")
        }
        node Empty {}
        """
    )
    assert print_schema(schema) == (
        'interface Named {\n'
        '  name: String\n'
        '}\n'
        '\n'
        'node Person @description("A \\"person\\"") implements Named {\n'
        '  age: I32? @index\n'
        '  role: enum(dev, b-c)\n'
        '  bio: Vector(8)? @embed("name", model="m")\n'
        '  @key(name)\n'
        '  @unique(role, age)\n'
        '  @range(age, 0..150)\n'
        '  @check(name, "^[A-Z]")\n'
        '}\n'
        '\n'
        'node Empty {}\n'
        '\n'
        'edge Knows: Person -> Person @card(0..3) {\n'
        '  since: Date?\n'
        '  @unique(src, dst)\n'
        '}\n'
        '\n'
        'edge Likes: Person -> Person\n'
    )  # fmt: skip


def test_texts_with_quotes_backslashes_and_control_characters_survive_printing() -> None:
    hostile = 'a"b\\c\nd\te\x00f\u2028g\x7fé😀 // no comment /* nor this'
    annotation = Annotation("description", (hostile,))
    property = Property("name", ScalarType(Scalar.STRING), annotations=(annotation,))
    schema = Schema((NodeType("P", (property,), (property,), annotations=(annotation,)),), ())
    assert parse_schema(print_schema(schema)) == schema


def test_the_hash_depends_on_the_meaning_and_not_on_the_writing() -> None:
    one = parse_schema("node P { a: String @key  b: F64 @range(0..1) }")
    same = parse_schema("// a comment\nnode P { a: String b: F64\n @range(b, 0.0..1.0) @key(a) }")
    other = parse_schema("node P { a: String @key  b: F64 @range(0..2) }")
    assert schema_hash(one) == schema_hash(same)
    assert schema_hash(one) != schema_hash(other)
    assert len(schema_hash(one)) == 64
