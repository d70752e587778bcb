"""`__manifest`: the line made queryable, as one Lance dataset.

Rows are registrations (`table`), pins (`table_version`), lineage (`graph_commit`) and one `graph_head:<branch>`, which
says up to which number the line has been folded in. Phase D folds objects in batches, so the commit rate of this table
is not the graph's. A fold is one Lance Update that removes the head fragment it read and adds the next one: a true
compare-and-swap, so that each object is folded exactly once however many processes try.

Fragments, in order: sealed lineage, the lineage tail (rewritten until full), the head (always last, one row).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from omniray.engine import archive
from omniray.engine.clock import suspension_aware_clock
from omniray.engine.errors import InvariantViolation, StorageError
from omniray.engine.line import FORMAT, Answer, Commit, CommitObject, Pin, check_format
from omniray.engine.schema import Schema
from omniray.engine.store import ObjectStore
from omniray.engine.tables import Attempt, final_name

PATH = "__manifest"
STAMP = b"omniray:internal_schema_version"
TAIL_ROWS_MAX = 1024
KEPT_VERSIONS = 64
SLEPT_S = 1.0
FOLD_ATTEMPTS_MAX = 32
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
    ],
    metadata={STAMP: str(FORMAT).encode()},
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


@dataclass(frozen=True, slots=True)
class _End:
    """The last two fragments of the manifest at one version: the lineage tail, if it is not full, and the head."""

    dataset: lance.LanceDataset
    folded_through: int
    head_commit_id: str
    tail: pa.Table | None


class Manifest:
    """The folded part of one branch's line."""

    def __init__(self, store: ObjectStore, branch: str, *, clock: Callable[[], float] = suspension_aware_clock) -> None:
        self._store = store
        self._clock = clock
        self._uri = f"{store.uri}/{PATH}"
        self._branch = branch
        self._warm: _End | None = None  # as of our own last fold, so that the next one reads nothing
        self._leftovers: list[str] = []

    @classmethod
    def create(cls, store: ObjectStore, branch: str, schema: Schema, birth: CommitObject) -> Manifest:
        """Give birth to the manifest with the registrations and the first object already folded in."""
        manifest = cls(store, branch)
        registrations = [
            _row(f"table:{t.table_key}", "table", birth.seq, table_key=t.table_key, metadata={"location": t.path})
            for t in schema
        ]
        rows = registrations + _rows_of(birth, parent="")
        try:
            empty = lance.write_dataset(SCHEMA.empty_table(), manifest._uri, storage_options=store.lance_options)
            manifest._swap(_End(empty, 0, "", None), rows, birth)
            store.delete_all(manifest.take_leftovers())
        except OSError as error:
            raise StorageError(f"can't create {manifest._uri}: {str(error).splitlines()[0]}") from error
        return manifest

    def fold(self, objects: Sequence[CommitObject]) -> int:
        """Fold objects (oldest first) that are not folded yet; says up to which number the line is folded then."""
        try:
            return self._fold(objects)
        except OSError as error:
            self._warm = None  # it may have landed: whoever folds next begins from the head that is there
            raise StorageError(f"can't fold into {self._uri}: {str(error).splitlines()[0]}; try again") from error

    def _fold(self, objects: Sequence[CommitObject]) -> int:
        for _ in range(FOLD_ATTEMPTS_MAX):
            end = self._warm or self._read_end()
            new = [obj for obj in objects if obj.seq > end.folded_through]
            if not new:
                return end.folded_through
            if new[0].seq != end.folded_through + 1:
                if self._warm is None:
                    raise InvariantViolation(
                        f"can't fold object {new[0].seq}: __manifest is folded through {end.folded_through}"
                    )
                self._warm = None  # what we remember is old
                continue
            rows: list[dict[str, Any]] = []
            parent = end.head_commit_id
            for obj in new:
                rows += _rows_of(obj, parent=parent)
                parent = obj.head
            try:
                self._warm = self._swap(end, rows, new[-1])
            except CommitConflictError:
                self._warm = None  # another process folded first: begin again from its head
                continue
            return new[-1].seq
        raise StorageError(f"can't fold into {self._uri}: lost {FOLD_ATTEMPTS_MAX} races in a row; try again")

    def folded_through(self) -> int:
        """The number up to which the line is folded; the next fold builds on what was read for it."""
        self._warm = self._read_end()
        return self._warm.folded_through

    def commits(self, limit: int | None = None) -> Iterator[LineageEntry]:
        """The folded lineage, newest first; reads only as many fragments as it needs."""
        seen = 0
        for fragment in reversed(self._open().get_fragments()):
            rows = fragment.to_table(filter=_is("graph_commit"))
            for row in reversed(rows.to_pylist()):
                if limit is not None and seen >= limit:
                    return
                seen += 1
                yield _entry(row)

    def commit(self, commit_id: str) -> LineageEntry | None:
        found = self._open().to_table(filter=_is("graph_commit") & (pc.field("object_id") == pa.scalar(commit_id)))
        return _entry(found.to_pylist()[0]) if found.num_rows else None

    def newest_commit_until(self, at: datetime) -> LineageEntry | None:
        """The newest commit that was made at or before a time."""
        until = _is("graph_commit") & (pc.field("at") <= pa.scalar(at, SCHEMA.field("at").type))
        found = self._open().to_table(filter=until)
        if found.num_rows == 0:
            return None
        return _entry(found.sort_by([("seq", "ascending")]).slice(found.num_rows - 1).to_pylist()[0])

    def pins_at(self, seq: int) -> dict[str, Pin]:
        """The version of every table as of a number of the line: for each the newest at or below it."""
        dataset = self._open()
        versions = dataset.to_table(
            columns=["table_key", "table_version"],
            filter=_is("table_version") & (pc.field("seq") <= pa.scalar(seq, pa.int64())),
        )
        newest = versions.group_by("table_key").aggregate([("table_version", "max")]).to_pylist()
        ids = [_version_id(row["table_key"], row["table_version_max"]) for row in newest]
        rows = dataset.to_table(filter=pc.field("object_id").isin(ids)).to_pylist()
        return {
            row["table_key"]: Pin(
                version=row["table_version"],
                transaction=json.loads(row["metadata"])["transaction"],
                since=row["seq"],
                rows=row["row_count"],
            )
            for row in rows
        }

    def discard_old_versions(self) -> None:
        """Delete old versions of the manifest itself, now and then: nobody travels back in it."""
        if self._warm is not None and archive.is_due(self._warm.dataset.version, KEPT_VERSIONS):
            archive.discard(self._store, PATH, keep=KEPT_VERSIONS)

    def take_leftovers(self) -> list[str]:
        """Staging names that have become final and may be deleted, each of them once."""
        taken, self._leftovers = self._leftovers, []
        return taken

    def _open(self) -> lance.LanceDataset:
        try:
            dataset = lance.dataset(self._uri, storage_options=self._store.lance_options)
        except (OSError, ValueError) as error:
            raise StorageError(f"can't open {self._uri}: {str(error).splitlines()[0]}") from error
        check_format(int((dataset.schema.metadata or {}).get(STAMP, b"0")), where=self._uri)
        return dataset

    def _read_end(self) -> _End:
        dataset = self._open()
        fragments = dataset.get_fragments()
        head = _head_of(fragments[-1].to_table(), self._branch)
        tail = fragments[-2] if len(fragments) > 1 and fragments[-2].physical_rows < TAIL_ROWS_MAX else None
        return _End(dataset, head["seq"], json.loads(head["metadata"])["commit_id"], tail and tail.to_table())

    def _swap(self, end: _End, rows: list[dict[str, Any]], newest: CommitObject) -> _End:
        """Put the new head in the place of the one that was read; raises CommitConflictError if that is gone."""
        dataset = end.dataset
        replaced = 0 if end.folded_through == 0 else 1 if end.tail is None else 2
        removed = [f.fragment_id for f in dataset.get_fragments()[-replaced:]] if replaced else []
        lineage = pa.Table.from_pylist(rows, schema=SCHEMA)
        if end.tail is not None:
            lineage = pa.concat_tables([end.tail, lineage]).combine_chunks()
        head = pa.Table.from_pylist([_head_row(self._branch, newest)], schema=SCHEMA)
        new = [*(write_fragments(lineage, dataset) if lineage.num_rows else ()), *write_fragments(head, dataset)]
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=[], new_fragments=new, fields_modified=[]
        )
        after = self._commit(dataset, operation)
        tail = lineage if 0 < lineage.num_rows < TAIL_ROWS_MAX else None
        return _End(after, newest.seq, newest.head, tail)

    def _commit(self, dataset: lance.LanceDataset, operation: lance.LanceOperation.BaseOperation) -> lance.LanceDataset:
        """Make the version after `dataset`, and no other; raises CommitConflictError if somebody else made one.

        Lance alone would not tell: it rebases a commit over versions in between that were deleted since. So the version
        is staged, like a table's, and its final name is put if absent.
        """
        attempt = Attempt()
        started = self._clock()
        after = lance.LanceDataset.commit(
            dataset,
            lance.Transaction(dataset.version, operation),
            max_retries=1,
            namespace_client=attempt,
            table_id=[PATH],
            namespace_client_managed_versioning=True,
        )
        staging = f"{PATH}/_versions/{attempt.created[-1]['manifest_path'].rsplit('/', 1)[-1]}"
        self._leftovers.append(staging)
        if after.version != dataset.version + 1:
            raise CommitConflictError("another process folded first")
        if self._store.copy_if_absent(staging, final_name(staging)) is not Answer.CREATED:
            raise CommitConflictError("another process folded first, or it is not clear that we did")
        if self._clock() - started > SLEPT_S and archive.newest_version(self._store, PATH) != after.version:
            raise CommitConflictError("we slept, and the number that we took had been used and deleted")
        return after


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
        at=_EPOCH + timedelta(microseconds=commit.at_us),
        tables=commit.tables,
        op_id=obj.op_id,
    )


def _rows_of(obj: CommitObject, parent: str) -> list[dict[str, Any]]:
    rows = []
    for commit, entry in zip(obj.commits, entries_of(obj, parent), strict=True):
        metadata = {
            "parent": entry.parent,
            "kind": commit.kind,
            "actor": commit.actor,
            "tenant": commit.tenant,
            "tables": list(commit.tables),
            "payload_hash": commit.payload_hash,
            "op_id": obj.op_id,
        }
        rows.append(_row(commit.commit_id, "graph_commit", obj.seq, at=entry.at, metadata=metadata))
    for key, pin in obj.introduced().items():
        metadata = {"transaction": pin.transaction, "branch": pin.branch, "op_id": obj.op_id}
        rows.append(
            _row(
                _version_id(key, pin.version),
                "table_version",
                obj.seq,
                table_key=key,
                table_version=pin.version,
                row_count=pin.rows,
                metadata=metadata,
            )
        )
    return rows


def _head_row(branch: str, obj: CommitObject) -> dict[str, Any]:
    pins = {key: pin.version for key, pin in obj.pins.items()}
    return _row(f"graph_head:{branch}", "graph_head", obj.seq, metadata={"commit_id": obj.head, "pins": pins})


def _row(object_id: str, object_type: str, seq: int, *, metadata: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"object_id": object_id, "object_type": object_type, "seq": seq, "metadata": json.dumps(metadata), **columns}


def _version_id(table_key: str, version: int) -> str:
    return f"table_version:{table_key}:{version:020}"


def _is(object_type: str) -> pc.Expression:
    return pc.field("object_type") == pa.scalar(object_type)


def _head_of(rows: pa.Table, branch: str) -> dict[str, Any]:
    found = rows.to_pylist()
    if len(found) != 1 or found[0]["object_id"] != f"graph_head:{branch}":
        raise InvariantViolation(f"__manifest does not end in the head of {branch}; was it written by something else?")
    head: dict[str, Any] = found[0]
    return head


def _entry(row: dict[str, Any]) -> LineageEntry:
    facts = json.loads(row["metadata"])
    return LineageEntry(
        commit_id=row["object_id"],
        parent=facts["parent"],
        seq=row["seq"],
        kind=facts["kind"],
        actor=facts["actor"],
        tenant=facts["tenant"],
        at=row["at"],
        tables=tuple(facts["tables"]),
        op_id=facts["op_id"],
    )
