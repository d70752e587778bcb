"""The lease of a merge: it announces what the merge reads and stages, so that neither a sweep nor a clean-up takes it.

Lease first, then look: whoever cleans up announces in main's line what is going before it lists the leases. So a merge
that has put its lease, and then finds nothing that it needs announced as going, keeps it all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from omniray.engine.base.errors import Expired, StorageError
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.states import LineState
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarIntent, Sidecars, SidecarTable

log = logging.getLogger("omniray")


class MergeLease:
    """A lease on all tables of some states, of the epoch that the target has now: with another epoch it may be gone."""

    def __init__(
        self, sidecars: Sidecars, intent: SidecarIntent, target: CommitObject, states: Iterable[LineState]
    ) -> None:
        self._sidecars, self.epoch = sidecars, target.epoch
        self._states = tuple(states)
        tables = {
            (key, pin.path): SidecarTable(key, pin.path, target.pins[key].version, transaction_uuid="")
            for state in self._states
            for key, pin in state.pins.items()
            if key in target.pins
        }
        self._sidecar = Sidecar.on(target, new_ulid(), STAGING, this_process(), (intent,), tables.values())
        self._since_us: int | None = None
        sidecars.put(self._sidecar)

    @property
    def since_us(self) -> int:
        """When it was put, by the store's clock: no file of the merge is older."""
        if self._since_us is None:
            self._since_us = self._sidecars.dated_us(self._sidecar.operation_id)
        return self._since_us

    def refuse_going(self, main: CommitObject) -> None:
        """Raise if something that the merge needs was announced as going; `main` was read after the lease was put."""
        for state in self._states:
            if state.place.line in main.going:
                raise Expired(
                    f"the branch with the id {state.place.line} was deleted and is being cleaned up: what it had at "
                    f"{state.place.seq} can't be merged any more",
                    line=state.place.line,
                )
            for key, pin in state.pins.items():
                if pin.line == main.line and pin.version < main.horizons.get(key, 0):
                    raise Expired(
                        f"{key} version {pin.version}, which the merge needs, is being cleaned up", table_key=key
                    )

    def release(self) -> None:
        """Delete it when the merge has ended; one that can't be deleted now is left to recovery."""
        try:
            self._sidecars.delete([self._sidecar.operation_id])
        except StorageError as error:
            log.warning("event=lease_kept op=%s error=%s", self._sidecar.operation_id, error)
