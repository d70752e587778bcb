"""The key log: of every row of a write, the columns that rules over several rows need, and no others.

A write is a stream; its rows go to storage and its keys go here. When the source has ended, `constraints.judge` decides
over the whole write at once. Keys stay in memory up to a limit and then go to files, as Arrow either way: SQL reads
Arrow in place, while filling a DuckDB table takes as long as joining it. Results of SQL are kept in a private DuckDB
that spills to disk. So memory stays bounded for a write of any size.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa

from omniray.engine.base.errors import InputError
from omniray.engine.base.scratch import scratch_folder
from omniray.engine.judge.relations import WARM_MEMORY_LIMIT_MB, Relation, connect_warm, open_database
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import place
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, Schema, Unique


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """The memory limits of a write's keys: of Arrow over all tables, and of SQL; beyond both they go to disk."""

    arrow_bytes: int
    sql_mb: int


_SPILLED_BATCH_ROWS = 65_536

ROOMY = KeyMemory(384 << 20, 512)
"""Holds the keys of about four million edges in memory."""

FRUGAL = KeyMemory(32 << 20, 128)
"""For a process that needs its memory for other work."""


def key_columns(type: ElementType) -> Mapping[str, str]:
    """The columns that the log keeps of a type, and the name of each in the log.

    Properties are numbered: their names may clash with our own, or differ only in case, which SQL can't tell apart.
    """
    ends = {SRC: SRC, DST: DST} if isinstance(type, EdgeType) else {}
    named = {name for c in type.constraints if isinstance(c, Unique) for name in c.properties}
    properties = (p.name for p in type.properties if p.name in named)
    return {ID: ID, **ends, **{name: f"u{n}" for n, name in enumerate(properties)}}


def logged_columns(type: ElementType) -> pa.Schema:
    """The columns of a table's keys: the number of each row, its place in the source, and its `key_columns`."""
    counted = {"row": pa.int64(), "record": pa.int64(), "source": pa.int32()}
    named = {name: type.arrow.field(column).type for column, name in key_columns(type).items()}
    return pa.schema({**counted, **named})


def no_keys(type: ElementType) -> Relation:
    """The keys of a table without written rows."""
    return Relation.of(logged_columns(type).empty_table())


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """A small key log in a form to send: the names of its sources and, for each table, its mode and keys."""

    sources: tuple[str, ...]
    tables: Mapping[str, tuple[Mode, pa.Table]]


class TableLog:
    """The keys of one table: rows in the order they came, and ids that the write removes."""

    def __init__(self, type: ElementType, mode: Mode, name: str) -> None:
        self.type = type
        self.mode = mode
        self.name = name  # in statements, and of its files
        self.columns = key_columns(type)
        self.rows = 0
        self.files: list[Path] = []  # of the first rows; the buffered rows come after them
        self.buffer: list[pa.Table] = []
        self.buffer_bytes = 0
        self._deleted: list[pa.StringArray] = []

    def add(self, rows: pa.RecordBatch | pa.Table, records: pa.Int64Array, source: int) -> int:
        """Add the keys of the rows; returns their size in memory."""
        columns = {
            "row": pa.array(np.arange(self.rows, self.rows + rows.num_rows, dtype=np.int64)),
            "record": records,
            "source": pa.repeat(pa.scalar(source, pa.int32()), rows.num_rows),
            **{name: rows.column(column) for column, name in self.columns.items()},
        }
        chunk = pa.table(columns)
        self.buffer.append(chunk)
        self.buffer_bytes += chunk.nbytes
        self.rows += rows.num_rows
        return int(chunk.nbytes)

    def extend(self, others: Sequence[tuple[pa.Table, np.ndarray[Any, Any]]]) -> int:
        """Add keys that other logs numbered from 0, each log with the numbers of its sources in this one."""
        chunk = pa.concat_tables([keys for keys, _ in others])
        columns = dict(zip(chunk.column_names, chunk.columns, strict=True))
        columns["row"] = pa.array(np.arange(self.rows, self.rows + chunk.num_rows, dtype=np.int64))
        if any(numbers.any() for _, numbers in others):
            sources = [numbers[keys["source"].to_numpy()] for keys, numbers in others if keys.num_rows]
            columns["source"] = pa.array(np.concatenate(sources), pa.int32())
        chunk = pa.table(columns)
        self.buffer.append(chunk)
        self.buffer_bytes += chunk.nbytes
        self.rows += chunk.num_rows
        return int(chunk.nbytes)

    def delete(self, ids: pa.StringArray) -> None:
        self._deleted.append(ids)

    @property
    def deleted(self) -> pa.Table:
        """The ids that the write removes, each once."""
        ids = pa.chunked_array(self._deleted, pa.string())
        return pa.table({ID: ids.unique()})

    def drain(self) -> pa.Table:
        """Return the buffered keys and empty the buffer."""
        chunk = pa.concat_tables(self.buffer)
        self.buffer, self.buffer_bytes = [], 0
        return chunk


class KeyLog:
    """The keys of one write, by table. `constraints.judge` reads it once per attempt.

    Up to `memory_rows` rows of a table are judged as Arrow, more by SQL, in memory or in files.
    """

    def __init__(self, schema: Schema, *, memory_rows: int = 100_000, memory: KeyMemory = ROOMY) -> None:
        self._schema = schema
        self._memory_rows = memory_rows
        self._memory = memory
        self._tables: dict[str, TableLog] = {}
        self._begun = 0
        self._sources: dict[str, int] = {}
        self._database: duckdb.DuckDBPyConnection | None = None
        self._directory: Path | None = None
        self._buffer_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, type: ElementType, mode: Mode) -> None:
        """Note that the write touches a table, if only to empty it."""
        if type.table_key not in self._tables:
            self._tables[type.table_key] = TableLog(type, mode, f"keys_{self._begun}")
            self._begun += 1
        known = self._tables[type.table_key]
        if known.mode is not mode:
            raise InputError(
                f"{type.table_key} is written with mode '{known.mode}' and '{mode}' at once; split the write in two",
                table_key=type.table_key,
            )

    def add(self, type: ElementType, rows: pa.RecordBatch | pa.Table, records: pa.Int64Array, source: str) -> None:
        """Add the keys of rows, which are numbered per table from 0. A null id stands for a new, unique one."""
        number = self._sources.setdefault(source, len(self._sources))
        self._buffer_bytes += self._tables[type.table_key].add(rows, records, number)
        self._make_room()

    def delete(self, type: ElementType, ids: pa.StringArray) -> None:
        """Add the ids of rows that the write removes."""
        table = self._tables[type.table_key]
        if table.mode is not Mode.DELETE:
            raise InputError(
                f"{type.table_key} is written with mode '{table.mode}', which deletes nothing; split the write in two",
                table_key=type.table_key,
            )
        table.delete(ids)

    def forget(self, type: ElementType) -> None:
        """Forget all that was logged of a table."""
        table = self._tables.pop(type.table_key, None)
        if table is not None:
            self._buffer_bytes -= table.buffer_bytes
            for path in table.files:
                path.unlink(missing_ok=True)

    def packed(self) -> PackedKeys:
        """All added keys, to be sent to another process."""
        return PackedKeys(tuple(self._sources), {key: (t.mode, self._arrow(t)) for key, t in self._tables.items()})

    def extend(self, *others: PackedKeys) -> None:
        """Add the keys of other logs; their rows come after the rows of this log, in order."""
        parts: defaultdict[str, list[tuple[pa.Table, np.ndarray[Any, Any]]]] = defaultdict(list)
        for packed in others:
            numbers = [self._sources.setdefault(name, len(self._sources)) for name in packed.sources]
            for key, (mode, keys) in packed.tables.items():
                self.begin(self._schema.by_table_key[key], mode)
                parts[key].append((keys, np.array(numbers, np.int32)))
        for key, part in parts.items():
            self._buffer_bytes += self._tables[key].extend(part)
        self._make_room()

    def close(self) -> None:
        """Free memory and disk space."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        self._tables.clear()

    def table(self, table_key: str) -> TableLog | None:
        """The log of a table, if the write touches it."""
        return self._tables.get(table_key)

    def written(self, table: TableLog) -> Relation:
        """The keys of all rows of a table: `row`, `record`, `source` and its `key_columns`."""
        if table.files or self._is_large(table):
            if table.files:
                self._spill(table)
            self._private_database()
            return Relation(table.rows, table=table.name)
        if len(table.buffer) > 1:
            table.buffer = [pa.concat_tables(table.buffer).combine_chunks()]
        return Relation.of(table.buffer[0]) if table.buffer else no_keys(table.type)

    def places(self) -> pa.Table:
        """For each source its number, its name and the words before a record's number in a message."""
        names = list(self._sources)
        words = [place(name, 0).removesuffix("0") for name in names]
        columns = [pa.array(range(len(names)), pa.int32()), pa.array(names, pa.string()), pa.array(words, pa.string())]
        return pa.table(columns, ["source", "name", "place"])

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection that sees every table too large for Arrow; the caller closes it."""
        if self._database is None:
            return connect_warm()
        connection = self._database.cursor()
        for table in self._tables.values():
            if table.files:
                connection.register(table.name, _Spilled(table.files))
            elif self._is_large(table):
                connection.register(table.name, pa.concat_tables(table.buffer))
        return connection

    def _arrow(self, table: TableLog) -> pa.Table:
        if not table.files and not table.buffer:
            return logged_columns(table.type).empty_table()
        spilled = [_Spilled(table.files).reader().read_all()] if table.files else []
        return pa.concat_tables([*spilled, *table.buffer]).combine_chunks()

    @property
    def memory_limit_mb(self) -> int:
        """The memory limit of a connection."""
        return WARM_MEMORY_LIMIT_MB if self._database is None else self._memory.sql_mb

    def _is_large(self, table: TableLog) -> bool:
        return table.rows > self._memory_rows

    def _make_room(self) -> None:
        if self._buffer_bytes > self._memory.arrow_bytes:
            self._spill(max(self._tables.values(), key=lambda table: table.buffer_bytes))

    def _spill(self, table: TableLog) -> None:
        if not table.buffer:
            return
        self._private_database()
        assert self._directory is not None, "the database has its directory"
        self._buffer_bytes -= table.buffer_bytes
        path = self._directory / f"{table.name}-{len(table.files)}.arrow"
        chunk = table.drain()
        with pa.ipc.new_file(path, chunk.schema) as file:
            file.write_table(chunk, max_chunksize=_SPILLED_BATCH_ROWS)
        table.files.append(path)

    def _private_database(self) -> duckdb.DuckDBPyConnection:
        if self._database is None:
            self._directory = scratch_folder("keys")
            self._database = open_database(self._memory.sql_mb, self._directory)
        return self._database


class _Spilled:
    """The keys of a table that are in files, read batch by batch, as often as SQL asks for them.

    An Arrow dataset would do the same, but its read-ahead exceeds the memory limit.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        with pa.OSFile(str(self._files[0])) as file:
            schema = pa.ipc.open_file(file).schema
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for path in self._files:
            with pa.OSFile(str(path)) as file:
                spilled = pa.ipc.open_file(file)
                yield from map(spilled.get_batch, range(spilled.num_record_batches))
