"""A lease: a load announces that it stages data files, to which nothing refers until its commit has landed.

It is a sidecar of kind `Staging` for each staged table. A sweep spares the tables that a sidecar names, so the files
stay while the load runs; if the load's process dies, recovery deletes the lease and the sweep deletes the files. A
lease only keeps a load from being disturbed: `swept_before_us` ensures that no commit refers to swept files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.tables.storage import StagedRows
from omniray.engine.tables.table import Table

log = logging.getLogger("omniray")

UNANNOUNCED_US = -1
"""The time of files without a lease: before every sweep, also where there was none."""

_READ_AT_ONCE = 16


class Lease:
    """The lease of one load on one branch, whose newest object is `newest` or was recently.

    `refuse_gone` raises if the graph is not the one that the load was begun for.
    """

    def __init__(
        self, sidecars: Sidecars, newest: CommitObject, refuse_gone: Callable[[], None] = lambda: None
    ) -> None:
        self._sidecars, self._newest, self._refuse_gone = sidecars, newest, refuse_gone
        self._taken: list[str] = []

    def take(self, intent: SidecarIntent, table: Table) -> int:
        """Announce that files of the table are about to be staged; returns the time, by the store's clock.

        If this raises, no file may be staged.
        """
        self._refuse_gone()
        announced = SidecarTable(table.type.table_key, table.path, table.version, transaction_uuid="")
        sidecar = Sidecar.on(self._newest, new_ulid(), STAGING, this_process(), (intent,), (announced,))
        self._taken.append(sidecar.operation_id)  # first: a put that seems to have failed may have landed
        self._sidecars.put(sidecar)
        reach(Point.STAGE_AFTER_LEASE)
        return self._sidecars.dated_us(sidecar.operation_id)

    @property
    def taken(self) -> tuple[str, ...]:
        """The announced operations, for the process that releases them instead."""
        return tuple(self._taken)

    def adopt(self, taken: Iterable[str]) -> None:
        """Release these too: operations that a worker announced for a part of the load."""
        self._taken.extend(taken)

    def release(self) -> None:
        """Delete the sidecars when the load has ended; one that can't be deleted now is left to recovery."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            self._sidecars.delete(taken)
        except StorageError as error:
            log.warning("event=lease_kept line=%s ops=%s error=%s", self._newest.line, ",".join(taken), error)


def as_announced(
    tables: Mapping[str, TableWrite], commit_id: str, sidecars: Sidecars, base: CommitObject
) -> dict[str, TableWrite]:
    """A load's writes, its files staged no later than its leases were put; without a lease they may be of any time.

    A client says itself when it staged them: believed, its word would take them past every sweep.
    """
    announced = dict(tables)
    staged = {key: write.rows for key, write in tables.items() if isinstance(write.rows, StagedRows)}
    paths = {base.pins[key].path for key, rows in staged.items() if rows.fragments}
    leases = _newest_leases(paths, commit_id, sidecars, base.line) if paths else {}
    for key, rows in staged.items():
        if (path := base.pins[key].path) in paths:
            dated_us = sidecars.dated_us(leases[path]) if path in leases else UNANNOUNCED_US
            dated = replace(rows, staged_since_us=min(rows.staged_since_us, dated_us))
            announced[key] = replace(tables[key], rows=dated)
    return announced


def _newest_leases(paths: set[str], commit_id: str, sidecars: Sidecars, line: str) -> dict[str, str]:
    """By the path of a table: the newest lease of a load that names it. No more sidecars are read than it takes."""
    found: dict[str, str] = {}
    listed = sidecars.listed()
    while listed and paths - found.keys():
        listed, some = listed[:-_READ_AT_ONCE], listed[-_READ_AT_ONCE:]
        for sidecar in sorted(sidecars.read_all(some), key=lambda one: one.operation_id, reverse=True):
            if sidecar.kind == STAGING and sidecar.line == line and _is_of(sidecar, commit_id):
                for path in paths.intersection(table.table_path for table in sidecar.tables):
                    found.setdefault(path, sidecar.operation_id)
    return found


def _is_of(sidecar: Sidecar, commit_id: str) -> bool:
    return any(intent.commit_id == commit_id for intent in sidecar.intents)
