"""The reconciler's Ray actor, and the handle by which the publisher calls it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from omniray.coordinator.actors.actor import AWAY_PAUSE_S, CALL_TIMEOUT_S, create, first_line
from omniray.coordinator.actors.cluster import Place, Storage, end, find, ray
from omniray.coordinator.actors.reconciler import Finalised, OwnersEnd, Reconciler
from omniray.engine.base.errors import GraphGone, OmnirayError, StorageError
from omniray.engine.line.commit_json import decode, encode
from omniray.engine.line.commit_object import CommitObject, Remark
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.recovery.recoverer import GRACE_S, RecoveryReport

log = logging.getLogger("omniray")

REPORT_TIMEOUT_S = 5.0


class ReconcilerActor:
    """Runs the reconciler of one publisher."""

    def __init__(self, place: Place, storage: Storage) -> None:
        self._place, self._storage = place, storage
        self._turn = threading.Lock()
        self._reconciler, self._owner = self._begin()

    def notice(self, data: bytes, operation_id: str) -> Finalised:
        """Begin Phase D of an object, in the form that it has in the line: Ray would pickle each of its commits."""
        landed = decode(data, where="a landed object")
        return self._behind(landed).notice(landed, operation_id)

    def flush(self) -> Finalised:
        reconciler = self._behind(self._ask_newest())
        reconciler.flush()
        return reconciler.finalised()

    def recover(self) -> RecoveryReport:
        return self._behind(self._ask_newest()).recover()

    def report(self) -> tuple[Finalised, int, str]:
        """How far Phase D is, how many operations were recovered, and the error that stops recovery, if any."""
        return self._reconciler.finalised(), self._reconciler.recovered, self._reconciler.trouble

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        return self._behind(self._ask_newest()).sweep(older_than_s=older_than_s, dry_run=dry_run)

    def close(self) -> None:
        self._reconciler.close()

    def _begin(self) -> tuple[Reconciler, str]:
        end = OwnersEnd(self._ask_newest, self._forward)
        return Reconciler(self._storage.opened(), end, grace_s=GRACE_S), end.newest.owner

    def _behind(self, newest: CommitObject) -> Reconciler:
        """The reconciler for the owner of this object: a new incarnation of the publisher gets a new reconciler."""
        with self._turn:
            if newest.owner != self._owner:
                before = self._reconciler
                self._reconciler, self._owner = self._begin()
                threading.Thread(target=_close_quietly, args=(before,), daemon=True).start()
            return self._reconciler

    def _ask_newest(self) -> CommitObject:
        newest: CommitObject = self._ask(lambda publisher: publisher.newest.remote())
        return newest

    def _forward(self, remark: Remark) -> None:
        self._ask(lambda publisher: publisher.remark.remote(remark))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        module = ray()
        publisher = find(self._place.publisher)
        if publisher is None:
            raise StorageError("the publisher is gone; it is asked again")
        try:
            answer = module.get(call(publisher), timeout=CALL_TIMEOUT_S)
        except module.exceptions.RayError as error:
            raise StorageError(f"the publisher does not answer: {first_line(error)}; it is asked again") from error
        if isinstance(answer, OmnirayError):
            raise answer
        return answer


class RemoteReconciler:
    """Calls the reconciler in its Ray actor, and repeats `notice` until the actor has received every landed object.

    Once the graph is gone it no longer does: the actor would die again each time it is created.
    """

    def __init__(self, place: Place, storage: Storage, on_finalised: Callable[[Finalised], None]) -> None:
        self._place, self._storage, self._on_finalised = place, storage, on_finalised
        self._untold: SimpleQueue[tuple[CommitObject, str]] = SimpleQueue()
        self._actor: Any = None
        self.recovered = 0
        self.trouble = ""
        threading.Thread(target=self._tell, name="omniray-tell-reconciler", daemon=True).start()

    def notice(self, landed: CommitObject, operation_id: str) -> None:
        self._untold.put((landed, operation_id))

    def ask(self) -> None:
        """Ask the reconciler for its progress, unless it is being restarted; it may be too busy to answer."""
        actor = self._actor
        if actor is None:
            return
        try:
            report = ray().get(actor.report.remote(), timeout=REPORT_TIMEOUT_S)
        except ray().exceptions.GetTimeoutError:
            self.trouble = f"the reconciler gave no answer in {REPORT_TIMEOUT_S:g} s"
        except ray().exceptions.RayError as error:
            log.warning("event=reconciler_away error=%s", first_line(error))
        else:
            finalised, self.recovered, self.trouble = report
            self._on_finalised(finalised)

    def flush(self) -> None:
        """Wait until Phase D of everything that has landed is finished."""
        self._on_finalised(self._asked("flush"))

    def recover(self) -> RecoveryReport:
        report: RecoveryReport = self._asked("recover")
        return report

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        report: SweepReport = self._asked("sweep", older_than_s, dry_run)
        return report

    def _asked(self, method: str, *arguments: Any) -> Any:
        """The answer of the reconciler, however long its work takes; raises its error."""
        module = ray()
        try:
            return module.get(getattr(self._found(), method).remote(*arguments))
        except module.exceptions.RayTaskError as error:
            if isinstance(error.cause, OmnirayError):
                raise error.cause from error
            raise
        except (module.exceptions.RayError, ValueError) as error:
            self._actor = None
            raise StorageError(f"the reconciler does not answer: {first_line(error)}; try again") from error

    def close(self) -> None:
        """Finish Phase D and end. If the actor is away, the next writer finds the rest of Phase D in storage."""
        try:
            for method in ("flush", "close"):
                ray().get(getattr(self._found(), method).remote(), timeout=CALL_TIMEOUT_S)
        except ray().exceptions.RayError as error:
            log.warning("event=reconciler_not_closed error=%s", first_line(error))

    def use(self, storage: Storage) -> None:
        """Open the branch in another way from now on."""
        self._storage = storage
        self.end()

    def end(self) -> None:
        """End the actor; the next landed object creates it again."""
        self._actor = None
        end(self._place.reconciler)

    def _tell(self) -> None:
        while True:
            landed, operation_id = self._untold.get()
            try:
                while (finalised := self._told(landed, operation_id)) is None:
                    time.sleep(AWAY_PAUSE_S)
            except GraphGone as gone:  # nobody finishes Phase D of this object
                log.warning("event=reconciler_not_told seq=%d error=%s", landed.seq, gone)
            else:
                self._on_finalised(finalised)

    def _told(self, landed: CommitObject, operation_id: str) -> Finalised | None:
        """The answer to one `notice`, or None if the actor is away; raises `GraphGone` if the graph is the cause."""
        try:
            noticed = self._found().notice.remote(encode(landed), operation_id)
            finalised: Finalised = ray().get(noticed, timeout=CALL_TIMEOUT_S)
        except (ray().exceptions.RayError, ValueError) as error:
            log.warning("event=reconciler_away error=%s", first_line(error))
            self._actor = None
            with contextlib.suppress(StorageError):  # then it is not known
                self._storage.refuse_gone()
            return None
        return finalised

    def _found(self) -> Any:
        if self._actor is None:
            self._actor = create(ReconcilerActor, self._place.reconciler, self._place, self._storage, max_concurrency=8)
        return self._actor


def _close_quietly(reconciler: Reconciler) -> None:
    try:
        reconciler.close()
    except OmnirayError as error:  # its successor finishes the rest
        log.warning("event=reconciler_not_closed error=%s", error)
