"""The merge of two changes of a schema: what both changed is taken together, agrees, or conflicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniray.engine.schema.conflicts import SchemaConflict
from omniray.engine.schema.identified import IdentifiedSchema, by_identity, plan_by_identity
from omniray.engine.schema.identities import after, initial
from omniray.engine.schema.merge import MergedSchema, merge_schemas
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.plan import plan_change
from omniray.engine.schema.printer import print_schema
from omniray.engine.schema.steps import StepKind
from omniray.engine.schema.three_way import in_merged_order, merged_members
from omniray.engine.schema.types import Schema, Unique
from tests.schema_changes import changes_of
from tests.strategies import schemas

BASE = """
interface Named { name: String }
node Person implements Named { age: I32? @range(0..150)  role: enum(dev, ops)? @description("what they do") @key(name) }
node City { name: String @key }
edge Knows: Person -> Person { since: Date? }
"""


def first(text: str | Schema) -> IdentifiedSchema:
    schema = parse_schema(text) if isinstance(text, str) else text
    tables = {type.table_key: f"T{number}" for number, type in enumerate(schema)}
    return IdentifiedSchema(schema, initial(schema, tables))


def changed(base: IdentifiedSchema, text: str | Schema, commit_id: str) -> IdentifiedSchema:
    schema = parse_schema(text) if isinstance(text, str) else text
    return IdentifiedSchema(schema, after(plan_change(base.schema, schema), base.identities, commit_id))


def merge(ours: str, theirs: str, base: str = BASE) -> MergedSchema | tuple[SchemaConflict, ...]:
    began = first(base)
    return merge_schemas(began, changed(began, ours, "OURS"), changed(began, theirs, "THEIRS"))


def edited(*pairs: tuple[str, str]) -> str:
    """The base with texts replaced; an empty one is replaced by adding to the end."""
    text = BASE
    for old, new in pairs:
        assert not old or text.count(old) == 1, old
        text = text.replace(old, new) if old else text + new
    return text


AGE = "age: I32? @range(0..150)"
ROLE = 'role: enum(dev, ops)? @description("what they do")'
PERSON = "node Person implements Named { "
CITY = "node City { name: String @key }"
KNOWS = "edge Knows: Person -> Person { since: Date? }"

# What either side makes of the base, and what comes of both.
TOGETHER: dict[str, tuple[str, str, str]] = {
    "different properties are added": (
        edited((AGE, f"{AGE} email: String?")), edited((ROLE, f"{ROLE} tall: F32?")),
        edited((AGE, f"{AGE} email: String?"), (ROLE, f"{ROLE} tall: F32?")),
    ),
    "different types are added": (
        edited(("", "node Book { title: String @key }")), edited(("", "edge Likes: Person -> City")),
        edited(("", "node Book { title: String @key } edge Likes: Person -> City")),
    ),
    "one is renamed and retyped": (
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age")')), edited(("age: I32?", "age: I64?")),
        edited((AGE, 'years: I64? @range(0..150) @rename_from("age")')),
    ),
    "one is renamed and described": (
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age")')),
        edited((AGE, f'{AGE} @description("x") @instruction("y")')),
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age") @description("x") @instruction("y")')),
    ),
    "a type is renamed and an edge at it added": (
        edited((CITY, 'node Town @rename_from("City") { name: String @key }')),
        edited(("", "edge LivesIn: Person -> City")),
        edited((CITY, 'node Town @rename_from("City") { name: String @key }'), ("", "edge LivesIn: Person -> Town")),
    ),
    "a type is renamed and its property constrained": (
        edited((CITY, 'node Town @rename_from("City") { name: String @key }')),
        edited((CITY, 'node City { name: String @key @check("^[A-Z]") }')),
        edited((CITY, 'node Town @rename_from("City") { name: String @key @check("^[A-Z]") }')),
    ),
    "different values are added to an enum": (
        edited(("enum(dev, ops)", "enum(dev, ops, law)")), edited(("enum(dev, ops)", "enum(art, dev)")),
        edited(("enum(dev, ops)", "enum(dev, law, art)")),
    ),
    "a default and a constraint": (
        edited((AGE, f"{AGE} @default(18)")), edited((AGE, f"{AGE} @index")),
        edited((AGE, f"{AGE} @default(18) @index")),
    ),
    "a range and a cardinality": (
        edited(("0..150", "0..200")), edited(("Knows: Person -> Person", "Knows: Person -> Person @card(0..3)")),
        edited(("0..150", "0..200"), ("Knows: Person -> Person", "Knows: Person -> Person @card(0..3)")),
    ),
    "one drops what the other left": (
        edited((AGE, "")), edited((ROLE, f"{ROLE} @index")),
        edited((AGE, ""), (ROLE, f"{ROLE} @index")),
    ),
    "both drop the same": (
        edited((AGE, "")), edited((AGE, ""), (KNOWS, "")),
        edited((AGE, ""), (KNOWS, "")),
    ),
    "both rename to the same name": (
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age")')),
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age")'), (KNOWS, "")),
        edited((AGE, 'years: I32? @range(0..150) @rename_from("age")'), (KNOWS, "")),
    ),
    "both change the same alike": (
        edited(("age: I32?", "age: I64?")), edited(("age: I32?", "age: I64?"), (KNOWS, "")),
        edited(("age: I32?", "age: I64?"), (KNOWS, "")),
    ),
    "interfaces get different properties": (
        edited(("name: String }", "name: String  at: Date? }")), edited(("name: String }", "name: String  by: I32? }")),
        edited(("name: String }", "name: String  at: Date?  by: I32? }")),
    ),
    "different interfaces are implemented": (
        edited((CITY, "interface I { a: I32? } node City implements I { name: String @key }")),
        edited((CITY, "interface J { b: I32? } node City implements J { name: String @key }")),
        edited((CITY, "interface I { a: I32? } interface J { b: I32? } "
                      "node City implements I, J { name: String @key }")),
    ),
    "one drops a name and adds it again, the other left it": (
        edited((AGE, 'old: I32? @range(0..150) @rename_from("age")  age: String?')), edited((KNOWS, "")),
        edited((AGE, 'old: I32? @range(0..150) @rename_from("age")  age: String?'), (KNOWS, "")),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "both"), TOGETHER.values(), ids=TOGETHER.keys())
def test_different_changes_are_taken_together(ours: str, theirs: str, both: str) -> None:
    one, other = merge(ours, theirs), merge(theirs, ours)
    assert isinstance(one, MergedSchema), one
    assert isinstance(other, MergedSchema), other
    assert print_schema(one.schema.schema) == print_schema(parse_schema(both))
    assert lines_of(other.schema.schema) == lines_of(parse_schema(both))
    assert one.schema.identities.names(one.schema.schema)
    assert one.aliases == {}


def lines_of(schema: Schema) -> Counter[tuple[str, ...]]:
    """A schema without the order of its properties, values and annotations, which may be either side's."""
    return Counter(tuple(sorted(re.split("[ ,()]+", line))) for line in print_schema(schema).split("\n"))


CONFLICTS: dict[str, tuple[str, str, list[tuple[str, str, str | None, str | None, str | None]]]] = {
    "other types": (
        edited(("age: I32?", "age: I64?")), edited(("age: I32?", "age: F64?")),
        [("changed_differently", "Person", "age", "I64", "F64")],
    ),
    "other names of a property": (
        edited((AGE, 'a: I32? @range(0..150) @rename_from("age")')),
        edited((AGE, 'b: I32? @range(0..150) @rename_from("age")')),
        [("changed_differently", "Person", "age", "a", "b")],
    ),
    "other names of a type": (
        edited((CITY, 'node A @rename_from("City") { name: String @key }')),
        edited((CITY, 'node B @rename_from("City") { name: String @key }')),
        [("changed_differently", "City", None, "A", "B")],
    ),
    "other defaults": (
        edited((AGE, f"{AGE} @default(1)")), edited((AGE, f"{AGE} @default(2)")),
        [("changed_differently", "Person", "age", "1", "2")],
    ),
    "other ranges": (
        edited(("0..150", "1..150")), edited(("0..150", "2..150")),
        [("changed_differently", "Person", "age", "@range(age, 1..150)", "@range(age, 2..150)")],
    ),
    "a range that is dropped and changed": (
        edited((AGE, "age: I32?")), edited(("0..150", "2..150")),
        [("changed_differently", "Person", "age", None, "@range(age, 2..150)")],
    ),
    "other cardinalities": (
        edited(("Person -> Person", "Person -> Person @card(0..3)")), edited(("-> Person", "-> Person @card(1..)")),
        [("changed_differently", "Knows", None, "0..3", "1..")],
    ),
    "other descriptions": (
        edited(("what they do", "x")), edited(("what they do", "y")),
        [("changed_differently", "Person", "role", "…x…", "…y…")],
    ),
    "a property that is dropped and changed": (
        edited((AGE, "")), edited(("age: I32?", "age: I64?")),
        [("dropped_and_changed", "Person", "age", None, "age: I64?")],
    ),
    "a property that is dropped and renamed": (
        edited((AGE, "")), edited((AGE, 'years: I32? @range(0..150) @rename_from("age")')),
        [("dropped_and_changed", "Person", "age", None, 'years: I32? @rename_from("age")')],
    ),
    "a type that is dropped and changed": (
        edited((CITY, "")), edited((CITY, "node City { name: String @key  size: I64? }")),
        [("dropped_and_changed", "City", None, None, "City")],
    ),
    "a node type that is dropped, and an edge at it": (
        edited((CITY, "")), edited(("", "edge LivesIn: Person -> City")),
        [("dropped_and_changed", "LivesIn", None, None, None)],
    ),
    "a property that is dropped, and a constraint about it": (
        edited((ROLE, "")), edited((ROLE, f"{ROLE} @unique(role, age)")),
        [("dropped_and_changed", "Person", None, None, None)],
    ),
    "a property that both add with other types": (
        edited((AGE, f"{AGE} x: I32?")), edited((AGE, f"{AGE} x: I64?")),
        [("same_name", "Person", "x", "x: I32?", "x: I64?")],
    ),
    "a type that both add with other properties": (
        edited(("", "node X { a: I32? }")), edited(("", "node X { a: I32?  b: I32? }")),
        [("same_name", "X", None, None, None)],
    ),
    "a name that one renames to and the other adds": (
        edited((AGE, 'x: I32? @range(0..150) @rename_from("age")')), edited((ROLE, f"{ROLE} x: I32?")),
        [("same_name", "Person", "x", None, None)],
    ),
    "a type's name that one renames to and the other adds": (
        edited((CITY, 'node X @rename_from("City") { name: String @key }')), edited(("", "node X {}")),
        [("same_name", "X", None, None, None)],
    ),
    "a node type and an edge type of one name": (
        edited(("", "node X {}")), edited(("", "edge X: Person -> City")),
        [("same_name", "X", None, None, None)],
    ),
    "an interface that is dropped and changed": (
        edited(("interface Named { name: String }", ""), ("implements Named {", "{ name: String")),
        edited(("name: String }", "name: String  at: Date? }")),
        [("dropped_and_changed", "Named", None, None, "Named")],
    ),
    "an interface that gets a property, and another type that implements it": (
        edited(("name: String }", "name: String  at: Date? }")), edited(("", "node X implements Named {}")),
        [("invalid", "", None, None, None)],
    ),
    "an interface whose property is described, and another type that implements it": (
        edited(("name: String }", 'name: String @description("x") }')), edited(("", "node X implements Named {}")),
        [("invalid", "", None, None, None)],
    ),
    "an enum without the value that is the default": (
        edited(("enum(dev, ops)", "enum(ops)")), edited((ROLE, f"{ROLE} @default(dev)")),
        [("invalid", "", None, None, None)],
    ),
    "names that differ in case": (
        edited((AGE, f"{AGE} userId: I32?")), edited((AGE, f"{AGE} userid: I32?")),
        [("invalid", "", None, None, None)],
    ),
    "several at once": (
        edited(("age: I32?", "age: I64?"), (CITY, "")),
        edited(("age: I32?", "age: F64?"), (CITY, "node City { name: String @key  size: I64? }")),
        [("changed_differently", "Person", "age", "I64", "F64"), ("dropped_and_changed", "City", None, None, "City")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "expected"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_changes_of_the_same_thing_conflict(
    ours: str, theirs: str, expected: list[tuple[str, str, str | None, str | None, str | None]]
) -> None:
    found, turned = merge(ours, theirs), merge(theirs, ours)
    assert isinstance(found, tuple), found
    assert isinstance(turned, tuple), turned
    assert [shape(one) for one in found] == expected
    assert sorted(map(str, (shape(one) for one in turned))) == sorted(
        str((kind, type, property, theirs, ours)) for kind, type, property, ours, theirs in expected
    )
    for one in found:
        assert set(one.as_json()) == {"kind", "type", "property", "ours", "theirs", "reason"}
        assert one.reason


def shape(one: SchemaConflict) -> tuple[str, str, str | None, str | None, str | None]:
    ours, theirs = (
        f"…{'x' if 'x' in text else 'y'}…" if text and "Annotation" in text else text for text in (one.ours, one.theirs)
    )
    return one.kind.value, one.type, one.property, ours, theirs


def test_what_both_sides_added_alike_is_one_thing_with_our_identity() -> None:
    added = edited((AGE, f"{AGE} email: String? @unique"), ("", "node X { a: I32? } edge At: Person -> X { b: I32? }"))
    result = merge(added, added)
    assert isinstance(result, MergedSchema)
    assert result.schema == changed(first(BASE), added, "OURS")
    assert result.aliases == {f"THEIRS-{number}": f"OURS-{number}" for number in range(1, 6)}


def test_what_both_sides_added_alike_may_be_changed_elsewhere() -> None:
    ours = edited((AGE, f"{AGE} email: String? @unique"), (CITY, "node City { name: String @key  size: I64? }"))
    theirs = edited((AGE, f"{AGE} tall: F32? email: String? @unique"))
    result = merge(ours, theirs)
    assert isinstance(result, MergedSchema)
    person = result.schema.identities.types["Person"].properties
    assert (person["email"], person["tall"]) == ("OURS-1", "THEIRS-1")
    assert result.aliases == {"THEIRS-2": "OURS-1"}


def test_a_dropped_name_that_is_added_again_is_not_what_the_other_side_changed() -> None:
    """Ours drops `age` and adds another; theirs made the first one wider: there is nothing left to be wider."""
    began = first(BASE)
    without = changed(began, edited((AGE, "")), "C1")
    ours = changed(without, edited((AGE, "age: I32?")), "C2")
    theirs = changed(began, edited(("age: I32?", "age: I64?")), "C3")
    found = merge_schemas(began, ours, theirs)
    assert isinstance(found, tuple)
    assert [shape(one) for one in found] == [("dropped_and_changed", "Person", "age", None, "age: I64?")]
    kept = merge_schemas(began, ours, changed(began, edited((KNOWS, "")), "C3"))
    assert isinstance(kept, MergedSchema)
    assert kept.schema.identities.types["Person"].properties["age"] == "C2-1"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result"),
    [
        ("abc", "abc", "bca", "bca"),
        ("abc", "cab", "abc", "cab"),
        ("abc", "abxc", "abyc", "abxcy"),
        ("abc", "ac", "abcd", "acd"),
        ("abc", "cba", "bac", "cba"),
    ],
)
def test_members_are_those_that_nobody_removed_in_the_order_of_who_changed_it(
    base: str, ours: str, theirs: str, result: str
) -> None:
    assert "".join(merged_members(base, ours, theirs)) == result
    assert "".join(in_merged_order(base, ours, theirs, set(result))) == result


def test_a_plan_by_identity_follows_a_rename_back_and_tells_apart_what_has_one_name() -> None:
    began = first(BASE)
    renamed = changed(began, edited((AGE, 'years: I32? @range(0..150) @rename_from("age")')), "C1")
    back = changed(renamed, edited((AGE, 'age: I32? @range(0..150) @rename_from("years")')), "C2")
    (step,) = plan_by_identity(renamed, back).steps
    assert (step.kind, step.property) == (StepKind.RENAME_PROPERTY, "age")
    assert [step.kind for step in plan_by_identity(began, back).steps] == [StepKind.CHANGE_METADATA]
    again = changed(changed(began, edited((AGE, "")), "C3"), BASE, "C4")
    kinds = [step.kind for step in plan_by_identity(began, again).steps]
    assert kinds[:2] == [StepKind.ADD_PROPERTY, StepKind.DROP_PROPERTY]
    assert plan_change(began.schema, again.schema).steps == ()


@pytest.mark.parametrize(("default", "rules"), [("I32? @unique", ()), ("I32 @unique @default(1)", (Unique(("age",)),))])
def test_rows_of_a_name_that_was_added_again_are_checked_though_its_constraint_is_the_same(
    default: str, rules: tuple[Unique, ...]
) -> None:
    began = first("node Person { name: String @key  age: I32? @unique }")
    without = changed(began, "node Person { name: String @key }", "C1")
    again = changed(without, f"node Person {{ name: String @key  age: {default} }}", "C2")
    (one,) = plan_by_identity(began, again).altered
    assert one.rules == rules


@st.composite
def three_schemas(draw: st.DrawFn) -> tuple[IdentifiedSchema, IdentifiedSchema, IdentifiedSchema]:
    base = first(draw(schemas(defaults=True)))
    ours, theirs = (changed(base, draw(changes_of(base.schema)), name) for name in ("OURS", "THEIRS"))
    return base, ours, theirs


@given(three_schemas())
def test_a_merge_with_a_side_that_changed_nothing_is_the_other_side(
    three: tuple[IdentifiedSchema, IdentifiedSchema, IdentifiedSchema],
) -> None:
    base, ours, _ = three
    assert merge_schemas(base, ours, base) == MergedSchema(ours)
    assert merge_schemas(base, base, ours) == MergedSchema(ours)
    assert merge_schemas(base, ours, ours) == MergedSchema(ours)


@settings(max_examples=400)
@given(three_schemas())
def test_a_merge_conflicts_whichever_side_it_is_done_from(
    three: tuple[IdentifiedSchema, IdentifiedSchema, IdentifiedSchema],
) -> None:
    base, ours, theirs = three
    one, other = merge_schemas(base, ours, theirs), merge_schemas(base, theirs, ours)
    assert isinstance(one, MergedSchema) == isinstance(other, MergedSchema)
    if isinstance(one, MergedSchema) and isinstance(other, MergedSchema):
        assert columns_of(one, {}) == columns_of(other, one.aliases)
        assert other.aliases == {ours: theirs for theirs, ours in one.aliases.items()}
        assert parse_schema(print_schema(one.schema.schema)) == one.schema.schema
        assert one.schema.identities.names(one.schema.schema)
        assert not plan_by_identity(ours, one.schema).dropped or plan_change(base.schema, theirs.schema).dropped
    elif isinstance(one, tuple) and isinstance(other, tuple):
        assert Counter((c.kind, c.type, c.property, c.ours, c.theirs) for c in one) == Counter(
            (c.kind, c.type, c.property, c.theirs, c.ours) for c in other
        )


def columns_of(merged: MergedSchema, alias: Mapping[str, str]) -> set[tuple[str, str, str]]:
    """The columns of all tables, known by identity."""
    return {
        (alias.get(one, one), type.name, p.name)
        for one, type in by_identity(merged.schema).items()
        for p in type.properties.values()
    }
