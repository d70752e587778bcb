"""Whatever message or document tells a user to run, the command line has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from omniray.coordinator.cli.app import app
from tests.source import REPOSITORY, python_files, relative

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/*.md")])
SOURCES = python_files("engine", "workers", "coordinator")
VERBS = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
NAMED = re.compile(r"(?:^|['`(|])\s*omniray ([a-z]+)", re.MULTILINE)


def literals(source: str) -> Iterator[str]:
    """The texts of a module that may reach a user: every string but the docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def commands(document: str) -> Iterator[str]:
    """The parts of a document that may be typed: code between backticks, and blocks of it."""
    yield from re.findall(r"^```(?:sh)?\n(.*?)^```$", document, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`[^`\n]+`", document)
    yield from re.findall(r"^    .+$", document, flags=re.MULTILINE)


def unknown(texts: Iterator[str]) -> set[str]:
    return {verb for text in texts for verb in NAMED.findall(text)} - VERBS


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_message_names_only_verbs_that_exist(path: Path) -> None:
    assert unknown(literals(path.read_text())) == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_a_document_names_only_verbs_that_exist(path: Path) -> None:
    assert unknown(commands(path.read_text())) == set()


def test_the_walker_finds_a_planted_verb() -> None:
    planted = """raise Error(f"{x} is broken; run 'omniray mend', or the omniray that wrote it")"""
    assert unknown(literals(planted)) == {"mend"}
    assert unknown(commands("omniray is fine; `omniray fly` and\n\n    omniray export A | omniray walk B\n")) == {
        "fly",
        "walk",
    }
