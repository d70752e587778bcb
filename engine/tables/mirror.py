"""Mirrors: a remote table's manifest on this machine, so that its next version is made here and sent at once.

A Lance commit on a remote store is a listing, a transaction file and a manifest, one request after another, with data
and deletion files before it. None of that needs the table's rows: a commit and a deletion by address read nothing but
the manifest and older deletion files. So a few rows are encoded, rows are marked as deleted and the version is
committed, by Lance itself, in a local folder that holds those and nothing else. What that makes is then sent to the
store, all files beside each other: one step, however many files there are.

Nothing pins a version before `commit` has returned, so it does not matter which of its files arrives first.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.base.errors import StorageError
from omniray.engine.base.scratch import scratch_folder
from omniray.engine.schema.types import ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.lance_namespace import Attempt
from omniray.engine.tables.version_names import final_path, final_versions

THREADS = 16


class Mirrors:
    """The mirrors of one process for one graph, and what is on its way to the store. Threads may share it."""

    def __init__(self, store: ObjectStore, session: lance.Session, storage_version: str) -> None:
        self.store, self.session, self.storage_version = store, session, storage_version
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-upload")

    def of(self, type: ElementType, version: int) -> Mirror | None:
        """A mirror of a version that has its final name; None if it has none, or if it has indexes.

        Where Lance looks for a version's indexes it reads its manifest again, by the final name.
        """
        name = final_path(type.path, version)
        manifest = self.store.get(name)
        if manifest is None:
            return None
        folder = scratch_folder("mirror")
        local = folder / name.removeprefix(f"{type.path}/")
        local.parent.mkdir()
        local.write_bytes(manifest)
        dataset = lance.dataset(str(folder), version=version)
        mirror = Mirror(type, dataset, _Folder(folder), self)
        return None if dataset.describe_indices() else mirror

    def send(self, source: Path, target: str, *, keep: bool) -> Future[None]:
        """Begin to upload a file; it is deleted here when it is there, unless it is to be kept."""
        return self._pool.submit(self._send, source, target, keep)

    def look(self, type: ElementType) -> Future[int]:
        """Begin to look for the newest version of a table that has a final name."""
        return self._pool.submit(self._newest, type)

    def _newest(self, type: ElementType) -> int:
        return max(final_versions(self.store.names(f"{type.path}/_versions")), default=0)

    def _send(self, source: Path, target: str, keep: bool) -> None:
        try:
            self.store.put(target, source.read_bytes())
        finally:
            if not keep:
                source.unlink()


class _Folder:
    """A local folder that goes when nobody refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows in data files that are on their way."""

    fragments: tuple[FragmentMetadata, ...]
    arriving: tuple[Future[None], ...]


@dataclass(frozen=True, slots=True)
class Mirror:
    """A remote table at one version: `dataset` knows its manifest and can be committed to; its rows are elsewhere.

    Whoever uses it makes the table's versions one after the other: a commit deletes deletion files that it replaced.
    """

    type: ElementType
    dataset: lance.LanceDataset
    folder: _Folder
    mirrors: Mirrors

    def remote(self) -> lance.LanceDataset:
        """A handle to read rows with. It makes no request, whether or not the version has its final name yet."""
        return lance.LanceDataset(
            f"{self.mirrors.store.uri}/{self.type.path}",
            version=self.dataset.version,
            serialized_manifest=self.dataset._ds.serialized_manifest(),
            storage_options=self.mirrors.store.lance_options,
            session=self.mirrors.session,
        )

    def encode(self, rows: pa.Table) -> Encoded:
        """Rows as data files of this table, which begin to be sent."""
        made = tuple(write_fragments(rows, self.dataset, data_storage_version=self.mirrors.storage_version))
        files = (file.path for fragment in made for file in fragment.files)
        return Encoded(made, tuple(self._send(f"data/{file}") for file in files))

    def fragment(self, fragment_id: int) -> lance.LanceFragment:
        """A fragment from which rows can be deleted by their addresses: its older deletions are here."""
        fragment = self.dataset.get_fragment(fragment_id)
        path = fragment.deletion_file()
        if path is not None and not (local := self.folder.path / path).exists():
            deletions = self.mirrors.store.get(f"{self.type.path}/{path}")
            if deletions is None:
                raise StorageError(f"{self.type.table_key}: the deletion file {path} is gone", path=path)
            local.parent.mkdir(exist_ok=True)
            local.write_bytes(deletions)
        return fragment

    def commit(self, transaction: lance.Transaction, arriving: Iterable[Future[None]]) -> tuple[Mirror, str, int]:
        """Make the next version and send what it needs; returns when all of it has arrived, also `arriving`.

        Gives the version, the name under which its manifest was sent, and the newest version that has a final name.
        """
        sent: list[Future[Any]] = list(arriving)
        newest = self.mirrors.look(self.type)
        try:
            attempt = Attempt()
            dataset = lance.LanceDataset.commit(
                self.dataset,
                transaction,
                max_retries=1,
                namespace_client=attempt,
                table_id=[self.type.table_key],
                namespace_client_managed_versioning=True,
            )
            staging = f"_versions/{attempt.created[-1]['manifest_path'].rsplit('/', 1)[-1]}"
            updated = getattr(transaction.operation, "updated_fragments", [])
            sent += [self._send(fragment.deletion_file.path(fragment.id), keep=True) for fragment in updated]
            sent.append(self._send(f"_transactions/{transaction.read_version}-{transaction.uuid}.txn"))
            sent.append(self._send(staging))
        finally:  # nothing may arrive after this attempt was given up and cleared away
            failures = [error for future in (*sent, newest) if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        self._forget_deletions(transaction.operation)
        after = Mirror(self.type, dataset, self.folder, self.mirrors)
        return after, f"{self.type.path}/{staging}", newest.result()

    def _send(self, path: str, *, keep: bool = False) -> Future[None]:
        return self.mirrors.send(self.folder.path / path, f"{self.type.path}/{path}", keep=keep)

    def _forget_deletions(self, operation: Any) -> None:
        """Delete the deletion files that the next version does without; whoever needs one again fetches it."""
        removed = getattr(operation, "removed_fragment_ids", [])
        for fragment_id in (*removed, *(fragment.id for fragment in getattr(operation, "updated_fragments", []))):
            if (path := self.dataset.get_fragment(fragment_id).deletion_file()) is not None:
                (self.folder.path / path).unlink(missing_ok=True)
