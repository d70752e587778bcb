"""Starts a coordinator's process in the background, and waits in its log until it serves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omniray.engine.base.errors import Unreachable

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
READ_EVERY_S = 0.1
LINES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Detached:
    """A coordinator's process in the background; `said` is its document, once it serves."""

    pid: int
    log: Path
    said: dict[str, Any]


def detach(command: Sequence[str], log: Path, timeout_s: float = START_TIMEOUT_S, *, stdin: bytes = b"") -> Detached:
    """Run a command in the background and wait for the JSON document that it writes when it serves.

    `stdin` is for its secrets: every user of the machine can read the arguments of a process. Raises `Unreachable` with
    the end of its log if it ends before that, or takes too long and is ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        begins = sink.tell()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, stderr=sink, start_new_session=True)
    try:
        _give(process, stdin)
        said = _wait_for_document(process, log, begins, timeout_s)
    except BaseException:
        _stop(process)
        raise
    if said.get("joined"):  # another process watches that coordinator already
        _stop(process)
    return Detached(process.pid, log, said)


def _give(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # its log says why it has ended
        pipe.write(stdin)


def log_of(graph_id: str) -> Path:
    """The log file of the background process that serves a graph."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "omniray", f"up-{graph_id}.log")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_document(process: subprocess.Popen[bytes], log: Path, begins: int, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        code = process.poll()
        lines = _lines(log, begins)
        if said := next(_documents(lines), None):
            return said
        if code is not None or time.monotonic() > deadline:
            what = f"gave no answer in {timeout_s:g} s" if code is None else f"ended with exit code {code}"
            shown = "".join(f"\n    {line}" for line in lines[-LINES_SHOWN:])
            raise Unreachable(f"the coordinator {what} before it served; {log} ends with:{shown}", log=str(log))
        time.sleep(READ_EVERY_S)


def _lines(log: Path, begins: int) -> list[str]:
    """The complete lines of the log since `begins`."""
    with log.open("rb") as source:
        source.seek(begins)
        return source.read().decode(errors="replace").rpartition("\n")[0].splitlines()


def _documents(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "epoch" in said:
            yield said
