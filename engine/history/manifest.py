"""`__manifest`: the line made queryable, as one Lance dataset.

Rows are registrations (`table`), pins (`table_version`, `graph_pins`), lineage (`graph_commit`), what the line includes
of others (`graph_vector`), recoveries (`graph_recovery`) and one `graph_head:<branch>`, which says up to which number
the line has been folded in. Phase D folds objects in batches, so the commit rate of this table is not the graph's. A
fold is one Lance Update that removes the head fragment it read and adds the next one: a true compare-and-swap, so that
each object is folded exactly once however many processes try.

No process owns it: while it does not exist nothing is folded, and the first fold creates it. Before recoveries are
folded they are recorded in the audit, so every folded recovery is audited too.

Fragments, in order: sealed lineage, the lineage tail (rewritten until full), the head (always last, one row). Sealed
lineage is merged and indexed by object id and number behind the fold (`lineage_upkeep`), and now and then all
pins are written out (`written_pins`): so only a walk through the whole history reads all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.history import audit, written_pins
from omniray.engine.history.cas_table import lance_errors
from omniray.engine.history.lineage_entry import entries_of, time_of
from omniray.engine.history.lineage_levels import SEALED_ROWS
from omniray.engine.history.lineage_upkeep import is_merge_due, keep_up
from omniray.engine.history.manifest_reader import ManifestReader
from omniray.engine.history.manifest_rows import (
    SCHEMA,
    commit_row,
    head_row,
    recovery_row,
    registration_row,
    vector_row,
    version_row,
)
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import ObjectStore

TAIL_ROWS_MAX = SEALED_ROWS
FOLD_ATTEMPTS_MAX = 32
FIRST_SEQ = 1


@dataclass(frozen=True, slots=True)
class Folded:
    """How far a line is folded, and up to which number all of its versions have their final names."""

    through: int
    named_through: int


@dataclass(frozen=True, slots=True)
class _End:
    """The last two fragments of the manifest at one version: the lineage tail, if it is not full, and the head."""

    dataset: lance.LanceDataset | None
    folded_through: int = 0
    named_through: int = 0
    head_commit_id: str = ""
    tail: pa.Table | None = None


class Manifest(ManifestReader):
    """Folds objects of one branch's line and reads what is folded; the first fold creates the dataset."""

    def __init__(
        self, store: ObjectStore, branch: BranchId, *, clock: Callable[[], float] = suspension_aware_clock
    ) -> None:
        super().__init__(store, branch, clock=clock)
        self._warm: _End | None = None  # as of our own last fold, so that the next one reads nothing

    def fold(self, objects: Sequence[CommitObject], *, named_through: int) -> int:
        """Fold objects (oldest first) that are not folded yet; returns the number up to which the line is folded then.

        `named_through` is the number up to which every version is known to have its final name.
        """
        try:
            with lance_errors(f"fold into {self._table.uri}"):
                return self._fold(objects, named_through)
        except StorageError:
            self._warm = None  # it may have landed: the next fold begins from the stored head
            raise

    def _fold(self, objects: Sequence[CommitObject], named_through: int) -> int:
        for _ in range(FOLD_ATTEMPTS_MAX):
            end = self._warm or self._read_end()
            new = [obj for obj in objects if obj.seq > end.folded_through]
            if not new:
                return end.folded_through
            if new[0].seq != end.folded_through + 1:
                if self._warm is None:
                    raise _gap(new[0].seq, end.folded_through)
                self._warm = None  # the cached end is old
            elif end.dataset is None:
                self._table.create()
                self._warm = None  # another process may have created it too, and folded since
            else:
                try:
                    self._warm = self._advance(end, end.dataset, new, max(end.named_through, named_through))
                except CommitConflictError:
                    self._warm = None  # another process folded first: begin again from its head
                else:
                    return new[-1].seq
        raise StorageError(f"can't fold into {self._table.uri}: lost {FOLD_ATTEMPTS_MAX} races in a row; try again")

    def _advance(self, end: _End, dataset: lance.LanceDataset, new: Sequence[CommitObject], named_through: int) -> _End:
        """Record and fold the objects that follow `end`; raises CommitConflictError if that is no longer the end."""
        if any(obj.recoveries for obj in new):
            reach(Point.D_BEFORE_AUDIT)
            audit.record(self._store, new)
        rows: list[dict[str, Any]] = []
        parent = end.head_commit_id
        for obj in new:
            rows += _rows_of(obj, parent=parent)
            parent = obj.head
        return self._swap(end, dataset, rows, new[-1], named_through)

    def folded(self) -> Folded:
        """How far the line is folded; the next fold reuses what this read."""
        self._warm = end = self._read_end()  # another thread may set it meanwhile
        return Folded(end.folded_through, end.named_through)

    def folded_through(self) -> int:
        """The number up to which the line is folded."""
        return self.folded().through

    def keep_up(self) -> None:
        """Merge and index sealed lineage, once enough of it has gathered since the last time."""
        warm = self._warm
        if warm is not None and warm.dataset is not None and is_merge_due(warm.dataset):
            self._warm = None  # the next fold begins from the version that this leaves
            with lance_errors(f"merge lineage in {self._table.uri}"):
                keep_up(self._table)

    def discard_old_versions(self) -> None:
        """Delete old versions of the manifest itself, now and then: it needs no time travel."""
        warm = self._warm  # another thread may set it meanwhile
        if warm is not None and warm.dataset is not None:
            self._table.discard_old_versions(warm.dataset.version)

    def take_leftovers(self) -> list[str]:
        """Staging names that have become final and may be deleted, each of them once."""
        return self._table.take_leftovers()

    def _read_end(self) -> _End:
        dataset = self._table.open()
        fragments = dataset.get_fragments() if dataset is not None else []
        if not fragments:
            return _End(dataset)
        with lance_errors(f"read {self._table.uri}"):
            head = self._head_of(fragments[-1].to_table())
            tail = fragments[-2] if len(fragments) > 1 and fragments[-2].physical_rows < TAIL_ROWS_MAX else None
            facts = json.loads(head["metadata"])
            return _End(dataset, head["seq"], facts["named_through"], facts["commit_id"], tail and tail.to_table())

    def _swap(
        self,
        end: _End,
        dataset: lance.LanceDataset,
        rows: list[dict[str, Any]],
        newest: CommitObject,
        named_through: int,
    ) -> _End:
        """Replace the head that was read with the new one; raises CommitConflictError if it is gone."""
        replaced = 0 if end.folded_through == 0 else 1 if end.tail is None else 2
        removed = [f.fragment_id for f in dataset.get_fragments()[-replaced:]] if replaced else []
        lineage = pa.Table.from_pylist(rows, schema=SCHEMA)
        if end.tail is not None:
            lineage = pa.concat_tables([end.tail, lineage]).combine_chunks()
        head = pa.Table.from_pylist([head_row(newest, named_through)], schema=SCHEMA)
        new = [*(write_fragments(lineage, dataset) if lineage.num_rows else ()), *write_fragments(head, dataset)]
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=[], new_fragments=new, fields_modified=[]
        )
        staged = self._table.stage(dataset, operation)
        reach(Point.D_FOLD_STAGED)
        after = self._table.publish(staged)
        tail = lineage if 0 < lineage.num_rows < TAIL_ROWS_MAX else None
        return _End(after, newest.seq, named_through, newest.head, tail)


def _rows_of(obj: CommitObject, parent: str) -> Iterator[dict[str, Any]]:
    if obj.seq == FIRST_SEQ:
        yield from (registration_row(table_key, pin, obj.seq) for table_key, pin in obj.pins.items())
    for entry in entries_of(obj, parent):
        yield commit_row(entry)
    for recovery in obj.recoveries:
        yield recovery_row(recovery, obj.seq)
    if obj.includes_anew:
        yield vector_row(obj)
    # A branch begins with versions of its parent, which its first object pins without having introduced them.
    at = time_of(obj.head_at_us)  # so that a search for a time learns something from any row
    for table_key, pin in (obj.pins if obj.seq == FIRST_SEQ else obj.introduced()).items():
        yield {**version_row(table_key, pin, obj), "at": at}
    if written_pins.is_due(obj.seq):
        yield written_pins.pins_row(obj)


def _gap(seq: int, folded_through: int) -> InvariantViolation:
    return InvariantViolation(
        f"can't fold object {seq}: __manifest is folded through {folded_through}; if it was deleted or set back, "
        "restore it from a backup",
        seq=seq, folded_through=folded_through,
    )  # fmt: skip
