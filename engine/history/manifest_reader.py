"""Reads `__manifest`: the commits, pins and recoveries of a line as far as it is folded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import InvariantViolation
from omniray.engine.history import written_pins
from omniray.engine.history.cas_table import SwapTable, lance_errors
from omniray.engine.history.lineage_entry import CommitId, LineageEntry, Step
from omniray.engine.history.manifest_rows import (
    SCHEMA,
    VECTOR,
    entry_of,
    has_any_id,
    has_id,
    is_a,
    pin_of,
    recovery_id,
    recovery_of,
    vector_id,
    vector_of,
    version_id,
    within,
)
from omniray.engine.history.time_search import last_commit_until
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject, Pin, Recovery
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.store.object_store import ObjectStore

MAIN_PATH = "__manifest"
BRANCHES_PATH = "__manifests"
CHUNK_ROWS = 4096


class ManifestReader:
    """The folded part of one branch's line; it reads as empty until the first object is folded."""

    def __init__(
        self, store: ObjectStore, branch: BranchId, *, clock: Callable[[], float] = suspension_aware_clock
    ) -> None:
        self._store = store
        self._table = SwapTable(store, path_of(branch), SCHEMA, clock=clock)
        self._branch = branch
        self._seen = (0, 0)  # a version, and the number up to which it is folded

    def commits(self, limit: int | None = None) -> Iterator[LineageEntry]:
        """The folded lineage, newest first; reads only as many rows as it needs."""
        chunks = self._chunks_newest_first()
        newest_first = (
            entry_of(row) for rows in chunks for row in reversed(rows.filter(is_a("graph_commit")).to_pylist())
        )
        return itertools.islice(newest_first, limit)

    def commit_ids(self) -> Iterator[CommitId]:
        """The ids of the folded commits, newest first; reads only as many as are taken."""
        for rows in self._chunks_newest_first(["object_id", "object_type", "seq", "at"]):
            commits = rows.filter(is_a("graph_commit"))
            columns = commits["object_id"], commits["seq"], commits["at"].cast(pa.int64())
            yield from reversed(list(map(CommitId, *(column.to_pylist() for column in columns))))

    def commit(self, commit_id: str) -> LineageEntry | None:
        found = self._rows(is_a("graph_commit") & has_id(commit_id))
        return entry_of(found.to_pylist()[0]) if found.num_rows else None

    def is_folded(self, obj: CommitObject) -> bool:
        """Whether this object, which has commits, is part of the lineage."""
        found = self.commit(obj.commits[-1].commit_id)
        return found is not None and found.op_id == obj.op_id

    def commits_with(self, commit_ids: Collection[str]) -> list[LineageEntry]:
        """The folded commits among these ids."""
        return [entry_of(row) for row in self._rows(is_a("graph_commit") & has_any_id(list(commit_ids))).to_pylist()]

    def holds_none(self, commit_ids: Collection[str], through: int) -> bool:
        """Whether a version that is folded up to `through` or further holds none of the commits."""
        dataset = self._table.open_to_read()
        if dataset is None:
            return False
        with lance_errors(f"read {self._table.uri}"):
            version, folded_through = self._seen
            if version > dataset.version or folded_through < through:  # a later version is folded at least as far
                version, folded_through = self._seen = dataset.version, self._folded_in(dataset)
            if folded_through < through:
                return False
            return bool(_select(dataset, has_any_id(list(commit_ids)), ["object_id"]).num_rows == 0)

    def newest_commit_until(self, at: datetime) -> LineageEntry | None:
        """The newest commit that was made at or before a time."""
        dataset = self._table.open_to_read()
        if dataset is None:
            return None
        with lance_errors(f"read {self._table.uri}"):
            found = last_commit_until(dataset, at)
        return None if found is None else entry_of(found)

    def recoveries(self, through: int = SEQ_MAX) -> Iterator[Recovery]:
        """The folded recoveries that were recorded at or below a number of the line, newest first."""
        rows = self._newest_first("graph_recovery")
        return (recovery_of(row) for row in rows if row["seq"] <= through)

    def recorded(self, operation_ids: Collection[str]) -> set[str]:
        """The operations among these that have a folded recovery."""
        ids = {recovery_id(operation_id): operation_id for operation_id in operation_ids}
        found = self._rows(is_a("graph_recovery") & pc.field("object_id").isin(list(ids)))
        return {ids[object_id] for object_id in found["object_id"].to_pylist()}

    def versions_introduced(self, seq: int) -> dict[str, int]:
        """The table versions that a number of the line introduced."""
        return self.versions_introduced_by([seq]).get(seq, {})

    def versions_introduced_by(self, seqs: Collection[int]) -> dict[int, dict[str, int]]:
        """The same for many numbers at once; numbers without any are left out."""
        found = self._rows(is_a("table_version") & pc.field("seq").isin(pa.array(sorted(seqs), pa.int64())))
        versions: dict[int, dict[str, int]] = {}
        for row in found.to_pylist():
            versions.setdefault(row["seq"], {})[row["table_key"]] = row["table_version"]
        return versions

    def pins_of(self, versions: Collection[tuple[str, int]]) -> list[Pin]:
        """The pins of these versions of tables, each a key and a number, without those that are not folded."""
        ids = [version_id(table_key, version) for table_key, version in versions]
        return [pin_of(row) for row in self._rows(has_any_id(ids)).to_pylist()]

    def pins_at(self, seq: int) -> dict[str, Pin]:
        """The version of every table as of a number of the line: for each the newest at or below it."""
        dataset = self._table.open_to_read()
        if dataset is None:
            return {}
        select = partial(_select, dataset)
        with lance_errors(f"read {self._table.uri}"):
            seq = min(seq, self._folded_in(dataset))
            start = written_pins.last_place(seq)
            rows = written_pins.written_at(select, start) if start else []
            rows += select(is_a("table_version") & within(start, seq)).to_pylist()
            return {row["table_key"]: pin_of(row) for row in sorted(rows, key=lambda row: row["seq"])}

    def contains_at(self, seq: int) -> dict[str, int] | None:
        """What a number of the line includes of other lines; None if it includes none of any."""
        found = [number for number, _ in self.vectors() if number <= seq]
        if not found:
            return None
        (row,) = self._rows(has_id(vector_id(max(found)))).to_pylist()
        return vector_of(row)

    def vectors(self) -> list[tuple[int, datetime]]:
        """The numbers at which what the line includes of other lines has changed, with their times, in order."""
        found = self._rows(is_a(VECTOR), columns=["seq", "at"]).to_pylist()
        return sorted((row["seq"], row["at"]) for row in found)

    def change_numbers(self, after: int, through: int) -> list[int]:
        """The numbers in a range of all commits that changed tables, in order; one for each commit."""
        of_either = is_a("graph_commit") | is_a("table_version")
        rows = self._rows(of_either & within(after, through), columns=["object_type", "seq"])
        changes = rows.filter(is_a("table_version"))["seq"]
        commits = rows.filter(is_a("graph_commit"))["seq"]
        return sorted(commits.filter(pc.is_in(commits, value_set=changes)).to_pylist())

    def steps(self, after: int, through: int) -> list[Step]:
        """What a range of numbers introduced, oldest first; numbers that changed no table are left out.

        A range is read at once: a version of the manifest that is read slowly may be deleted meanwhile.
        """
        bounds = within(after, through)
        rows = self._rows(is_a("table_version") & bounds).to_pylist()
        commits = self._rows(is_a("graph_commit") & bounds, columns=["object_id", "seq"]).to_pylist()
        pins: dict[int, dict[str, Pin]] = {}
        for row in rows:
            pins.setdefault(row["seq"], {})[row["table_key"]] = pin_of(row)
        ids: dict[int, list[str]] = {}
        for row in commits:
            ids.setdefault(row["seq"], []).append(row["object_id"])
        return [Step(seq, tuple(ids.get(seq, ())), pins[seq]) for seq in sorted(pins)]

    def _rows(self, where: pc.Expression, columns: list[str] | None = None) -> pa.Table:
        dataset = self._table.open_to_read()
        if dataset is None:
            return SCHEMA.empty_table()
        with lance_errors(f"read {self._table.uri}"):
            return _select(dataset, where, columns)

    def _newest_first(self, object_type: str) -> Iterator[dict[str, Any]]:
        """The rows of a rare type, fragment by fragment, however large those are."""
        dataset = self._table.open_to_read()
        for fragment in reversed(dataset.get_fragments() if dataset is not None else []):
            with lance_errors(f"read {self._table.uri}"):
                rows = fragment.to_table(filter=is_a(object_type))
            yield from reversed(rows.to_pylist())

    def _chunks_newest_first(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """All rows in chunks, the last chunk first; a merged fragment may hold a million rows."""
        dataset = self._table.open_to_read()
        for fragment in reversed(dataset.get_fragments() if dataset is not None else []):
            for end in range(fragment.physical_rows, 0, -CHUNK_ROWS):
                start = max(end - CHUNK_ROWS, 0)
                with lance_errors(f"read {self._table.uri}"):
                    rows = fragment.to_table(columns=columns, offset=start, limit=end - start)
                yield rows

    def _folded_in(self, dataset: lance.LanceDataset) -> int:
        """The number up to which a version is folded."""
        fragments = dataset.get_fragments()
        if not fragments:
            return 0
        return int(self._head_of(fragments[-1].to_table(columns=["object_id", "seq"]))["seq"])

    def _head_of(self, rows: pa.Table) -> dict[str, Any]:
        found = rows.to_pylist()
        if len(found) != 1 or found[0]["object_id"] != f"graph_head:{self._branch.ulid}":
            if self._branch.is_main:
                refuse_gone(self._store, self._branch.ulid)
            raise InvariantViolation(
                f"{self._table.uri} does not end in the head of {self._branch}; if something other than omniray wrote "
                "to it, restore it from a backup"
            )
        head: dict[str, Any] = found[0]
        return head


def path_of(branch: BranchId) -> str:
    """Where the folded part of a branch's line lies: one dataset each, so that folds of one never void another's."""
    return MAIN_PATH if branch.is_main else f"{BRANCHES_PATH}/{branch.ulid}"


def _select(dataset: lance.LanceDataset, where: pc.Expression, columns: list[str] | None = None) -> pa.Table:
    return dataset.to_table(columns=columns, filter=where)
