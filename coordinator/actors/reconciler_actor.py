"""The reconciler's Ray actor, which works for all lines that the publisher's process serves, and the handle to call it.

Each line has a reconciler of its own in there, with threads of its own. It begins when the line is first mentioned, and
ends when the publisher has let the line go.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from omniray.coordinator.actors.actor import AWAY_PAUSE_S, CALL_TIMEOUT_S, create, first_line
from omniray.coordinator.actors.cluster import Place, Storage, end, find, ray
from omniray.coordinator.actors.opener import Opener
from omniray.coordinator.actors.reconciler import Finalised, NotServed, OwnersEnd, Reconciler
from omniray.coordinator.actors.turns import Turns
from omniray.engine.base.errors import BranchGone, GraphGone, OmnirayError, StorageError
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.line.commit_json import decode, encode
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Remark
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.recovery.recoverer import GRACE_S, Recoverer, RecoveryReport

log = logging.getLogger("omniray")

REPORT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 10.0
WORK_TIMEOUT_S = 3600.0
CALLS_MAX = 64
LINES_MAX = 10_000  # more than are ever served at a time
RECOVERED_AT_ONCE = 8  # a coordinator that died may have left something on each of hundreds of branches


class ReconcilerActor:
    """Runs the reconcilers of the lines that one publisher's process serves."""

    def __init__(self, place: Place, storage: Storage) -> None:
        self._place, self._opener = place, Opener(storage)
        self._lock = threading.Lock()
        self._turns = Turns(
            LINES_MAX, 1
        )  # to find the reconciler of a line: one that is slow to open holds no other up
        self._reconcilers: dict[str, Reconciler] = {}
        self._recovering: set[str] = set()  # other lines, on which a dead writer has left something
        self._recoveries = ThreadPoolExecutor(RECOVERED_AT_ONCE, thread_name_prefix="omniray-recover-branch")
        self._begun(place.graph_id)
        for line in self._ask(lambda publisher: publisher.lines.remote()):  # of an earlier life of this actor
            threading.Thread(target=_quietly, args=(self._begun, line), daemon=True).start()

    def notice(self, data: bytes, operation_id: str) -> Finalised:
        """Begin Phase D of an object, in the form that it has in the line: Ray would pickle each of its commits."""
        landed = decode(data, where="a landed object")
        return self._behind(landed).notice(landed, operation_id)

    def flush(self, line: str) -> Finalised:
        reconciler = self._behind(self._ask_newest(line))
        reconciler.flush()
        return reconciler.finalised()

    def recover(self, line: str, grace_s: float) -> RecoveryReport:
        """Recover what was left on a line; for main, what was left on every branch.

        A branch that can't be recovered keeps no other from it; the error of the first one is raised in the end.
        """
        reconciler = self._behind(self._ask_newest(line))
        report = reconciler.recover(grace_s)
        failed: list[OmnirayError] = []
        for other in sorted(reconciler.left_elsewhere(grace_s)) if line == self._place.graph_id else ():
            try:
                report += self._recovered(other, grace_s)
            except BranchGone:
                continue
            except OmnirayError as error:
                log.warning("event=branch_not_recovered line=%s error=%s", other, error)
                failed.append(error)
        if failed:
            raise failed[0]
        return report

    def report(self, line: str) -> tuple[Finalised, int, str]:
        """How far Phase D is, how many operations were recovered, and the error that stops recovery, if any."""
        reconciler = self._begun(line)
        return reconciler.finalised(), reconciler.recovered, reconciler.trouble

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        of_main = self._behind(self._ask_newest(self._place.graph_id))
        return of_main.sweep(older_than_s=older_than_s, dry_run=dry_run)

    def close(self, line: str) -> None:
        """Finish Phase D of a line that is let go."""
        with self._turns.taken(line):
            if (reconciler := self._reconcilers.pop(line, None)) is not None:
                reconciler.close()

    def _begun(self, line: str) -> Reconciler:
        """The reconciler of a line, which begins if it is not there."""
        with self._turns.taken(line):
            return self._reconcilers.get(line) or self._begin(line)

    def _behind(self, newest: CommitObject) -> Reconciler:
        """The reconciler for the owner of this object: a new incarnation of the publisher gets a new reconciler."""
        with self._turns.taken(newest.line):
            before = self._reconcilers.get(newest.line)
            if before is not None and before.serves(newest):
                return before
            begun = self._begin(newest.line)
            if before is not None:
                threading.Thread(target=_quietly, args=(before.close,), daemon=True).start()
            return begun

    def _begin(self, line: str) -> Reconciler:
        branch, end = self._opener.opened(line), self._end(line)
        reconciler = self._reconcilers[line] = Reconciler(
            branch, end, grace_s=GRACE_S, on_not_served=lambda one: self._drop(line, one),
            on_left=self._recover_soon, end_of=self._end_hosted,
        )  # fmt: skip
        return reconciler

    def _recovered(self, line: str, grace_s: float = GRACE_S) -> RecoveryReport:
        """Recover what was left on another branch.

        A line that every process may extend stays so, since others may be writing to it; one that a coordinator has is
        taken over by this one, and handed back when it is idle.
        """
        if self._opener.looked_at(line).newest.owner != EMBEDDED:
            self._ask(lambda publisher: publisher.host.remote(line))
            return self._behind(self._ask_newest(line)).recover(grace_s)
        branch = self._opener.opened(line)
        finaliser = Finaliser(branch)
        try:
            return Recoverer(branch, finaliser, grace_s=grace_s).recover(branch.tip.another())
        finally:
            finaliser.close()

    def _recover_soon(self, line: str) -> None:
        """Recover what was left on another branch, beside those that are being recovered: a slow one holds none up."""
        with self._lock:
            if line in self._recovering:
                return
            self._recovering.add(line)

        def recover() -> None:
            try:
                _quietly(self._recovered, line)
            finally:
                self._recovering.discard(line)

        self._recoveries.submit(recover)

    def _end(self, line: str) -> OwnersEnd:
        return OwnersEnd(lambda: self._ask_newest(line), lambda remark: self._forward(line, remark))

    def _end_hosted(self, line: str) -> OwnersEnd:
        """The end of a branch's line that a coordinator has, for a sweep: the branch is opened for that."""
        self._ask(lambda publisher: publisher.host.remote(line))
        return self._end(line)

    def _drop(self, line: str, reconciler: Reconciler) -> None:
        """Let a reconciler go whose publisher does not serve the line any more: it may have died before it said so."""
        with self._turns.taken(line):
            if self._reconcilers.get(line) is reconciler:
                del self._reconcilers[line]
        threading.Thread(target=_quietly, args=(reconciler.close,), daemon=True).start()

    def _ask_newest(self, line: str) -> CommitObject:
        newest: CommitObject = self._ask(lambda publisher: publisher.newest.remote(line))
        return newest

    def _forward(self, line: str, remark: Remark) -> None:
        self._ask(lambda publisher: publisher.remark.remote(line, remark))

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
    """Calls a line's reconciler in its Ray actor, and repeats `notice` until the actor has got every landed object.

    Once the graph or the branch is gone it no longer does: the actor would fail again each time it is asked.
    """

    def __init__(self, place: Place, storage: Storage, line: str, on_finalised: Callable[[Finalised], None]) -> None:
        self._place, self._storage, self._line, self._on_finalised = place, storage, line, on_finalised
        self._untold: SimpleQueue[tuple[CommitObject, str] | threading.Event | None] = SimpleQueue()
        self._actor: Any = None
        self.recovered = 0
        self.trouble = ""
        self._lock = threading.Lock()
        self._teller: threading.Thread | None = None  # from the first object on: a line that can't be opened has none

    def notice(self, landed: CommitObject, operation_id: str) -> None:
        self._untold.put((landed, operation_id))
        with self._lock:
            if self._teller is None:
                teller = threading.Thread(target=self._tell, name="omniray-tell-reconciler", daemon=True)
                teller.start()
                self._teller = teller

    def ask(self) -> None:
        """Ask the reconciler for its progress, unless it is being restarted; it may be too busy to answer."""
        actor = self._actor
        if actor is None:
            return
        try:
            report = ray().get(actor.report.remote(self._line), timeout=REPORT_TIMEOUT_S)
        except ray().exceptions.GetTimeoutError:
            self.trouble = f"the reconciler gave no answer in {REPORT_TIMEOUT_S:g} s"
        except ray().exceptions.RayError as error:
            log.warning("event=reconciler_away error=%s", first_line(error))
        else:
            finalised, self.recovered, self.trouble = report
            self._on_finalised(finalised)

    def flush(self) -> None:
        """Wait until Phase D of everything that has landed is finished."""
        self._on_finalised(self._asked("flush", self._line))

    def recover(self, grace_s: float = GRACE_S) -> RecoveryReport:
        report: RecoveryReport = self._asked("recover", self._line, grace_s)
        return report

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        report: SweepReport = self._asked("sweep", older_than_s, dry_run)
        return report

    def _asked(self, method: str, *arguments: Any) -> Any:
        """The answer of the reconciler, whose work may take long; raises its error."""
        module = ray()
        try:
            return module.get(getattr(self._found(), method).remote(*arguments), timeout=WORK_TIMEOUT_S)
        except module.exceptions.RayTaskError as error:
            if isinstance(error.cause, OmnirayError):
                raise error.cause from error
            raise
        except module.exceptions.GetTimeoutError as error:  # it works on, and this thread is wanted for other calls
            raise StorageError(f"the reconciler gave no answer to '{method}' in {WORK_TIMEOUT_S:g} s") from error
        except (module.exceptions.RayError, ValueError) as error:
            self._actor = None
            raise StorageError(f"the reconciler does not answer: {first_line(error)}; try again") from error

    def close(self) -> None:
        """Finish Phase D and end. If the actor is away, the next writer finds the rest of Phase D in storage."""
        if self._teller is not None:
            self._untold.put(told := threading.Event())
            told.wait(CLOSE_TIMEOUT_S)
        try:
            for method in ("flush", "close"):
                ray().get(getattr(self._found(), method).remote(self._line), timeout=CALL_TIMEOUT_S)
        except (ray().exceptions.RayError, ValueError) as error:  # `ValueError`: no actor has the name
            log.warning("event=reconciler_not_closed error=%s", first_line(error))

    def use(self, storage: Storage) -> None:
        """Open the graph in another way from now on."""
        self._storage = storage
        self.end()

    def let_go(self) -> None:
        """Have the actor forget the line, and end the thread here; nobody waits for it."""
        self._untold.put(None)
        if self._actor is not None:
            self._actor.close.remote(self._line)

    def end(self) -> None:
        """End the actor; the next landed object creates it again."""
        self._actor = None
        end(self._place.reconciler)

    def _tell(self) -> None:
        while (untold := self._untold.get()) is not None:
            if isinstance(untold, threading.Event):
                untold.set()
                continue
            landed, operation_id = untold
            try:
                while (finalised := self._told(landed, operation_id)) is None:
                    time.sleep(AWAY_PAUSE_S)
            except (GraphGone, BranchGone) as gone:  # nobody finishes Phase D of this object
                log.warning("event=reconciler_not_told seq=%d error=%s", landed.seq, gone)
            else:
                self._on_finalised(finalised)

    def _told(self, landed: CommitObject, operation_id: str) -> Finalised | None:
        """The answer to one `notice`, or None if the actor is away; raises if the graph or the branch is gone."""
        try:
            noticed = self._found().notice.remote(encode(landed), operation_id)
            finalised: Finalised = ray().get(noticed, timeout=CALL_TIMEOUT_S)
        except (ray().exceptions.RayError, ValueError) as error:
            if isinstance(gone := getattr(error, "cause", None), BranchGone | NotServed):
                raise _over(gone) from error
            log.warning("event=reconciler_away error=%s", first_line(error))
            self._actor = None
            with contextlib.suppress(StorageError):  # then it is not known
                self._storage.refuse_gone()
            return None
        return finalised

    def _found(self) -> Any:
        if self._actor is None:
            self._actor = create(
                ReconcilerActor, self._place.reconciler, self._place, self._storage, max_concurrency=CALLS_MAX
            )
        return self._actor


def _over(error: OmnirayError) -> BranchGone:
    return error if isinstance(error, BranchGone) else BranchGone(error.message, **error.facts)


def _quietly(do: Callable[..., Any], *arguments: Any) -> None:
    try:
        do(*arguments)
    except OmnirayError as error:  # a successor finishes the rest
        log.warning("event=reconcile_failed error=%s", error)
