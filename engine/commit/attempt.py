"""The commit kernel: one try to commit one operation as the object after some object of the line.

    announce   Phase A: the operation's sidecar, before anything of it can have happened
    stage      Phase B: every touched table's next version, tables in parallel, beside Phase A
    follow     the object that pins what was staged
    put        Phase C: one put-if-absent, the only commit point
    give up    the files of an attempt that is known to be lost are deleted

`phase_d.py` finishes Phase D of an object that has landed. The embedded writer, the coordinator's rounds, repairs and
the creation of a graph all use this kernel; what an operation does to a table is a `TableChange`.

Beside each staging `__graph.json` is read: a handle that outlived its graph commits nothing into another one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

from omniray.engine.base.errors import GraphGone, OmnirayError, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.jobs import AtOnce, Jobs
from omniray.engine.base.principal import Author
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.staging import Base, StagedPin, Stager, TableStage, Taken
from omniray.engine.commit.table_change import TableChange, announced
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.resolution import Affected
from omniray.engine.line.commit_object import (
    NOTHING_MORE,
    Commit,
    CommitObject,
    Fate,
    MergedParent,
    Remark,
    follow,
    remarked,
)
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import Tip
from omniray.engine.line.sidecar import Sidecar, SidecarIntent

log = logging.getLogger("omniray")

NOTHING = Affected()


@dataclass(slots=True)
class Attempt:
    """The state of one try. Its id, transactions and sidecar are its own, whatever was tried before."""

    base: CommitObject
    changes: Mapping[str, TableChange]
    sidecar: Sidecar
    staged: dict[str, StagedPin] = field(default_factory=dict)
    ours: CommitObject | None = None
    is_void: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def operation_id(self) -> str:
        return self.sidecar.operation_id


class Attempts:
    """Makes the attempts of one writer on one branch."""

    def __init__(self, branch: OpenBranch, stager: Stager, pool: Jobs, *, is_new: bool = False) -> None:
        self._branch, self._stager, self._pool, self._is_new = branch, stager, pool, is_new
        self._looks = pool if branch.store.local_root is None else AtOnce()  # at `__graph.json`
        self._process = this_process()

    def announce(
        self, base: CommitObject, kind: str, intents: Iterable[SidecarIntent], changes: Mapping[str, TableChange]
    ) -> Attempt:
        """A new attempt on top of `base`; nothing is written yet."""
        tables = (announced(base, table_key, change) for table_key, change in changes.items())
        sidecar = Sidecar.on(base, new_ulid(), kind, self._process, intents, tables)
        return Attempt(base, changes, sidecar)

    def stage(self, attempt: Attempt, base: Base) -> list[Taken | OmnirayError]:
        """Phases A and B side by side; returns why tables could not be staged.

        Raises if the sidecar could not be put, or the graph is gone: then with `GraphGone`, whatever else failed for
        want of its files. Either way no request is under way any more then. An attempt that was given up meanwhile
        deletes what has been staged since.
        """
        stages = [TableStage(table, attempt.changes[table.table_key]) for table in attempt.sidecar.tables]
        beside = [self._pool.submit(self._put_sidecar, attempt.sidecar)] if stages else []
        if not self._is_new:
            beside.append(self._looks.submit(refuse_gone, self._branch.store, self._branch.graph_id))
        outcomes: list[StagedPin | Taken | OmnirayError] = []
        try:
            outcomes = self._stager.stage(base, stages) if stages else []
        finally:  # a sidecar that is put after the attempt was cleared away would stay behind
            failed = [error for future in beside if (error := future.exception()) is not None]
            failed.sort(key=lambda error: not isinstance(error, GraphGone))
            with attempt.lock:
                found = zip(stages, outcomes, strict=False)
                attempt.staged = {s.announced.table_key: one for s, one in found if isinstance(one, StagedPin)}
            if attempt.is_void:
                self._delete(attempt)
            elif failed and isinstance(failed[0], GraphGone):
                raise failed[0]
        if failed and not attempt.is_void:
            raise failed[0]
        return [outcome for outcome in outcomes if not isinstance(outcome, StagedPin)]

    def follow(
        self,
        attempt: Attempt,
        commits: tuple[Commit, ...],
        *,
        finalised_through: int,
        remarks: Iterable[Remark] = (),
        contains: Mapping[str, int] = NOTHING_MORE,
    ) -> CommitObject:
        """The object that pins what was staged; waiting remarks are recorded with it. A merge takes in `contains`."""
        ours = follow(
            attempt.base,
            op_id=attempt.operation_id,
            changed={key: staged.pin for key, staged in attempt.staged.items()},
            commits=commits,
            finalised_through=finalised_through,
            contains=contains,
        )
        attempt.ours = reduce(remarked, remarks, ours)
        return attempt.ours

    def put(self, attempt: Attempt, tip: Tip) -> Fate:
        """Phase C. If it raises, all files are kept: the put may still be under way."""
        assert attempt.ours is not None, "only what was staged is put"
        reach(Point.C_BEFORE_PUT)
        fate = tip.put(attempt.ours)
        reach(Point.C_AFTER_PUT)
        return fate

    def give_up(self, attempt: Attempt) -> Future[None]:
        """Delete the files of an attempt that is known to be lost; the future is done when they are deleted.

        Nobody waits for a store or another process here: the caller may hold a lock. The sweep deletes leftovers, and
        the next recovery a sidecar.
        """
        with attempt.lock:
            attempt.is_void = True
        return self._pool.submit(self._clear_away, attempt)

    def _clear_away(self, attempt: Attempt) -> None:
        # A handle that is dropped late was used by nobody: its transaction is not the one of the pin.
        self._stager.drop(list(attempt.changes))
        self._delete(attempt)

    def _put_sidecar(self, sidecar: Sidecar) -> None:
        reach(Point.A_BEFORE_SIDECAR)
        self._branch.sidecars.put(sidecar)
        reach(Point.A_AFTER_SIDECAR)

    def _delete(self, attempt: Attempt) -> None:
        files = [file for staged in attempt.staged.values() for file in staged.files]
        reach(Point.LOST_BEFORE_DISCARD)
        try:
            self._branch.store.delete_all([*files, self._branch.sidecars.path(attempt.operation_id)])
            for staged in attempt.staged.values():
                self._branch.store.delete_empty_folders(
                    self._branch.storage.own_folder(staged.pin.path, staged.pin.transaction)
                )
        except StorageError as error:
            log.warning("event=discard_failed op=%s error=%s", attempt.operation_id, error)
        reach(Point.LOST_AFTER_DISCARD)


class Described(Protocol):
    """The facts of a write that its commit records."""

    @property
    def commit_id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def author(self) -> Author: ...

    @property
    def payload_hash(self) -> str: ...

    @property
    def message(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SystemWrite:
    """A write that is no intent: creation, repair, a verb of branches. Without a hash it is never sent again."""

    commit_id: str
    kind: str
    author: Author
    payload_hash: str = ""
    message: str = ""


def commit_time_us(base: CommitObject) -> int:
    """The time of all commits of one object on top of `base`: they land at once.

    Clocks of other machines may run ahead of ours, but the history does not go back in time.
    """
    return max(time.time_ns() // 1000, base.head_at_us)


def commit_of(
    write: Described,
    at_us: int,
    tables: Iterable[str],
    affected: Affected = NOTHING,
    rejected: int = 0,
    *,
    merged: tuple[MergedParent, ...] = (),
    outcome: str = "",
) -> Commit:
    """The record of a write in the object that commits it."""
    return Commit(
        commit_id=write.commit_id,
        kind=write.kind,
        actor=write.author.actor,
        tenant=write.author.tenant,
        at_us=at_us,
        tables=tuple(sorted(tables)),
        payload_hash=write.payload_hash,
        nodes=affected.nodes,
        edges=affected.edges,
        rejected=rejected,
        message=write.message,
        merged=merged,
        outcome=outcome,
    )
