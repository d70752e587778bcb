"""The reconciler of one branch: finishes behind the publisher what nobody has to wait for, and heals what others left.

It finishes Phase D, folds `__manifest`, recovers operations whose owners died while writers go on, and sweeps. It puts
nothing into the line: only the publisher does, so what is to be recorded goes through its mouth. Everything that it has
to do can be read from storage, so it may die at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from omniray.coordinator.actors.steps import Remark
from omniray.engine.base.errors import OmnirayError, StorageError, TableDrift
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.maintenance.sweep import OLDER_THAN_S, Sweeper, SweepReport
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore

log = logging.getLogger("omniray")

HEAL_EVERY_S = 5.0
SWEEP_EVERY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Finalised:
    """How far Phase D is, and the tables on which it can't go on."""

    through: int
    drifted: dict[str, TableDrift]


class Mouth:
    """The end of the line for somebody who may not put: its owner records what one asks it to."""

    def __init__(self, ask_newest: Callable[[], CommitObject], say: Callable[[Remark], None]) -> None:
        self._ask_newest, self._say = ask_newest, say
        self.newest = ask_newest()

    def refresh(self) -> CommitObject:
        self.newest = self._ask_newest()
        return self.newest

    def extend(self, build: Callable[[CommitObject], CommitObject | None]) -> CommitObject | None:
        """Have the owner record what `build` says; the number and all else about the object are the owner's."""
        said = build(self.refresh())
        if said is None:
            return None
        if said.epoch != self.newest.epoch:
            raise StorageError("only the owner of a line raises its epoch; it does when it begins")
        self._say(Remark(said.op_id, said.recoveries, said.swept_before_us))
        return self.refresh()


class Reconciler:
    """Heals one branch in the background, on behalf of the owner of its line."""

    def __init__(
        self,
        store: ObjectStore,
        schema: Schema,
        commit_log: CommitLog,
        manifest: Manifest,
        mouth: Mouth,
        *,
        grace_s: float,
    ) -> None:
        self._store, self._schema, self._log, self._manifest, self._mouth = store, schema, commit_log, manifest, mouth
        self._sidecars = Sidecars(store)
        self._finaliser = Finaliser(store, commit_log, manifest, self._sidecars)
        lineage = Lineage(commit_log, manifest, mouth.refresh)
        self._owner = mouth.newest.owner
        self._recoverer = Recoverer(store, self._sidecars, lineage, self._finaliser, owner=self._owner, grace_s=grace_s)
        self._ending = threading.Event()
        self._busy = threading.Lock()
        self.recovered = 0
        self._swept_at = time.monotonic()
        self._finaliser.notice(mouth.newest)
        for operation_id in self._recoverer.landed(mouth.newest):  # a reconciler before this one was told of them
            self._finaliser.notice(mouth.newest, operation_id)
        self._thread = threading.Thread(target=self._work, name="omniray-reconcile", daemon=True)
        self._thread.start()

    def notice(self, landed: CommitObject, operation_id: str) -> Finalised:
        """An object has landed: Phase D of it begins. Says how far that of those before it is."""
        self._log.keep(landed)
        self._finaliser.notice(landed, operation_id)
        return self.finalised()

    def finalised(self) -> Finalised:
        return Finalised(self._finaliser.finalised_through, self._finaliser.drifted())

    def flush(self) -> None:
        """Wait until Phase D of everything that has landed is through."""
        self._finaliser.notice(self._mouth.refresh())
        self._finaliser.flush()
        self._finaliser.tidy()

    def recover(self) -> RecoveryReport:
        """Recover every operation whose owner is gone."""
        with self._busy:
            report = self._recoverer.recover(self._mouth)
        self.recovered += len(report.rolled_forward) + len(report.rolled_back)
        return report

    def sweep(self, *, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete files that nothing refers to."""
        with self._busy:
            sweeper = Sweeper(
                self._store, self._log, self._mouth, self._manifest, self._finaliser, self._schema, self._owner
            )
            return sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=older_than_s, dry_run=dry_run)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        try:
            self._finaliser.close()
        finally:
            self._store.close()

    def _work(self) -> None:
        first = True
        while first or not self._ending.wait(HEAL_EVERY_S):
            first = False
            try:
                self.recover()
                if time.monotonic() - self._swept_at > SWEEP_EVERY_S:
                    self._swept_at = time.monotonic()
                    self.sweep()
            except OmnirayError as error:
                log.warning("event=reconcile_failed error=%s", error)
