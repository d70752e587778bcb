"""What an operation does to one table: the cases that the commit kernel knows.

A new kind of writer adds a case here and its staging in `staging.py`, and no second path.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TypeAlias

from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.line.sidecar import SidecarTable
from omniray.engine.tables.storage import EmptyVersion, StagedRows


@dataclass(frozen=True, slots=True)
class Restore:
    """The table gets the rows of another pinned version, of this line or another.

    They become the version after the pinned one or, where a foreign writer went beyond it, after its final version
    `head`.
    """

    source: Pin
    head: int | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """The graph takes over a foreign writer's version, which is there already under its final name."""

    version: int
    transaction: str
    rows: int


@dataclass(frozen=True, slots=True)
class Create:
    """The table is created, empty."""

    table_id: str
    path: str
    first: EmptyVersion


TableChange: TypeAlias = TableWrite | Restore | Adopt | Create


def announced(base: CommitObject, table_key: str, change: TableChange) -> SidecarTable:
    """The change as its sidecar announces it: the version that it builds on, its transaction and its files."""
    match change:
        case TableWrite(rows=rows):
            files = rows.files if isinstance(rows, StagedRows) else ()
            pin = base.pins[table_key]
            return SidecarTable(table_key, pin.path, pin.version, str(uuid.uuid4()), files)
        case Restore(head=head):
            pin = base.pins[table_key]
            return SidecarTable(table_key, pin.path, pin.version if head is None else head, str(uuid.uuid4()))
        case Adopt(version=version, transaction=transaction):
            return SidecarTable(table_key, base.pins[table_key].path, version - 1, transaction)
        case Create(path=path, first=first):
            return SidecarTable(table_key, path, 0, first.transaction)
