"""What the documents show really runs, and prints what they say it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from omniray.coordinator.cli.app import app
from omniray.engine.base.errors import Conflict, InputError, RecoveryRequired, StorageError
from tests.commands import TIMEOUT_S, environment
from tests.source import REPOSITORY, relative

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/*.md")])


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a document in one language."""
    text = (REPOSITORY / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def promised(code: str) -> list[str]:
    """The lines that a block says it prints."""
    return re.findall(r"# prints: (.*)$", code, flags=re.MULTILINE)


def finish(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command to its end in a folder; gives what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/branches.md"])
def test_the_python_of_a_document_runs_and_prints_what_it_says(document: str, tmp_path: Path) -> None:
    code = "\n".join(blocks(document, "python"))
    assert finish([sys.executable, "-W", "error::DeprecationWarning", "-c", code], tmp_path).splitlines() == promised(
        code
    )
    assert promised(code) != []


def test_the_first_session_of_the_command_line_runs(tmp_path: Path) -> None:
    (script,) = blocks("docs/cli.md", "sh")
    output = finish(
        ["bash", "-euo", "pipefail", "-c", script], tmp_path, PATH=f"{command_folder(tmp_path)}:{os.environ['PATH']}"
    )
    lines = [line.split() for line in output.splitlines()]
    assert ["Ann", "42"] in lines
    assert [line[3] for line in lines if "Mutation" in line or "Load" in line] == ["Mutation", "Load"]
    assert len((tmp_path / "backup.jsonl").read_text().splitlines()) == 3


def command_folder(tmp_path: Path) -> Path:
    """A folder with an `omniray` that runs this source: the installed one may be another."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "omniray"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m omniray.coordinator.cli.app "$@"\n')
    command.chmod(0o755)
    return folder


def test_the_reference_of_the_command_line_has_every_verb_and_no_other() -> None:
    table = re.findall(
        r"^\| `([a-z]+(?: show| plan| lint| run)?)", (REPOSITORY / "docs/cli.md").read_text(), flags=re.MULTILINE
    )
    command = typer.main.get_command(app)
    schema = {"schema show", "schema plan", "schema lint"}
    verbs = set(command.commands) - {"schema", "pipeline"} | {*schema, "pipeline run"}  # type: ignore[attr-defined]
    assert set(table) == verbs


def test_documented_exit_codes_are_those_of_the_errors() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([a-z ]+)", (REPOSITORY / "docs/cli.md").read_text(), flags=re.MULTILINE))
    expected = {
        InputError: "bad input",
        Conflict: "conflict",
        StorageError: "storage",
        RecoveryRequired: "recovery required",
    }
    assert {code: text.strip() for code, text in rows.items() if code in "3456"} == {
        str(error.exit_code): text for error, text in expected.items()
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_demo_shows_what_it_promises_without_a_terminal(tmp_path: Path) -> None:
    """The demo checks every outcome itself, and ends otherwise."""
    output = finish([sys.executable, "-m", "omniray.coordinator.demo.writers"], tmp_path)
    assert "none of the 7 writers that lived noticed anything but a pause" in output
    assert "What was shown" in output
