"""SQL over the tables of a snapshot, by DuckDB.

A query may come from anybody. So the database is locked before it sees one: it has no files, no network, no extensions
and none of the program's variables, and its settings can't be changed. Memory, time and the result have limits.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from omniray.engine.base.errors import InputError
from omniray.engine.base.scratch import scratch_folder

QUERY_CHARS_MAX = 1 << 20
SPILLED_PER_MEMORY = 4
_INTERRUPT_EVERY_S = 0.1
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one query may take. What does not fit into the memory is spilled to a local disk, four times as much."""

    timeout_s: float = 300.0
    memory_bytes: int = 4 << 30
    result_rows: int = 10_000_000
    result_bytes: int = 4 << 30


DEFAULT_LIMITS = SqlLimits()


def select(query: str, open_tables: Callable[[set[str]], dict[str, ds.Dataset]], limits: SqlLimits) -> pa.Table:
    """The result of one SELECT; `open_tables` gives the tables among the names in it."""
    if len(query) > QUERY_CHARS_MAX:
        raise InputError(f"the query has {len(query):,} characters, more than {QUERY_CHARS_MAX:,}: shorten it")
    with _locked(limits) as connection, _interrupted_after(connection, limits.timeout_s):
        if not _is_one_select(connection, query):
            raise InputError("a snapshot can only be read: give exactly one SELECT")
        for name, dataset in open_tables(connection.get_table_names(query)).items():
            connection.register(name, dataset)
        try:
            return _read(connection.sql(query).to_arrow_reader(_BATCH_ROWS), limits)
        except duckdb.OutOfMemoryException as error:
            needed = f"the query needs more than {limits.memory_bytes >> 20:,} MiB of memory"
            raise InputError(f"{needed}: read fewer columns or rows") from error


def _is_one_select(connection: duckdb.DuckDBPyConnection, query: str) -> bool:
    statements = connection.extract_statements(query)
    try:
        return [statement.type for statement in statements] == [duckdb.StatementType.SELECT]
    except ValueError:  # a statement that Python's side of DuckDB has no name for
        return False


@contextlib.contextmanager
def _locked(limits: SqlLimits) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to an empty database in memory that reaches nothing but what is registered with it."""
    spilled = scratch_folder("sql")
    settings = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "secret_directory": str(spilled),  # a query can show it, and by default it names the user
        "memory_limit": f"{limits.memory_bytes}B",
        "temp_directory": str(spilled),
        "max_temp_directory_size": f"{limits.memory_bytes * SPILLED_PER_MEMORY}B",
        "lock_configuration": "true",
    }
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            yield connection
    finally:
        shutil.rmtree(spilled, ignore_errors=True)


@contextlib.contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[None]:
    """Interrupt what the connection does after a while; again and again, since DuckDB forgets it between two steps."""
    done = threading.Event()

    def interrupt() -> None:
        if not done.wait(timeout_s):
            while not done.wait(_INTERRUPT_EVERY_S):
                connection.interrupt()

    watch = threading.Thread(target=interrupt, name="omniray-sql-timeout", daemon=True)
    watch.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise InputError(f"the query took more than {timeout_s:g} s: read less, or aggregate less at once") from error
    finally:
        done.set()
        watch.join()


def _read(reader: pa.RecordBatchReader, limits: SqlLimits) -> pa.Table:
    batches, rows, size = [], 0, 0
    for batch in reader:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > limits.result_rows:
            raise InputError(f"the result has more than {limits.result_rows:,} rows: aggregate, or add a 'limit'")
        if size > limits.result_bytes:
            raise InputError(f"the result has more than {limits.result_bytes >> 20:,} MiB: read fewer columns or rows")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)
