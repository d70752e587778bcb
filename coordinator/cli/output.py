"""The output of a command-line verb: results on stdout, everything else on stderr, and the exit code.

A result is rich tables and lines for a person, or one JSON document with `--json`. An error is one line (a parse error
has the place below it), or with `--json` one document `{"error": {kind, retry, message, …facts}}`. Errors of omniray
carry their exit code; any other error is a bug, exit 1, whose traceback `OMNIRAY_DEBUG=1` shows. The engine's log is
for programs: a person gets a note on stderr about what matters, and sees the log's lines with `OMNIRAY_DEBUG=1` only.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

import omniray
from omniray.coordinator.cli.arguments import pairs
from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.printable import printable, printable_json

if TYPE_CHECKING:  # rich is imported when a table is drawn: `--help` does not need it
    from rich.console import Console
    from rich.table import Table

    from omniray import Client, Graph
    from omniray.engine.recovery.recoverer import RecoveryReport

BUG = 1
INTERRUPTED = 130
READER_GONE = 141  # what a shell reports for a tool whose reader closed the pipe
ROWS_SHOWN_MAX = 1000
UNLIMITED_COLUMNS = 100_000
_UNHEARD = logging.NullHandler()  # without a handler, Python would write warnings to stderr

Writable: TypeAlias = "Graph | Client"
Progress = Callable[[Any, int], None]
Redraw = Callable[[Sequence[str], Sequence[Sequence[Any]]], None]


@contextmanager
def reporting(as_json: bool) -> Iterator[Output]:
    """Carry out a verb and report its errors; exits with the code of the error that was raised inside."""
    if not os.environ.get("OMNIRAY_DEBUG"):
        logging.getLogger("omniray").addHandler(_UNHEARD)
    try:
        yield Output(as_json)
        sys.stdout.flush()
    except OmnirayError as error:
        _tell(error.message, error.as_json(), as_json)
        raise typer.Exit(error.exit_code) from error
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(READER_GONE) from None
    except KeyboardInterrupt:
        message = (
            "interrupted; whether a write was committed shows 'omniray history', or 'omniray outcome' by its --txn-id"
        )
        _tell(message, {"kind": "interrupted", "retry": "unknown", "message": message}, as_json)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("OMNIRAY_DEBUG"):
            raise
        reason = str(error).strip().partition("\n")[0]
        message = f"this is a bug in omniray: {type(error).__name__}: {reason}; OMNIRAY_DEBUG=1 shows where"
        _tell(message, {"kind": "bug", "retry": "unknown", "message": message}, as_json)
        raise typer.Exit(BUG) from error


@contextmanager
def opening(
    out: Output, uri: str, options: Mapping[str, str], *, branch: str = "main", durability: str = "process"
) -> Iterator[Graph]:
    """An open graph, with a note of what was recovered when it was opened."""
    with omniray.open(uri, branch=branch, storage_options=options, durability=durability) as graph:
        for text in _healed(graph.recovered):
            out.note(text)
        yield graph


@contextmanager
def writing(
    out: Output, uri: str, options: Mapping[str, str], *, durability: str = "process", tells: bool = True
) -> Iterator[Writable]:
    """A graph to write to: itself, or a client of the coordinator that serves it.

    `tells`: whether there is a note of what was recovered when it was opened.
    """
    with (opening if tells else _silently)(out, uri, options, durability=durability) as graph:
        if not graph.served:
            yield graph
            return
        with coordinated(uri, options, durability=durability) as client:
            yield client


def _silently(_: Output, uri: str, options: Mapping[str, str], *, durability: str) -> Graph:
    return omniray.open(uri, storage_options=options, durability=durability)


def coordinated(uri: str, options: Mapping[str, str], *, durability: str = "process") -> Client:
    """A client of the coordinator that serves a graph."""
    from omniray.coordinator.client.client import connect_to_serving

    return connect_to_serving(uri, options, durability=durability)


@contextmanager
def reading(
    uri: str, storage_option: list[str] | None, as_json: bool, *, branch: str = "main"
) -> Iterator[tuple[Output, Graph]]:
    """An open graph, with errors reported. Nothing is written, except to recover operations of dead writers."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, opening(out, uri, options, branch=branch) as graph:
        yield out, graph


class Output:
    """Writes a verb's result, as text or as JSON; each method writes it once."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def line(self, text: str, document: Any) -> None:
        """A result in one sentence."""
        if self.as_json:
            _write(_json(document))
        else:
            _write(f"{printable(text)}\n".encode())

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], document: Any) -> None:
        """A result with rows; `document` is what `--json` shows of it."""
        if self.as_json:
            _write(_json(document))
        else:
            _draw(title, columns, list(rows))

    @contextmanager
    def live_table(self) -> Iterator[Redraw]:
        """A table that is redrawn in place; without a terminal, each one is drawn below the last."""
        from rich.live import Live

        console = _console()
        if not console.is_terminal:
            yield lambda columns, rows: console.print(_drawn(columns, rows))
            return
        with Live(console=console, auto_refresh=False) as live:
            yield lambda columns, rows: live.update(_drawn(columns, rows), refresh=True)

    def note(self, text: str) -> None:
        """A note for a person, on stderr; not written with `--json`."""
        if not self.as_json:
            typer.echo(f"note: {printable(text)}", err=True)

    def raw(self, chunks: Iterable[bytes]) -> None:
        """A result of raw bytes, such as an export, written chunk by chunk."""
        on_terminal = sys.stdout.isatty()
        for chunk in chunks:
            sys.stdout.buffer.write(_escaped(chunk) if on_terminal else chunk)
        sys.stdout.buffer.flush()

    @contextmanager
    def progress_bar(self) -> Iterator[Progress | None]:
        """A progress bar while a load reads its files; None without a terminal."""
        if self.as_json or not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), DownloadColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=None)

            def advance(source: Any, records: int) -> None:
                total = source.bytes_total
                bar.update(task, description=f"{records:,} records", completed=source.bytes_done, total=total)

            yield advance


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _healed(report: RecoveryReport) -> Iterator[str]:
    """Notes on the operations of dead writers: recovered when the graph was opened, or not."""
    done = []
    if report.rolled_forward:
        done.append(f"{counted(len(report.rolled_forward), 'committed write')} finished")
    if report.rolled_back:
        done.append(f"{counted(len(report.rolled_back), 'uncommitted write')} cleared away")
    if done:
        yield f"healed after writers that died: {', '.join(done)}; 'omniray recoveries' lists what was done"
    if report.awaiting_repair:
        waiting = counted(len(report.awaiting_repair), "write")
        yield f"{waiting} can't be finished, since something else wrote to a table; 'omniray repair' shows what"


def _tell(message: str, document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(_json({"error": document}), err=True, nl=False)
    else:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(printable(message), err=True)


def _json(document: Any) -> bytes:
    """One document, indented where a person reads it and on one line where a program does."""
    import msgspec

    encoded = msgspec.json.encode(document, enc_hook=str)
    return (_escaped(msgspec.json.format(encoded, indent=2)) if sys.stdout.isatty() else encoded) + b"\n"


def _escaped(document: bytes) -> bytes:
    return printable_json(document.decode(errors="backslashreplace")).encode()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(columns):
        values = [row[index] for row in rows if row[index] is not None]
        numbers = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(printable(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows[:ROWS_SHOWN_MAX]:
        table.add_row(*(_cell(value) for value in row))
    return table


def _draw(title: str, columns: Sequence[str], rows: list[Sequence[Any]]) -> None:
    console = _console()
    if title:
        console.print(printable(title), soft_wrap=True)
    console.print(_drawn(columns, rows))
    if len(rows) > ROWS_SHOWN_MAX:
        console.print(f"{len(rows) - ROWS_SHOWN_MAX:,} more rows are not shown; --json shows all", soft_wrap=True)


def _console() -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit 1, the code for bugs; `reporting` handles this error

    # Cells are data, not markup. Output to a pipe is not cut, since there is no window to fit.
    width = None if sys.stdout.isatty() else UNLIMITED_COLUMNS
    return PipeConsole(markup=False, emoji=False, highlight=False, width=width)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return printable(value)
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
        case bytes():
            return f"<{counted(len(value), 'byte')}>"
        case list() | dict():
            return printable(json.dumps(value, default=str, ensure_ascii=False))
        case _:
            return printable(str(value))
