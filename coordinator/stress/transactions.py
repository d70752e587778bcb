"""Transactions over lists: what a writer appends and reads at once, as the events that it records.

A list has a key and holds values in their order; no value is appended to a list twice, so that a read tells which
appends it saw. An event is one line of JSON in the writer's file (`history.py`), and one line of EDN when it is
exported (`edn.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from omniray.coordinator.stress.history import decoded, whole_lines
from omniray.engine.base.errors import InputError

Key: TypeAlias = int | str
Value: TypeAlias = int | str


class Append(msgspec.Struct, frozen=True, tag="append", array_like=True):
    """Put a value at the end of a list."""

    key: Key
    value: Value


class Read(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Read a whole list; its values are None until it was read."""

    key: Key
    values: tuple[Value, ...] | None = None


Micro: TypeAlias = Append | Read
"""One of the steps of a transaction, which all take effect at once."""

Kind: TypeAlias = Literal["invoke", "ok", "fail", "info"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A writer begins a transaction (`invoke`), or learns that it has (`ok`), has not (`fail`) or may have (`info`)."""

    event: Kind
    at_ns: int
    writer: int
    ops: tuple[Micro, ...]
    kind: str = ""
    retry: str = ""
    message: str = ""

    @property
    def appends(self) -> tuple[Append, ...]:
        return tuple(op for op in self.ops if isinstance(op, Append))

    @property
    def reads(self) -> tuple[Read, ...]:
        return tuple(op for op in self.ops if isinstance(op, Read))


# Created here, by one thread: msgspec analyses a type on first use, and two threads that do so at once crash.
_decode = msgspec.json.Decoder(Event).decode


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a writer sent, and what it was told; no completion if the writer died first."""

    invoked: Event
    completed: Event | None

    @property
    def writer(self) -> int:
        return self.invoked.writer

    @property
    def began_ns(self) -> float:
        return self.invoked.at_ns

    @property
    def ended_ns(self) -> float:
        return math.inf if self.completed is None else self.completed.at_ns

    @property
    def outcome(self) -> Kind:
        """`info`, if nobody knows what became of it."""
        return "info" if self.completed is None else self.completed.event

    @property
    def appends(self) -> tuple[Append, ...]:
        return self.invoked.appends

    @property
    def reads(self) -> tuple[Read, ...]:
        """The lists that it read; none unless it succeeded."""
        return self.completed.reads if self.completed is not None and self.outcome == "ok" else ()

    def __str__(self) -> str:
        told = self.invoked if self.completed is None else self.completed
        return f"writer {self.writer} {self.outcome} {msgspec.json.encode(told.ops).decode()}"


def read_transactions(path: str | os.PathLike[str]) -> list[Event]:
    """The events of one writer; a last line that its death cut off is left out."""
    return [decoded(_decode, line, where) for line, where in whole_lines(path)]


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events of all writers in the order of time.

    At the same moment all that begins comes before all that ends: what may have overlapped is not told as a sequence.
    """
    return sorted(events, key=lambda event: (event.at_ns, event.event != "invoke"))


def transactions_of(events: Iterable[Event]) -> list[Transaction]:
    """The transactions in the order in which they began; raises `InputError` if the events can't be those of a run."""
    begun: dict[int, Event] = {}
    found: list[Transaction] = []
    for event in in_order(events):
        invoked = begun.pop(event.writer, None)
        if event.event == "invoke":
            if invoked is not None:
                raise _unusable(event, "begins a transaction before its last one has ended")
            begun[event.writer] = event
        elif invoked is None:
            raise _unusable(event, "ends a transaction that it has not begun")
        else:
            found.append(Transaction(invoked, _matched(invoked, event)))
    found += [Transaction(invoked, None) for invoked in begun.values()]
    found.sort(key=lambda one: one.began_ns)
    _refuse_repeated_values(found)
    return found


def _matched(invoked: Event, completed: Event) -> Event:
    """The completion; refuses one of other operations than were begun, or of a read without its list."""
    if [_asked(op) for op in completed.ops] != [_asked(op) for op in invoked.ops]:
        raise _unusable(completed, "ends a transaction with other operations than it began with")
    if completed.event == "ok" and any(read.values is None for read in completed.reads):
        raise _unusable(completed, "has read a list and does not say what is in it")
    return completed


def _asked(op: Micro) -> Micro:
    return Read(op.key) if isinstance(op, Read) else op


def _refuse_repeated_values(transactions: Sequence[Transaction]) -> None:
    seen: set[Append] = set()
    for append in (append for one in transactions for append in one.appends):
        if append in seen:
            raise InputError(
                f"value {append.value!r} is appended to list {append.key!r} by two operations: "
                "a read could not tell which one it saw; give every append a value of its own"
            )
        seen.add(append)


def _unusable(event: Event, what: str) -> InputError:
    return InputError(
        f"writer {event.writer} {what}, at {event.at_ns} ns: record every writer under a number of its own"
    )
