"""Recovery: finds the operations of dead owners, and rolls them forward or back.

    observe    read durable facts: HEAD of the tables, then the line, then the names of pinned versions
    decide     pure, in `rules.py`
    apply      roll forward: Phase D of everything above `finalised_through`, in order
               roll back: delete the staged files; there is nothing to restore
    record     one `Recovery` per operation in the line, folded into the audit table
    forget     delete the sidecar, last

An operation is discarded only after the epoch was raised and the line read up to there: its owner is fenced, so an
owner that was mistaken for dead loses an attempt and nothing else. If a recovery is killed at any point, the next one
completes it; any number of them may run at once.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ulid import ULID

from omniray.engine.base.errors import InvariantViolation, TableDrift
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import is_known_dead
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit import create_graph
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Recovery, Remark
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import LineEnd
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarTable
from omniray.engine.recovery.rules import (
    RECORDED_AS,
    Decision,
    Epoch,
    OperationFacts,
    TableClass,
    TableFacts,
    classify,
    decide,
    epoch_of,
)
from omniray.engine.recovery.stray_lines import StrayLines
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import FinalName, observe_final_name
from omniray.engine.tables.version_names import manifest_name, own_folder, own_path

log = logging.getLogger("omniray")

GRACE_S = 600.0
LEASE_S = 24 * 3600.0
LOOK_EVERY_S = 5.0
SETTLED_S = 10.0


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of one recovery: operation ids by outcome."""

    rolled_forward: tuple[str, ...] = ()
    rolled_back: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # of owners that live, or are within the grace period
    awaiting_repair: tuple[str, ...] = ()

    def __add__(self, other: RecoveryReport) -> RecoveryReport:
        """This report and that of another branch."""
        return RecoveryReport(
            self.rolled_forward + other.rolled_forward,
            self.rolled_back + other.rolled_back,
            self.left + other.left,
            self.awaiting_repair + other.awaiting_repair,
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """One sidecar with the decision about it."""

    sidecar: Sidecar
    decision: Decision
    classes: Mapping[str, TableClass] = field(default_factory=dict)


class Recoverer:
    """Recovers the operations of one branch on behalf of one owner of its line, and no others.

    A sidecar is judged by its own line, lineage and epoch: another line says nothing about it. Main also clears away
    those of lines that are not there, and of closed lines, whose branches were deleted.
    """

    def __init__(
        self,
        branch: OpenBranch,
        finaliser: Finaliser,
        *,
        owner: str = EMBEDDED,
        grace_s: float = GRACE_S,
        is_dead: Callable[[Sidecar], bool] = lambda sidecar: is_known_dead(sidecar.process),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._branch, self._finaliser = branch, finaliser
        self._store, self._sidecars, self._lineage = branch.store, branch.sidecars, branch.lineage
        self._owner, self._grace_s = owner, grace_s
        self._is_dead, self._now = is_dead, now
        self._looked_at = now()
        self._strays = StrayLines(branch.store, branch.graph_id)

    def is_look_due(self) -> bool:
        """Whether a write should look for operations of dead writers; of writes in quick succession, few look."""
        return not 0 <= self._now() - self._looked_at < LOOK_EVERY_S

    def look(self, known: CommitObject) -> list[Sidecar]:
        """Operations whose owner is gone. Very young ones are not read: most of them are under way.

        `known` is an object of the line that the caller takes for the newest.
        """
        self._looked_at = self._now()
        settled_ms = (self._now() - SETTLED_S) * 1000
        listed = [one for one in self._sidecars.listed() if _began_ms(one) < settled_ms]
        return [sidecar for sidecar in self._own_sidecars(listed, known) if self._is_gone(sidecar)]

    def recover(self, tip: LineEnd, grace_s: float | None = None) -> RecoveryReport:
        """Recover every operation whose owner is gone; `grace_s`, if it is not to be what it is otherwise."""
        self._looked_at = self._now()
        listed = self._sidecars.listed()
        newest = tip.refresh() if listed else tip.newest  # main's says which branches were deleted
        found = self._own_sidecars(listed, newest)
        left = tuple(s.operation_id for s in found if not (self._is_gone(s, grace_s) or self._is_fenced(s, newest)))
        sidecars = [s for s in found if s.operation_id not in left]
        if not sidecars:
            return RecoveryReport(left=left)
        refuse_gone(self._store, self._branch.graph_id)  # or what another graph has under way would be cleared away
        cases = self._examine(tip, sidecars)
        if any(case.decision is Decision.RAISE_FIRST for case in cases):
            self._raise_epoch(tip, max(case.sidecar.epoch for case in cases if case.decision is Decision.RAISE_FIRST))
            cases = self._examine(tip, sidecars)
        self._refuse_lost(cases)
        return self._apply(tip, cases, left)

    def left_elsewhere(self, grace_s: float | None = None) -> set[str]:
        """The lines of other branches on which an owner that is gone has left something; they recover it themselves."""
        bindings = self._branch.tip.refresh().bindings.values()
        bound = {binding.ulid for binding in bindings if not binding.is_doomed}
        found = self._sidecars.read_all(self._sidecars.listed()) if bound else []
        return {sidecar.line for sidecar in found if sidecar.line in bound and self._is_gone(sidecar, grace_s)}

    def landed(self, newest: CommitObject) -> dict[str, int]:
        """The owner's own operations that are in the line, with their numbers: only their Phase D is left."""
        found = self._own_sidecars(self._sidecars.listed(), newest)
        return self._named([s for s in found if self._owns(s, newest)], newest)

    def _own_sidecars(self, operation_ids: Sequence[str], newest: CommitObject) -> list[Sidecar]:
        """The sidecars of this branch; main also takes unreadable ones, and those of lines that no branch has."""
        found = self._sidecars.read_all(operation_ids)
        mine = {newest.line}
        if self._branch.branch.is_main:
            mine |= self._strays.among({s.line for s in found} - mine, newest)
        return [s for s in found if s.line in mine or (self._branch.branch.is_main and s.kind == create_graph.KIND)]

    def _is_gone(self, sidecar: Sidecar, grace_s: float | None = None) -> bool:
        age_s = self._now() - sidecar.created_at_us / 1e6
        of_operation_s = self._grace_s if grace_s is None else grace_s
        return self._is_dead(sidecar) or age_s > (LEASE_S if sidecar.kind == STAGING else of_operation_s)

    def _is_fenced(self, sidecar: Sidecar, newest: CommitObject) -> bool:
        """Whether an operation is of an earlier epoch's coordinator, which can't commit any more, dead or alive."""
        line = newest if sidecar.line == newest.line else self._strays.closed.get(sidecar.line)
        is_of_coordinator = sidecar.kind != STAGING and sidecar.owner != EMBEDDED
        return is_of_coordinator and line is not None and sidecar.epoch < line.epoch

    # Observe

    def _examine(self, tip: LineEnd, sidecars: Sequence[Sidecar]) -> list[_Case]:
        """Decide about each sidecar. HEAD is read before the line, so that only a foreign writer can be ahead of it."""
        tables = {table.table_key: table for sidecar in sidecars for table in sidecar.tables}
        heads = {key: self._head(table) for key, table in tables.items()}
        newest = tip.refresh()
        facts = {key: self._observe_table(newest, key, head) for key, head in heads.items() if key in newest.pins}
        named = self._named(sidecars, newest)
        return [self._case(sidecar, newest, facts, named=sidecar.operation_id in named) for sidecar in sidecars]

    def _head(self, table: SidecarTable) -> int:
        """The newest version with a final name, 0 on branches other than main: their versions have none."""
        return old_versions.newest_version(self._store, table.table_path) if self._branch.branch.is_main else 0

    def _observe_table(self, newest: CommitObject, table_key: str, head: int) -> TableFacts:
        """Look for a table's names in the order own, final, own again, since Phase D may run meanwhile."""
        pin = newest.pins[table_key]
        own = own_path(pin, self._branch.graph_id)
        if pin.line != self._branch.graph_id:  # not main's: the final name of this number belongs to main
            return TableFacts(pin.version, head, FinalName.ABSENT, has_own_name=self._store.get(own) is not None)
        if newest.is_final(pin):
            return TableFacts(pin.version, head, FinalName.OURS, has_own_name=False)
        has_own_name = self._store.get(own) is not None
        final = observe_final_name(self._store, pin)
        if final is FinalName.ABSENT and not has_own_name:
            has_own_name = self._store.get(own) is not None
        return TableFacts(pin.version, head, final, has_own_name)

    def _case(self, sidecar: Sidecar, newest: CommitObject, facts: Mapping[str, TableFacts], *, named: bool) -> _Case:
        is_own_line = sidecar.line == newest.line  # else to a line that is not there or closed, where nothing can land
        epoch = epoch_of(sidecar.epoch, newest.epoch) if is_own_line else Epoch.PAST
        operation = OperationFacts(
            named=named,
            gone=True,
            epoch=epoch,
            may_put=newest.owner == self._owner,
            own=self._owns(sidecar, newest),
            staging_only=sidecar.kind == STAGING,
            orphaned=sidecar.line in self._strays.closed,
        )
        if operation.orphaned:  # no version is pinned by a closed line
            found = TableClass.ROLLED_PAST_EXPECTED if named else TableClass.NO_MOVEMENT
            return _Case(sidecar, decide(operation, ()), dict.fromkeys((t.table_key for t in sidecar.tables), found))
        classes = {t.table_key: classify(named, facts[t.table_key]) for t in sidecar.tables if t.table_key in facts}
        return _Case(sidecar, decide(operation, classes.values()), classes)

    def _owns(self, sidecar: Sidecar, newest: CommitObject) -> bool:
        """Whether the sidecar is the owner's own. A lease belongs to its load, whatever the line's owner was."""
        is_of_owner = (sidecar.line, sidecar.epoch, sidecar.owner) == (newest.line, newest.epoch, self._owner)
        return self._owner != EMBEDDED and is_of_owner and sidecar.kind != STAGING

    def _named(self, sidecars: Sequence[Sidecar], newest: CommitObject) -> dict[str, int]:
        """The numbers of those operations that are in the line or the lineage, without other attempts of their writes.

        One look-up for all of a line, since each look-up reads the manifest and all objects that are not folded.
        """
        orphaned = self._orphaned(sidecars)
        named = self._named_on(self._lineage, [s for s in sidecars if s.line not in orphaned], newest)
        for line, orphans in orphaned.items():
            named |= self._named_on(self._strays.lineage(line), orphans, self._strays.closed[line])
        return named

    def _orphaned(self, sidecars: Iterable[Sidecar]) -> Mapping[str, list[Sidecar]]:
        """The sidecars of deleted branches, by their lines."""
        found: dict[str, list[Sidecar]] = defaultdict(list)
        for sidecar in sidecars:
            if sidecar.line in self._strays.closed:
                found[sidecar.line].append(sidecar)
        return found

    def _named_on(self, lineage: Lineage, sidecars: Sequence[Sidecar], newest: CommitObject) -> dict[str, int]:
        commit_ids = {intent.commit_id for sidecar in sidecars for intent in sidecar.intents}
        found = {entry.op_id: entry.seq for entry in lineage.find_all(commit_ids, newest).values()}
        return {s.operation_id: found[s.operation_id] for s in sidecars if s.operation_id in found}

    # Decide

    def _raise_epoch(self, tip: LineEnd, above: int) -> None:
        reach(Point.RECOVERY_BEFORE_RAISE)
        tip.raise_epoch(above, self._owner)
        reach(Point.RECOVERY_AFTER_RAISE)

    def _refuse_lost(self, cases: Iterable[_Case]) -> None:
        for case in cases:
            if case.decision is Decision.ABORT:
                outcomes = {key: str(found) for key, found in case.classes.items()}
                raise InvariantViolation(
                    f"can't recover {case.sidecar}: {_facts(outcomes)}. Something that the graph pins is lost; "
                    "everything is kept as it is. Restore the missing files of these tables from a backup, then run "
                    "'omniray recover' again; a read-only open still works",
                    operation_id=case.sidecar.operation_id, outcomes=outcomes,
                )  # fmt: skip

    # Apply

    def _apply(self, tip: LineEnd, cases: Sequence[_Case], left: tuple[str, ...]) -> RecoveryReport:
        by: dict[Decision, list[_Case]] = {decision: [] for decision in Decision}
        for case in cases:
            by[case.decision].append(case)
        forward, back = by[Decision.ROLL_FORWARD], by[Decision.ROLL_BACK]
        awaiting = by[Decision.AWAIT_REPAIR]
        left += _ids(by[Decision.LEAVE]) + _ids(by[Decision.RAISE_FIRST])
        if forward:
            drifted = self._finish_phase_d(tip)
            awaiting += [case for case in forward if not drifted.isdisjoint(case.classes)]
            forward = [case for case in forward if drifted.isdisjoint(case.classes)]
        orphans = by[Decision.DISCARD]
        lost = [case for case in orphans if TableClass.NO_MOVEMENT in case.classes.values()]
        for case in back + self._renamed(forward) + lost:
            self._clear_staging(case.sidecar)
        if not self._record(tip, forward + back + orphans):
            return RecoveryReport(left=left + _ids(forward + back + orphans), awaiting_repair=_ids(awaiting))
        self._forget(forward + back + orphans + by[Decision.FORGET])
        return RecoveryReport(_ids(forward), _ids(back) + _ids(orphans), left, _ids(awaiting))

    def _finish_phase_d(self, tip: LineEnd) -> frozenset[str]:
        """Finish Phase D of landed operations; returns the drifted tables, which do not block the others."""
        self._finaliser.notice(tip.newest)
        try:
            self._finaliser.flush()
        except TableDrift as drift:
            log.warning("event=recovery_waits error=%s", drift)
        return frozenset(self._finaliser.drifted())

    def _renamed(self, forward: list[_Case]) -> list[_Case]:
        """The operations whose versions have final names now; on other branches than main, versions keep their own."""
        return forward if self._branch.branch.is_main else []

    def _clear_staging(self, sidecar: Sidecar) -> None:
        """Delete the own names of an operation's versions: it did not land, or they have their final names.

        Their names follow from the sidecar, so nothing is listed.
        """
        reach(Point.RECOVERY_BEFORE_APPLY)
        is_own_line = sidecar.line == self._branch.branch.ulid
        # A line that is not there may have been the main line of its graph.
        main_lines = {self._branch.graph_id} if is_own_line else {self._branch.graph_id, sidecar.line}
        for table in sidecar.tables:
            for main_line in main_lines:
                folder = own_folder(table.table_path, sidecar.line, main_line, table.transaction_uuid)
                self._store.delete(f"{folder}/{manifest_name(table.expected_version + 1)}")
                self._store.delete_empty_folders(folder)
            reach(Point.RECOVERY_AFTER_VERSION)
        if sidecar.kind == create_graph.KIND and not is_own_line:  # of a graph that was never created
            self._store.delete(CommitLog(self._store, BranchId(MAIN, sidecar.line)).path(1))

    def _record(self, tip: LineEnd, cases: Sequence[_Case]) -> bool:
        """Record each operation that is not recorded yet, and fold the record; False if the line has another owner."""
        if not cases:
            return True

        known = tip.refresh()
        recorded = self._recorded(cases, known)

        def build(newest: CommitObject) -> Remark | None:
            """Repeats no look-up, since live writers race for the same number."""
            if newest.owner != self._owner:
                return None
            since = {r.operation_id for obj in self._lineage.since(known, newest) for r in obj.recoveries}
            new = [c for c in cases if c.sidecar.operation_id not in recorded | since]
            recoveries = tuple(self._recovery(case) for case in new)
            return Remark(new_ulid(), recoveries=recoveries) if new else None

        reach(Point.RECOVERY_BEFORE_RECORD)
        tip.record(build)
        reach(Point.RECOVERY_AFTER_RECORD)
        if tip.newest.owner != self._owner:
            return False
        self._finish_phase_d(tip)
        for case in cases:
            outcomes = {key: str(found) for key, found in case.classes.items()}
            log.warning("event=recovered decision=%s what=%s %s", case.decision, case.sidecar, _facts(outcomes))
        return True

    def _recorded(self, cases: Sequence[_Case], newest: CommitObject) -> set[str]:
        """The operations that are recorded: in this line or, before its branch was deleted, in their own."""
        recorded = self._lineage.recorded(_ids(cases), newest)
        for line, orphans in self._orphaned(case.sidecar for case in cases).items():
            recorded |= self._strays.recorded(line, [orphan.operation_id for orphan in orphans])
        return recorded

    def _recovery(self, case: _Case) -> Recovery:
        return Recovery(
            operation_id=case.sidecar.operation_id,
            recovery_kind=RECORDED_AS[case.decision],
            recovery_for_actor=case.sidecar.actor,
            sidecar_writer_kind=case.sidecar.kind,
            outcomes={key: str(found) for key, found in case.classes.items()},
            created_at_us=int(self._now() * 1e6),
        )

    def _forget(self, cases: Sequence[_Case]) -> None:
        if not cases:
            return
        reach(Point.RECOVERY_BEFORE_SIDECAR)
        self._sidecars.delete([case.sidecar.operation_id for case in cases])
        reach(Point.RECOVERY_AFTER_SIDECAR)


def _ids(cases: Iterable[_Case]) -> tuple[str, ...]:
    return tuple(case.sidecar.operation_id for case in cases)


def _facts(outcomes: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={found}" for key, found in outcomes.items())


def _began_ms(operation_id: str) -> int:
    """When an operation began: a ULID starts with its creation time."""
    return int(ULID.from_str(operation_id).milliseconds)
