"""DuckLake, with its catalog in PostgreSQL and its data in the same store as the other systems.

It runs only with this setup: `BENCH_DUCKLAKE_CATALOG` is the connection string of an empty database
("host=… dbname=…"), `BENCH_DUCKLAKE_PYTHON` a Python that has pyarrow, rich and a DuckDB with its extensions, installed
by DuckDB itself or by pip (duckdb-extension-ducklake, -postgres-scanner, -httpfs).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa

from bench.peers.rows import Batch, Workload, base
from bench.peers.systems import Place, System

CATALOG = "BENCH_DUCKLAKE_CATALOG"
_EXTENSIONS = ("ducklake", "postgres_scanner", "httpfs")
_COLUMNS = ("email", "city", "age", "score")


class Ducklake(System):
    """`INSERT` and `MERGE INTO`; several tables are written in one transaction."""

    def missing(self) -> str:
        if CATALOG not in os.environ:
            return f"{CATALOG} names no PostgreSQL database"
        try:
            _with_extensions()
        except duckdb.Error as error:
            return str(error).partition("\n")[0]
        return ""

    def prepare(self, place: Place, work: Workload) -> None:
        connection = _attached(place)
        connection.register("batch", base(work))
        for table in work.tables:
            connection.execute(f"CREATE TABLE {table} AS FROM batch")

    def writer(self, place: Place, work: Workload) -> DucklakeWriter:
        return DucklakeWriter(_attached(place))

    def ids(self, place: Place, table: str) -> pa.ChunkedArray:
        return _attached(place).execute(f"SELECT id FROM {table}").to_arrow_table().column("id")


class DucklakeWriter:
    """A connection to the lake."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def write(self, batch: Batch) -> None:
        self._connection.register("batch", batch.rows)
        self._connection.execute("BEGIN")
        try:
            for table in batch.tables:
                self._connection.execute(_merge(table) if batch.merge else f"INSERT INTO {table} FROM batch")
            self._connection.execute("COMMIT")
        except duckdb.Error:
            with suppress(duckdb.Error):  # a commit that failed has rolled back by itself
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()


def _merge(table: str) -> str:
    changes = ", ".join(f"{column} = batch.{column}" for column in _COLUMNS)
    return (
        f"MERGE INTO {table} USING batch ON {table}.id = batch.id "
        f"WHEN MATCHED THEN UPDATE SET {changes} WHEN NOT MATCHED THEN INSERT"
    )


def _with_extensions() -> Any:
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for extension in _EXTENSIONS:
        connection.execute(f"LOAD '{_from_pip(extension) or extension}'")
    return connection


def _from_pip(extension: str) -> Path | None:
    """The file of an extension that pip installed."""
    package = find_spec(f"duckdb_extension_{extension}")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob(f"extensions/*/{extension}.duckdb_extension"), None)


def _attached(place: Place) -> Any:
    """A connection whose current database is the lake of this place, in a catalog schema of its name."""
    connection = _with_extensions()
    if place.storage_options is not None:
        connection.execute(_secret(place.storage_options))
    schema = re.sub(r"\W", "_", place.uri).lower()[-60:]
    connection.execute(
        f"ATTACH 'ducklake:postgres:{os.environ[CATALOG]}' AS lake "
        f"(DATA_PATH '{place.uri}/', METADATA_SCHEMA '{schema}', DATA_INLINING_ROW_LIMIT 0)"
    )
    connection.execute("USE lake")
    return connection


def _secret(options: Mapping[str, str]) -> str:
    return (
        f"CREATE SECRET (TYPE s3, KEY_ID '{options['aws_access_key_id']}', "
        f"SECRET '{options['aws_secret_access_key']}', REGION '{options['aws_region']}', "
        f"ENDPOINT '{urlsplit(options['aws_endpoint']).netloc}', "
        "URL_STYLE 'path', USE_SSL false)"
    )
