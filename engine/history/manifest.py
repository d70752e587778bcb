"""`__manifest`: the line made queryable, as one Lance dataset.

Rows are registrations (`table`), pins (`table_version`, `graph_pins`), lineage (`graph_commit`), recoveries
(`graph_recovery`) and one `graph_head:<branch>`, which says up to which number the line has been folded in. Phase D
folds objects in batches, so the commit rate of this table is not the graph's. A fold is one Lance Update that removes
the head fragment it read and adds the next one: a true compare-and-swap, so that each object is folded exactly once
however many processes try.

No process owns it: while it does not exist nothing is folded, and the first fold creates it. Before recoveries are
folded they are recorded in the audit, so every folded recovery is audited too.

Fragments, in order: sealed lineage, the lineage tail (rewritten until full), the head (always last, one row). Sealed
lineage is merged and indexed by object id and number behind the fold (`lineage_upkeep`), and every `PINS_EVERY` numbers
all pins are written out (`graph_pins`): so only a walk through the whole history reads all of it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import lance
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.history import audit
from omniray.engine.history.cas_table import SwapTable, lance_errors
from omniray.engine.history.lineage_levels import SEALED_ROWS
from omniray.engine.history.lineage_upkeep import is_merge_due, keep_up
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_object import SEQ_MAX, Commit, CommitObject, MergedParent, Pin, Recovery
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.store.object_store import ObjectStore

MAIN_PATH = "__manifest"
BRANCHES_PATH = "__manifests"
TAIL_ROWS_MAX = SEALED_ROWS
FOLD_ATTEMPTS_MAX = 32
FIRST_SEQ = 1
PINS_EVERY = 256  # numbers of the line
TIME_PROBES = 64
CHUNK_ROWS = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("table_key", pa.string()),
        pa.field("table_version", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """One commit of the history."""

    commit_id: str
    parent: str
    seq: int
    kind: str
    actor: str
    tenant: str
    at: datetime
    tables: tuple[str, ...]
    op_id: str
    payload_hash: str
    nodes: int
    edges: int
    rejected: int
    message: str = ""
    merged: tuple[MergedParent, ...] = ()


class CommitId(NamedTuple):
    """A commit by its id, with the number and the time of its object."""

    commit_id: str
    seq: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one object of the line introduced: its commits, oldest first, and versions of tables."""

    seq: int
    commit_ids: tuple[str, ...]
    pins: Mapping[str, Pin]


# The fields of a commit that have no column of their own.
_COMMIT_FACTS = tuple(f.name for f in fields(LineageEntry) if f.name not in ("commit_id", "seq", "at"))


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


class Manifest:
    """The folded part of one branch's line; it does not exist, and reads as empty, until the first object is folded."""

    def __init__(
        self, store: ObjectStore, branch: BranchId, *, clock: Callable[[], float] = suspension_aware_clock
    ) -> None:
        self._store = store
        self._table = SwapTable(store, path_of(branch), SCHEMA, clock=clock)
        self._branch = branch
        self._seen = (0, 0)  # a version, and the number up to which it is folded
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

    def commits(self, limit: int | None = None) -> Iterator[LineageEntry]:
        """The folded lineage, newest first; reads only as many rows as it needs."""
        chunks = self._chunks_newest_first()
        newest_first = (
            _entry(row) for rows in chunks for row in reversed(rows.filter(_is("graph_commit")).to_pylist())
        )
        return itertools.islice(newest_first, limit)

    def commit_ids(self) -> Iterator[CommitId]:
        """The ids of the folded commits, newest first; reads only as many as are taken."""
        for rows in self._chunks_newest_first(["object_id", "object_type", "seq", "at"]):
            commits = rows.filter(_is("graph_commit"))
            columns = commits["object_id"], commits["seq"], commits["at"].cast(pa.int64())
            yield from reversed(list(map(CommitId, *(column.to_pylist() for column in columns))))

    def commit(self, commit_id: str) -> LineageEntry | None:
        found = self._rows(_is("graph_commit") & _has_id(commit_id))
        return _entry(found.to_pylist()[0]) if found.num_rows else None

    def is_folded(self, obj: CommitObject) -> bool:
        """Whether this object, which has commits, is part of the lineage."""
        found = self.commit(obj.commits[-1].commit_id)
        return found is not None and found.op_id == obj.op_id

    def commits_with(self, commit_ids: Collection[str]) -> list[LineageEntry]:
        """The folded commits among these ids."""
        return [_entry(row) for row in self._rows(_is("graph_commit") & _has_any_id(list(commit_ids))).to_pylist()]

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
            return bool(_select(dataset, _has_any_id(list(commit_ids)), ["object_id"]).num_rows == 0)

    def newest_commit_until(self, at: datetime) -> LineageEntry | None:
        """The newest commit that was made at or before a time.

        Commits never go back in time: so the last written-out pins at or before it say after which number to look.
        """
        dataset = self._table.open_to_read()
        if dataset is None:
            return None
        with lance_errors(f"read {self._table.uri}"):
            before = self._pins_until(dataset, at)
            start = 0 if before is None else before["seq"]
            commits = _select(dataset, _is("graph_commit") & _within(start, start + PINS_EVERY)).to_pylist()
            if found := [row for row in commits if row["at"] <= at]:
                return _entry(max(found, key=lambda row: row["seq"]))
            if before is None:
                return None
            (pins,) = _select(dataset, _has_id(before["object_id"]), ["metadata"]).to_pylist()
            return _entry(_select(dataset, _has_id(json.loads(pins["metadata"])["commit_id"])).to_pylist()[0])

    def recoveries(self, through: int = SEQ_MAX) -> Iterator[Recovery]:
        """The folded recoveries that were recorded at or below a number of the line, newest first."""
        rows = self._newest_first("graph_recovery")
        return (_recovery(row) for row in rows if row["seq"] <= through)

    def recorded(self, operation_ids: Collection[str]) -> set[str]:
        """The operations among these that have a folded recovery."""
        ids = {_recovery_id(operation_id): operation_id for operation_id in operation_ids}
        found = self._rows(_is("graph_recovery") & pc.field("object_id").isin(list(ids)))
        return {ids[object_id] for object_id in found["object_id"].to_pylist()}

    def versions_introduced(self, seq: int) -> dict[str, int]:
        """The table versions that a number of the line introduced."""
        return self.versions_introduced_by([seq]).get(seq, {})

    def versions_introduced_by(self, seqs: Collection[int]) -> dict[int, dict[str, int]]:
        """The same for many numbers at once; numbers without any are left out."""
        found = self._rows(_is("table_version") & pc.field("seq").isin(pa.array(sorted(seqs), pa.int64())))
        versions: dict[int, dict[str, int]] = {}
        for row in found.to_pylist():
            versions.setdefault(row["seq"], {})[row["table_key"]] = row["table_version"]
        return versions

    def pins_at(self, seq: int) -> dict[str, Pin]:
        """The version of every table as of a number of the line: for each the newest at or below it."""
        dataset = self._table.open_to_read()
        if dataset is None:
            return {}
        with lance_errors(f"read {self._table.uri}"):
            seq = min(seq, self._folded_in(dataset))
            start = seq - seq % PINS_EVERY
            rows = self._pins_written_at(dataset, start) if start else []
            rows += _select(dataset, _is("table_version") & _within(start, seq)).to_pylist()
            return {row["table_key"]: _pin(row) for row in sorted(rows, key=lambda row: row["seq"])}

    def steps(self, after: int, through: int) -> list[Step]:
        """What a range of numbers introduced, oldest first; numbers that changed no table are left out.

        A range is read at once: a version of the manifest that is read slowly may be deleted meanwhile.
        """
        bounds = _within(after, through)
        rows = self._rows(_is("table_version") & bounds).to_pylist()
        commits = self._rows(_is("graph_commit") & bounds, columns=["object_id", "seq"]).to_pylist()
        pins: dict[int, dict[str, Pin]] = {}
        for row in rows:
            pins.setdefault(row["seq"], {})[row["table_key"]] = _pin(row)
        ids: dict[int, list[str]] = {}
        for row in commits:
            ids.setdefault(row["seq"], []).append(row["object_id"])
        return [Step(seq, tuple(ids.get(seq, ())), pins[seq]) for seq in sorted(pins)]

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
                rows = fragment.to_table(filter=_is(object_type))
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

    def _pins_written_at(self, dataset: lance.LanceDataset, seq: int) -> list[dict[str, Any]]:
        """The pins of all tables as they were written out at a number, as rows of their versions."""
        found = _select(dataset, _has_id(_pins_id(seq))).to_pylist()
        if not found:
            raise InvariantViolation(f"__manifest has no pins written out at {seq}; was it written by something else?")
        rows: list[dict[str, Any]] = json.loads(found[0]["metadata"])["pins"]
        return rows

    def _pins_until(self, dataset: lance.LanceDataset, at: datetime) -> dict[str, Any] | None:
        """The last row of written-out pins that is not later than a time; each probe of some narrows it down."""
        last, low, high = None, 0, self._folded_in(dataset) // PINS_EVERY
        while low < high:
            step = -(-(high - low) // TIME_PROBES)
            probes = {_pins_id(place * PINS_EVERY): place for place in range(low + 1, high + 1, step)}
            found = _select(dataset, _has_any_id(list(probes)), ["object_id", "seq", "at"]).to_pylist()
            rows = {probes[row["object_id"]]: row for row in found}
            if len(rows) < len(probes):
                raise InvariantViolation("__manifest lacks pins that it should have; was it written by something else?")
            until = [place for place, row in rows.items() if row["at"] <= at]
            high = min((place - 1 for place in rows if place not in until), default=high)
            if until:
                low = max(until)
                last = rows[low]
        return last

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

    def _head_of(self, rows: pa.Table) -> dict[str, Any]:
        found = rows.to_pylist()
        if len(found) != 1 or found[0]["object_id"] != f"graph_head:{self._branch.ulid}":
            if self._branch.is_main:
                refuse_gone(self._store, self._branch.ulid)
            raise InvariantViolation(
                f"{self._table.uri} does not end in the head of {self._branch}; was it written by something else?"
            )
        head: dict[str, Any] = found[0]
        return head

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
        head = pa.Table.from_pylist([_head_row(newest, named_through)], schema=SCHEMA)
        new = [*(write_fragments(lineage, dataset) if lineage.num_rows else ()), *write_fragments(head, dataset)]
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=[], new_fragments=new, fields_modified=[]
        )
        staged = self._table.stage(dataset, operation)
        reach(Point.D_FOLD_STAGED)
        after = self._table.publish(staged)
        tail = lineage if 0 < lineage.num_rows < TAIL_ROWS_MAX else None
        return _End(after, newest.seq, named_through, newest.head, tail)


def entries_of(obj: CommitObject, parent: str) -> Iterator[LineageEntry]:
    """An object's commits as lineage, oldest first; `parent` is the head of the object before."""
    for commit in obj.commits:
        yield _lineage(commit, parent, obj)
        parent = commit.commit_id


def _lineage(commit: Commit, parent: str, obj: CommitObject) -> LineageEntry:
    return LineageEntry(
        commit_id=commit.commit_id,
        parent=parent,
        seq=obj.seq,
        kind=commit.kind,
        actor=commit.actor,
        tenant=commit.tenant,
        at=_time(commit.at_us),
        tables=commit.tables,
        op_id=obj.op_id,
        payload_hash=commit.payload_hash,
        nodes=commit.nodes,
        edges=commit.edges,
        rejected=commit.rejected,
        message=commit.message,
        merged=commit.merged,
    )


def _rows_of(obj: CommitObject, parent: str) -> Iterator[dict[str, Any]]:
    if obj.seq == FIRST_SEQ:
        yield from (_registration(table_key, pin, obj.seq) for table_key, pin in obj.pins.items())
    for entry in entries_of(obj, parent):
        yield _commit_row(entry)
    for recovery in obj.recoveries:
        at = _time(recovery.created_at_us)
        facts = msgspec.to_builtins(recovery)
        yield _row(_recovery_id(recovery.operation_id), "graph_recovery", obj.seq, at=at, metadata=facts)
    # A branch begins with versions of its parent, which its first object pins without having introduced them.
    for table_key, pin in (obj.pins if obj.seq == FIRST_SEQ else obj.introduced()).items():
        yield _version_row(table_key, pin, obj)
    if obj.seq % PINS_EVERY == 0:
        yield _pins_row(obj)


def _pins_row(obj: CommitObject) -> dict[str, Any]:
    """All pins as of a number, so that no search for a table's newest version goes further back."""
    pins = [_version_row(key, pin, obj) for key, pin in obj.pins.items()]
    facts = {"commit_id": obj.head, "pins": pins}
    return _row(_pins_id(obj.seq), "graph_pins", obj.seq, at=_time(obj.head_at_us), metadata=facts)


def path_of(branch: BranchId) -> str:
    """Where the folded part of a branch's line lies: one dataset each, so that folds of one never void another's."""
    return MAIN_PATH if branch.is_main else f"{BRANCHES_PATH}/{branch.ulid}"


def _registration(table_key: str, pin: Pin, seq: int) -> dict[str, Any]:
    facts = {"location": pin.path, "table_id": pin.table_id}
    return _row(f"table:{table_key}", "table", seq, table_key=table_key, metadata=facts)


def _commit_row(entry: LineageEntry) -> dict[str, Any]:
    facts = {name: msgspec.to_builtins(getattr(entry, name)) for name in _COMMIT_FACTS}
    return _row(entry.commit_id, "graph_commit", entry.seq, at=entry.at, metadata=facts)


def _version_row(table_key: str, pin: Pin, obj: CommitObject) -> dict[str, Any]:
    return _row(
        _version_id(table_key, pin.version),
        "table_version",
        obj.seq,
        table_key=table_key,
        table_version=pin.version,
        row_count=pin.rows,
        metadata={"pin": msgspec.to_builtins(pin), "op_id": obj.op_id},
    )


def _head_row(obj: CommitObject, named_through: int) -> dict[str, Any]:
    pins = {key: pin.version for key, pin in obj.pins.items()}
    facts = {"commit_id": obj.head, "pins": pins, "named_through": named_through}
    return _row(f"graph_head:{obj.line}", "graph_head", obj.seq, metadata=facts)


def _row(object_id: str, object_type: str, seq: int, *, metadata: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"object_id": object_id, "object_type": object_type, "seq": seq, "metadata": json.dumps(metadata), **columns}


def _version_id(table_key: str, version: int) -> str:
    return f"table_version:{table_key}:{version:020}"


def _pins_id(seq: int) -> str:
    return f"graph_pins:{seq:020}"


def _recovery_id(operation_id: str) -> str:
    return f"recovery:{operation_id}"


def _select(dataset: lance.LanceDataset, where: pc.Expression, columns: list[str] | None = None) -> pa.Table:
    return dataset.to_table(columns=columns, filter=where)


def _within(after: int, through: int) -> pc.Expression:
    """Above one number and at or below another."""
    return (pc.field("seq") > pa.scalar(after, pa.int64())) & (pc.field("seq") <= pa.scalar(through, pa.int64()))


def _is(object_type: str) -> pc.Expression:
    return pc.field("object_type") == pa.scalar(object_type)


def _has_id(object_id: str) -> pc.Expression:
    return pc.field("object_id") == pa.scalar(object_id)


def _has_any_id(object_ids: list[str]) -> pc.Expression:
    return pc.field("object_id").isin(pa.array(object_ids, pa.string()))  # typed, since the list may be empty


def _gap(seq: int, folded_through: int) -> InvariantViolation:
    return InvariantViolation(
        f"can't fold object {seq}: __manifest is folded through {folded_through}; if it was deleted or set back, "
        "restore it from a backup",
        seq=seq, folded_through=folded_through,
    )  # fmt: skip


def _entry(row: dict[str, Any]) -> LineageEntry:
    facts = json.loads(row["metadata"])
    facts["tables"] = tuple(facts["tables"])
    facts["merged"] = tuple(MergedParent(**parent) for parent in facts["merged"])
    return LineageEntry(commit_id=row["object_id"], seq=row["seq"], at=row["at"], **facts)


def _pin(row: dict[str, Any]) -> Pin:
    return Pin(**json.loads(row["metadata"])["pin"])


def _recovery(row: dict[str, Any]) -> Recovery:
    return msgspec.json.decode(row["metadata"], type=Recovery)


def _time(since_epoch_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=since_epoch_us)
