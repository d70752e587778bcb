"""The command-line arguments that several verbs share, and the parsing of their values.

A fault in the command line itself (`KEY=VALUE` without a `=`, parameters that are not JSON) is a usage error, exit 2; a
fault in a file that it names is bad input.
"""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from omniray.engine.base.errors import InputError

STDIN = "-"

Uri = Annotated[str, typer.Argument(metavar="URI", help="Where the graph is: a path, file://… or s3://bucket/prefix.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; errors as JSON on stderr.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the store, such as aws_endpoint=…; repeatable. Secrets are safer in AWS_… variables.",
    ),
]
Actor = Annotated[
    str, typer.Option(envvar="OMNIRAY_ACTOR", help="Who writes, for the history.  [default: your user name]")
]
Durability = Annotated[
    Literal["process", "power"],
    typer.Option(help="What a write on a disk survives: the death of the process, or a power cut too."),
]
TxnId = Annotated[
    str | None,
    typer.Option(
        metavar="ULID",
        help="An id of your own, under which the write is applied once however often it is repeated; 'omniray outcome' "
        "says what became of it.",
    ),
]
Branch = Annotated[str, typer.Option("--branch", metavar="B", help="The branch to work on.")]
Message = Annotated[str, typer.Option(metavar="TEXT", help="What is said about it, for the history.")]
At = Annotated[
    str | None, typer.Option(metavar="COMMIT|TIME", help="As of a commit id or a time (UTC if it has no zone).")
]


def examples(*lines: str) -> str:
    """An epilog whose line breaks are kept."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def actor_or_user(given: str) -> str:
    """The actor of a write: the given one, else the user who runs this process."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id that has no name
        return ""


def load_source(files: Sequence[str], format: str | None) -> tuple[str | list[str], str | None]:
    """The source to load, and its format if the name does not show it."""
    if STDIN not in files:
        return list(files), format
    if len(files) > 1:
        raise typer.BadParameter("'-' can't be combined with other files", param_hint="FILE")
    from omniray.engine.rows.source_files import STDIN_PATH

    return STDIN_PATH, format or "jsonl"


def read_text(path: str) -> str:
    """The whole text of a UTF-8 file, or of standard input for `-`."""
    from omniray.engine.rows.source_files import not_utf8, unreadable

    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    for number, line in enumerate(data.splitlines(), start=1):
        if reason := not_utf8(line):
            raise InputError(f"{path} line {number}: {reason}", source=path, line=number)
    return data.decode("utf-8-sig")


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` of a repeatable option."""
    pairs = {}
    for value in values or ():
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        pairs[key] = text
    return pairs


def expected_versions(values: Sequence[str] | None) -> dict[str, int]:
    """`TABLE_KEY=VERSION` of `--expect`."""
    versions = {}
    for key, text in pairs(values, "--expect").items():
        if not text.isdecimal():
            raise typer.BadParameter(
                f"{key}={text}: a version is a number, as 'omniray snapshot' shows it", param_hint="--expect"
            )
        versions[key] = int(text)
    return versions


def parameters(text: str) -> dict[str, Any]:
    """The JSON object of `--params`."""
    try:
        params = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--params") from error
    except RecursionError as error:
        raise typer.BadParameter("it is nested too deeply", param_hint="--params") from error
    if not isinstance(params, dict):
        raise typer.BadParameter('a JSON object is needed, such as {"name": "Ann"}', param_hint="--params")
    return params
