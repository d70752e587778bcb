"""Mirrors: a table's manifest alone in a local folder, where the table's next version is made.

No Lance commit needs the table's rows: a commit and a deletion by address read only the manifest and older deletion
files. So Lance itself encodes a few rows, marks rows as deleted and commits the version in a local folder whose newest
version is the pinned one. There Lance does not see what other writers or branches have done to the table since.

On a disk the folder's other parts are links to the table's own, so everything but the manifest is in its place at once.
For a remote store, where a commit would be a chain of requests, all new files are uploaded in parallel: one step,
however many files there are. The manifest is put under the name that the caller gives.

Nothing pins a version before `commit` has returned, so the order in which its files arrive does not matter.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.base.jobs import AtOnce, Jobs
from omniray.engine.base.scratch import scratch_folder
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.lance_namespace import CommitAttempt
from omniray.engine.tables.staged_folders import StagedFolders
from omniray.engine.tables.version_names import VERSIONS, final_versions, manifest_name

THREADS = 16
PUT_TRIES_MAX = 4
CACHE_BYTES = 1 << 20  # of Lance, which would keep every version that was ever made
_SHARED = ("data", "_deletions", "_transactions", "_indices")
_RESTORED = "_restored"
_NONE: Future[int] = Future()
_NONE.set_result(0)


class Mirrors:
    """The mirrors of one process for one graph, and their uploads. Threads may share it."""

    def __init__(self, store: ObjectStore, storage_version: str, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.store, self.storage_version = store, storage_version
        self.folders = StagedFolders(store)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-upload")
        # On a disk a name is looked at, and a file renamed, in less time than another thread needs to begin.
        self._steps: Jobs = self._pool if store.local_root is None else AtOnce()
        self._session = lance.Session(index_cache_size_bytes=cache_bytes, metadata_cache_size_bytes=cache_bytes)

    def of(self, table_path: str, version: int, manifest: bytes) -> Mirror:
        """A mirror of a version of the table at a path."""
        held = _Folder(scratch_folder("mirror"))  # first: it is deleted if anything fails from here on
        folder = held.path
        local = folder / VERSIONS / manifest_name(version)
        local.parent.mkdir()
        local.write_bytes(manifest)
        if (root := self.store.local_root) is not None:
            for name in _SHARED:
                (root / table_path / name).mkdir(exist_ok=True)
                (folder / name).symlink_to(root / table_path / name, target_is_directory=True)
        dataset = lance.dataset(str(folder), version=version, session=self._session)
        return Mirror(table_path, dataset, held, self, manifest)

    def send(self, source: Path, target: str, *, keep: bool) -> Future[None]:
        """Begin to put a file under a unique name; the local one is deleted afterwards, unless `keep`."""
        return self._steps.submit(self._send, source, target, keep)

    def expect(self, path: str, size: int | None, rows: int) -> Future[None]:
        """Begin to look whether a file that was written before is there, with its size and so many rows."""
        return self._pool.submit(self._expect, path, size, rows)

    def look(self, table_path: str) -> Future[int]:
        """Begin to look for the newest version of a table that has a final name."""
        return self._steps.submit(self._newest, table_path)

    def _newest(self, table_path: str) -> int:
        return max(final_versions(self.store.names(f"{table_path}/{VERSIONS}")), default=0)

    def _expect(self, path: str, size: int | None, rows: int) -> None:
        found = self.store.size(path)
        if found is None:
            raise _unfit(path, "is not there")
        if found != size:
            raise _unfit(path, f"has {found} bytes instead of {size or 'a number that is known'}")
        try:
            reader = LanceFileReader(f"{self.store.uri}/{path}", storage_options=self.store.lance_options)
            counted = reader.num_rows()
        except BaseException as error:  # Lance panics at some bytes, which is no `Exception`
            # The store has just answered, so this is about the file; tried again, it would keep all writes waiting.
            raise _unfit(path, f"can't be read ({str(error)[:200]})") from error
        if counted != rows:
            raise _unfit(path, f"has {counted} rows instead of {rows}")

    def _send(self, source: Path, target: str, keep: bool) -> None:
        if not keep and self.folders.move_in(source, target):
            return
        try:
            self._put(target, source.read_bytes())
        finally:
            if not keep:
                source.unlink()

    def _put(self, path: str, data: bytes) -> None:
        for _ in range(PUT_TRIES_MAX):
            # A refusal is an earlier put of our own, whose answer got lost: the name is unique.
            if self.store.put_if_absent(path, data, lasting=False) is not Answer.UNCLEAR:
                return
        raise StorageError(f"no clear answer to putting {path}; try again", path=path)


class _Folder:
    """A local folder that is deleted when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, _remove, path, os.getpid())


def _unfit(path: str, what: str) -> InputError:
    return InputError(f"{path} {what}; nothing was written: stage its rows again", path=path)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits this call
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows in data files that are being uploaded."""

    fragments: tuple[FragmentMetadata, ...]
    arriving: tuple[Future[None], ...]


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Result of a commit on a mirror: the mirror of the next version, and the newest version that has a final name."""

    mirror: Mirror
    newest_final: int


@dataclass(frozen=True, slots=True)
class Mirror:
    """A table at one version: `dataset` knows its manifest and can be committed to; its rows are elsewhere.

    `manifest` is its file, unless that can be read at no cost. Its user makes the table's versions one after the other:
    a commit deletes deletion files that it replaced.
    """

    table_path: str
    dataset: lance.LanceDataset
    folder: _Folder
    mirrors: Mirrors
    manifest: bytes | None

    @property
    def serialised(self) -> bytes:
        """The manifest, for a handle that reads rows."""
        manifest: bytes = self.dataset._ds.serialized_manifest()
        return manifest

    def encode(self, rows: pa.Table) -> Encoded:
        """Write rows to data files of this table, and begin to upload them."""
        made = tuple(write_fragments(rows, self.dataset, data_storage_version=self.mirrors.storage_version))
        files = (file.path for fragment in made for file in fragment.files)
        return Encoded(made, tuple(self._sent(f"data/{file}" for file in files)))

    def fragment(self, fragment_id: int) -> lance.LanceFragment:
        """A fragment from which rows can be deleted by their addresses; its older deletions are fetched if needed."""
        fragment = self.dataset.get_fragment(fragment_id)
        path = fragment.deletion_file()
        if path is not None and not (local := self.folder.path / path).exists():
            deletions = self.mirrors.store.get(f"{self.table_path}/{path}")
            if deletions is None:
                raise StorageError(f"{self.table_path}: the deletion file {path} is gone", path=path)
            local.parent.mkdir(exist_ok=True)
            local.write_bytes(deletions)
        return fragment

    def commit(
        self,
        transaction: lance.Transaction,
        target: str,
        arriving: Iterable[Future[None]],
        *,
        restored: bytes | None = None,
        has_final_names: bool = True,
    ) -> Mirrored:
        """Make the next version, its manifest under `target`; returns when all uploads are done, also `arriving`.

        Where versions get no final names, nobody looks for the newest one.
        `restored` is the manifest of the version that a Restore brings back.
        """
        sent: list[Future[Any]] = list(arriving)
        newest = self.mirrors.look(self.table_path) if has_final_names else _NONE
        try:
            attempt = CommitAttempt(None if restored is None else self._shown(restored, transaction))
            dataset = lance.LanceDataset.commit(
                self.dataset,
                transaction,
                max_retries=1,
                namespace_client=attempt,
                table_id=[self.table_path],
                namespace_client_managed_versioning=True,
            )
            made = self.folder.path / VERSIONS / attempt.staged_name
            manifest = made.read_bytes() if self.mirrors.store.local_root is None else None
            sent.append(self.mirrors.send(made, target, keep=False))
            updated = getattr(transaction.operation, "updated_fragments", [])
            sent += self._sent((fragment.deletion_file.path(fragment.id) for fragment in updated), keep=True)
            sent += self._sent((f"_transactions/{transaction.read_version}-{transaction.uuid}.txn",))
        finally:  # no upload may arrive after this attempt was given up and cleared away
            failures = [error for future in (*sent, newest) if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        self._forget_deletions(transaction.operation)
        return Mirrored(Mirror(self.table_path, dataset, self.folder, self.mirrors, manifest), newest.result())

    def _sent(self, paths: Iterable[str], *, keep: bool = False) -> Iterable[Future[None]]:
        """Begin to upload files; none, where the folder's parts are the table's own."""
        if self.mirrors.store.local_root is not None:
            return ()
        return [self.mirrors.send(self.folder.path / path, f"{self.table_path}/{path}", keep=keep) for path in paths]

    def _shown(self, manifest: bytes, transaction: lance.Transaction) -> str:
        """The manifest of an older version as a local file; returns its path as Lance takes it."""
        local = self.folder.path / _RESTORED / manifest_name(transaction.operation.version)
        local.parent.mkdir(exist_ok=True)
        local.write_bytes(manifest)
        return str(local).lstrip("/")

    def _forget_deletions(self, operation: Any) -> None:
        """Delete the local deletion files that the next version does not need; `fragment` fetches one again."""
        if self.mirrors.store.local_root is not None:
            return  # they are the table's own
        removed = getattr(operation, "removed_fragment_ids", [])
        for fragment_id in (*removed, *(fragment.id for fragment in getattr(operation, "updated_fragments", []))):
            if (path := self.dataset.get_fragment(fragment_id).deletion_file()) is not None:
                (self.folder.path / path).unlink(missing_ok=True)
