"""Repair of tables that something other than omniray wrote to: show it, adopt it, or set it aside. Never by itself.

    adopt     the foreign rows become a commit of their own, once they are found to keep every rule of the graph
    discard   the tables hold what the graph acknowledged; foreign versions stay where they are, below a newer one

Both end in operations like any other: a sidecar, one object of the line, Phase D. Names that a foreign writer took are
given back apart from that (`reclaim.py`): it is recorded in the line first, so that it can't happen silently, and may
be done any number of times. So a repair that was killed is finished by running it again.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omniray.engine.base.errors import StorageError, TableDrift
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.judge.pinned_state import PinnedState, moved
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, Commit, CommitObject, Fate, Pin, Recovery, follow, remark
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import refuse_stranger
from omniray.engine.line.sidecar import Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.recovery.drift import Drift, DriftedTable, Sighting, describe, sight
from omniray.engine.recovery.foreign_rows import refuse_unfit
from omniray.engine.recovery.names import reclaim
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.storage import StagedVersion, TableStorage, VersionTaken
from omniray.engine.tables.table import Table
from omniray.engine.tables.versions import VersionReader

log = logging.getLogger("omniray")

KIND = "Repair"
DISCARDED = "Discarded"
ROUNDS_MAX = 200


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found, and what was done about it; no commit where names were given back and nothing more."""

    found: tuple[Drift, ...]
    commit_id: str | None = None
    versions: Mapping[str, int] = field(default_factory=dict)  # by table: what the commit pins
    aside: tuple[str, ...] = ()  # where foreign manifests lie whose names were given back


class Repair:
    """Repairs the tables of one branch; the tip is its own."""

    def __init__(
        self,
        store: ObjectStore,
        schema: Schema,
        commit_log: CommitLog,
        tip: Tip,
        storage: TableStorage,
        cache: TableCache,
        finaliser: Finaliser,
        sidecars: Sidecars,
        *,
        owner: str = EMBEDDED,
    ) -> None:
        self._store, self._schema, self._log, self._tip = store, schema, commit_log, tip
        self._storage, self._cache, self._finaliser, self._sidecars = storage, cache, finaliser, sidecars
        self._versions = VersionReader(store)
        self._owner = owner

    def inspect(self, tables: Sequence[str] | None = None) -> tuple[Drift, ...]:
        """What foreign writers did to these tables, or to any; nothing is written."""
        return tuple(describe(self._versions, table) for table in self._sight(tables).drifted)

    def discard(self, tables: Sequence[str] | None = None, *, actor: str = "") -> RepairReport:
        """Make the tables hold what the graph acknowledged, whatever was written behind its back."""
        found = self.inspect(tables)
        aside: dict[str, None] = {}
        landed: CommitObject | None = None
        for _ in range(ROUNDS_MAX):
            seen = self._sight(tables)
            if not seen.drifted:
                return _report(found, landed, aside)
            reach(Point.REPAIR_BEFORE_ACT)
            refuse_stranger(self._owner, seen.newest)
            if taken := [table for table in seen.drifted if table.is_taken]:
                self._record(taken, actor)
                aside |= dict.fromkeys(path for table in taken for path in reclaim(self._store, table))
            else:
                landed = self._restore(seen, actor) or landed
        raise _still_written(tables)

    def adopt(self, tables: Sequence[str] | None = None, *, actor: str = "") -> RepairReport:
        """Make the foreign rows of the tables a commit of the graph, all at once, or raise for what is wrong."""
        found = self.inspect(tables)
        judged: _Judged | None = None
        for _ in range(ROUNDS_MAX):
            seen = self._sight(tables)
            if not seen.drifted:
                return _report(found)
            reach(Point.REPAIR_BEFORE_ACT)
            refuse_stranger(self._owner, seen.newest)
            _refuse_taken(seen.drifted)
            if judged is None or not judged.holds_for(seen):
                judged = self._judge(seen)
            if (landed := self._pin_foreign(seen, judged.foreign, actor)) is not None:
                return _report(found, landed)
        raise _still_written(tables)

    def _sight(self, tables: Sequence[str] | None) -> Sighting:
        wanted = self._schema.by_table_key if tables is None else tables
        return sight(self._store, self._log, self._schema, self._tip.refresh, wanted)

    # Discarding

    def _record(self, taken: Sequence[DriftedTable], actor: str) -> None:
        """Say in the line that the names of these tables are given back, once, however often that is begun."""

        def build(newest: CommitObject) -> CommitObject | None:
            refuse_stranger(self._owner, newest)
            outcomes = {t.table_key: str(t.kind) for t in taken if not self._is_recorded(t, newest)}
            if not outcomes:
                return None
            operation_id = new_ulid()
            recovery = Recovery(operation_id, DISCARDED, actor, KIND, outcomes, time.time_ns() // 1000)
            return remark(newest, op_id=operation_id, recoveries=(recovery,))

        reach(Point.REPAIR_BEFORE_PUT)
        landed = self._tip.extend(build)
        reach(Point.REPAIR_AFTER_PUT)
        if landed is not None:
            self._finaliser.notice(landed)

    def _is_recorded(self, table: DriftedTable, newest: CommitObject) -> bool:
        """Whether an object after the newest name that was taken says so; Phase D is held up below such an object."""
        since = table.taken[-1].pin.since
        return any(
            recovery.recovery_kind == DISCARDED and table.table_key in recovery.outcomes
            for obj in self._log.down_to(newest, since + 1)
            if obj.seq > since
            for recovery in obj.recoveries
        )

    def _restore(self, seen: Sighting, actor: str) -> CommitObject | None:
        """Commit, on top of each HEAD, a version that holds what the pin does; None if something moved meanwhile."""
        operation_id = new_ulid()
        transactions = {table.table_key: str(uuid.uuid4()) for table in seen.drifted}
        built_on = {table.table_key: table.head for table in seen.drifted}
        self._sidecars.put(self._sidecar(operation_id, seen.newest, actor, built_on, transactions))
        staged: dict[str, StagedVersion] = {}
        try:
            for table in seen.drifted:
                staged[table.table_key] = self._stage_pinned(table, transactions[table.table_key])
        except Exception as error:  # whatever it is, no object names the operation
            self._clear_away(operation_id, staged)
            if isinstance(error, VersionTaken | TableDrift):
                return None
            raise
        next_seq = seen.newest.seq + 1
        changed = {k: Pin(v.version, v.transaction, next_seq, v.rows, staging=v.staging) for k, v in staged.items()}
        return self._put(seen.newest, operation_id, changed, actor, staged)

    def _stage_pinned(self, table: DriftedTable, transaction: str) -> StagedVersion:
        give_final_name(self._store, table.table_key, table.pin)
        newest = self._versions.open_foreign(table.type, table.head)
        return self._storage.commit_restored(newest, table.pin.version, table.pin.rows, transaction)

    # Adopting

    def _judge(self, seen: Sighting) -> _Judged:
        foreign = {t.table_key: self._versions.open_foreign(t.type, t.head) for t in seen.drifted}
        state = PinnedState(self._cache, seen.newest.pins)
        refuse_unfit(self._schema, foreign.values(), state)
        return _Judged(seen.newest, foreign, frozenset(state.consulted))

    def _pin_foreign(self, seen: Sighting, foreign: Mapping[str, Table], actor: str) -> CommitObject | None:
        """Commit the foreign versions as they are; None if the line moved meanwhile."""
        operation_id = new_ulid()
        built_on = {key: table.version - 1 for key, table in foreign.items()}
        transactions = {key: table.transaction for key, table in foreign.items()}
        self._sidecars.put(self._sidecar(operation_id, seen.newest, actor, built_on, transactions))
        next_seq = seen.newest.seq + 1
        changed = {k: Pin(t.version, t.transaction, next_seq, t.rows) for k, t in foreign.items()}
        return self._put(seen.newest, operation_id, changed, actor, {})

    # Both

    def _sidecar(
        self,
        operation_id: str,
        base: CommitObject,
        actor: str,
        built_on: Mapping[str, int],
        transactions: Mapping[str, str],
    ) -> Sidecar:
        types = self._schema.by_table_key
        intents = (SidecarIntent(operation_id, actor),)
        tables = (SidecarTable(key, types[key].path, built_on[key], transactions[key]) for key in built_on)
        return Sidecar.on(base, operation_id, KIND, str(self._log.branch), this_process(), intents, tables)

    def _put(
        self,
        base: CommitObject,
        operation_id: str,
        changed: Mapping[str, Pin],
        actor: str,
        staged: Mapping[str, StagedVersion],
    ) -> CommitObject | None:
        """Phase C. The commit has the operation's id: a repair is one operation, and asks nobody to try it again."""
        # Clocks of other machines may run ahead of ours, but the history does not go back in time.
        at_us = max(time.time_ns() // 1000, base.head_at_us)
        commit = Commit(operation_id, KIND, actor, at_us, tuple(sorted(changed)))
        through = self._finaliser.finalised_through
        ours = follow(base, op_id=operation_id, changed=changed, commits=(commit,), finalised_through=through)
        reach(Point.REPAIR_BEFORE_PUT)
        fate = self._tip.put(ours)  # if it raises, everything is kept: behind a refusal the put may be on its way
        reach(Point.REPAIR_AFTER_PUT)
        if fate is not Fate.LANDED:
            self._clear_away(operation_id, staged)
            return None
        self._finaliser.notice(ours, operation_id)
        log.info("event=repair op=%s seq=%d tables=%s", ours.op_id, ours.seq, ",".join(commit.tables))
        return ours

    def _clear_away(self, operation_id: str, staged: Mapping[str, StagedVersion]) -> None:
        """The operation is known not to be in the line: nothing of it is needed. What stays behind is recovered."""
        with contextlib.suppress(StorageError):
            self._store.delete_all([path for one in staged.values() for path in self._storage.staged_for_itself(one)])
            self._sidecars.delete([operation_id])


@dataclass(frozen=True, slots=True)
class _Judged:
    """Foreign versions that were found fit, beside the tables as one object pins them."""

    base: CommitObject
    foreign: Mapping[str, Table]
    consulted: frozenset[str]

    def holds_for(self, seen: Sighting) -> bool:
        heads = {table.table_key: table.head for table in seen.drifted}
        is_same = heads == {key: table.version for key, table in self.foreign.items()}
        return is_same and not moved(set(self.consulted), self.base, seen.newest)


def _report(found: tuple[Drift, ...], landed: CommitObject | None = None, aside: Iterable[str] = ()) -> RepairReport:
    if landed is None:
        return RepairReport(found, aside=tuple(aside))
    versions = {key: pin.version for key, pin in landed.introduced().items()}
    return RepairReport(found, landed.op_id, versions, tuple(aside))


def _refuse_taken(drifted: Iterable[DriftedTable]) -> None:
    """A foreign version in the place of a pinned one can't be adopted: it was not built on what it would replace."""
    for table in drifted:
        if table.is_taken:
            raise TableDrift(
                f"{table.table_key} can't be adopted: the foreign version {table.taken[0].pin.version} stands where "
                f"acknowledged commits belong, which would be lost: {', '.join(table.commits_at_stake)}; set it aside "
                "with 'omniray repair --discard', then write its rows with omniray",
                table_key=table.table_key, version=table.taken[0].pin.version, commits=list(table.commits_at_stake),
            )  # fmt: skip


def _still_written(tables: Sequence[str] | None) -> TableDrift:
    named = ", ".join(tables) if tables is not None else "the tables"
    return TableDrift(
        f"{named} kept changing during {ROUNDS_MAX} tries to repair: stop what writes to them, then run "
        "'omniray repair' again",
        tables=list(tables or ()),
    )
