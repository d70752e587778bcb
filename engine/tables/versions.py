"""Reads table versions of any writer: what they did, and which files they refer to. Nothing here writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import lance
import pyarrow as pa

from omniray.engine.base.errors import StorageError
from omniray.engine.line.stored_names import is_stored_name
from omniray.engine.schema.types import ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.lance_namespace import ShownVersion
from omniray.engine.tables.manifest_file import index_section, serialised
from omniray.engine.tables.mirror import Mirror, Mirrors
from omniray.engine.tables.storage import STORAGE_VERSION
from omniray.engine.tables.table import Table, first_words, storage_errors
from omniray.engine.tables.version_names import final_path, history_path, version_of

_TRANSACTION_FILE = re.compile(rb"(\d+)(-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.txn)")


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """The facts of a version with a final name, of any writer."""

    version: int
    operation: str
    transaction: str
    at: datetime
    rows: int
    schema: pa.Schema


class VersionReader:
    """Reads versions of the tables of one graph."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._indexes: dict[tuple[str, bytes], tuple[str, ...]] = {}  # folders by table and description

    def open_foreign(self, type: ElementType, table_path: str, version: int) -> Table:
        """Open a version that no object pins, in a session of its own: its number may hold other bytes later."""
        options = {"storage_options": self._store.lance_options, "session": lance.Session()}
        with storage_errors(type):
            dataset = lance.dataset(f"{self._store.uri}/{table_path}", version=version, **options)
            transaction, rows = _transaction_of(dataset, version)[1], dataset.count_rows()
        return Table(
            type, table_path, version, transaction, rows,
            open_rows=lambda: dataset, mirrored=lambda: self._mirror_of(table_path, version),
        )  # fmt: skip

    def _mirror_of(self, table_path: str, version: int) -> Mirror:
        path = final_path(table_path, version)
        manifest = self._store.get(path)
        if manifest is None:
            raise StorageError(f"{path} is gone; try again", path=path)
        return Mirrors(self._store, STORAGE_VERSION).of(table_path, version, manifest)

    def describe(self, newest: Table, versions: Sequence[int]) -> list[VersionFacts]:
        """The facts of these versions up to `newest`, without those that lost their final names."""
        with storage_errors(newest.type):
            listed = {entry["version"]: entry for entry in newest.dataset.versions()}
            return [_facts(newest.dataset, listed[version]) for version in versions if version in listed]

    def references(self, table_path: str, manifest_path: str) -> frozenset[str]:
        """The files that a version refers to, by its manifest; paths are those within the table.

        For an index it is the folder: a manifest need not say which files are in it.

        A manifest that was moved meanwhile is read in the history; one that is in neither place raises, since its
        references are unknown.
        """
        version = version_of(manifest_path)
        for path in (manifest_path, final_path(table_path, version), history_path(table_path, version)):
            if (manifest := self._store.get(path)) is not None:
                files = self._files(table_path, path, version, manifest)
                return frozenset((*files, *_transaction_files(manifest)))
        raise StorageError(f"can't read {manifest_path}: it is neither there nor in the history", path=manifest_path)

    def _files(self, table_path: str, path: str, version: int, manifest: bytes) -> list[str]:
        """The data, deletion and index files of the version whose manifest lies at a path."""
        location = f"{self._store.uri}/{table_path}"
        try:
            dataset = lance.LanceDataset(
                location,
                version=version,
                serialized_manifest=serialised(manifest, where=path),
                storage_options=self._store.lance_options,
                namespace_client=ShownVersion(location, lambda: self._store.lance_path(path)),
                table_id=[table_path],
                namespace_client_managed_versioning=True,
            )  # without a session: it would cache every version
            files = _files_of(dataset.get_fragments())
            return [*files, *self._index_folders(table_path, dataset, index_section(manifest, where=path))]
        except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
            raise StorageError(f"can't read {path}: {first_words(error)}", path=path) from error

    def _index_folders(self, table_path: str, dataset: lance.LanceDataset, described: bytes) -> tuple[str, ...]:
        """The folders of a version's indexes; Lance reads a description once, however many versions have it."""
        if not described:
            return ()
        found = self._indexes.get((table_path, described))
        if found is None:
            found = self._indexes[table_path, described] = tuple(_index_folders(dataset))
        return found


def _transaction_of(dataset: lance.LanceDataset, version: int) -> tuple[str, str]:
    """The operation's name and the transaction's uuid; an operation without a class in Lance is `Other`."""
    transaction = dataset.read_transaction(version)
    if transaction is None:
        return "Other", ""
    name = type(transaction.operation).__name__
    uuid = transaction.uuid if is_stored_name(transaction.uuid) else ""  # a pin could not name it
    return "Other" if name == "BaseOperation" else name, uuid


def _facts(dataset: lance.LanceDataset, entry: Mapping[str, Any]) -> VersionFacts:
    version = int(entry["version"])
    operation, transaction = _transaction_of(dataset, version)
    rows, schema = int(entry["metadata"]["total_rows"]), dataset.checkout_version(version).schema
    return VersionFacts(version, operation, transaction, entry["timestamp"].astimezone(UTC), rows, schema)


def _files_of(fragments: Iterable[lance.LanceFragment]) -> Iterator[str]:
    for fragment in fragments:
        yield from (f"data/{file.path}" for file in fragment.data_files())
        if (deletions := fragment.deletion_file()) is not None:
            yield deletions


def _index_folders(dataset: lance.LanceDataset) -> Iterator[str]:
    for index in dataset.describe_indices():
        yield from (f"_indices/{segment.uuid}" for segment in index.segments)


def _transaction_files(manifest: bytes) -> Iterator[str]:
    """The possible names of a manifest's transaction file: the length before it may look like one more digit."""
    for digits, rest in _TRANSACTION_FILE.findall(manifest):
        yield from (f"_transactions/{digits[at:].decode()}{rest.decode()}" for at in range(len(digits)))
