"""The command line as tests call it: in this process, which is fast, or as a user's shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

import omniray
from omniray.coordinator.cli.app import app
from tests.stores import Root

TIMEOUT_S = 120


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The one JSON document on stderr."""
        return json.loads(self.err)["error"]


def omniray_command(*arguments: str | Path, stdin: bytes | str = b"") -> Answer:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    return Answer(result.exit_code, result.stdout, result.stderr)


def run(*arguments: str | Path, stdin: bytes | str = b"") -> Answer:
    """Run a command that must succeed."""
    answer = omniray_command(*arguments, stdin=stdin)
    assert answer.code == 0, answer.err
    return answer


def options_of(root: Root) -> list[str]:
    """The arguments with which a command reaches a root."""
    return [part for key, value in root.storage_options.items() for part in ("--storage-option", f"{key}={value}")]


def environment(**variables: str) -> dict[str, str]:
    """For a process of its own: it finds the package where this one found it."""
    package = Path(omniray.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": str(package), **variables}


def omniray_process(*arguments: str | Path, **variables: str) -> Answer:
    """Run a command as a process of its own."""
    command = [sys.executable, "-m", "omniray.coordinator.cli.app", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**variables))
    return Answer(done.returncode, done.stdout, done.stderr)
