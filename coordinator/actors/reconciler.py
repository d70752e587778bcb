"""The reconciler of one line: finishes Phase D, recovers and sweeps in the background, while the publisher goes on.

It folds `__manifest` and recovers operations whose writers died. It puts nothing into the line: it forwards what is to
be recorded to the publisher, which owns the line. All of its work can be read from storage, so it may die at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from omniray.engine.base.errors import BranchGone, OmnirayError, StorageError, TableDrift
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject, Remark
from omniray.engine.maintenance.barrier import EndOf, nobody_owns
from omniray.engine.maintenance.sweep import OLDER_THAN_S, Sweeper, SweepReport
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport

log = logging.getLogger("omniray")

HEAL_EVERY_S = 5.0
HEAL_BRANCH_EVERY_S = 30.0  # many may be served, and each look lists all sidecars
SWEEP_EVERY_S = 24 * 3600.0


class NotServed(StorageError):
    """The publisher's process does not serve the line, or not any more."""


@dataclass(frozen=True, slots=True)
class Finalised:
    """The number up to which Phase D is finished, and the tables that block it because they drifted."""

    through: int
    drifted: dict[str, TableDrift]


class OwnersEnd:
    """The end of a line for a process that may not put: it forwards what is to be recorded to the line's owner."""

    def __init__(self, ask_newest: Callable[[], CommitObject], forward: Callable[[Remark], None]) -> None:
        self._ask_newest, self._forward = ask_newest, forward
        self.newest = ask_newest()

    def refresh(self) -> CommitObject:
        self.newest = self._ask_newest()
        return self.newest

    def record(self, build: Callable[[CommitObject], Remark | None]) -> CommitObject | None:
        """Have the owner record the remark that `build` returns; the owner makes the object."""
        remark = build(self.refresh())
        if remark is None:
            return None
        self._forward(remark)
        return self.refresh()

    def raise_epoch(self, above: int, owner: str) -> None:
        if self.refresh().epoch <= above:
            raise StorageError("only the owner of a line raises its epoch; it does when it begins")


class Reconciler:
    """Finishes and recovers one line in the background, on behalf of its owner; that of main sweeps the graph, too.

    It stops by itself, and says so by `on_not_served`, when the publisher does not serve the line any more. That of
    main says by `on_left` on which other lines a dead writer has left something.
    """

    def __init__(
        self,
        branch: OpenBranch,
        end: OwnersEnd,
        *,
        grace_s: float,
        on_not_served: Callable[[Reconciler], None] = lambda reconciler: None,
        on_left: Callable[[str], None] = lambda line: None,
        end_of: EndOf = nobody_owns,
    ) -> None:
        self._branch, self._end, self._end_of = branch, end, end_of
        self._on_not_served, self._on_left = on_not_served, on_left
        self._finaliser = Finaliser(branch)
        self._owner = end.newest.owner
        self._recoverer = Recoverer(branch, self._finaliser, owner=self._owner, grace_s=grace_s)
        self._ending = threading.Event()
        self._busy = threading.Lock()
        self.recovered = 0
        self.trouble = ""  # the error that ended the last recovery, if any
        self._swept_at = time.monotonic()
        self._finaliser.notice(end.newest)
        for operation_id, seq in self._recoverer.landed(end.newest).items():  # an earlier reconciler was told of them
            self._finaliser.delete_once_finished(operation_id, seq)
        self._thread = threading.Thread(target=self._work, name="omniray-reconcile", daemon=True)
        self._thread.start()

    def serves(self, newest: CommitObject) -> bool:
        """Whether it works for the owner of the line."""
        return newest.owner == self._owner

    def notice(self, landed: CommitObject, operation_id: str) -> Finalised:
        """Begin Phase D of an object that has landed; returns how far Phase D is."""
        self._branch.log.keep(landed)
        self._finaliser.notice(landed, operation_id)
        return self.finalised()

    def finalised(self) -> Finalised:
        return Finalised(self._finaliser.finalised_through, self._finaliser.drifted())

    def flush(self) -> None:
        """Wait until Phase D of everything that has landed is finished."""
        self._finaliser.notice(self._end.refresh())
        self._finaliser.flush()
        self._finaliser.tidy()

    def recover(self, grace_s: float | None = None) -> RecoveryReport:
        """Recover every operation on this line whose writer is dead, or silent for `grace_s`."""
        with self._busy:
            report = self._recoverer.recover(self._end, grace_s)
        self.recovered += len(report.rolled_forward) + len(report.rolled_back)
        return report

    def left_elsewhere(self, grace_s: float | None = None) -> set[str]:
        """The lines of other branches on which a dead writer has left something."""
        return self._recoverer.left_elsewhere(grace_s)

    def sweep(self, *, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete files that nothing refers to."""
        with self._busy:
            sweeper = Sweeper(self._branch, self._end, self._finaliser, self._owner, self._end_of)
            return sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=older_than_s, dry_run=dry_run)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._finaliser.close()

    def _work(self) -> None:
        is_main = self._branch.branch.is_main
        every_s = HEAL_EVERY_S if is_main else HEAL_BRANCH_EVERY_S
        first = True
        while first or not self._ending.wait(every_s):
            first = False
            try:
                if not is_main:
                    self._end.refresh()  # a publisher that died does not say that it has let the line go
                self.recover()
                for line in self.left_elsewhere() if is_main else ():
                    self._on_left(line)
                if is_main and time.monotonic() - self._swept_at > SWEEP_EVERY_S:
                    self._swept_at = time.monotonic()
                    self.sweep()
                self.trouble = ""
            except (NotServed, BranchGone) as error:
                log.info("event=reconciler_ends line=%s reason=%s", self._branch.branch.ulid, error)
                self._on_not_served(self)
                return
            except OmnirayError as error:
                self.trouble = f"{error.kind}: {error}"
                log.warning("event=reconcile_failed error=%s", error)
            except Exception as error:  # a bug must not end the recoveries; `status` shows it
                self.trouble = f"a bug in omniray: {error!r}"
                log.exception("event=reconcile_failed")
