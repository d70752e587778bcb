"""Phase D: behind the answer and in the order of the line, published versions get their final names and are folded.

A pinned version is committed the moment its object is in the line; a plain Lance reader sees it when its manifest has
its final name. Any process with write access may do this, for its own objects and for those of a dead writer, any
number of them at once: a final name is a put-if-absent of the same bytes, and the fold is a compare-and-swap. Deletes
come last: a version's own name once it has its final one, the operation's sidecar once it is folded.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from omniray.engine.base.errors import StorageError, TableDrift
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.jobs import AtOnce, Jobs
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.prune import prune
from omniray.engine.store.object_store import store_now_us
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.version_names import own_path

log = logging.getLogger("omniray")

FOLD_OBJECTS = 64
TIDY_FILES = 16
PRUNE_OBJECTS = 256
NAMING_THREADS = 8
IDLE_S = 0.2
RETRY_S = 0.5
RETRY_S_MAX = 60.0


class Finaliser:
    """Finishes Phase D of a branch, in a thread of its own; `flush` waits until all noticed objects are finished.

    Final names are given at once. The fold waits until many objects have gathered, or nothing new comes, or a caller
    flushes: so its cost is shared by many commits, and a busy writer is not slowed down by it. Deletes wait likewise.
    """

    def __init__(self, branch: OpenBranch) -> None:
        self._branch, self._store, self._log = branch, branch.store, branch.log
        self._manifest, self._sidecars = branch.manifest, branch.sidecars
        self._pool = ThreadPoolExecutor(NAMING_THREADS, thread_name_prefix="omniray-final")
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._target: CommitObject | None = None  # the newest object known to be in the line
        self._has_begun = False
        self._named_through = 0
        self._folded_through = 0
        self._pruned_at = 0  # `finalised_through` at the last pruning, or when this process began
        self._flushing = 0
        self._closing = False
        self._error: BaseException | None = None
        self._failures = 0  # in a row
        self._naming = threading.Lock()
        self._tidying = threading.Lock()
        self._drifted: dict[str, _Drifted] = {}
        self._finished: list[Pin] = []  # pins with a final name whose own name is still there
        self._operations: list[tuple[int, str]] = []  # with the number they landed as, while their sidecar is there

    @property
    def finalised_through(self) -> int:
        """The number up to which this process has confirmed final names and fold."""
        return min([self._named_through, self._folded_through, *(seq - 1 for seq in self._held_up())])

    def refuse_drifted(self, table_keys: Iterable[str]) -> None:
        """Raise for a table whose final name a foreign writer has taken: nothing is written to it until its repair."""
        for table_key in table_keys:
            if table_key in self._drifted and (drift := self._name_again(table_key)) is not None:
                raise drift

    def drifted(self) -> dict[str, TableDrift]:
        """The tables whose final name a foreign writer has taken."""
        return {table_key: drifted.error for table_key, drifted in tuple(self._drifted.items())}

    def notice(self, landed: CommitObject, operation_id: str | None = None) -> None:
        """An object is known to be in the line: finish it, and everything before it, in the background.

        The sidecar of `operation_id` is deleted once that is done.
        """
        with self._wake:
            if self._target is None or landed.seq >= self._target.seq:
                self._target = landed
            if operation_id is not None:
                self.delete_once_finished(operation_id, landed.seq)
            self._error = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="omniray-phase-d", daemon=True)
                self._thread.start()
                _open_in_this_process.add(self)
            self._wake.notify_all()

    def delete_once_finished(self, operation_id: str, seq: int) -> None:
        """Delete the sidecar of an operation that landed as number `seq` once that object is finished."""
        with self._wake:
            self._operations.append((seq, operation_id))

    def flush(self) -> None:
        """Wait until all objects noticed so far have final names and are folded; raises the error that prevented it.

        A table that has drifted holds up the final names of its own versions and nothing else; it is raised at the end.
        """
        with self._wake:
            if self._target is None:
                return
            wanted = self._target.seq
            self._error = None
            self._flushing += 1
            self._wake.notify_all()
            try:
                self._wake.wait_for(lambda: self._error is not None or self._closing or self._is_through(wanted))
            finally:
                self._flushing -= 1
            if self._error is not None:
                raise self._error
            if not self._is_through(wanted):
                raise StorageError("closed before Phase D was through: the next writer finishes it")
        for drift in self._name_drifted():
            raise drift

    def close(self) -> None:
        """Flush, tidy up and end the thread; it ends even if the flush fails."""
        _open_in_this_process.discard(self)
        try:
            self.flush()
        finally:
            with self._wake:
                self._closing = True
                self._wake.notify_all()
            if self._thread is not None:
                self._thread.join()
            self.tidy()
            self._branch.storage.close()
            self._pool.shutdown()

    def _is_done(self) -> bool:
        return self._target is None or self._is_through(self._target.seq)

    def _is_through(self, seq: int) -> bool:
        """Whether everything up to this number is folded, and has its final names but for drifted tables."""
        return min(self._named_through, self._folded_through) >= seq

    # In the thread

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            target, work = job
            try:
                if work is _Work.TIDY:
                    self.tidy()
                else:
                    self._finish(target, fold=work is _Work.FOLD)
            except BaseException as error:  # a waiting flush must get any error
                log.warning("event=phase_d_failed seq=%d error=%r", target.seq, error)
                with self._wake:
                    self._error = error
                    self._failures += 1
            else:
                self._failures = 0
            with self._wake:
                self._wake.notify_all()

    def _next_job(self) -> tuple[CommitObject, _Work] | None:
        """What to finish next, and how far; None when it is time to end."""
        with self._wake:
            while not self._closing:
                if self._target is None:
                    self._wake.wait()
                elif self._error is not None:
                    self._wait_out(self._error)
                elif not self._is_done():
                    backlog = self._target.seq - self._folded_through
                    if self._flushing or backlog >= FOLD_OBJECTS:
                        return self._target, _Work.FOLD
                    if self._named_through < self._target.seq:
                        return self._target, _Work.NAME
                    if not self._wake.wait_for(self._is_stirred, timeout=IDLE_S):
                        return self._target, _Work.FOLD
                elif not self._has_leftovers():
                    self._wake.wait()
                elif not self._wake.wait_for(self._is_stirred, timeout=IDLE_S):
                    return self._target, _Work.TIDY
            return None

    def _wait_out(self, error: BaseException) -> None:
        """Wait after a failure until the next commit or flush; after a storage error only for a while."""
        passes = isinstance(error, StorageError)
        pause_s = min(RETRY_S * 2**self._failures, RETRY_S_MAX) if passes else None
        if not self._wake.wait(timeout=pause_s):
            self._error = None

    def _is_stirred(self) -> bool:
        return (
            self._closing
            or (self._flushing > 0 and not self._is_done())
            or (self._target is not None and self._named_through < self._target.seq)
        )

    def _has_leftovers(self) -> bool:
        return bool(self._finished or self._finished_operations())

    def _finished_operations(self) -> list[str]:
        """The operations that are through, while their sidecars are there."""
        held_up = self._held_up()
        return [op for seq, op in self._operations if self._is_through(seq) and seq not in held_up]

    def _finish(self, target: CommitObject, *, fold: bool) -> None:
        """Give final names up to `target`, in the order of the line; then, if asked, fold.

        The fold records how far naming has come, so that a process that starts reads no further back.
        """
        if not self._has_begun:
            folded = self._manifest.folded()
            self._folded_through = folded.through
            self._pruned_at = self._named_through = folded.named_through
            self._has_begun = True
        done = max(target.finalised_through, min(self._named_through, self._folded_through))
        pending = [obj for obj in reversed(self._log.down_to(target, done + 1)) if obj.seq > done]
        for obj in pending:
            if obj.seq > self._named_through:
                self._name(obj)
                self._named_through = obj.seq
        if fold:
            self._fold(target, pending)
        if len(self._finished) >= TIDY_FILES:
            self.tidy()

    def _fold(self, target: CommitObject, pending: Sequence[CommitObject]) -> None:
        """Fold the pending objects, and record up to which number every version has its final name."""
        self._name_drifted()
        named_through = min(self._held_up(), default=target.seq + 1) - 1
        reach(Point.D_BEFORE_FOLD)
        refuse_gone(self._store, self._branch.graph_id)  # or the manifest of another graph would end in this one's head
        self._manifest.fold(pending, named_through=named_through)
        reach(Point.D_AFTER_FOLD)
        self._folded_through = max(self._folded_through, target.seq)

    def _name(self, obj: CommitObject) -> None:
        """Give the versions that an object introduced their final names, tables in parallel.

        A drifted table is noted and left alone; the others go on. Only main's versions get final names.
        """
        if not self._branch.branch.is_main:
            return
        with self._naming:
            introduced = obj.introduced()
            for key in introduced.keys() & self._drifted.keys():
                self._drifted[key].waiting.append(introduced[key])
            pins = {key: pin for key, pin in introduced.items() if key not in self._drifted}
            jobs: Jobs = self._pool if len(pins) > 1 else AtOnce()
            naming = {key: jobs.submit(self._name_one, key, pin) for key, pin in pins.items()}
            for key, future in naming.items():
                try:
                    future.result()
                except TableDrift as drift:
                    log.warning("event=drifted seq=%d error=%s", obj.seq, drift)
                    self._drifted[key] = _Drifted(drift, [pins[key]])

    def _name_one(self, table_key: str, pin: Pin) -> None:
        reach(Point.D_BEFORE_NAME)
        give_final_name(self._store, self._branch.graph_id, table_key, pin)
        reach(Point.D_AFTER_NAME)
        self._finished.append(pin)

    def _held_up(self) -> set[int]:
        """The numbers of the objects that a drifted table keeps from being finished."""
        drifted = tuple(self._drifted.values())  # other threads may name them meanwhile
        return {pin.since for one in drifted for pin in tuple(one.waiting)}

    def _name_drifted(self) -> list[TableDrift]:
        """Try again to give the final names that had to wait; returns what still prevents it."""
        again = [self._name_again(table_key) for table_key in self.drifted()]
        return [drift for drift in again if drift is not None]

    def _name_again(self, table_key: str) -> TableDrift | None:
        """Give the final names that had to wait, if the table was repaired meanwhile; else return its drift."""
        with self._naming:
            drifted = self._drifted.get(table_key)
            while drifted is not None and drifted.waiting:
                try:
                    self._name_one(table_key, drifted.waiting[0])
                except TableDrift as drift:
                    drift.__cause__ = drifted.error
                    return drift
                drifted.waiting.pop(0)
            self._drifted.pop(table_key, None)
        return None

    def tidy(self) -> None:
        """Delete own names of finished versions and sidecars of finished operations; move old versions away.

        Leftovers are harmless: the sweep deletes own names, and the next recovery sidecars.
        """
        if self._target is None:
            return  # nothing was noticed: a process that only reads leaves everything as it is
        with self._tidying:
            self._tidy()

    def _tidy(self) -> None:
        finished = [self._finished.pop() for _ in range(len(self._finished))]  # other threads may add to it meanwhile
        with self._wake:
            through = self._finished_operations()
            self._operations = [(seq, op) for seq, op in self._operations if op not in set(through)]
        reach(Point.D_BEFORE_TIDY)
        try:
            own = [own_path(pin, self._branch.graph_id) for pin in finished]
            self._store.delete_all(own + self._manifest.take_leftovers())
            for path in own:
                self._branch.storage.retire_folder(path.rpartition("/")[0])
            reach(Point.D_BEFORE_SIDECARS)
            self._sidecars.delete(through)
            reach(Point.D_AFTER_SIDECARS)
            for table_path in {pin.path for pin in finished if old_versions.is_due(pin.version)}:
                old_versions.archive(self._store, table_path)
            self._manifest.discard_old_versions()
            self._manifest.keep_up()
            self._prune()
        except StorageError as error:
            log.warning("event=tidy_failed sidecars=%d error=%s", len(through), error)

    def _prune(self) -> None:
        """Prune the line, now and then: of processes that write once and end, one in many does."""
        before, self._pruned_at = self._pruned_at, self.finalised_through
        if self._target is not None and before // PRUNE_OBJECTS < self._pruned_at // PRUNE_OBJECTS:
            # A clock ahead of the one that dates the objects would make young ones look old, and a paused writer would
            # believe its put of their numbers.
            now_us = min(time.time_ns() // 1000, store_now_us(self._store))
            prune(self._store, self._log, self._target, self._pruned_at, now_us=now_us)


_open_in_this_process: set[Finaliser] = set()


def _close_all() -> None:
    """Finish Phase D for a program that ends without closing its graphs."""
    for finaliser in tuple(_open_in_this_process):
        try:
            finaliser.close()
        except Exception as error:  # no caller is left to be told, and the next writer finishes it
            log.info("event=phase_d_unfinished_at_exit error=%r", error)


# Runs before the threads of executors end, which is earlier than `atexit` and has no public name. A forked child has
# none of the threads, and nothing of its own to finish.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_open_in_this_process.clear)


class _Work(StrEnum):
    """How far a job of the thread goes."""

    NAME = "name"
    FOLD = "fold"
    TIDY = "tidy"


@dataclass(slots=True)
class _Drifted:
    """A table that a foreign writer wrote to, and the pins whose final names wait for its repair, oldest first."""

    error: TableDrift
    waiting: list[Pin]
