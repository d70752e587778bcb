"""The plan of a schema change: every kind of step and every refusal, and that a plan names all that differs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from omniray.engine.schema.alteration import Among, NotNull, TableAlteration
from omniray.engine.schema.matching import match_names
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.plan import SchemaPlan, plan_change
from omniray.engine.schema.printer import schema_hash
from omniray.engine.schema.refusals import DATA_LOSS, REFUSALS
from omniray.engine.schema.retypes import Conversion, conversion
from omniray.engine.schema.steps import Cost, Step, StepKind
from omniray.engine.schema.types import (
    Cardinality,
    ElementType,
    EnumType,
    ListType,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    Schema,
    Unique,
    VectorType,
)
from tests.schema_changes import changed_schemas
from tests.strategies import schemas

ROWS = {"node:T": 7, "node:Old": 7, "node:A": 3, "edge:E": 5, "edge:Old": 5}
BASE = "node A {} node B {} "


def planned(before: str, after: str) -> SchemaPlan:
    return plan_change(parse_schema(before), parse_schema(after))


def of_body(before: str, after: str) -> SchemaPlan:
    """The plan between two bodies of one node type."""
    return planned(f"node T {{ {before} }}", f"node T {{ {after} }}")


def told(step: Step) -> dict[str, Any]:
    """A step's JSON without what is usual."""
    document = step.as_json(ROWS)
    usual = {"cost": {"kind": "metadata", "rows": 0}, "loses_data": False, "refusal": None, "property": None}
    if document["refusal"] is not None:
        document["refusal"] = document["refusal"]["code"]
    if document["cost"] != usual["cost"]:
        document["cost"] = f"{document['cost']['kind']} {document['cost']['rows']}"
    return {name: value for name, value in document.items() if name not in usual or value != usual[name]}


# What each difference of two bodies comes to, beside `type: T`.
BODIES: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "a nullable property is added": (
        "", "a: I32?",
        [{"kind": "add_property", "property": "a", "to": "I32?", "default": None}],
    ),
    "a nullable property with a default is added": (
        "", "a: I32? @default(7)",
        [{"kind": "add_property", "property": "a", "to": "I32?", "default": 7, "cost": "backfill 7"}],
    ),
    "a required property with a default is added": (
        "", 'a: Date @default("2026-01-31")',
        [{"kind": "add_property", "property": "a", "to": "Date", "default": "2026-01-31", "cost": "backfill 7"}],
    ),
    "a required property is added": (
        "", "a: I32",
        [{"kind": "add_property", "property": "a", "to": "I32", "default": None,
          "refusal": "required_without_default"}],
    ),
    "a property is renamed": (
        "a: I32", 'b: I32 @rename_from("a")',
        [{"kind": "rename_property", "property": "b", "from": "a"}],
    ),
    "a property was renamed before": (
        "b: I32", 'b: I32 @rename_from("a")',
        [{"kind": "change_metadata", "property": "b", "what": "annotations"}],
    ),
    "a property is renamed and another takes its name": (
        "a: I32", 'b: I32 @rename_from("a") a: Bool?',
        [{"kind": "rename_property", "property": "b", "from": "a"},
         {"kind": "add_property", "property": "a", "to": "Bool?", "default": None}],
    ),
    "two properties are renamed, one to the other's name": (
        "a: I32 b: Bool", 'b: I32 @rename_from("a") c: Bool @rename_from("b")',
        [{"kind": "rename_property", "property": "b", "from": "a"},
         {"kind": "rename_property", "property": "c", "from": "b"}],
    ),
    "a property is renamed to the name of one that is dropped": (
        "a: I32 b: I32", 'b: I32 @rename_from("a")',
        [{"kind": "rename_property", "property": "b", "from": "a", "refusal": "rename_taken"},
         {"kind": "change_metadata", "property": "b", "what": "annotations"},
         {"kind": "drop_property", "property": "a", "loses_data": True}],
    ),
    "a property is renamed twice": (
        "a: I32", 'b: I32 @rename_from("a") c: I32? @rename_from("a")',
        [{"kind": "rename_property", "property": "b", "from": "a"},
         {"kind": "rename_property", "property": "c", "from": "a", "refusal": "renamed_twice"},
         {"kind": "add_property", "property": "c", "to": "I32?", "default": None}],
    ),
    "a property is dropped": (
        "a: I32", "",
        [{"kind": "drop_property", "property": "a", "loses_data": True}],
    ),
    "a property is dropped with its constraints": (
        "a: I32 @unique @range(0..1)", "",
        [{"kind": "drop_property", "property": "a", "loses_data": True},
         {"kind": "drop_constraint", "property": "a", "constraint": "@unique(a)"},
         {"kind": "drop_constraint", "property": "a", "constraint": "@range(a, 0..1)"}],
    ),
    "a number becomes wider": (
        "a: I32", "a: I64",
        [{"kind": "change_type", "property": "a", "from": "I32", "to": "I64", "cost": "backfill 7"}],
    ),
    "a number becomes narrower": (
        "a: I64", "a: I32",
        [{"kind": "change_type", "property": "a", "from": "I64", "to": "I32", "cost": "backfill 7",
          "loses_data": True}],
    ),
    "an enum becomes a text": (
        "a: enum(x)", "a: String",
        [{"kind": "change_type", "property": "a", "from": "enum(x)", "to": "String"}],
    ),
    "a text becomes an enum": (
        "a: String", "a: enum(x)",
        [{"kind": "change_type", "property": "a", "from": "String", "to": "enum(x)", "cost": "check 7"}],
    ),
    "a number becomes a text": (
        "a: I32", "a: String",
        [{"kind": "change_type", "property": "a", "from": "I32", "to": "String", "refusal": "unsupported_retype"}],
    ),
    "a property is renamed and retyped": (
        "a: F32", 'b: F64 @rename_from("a")',
        [{"kind": "rename_property", "property": "b", "from": "a"},
         {"kind": "change_type", "property": "b", "from": "F32", "to": "F64", "cost": "backfill 7"}],
    ),
    "a property may be null": (
        "a: I32", "a: I32?",
        [{"kind": "make_nullable", "property": "a"}],
    ),
    "a property is required": (
        "a: I32?", "a: I32",
        [{"kind": "make_required", "property": "a", "default": None, "cost": "check 7"}],
    ),
    "a property with a default is required": (
        "a: I32? @default(1)", "a: I32 @default(1)",
        [{"kind": "make_required", "property": "a", "default": 1, "cost": "backfill 7"}],
    ),
    "an enum has more values": (
        "a: enum(x, y)", "a: enum(w, x, y, z)",
        [{"kind": "widen_enum", "property": "a", "values": ["w", "z"]}],
    ),
    "an enum has fewer values": (
        "a: enum(x, y)", "a: enum(y)",
        [{"kind": "narrow_enum", "property": "a", "values": ["x"], "cost": "check 7"}],
    ),
    "an enum has other values": (
        "a: enum(x, y)", "a: enum(y, z)",
        [{"kind": "widen_enum", "property": "a", "values": ["z"]},
         {"kind": "narrow_enum", "property": "a", "values": ["x"], "cost": "check 7"}],
    ),
    "an enum has another order": (
        "a: enum(x, y)", "a: enum(y, x)",
        [{"kind": "change_metadata", "property": "a", "what": "order of values"}],
    ),
    "a default comes": (
        "a: I32", "a: I32 @default(1)",
        [{"kind": "change_default", "property": "a", "from": None, "to": 1}],
    ),
    "a default goes": (
        "a: I32 @default(1)", "a: I32",
        [{"kind": "change_default", "property": "a", "from": 1, "to": None}],
    ),
    "a property is to be unique": (
        "a: I32", "a: I32 @unique",
        [{"kind": "add_constraint", "property": "a", "constraint": "@unique(a)", "cost": "check 7"}],
    ),
    "two properties are to be unique": (
        "a: I32 b: I32", "a: I32 b: I32 @unique(a, b)",
        [{"kind": "add_constraint", "constraint": "@unique(a, b)", "cost": "check 7"}],
    ),
    "what is unique already is to be unique with more": (
        "a: I32 @unique b: I32", "a: I32 @unique b: I32 @unique(a, b)",
        [{"kind": "add_constraint", "constraint": "@unique(a, b)"}],
    ),
    "a property has bounds": (
        "a: I32", "a: I32 @range(0..)",
        [{"kind": "add_constraint", "property": "a", "constraint": "@range(a, 0..)", "cost": "check 7"}],
    ),
    "a property has wider bounds": (
        "a: I32 @range(0..9)", "a: I32 @range(0..)",
        [{"kind": "drop_constraint", "property": "a", "constraint": "@range(a, 0..9)"},
         {"kind": "add_constraint", "property": "a", "constraint": "@range(a, 0..)"}],
    ),
    "a property has other bounds": (
        "a: I32 @range(0..9)", "a: I32 @range(1..)",
        [{"kind": "drop_constraint", "property": "a", "constraint": "@range(a, 0..9)"},
         {"kind": "add_constraint", "property": "a", "constraint": "@range(a, 1..)", "cost": "check 7"}],
    ),
    "a property has a pattern": (
        "a: String", 'a: String @check("^x")',
        [{"kind": "add_constraint", "property": "a", "constraint": '@check(a, "^x")', "cost": "check 7"}],
    ),
    "a property is to be indexed": (
        "a: String", "a: String @index",
        [{"kind": "add_constraint", "property": "a", "constraint": "@index(a)"}],
    ),
    "an index goes": (
        "a: String @index", "a: String",
        [{"kind": "drop_constraint", "property": "a", "constraint": "@index(a)"}],
    ),
    "a property is added with constraints, which nulls keep": (
        "", "a: I32? @unique @range(0..9)",
        [{"kind": "add_property", "property": "a", "to": "I32?", "default": None},
         {"kind": "add_constraint", "property": "a", "constraint": "@unique(a)"},
         {"kind": "add_constraint", "property": "a", "constraint": "@range(a, 0..9)"}],
    ),
    "a property is added with constraints, and a default that must be unique": (
        "", "a: I32 @unique @range(0..9) @default(1)",
        [{"kind": "add_property", "property": "a", "to": "I32", "default": 1, "cost": "backfill 7"},
         {"kind": "add_constraint", "property": "a", "constraint": "@unique(a)", "cost": "check 7"},
         {"kind": "add_constraint", "property": "a", "constraint": "@range(a, 0..9)"}],
    ),
    "a renamed property keeps its constraints": (
        "a: I32 @unique @range(0..1) @key", 'b: I32 @rename_from("a") @unique @range(0..1) @key',
        [{"kind": "rename_property", "property": "b", "from": "a"}],
    ),
    "a key comes": (
        "a: I32", "a: I32 @key",
        [{"kind": "change_key", "from": [], "to": ["a"], "refusal": "key_changed"}],
    ),
    "a key goes": (
        "a: I32 @key", "a: I32",
        [{"kind": "change_key", "from": ["a"], "to": [], "refusal": "key_changed"}],
    ),
    "a key has another order": (
        "a: I32 b: I32 @key(a, b)", "a: I32 b: I32 @key(b, a)",
        [{"kind": "change_key", "from": ["a", "b"], "to": ["b", "a"], "refusal": "key_changed"}],
    ),
    "a key becomes wider, and its ids stay": (
        "a: I32 @key", "a: I64 @key",
        [{"kind": "change_type", "property": "a", "from": "I32", "to": "I64", "cost": "backfill 7"}],
    ),
    "a key becomes wider, and makes other ids": (
        "a: F32 @key", "a: F64 @key",
        [{"kind": "change_type", "property": "a", "from": "F32", "to": "F64", "refusal": "key_retyped"}],
    ),
    "a description changes": (
        "a: I32", 'a: I32 @description("x")',
        [{"kind": "change_metadata", "property": "a", "what": "annotations"}],
    ),
    "properties have another order": (
        "a: I32 b: I32", "b: I32 a: I32",
        [{"kind": "change_metadata", "what": "order of properties"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "steps"), BODIES.values(), ids=BODIES.keys())
def test_a_change_of_properties_has_its_steps(before: str, after: str, steps: list[dict[str, Any]]) -> None:
    plan = of_body(before, after)
    assert [told(step) for step in plan.steps] == [{**step, "type": "T"} for step in steps]
    assert plan.supported == all("refusal" not in step for step in steps)
    json.dumps(plan.as_json(ROWS))


TYPES: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "a node type is added": (
        BASE, BASE + "node T { a: I32? b: String @key }",
        [{"kind": "add_type", "type": "T", "of": "node", "properties": {"a": "I32?", "b": "String"}}],
    ),
    "an edge type is added": (
        BASE, BASE + "edge E: A -> B { a: I32? }",
        [{"kind": "add_type", "type": "E", "of": "edge", "ends": ["A", "B"], "properties": {"a": "I32?"}}],
    ),
    "a node type is renamed, and its edges with it": (
        "node Old { a: I32 } edge E: Old -> Old", 'node T @rename_from("Old") { a: I32 } edge E: T -> T',
        [{"kind": "rename_type", "type": "T", "from": "Old"}],
    ),
    "a type is renamed and otherwise changed": (
        "node Old { a: I32 }", 'node T @rename_from("Old") { a: I64 }',
        [{"kind": "rename_type", "type": "T", "from": "Old"},
         {"kind": "change_type", "type": "T", "property": "a", "from": "I32", "to": "I64", "cost": "backfill 7"}],
    ),
    "an edge type is renamed": (
        BASE + "edge Old: A -> B", BASE + 'edge E: A -> B @rename_from("Old")',
        [{"kind": "rename_type", "type": "E", "from": "Old"}],
    ),
    "a type was renamed before": (
        "node T {}", 'node T @rename_from("Old") {}',
        [{"kind": "change_metadata", "type": "T", "what": "annotations"}],
    ),
    "a type is renamed and another takes its name": (
        "node Old {}", 'node T @rename_from("Old") {} node Old {}',
        [{"kind": "rename_type", "type": "T", "from": "Old"},
         {"kind": "add_type", "type": "Old", "of": "node", "properties": {}}],
    ),
    "a type is renamed to the name of one that is dropped": (
        "node T {} node Old {}", 'node T @rename_from("Old") {}',
        [{"kind": "rename_type", "type": "T", "from": "Old", "refusal": "rename_taken"},
         {"kind": "change_metadata", "type": "T", "what": "annotations"},
         {"kind": "drop_type", "type": "Old", "of": "node", "loses_data": True}],
    ),
    "a type is renamed twice": (
        "node Old {}", 'node T @rename_from("Old") {} node U @rename_from("Old") {}',
        [{"kind": "rename_type", "type": "T", "from": "Old"},
         {"kind": "rename_type", "type": "U", "from": "Old", "refusal": "renamed_twice"},
         {"kind": "add_type", "type": "U", "of": "node", "properties": {}}],
    ),
    "a node type is dropped with its edges": (
        BASE + "node T {} edge E: T -> A", BASE,
        [{"kind": "drop_type", "type": "T", "of": "node", "loses_data": True},
         {"kind": "drop_type", "type": "E", "of": "edge", "loses_data": True}],
    ),
    "a node type becomes an edge type": (
        BASE + "node T {}", BASE + "edge T: A -> B",
        [{"kind": "drop_type", "type": "T", "of": "node", "loses_data": True},
         {"kind": "add_type", "type": "T", "of": "edge", "ends": ["A", "B"], "properties": {}}],
    ),
    "an edge type has other ends": (
        BASE + "edge E: A -> A", BASE + "edge E: A -> B",
        [{"kind": "change_ends", "type": "E", "from": ["A", "A"], "to": ["A", "B"], "refusal": "ends_changed"}],
    ),
    "an edge type has ends of the same name that are other types": (
        "node Old {} edge E: Old -> Old", 'node T @rename_from("Old") {} node Old {} edge E: Old -> T',
        [{"kind": "rename_type", "type": "T", "from": "Old"},
         {"kind": "add_type", "type": "Old", "of": "node", "properties": {}},
         {"kind": "change_ends", "type": "E", "from": ["Old", "Old"], "to": ["Old", "T"], "refusal": "ends_changed"}],
    ),
    "a cardinality comes": (
        BASE + "edge E: A -> B", BASE + "edge E: A -> B @card(0..3)",
        [{"kind": "change_cardinality", "type": "E", "from": "0..", "to": "0..3", "cost": "check 5"}],
    ),
    "a cardinality goes": (
        BASE + "edge E: A -> B @card(1..3)", BASE + "edge E: A -> B",
        [{"kind": "change_cardinality", "type": "E", "from": "1..3", "to": "0.."}],
    ),
    "a cardinality becomes tighter on one side": (
        BASE + "edge E: A -> B @card(0..3)", BASE + "edge E: A -> B @card(1..9)",
        [{"kind": "change_cardinality", "type": "E", "from": "0..3", "to": "1..9", "cost": "check 5"}],
    ),
    "the ends of edges are to be unique": (
        BASE + "edge E: A -> B", BASE + "edge E: A -> B { @unique(src, dst) }",
        [{"kind": "add_constraint", "type": "E", "constraint": "@unique(src, dst)", "cost": "check 5"}],
    ),
    "an interface comes": (
        "node T { a: I32 }", "interface I { a: I32 } node T { a: I32 }",
        [{"kind": "add_interface", "type": "I"}],
    ),
    "an interface goes": (
        "interface I { a: I32 } node T { a: I32 }", "node T { a: I32 }",
        [{"kind": "drop_interface", "type": "I"}],
    ),
    "an interface has one more property": (
        "interface I { a: I32 } node T implements I {}", "interface I { a: I32 b: I32? } node T implements I {}",
        [{"kind": "change_interface", "type": "I"},
         {"kind": "add_property", "type": "T", "property": "b", "to": "I32?", "default": None}],
    ),
    "a type implements an interface that has its property": (
        "interface I { a: I32 } node T { a: I32 }", "interface I { a: I32 } node T implements I {}",
        [{"kind": "change_implements", "type": "T", "from": [], "to": ["I"]}],
    ),
    "a type declares an inherited property again": (
        "interface I { a: I32 } node T implements I {}", "interface I { a: I32 } node T implements I { a: I32 }",
        [{"kind": "change_implements", "type": "T", "from": ["I"], "to": ["I"]}],
    ),
    "a type has another description": (
        "node T {}", 'node T @description("x") {}',
        [{"kind": "change_metadata", "type": "T", "what": "annotations"}],
    ),
    "types have another order": (
        "node A {} node B {}", "node B {} node A {}",
        [{"kind": "change_metadata", "type": None, "what": "order of types"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "steps"), TYPES.values(), ids=TYPES.keys())
def test_a_change_of_types_has_its_steps(before: str, after: str, steps: list[dict[str, Any]]) -> None:
    plan = planned(before, after)
    assert [told(step) for step in plan.steps] == steps
    assert plan.supported == all("refusal" not in step for step in steps)
    json.dumps(plan.as_json(ROWS))


def test_every_kind_of_step_and_every_refusal_is_among_these() -> None:
    steps = [step for _, _, steps in (*BODIES.values(), *TYPES.values()) for step in steps]
    assert {step["kind"] for step in steps} == set(StepKind)
    assert {step["refusal"] for step in steps if "refusal" in step} == set(REFUSALS) - {DATA_LOSS.code}
    assert {step.get("cost", "metadata").partition(" ")[0] for step in steps} == set(Cost)


def test_a_step_that_loses_data_is_refused_without_the_flag() -> None:
    plan = of_body("a: I32 b: I32", "b: I32 c: I32")
    assert not plan.supported
    (added,) = plan.refused(allow_data_loss=True)
    assert (added.kind, added.refusal and added.refusal.code) == (StepKind.ADD_PROPERTY, "required_without_default")
    codes = [step.refusal and step.refusal.code for step in plan.refused(allow_data_loss=False)]
    assert codes == ["required_without_default", "data_loss"]
    assert of_body("a: I32", "").supported


def test_a_step_is_shown_with_its_table_its_rows_and_its_refusal() -> None:
    (step,) = planned("node Old { a: I32? }", 'node T @rename_from("Old") { a: I32 }').steps[1:]
    assert step.as_json({"node:Old": 41}) == {
        "kind": "make_required",
        "type": "T",
        "property": "a",
        "cost": {"kind": "check", "rows": 41},
        "loses_data": False,
        "refusal": None,
        "default": None,
    }
    (refused,) = of_body("", "a: I32").steps
    assert refused.as_json({})["refusal"] == {
        "code": "required_without_default",
        "reason": "the rows that are there would have no value for a new required property",
        "advice": "give @default(…), or make it nullable with '?'",
    }
    assert str(refused) == "add_property T.a"


# What is to be done to a table


def alteration(before: str, after: str) -> TableAlteration:
    (one,) = of_body(before, after).altered
    return one


def test_an_alteration_says_what_becomes_of_each_column() -> None:
    one = alteration(
        "a: I32 b: I64 c: I32? d: I32 e: String f: enum(x, y) g: I32? gone: Bool",
        'z: I32 @rename_from("a") b: I32 c: I32 d: I32? e: enum(x) f: String g: I32 @default(3) '
        'h: I32? i: Bool @default(true)',
    )  # fmt: skip
    assert one.renamed == {"a": "z"}
    assert [p.name for p in one.added] == ["h", "i"]
    assert one.dropped == ("gone",)
    assert [(r.name, str(r.before), str(r.after), r.conversion, r.rewrites) for r in one.retyped] == [
        ("b", "I64", "I32", Conversion.NARROWED, True),
        ("e", "String", "enum(x)", Conversion.RESTRICTED, False),
        ("f", "enum(x, y)", "String", Conversion.RELABELLED, False),
    ]
    assert (one.made_nullable, one.made_required) == (("d",), ("c", "g"))
    assert one.rules == (NotNull("c"), Among("e", ("x",)))
    assert [p.name for p in one.filled] == ["i", "g"]
    assert (one.is_renamed, one.rewrites, one.changes_columns) == (False, True, True)
    assert [one.old_name(p.name) for p in one.after.properties] == ["a", "b", "c", "d", "e", "f", "g", None, None]


@pytest.mark.parametrize(
    ("before", "after", "changes_columns", "rewrites"),
    [
        ("a: I32", "a: I32 @unique @index", False, False),
        ("a: enum(x)", "a: enum(x, y)", False, False),
        ("a: enum(x)", "a: String @default(\"x\")", False, False),
        ("a: I32 b: I32", "b: I32 a: I32", False, False),
        ("a: I32", "a: I32 b: I32?", True, False),
        ("a: I32", 'b: I32 @rename_from("a")', True, False),
        ("a: I32", "", True, False),
        ("a: I32", "a: I32?", True, False),
        ("a: I32?", "a: I32", True, False),
        ("a: I32?", "a: I32 @default(1)", True, True),
        ("a: I32", "a: I32 b: I32? @default(1)", True, True),
        ("a: I32", "a: I64", True, True),
    ],
)  # fmt: skip
def test_an_alteration_says_whether_columns_change_and_whether_data_is_written(
    before: str, after: str, changes_columns: bool, rewrites: bool
) -> None:
    one = alteration(before, after)
    assert (one.changes_columns, one.rewrites) == (changes_columns, rewrites)


@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        ("a: I32? @unique", "a: I32 @unique @default(1)", (Unique(("a",)),)),  # the nulls become equal
        ("a: F64 @unique", "a: F32 @unique", (Unique(("a",)),)),  # rounded values may be equal
        ("a: F32 @unique", "a: F64 @unique", ()),
        ("a: F64 @unique b: I32", "a: F32 b: I32 @unique(a, b)", (Unique(("a", "b")),)),
        ("a: I64 b: I32 @key(a)", "a: I64 b: I32 @key(a) @unique(a, b)", ()),
        ("a: F64 @range(0..1)", "a: F32 @range(0..2)", (Range("a", 0.0, 2.0),)),
        ("a: I32 @range(1..2)", "a: I32 @range(0..2)", ()),
        ("a: I32 @range(1..)", "a: I32 @range(1..2)", (Range("a", 1, 2),)),
        ("a: I32 @range(..2) b: I32", "a: I32 b: I32 @range(b, ..2)", (Range("b", None, 2),)),
    ],
)  # fmt: skip
def test_rows_are_checked_unless_they_surely_satisfy_a_rule(before: str, after: str, rules: tuple[Any, ...]) -> None:
    assert alteration(before, after).rules == rules


def test_a_tighter_cardinality_is_a_rule_of_its_edges() -> None:
    (edge,) = planned(BASE + "edge E: A -> B", BASE + "edge E: A -> B @card(1..2)").altered
    assert edge.rules == (Cardinality(1, 2),)


# Types and names


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("I32", "I64", Conversion.WIDENED),
        ("I32", "F64", Conversion.WIDENED),
        ("I64", "F64", Conversion.EXACT),
        ("U32", "U64", Conversion.WIDENED),
        ("U32", "I64", Conversion.WIDENED),
        ("U64", "F64", Conversion.EXACT),
        ("F32", "F64", Conversion.WIDENED),
        ("I32", "U64", Conversion.NARROWED),
        ("U64", "I64", Conversion.NARROWED),
        ("F64", "F32", Conversion.NARROWED),
        ("F64", "I64", None),
        ("I32", "F32", None),
        ("Date", "DateTime", None),
        ("Bool", "I32", None),
        ("String", "Blob", None),
    ],
)
def test_values_are_widened_exact_narrowed_or_not_converted(
    before: str, after: str, expected: Conversion | None
) -> None:
    assert conversion(ScalarType(Scalar(before)), ScalarType(Scalar(after))) is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ListType(ScalarType(Scalar.I32)), ListType(ScalarType(Scalar.I64))),
        (VectorType(2), VectorType(3)),
        (ScalarType(Scalar.I32), ListType(ScalarType(Scalar.I32))),
        (EnumType(("x",)), ScalarType(Scalar.I32)),
    ],
)
def test_lists_and_vectors_are_not_converted(before: PropertyType, after: PropertyType) -> None:
    assert conversion(before, after) is None


@pytest.mark.parametrize(
    ("before", "after", "old", "refused"),
    [
        ("a b", {"a": None, "b": "gone"}, {"a": "a", "b": "b"}, {}),
        ("a b", {"a": "b", "b": "a"}, {"a": "a", "b": "b"}, {}),  # applied before, or a swap, which takes two steps
        ("a b c", {"b": "a", "c": "b", "d": "c"}, {"b": "a", "c": "b", "d": "c"}, {}),
        ("a b", {"b": "a", "c": None}, {"b": "b"}, {"b": "rename_taken"}),
        ("a", {"b": "a", "c": "a", "a": "a"}, {"b": "a"}, {"c": "renamed_twice"}),
        ("a b", {"b": "a", "c": "a"}, {"b": "b", "c": "a"}, {}),
    ],
)
def test_names_are_matched_by_former_names_where_the_new_one_is_free(
    before: str, after: dict[str, str | None], old: dict[str, str], refused: dict[str, str]
) -> None:
    matched = match_names(before.split(), after)
    assert matched.old == old
    assert {name: refusal.code for name, refusal in matched.refused.items()} == refused


# Any two schemas


Columns = dict[str, tuple[str, bool]]


def columns_of(type: ElementType) -> Columns:
    return {p.name: (str(p.type), p.nullable) for p in type.properties}


def tables_of(schema: Schema) -> dict[str, Columns]:
    return {type.table_key: columns_of(type) for type in schema}


def altered(columns: Columns, one: TableAlteration) -> Columns:
    """The columns of a table after an alteration, by what it says alone."""
    left = {one.renamed.get(name, name): column for name, column in columns.items() if name not in one.dropped}
    for retype in one.retyped:
        left[retype.name] = (str(retype.after), left[retype.name][1])
    for name in one.made_nullable:
        left[name] = (left[name][0], True)
    for name in one.made_required:
        left[name] = (left[name][0], False)
    return left | {p.name: (str(p.type), p.nullable) for p in one.added}


def with_plan(tables: dict[str, Columns], plan: SchemaPlan) -> dict[str, Columns]:
    gone = {type.table_key for type in plan.dropped} | {one.before.table_key for one in plan.altered}
    left = {key: columns for key, columns in tables.items() if key not in gone}
    left |= {one.after.table_key: altered(tables[one.before.table_key], one) for one in plan.altered}
    return left | {type.table_key: columns_of(type) for type in plan.created}


def without_enums(tables: dict[str, Columns]) -> dict[str, Columns]:
    """Enums as one type: their values are metadata."""
    return {
        key: {name: ("enum" if type.startswith("enum") else type, null) for name, (type, null) in columns.items()}
        for key, columns in tables.items()
    }


def check_plan(before: Schema, after: Schema) -> None:
    plan = plan_change(before, after)
    assert (plan.steps == ()) == (schema_hash(before) == schema_hash(after))
    if plan.supported:
        assert without_enums(with_plan(tables_of(before), plan)) == without_enums(tables_of(after))
    touched = {step.type for step in plan.steps}
    assert touched >= {type.name for type in (*plan.created, *plan.dropped)} | {one.after.name for one in plan.altered}
    json.dumps(plan.as_json(dict.fromkeys(before.by_table_key, 1)))


@given(schemas(defaults=True))
def test_a_schema_differs_in_nothing_from_itself(schema: Schema) -> None:
    plan = plan_change(schema, schema)
    assert (plan.steps, plan.created, plan.dropped, plan.altered) == ((), (), (), ())


@settings(max_examples=300)
@given(schemas(defaults=True), schemas(defaults=True))
def test_the_plan_between_any_two_schemas_names_all_that_differs(before: Schema, after: Schema) -> None:
    check_plan(before, after)


@settings(max_examples=300)
@given(changed_schemas())
def test_the_plan_of_a_changed_schema_names_all_that_was_changed(pair: tuple[Schema, Schema]) -> None:
    check_plan(*pair)
