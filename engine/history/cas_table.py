"""A Lance table whose version number is compared and swapped: the manifest and the audit of recoveries.

Unlike a graph's tables, these are no part of a commit: each version is visible at once, and any process may make the
next one. It is staged like a table's, its number must be exactly one more than that of the version read, and its final
name is put if absent; so of two writers on the same version one lands, and the other begins again. Lance alone does not
ensure that: it rebases a commit over versions in between, also over deleted ones.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_json import check_format
from omniray.engine.line.commit_object import FORMAT
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables import old_versions
from omniray.engine.tables.empty_table import FIRST_MANIFEST, empty_table_files
from omniray.engine.tables.lance_namespace import CommitAttempt
from omniray.engine.tables.table import first_words
from omniray.engine.tables.version_names import final_path

STAMP = b"omniray:internal_schema_version"
KEPT_VERSIONS = 64
SLEPT_S = 1.0
PUT_TRIES_MAX = 4
CACHE_BYTES = 16 << 20


@contextlib.contextmanager
def lance_errors(doing: str) -> Iterator[None]:
    """Turn Lance's errors into `StorageError`; a lost race passes through."""
    try:
        yield
    except CommitConflictError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"can't {doing}: {first_words(error)}; try again") from error


@dataclass(frozen=True, slots=True)
class StagedSwap:
    """The next version under a staging name, and when its staging began."""

    dataset: lance.LanceDataset
    staging: str
    begun_s: float


class SwapTable:
    """A table with compare-and-swap; `CommitConflictError` says that another process was first."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        schema: pa.Schema,
        *,
        clock: Callable[[], float] = suspension_aware_clock,
    ) -> None:
        self._store, self._path, self._clock = store, path, clock
        self._schema = schema.with_metadata({STAMP: str(FORMAT).encode()})
        self._leftovers: list[str] = []
        self._reading: lance.Session | None = None
        self.uri = f"{store.uri}/{path}"

    def open(self) -> lance.LanceDataset | None:
        """The newest version, or None if the table does not exist."""
        return self._opened(None)

    def open_to_read(self) -> lance.LanceDataset | None:
        """The same, for reading only: index and data files that were read stay cached between calls.

        Lance caches the indexes of a version by its number alone, and a staged version may lose its number to another:
        so nothing is ever staged in this session.
        """
        if self._reading is None:
            self._reading = lance.Session(index_cache_size_bytes=CACHE_BYTES, metadata_cache_size_bytes=CACHE_BYTES)
        return self._opened(self._reading)

    def create(self) -> None:
        """Create the table if it is missing; any number of processes may, since all empty first versions are alike.

        Afterwards it may already have rows and later versions: open it.
        """
        files = empty_table_files(self._schema, None)
        self._put(f"{self._path}/_transactions/{files.transaction_file_name}", files.transaction_bytes)
        self._put(f"{self._path}/_versions/{FIRST_MANIFEST}", files.manifest_bytes)

    def stage(self, dataset: lance.LanceDataset, operation: lance.LanceOperation.BaseOperation) -> StagedSwap:
        """Make the version after `dataset` under a name that no reader looks at."""
        attempt = CommitAttempt()
        transaction = str(uuid.uuid4())
        begun_s = self._clock()
        after = lance.LanceDataset.commit(
            dataset,
            lance.Transaction(dataset.version, operation, transaction),
            max_retries=1,
            namespace_client=attempt,
            table_id=[self._path],
            namespace_client_managed_versioning=True,
        )
        staging = f"{self._path}/_versions/{attempt.staged_name}"
        self._leftovers.append(staging)
        if after.version != dataset.version + 1:
            raise CommitConflictError("another process was first")
        transaction_file = f"_transactions/{dataset.version}-{transaction}.txn"
        added = (f"{self._path}/{file}" for file in (transaction_file, *_files_added(operation)))
        self._store.sync([staging, *added])
        return StagedSwap(after, staging, begun_s)

    def publish(self, staged: StagedSwap) -> lance.LanceDataset:
        """Give a staged version its final name; when this returns it follows the version that it was built on."""
        if (
            self._store.copy_if_absent(staged.staging, final_path(self._path, staged.dataset.version))
            is not Answer.CREATED
        ):
            raise CommitConflictError("another process was first, or it is not clear that we were")
        slept = self._clock() - staged.begun_s > SLEPT_S
        if slept and old_versions.newest_version(self._store, self._path) != staged.dataset.version:
            raise CommitConflictError("we slept, and the number that we took had been used and deleted")
        return staged.dataset

    def take_leftovers(self) -> list[str]:
        """Staging names that are not needed any more, each of them once."""
        taken, self._leftovers = self._leftovers, []
        return taken

    def discard_old_versions(self, newest: int) -> None:
        """Delete old versions, now and then: such a table needs no time travel."""
        if old_versions.is_due(newest, KEPT_VERSIONS):
            old_versions.discard(self._store, self._path, keep=KEPT_VERSIONS)

    def _opened(self, session: lance.Session | None) -> lance.LanceDataset | None:
        try:
            dataset = self._open(session)
        except StorageError:  # Lance's errors do not tell a missing table from an unreadable one
            if self._store.first_name(f"{self._path}/_versions") is None:
                return None
            dataset = self._open(session)  # another process may have created it just now
        check_format(int((dataset.schema.metadata or {}).get(STAMP, b"0")), where=self.uri)
        return dataset

    def _open(self, session: lance.Session | None) -> lance.LanceDataset:
        with lance_errors(f"open {self.uri}"):
            return lance.dataset(self.uri, storage_options=self._store.lance_options, session=session)

    def _put(self, path: str, data: bytes) -> None:
        for _ in range(PUT_TRIES_MAX):
            if self._store.put_if_absent(path, data) is not Answer.UNCLEAR:
                return
        raise StorageError(f"no clear answer to putting {path}; try again", path=path)


def _files_added(operation: lance.LanceOperation.BaseOperation) -> Iterator[str]:
    """The files that an operation makes part of the table, by their names within it."""
    if isinstance(operation, lance.LanceOperation.CreateIndex):
        yield from (f"_indices/{index.uuid}/{file.path}" for index in operation.new_indices for file in index.files)
    else:
        yield from (f"data/{file.path}" for fragment in operation.new_fragments for file in fragment.files)
