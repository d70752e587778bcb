"""The history of a run: a file for each writer, with one line of JSON for each event.

A line is written in one piece before the writer goes on, so a killed writer leaves a complete history, except perhaps
for its last line. Times come from the monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias, TypeVar

import msgspec

from omniray.coordinator.stress.operation import TypeName, Write
from omniray.engine.base.errors import InputError, OmnirayError

NOBODY = -1
"""The writer's number in events that no writer caused: disturbances from outside."""

UNTYPED = "untyped"
"""The kind of an exception that is no `OmnirayError`; it should never occur."""


Decoded = TypeVar("Decoded")


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at_ns: int
    writer: int


class Invoked(_Event, frozen=True, tag="invoke", kw_only=True):
    """A write is about to be sent."""

    write: Write

    @property
    def txn_id(self) -> str:
        return self.write.txn_id


class Succeeded(_Event, frozen=True, tag="ok", kw_only=True):
    """A write succeeded; without a commit id it had no effect."""

    txn_id: str
    commit_id: str | None
    nodes: int
    edges: int
    repeated: bool


class Failed(_Event, frozen=True, tag="fail", kw_only=True):
    """A write was refused, or could not be tried: it was reported as not committed."""

    txn_id: str
    kind: str
    retry: str
    message: str


class Unclear(_Event, frozen=True, tag="unknown", kw_only=True):
    """A write may or may not have landed."""

    txn_id: str
    kind: str
    message: str


class Read(_Event, frozen=True, tag="read", kw_only=True):
    """What a snapshot showed: the number of rows, and a digest of the rows found by each name."""

    began_ns: int
    commit_id: str
    names: tuple[str, ...]
    counts: dict[TypeName, int]
    digests: dict[TypeName, dict[str, str]]


class Unread(_Event, frozen=True, tag="unread", kw_only=True):
    """A snapshot could not be read."""

    kind: str
    retry: str
    message: str


class Disturbed(_Event, frozen=True, tag="disturb", kw_only=True):
    """The chaos killed a process or broke the store."""

    what: Literal["kill", "fault"]
    target: str


Event: TypeAlias = Invoked | Succeeded | Failed | Unclear | Read | Unread | Disturbed
Outcome: TypeAlias = Succeeded | Failed | Unclear

# Created here, by one thread: msgspec analyses a type on first use, and two threads that do so at once crash.
_decode = msgspec.json.Decoder(Event).decode


def line_of(event: msgspec.Struct) -> str:
    """The event as a line of a history."""
    return msgspec.json.encode(event).decode()


class HistoryFile:
    """The history that one writer appends to; each line is in the file when `append` returns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._file = Path(path).open("xb", buffering=0)  # noqa: SIM115 - closed by `__exit__`
        except FileExistsError as error:
            raise InputError(f"there is a history at {path} already: give every writer a file of its own") from error

    def append(self, event: msgspec.Struct) -> None:
        self._file.write(f"{line_of(event)}\n".encode())

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_history(path: str | os.PathLike[str]) -> list[Event]:
    """The events of one writer; a last line that its death cut off is left out."""
    return [decoded(_decode, line, where) for line, where in whole_lines(path)]


def whole_lines(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, str]]:
    """The lines of a history with their places; a last one that is cut off is left out."""
    *whole, _torn = Path(path).read_bytes().split(b"\n")
    return ((line, f"{path}, line {number}") for number, line in enumerate(whole, start=1))


def decoded(decode: Callable[[bytes], Decoded], line: bytes, where: str) -> Decoded:
    """The event of a line; raises `InputError` with its place if it is none."""
    try:
        return decode(line)
    except msgspec.DecodeError as error:
        raise InputError(f"{where} is not an event of a history: {error}; check what wrote to the file") from error


def merge_histories(histories: Iterable[Iterable[Event]]) -> tuple[Event, ...]:
    """The events of all writers in the order of time; the events of one writer keep their order."""
    return tuple(sorted((event for events in histories for event in events), key=lambda event: event.at_ns))


def named(error: BaseException) -> tuple[str, str]:
    """The kind of an error, and whether it may be retried."""
    return (error.kind, error.retry) if isinstance(error, OmnirayError) else (UNTYPED, "unknown")


def text_of(error: BaseException) -> str:
    """An error as a history tells it."""
    return str(error) if isinstance(error, OmnirayError) else f"{type(error).__name__}: {error}"
