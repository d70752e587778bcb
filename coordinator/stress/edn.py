"""A history of transactions as EDN: one line per event, in the form that Elle reads and a model for Porcupine can.

Pure. Every process ends each transaction that it begins, and ends its life with one whose outcome is unknown: its
writer goes on as another process, as Jepsen has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec

from omniray.coordinator.stress.transactions import Append, Event, Key, Micro, Value, in_order, transactions_of


def edn_lines(events: Iterable[Event]) -> Iterator[str]:
    """The events of all writers as lines of EDN, in the order of time and numbered from 0.

    Raises `InputError` if they can't be those of a run. A transaction that its writer's death left open ends with an
    `:info` at the end.
    """
    ordered = in_order(events)
    left_open = [one.invoked for one in transactions_of(ordered) if one.completed is None]
    ordered += [msgspec.structs.replace(event, event="info", at_ns=ordered[-1].at_ns) for event in left_open]
    writers = 1 + max((event.writer for event in ordered), default=0)
    lives: dict[int, int] = {}
    for index, event in enumerate(ordered):
        process = event.writer + lives.get(event.writer, 0) * writers
        yield _line(event, process, index)
        if event.event == "info":
            lives[event.writer] = lives.get(event.writer, 0) + 1


def _line(event: Event, process: int, index: int) -> str:
    value = " ".join(map(_micro, event.ops))
    return (
        f"{{:type :{event.event}, :f :txn, :value [{value}], :process {process}, :time {event.at_ns}, :index {index}}}"
    )


def _micro(op: Micro) -> str:
    if isinstance(op, Append):
        return f"[:append {_atom(op.key)} {_atom(op.value)}]"
    if op.values is None:
        return f"[:r {_atom(op.key)} nil]"
    return f"[:r {_atom(op.key)} [{' '.join(map(_atom, op.values))}]]"


def _atom(value: Key | Value) -> str:
    """A number, or a text with the escapes that JSON and EDN share."""
    return str(value) if isinstance(value, int) else json.dumps(value)
