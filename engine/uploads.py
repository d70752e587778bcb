"""Data files on their way to a remote store: encoded here, so that nobody waits for their upload until it matters.

Lance commits a version with three requests, one after another, and never looks at the data files that it refers to. So
a few rows are encoded into a local folder, and their upload runs beside the commit. Both must be through before
anything pins the version.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.schema import ElementType
from omniray.engine.store import ObjectStore

THREADS = 8


class Uploads:
    """The uploads of one process to one graph. Threads may share it."""

    _session: LanceFileSession
    _folder: Path

    def __init__(self, store: ObjectStore, storage_version: str) -> None:
        self._store, self._storage_version = store, storage_version
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-upload")
        self._lock = threading.Lock()
        self._encoders: dict[str, lance.LanceDataset] = {}
        self._under_way: dict[str, Future[None]] = {}

    def begin(self, type: ElementType, dataset: lance.LanceDataset, rows: pa.Table) -> list[FragmentMetadata] | None:
        """Encode rows and begin to upload them; None if the table numbers its columns in a way of its own."""
        encoder = self._encoder(type)
        if _numbers(encoder.lance_schema.fields()) != _numbers(dataset.lance_schema.fields()):
            return None
        fragments: list[FragmentMetadata] = write_fragments(rows, encoder, data_storage_version=self._storage_version)
        for fragment in fragments:
            for file in fragment.files:
                source = self._folder / type.path / "data" / file.path
                target = f"{type.path}/data/{file.path}"
                self._under_way[file.path] = self._pool.submit(self._upload, source, target)
        return fragments

    def finish(self, files: tuple[str, ...]) -> None:
        """Wait until files have arrived; those that were not begun here have. Raises if one of them has not."""
        futures = [future for file in files if (future := self._under_way.pop(file, None)) is not None]
        failures = [error for future in futures if (error := future.exception()) is not None]
        if failures:
            raise failures[0]

    def _upload(self, source: Path, target: str) -> None:
        try:
            self._session.upload_file(str(source), target)
        finally:
            source.unlink()

    def _encoder(self, type: ElementType) -> lance.LanceDataset:
        """An empty table of the same schema: with it Lance gives the columns of a file the numbers of the table's."""
        with self._lock:
            if not self._encoders:
                self._open()
            if type.path not in self._encoders:
                self._encoders[type.path] = lance.write_dataset(
                    type.arrow.empty_table(), str(self._folder / type.path),
                    data_storage_version=self._storage_version,
                )  # fmt: skip
            return self._encoders[type.path]

    def _open(self) -> None:
        """Make ready for the first rows: who only reads needs no folder."""
        self._session = LanceFileSession(self._store.uri, storage_options=self._store.lance_options)
        self._folder = Path(tempfile.mkdtemp(prefix="omniray-rows-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)


def _numbers(fields: Iterable[Any]) -> list[tuple[str, int, list[Any]]]:
    return [(field.name(), field.id(), _numbers(field.children())) for field in fields]
