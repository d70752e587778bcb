"""An open table: one version of a graph table's Lance dataset, to be read and to be built upon."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.dataset import ScannerBuilder

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.engine.schema.types import ElementType
from omniray.engine.tables.filters import is_pushed_down, pushed_down, refuse_boundless
from omniray.engine.tables.mirror import Mirror

ROWADDR = "_rowaddr"
TAIL_ROWS_MAX = 1024
TAIL_BYTES_MAX = 1 << 20
SCANNED_BYTES_MAX = 64 << 20  # of a batch: without it a batch has 8,192 rows, even if each is a megabyte
_PLACES_AND_XML = re.compile(r"(, \S*\.rs:\d+|<\?xml).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a table at one version: with the same files and deletions it holds the same rows in any."""

    id: int
    files: tuple[str, ...]
    deletions: str | None
    rows: int  # without the deleted ones
    size_bytes: int


class Table:
    """An open table at one version. The rows of its tail fragment are kept once they are known."""

    def __init__(
        self,
        type: ElementType,
        path: str,
        version: int,
        transaction: str,
        rows: int,
        *,
        open_rows: Callable[[], lance.LanceDataset],
        mirrored: Callable[[], Mirror] | Mirror,
        tail: pa.Table | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.type, self.path, self.version = type, path, version
        self.transaction = transaction
        self.rows = rows
        self._open_rows, self._mirrored = open_rows, mirrored
        self._dataset: lance.LanceDataset | None = None
        self._tail = tail
        self._elder: Table | None = None  # that this one is a twin of
        self._on_failure = on_failure  # raises a more specific error, if there is one

    @property
    def identity(self) -> tuple[int, str]:
        """As `Pin.identity`."""
        return self.version, self.transaction

    @property
    def dataset(self) -> lance.LanceDataset:
        """The handle that reads rows; opened on first use, without a request."""
        if self._dataset is None:
            with self._errors():
                self._dataset = self._open_rows()
        return self._dataset

    @property
    def mirror(self) -> Mirror:
        """Where the next version is made; created when the table is first written to."""
        if not isinstance(self._mirrored, Mirror):
            with self._errors():
                self._mirrored = self._mirrored()
        return self._mirrored

    @property
    def _manifest(self) -> lance.LanceDataset:
        """The handle that knows the version's fragments."""
        if isinstance(self._mirrored, Mirror):
            return self._mirrored.dataset
        return self.dataset if self._elder is None else self._elder._manifest

    @property
    def manifest(self) -> bytes | None:
        """The file of its manifest, if that is known here."""
        return self._mirrored.manifest if isinstance(self._mirrored, Mirror) else None

    def twin(self, mirrored: Callable[[], Mirror]) -> Table:
        """The same version for another line: it shares what was read, and makes its next version elsewhere."""
        twin = Table(
            self.type, self.path, self.version, self.transaction, self.rows,
            open_rows=lambda: self.dataset, mirrored=mirrored, tail=self._tail, on_failure=self._on_failure,
        )  # fmt: skip
        twin._elder = self
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open table can't be pickled: the copy would commit visibly; pass URI and version instead")

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | str | None = None,
        *,
        addresses: bool = False,
        fragments: Sequence[int] | None = None,
    ) -> pa.RecordBatchReader:
        """Rows in a stream, of all fragments or some, columns and filter pushed down; `addresses` adds `_rowaddr`."""
        if isinstance(where, str):
            refuse_boundless(where)
        elif where is not None and not is_pushed_down(where):
            every_row = self.scan(addresses=addresses, fragments=fragments)
            return _filtered(every_row, where, columns and [*columns, *([ROWADDR] if addresses else [])])
        with self._errors():
            builder = ScannerBuilder(self.dataset).with_row_address(addresses).batch_size_bytes(SCANNED_BYTES_MAX)
            if fragments is not None:
                builder = builder.with_fragments([self.dataset.get_fragment(id) for id in fragments])
            if columns is not None:
                builder = builder.columns(list(columns))
            if isinstance(where, str):
                builder = builder.filter(where)
            elif where is not None:
                # `filter` would set the same, but by Lance's own serialiser (`filters.py`).
                builder._substrait_filter = pushed_down(where, self.type.arrow)
            reader = builder.to_scanner().to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, self._guarded(reader))

    def _guarded(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """The reader's batches; a failure while they are read is a storage error like any other."""
        with self._errors():
            yield from reader

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the store's errors into ours; if the graph is gone, raise that instead."""
        try:
            with storage_errors(self.type):
                yield
        except StorageError:
            self._on_failure()
            raise

    def fragments(self) -> list[Fragment]:
        """The version's fragments, by its manifest alone."""
        return [_described(fragment) for fragment in self._manifest.get_fragments()]

    def column_fields(self) -> list[int]:
        """The ids of the fields that have columns in a data file of this version, in their order."""
        return list(_without_parts(self._manifest.lance_schema.fields()))

    def rows_at(self, addresses: pa.Array, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these addresses, in their order; no other row is read."""
        with self._errors():
            return self.dataset._take_rows(addresses, list(self.type.arrow.names if columns is None else columns))

    def tail_fragment(self) -> lance.LanceFragment | None:
        """The newest fragment while it is a tail; None if it is sealed."""
        fragments = self._manifest.get_fragments()
        if not fragments or fragments[-1].physical_rows >= TAIL_ROWS_MAX:
            return None
        size = sum(file.file_size_bytes or 0 for file in fragments[-1].metadata.files)
        return None if size >= TAIL_BYTES_MAX else fragments[-1]

    def tail_rows(self, fragment: lance.LanceFragment) -> pa.Table:
        if self._tail is None:
            with self._errors():
                self._tail = self.dataset.get_fragment(fragment.fragment_id).to_table()
        return self._tail

    def deletable(self, fragment_id: int) -> lance.LanceFragment:
        """A fragment to delete rows from."""
        return self.mirror.fragment(fragment_id)

    def addresses_of_newest(self, rows: int) -> pa.Array:
        """The addresses of the first `rows` rows of the newest fragment."""
        first = self._manifest.get_fragments()[-1].fragment_id << 32
        return pa.array(np.arange(first, first + rows, dtype=np.uint64))


def _filtered(rows: pa.RecordBatchReader, where: pc.Expression, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    names = columns or rows.schema.names
    schema = pa.schema([rows.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch.filter(where).select(names) for batch in rows))


def _without_parts(fields: Sequence[Any]) -> Iterator[int]:
    """The ids of the fields that are no lists: those have the columns of their items."""
    for field in fields:
        if parts := field.children():
            yield from _without_parts(parts)
        else:
            yield field.id()


def _described(fragment: lance.LanceFragment) -> Fragment:
    metadata = fragment.metadata
    files = tuple(str(file.path) for file in metadata.files)
    size_bytes = sum(file.file_size_bytes or 0 for file in metadata.files)
    return Fragment(fragment.fragment_id, files, fragment.deletion_file(), metadata.num_rows, size_bytes)


@contextlib.contextmanager
def storage_errors(type: ElementType) -> Iterator[None]:
    """Turn Lance's errors, whose classes say little, into ours, which name the table; nothing was committed then."""
    try:
        yield
    except CommitConflictError:
        raise
    except OmnirayError as error:
        error.facts.setdefault("table_key", type.table_key)
        raise
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        raise StorageError(f"{type.table_key}: {first_words(error)}", table_key=type.table_key) from error


def first_words(error: Exception) -> str:
    """Lance's message, without places in its source and the XML of a store's answer."""
    if "403 Forbidden" in str(error):
        return "access denied: check that the credentials may read and write this prefix"
    return _PLACES_AND_XML.sub("", str(error)).splitlines()[0][:300]
