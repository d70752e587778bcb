"""The tables of a branch as a load stages rows for them, before anything is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omniray.engine.schema.types import Schema
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Table
from omniray.engine.writes.lease import Lease


@dataclass(frozen=True, slots=True)
class StagingTables:
    """The tables of a branch, to stage rows for; `open` opens one at its newest version. `line` is the branch's."""

    schema: Schema
    storage: TableStorage
    open: Callable[[str], Table]
    new_lease: Callable[[], Lease]
    line: str = ""
