"""A lease: a load announces that it stages data files, to which nothing refers until its commit has landed.

It is a sidecar of kind `Staging` for each staged table. A sweep spares the tables that a sidecar names, so the files
stay while the load runs; if the load's process dies, recovery deletes the lease and the sweep deletes the files. A
lease only keeps a load from being disturbed: `swept_before_us` ensures that no commit refers to swept files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.tables.table import Table

log = logging.getLogger("omniray")


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
