"""Plans a merge on one head of its target: what is done with each table, and what conflicts.

A plan is made beside the target's writers, and made again on each new head: what depends only on versions that stand is
kept, each table whose version moved is decided anew. The source stays as it was named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.branches.bases import Place, Vector, best_common_ancestors
from omniray.engine.branches.conflicts import ConflictKind, Conflicts, MergeConflict, OnConflict
from omniray.engine.branches.equal_edges import equal_edges
from omniray.engine.branches.merge_check import MergeCheck, refuse_values
from omniray.engine.branches.merge_keys import MergeKeys
from omniray.engine.branches.merge_rows import MergeRows
from omniray.engine.branches.moved_rows import MovedRows, concerned, may_agree
from omniray.engine.branches.states import LineState, States
from omniray.engine.branches.table_merge import LOOKUP_IDS_MAX, How, RowMerge, how
from omniray.engine.commit.table_change import Restore, TableChange
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.pinned_state import PinnedState, moved
from omniray.engine.judge.resolution import Affected
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.reading.table_diff import count_changed, moved_addresses
from omniray.engine.schema.types import ID, SRC, EdgeType, ElementType, NodeType
from omniray.engine.tables.row_stream import RowStream
from omniray.engine.tables.table import Table

Progress: TypeAlias = Callable[[str, int], None]
"""Called after each batch of rows with the type and the number of rows written and removed so far."""


def no_progress(type: str, rows: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a merge does with one table. Of an adopted one no row is written."""

    table_key: str
    how: How
    written: int = 0
    removed: int = 0  # the rows that are replaced among them
    settled: int = 0  # conflicts that were settled by `on_conflict`


@dataclass(slots=True)
class _TablePlan:
    """One table on one version of the target's."""

    pin: Pin
    how: How
    is_as_base: bool  # whether the target has not changed it
    rows: MergeRows | None = None
    run: RowMerge | None = None
    target: Table | None = None  # on which it was planned, where that matters
    conflicts: Conflicts = field(default_factory=lambda: Conflicts("", ""))
    adopted: int = 0  # the changed rows of an adopted table


@dataclass(frozen=True, slots=True)
class _Judged:
    """What was found on the rules of the merged state, and what that depends on."""

    head: CommitObject
    is_as_source: Mapping[str, bool]
    consulted: frozenset[str]
    found: Conflicts


@dataclass(frozen=True, slots=True)
class Verdict:
    """A plan on one head. `is_new` says whether the source has anything that the target's tables don't have."""

    changes: Mapping[str, TableChange]
    conflicts: Conflicts
    affected: Affected
    tables: tuple[TableSummary, ...]
    is_new: bool
    is_fast_forward: bool

    @property
    def is_committable(self) -> bool:
        return self.is_new and not self.conflicts.count


class MergePlan:
    """Plans the merge of a source into a branch; close it in the end. `staging` opens the files for many rows.

    Without `staging` nothing is written, and the plan is good for a preview alone. The bases follow from the vectors,
    or are given: a revert merges a commit's predecessor, with the commit as its base.
    """

    def __init__(
        self,
        branch: OpenBranch,
        states: States,
        source: LineState,
        on_conflict: OnConflict,
        staging: Callable[[Table], RowStream] | None = None,
        bases: tuple[Place, ...] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._progress = progress
        self._branch, self._states, self._source, self._on_conflict = branch, states, source, on_conflict
        self._staging, self._given = staging, bases
        self._bases: dict[Place, LineState] = {}
        self._tables: dict[str, _TablePlan] = {}
        self._keys = MergeKeys(branch.schema)
        self.is_anew = False  # whether a table was planned anew on the last head
        self._adopted: set[str] = set()  # adopted tables whose keys are known
        self._judged: _Judged | None = None
        self._moved: dict[str, MovedRows] = {}  # since that, in tables whose plans stand
        self._ids: tuple[str, ...] | None = None  # of the commits that only the source has

    def close(self, *, used: bool = False) -> None:
        """Release everything; files of rows that were not committed are deleted."""
        for table_key in tuple(self._tables):
            self._drop(table_key, used=used)
        self._keys.close()

    def bases(self, head: CommitObject) -> tuple[Place, ...]:
        """The best common ancestors of the source and a head of the target."""
        if self._given is not None:
            return self._given
        return best_common_ancestors(self._source.contains, head.contains, self._vector_of(head))

    def on(self, head: CommitObject) -> Verdict:
        """The plan on a head of the target, as far as possible what an earlier one of its heads gave."""
        self._rebase(head)
        source_commit, target_commit = self._source.commit_id, head.head
        conflicts = Conflicts(source_commit, target_commit)
        if self._source.schema.hash != head.schema.hash:
            reason = "the branches have different schemas"
            conflicts.add(
                [MergeConflict(ConflictKind.SCHEMA_CONFLICT, "", self._source.schema.hash, reason=reason)], count=1
            )
            return Verdict({}, conflicts, Affected(), (), is_new=True, is_fast_forward=False)
        self._plan_tables(head)
        if any(plan.how is not How.SKIP for plan in self._tables.values()):
            self._count_duplicates(head, conflicts)
            for plan in self._tables.values():
                conflicts.add(plan.conflicts.listed, count=plan.conflicts.count)
            found = self._judge(head)
            conflicts.add(found.listed, count=found.count)
        return self._verdict(conflicts)

    def _rebase(self, head: CommitObject) -> None:
        """Find the bases; if they differ from those of the last head, nothing that was planned holds any more."""
        places = self.bases(head)
        if places != tuple(self._bases):
            for table_key in tuple(self._tables):
                self._drop(table_key, used=False)
            self._bases = {place: self._states.at(place) for place in places}
            self._judged = self._ids = None

    def _vector_of(self, head: CommitObject) -> Callable[[Place], Vector]:
        own = {self._source.place: self._source.contains, Place(head.line, head.seq): head.contains}
        return lambda place: own[place] if place in own else self._states.vector(place)

    # Tables

    def _plan_tables(self, head: CommitObject) -> None:
        """Plan each table whose version moved since the last head, unless its plan stands."""
        self.is_anew = False
        for type in self._branch.schema:
            key = type.table_key
            plan = self._tables.get(key)
            if plan is not None and plan.pin.identity == head.pins[key].identity:
                continue
            if plan is None or not self._follows(plan, type, head):
                self._drop(key, used=False)
                self._tables[key] = self._planned(type, head)
                self._judged, self.is_anew = None, True

    def _follows(self, plan: _TablePlan, type: ElementType, head: CommitObject) -> bool:
        """Whether a plan holds on a new version too: nothing that the source changed has moved since.

        So a large merge is not made anew for each write to the target.
        """
        key = type.table_key
        if plan.how is How.ADOPT or plan.how is not how(self._source.pins[key], head.pins[key], self._base_pins(type)):
            return False
        if plan.target is not None:
            now = self._table(key, head)
            moved = MovedRows.between(plan.target, now, rows_max=LOOKUP_IDS_MAX)
            if moved is None or not self._leaves(plan, type, moved):
                return False
            if plan.rows is not None and plan.run is not None:
                plan.rows.move(moved.followed(moved_addresses(plan.target, now)))
                plan.run = replace(plan.run, target=now)
            self._moved[key] = self._moved[key].then(moved) if key in self._moved else moved
            plan.target = now
        plan.pin, plan.is_as_base = head.pins[key], self._is_as_base(type, head)
        return True

    def _leaves(self, plan: _TablePlan, type: ElementType, moved: MovedRows) -> bool:
        """Whether moved rows leave a plan of rows as it is."""
        ids = moved.ids
        if plan.run is None or not len(ids):
            return True
        if plan.run.equal.rests_on(ids) or plan.run.changes_any(ids):
            return False
        return not (isinstance(type, EdgeType) and may_agree(type, self._keys, moved))

    def _is_as_base(self, type: ElementType, head: CommitObject) -> bool:
        content = head.pins[type.table_key].content
        return all(base is not None and base.content == content for base in self._base_pins(type))

    def _base_pins(self, type: ElementType) -> list[Pin | None]:
        return [state.pins.get(type.table_key) for state in self._bases.values()]

    def _planned(self, type: ElementType, head: CommitObject) -> _TablePlan:
        key = type.table_key
        source, target = self._source.pins[key], head.pins[key]
        plan = _TablePlan(target, how(source, target, self._base_pins(type)), self._is_as_base(type, head))
        if plan.how is How.ADOPT and not self._fits(key, head):
            plan.how = How.ROWS
        if plan.how is How.ADOPT:
            plan.adopted = count_changed(self._table(key, head), self._states.table(self._source, key))
        if plan.how is How.ROWS:
            self._merge_rows(type, head, plan)
        return plan

    def _fits(self, key: str, head: CommitObject) -> bool:
        """Whether the source's version has the columns of the target's, down to the ids of their fields."""
        source, target = self._states.table(self._source, key), self._table(key, head)
        return bool(source.dataset.lance_schema == target.dataset.lance_schema)

    def _merge_rows(self, type: ElementType, head: CommitObject, plan: _TablePlan) -> None:
        key = type.table_key
        source, target = self._states.table(self._source, key), self._table(key, head)
        bases = {place: self._states.table(state, key) for place, state in self._bases.items()}
        plan.run = RowMerge(
            type, source, target, bases, lambda place: self._older(place, key), self._vector_of(head),
            self._on_conflict, equal_edges(type, source, target, tuple(bases.values())),
        )  # fmt: skip
        begin = self._staging
        plan.rows = MergeRows(type, None if begin is None else lambda: begin(target))
        for batch in plan.run.run(lambda: plan.conflicts.room):
            plan.conflicts.add(batch.listed, count=batch.conflicts)
            plan.rows.add(batch)
            self._progress(type.name, plan.rows.written + plan.rows.removed)
            self._keys.add(type, batch.rows, batch.displaced)
            refuse_values(type, batch.mixed, plan.conflicts)
        plan.rows.finish()
        plan.target = target

    def _older(self, place: Place, key: str) -> Table | None:
        """A table as of an older base; None if it was cleaned up."""
        with suppress(InvariantViolation, KeyError):
            return self._states.table(self._states.at(place), key)
        return None

    def _table(self, key: str, head: CommitObject) -> Table:
        pin = head.pins[key]
        return self._branch.cache.open(key, pin, is_final=head.is_final(pin))

    def _drop(self, key: str, *, used: bool) -> None:
        plan = self._tables.pop(key, None)
        self._keys.forget(self._branch.schema.by_table_key[key])
        self._adopted.discard(key)
        if plan is not None and plan.rows is not None:
            plan.rows.close(self._branch.storage, plan.pin.path, used=used)

    # Conflicts

    def _judge(self, head: CommitObject) -> Conflicts:
        """The violations of the merged state; those of the last head, if nothing that matters to them has moved."""
        is_as_source = {
            key: plan.how is How.ADOPT or self._source.pins[key].content == plan.pin.content
            for key, plan in self._tables.items()
        }
        last = self._judged
        if last is not None and last.is_as_source == is_as_source:
            away = moved(set(last.consulted), last.head, head)
            if not away:
                return last.found
            if not last.found.count and away <= self._moved.keys():
                with concerned(self._branch.schema, self._keys, self._moved) as keys:
                    again = self._checked(head, is_as_source, keys)
                if not again.found.count:
                    self._judged, self._moved = replace(again, consulted=last.consulted | again.consulted), {}
                    return again.found
        self._add_adopted(head, is_as_source)
        self._judged, self._moved = self._checked(head, is_as_source, self._keys), {}
        for key in self._judged.consulted:
            self._tables[key].target = self._table(key, head)
        return self._judged.found

    def _checked(self, head: CommitObject, is_as_source: Mapping[str, bool], keys: MergeKeys) -> _Judged:
        """Check the merged state by some of the merge's keys."""
        state = PinnedState(self._branch.cache, head, is_beside_writer=True)
        found = Conflicts("", "")
        ways = {key: plan.how for key, plan in self._tables.items()}
        MergeCheck(self._branch.schema, ways, is_as_source, keys, state, self._degrees, found).run()
        return _Judged(head, is_as_source, frozenset(state.consulted), found)

    def _add_adopted(self, head: CommitObject, is_as_source: Mapping[str, bool]) -> None:
        """Log the keys of adopted tables where they meet a table that will not be as on the source."""
        for type in self._branch.schema:
            key = type.table_key
            if self._tables[key].how is not How.ADOPT or key in self._adopted:
                continue
            if any(not is_as_source[other] for other in _neighbours(self._branch, type)):
                self._keys.add_adopted(type, self._table(key, head), self._states.table(self._source, key))
                self._adopted.add(key)

    def _degrees(self, edge: EdgeType, sources: pa.Array) -> Mapping[str, int]:
        """How many edges some nodes have on the source, of those that are there."""
        nodes = self._states.table(self._source, self._branch.schema.node(edge.source).table_key)
        edges = self._states.table(self._source, edge.table_key)
        there = nodes.scan([ID], pc.field(ID).isin(sources)).read_all()[ID]
        found = edges.scan([SRC], pc.field(SRC).isin(sources)).read_all()[SRC].value_counts()
        counts = {one["values"]: one["counts"] for one in found.to_pylist()}
        return {id: counts.get(id, 0) for id in there.to_pylist()}

    def _count_duplicates(self, head: CommitObject, conflicts: Conflicts) -> None:
        """Find writes that were applied on both sides, each under the same id."""
        if self._on_conflict is not OnConflict.FAIL or self._given is not None:
            return
        if self._ids is None:
            self._ids = tuple(set(self._own_ids(self._source.contains, head.contains)))
        found: set[str] = set()
        for line, after, through in _beyond(head.contains, self._source.contains):
            lineage, newest = self._states.lineage(line) if line != head.line else (self._branch.lineage, head)
            for at in range(0, len(self._ids), LOOKUP_IDS_MAX):
                entries = lineage.find_all(self._ids[at : at + LOOKUP_IDS_MAX], newest).values()
                found |= {entry.commit_id for entry in entries if after < entry.seq <= through}
        reason = "this write was applied on both branches: choose which rows stay with 'ours' or 'theirs'"
        listed = (MergeConflict(ConflictKind.DUPLICATE_COMMIT, "", one, reason=reason) for one in sorted(found))
        conflicts.add(listed, count=len(found))

    def _own_ids(self, own: Vector, other: Vector) -> Iterator[str]:
        """The ids of the commits that one vector includes and another does not."""
        for line, after, through in _beyond(own, other):
            lineage, newest = self._states.lineage(line)
            for one in lineage.commit_ids(newest):
                if one.seq <= after:
                    break
                if one.seq <= through:
                    yield one.commit_id

    # The result

    def _verdict(self, conflicts: Conflicts) -> Verdict:
        changes: dict[str, TableChange] = {}
        nodes = edges = 0
        summaries = []
        for key, plan in self._tables.items():
            count = 0
            if plan.how is How.ADOPT:
                changes[key] = Restore(self._source.pins[key])
                count = plan.adopted
            elif plan.rows is not None:
                count = plan.rows.affected
                if self._staging is not None and (write := plan.rows.write()) is not None:
                    changes[key] = write
            if plan.how is not How.SKIP:
                made = plan.rows
                counts = (0, 0, 0) if made is None else (made.written, made.removed, made.settled)
                summaries.append(TableSummary(key, plan.how, *counts))
            nodes, edges = (nodes + count, edges) if key.startswith("node:") else (nodes, edges + count)
        return Verdict(
            changes, conflicts, Affected(nodes, edges), tuple(summaries),
            is_new=any(plan.how is not How.SKIP for plan in self._tables.values()),
            is_fast_forward=all(plan.is_as_base for plan in self._tables.values()),
        )  # fmt: skip


def _beyond(own: Vector, other: Vector) -> Iterator[tuple[str, int, int]]:
    """The numbers that one vector includes and another does not: by line, above the first through the second."""
    for line, number in own.items():
        if number > other.get(line, 0):
            yield line, other.get(line, 0), number


def _neighbours(branch: OpenBranch, type: ElementType) -> Iterator[str]:
    """The tables that rules over a table's edges join it with."""
    if isinstance(type, NodeType):
        yield from (edge.table_key for edge in branch.schema.edges_at(type.name))
    else:
        yield from (branch.schema.node(name).table_key for name in {type.source, type.target})
