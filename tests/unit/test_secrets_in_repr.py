"""No value shows secrets when it is printed or logged: its fields for options of stores, secrets, tokens are hidden.

They are known by their names. `repr` of a class decides, if it has one of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from omniray.coordinator.stress.moto_server import Bucket
from omniray.coordinator.testing.served_graph import ServedGraph
from tests.source import LAYERS, python_files, relative
from tests.stores import Root

SECRET = frozenset({"storage_options", "secret", "token", "password", "credentials"})
MAY_HOLD_SOME = frozenset({"options"})  # if it maps texts to texts, as the options of a store do
VALUES = frozenset({"dataclass", "Struct", "NamedTuple"})


def shown(source: str) -> list[str]:
    """The fields of values that would show a secret, as `line: class.field`."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [
        f"{field.lineno}: {one.name}.{name}"
        for one in classes
        if _is_value(one) and not _has_own_repr(one)
        for name, field in _fields(one)
        if _may_be_secret(name, field) and not _is_hidden(field)
    ]


def _is_value(one: ast.ClassDef) -> bool:
    made_by = (*one.decorator_list, *one.bases)
    names = (
        node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        for made in made_by
        for node in ast.walk(made)
    )
    return not VALUES.isdisjoint(names)


def _has_own_repr(one: ast.ClassDef) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "__repr__" for node in one.body)


def _fields(one: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in one.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id.lstrip("_"), node


def _may_be_secret(name: str, field: ast.AnnAssign) -> bool:
    holds_texts = any(kind in ast.unparse(field.annotation) for kind in ("Mapping[str, str]", "dict[str, str]"))
    return name in SECRET or (name in MAY_HOLD_SOME and holds_texts)


def _is_hidden(field: ast.AnnAssign) -> bool:
    keywords = field.value.keywords if isinstance(field.value, ast.Call) else []
    return any(one.arg == "repr" and ast.unparse(one.value) == "False" for one in keywords)


def test_no_value_shows_a_secret() -> None:
    files = python_files(*LAYERS, "bench", "tests")
    assert {relative(path): found for path in files if (found := shown(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass\nclass A:\n    storage_options: Mapping[str, str] | None = None",
        "@dataclasses.dataclass(frozen=True)\nclass A:\n    token: str = field(default='')",
        "@dataclass(frozen=True, slots=True)\nclass A:\n    secret: str = field(repr=True)",
        "@dataclass\nclass A:\n    _options: dict[str, str]",
        "class A(msgspec.Struct, frozen=True):\n    secret: str",
        "class A(NamedTuple):\n    storage_options: dict[str, str]",
        "def late():\n    @dataclass\n    class A:\n        password: str",
    ],
)
def test_the_walker_finds_a_planted_secret(source: str) -> None:
    assert shown(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass\nclass A:\n    storage_options: Mapping[str, str] | None = field(repr=False)",
        "@dataclass\nclass A:\n    options: LoadOptions",
        "class A(NamedTuple):\n    token: str\n    def __repr__(self) -> str: ...",
        "class A(Protocol):\n    storage_options: dict[str, str]",
    ],
)
def test_the_walker_lets_a_proper_value_pass(source: str) -> None:
    assert shown(source) == []


@pytest.mark.parametrize("kind", [ServedGraph, Bucket, Root])
def test_a_graph_of_a_test_is_shown_without_its_options(kind: type[ServedGraph | Bucket | Root]) -> None:
    shown = repr(kind("s3://bucket/graph", {"aws_secret_access_key": "canary"}))
    assert "s3://bucket/graph" in shown
    assert "canary" not in shown
