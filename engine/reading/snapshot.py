"""A snapshot: all tables of a branch as of one commit, its head or an earlier one; it stays readable for ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.base.suggestions import nearest
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import Pin
from omniray.engine.reading.fragment_groups import FragmentGroup, cut
from omniray.engine.reading.sql import DEFAULT_LIMITS, SqlLimits, select
from omniray.engine.rows.export import export_records
from omniray.engine.schema.types import ElementType
from omniray.engine.tables.table import Table, first_words

Filter: TypeAlias = pc.Expression | str
_MISSING_TABLE = re.compile(r"Table with name (.+) does not exist")


class Snapshot:
    """The graph as of one commit. Tables are opened when they are first read."""

    def __init__(
        self,
        branch: OpenBranch,
        commit_id: str,
        pins: Mapping[str, Pin],
        is_final: Callable[[Pin], bool],
    ) -> None:
        self.branch = branch.branch.name
        self.line = branch.branch.ulid  # which a later branch of the same name does not share
        self.commit_id = commit_id
        self.schema = branch.schema
        self._pins, self._is_final = pins, is_final
        self._cache = branch.cache

    def __repr__(self) -> str:
        return f"Snapshot(branch={self.branch!r}, commit_id={self.commit_id!r})"

    @property
    def versions(self) -> dict[str, int]:
        """The version of every table by its key, in the form of `expected_versions`."""
        return {key: pin.version for key, pin in sorted(self._pins.items())}

    def describe(self) -> dict[str, Any]:
        """The snapshot as plain data: branch, commit and, for each table, its version and number of rows."""
        tables = [
            {"table_key": key, "version": pin.version, "row_count": pin.rows} for key, pin in sorted(self._pins.items())
        ]
        return {"branch": self.branch, "commit_id": self.commit_id, "tables": tables}

    def count(self, type_name: str) -> int:
        return self._pins[self.schema.type(type_name).table_key].rows

    def table(self, type_name: str, columns: Sequence[str] | None = None, filter: Filter | None = None) -> pa.Table:
        """A type's rows as Arrow; only the requested columns and rows are read."""
        return _read_all(self.reader(type_name, columns, filter))

    def reader(
        self, type_name: str, columns: Sequence[str] | None = None, filter: Filter | None = None
    ) -> pa.RecordBatchReader:
        """A type's rows as a stream, for tables larger than memory."""
        type = self.schema.type(type_name)
        if isinstance(columns, str):
            raise InputError(f"columns are a list of names: give columns=[{columns!r}]")
        for column in columns or ():
            if column not in type.arrow.names:
                raise InputError(f"{type_name} has no column {column!r}; it has {', '.join(type.arrow.names)}")
        table = self._open(type)
        try:
            return table.scan(columns, filter)
        except StorageError as error:
            is_about_filter = filter is not None and isinstance(error.__cause__, ValueError | pa.ArrowException)
            if not is_about_filter:  # the store failed
                raise
            raise InputError(f"can't filter {type_name} by {str(filter)!r}: {error}") from error

    def groups(self, type_name: str) -> list[FragmentGroup]:
        """A type's rows in groups of about equal size, for other processes to read (`fragment_groups.GroupReader`)."""
        type = self.schema.type(type_name)
        pin = self._pins[type.table_key]
        return cut(self._open(type), pin, is_final=self._is_final(pin))

    def sql(self, query: str, *, limits: SqlLimits = DEFAULT_LIMITS) -> pa.Table:
        """Run one SELECT over the snapshot with DuckDB; every type is a table of its name."""
        try:
            return select(query, self._tables_in, limits)
        except duckdb.CatalogException as error:
            raise InputError(self._unknown_table(str(error)) or f"can't run the query: {error}") from error
        except duckdb.Error as error:
            raise InputError(f"can't run the query: {error}") from error

    def export(self, type_name: str | None = None) -> Iterator[bytes]:
        """All records, or one type's, as JSON lines that a load reads back; nodes come before edges."""
        types = [self.schema.type(type_name)] if type_name else list(self.schema)
        for type in types:
            yield from export_records(type, self._open(type).scan())

    def _tables_in(self, names: set[str]) -> dict[str, ds.Dataset]:
        """The tables of the types that a query names."""
        by_lower = {t.name.lower(): t for t in self.schema}
        named = [by_lower[name.lower()] for name in sorted(names) if name.lower() in by_lower]
        return {type.name: self._open(type).dataset for type in named}

    def _unknown_table(self, message: str) -> str | None:
        """Our own message for an unknown table: DuckDB would suggest tables of its own."""
        if (missing := _MISSING_TABLE.search(message)) is None:
            return None
        types = [t.name for t in self.schema]
        near = nearest(missing[1], types)
        hint = f" (did you mean {near!r}?)" if near else ""
        return f"no table {missing[1]!r}{hint}; every type is a table of its name: {', '.join(types)}"

    def _open(self, type: ElementType) -> Table:
        pin = self._pins[type.table_key]
        return self._cache.open(type.table_key, pin, is_final=self._is_final(pin))


def _read_all(reader: pa.RecordBatchReader) -> pa.Table:
    try:
        return reader.read_all()
    except OSError as error:
        raise StorageError(f"can't read the table: {first_words(error)}") from error
