"""The storage surface: every access to a graph table's Lance dataset; nothing becomes visible by itself.

Writers only stage. `stage_*` builds the Lance operation for a table's next version on the pin's manifest;
`commit_staged` makes that version under its own name, where plain Lance does not look. It becomes part of the graph
when an object of the line pins it, and visible to plain Lance when Phase D gives it its final name.

Rules kept here (a test walks the source and fails if a module that it does not list imports lance):
- a version is made on a mirror, which holds its predecessor alone (`mirror.py`), and with a namespace client of its
  own that only notes the manifest: a staging name that is handed back to Lance would get its final name at once;
- mirror version, pin and read version are equal, and the result is exactly one more;
- reads open a pin by its path, or use the warm handle; after a lost race the handle is dropped;
- a handle is never pickled: the copy would commit visibly.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.line.commit_object import Pin
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.empty_table import empty_table_files
from omniray.engine.tables.final_names import lost
from omniray.engine.tables.lance_namespace import ShownVersion
from omniray.engine.tables.manifest_file import serialised
from omniray.engine.tables.mirror import Mirror, Mirrors
from omniray.engine.tables.table import ROWADDR, TAIL_BYTES_MAX, TAIL_ROWS_MAX, Table, storage_errors
from omniray.engine.tables.version_names import is_of, manifest_name, own_folder, possible_paths

STORAGE_VERSION = "2.1"
_RANGES_MAX = 64
_STAGED_BATCH_ROWS = 65_536
_STAGED_BATCHES_AHEAD = 4  # Lance would hold sixteen


class VersionTaken(Exception):
    """The new version is not the one after the table's pin: another writer, of the line or foreign, was faster."""

    def __init__(self, table_key: str, expected: int, found: int | None) -> None:
        super().__init__(table_key, expected, found)
        self.table_key, self.expected, self.found = table_key, expected, found


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in new data files that no table refers to yet: any later attempt may use them."""

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
class EmptyVersion:
    """Version 1 of a table, empty: its files by their paths."""

    transaction: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StagedChange:
    """A table's next version, ready to be committed: the Lance operation and what the tail holds after it."""

    operation: lance.LanceOperation.BaseOperation
    rows_after: int
    tail: pa.Table | None = None
    inline: StagedRows | None = None  # rows that this change staged itself, for this attempt only
    ids: pa.ChunkedArray | None = None  # of the rows in `inline`, in their order
    arriving: tuple[Future[None], ...] = ()  # uploads of the files of `inline`


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version that exists under its own name only; `manifest` is that name."""

    table: Table
    version: int
    transaction: str
    manifest: str
    rows: int
    files: tuple[str, ...]  # made for this version alone
    placed: pa.Table | None  # `id` and `_rowaddr` of the rows that it moved or added; None if unknown


class TableStorage:
    """The tables of one branch of a graph: `line` is the branch's, `main_line` that of main, by their ULIDs.

    Each instance has its own Lance session: versions of two branches share numbers under one URI.
    """

    def __init__(self, store: ObjectStore, line: str, main_line: str) -> None:
        self._store, self._line, self._main_line = store, line, main_line
        self._session = lance.Session()
        self._mirrors = Mirrors(store, STORAGE_VERSION)

    def uri(self, table_path: str) -> str:
        return f"{self._store.uri}/{table_path}"

    def empty(self, type: ElementType, table_path: str) -> EmptyVersion:
        """Version 1 of a table, as files that are not written yet; their names are unique."""
        made = empty_table_files(type.arrow, STORAGE_VERSION)
        transaction_file = f"{table_path}/_transactions/{made.transaction_file_name}"
        manifest = f"{self.own_folder(table_path, made.transaction_uuid)}/{manifest_name(1)}"
        files = {transaction_file: made.transaction_bytes, manifest: made.manifest_bytes}
        return EmptyVersion(made.transaction_uuid, files)

    def open(self, type: ElementType, pin: Pin, *, is_final: bool = False) -> Table:
        """Open a pinned version by its path, whether or not it has its final name; `is_final` says where to look first.

        Raises `GraphGone` or `InvariantViolation` if it is nowhere.
        """
        path, manifest = self._find(type, pin, is_final=is_final)
        made_of = serialised(manifest, where=path)
        mirrored = partial(self._mirrors.of, pin.path, pin.version, manifest)
        return self._table(type, pin, lambda: made_of, mirrored, is_final=is_final)

    def open_beside(self, type: ElementType, pin: Pin, other: Table) -> Table:
        """A pinned version that another line of this process has open: at most its manifest is read.

        That line is main or has it from main, so that by now it mostly has its final name.
        """

        def mirrored() -> Mirror:
            manifest = other.manifest or self._find(type, pin, is_final=True)[1]
            return self._mirrors.of(pin.path, pin.version, manifest)

        return other.twin(mirrored)

    def _table(
        self,
        type: ElementType,
        pin: Pin,
        manifest: Callable[[], bytes],
        mirrored: Callable[[], Mirror] | Mirror,
        *,
        tail: pa.Table | None = None,
        is_final: bool = False,
    ) -> Table:
        def locate() -> str:
            """Where the manifest is by the time that Lance asks: Phase D may have given it its final name."""
            return self._store.lance_path(self._find(type, pin, is_final=is_final)[0])

        shown = ShownVersion(self.uri(pin.path), locate)

        def explain() -> None:
            shown.raise_failure()
            refuse_gone(self._store, self._main_line)

        return Table(
            type, pin.path, pin.version, pin.transaction, pin.rows,
            open_rows=lambda: self._handle(pin.path, pin.version, manifest(), shown), mirrored=mirrored, tail=tail,
            on_failure=explain,
        )  # fmt: skip

    def _find(self, type: ElementType, pin: Pin, *, is_final: bool) -> tuple[str, bytes]:
        for path in possible_paths(pin, self._main_line, is_final=is_final):
            # A manifest under a final name may be another graph's, if this one was deleted and created anew.
            if (manifest := self._store.get(path)) is not None and is_of(pin, manifest):
                return path, manifest
        refuse_gone(self._store, self._main_line)
        raise lost(type.table_key, pin)

    def _handle(self, table_path: str, version: int, manifest: bytes, shown: ShownVersion) -> lance.LanceDataset:
        return lance.LanceDataset(
            self.uri(table_path),
            version=version,
            serialized_manifest=manifest,
            storage_options=self._store.lance_options,
            session=self._session,
            namespace_client=shown,
            table_id=[table_path],
            namespace_client_managed_versioning=True,
        )

    def own_folder(self, table_path: str, transaction: str) -> str:
        """The folder where this branch stages the version of a transaction, alone."""
        return own_folder(table_path, self._line, self._main_line, transaction)

    def retire_folder(self, folder: str) -> None:
        """Say that a version's own folder is not needed any more: it has its final name."""
        self._mirrors.folders.retire(folder)

    def close(self) -> None:
        """Delete the folders that are kept for versions to come."""
        self._mirrors.folders.close()

    # Staging

    def stage_rows(self, table: Table, rows: pa.RecordBatchReader | pa.Table) -> StagedRows:
        """Write rows to new data files, in a stream; nothing refers to them yet."""
        with storage_errors(table.type):
            fragments = tuple(write_fragments(rows, table.dataset, data_storage_version=STORAGE_VERSION))
        return StagedRows(fragments, sum(f.num_rows for f in fragments))

    def read_staged(
        self, type: ElementType, table_path: str, staged: StagedRows, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Staged rows in the order in which they were written; all columns, or these."""
        schema = type.arrow if columns is None else pa.schema([type.arrow.field(name) for name in columns])
        for file in staged.files:
            with storage_errors(type):
                path = f"{self.uri(table_path)}/data/{file}"
                reader = LanceFileReader(path, storage_options=self._store.lance_options, columns=schema.names)
                for batch in reader.read_all(
                    batch_size=_STAGED_BATCH_ROWS, batch_readahead=_STAGED_BATCHES_AHEAD
                ).to_batches():
                    yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)

    def forget_rows(self, table_path: str, staged: StagedRows) -> None:
        """Delete data files that were staged and never used; what can't be deleted now is left to the sweep."""
        for file in staged.files:
            with contextlib.suppress(StorageError):
                self._store.delete(f"{table_path}/data/{file}")

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
        """Add rows and remove those they replace, as one version; the new fragment replaces a small tail."""
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
        """Write a few rows; uploads to a remote store may last until the version is committed."""
        if not rows.num_rows:
            return StagedRows((), 0), ()
        with storage_errors(table.type):
            encoded = table.mirror.encode(rows)
        return StagedRows(encoded.fragments, rows.num_rows), encoded.arriving

    def _delete(self, table: Table, replaced: pa.Table) -> tuple[list[FragmentMetadata], list[int]]:
        """Deletion vectors for the rows at these addresses, and the fragments that lose all their rows."""
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
            # Addresses are our own numbers, so text is safe. Ranges keep it short where neighbours are deleted; a chain
            # of many ranges nests so deeply that Lance's parser overflows its stack.
            breaks = np.flatnonzero(np.diff(addresses) != 1) + 1
            if len(breaks) < _RANGES_MAX:
                return fragment.delete(" or ".join(_ranges(addresses, breaks)))
            return fragment.delete(f"{ROWADDR} in ({','.join(map(str, addresses))})")

    # Committing

    def commit_restored(self, newest: Table, source: Pin, transaction: str) -> StagedVersion:
        """Phase B of a restore: the version after `newest`, with exactly the rows of another pinned version."""
        _, manifest = self._find(newest.type, source, is_final=False)
        restore = StagedChange(lance.LanceOperation.Restore(source.version), source.rows)
        return self.commit_staged(newest, restore, transaction, restored=manifest)

    def commit_staged(
        self, table: Table, change: StagedChange, transaction: str, *, restored: bytes | None = None
    ) -> StagedVersion:
        """Phase B for one table: a real Lance commit, on the table's mirror, whose manifest gets its own name."""
        expected = table.version + 1
        folder = self.own_folder(table.path, transaction)
        manifest = f"{folder}/{manifest_name(expected)}"
        made = lance.Transaction(table.version, change.operation, transaction)
        brought = [] if change.inline is not None else _added(made)
        _refuse_strange(table, brought)
        files = {
            f"{table.path}/data/{f.path}": (f.file_size_bytes, one.physical_rows) for one in brought for f in one.files
        }
        try:
            with storage_errors(table.type):
                looks = [self._mirrors.expect(at, *told) for at, told in files.items()]
                arriving = [*change.arriving, *looks]
                mirrored = table.mirror.commit(
                    made, manifest, arriving, restored=restored, has_final_names=self._line == self._main_line
                )
        except CommitConflictError as error:
            raise VersionTaken(table.type.table_key, expected, None) from error
        # The number that a commit to the table itself would get.
        found = max(int(mirrored.mirror.dataset.version), mirrored.newest_final + 1)
        if found != expected:
            self._store.delete(manifest)
            self._store.delete_empty_folders(folder)
            raise VersionTaken(table.type.table_key, expected, found)
        own = [manifest, *_own_files(table.path, made, change)]
        _refuse_missing(self._store, own)
        self._store.sync([*own, *files])
        # It is not pinned yet; this much of its pin determines its own name.
        pin = Pin("", table.path, expected, transaction, change.rows_after, "", line=self._line)
        mirror = mirrored.mirror
        after = self._table(table.type, pin, lambda: mirror.serialised, mirror, tail=change.tail)
        placed = _placed(after, change)
        return StagedVersion(after, expected, transaction, manifest, change.rows_after, tuple(own), placed)


NOTHING_REPLACED = pa.table({ID: pa.array([], pa.string()), ROWADDR: pa.array([], pa.uint64())})
_NO_IDS = pa.chunked_array([], pa.string())


def _own_files(table_path: str, made: lance.Transaction, change: StagedChange) -> Iterator[str]:
    """The files besides its manifest that were made for a version alone: nothing else can refer to them."""
    yield f"{table_path}/_transactions/{made.read_version}-{made.uuid}.txn"
    if change.inline is not None:
        yield from (f"{table_path}/data/{file}" for file in change.inline.files)
    for fragment in getattr(made.operation, "updated_fragments", []):
        yield f"{table_path}/{fragment.deletion_file.path(fragment.id)}"


def _added(made: lance.Transaction) -> list[FragmentMetadata]:
    """The fragments that a version adds."""
    operation: Any = made.operation
    return getattr(operation, "new_fragments", None) or getattr(operation, "fragments", [])


def _refuse_strange(table: Table, brought: Sequence[FragmentMetadata]) -> None:
    """Refuse staged files that the version has already, or whose columns are not those of the table.

    The rows of the first would be there twice, and those of the others could not be read.
    """
    if not brought:
        return
    there = {file for fragment in table.fragments() for file in fragment.files}
    fields = table.column_fields()
    for file in (file for fragment in brought for file in fragment.files):
        if file.path in there:
            what = "is part of the table already, and can't be added again"
        elif (list(file.fields), list(file.column_indices)) != (fields, list(range(len(fields)))):
            what = "has other columns than the table"
        elif f"{file.file_major_version}.{file.file_minor_version}" != STORAGE_VERSION:
            what = "is of another format than the table"
        else:
            continue
        raise InputError(f"{table.path}/data/{file.path} {what}", table_key=table.type.table_key)


def _refuse_missing(store: ObjectStore, files: Sequence[str]) -> None:
    """On a disk, check that a version's files are in their places before anything pins it.

    If somebody deletes a mirror's folder, Lance writes into a new one with its name, which has no links to the table.
    """
    if store.local_root is None:
        return
    for file in files:
        if not os.path.exists(f"{store.local_root}/{file}"):
            raise StorageError(f"{file} is not there; nothing was written: try again", path=file)


def _placed(table: Table, change: StagedChange) -> pa.Table | None:
    """The addresses of the rows that a change staged itself: in the newest fragment, in their order.

    None if they are not known, or if there are so many that Lance made several fragments of them.
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


def _ranges(addresses: np.ndarray[Any, Any], breaks: np.ndarray[Any, Any]) -> Iterator[str]:
    """Sorted addresses as `between` ranges of neighbours."""
    for run in np.split(addresses, breaks):
        yield f"{ROWADDR} between {run[0]} and {run[-1]}"
