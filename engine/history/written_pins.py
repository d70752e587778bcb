"""The pins of all tables, written out in `__manifest` every `PINS_EVERY` numbers of the line.

So no search for a table's newest version goes further back than to the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.history.lineage_entry import time_of
from omniray.engine.history.manifest_rows import has_id, new_row, version_row
from omniray.engine.line.commit_object import CommitObject

PINS_EVERY = 256  # numbers of the line

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


def _pins_id(seq: int) -> str:
    return f"graph_pins:{seq:020}"
