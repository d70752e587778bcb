"""What a look at a schema finds, and that the documents list it."""

from __future__ import annotations

import re

import pytest

from omniray.engine.schema.lint import Finding, lint_schema
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.refusals import REFUSALS
from omniray.engine.schema.steps import StepKind
from tests.source import REPOSITORY

FOUND = {
    "an interface that nobody implements": (
        "interface I { a: I32 } node T { a: I32 @key }", "unused_interface", "I", None
    ),
    "a node without a key": ("node T { a: I32 }", "keyless_node", "T", None),
    "a node whose only unique property may be null": ("node T { a: I32? @unique }", "keyless_node", "T", None),
    "a node with something like a key": ("node T { a: I32 b: I32 @unique(a, b) }", "unique_without_key", "T", None),
    "an edge that may repeat": ("node T { a: I32 @key } edge E: T -> T", "repeatable_edge", "E", None),
    "an edge that may repeat, unique otherwise": (
        "node T { a: I32 @key } edge E: T -> T { b: I32 @unique(src, dst, b) }", "repeatable_edge", "E", None
    ),
    "what a key makes unique": ("node T { a: I32 b: I32 @key(a) @unique(a, b) }", "redundant_unique", "T", None),
    "what is unique with less": (
        "node T { k: I32 @key a: I32 @unique b: I32 @unique(a, b) }", "redundant_unique", "T", None
    ),
    "a unique default": ("node T { k: I32 @key a: I32 @unique @default(1) }", "unique_default", "T", "a"),
    "defaults that are unique together": (
        "node T { k: I32 @key a: I32 @default(1) b: I32 @default(1) @unique(a, b) }", "unique_default", "T", None
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "type", "property"), FOUND.values(), ids=FOUND.keys())
def test_a_schema_is_found_to_say_what_is_seldom_meant(text: str, code: str, type: str, property: str | None) -> None:
    (found,) = lint_schema(parse_schema(text))
    assert (found.code, found.type, found.property) == (code, type, property)
    assert found.reason
    assert found.advice


def test_nothing_is_found_in_a_schema_that_says_what_is_usually_meant() -> None:
    text = """
    interface Named { name: String @key }
    node Person implements Named { role: enum(dev, ops) @default(dev)  @unique(age, role)  age: I32 }
    edge Knows: Person -> Person { @unique(src, dst) }
    """
    assert lint_schema(parse_schema(text)) == ()


def test_findings_come_in_the_order_of_the_schema_and_as_plain_data() -> None:
    found = lint_schema(parse_schema("edge E: B -> A node B {} node A {} interface I { a: I32 }"))
    assert [(one.type, one.code) for one in found] == [
        ("I", "unused_interface"), ("B", "keyless_node"), ("A", "keyless_node"), ("E", "repeatable_edge"),
    ]  # fmt: skip
    assert set(found[0].as_json()) == set(Finding.__slots__)


def test_every_step_refusal_and_finding_is_in_the_documents_and_no_other() -> None:
    text = (REPOSITORY / "docs/schema-changes.md").read_text()
    sections = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    codes = {name: set(re.findall(r"`([a-z_]{4,})`(?=[,\w`_ ]* \|)", section)) for name, section in sections.items()}
    assert codes["Steps"] == {kind.value for kind in StepKind}
    assert codes["Refusals"] == set(REFUSALS)
    assert codes["Lint"] == {code for _, code, _, _ in FOUND.values()}
