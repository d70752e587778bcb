"""The storage surface: every touch of a graph table's Lance dataset, and nothing that becomes visible by itself.

Writers only stage. `stage_*` builds the Lance operation for a table's next version on the handle of its pin;
`commit_staged` makes that version under a staging name that no reader looks at. It becomes part of the graph when an
object of the line pins it, and visible to plain Lance when Phase D gives it its final name.

Rules kept here (a test walks the source and fails if a module that is not named there imports lance):
- one namespace client per commit attempt: it notes what is created and answers nothing else, since a staging name
  that is handed back to Lance is given its final name at once, over anybody's;
- handle version, pin and read version are equal, and the result is exactly one more;
- a remote table's next version is made on its mirror (`mirror.py`) where it has one, else by its own handle;
- reads open by URI at a final version, or use the warm handle; after a lost race the handle is dropped;
- a handle is never pickled: the copy would commit visibly.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.empty_table import FIRST_MANIFEST, empty_table_files
from omniray.engine.tables.lance_namespace import Attempt, History, Restoring
from omniray.engine.tables.mirror import Mirror, Mirrors
from omniray.engine.tables.table import ROWADDR, TAIL_BYTES_MAX, TAIL_ROWS_MAX, Table, storage_errors
from omniray.engine.tables.version_names import final_path, history_path

STORAGE_VERSION = "2.1"
_RANGES_MAX = 64
_STAGED_BATCH_ROWS = 65_536
_STAGED_BATCHES_AHEAD = 4  # Lance would hold sixteen


class VersionTaken(Exception):
    """The table did not come out at the version after its pin: somebody was faster, or wrote behind our back."""

    def __init__(self, table_key: str, expected: int, found: int | None) -> None:
        super().__init__(table_key, expected, found)
        self.table_key, self.expected, self.found = table_key, expected, found


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in new data files that no table refers to yet: they may be used by any later attempt."""

    fragments: tuple[FragmentMetadata, ...]
    rows: int
    staged_since_us: int = 0  # the time before their first byte was written

    def and_then(self, later: StagedRows) -> StagedRows:
        """These rows and others after them."""
        since_us = min(self.staged_since_us, later.staged_since_us)
        return StagedRows((*self.fragments, *later.fragments), self.rows + later.rows, since_us)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(str(file.path) for fragment in self.fragments for file in fragment.files)


@dataclass(frozen=True, slots=True)
class TableBirth:
    """The files of a table's version 1, by their paths."""

    transaction: str
    staging: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StagedChange:
    """A table's next version, ready to be committed: the Lance operation and what the tail holds after it."""

    operation: lance.LanceOperation.BaseOperation
    rows_after: int
    tail: pa.Table | None = None
    inline: StagedRows | None = None  # rows that this change staged itself, for this attempt only
    ids: pa.ChunkedArray | None = None  # of the rows in `inline`, in their order
    arriving: tuple[Future[None], ...] = ()  # files of `inline` that are on their way to the store


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version that exists under a staging name only."""

    table: Table
    version: int
    transaction: str
    staging: str
    rows: int
    inline: StagedRows | None
    placed: pa.Table | None  # `id` and `_rowaddr` of the rows that it moved or brought; None where nobody knows


class TableStorage:
    """The tables of one graph."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._session = lance.Session()
        is_remote = store.lance_options is not None
        self._mirrors = Mirrors(store, self._session, STORAGE_VERSION) if is_remote else None

    def uri(self, type: ElementType) -> str:
        return f"{self._store.uri}/{type.path}"

    def birth_of(self, type: ElementType) -> TableBirth:
        """Version 1 of a table, empty, as files that are not written yet; their names are nobody else's."""
        empty = empty_table_files(type.arrow, STORAGE_VERSION)
        staging = f"{type.path}/_versions/{FIRST_MANIFEST}-{uuid.uuid4()}"
        transaction_file = f"{type.path}/_transactions/{empty.transaction_file_name}"
        files = {transaction_file: empty.transaction_bytes, staging: empty.manifest_bytes}
        return TableBirth(empty.transaction_uuid, staging, files)

    def open(self, type: ElementType, version: int, transaction: str, rows: int) -> Table:
        """Open a version that has its final name, or one so old that its manifest was moved to the history."""
        options = {"storage_options": self._store.lance_options, "session": self._session}
        archived = history_path(type.path, version)
        with storage_errors(type):
            try:
                dataset = lance.dataset(self.uri(type), version=version, **options)
            except ValueError:
                if self._store.get(archived) is None:
                    raise
                history = History(self.uri(type), self._store.lance_path(archived))
                dataset = lance.dataset(namespace_client=history, table_id=[type.table_key], version=version, **options)
        return Table(type, dataset, transaction, rows)

    # Staging

    def stage_rows(self, table: Table, rows: pa.RecordBatchReader | pa.Table) -> StagedRows:
        """Write rows to new data files, in a stream; nothing refers to them yet."""
        with storage_errors(table.type):
            fragments = tuple(write_fragments(rows, table.dataset, data_storage_version=STORAGE_VERSION))
        return StagedRows(fragments, sum(f.num_rows for f in fragments))

    def read_staged(
        self, type: ElementType, staged: StagedRows, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Staged rows in the order in which they were written; all columns, or these."""
        schema = type.arrow if columns is None else pa.schema([type.arrow.field(name) for name in columns])
        for file in staged.files:
            with storage_errors(type):
                path = f"{self.uri(type)}/data/{file}"
                reader = LanceFileReader(path, storage_options=self._store.lance_options, columns=schema.names)
                for batch in reader.read_all(
                    batch_size=_STAGED_BATCH_ROWS, batch_readahead=_STAGED_BATCHES_AHEAD
                ).to_batches():
                    yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)

    def forget_rows(self, type: ElementType, staged: StagedRows) -> None:
        """Delete data files that were staged and never used; what can't be deleted now is left to the sweep."""
        for file in staged.files:
            with contextlib.suppress(StorageError):
                self._store.delete(f"{type.path}/data/{file}")

    def stage_append(self, table: Table, rows: pa.Table | StagedRows) -> StagedChange:
        return self.stage_merge(table, rows, NOTHING_REPLACED)

    def stage_delete(self, table: Table, replaced: pa.Table) -> StagedChange:
        """Remove the rows at `replaced` (`id`, `_rowaddr`)."""
        updated, removed = self._delete(table, replaced)
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=[], fields_modified=[]
        )
        return StagedChange(operation, table.rows - replaced.num_rows, ids=_NO_IDS)

    def stage_overwrite(self, table: Table, rows: pa.Table | StagedRows) -> StagedChange:
        """Replace all rows; with none, the table is empty afterwards."""
        if isinstance(rows, StagedRows):
            return StagedChange(_overwrite(table.type, rows), rows.rows)
        staged, arriving = self._stage_inline(table, rows)
        return StagedChange(_overwrite(table.type, staged), staged.rows, _as_tail(rows), staged, arriving=arriving)

    def stage_merge(self, table: Table, rows: pa.Table | StagedRows, replaced: pa.Table) -> StagedChange:
        """Add rows and remove those they replace, as one version; a small tail is folded into the new fragment."""
        after = table.rows - replaced.num_rows
        if isinstance(rows, StagedRows):
            updated, removed = self._delete(table, replaced)
            return StagedChange(_update(updated, removed, rows), after + rows.rows)
        tail = table.tail_fragment() if rows.nbytes < TAIL_BYTES_MAX else None
        if tail is None:
            updated, removed = self._delete(table, replaced)
            staged, arriving = self._stage_inline(table, rows)
            operation = _update(updated, removed, staged)
            return StagedChange(operation, after + rows.num_rows, _as_tail(rows), staged, rows[ID], arriving)
        fragment_of = pc.shift_right(replaced[ROWADDR], pa.scalar(32, pa.uint64()))
        in_tail = pc.equal(fragment_of, pa.scalar(tail.fragment_id, pa.uint64()))
        kept = _without_ids(table.tail_rows(tail), replaced.filter(in_tail)[ID])
        updated, removed = self._delete(table, replaced.filter(pc.invert(in_tail)))
        together = pa.concat_tables([kept, rows]).combine_chunks()
        staged, arriving = self._stage_inline(table, together)
        operation = _update(updated, [*removed, tail.fragment_id], staged)
        return StagedChange(operation, after + rows.num_rows, _as_tail(together), staged, together[ID], arriving)

    def _stage_inline(self, table: Table, rows: pa.Table) -> tuple[StagedRows, tuple[Future[None], ...]]:
        """Write a few rows; to a remote store they may be on their way until the version is committed."""
        if not rows.num_rows:
            return StagedRows((), 0), ()
        mirror = self._mirrored(table)
        if mirror is None:
            return self.stage_rows(table, rows), ()
        with storage_errors(table.type):
            encoded = mirror.encode(rows)
        return StagedRows(encoded.fragments, rows.num_rows), encoded.arriving

    def _mirrored(self, table: Table) -> Mirror | None:
        """The table's mirror, made when it is first written to; one that can't have any is not asked again."""
        if table.mirror is None and table.may_be_mirrored and self._mirrors is not None:
            with storage_errors(table.type):
                table.mirror = self._mirrors.of(table.type, table.version)
            table.may_be_mirrored = table.mirror is not None
        return table.mirror

    def _delete(self, table: Table, replaced: pa.Table) -> tuple[list[FragmentMetadata], list[int]]:
        """Deletion vectors for the rows at these addresses, and the fragments that are gone as a whole."""
        if replaced.num_rows:
            self._mirrored(table)
        updated: list[FragmentMetadata] = []
        removed: list[int] = []
        addresses = np.sort(replaced[ROWADDR].to_numpy()) if replaced.num_rows else np.array([], dtype=np.uint64)
        for fragment_id in np.unique(addresses >> np.uint64(32)):
            own = addresses[addresses >> np.uint64(32) == fragment_id]
            metadata = self._delete_in_fragment(table, int(fragment_id), own)
            if metadata is None:
                removed.append(int(fragment_id))
            else:
                updated.append(metadata)
        return updated, removed

    def _delete_in_fragment(
        self, table: Table, fragment_id: int, addresses: np.ndarray[Any, Any]
    ) -> FragmentMetadata | None:
        with storage_errors(table.type):
            fragment = table.deletable(fragment_id)
            if len(addresses) == fragment.count_rows():
                return None
            # Addresses are numbers of ours, so text is safe. Ranges keep it short where neighbours go; a chain of many
            # of them nests so deeply that Lance's parser overflows its stack.
            ranges = list(itertools.islice(_ranges(addresses), _RANGES_MAX + 1))
            if len(ranges) <= _RANGES_MAX:
                return fragment.delete(" or ".join(ranges))
            return fragment.delete(f"{ROWADDR} in ({','.join(map(str, addresses))})")

    # Committing

    def commit_restored(self, newest: Table, version: int, rows: int, transaction: str) -> StagedVersion:
        """Phase B of a repair: the version after `newest`, with exactly what an older one holds."""
        known = (final_path(newest.type.path, version), history_path(newest.type.path, version))
        manifest = next((path for path in known if self._store.get(path) is not None), None)
        if manifest is None:
            raise InvariantViolation(
                f"{newest.type.table_key}: version {version} is pinned and has no manifest any more ({known[0]}); "
                "restore the file from a backup",
                table_key=newest.type.table_key, version=version,
            )  # fmt: skip
        restore = StagedChange(lance.LanceOperation.Restore(version), rows)
        return self.commit_staged(newest, restore, transaction, Restoring(self._store.lance_path(manifest)))

    def commit_staged(
        self, table: Table, change: StagedChange, transaction: str, attempt: Attempt | None = None
    ) -> StagedVersion:
        """Phase B for one table: a real Lance commit whose manifest stays under a staging name.

        On the table's mirror where it has one; an attempt of a kind of its own is made on its handle.
        """
        mirror = self._mirrored(table) if attempt is None else None
        made = lance.Transaction(table.version, change.operation, transaction)
        with storage_errors(table.type):
            if mirror is None:
                after, staging = self._commit_on_handle(table, change, made, attempt or Attempt())
            else:
                after, staging = self._commit_on_mirror(mirror, change, made)
        after.may_be_mirrored = table.may_be_mirrored
        placed = _placed(after, change)
        return StagedVersion(after, table.version + 1, transaction, staging, change.rows_after, change.inline, placed)

    def _commit_on_mirror(self, mirror: Mirror, change: StagedChange, made: lance.Transaction) -> tuple[Table, str]:
        type, expected = mirror.type, made.read_version + 1
        after, staging, newest = mirror.commit(made, change.arriving)
        found = max(after.dataset.version, newest + 1)  # where it would have come out in the store itself
        if found != expected:
            self._store.delete(staging)
            raise VersionTaken(type.table_key, expected, found)
        return Table(type, None, made.uuid, change.rows_after, change.tail, after), staging

    def _commit_on_handle(
        self, table: Table, change: StagedChange, made: lance.Transaction, attempt: Attempt
    ) -> tuple[Table, str]:
        type, expected = table.type, table.version + 1
        try:
            dataset = lance.LanceDataset.commit(
                table.dataset,
                made,
                # With none, Lance commits an Overwrite without looking for versions that it does not know of.
                max_retries=1,
                namespace_client=attempt,
                table_id=[type.table_key],
                namespace_client_managed_versioning=True,
            )
        except CommitConflictError as error:
            raise VersionTaken(type.table_key, expected, None) from error
        entry = attempt.created[-1]
        staging = f"{type.path}/_versions/{entry['manifest_path'].rsplit('/', 1)[-1]}"
        if not entry["version"] == dataset.version == expected:
            self._store.delete(staging)
            raise VersionTaken(type.table_key, expected, dataset.version)
        self._store.sync([staging, *_files(type, made)])
        return Table(type, dataset, made.uuid, change.rows_after, change.tail), staging

    def staged_for_itself(self, version: StagedVersion) -> list[str]:
        """The files that an attempt made for this version alone; the rest is left to the sweep."""
        inline = version.inline.files if version.inline is not None else ()
        return [version.staging, *(f"{version.table.type.path}/data/{file}" for file in inline)]


NOTHING_REPLACED = pa.table({ID: pa.array([], pa.string()), ROWADDR: pa.array([], pa.uint64())})
_NO_IDS = pa.chunked_array([], pa.string())


def _files(type: ElementType, made: lance.Transaction) -> Iterator[str]:
    """Every file beside its manifest that a staged version needs and its pin does not."""
    operation: Any = made.operation
    yield f"{type.path}/_transactions/{made.read_version}-{made.uuid}.txn"
    added = getattr(operation, "new_fragments", None) or getattr(operation, "fragments", [])
    yield from (f"{type.path}/data/{file.path}" for fragment in added for file in fragment.files)
    for fragment in getattr(operation, "updated_fragments", []):
        yield f"{type.path}/{fragment.deletion_file.path(fragment.id)}"


def _placed(table: Table, change: StagedChange) -> pa.Table | None:
    """Where the rows are that a change staged itself: in the newest fragment, in their order.

    None where they are not known, or where there are so many that Lance made several fragments of them.
    """
    if change.ids is None or (change.inline is not None and len(change.inline.fragments) > 1):
        return None
    if len(change.ids) == 0:
        return NOTHING_REPLACED
    return pa.table({ID: change.ids, ROWADDR: table.addresses_of_newest(len(change.ids))})


def _overwrite(type: ElementType, added: StagedRows) -> lance.LanceOperation.BaseOperation:
    return lance.LanceOperation.Overwrite(type.arrow, list(added.fragments))


def _update(
    updated: list[FragmentMetadata], removed: list[int], added: StagedRows
) -> lance.LanceOperation.BaseOperation:
    if not updated and not removed:
        return lance.LanceOperation.Append(list(added.fragments))
    return lance.LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=list(added.fragments),
        fields_modified=[],
    )


def _as_tail(rows: pa.Table) -> pa.Table | None:
    return rows if 0 < rows.num_rows < TAIL_ROWS_MAX else None


def _without_ids(rows: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    return rows if len(ids) == 0 else rows.filter(pc.invert(pc.is_in(rows[ID], value_set=ids.combine_chunks())))


def _ranges(addresses: np.ndarray[Any, Any]) -> Iterator[str]:
    """Sorted addresses as `between` ranges of neighbours."""
    breaks = np.flatnonzero(np.diff(addresses) != 1) + 1
    for run in np.split(addresses, breaks):
        yield f"{ROWADDR} between {run[0]} and {run[-1]}"
