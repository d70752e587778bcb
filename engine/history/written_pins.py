"""The pins of all tables, written out in `__manifest` every `PINS_EVERY` numbers of the line.

So no search for a table's newest version, nor for the commit of a time, goes further back than to the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.history.lineage_entry import time_of
from omniray.engine.history.manifest_rows import has_any_id, has_id, new_row, version_row
from omniray.engine.line.commit_object import CommitObject

PINS_EVERY = 256  # numbers of the line
TIME_PROBES = 64

Select = Callable[..., pa.Table]
"""Selects rows of one version of the manifest: a condition, then the columns if not all."""


def is_due(seq: int) -> bool:
    """Whether all pins are written out at a number."""
    return seq % PINS_EVERY == 0


def last_place(seq: int) -> int:
    """The last number at or below this one at which all pins are written out; 0 if there is none."""
    return seq - seq % PINS_EVERY


def pins_row(obj: CommitObject) -> dict[str, Any]:
    """All pins as of a number."""
    pins = [version_row(key, pin, obj) for key, pin in obj.pins.items()]
    facts = {"commit_id": obj.head, "pins": pins}
    return new_row(_pins_id(obj.seq), "graph_pins", obj.seq, at=time_of(obj.head_at_us), metadata=facts)


def written_at(select: Select, seq: int) -> list[dict[str, Any]]:
    """The pins of all tables as they were written out at a number, as rows of their versions."""
    found = select(has_id(_pins_id(seq))).to_pylist()
    if not found:
        raise InvariantViolation(
            f"__manifest has no pins written out at {seq}; if something other than omniray wrote to it, "
            "restore it from a backup"
        )
    rows: list[dict[str, Any]] = json.loads(found[0]["metadata"])["pins"]
    return rows


def last_until(select: Select, folded_through: int, at: datetime) -> dict[str, Any] | None:
    """The last row of written-out pins that is not later than a time; each probe of some narrows it down."""
    last, low, high = None, 0, folded_through // PINS_EVERY
    while low < high:
        step = -(-(high - low) // TIME_PROBES)
        probes = {_pins_id(place * PINS_EVERY): place for place in range(low + 1, high + 1, step)}
        found = select(has_any_id(list(probes)), ["object_id", "seq", "at"]).to_pylist()
        rows = {probes[row["object_id"]]: row for row in found}
        if len(rows) < len(probes):
            raise InvariantViolation(
                "__manifest lacks pins that it should have; if something other than omniray wrote to it, "
                "restore it from a backup"
            )
        until = [place for place, row in rows.items() if row["at"] <= at]
        high = min((place - 1 for place in rows if place not in until), default=high)
        if until:
            low = max(until)
            last = rows[low]
    return last


def commit_id_in(select: Select, pins: dict[str, Any]) -> str:
    """The newest commit as of a row of written-out pins."""
    (found,) = select(has_id(pins["object_id"]), ["metadata"]).to_pylist()
    commit_id: str = json.loads(found["metadata"])["commit_id"]
    return commit_id


def _pins_id(seq: int) -> str:
    return f"graph_pins:{seq:020}"
