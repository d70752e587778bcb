"""Repairs tables that a foreign writer changed: shows, adopts or discards the changes. Never runs by itself.

    adopt     the foreign rows become a commit of their own, if they keep every rule of the graph
    discard   the tables hold the acknowledged rows again; foreign versions stay in place, below a newer one

Both end in operations like any other: a sidecar, one object of the line, Phase D. Names that a foreign writer took are
given back separately (`names.py`): this is recorded in the line first, so that it can't happen silently, and may be
done any number of times. So a repair that was killed is finished by running it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omniray.engine.base.errors import InputError, OmnirayError, TableDrift
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.attempt import Attempts, SystemWrite, commit_of, commit_time_us
from omniray.engine.commit.staging import Base
from omniray.engine.commit.table_change import Adopt, Restore, TableChange
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.pinned_state import PinnedState, moved
from omniray.engine.line.commit_object import CommitObject, Fate, Recovery, Remark
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import refuse_stranger
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.recovery.drift import Drift, DriftedTable, Sighting, describe, sight
from omniray.engine.recovery.foreign_rows import refuse_unfit
from omniray.engine.recovery.names import reclaim
from omniray.engine.tables.table import Table
from omniray.engine.tables.versions import VersionReader

log = logging.getLogger("omniray")

KIND = "Repair"
DISCARDED = "Discarded"
ROUNDS_MAX = 200


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The drift found and the repair done; without a commit if only names were given back."""

    found: tuple[Drift, ...]
    commit_id: str | None = None
    versions: Mapping[str, int] = field(default_factory=dict)  # by table: the version that the commit pins
    aside: tuple[str, ...] = ()  # paths of foreign manifests whose names were given back


class PhaseD(Protocol):
    """Finishes what has landed, in this process or in another one."""

    @property
    def finalised_through(self) -> int: ...

    def notice(self, landed: CommitObject, operation_id: str | None = None) -> None: ...


class Repair:
    """Repairs the tables of one branch; the line end is not shared."""

    def __init__(self, branch: OpenBranch, tip: Tip, finaliser: PhaseD, attempts: Attempts, *, owner: str) -> None:
        self._branch, self._tip, self._finaliser, self._attempts = branch, tip, finaliser, attempts
        self._versions = VersionReader(branch.store)
        self._owner = owner

    def carried_out(self, tables: Sequence[str] | None, *, adopt: bool, discard: bool, actor: str) -> RepairReport:
        """Adopt or discard the changes of foreign writers, or only show them."""
        if adopt and discard:
            raise InputError("a change is adopted or discarded, not both: give one of them")
        if adopt:
            return self.adopt(tables, actor=actor)
        return self.discard(tables, actor=actor) if discard else RepairReport(self.inspect(tables))

    def inspect(self, tables: Sequence[str] | None = None) -> tuple[Drift, ...]:
        """The changes of foreign writers to these tables, or to all; nothing is written."""
        return tuple(describe(self._versions, table) for table in self._sight(tables).drifted)

    def discard(self, tables: Sequence[str] | None = None, *, actor: str = "") -> RepairReport:
        """Make the tables hold the acknowledged rows again, whatever a foreign writer wrote."""
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
                aside |= dict.fromkeys(path for table in taken for path in reclaim(self._branch, table))
            else:
                landed = self._restore(seen, actor) or landed
        raise _still_written(tables)

    def adopt(self, tables: Sequence[str] | None = None, *, actor: str = "") -> RepairReport:
        """Commit the foreign rows of the tables, all in one commit, or raise the first violation."""
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
        wanted = self._branch.schema.by_table_key if tables is None else tables
        return sight(self._branch, self._tip.refresh, wanted)

    # Discarding

    def _record(self, taken: Sequence[DriftedTable], actor: str) -> None:
        """Record in the line that the names of these tables are given back, once, however often it is tried."""

        def build(newest: CommitObject) -> Remark | None:
            refuse_stranger(self._owner, newest)
            outcomes = {t.table_key: str(t.kind) for t in taken if not self._is_recorded(t, newest)}
            if not outcomes:
                return None
            operation_id = new_ulid()
            recovery = Recovery(operation_id, DISCARDED, actor, KIND, outcomes, time.time_ns() // 1000)
            return Remark(operation_id, recoveries=(recovery,))

        reach(Point.REPAIR_BEFORE_PUT)
        landed = self._tip.record(build)
        reach(Point.REPAIR_AFTER_PUT)
        if landed is not None:
            self._finaliser.notice(landed)

    def _is_recorded(self, table: DriftedTable, newest: CommitObject) -> bool:
        """Whether an object after the newest taken name records it; Phase D is blocked below such an object."""
        since = table.taken[-1].pin.since
        return any(
            recovery.recovery_kind == DISCARDED and table.table_key in recovery.outcomes
            for obj in self._branch.log.down_to(newest, since + 1)
            if obj.seq > since
            for recovery in obj.recoveries
        )

    def _restore(self, seen: Sighting, actor: str) -> CommitObject | None:
        """Commit, on top of each HEAD, a version with the pinned rows; None if the line or a table moved meanwhile."""
        changes = {table.table_key: Restore(table.pin, table.head) for table in seen.drifted}
        return self._commit(seen.newest, changes, actor)

    # Adopting

    def _judge(self, seen: Sighting) -> _Judged:
        foreign = {t.table_key: self._versions.open_foreign(t.type, t.pin.path, t.head) for t in seen.drifted}
        state = PinnedState(self._branch.cache, seen.newest)
        refuse_unfit(self._branch.schema, foreign.values(), state)
        return _Judged(seen.newest, foreign, frozenset(state.consulted))

    def _pin_foreign(self, seen: Sighting, foreign: Mapping[str, Table], actor: str) -> CommitObject | None:
        """Commit the foreign versions as they are; None if the line moved meanwhile."""
        changes = {key: Adopt(table.version, table.transaction, table.rows) for key, table in foreign.items()}
        return self._commit(seen.newest, changes, actor)

    # Both

    def _commit(self, base: CommitObject, changes: Mapping[str, TableChange], actor: str) -> CommitObject | None:
        """Commit as the object after `base`; None if the line, or a table, moved meanwhile.

        The commit has the operation's id: a repair is one operation, and is not retried under the same id.
        """
        write = SystemWrite(new_ulid(), KIND, Author(actor))
        attempt = self._attempts.announce(base, KIND, [SidecarIntent(write.commit_id, actor)], changes)
        try:
            failures = self._attempts.stage(attempt, Base.on(base, base))
        except BaseException:
            self._attempts.give_up(attempt).result()
            raise
        if failures:
            self._attempts.give_up(attempt).result()
            if isinstance(failures[0], OmnirayError) and not isinstance(failures[0], TableDrift):
                raise failures[0]
            return None
        through = self._finaliser.finalised_through
        commit = commit_of(write, commit_time_us(base), changes)
        ours = self._attempts.follow(attempt, (commit,), finalised_through=through)
        reach(Point.REPAIR_BEFORE_PUT)
        fate = self._attempts.put(attempt, self._tip)
        reach(Point.REPAIR_AFTER_PUT)
        if fate is not Fate.LANDED:
            self._attempts.give_up(attempt).result()
            return None
        self._finaliser.notice(ours, ours.op_id)
        log.info("event=repair op=%s seq=%d tables=%s", ours.op_id, ours.seq, ",".join(sorted(changes)))
        return ours


@dataclass(frozen=True, slots=True)
class _Judged:
    """Foreign versions that were found valid, and the object whose pins they were judged on."""

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
    return RepairReport(found, landed.head, versions, tuple(aside))


def _refuse_taken(drifted: Iterable[DriftedTable]) -> None:
    """Refuse to adopt a foreign version in the place of a pinned one: it was not built on that version."""
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
