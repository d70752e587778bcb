"""A look at versions of tables, whoever wrote them: what they did, which files they refer to. Nothing here writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import lance
import pyarrow as pa

from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import SEQ_MAX
from omniray.engine.schema.types import ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.lance_namespace import History
from omniray.engine.tables.table import Table, first_words, storage_errors
from omniray.engine.tables.version_names import history_path

_TRANSACTION_FILE = re.compile(rb"(\d+)(-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.txn)")


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What a version with a final name says of itself, whoever wrote it."""

    version: int
    operation: str
    transaction: str
    at: datetime
    rows: int
    schema: pa.Schema


class VersionReader:
    """Looks at the tables of one graph."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def open_foreign(self, type: ElementType, version: int) -> Table:
        """Open a version that no object pins, in a session of its own: its number may hold other bytes later."""
        options = {"storage_options": self._store.lance_options, "session": lance.Session()}
        with storage_errors(type):
            dataset = lance.dataset(f"{self._store.uri}/{type.path}", version=version, **options)
            return Table(type, dataset, _transaction_of(dataset, version)[1], dataset.count_rows())

    def describe(self, newest: Table, versions: Sequence[int]) -> list[VersionFacts]:
        """What those of the versions up to `newest` that still have their final names say of themselves."""
        with storage_errors(newest.type):
            listed = {entry["version"]: entry for entry in newest.dataset.versions()}
            return [_facts(newest.dataset, listed[version]) for version in versions if version in listed]

    def references(self, table_path: str, manifest_path: str) -> frozenset[str]:
        """The files that a version refers to, by its manifest; paths are those within the table.

        Of an index it is the folder: a manifest need not say which files are in it.

        A manifest that was moved meanwhile is read in the history; one that is in neither place raises, for nobody can
        tell what it referred to.
        """
        version = SEQ_MAX - int(manifest_path.rpartition("/")[2].removesuffix(".manifest"))
        for path in (manifest_path, history_path(table_path, version)):
            manifest = self._store.get(path)
            files = None if manifest is None else self._files(table_path, path, version)
            if manifest is not None and files is not None:
                return frozenset((*files, *_transaction_files(manifest)))
        raise StorageError(f"can't read {manifest_path}: it is neither there nor in the history", path=manifest_path)

    def _files(self, table_path: str, manifest_path: str, version: int) -> list[str] | None:
        """The files of the version whose manifest lies at a path; None if it is not there any more."""
        shown = History(f"{self._store.uri}/{table_path}", self._store.lance_path(manifest_path))
        options = {"storage_options": self._store.lance_options}  # and no session: it would keep all that is looked at
        try:
            dataset = lance.dataset(namespace_client=shown, table_id=[table_path], version=version, **options)
            return [*_files_of(dataset.get_fragments()), *_index_folders(dataset)]
        except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
            if self._store.get(manifest_path) is None:
                return None
            raise StorageError(f"can't read {manifest_path}: {first_words(error)}", path=manifest_path) from error


def _transaction_of(dataset: lance.LanceDataset, version: int) -> tuple[str, str]:
    """The operation's name and the transaction's uuid; what Lance has no class for is `Other`."""
    transaction = dataset.read_transaction(version)
    if transaction is None:
        return "Other", ""
    name = type(transaction.operation).__name__
    return "Other" if name == "BaseOperation" else name, transaction.uuid


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
    """The transaction file's name in a manifest, and those that it may be: its length, which is written before it, may
    look like one more digit.
    """
    for digits, rest in _TRANSACTION_FILE.findall(manifest):
        yield from (f"_transactions/{digits[at:].decode()}{rest.decode()}" for at in range(len(digits)))
