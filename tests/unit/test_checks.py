"""What runs by itself, in continuous integration and before a commit, are the targets that one calls by hand."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.source import REPOSITORY

WORKFLOW, HOOKS = ".github/workflows/test.yml", ".pre-commit-config.yaml"
EXPECTED = {WORKFLOW: {"lint", "typecheck", "unit", "test"}, HOOKS: {"lint", "typecheck", "unit"}}


def targets() -> set[str]:
    """What the Makefile can make."""
    return set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))


def called(path: str) -> list[str]:
    """Each command that a file has run."""
    document = yaml.safe_load((REPOSITORY / path).read_text())
    if path == HOOKS:
        return [hook["entry"] for repo in document["repos"] for hook in repo["hooks"]]
    return [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]


def strangers(commands: list[str]) -> list[str]:
    """The commands that are no target of the Makefile."""
    named = {command: re.fullmatch(r"make ([a-z-]+)( JOBS=\d+)?", command) for command in commands}
    return [command for command, match in named.items() if match is None or match[1] not in targets()]


@pytest.mark.parametrize("path", EXPECTED)
def test_checks_call_the_targets_of_the_makefile_and_nothing_else(path: str) -> None:
    assert strangers(called(path)) == []
    assert {command.split()[1] for command in called(path)} == EXPECTED[path]


@pytest.mark.parametrize("command", ["make lin", "ruff check .", "make unit ARGS=-x"])
def test_a_check_of_its_own_would_be_found(command: str) -> None:
    assert strangers([command]) == [command]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documents_name_targets_that_there_are(document: str) -> None:
    shown = set(re.findall(r"(?:^    |`)make ([a-z-]+)", (REPOSITORY / document).read_text(), flags=re.MULTILINE))
    assert "test" in shown
    assert shown <= targets()
