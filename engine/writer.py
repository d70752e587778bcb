"""The embedded writer: takes an intent through the four phases, again on top of whoever was faster.

    Phase A   (the sidecar of an operation is written here, beside the staging, once recovery reads it)
    Phase B   every touched table's next version is staged, tables in parallel
    Phase C   one put-if-absent of the commit object: the only commit point
    Phase D   final names and fold, behind the answer (`finalise.py`)

Any number of processes do this at once. The first attempt builds on the newest object this process knows without
asking for a newer one, since the put decides anyway; but no refusal leaves before it was judged on the newest.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from omniray.engine.clock import suspension_aware_clock
from omniray.engine.commit_log import CommitLog
from omniray.engine.errors import (
    Conflict,
    ExpectedVersionMismatch,
    FormatMismatch,
    InputError,
    LineOwned,
    NotFound,
    OutcomeUnknown,
    StorageError,
    TableDrift,
)
from omniray.engine.finalise import DRIFT_ADVICE, Finaliser
from omniray.engine.identity import new_ulid
from omniray.engine.line import (
    EMBEDDED,
    Answer,
    Commit,
    CommitObject,
    Fate,
    Pin,
    believable,
    explain_version,
    fate,
    follow,
    landed_in,
    may_answer,
)
from omniray.engine.manifest import Manifest
from omniray.engine.mode import Mode
from omniray.engine.schema import ID
from omniray.engine.state import PinnedState, TableCache, moved
from omniray.engine.tables import StagedRows, StagedVersion, TableStorage, VersionTaken
from omniray.engine.write import Intent, Resolution, TableWrite, WriteResult

log = logging.getLogger("omniray")

COMMIT_TIMEOUT_S = 300.0
UNCLEAR_TIMEOUT_S = 30.0
BACKOFF_S_MAX = 1.0
BACKOFF_LOSSES_MAX = 4
RETENTION_S = 7 * 24 * 3600.0
STAGING_THREADS = 16


class EmbeddedWriter:
    """Commits intents on one branch from this process; one at a time, any number of processes beside it."""

    def __init__(
        self,
        commit_log: CommitLog,
        manifest: Manifest,
        storage: TableStorage,
        cache: TableCache,
        finaliser: Finaliser,
        newest: CommitObject,
        *,
        clock: Callable[[], float] = suspension_aware_clock,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._log, self._manifest = commit_log, manifest
        self._storage, self._cache, self._finaliser = storage, cache, finaliser
        self._newest = newest
        self._read_at = clock()
        self._clock, self._sleep, self._random = clock, sleep, random
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="omniray-stage")

    def close(self) -> None:
        self._pool.shutdown()

    def commit(self, intent: Intent) -> WriteResult:
        """Apply an intent exactly once, or raise: for a real conflict, bad input, or a store that fails."""
        with self._lock:
            return self._commit(intent)

    def _commit(self, intent: Intent) -> WriteResult:
        deadline = self._clock() + COMMIT_TIMEOUT_S
        if intent.strict or intent.expected_versions:
            self._refresh()
        first_read: dict[str, int] = {}
        losses = 0
        judged: tuple[CommitObject, PinnedState, Resolution] | None = None
        while self._clock() < deadline:
            base = self._newest
            try:
                _check_owner(base)
                _check_versions({**first_read, **intent.expected_versions}, base)
                if judged is None or moved(judged[1].consulted | judged[2].tables.keys(), judged[0], base):
                    state = PinnedState(self._cache, base.pins)
                    judged = (base, state, intent.resolve(state))
            except (InputError, Conflict):
                if may_answer(base, self._refresh()):
                    raise
                continue
            resolution = judged[2]
            first_read = first_read or {t: base.pins[t].version for t in resolution.read_strictly}
            if not resolution.tables:
                if may_answer(base, self._refresh()):
                    return WriteResult(None, 0, 0)
                continue
            started = self._clock()
            landed = self._attempt(intent, base, resolution)
            if landed is not None:
                return _result(intent, landed, resolution)
            losses += 1
            pause_s = min(losses, BACKOFF_LOSSES_MAX) * (self._clock() - started)
            self._sleep(self._random() * min(pause_s, BACKOFF_S_MAX))
            self._refresh()
        raise Conflict(
            f"commit {intent.commit_id} lost every race for {COMMIT_TIMEOUT_S:.0f} s and was not applied: "
            "too many processes write at once; try again, or let fewer of them write"
        )

    def _refresh(self) -> CommitObject:
        """Read the newest object; the clock starts before the request that shows it."""
        read_at = self._clock()
        if believable(read_at - self._read_at, RETENTION_S):
            self._newest = self._log.newest_from(self._newest)
        else:  # what we know may be pruned, so that nothing seems to follow it
            self._newest = self._log.newest_listed() or self._newest
        self._read_at = read_at
        return self._newest

    def _attempt(self, intent: Intent, base: CommitObject, resolution: Resolution) -> CommitObject | None:
        """One try to commit as the object after `base`: the object if it landed, None if somebody was faster.

        Every attempt has its own operation id and its own transactions; what it staged itself is never used again.
        """
        started = time.perf_counter()
        self._finaliser.refuse_drifted(resolution.tables)
        staged = self._stage(base, resolution.tables)
        if staged is None:
            return None
        changed = {
            key: Pin(v.version, v.transaction, base.seq + 1, v.rows, staging=v.staging) for key, v in staged.items()
        }
        commit = Commit(
            commit_id=intent.commit_id,
            kind=intent.kind,
            actor=intent.author.actor,
            tenant=intent.author.tenant,
            # Clocks of other machines may run ahead of ours, but the history does not go back in time.
            at_us=max(time.time_ns() // 1000, *(commit.at_us for commit in base.commits), 0),
            tables=tuple(sorted(changed)),
        )
        ours = follow(
            base,
            op_id=new_ulid(),
            changed=changed,
            commits=(commit,),
            finalised_through=self._finaliser.finalised_through,
        )
        put_at = self._clock()
        if self._put(ours, intent.commit_id) is not Fate.LANDED:
            self._give_up(staged)
            return None
        self._newest, self._read_at = ours, put_at
        self._log.hint(ours)
        self._adopt(staged, resolution.tables)
        self._finaliser.notice(ours)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        log.info(
            "event=commit branch=%s op=%s epoch=%d seq=%d commit=%s tables=%d ms=%.1f",
            self._log.branch.name, ours.op_id, ours.epoch, ours.seq, intent.commit_id, len(staged), elapsed_ms,
        )  # fmt: skip
        return ours

    # Phase B

    def _stage(self, base: CommitObject, tables: Mapping[str, TableWrite]) -> dict[str, StagedVersion] | None:
        """Stage every table's next version in parallel; None if a table turned out to have moved."""
        futures = {key: self._pool.submit(self._stage_one, key, base.pins[key], write) for key, write in tables.items()}
        staged: dict[str, StagedVersion] = {}
        failed: Exception | None = None
        for key, future in futures.items():
            try:
                staged[key] = future.result()
            except Exception as error:
                failed = error
        if failed is None:
            return staged
        self._give_up(staged)
        if isinstance(failed, VersionTaken):
            self._explain(failed, base)
        elif not isinstance(failed, StorageError) or not moved(set(tables), base, self._refresh()):
            raise failed
        return None  # somebody was faster: what a stale handle ran into says nothing

    def _stage_one(self, table_key: str, pin: Pin, write: TableWrite) -> StagedVersion:
        table = self._cache.open(table_key, pin)
        match write.mode:
            case Mode.APPEND:
                change = self._storage.stage_append(table, write.rows)
            case Mode.MERGE:
                change = self._storage.stage_merge(table, write.rows, write.replaced)
            case Mode.OVERWRITE:
                change = self._storage.stage_overwrite(table, write.rows)
            case Mode.DELETE:
                change = self._storage.stage_delete(table, write.replaced)
        try:
            return self._storage.commit_staged(table, change, str(uuid.uuid4()))
        except VersionTaken:
            if change.inline is not None:
                self._storage.forget_rows(table.type, change.inline)
            raise

    def _explain(self, taken: VersionTaken, base: CommitObject) -> None:
        """HEAD was read before the line: a newer object explains it, or a foreign writer has touched the table."""
        newest = self._refresh()
        found = taken.found if taken.found is not None else taken.expected + 1
        self._cache.drop(taken.table_key)
        if explain_version(found, taken.expected, newest, taken.table_key, base) == "drift":
            raise TableDrift(
                f"{taken.table_key} was changed by something other than omniray: its next version should be "
                f"{taken.expected} and that is taken; {DRIFT_ADVICE}",
                table_key=taken.table_key, expected=taken.expected,
            )  # fmt: skip

    def _give_up(self, staged: Mapping[str, StagedVersion]) -> None:
        """An attempt is known to be lost: its handles show rows that never happened, and its files help nobody."""
        for key, version in staged.items():
            self._cache.drop(key)
            self._storage.discard(version)

    # Phase C

    def _put(self, ours: CommitObject, commit_id: str) -> Fate:
        """Put the object until its fate is clear; nothing is discarded while it isn't."""
        deadline = self._clock() + UNCLEAR_TIMEOUT_S
        pause_s = 0.05
        verdict = self._put_first(ours, commit_id)
        while verdict is Fate.PUT_AGAIN:
            if self._clock() >= deadline:
                raise _unknown(commit_id)
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, 2.0)
            verdict = self._put_again(ours)
        if verdict is Fate.LANDED and not believable(self._clock() - self._read_at, RETENTION_S):
            try:
                return Fate.LANDED if self._in_the_line(ours, commit_id) else Fate.LOST
            except StorageError as error:
                raise _unknown(commit_id) from error
        return verdict

    def _put_first(self, ours: CommitObject, commit_id: str) -> Fate:
        """The first put. Even a clear refusal may hide a success: SDKs retry, and the refusal is the second one's."""
        try:
            answer = self._log.put(ours)
        except StorageError as refused:
            try:
                seen = self._log.read(ours.seq)
            except StorageError:
                raise _unknown(commit_id) from refused
            if seen is None:
                raise
            return fate(ours, Answer.REFUSED, seen)
        return self._fate(ours, answer)

    def _put_again(self, ours: CommitObject) -> Fate:
        """A later put, with an earlier one in doubt: nothing but the object that is there can tell."""
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

    def _in_the_line(self, ours: CommitObject, commit_id: str) -> bool:
        """Whether our object is in the line or, since it may have been pruned meanwhile, in the lineage."""
        newest = self._log.newest_listed() or ours
        if landed_in(self._log.down_to(newest, ours.seq), ours):
            return True
        folded = self._manifest.commit(commit_id)
        return folded is not None and folded.op_id == ours.op_id

    def _adopt(self, staged: Mapping[str, StagedVersion], writes: Mapping[str, TableWrite]) -> None:
        """Keep the handles of versions that are part of the graph now: the next write reads nothing of them."""
        for key, version in staged.items():
            self._cache.keep(version.table)
            write = writes[key]
            added = None if write.mode is Mode.OVERWRITE or isinstance(write.rows, StagedRows) else write.rows[ID]
            self._cache.advance_ids(version.table, removed=write.replaced[ID], added=added)


def _check_versions(expected: Mapping[str, int], base: CommitObject) -> None:
    """A write fails if a table that it names, or that it read strictly, is at another version."""
    for table_key, version in expected.items():
        if table_key not in base.pins:
            raise NotFound(f"no table {table_key!r}; the graph has {', '.join(base.pins)}", table_key=table_key)
        if base.pins[table_key].version != version:
            raise ExpectedVersionMismatch(table_key, version, base.pins[table_key].version)


def _unknown(commit_id: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"no clear answer from the store to commit {commit_id}: it may have landed; look for it in the history before "
        "writing again",
        txn_id=commit_id,
    )


def _check_owner(base: CommitObject) -> None:
    if base.owner != EMBEDDED:
        raise LineOwned(
            f"a coordinator owns this branch: {base.owner}; connect to it, or take it down first",
            owner=base.owner,
            epoch=base.epoch,
        )


def _result(intent: Intent, landed: CommitObject, resolution: Resolution) -> WriteResult:
    versions = {key: pin.version for key, pin in landed.introduced().items()}
    return WriteResult(intent.commit_id, resolution.affected.nodes, resolution.affected.edges, versions=versions)
