"""The end of a branch's line as one process knows it: follow it, and extend it by one object at a time.

Every put into a line goes through here: a write's Phase C, a recovery's new epoch and its record, take-overs, sweeps,
repairs. Threads that only read may share a `Tip`; a thread that puts has its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import BranchGone, FormatMismatch, InvariantViolation, OutcomeUnknown, StorageError
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import (
    CommitObject,
    Fate,
    Remark,
    believable,
    change_owner,
    fate,
    follow_with,
    landed_in,
    unlawful,
)
from omniray.engine.store.object_store import Answer

log = logging.getLogger("omniray")

RETENTION_S = 7 * 24 * 3600.0
UNCLEAR_TIMEOUT_S = 30.0
EXTEND_TRIES_MAX = 200


class LineEnd(Protocol):
    """The end of a line, to record remarks there: a `Tip`, or a client that forwards to the line's owner."""

    @property
    def newest(self) -> CommitObject: ...

    def refresh(self) -> CommitObject: ...

    def record(self, build: Callable[[CommitObject], Remark | None]) -> CommitObject | None:
        """Record the remark that `build` makes of the newest object; the newest object then, None if it made none.

        After a lost race it is built again on the new end.
        """

    def raise_epoch(self, above: int, owner: str) -> None:
        """Fence everything that was begun in the epoch `above` or before, if the line is `owner`'s."""


class Tip:
    """The newest object that this process knows, and when the request for it began."""

    def __init__(
        self,
        commit_log: CommitLog,
        newest: CommitObject,
        *,
        is_folded: Callable[[CommitObject], bool],
        refuse_gone: Callable[[], None] = lambda: None,
        read_at: float | None = None,
        clock: Callable[[], float] = suspension_aware_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log, self._is_folded, self._refuse_gone = commit_log, is_folded, refuse_gone
        self._clock, self._sleep = clock, sleep
        self.newest = newest
        self._read_at = clock() if read_at is None else read_at

    def another(self) -> Tip:
        """A copy for another thread."""
        return Tip(
            self._log,
            self.newest,
            is_folded=self._is_folded,
            refuse_gone=self._refuse_gone,
            read_at=self._read_at,
            clock=self._clock,
            sleep=self._sleep,
        )

    def refresh(self) -> CommitObject:
        """Read the newest object; the clock starts before the request that shows it."""
        read_at = self._clock()
        if believable(read_at - self._read_at, RETENTION_S):
            newest = self._log.newest_from(self.newest)
        else:  # the known object may be pruned, so that nothing seems to follow it
            newest = self._log.newest_listed() or self.newest
        self.newest, self._read_at = newest, read_at
        return newest  # not `self.newest`: another reader's refresh, begun before a write, may have replaced it

    def put(self, ours: CommitObject) -> Fate:
        """Put the object after the newest one until its fate is clear; nothing is discarded while it isn't.

        Raises `OutcomeUnknown` if it stays unclear for too long, and `StorageError` if nothing was written.
        """
        if ours is not self.newest and (reason := unlawful(self.newest, ours)) is not None:
            raise InvariantViolation(f"a bug in omniray: the object {ours} {reason}; nothing was written")
        put_at = self._clock()
        verdict = self._put_until_clear(ours)
        if verdict is Fate.LANDED and not believable(self._clock() - self._read_at, RETENTION_S):
            try:
                verdict = Fate.LANDED if self._in_the_line(ours) else Fate.LOST
            except StorageError as error:
                raise _unknown(ours) from error
        if verdict is Fate.LANDED:
            self.newest, self._read_at = ours, put_at
            self._log.hint(ours)
        return verdict

    def record(self, build: Callable[[CommitObject], Remark | None]) -> CommitObject | None:
        def followed(newest: CommitObject) -> CommitObject | None:
            remark = build(newest)
            return None if remark is None else follow_with(newest, remark)

        return self.extend(followed)

    def raise_epoch(self, above: int, owner: str) -> None:
        def build(newest: CommitObject) -> CommitObject | None:
            if newest.epoch > above or newest.owner != owner:
                return None
            return change_owner(newest, op_id=new_ulid(), owner=owner)

        self.extend(build)

    def extend(
        self, build: Callable[[CommitObject], CommitObject | None], *, eager: bool = False
    ) -> CommitObject | None:
        """Put the object that `build` makes of the newest one, built again after a lost race; None if it made none.

        For objects that change no table: building one again costs nothing. Raises `BranchGone` if the line is closed.
        An `eager` caller looks itself whether the graph is still there. Its first try is built on the object that this
        process knows: the put finds out if that is not the newest, but what `build` refuses may be refused wrongly.
        """
        if not eager:
            self._refuse_gone()  # a write checks this beside its staging; an object that changes no table has none
        for tries in range(EXTEND_TRIES_MAX):
            refuse_closed(self.newest if eager and tries == 0 else self.refresh())
            ours = build(self.newest)
            if ours is None:
                return None
            if self._put_anew(ours) is Fate.LANDED:
                log.info("event=extend op=%s epoch=%d seq=%d owner=%s", ours.op_id, ours.epoch, ours.seq, ours.owner)
                return ours
            self._sleep(min(0.001 * tries, 0.1))
        raise StorageError(f"lost {EXTEND_TRIES_MAX} races for the next number of the line; try again")

    def _put_anew(self, ours: CommitObject) -> Fate:
        """Put an object. One without commits may be put again, so an unclear answer is a failure like any other."""
        try:
            return self.put(ours)
        except OutcomeUnknown as error:
            if ours.commits:
                raise
            raise StorageError(
                f"no clear answer from the store to object {ours.seq} of the line, which changes no table; try again"
            ) from error

    def _put_until_clear(self, ours: CommitObject) -> Fate:
        deadline = self._clock() + UNCLEAR_TIMEOUT_S
        pause_s = 0.05
        verdict = self._put_first(ours)
        while verdict is Fate.PUT_AGAIN:
            if self._clock() >= deadline:
                raise _unknown(ours)
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)
            verdict = self._put_again(ours)
        return verdict

    def _put_first(self, ours: CommitObject) -> Fate:
        """The first put. Even a clear refusal may hide a success: SDKs retry, and the retry is refused."""
        try:
            answer = self._log.put(ours)
        except StorageError as refused:
            try:
                seen = self._log.read(ours.seq)
            except StorageError:
                raise _unknown(ours) from refused
            if seen is None:
                raise
            return fate(ours, Answer.REFUSED, seen)
        return self._fate(ours, answer)

    def _put_again(self, ours: CommitObject) -> Fate:
        """A later put, with an earlier one in doubt: only the object that is there decides."""
        try:
            answer = self._log.put(ours)
        except StorageError:
            answer = Answer.UNCLEAR
        return self._fate(ours, answer)

    def _fate(self, ours: CommitObject, answer: Answer) -> Fate:
        try:
            seen = None if answer is Answer.CREATED else self._log.read(ours.seq)
        except FormatMismatch:
            raise
        except StorageError:
            return Fate.PUT_AGAIN
        return fate(ours, answer, seen)

    def _in_the_line(self, ours: CommitObject) -> bool:
        """Whether our object is in the line or, since it may have been pruned meanwhile, in the lineage."""
        newest = self._log.newest_listed() or ours
        if landed_in(self._log.down_to(newest, ours.seq), ours):
            return True
        if not ours.commits:  # the lineage does not show it; its remark can be recorded again
            return False
        return self._is_folded(ours)


def refuse_closed(newest: CommitObject) -> CommitObject:
    """The same object, unless it ends the line: then its branch was deleted, and `BranchGone` is raised."""
    if newest.closed:
        raise BranchGone(
            f"the branch with the id {newest.line} was deleted; nothing was written. A branch that has its name now is "
            "another one: open that one to go on",
            line=newest.line,
        )
    return newest


def _unknown(ours: CommitObject) -> OutcomeUnknown:
    txn_id = ours.commits[-1].commit_id if ours.commits else ours.op_id
    return OutcomeUnknown(
        f"no clear answer from the store to commit {txn_id}: it may have landed; graph.outcome('{txn_id}') or "
        "'omniray outcome' tells, and writing again with this txn_id applies nothing twice",
        txn_id=txn_id,
    )
