"""The embedded writer: takes an intent through the four phases, and tries again if another writer was faster.

`commit/attempt.py` defines an attempt. Any number of processes do this at once while the line is `embedded`; a
coordinator's writer is the only one while it owns the line, and ends when it is fenced. The first attempt builds on the
newest object that this process knows, without looking for a newer one, since the put decides anyway; but a write is
refused only after it was judged on the newest object.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import Conflict, ExpectedVersionMismatch, InputError, NotFound, StorageError
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.attempt import Attempt, Attempts, commit_of, commit_time_us
from omniray.engine.commit.first_outcome import first_outcome
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.commit.staging import Base, TableStager, Taken, drifted
from omniray.engine.history.lineage import LandedCommit
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.history.withdrawals import refuse_withdrawn
from omniray.engine.judge.pinned_state import PinnedState, moved
from omniray.engine.judge.resolution import Intent, Resolution, WriteResult, refuse_swept
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Fate, Remark, explain_version, may_answer
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import is_owner_known_dead, refuse_stranger, release
from omniray.engine.line.sidecar import Sidecar, SidecarIntent
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport

log = logging.getLogger("omniray")

COMMIT_TIMEOUT_S = 300.0
LOSSES_MIN = 3  # a process that was suspended has had no time to lose a race
BACKOFF_S_MAX = 1.0
BACKOFF_LOSSES_MAX = 4
THREADS = 4


class Writer:
    """Commits intents on one branch as one owner of its line, one at a time."""

    def __init__(
        self,
        branch: OpenBranch,
        tip: Tip,
        finaliser: Finaliser,
        recoverer: Recoverer,
        *,
        owner: str = EMBEDDED,
        clock: Callable[[], float] = suspension_aware_clock,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._branch, self._tip, self._lineage, self._cache = branch, tip, branch.lineage, branch.cache
        self._finaliser, self._recoverer, self._owner = finaliser, recoverer, owner
        self._clock, self._sleep, self._random = clock, sleep, random
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-write")
        self._stager = TableStager(branch)
        self.attempts = Attempts(branch, self._stager, self._pool)

    def close(self) -> None:
        self._pool.shutdown()
        self._stager.close()

    def commit(self, intent: Intent, submitted_at: CommitObject | None = None) -> WriteResult:
        """Apply an intent exactly once, or raise: for a real conflict, bad input, or a store that fails.

        `submitted_at` is the newest object when the caller sent it, for an intent that may have been sent before.
        """
        with self._lock:
            return self._commit(intent, submitted_at or self._tip.newest)

    def withdraw(self, txn_id: str) -> LandedCommit | None:
        """Find a write, or withdraw it, so that no attempt that has begun can land.

        Every attempt builds on an object of the line. An attempt on an object before the withdrawal finds its number
        taken, and an attempt after it sees the withdrawal.
        """
        with self._lock:
            known = self._tip.refresh()
            found = self._lineage.find(txn_id, known)

            def build(newest: CommitObject) -> Remark | None:
                refuse_stranger(self._owner, newest)
                since = (commit.commit_id for obj in self._lineage.since(known, newest) for commit in obj.commits)
                return None if txn_id in since else Remark(new_ulid(), withdrawn=(txn_id,))

            if found is not None or self._tip.record(build) is not None:
                return found
            return self._lineage.find(txn_id, self._tip.newest)

    def recover(self, *, take_over: bool = False) -> RecoveryReport:
        """Recover the operations of dead writers, between this process's own writes."""
        with self._lock:
            newest = self._tip.refresh()
            if take_over and newest.owner != self._owner:
                release(self._tip, newest.owner)
            self.inherit()
            return self._recoverer.recover(self._tip)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the writes and recoveries of this process waiting, while the caller makes attempts of its own."""
        with self._lock:
            yield

    def inherit(self) -> bool:
        """Release the line of a coordinator that is known to be dead to all writers; returns whether it was."""
        newest = self._tip.newest
        if self._owner != EMBEDDED or not is_owner_known_dead(newest.owner):
            return False
        log.warning("event=owner_dead owner=%s epoch=%d", newest.owner, newest.epoch)
        release(self._tip, newest.owner)
        return True

    def _commit(self, intent: Intent, submitted_at: CommitObject) -> WriteResult:
        deadline = self._clock() + COMMIT_TIMEOUT_S
        look = self._recoverer.is_look_due()
        if intent.strict or intent.expected_versions or intent.resubmittable:
            self._tip.refresh()
        first_read: dict[str, int] = {}
        losses = 0
        judged: _Judged | None = None
        while self._clock() < deadline or losses < LOSSES_MIN:
            if self.inherit():
                continue
            base = self._tip.newest
            try:
                if (known := self._known(intent, base)) is not None:
                    return known
                if intent.resubmittable:
                    refuse_withdrawn(intent.commit_id, self._lineage, submitted_at, base)
                refuse_stranger(self._owner, base)
                _check_versions({**first_read, **intent.expected_versions}, base)
                if judged is None or judged.is_stale(base):
                    judged = self._judge(intent, base)
            except (InputError, Conflict):
                if may_answer(base, self._tip.refresh()):
                    raise
                continue
            resolution = judged.resolution
            first_read = first_read or {t: base.pins[t].version for t in resolution.read_strictly}
            if not resolution.tables:
                if may_answer(base, self._tip.refresh()):
                    return WriteResult(None, 0, 0)
                continue
            started = self._clock()
            landed = self._attempt(intent, base, resolution, look=look)
            if landed is not None:
                return _result(intent, landed, resolution)
            look = False
            losses += 1
            pause_s = min(losses, BACKOFF_LOSSES_MAX) * (self._clock() - started)
            self._sleep(self._random() * min(pause_s, BACKOFF_S_MAX))
            self._tip.refresh()
        raise Conflict(
            f"commit {intent.commit_id} lost every race for {COMMIT_TIMEOUT_S:.0f} s and was not applied: "
            "too many processes write at once; try again, or let fewer of them write"
        )

    def _judge(self, intent: Intent, base: CommitObject) -> _Judged:
        state = PinnedState(self._cache, base)
        return _Judged(base, state, intent.resolve(state))

    def _known(self, intent: Intent, base: CommitObject) -> WriteResult | None:
        """The first outcome of a write whose id is in the line or the lineage as of this object."""
        if not intent.resubmittable:
            return None
        found = self._lineage.find(intent.commit_id, base)
        return None if found is None else first_outcome(*found, intent.payload_hash)

    def _attempt(
        self, intent: Intent, base: CommitObject, resolution: Resolution, *, look: bool
    ) -> CommitObject | None:
        """One attempt to commit as the object after `base`: the object if it landed, None if another writer was faster.

        No later attempt uses the versions that this one staged. With `look` it also looks for operations of dead
        writers, in parallel with the staging.
        """
        started = time.perf_counter()
        self._finaliser.refuse_drifted(resolution.tables)
        refuse_swept(resolution.tables, base)
        intents = [SidecarIntent(intent.commit_id, intent.author.actor)]
        attempt = self.attempts.announce(base, intent.kind, intents, resolution.tables)
        looking = self._pool.submit(self._recoverer.look) if look else None
        if not self._is_staged(attempt) or (looking is not None and self._heal(looking, attempt)):
            return None
        at_us = commit_time_us(base)
        commit = commit_of(intent, at_us, resolution.tables, resolution.affected, resolution.rejected)
        ours = self.attempts.follow(attempt, (commit,), finalised_through=self._finaliser.finalised_through)
        if self.attempts.put(attempt, self._tip) is not Fate.LANDED:
            self.attempts.give_up(attempt).result()
            return None
        self._finaliser.notice(ours, ours.op_id)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        log.info(
            "event=commit branch=%s op=%s epoch=%d seq=%d commit=%s tables=%d ms=%.1f",
            self._branch.branch, ours.op_id, ours.epoch, ours.seq, intent.commit_id, len(attempt.staged), elapsed_ms,
        )  # fmt: skip
        return ours

    def _is_staged(self, attempt: Attempt) -> bool:
        """Whether staging succeeded; False if another writer was faster: then errors of a stale handle mean nothing."""
        base = attempt.base
        try:
            failures = self.attempts.stage(attempt, Base.on(base, base))
        except BaseException:
            self.attempts.give_up(attempt).result()
            raise
        if not failures:
            return True
        self.attempts.give_up(attempt).result()
        for failure in failures:
            if isinstance(failure, Taken):
                self._explain(failure, base)
            elif not isinstance(failure, StorageError) or not moved(set(attempt.changes), base, self._tip.refresh()):
                raise failure
        return False

    def _heal(self, looking: Future[list[Sidecar]], attempt: Attempt) -> bool:
        """Recover if this write's look found operations of dead writers; the attempt is then void: the line moves."""
        try:
            if not looking.result():
                return False
        except BaseException:
            self.attempts.give_up(attempt).result()
            raise
        self.attempts.give_up(attempt).result()
        self._recoverer.recover(self._tip)
        return True

    def _explain(self, taken: Taken, base: CommitObject) -> None:
        """Raise `TableDrift` unless a newer object explains HEAD, which was read before the line."""
        found = taken.found if taken.found is not None else taken.expected + 1
        if explain_version(found, taken.expected, self._tip.refresh(), taken.table_key, base) == "drift":
            raise drifted(taken.table_key, taken.expected)


@dataclass(frozen=True, slots=True)
class _Judged:
    """An intent's resolution, and the state that it was judged on."""

    base: CommitObject
    state: PinnedState
    resolution: Resolution

    def is_stale(self, newest: CommitObject) -> bool:
        """Whether a table that the judgement consulted or the write touches has moved."""
        return bool(moved(self.state.consulted | self.resolution.tables.keys(), self.base, newest))


def _check_versions(expected: Mapping[str, int], base: CommitObject) -> None:
    """Raise if a table that the write names, or that it read strictly, is at another version."""
    for table_key, version in expected.items():
        if table_key not in base.pins:
            raise NotFound(f"no table {table_key!r}; the graph has {', '.join(base.pins)}", table_key=table_key)
        if base.pins[table_key].version != version:
            raise ExpectedVersionMismatch(table_key, version, base.pins[table_key].version)


def _result(intent: Intent, landed: CommitObject, resolution: Resolution) -> WriteResult:
    versions = {key: pin.version for key, pin in landed.introduced().items()}
    return WriteResult(intent.commit_id, resolution.affected.nodes, resolution.affected.edges, versions=versions)
