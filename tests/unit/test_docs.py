"""What the documents name is there: files, guards in the code, and the errors with their codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate

import pytest

from omniray.engine.base import errors
from omniray.engine.base.errors import OmnirayError
from tests.source import REPOSITORY, relative

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/*.md")])
FOLDERS = "engine|coordinator|workers|tests|bench|deploy|examples|src"
PATH = re.compile(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w-]+(?:[/.][\w-]+)*")
MODULE_FILE = re.compile(r"`([^`\s]+\.py)`")
DOTTED = re.compile(r"`((?:engine|coordinator|workers)\.[\w.]+)`")
ERROR_ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| (\d) \| (\d{3}) \|", flags=re.MULTILINE)


def missing_files(text: str) -> list[str]:
    """The files that a text names and that the repository does not have, by their paths from its root."""
    named = {*PATH.findall(text), *MODULE_FILE.findall(text)}
    return sorted(path for path in named if not (REPOSITORY / path).exists())


def missing_names(text: str) -> list[str]:
    """The modules, classes and functions that a text names, `engine.line.prune.prune`, and that are not there."""
    return sorted(name for name in set(DOTTED.findall(text)) if locate(f"omniray.{name}") is None)


def all_errors(root: type[OmnirayError] = OmnirayError) -> Iterator[type[OmnirayError]]:
    for error in root.__subclasses__():
        if error.__module__ == errors.__name__:
            yield error
            yield from all_errors(error)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    assert missing_files(document.read_text()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_name_in_the_code_that_a_document_names_is_there(document: Path) -> None:
    assert missing_names(document.read_text()) == []


@pytest.mark.parametrize(
    "text", ["`engine/swap.py`", "in tests/unit/test_gone.py:", "`wire.py`", "(engine/tables/gone)"]
)
def test_the_walker_finds_a_planted_file(text: str) -> None:
    assert missing_files(text) != []


@pytest.mark.parametrize("text", ["`engine.line.prune.gone`", "`engine.heal.Recoverer`"])
def test_the_walker_finds_a_planted_name(text: str) -> None:
    assert missing_names(text) != []


def test_the_walker_lets_what_is_there_pass() -> None:
    text = "`engine/line/prune.py`, tests/unit, https://host/engine/gone; `engine.line.prune.prune`"
    assert (missing_files(text), missing_names(text)) == ([], [])


def test_the_table_of_errors_is_the_tree_of_errors() -> None:
    found = ERROR_ROW.findall((REPOSITORY / "docs/python.md").read_text())
    expected = [(e.__name__, e.kind, e.retry, str(e.exit_code), str(e.http_status)) for e in all_errors()]
    assert sorted(found) == sorted(expected)
