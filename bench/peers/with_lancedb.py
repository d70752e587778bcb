"""LanceDB: each writer opens the tables through a connection of its own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from bench.peers.rows import Batch, Workload, base
from bench.peers.systems import Place, System
from bench.peers.with_pylance import scanned_ids


class Lancedb(System):
    """`Table.add` and `Table.merge_insert`; several tables are several adds, not atomic."""

    def missing(self) -> str:
        return "" if find_spec("lancedb") else "lancedb is not installed"

    def prepare(self, place: Place, work: Workload) -> None:
        for table in work.tables:
            created = _connected(place).create_table(table, base(work))
            if work.merge:
                created.create_scalar_index("id")

    def writer(self, place: Place, work: Workload) -> LancedbWriter:
        return LancedbWriter(place, work)

    def ids(self, place: Place, table: str) -> pa.ChunkedArray:
        return scanned_ids(place, table)


class LancedbWriter:
    """Open tables."""

    def __init__(self, place: Place, work: Workload) -> None:
        connection = _connected(place)
        self._tables = {table: connection.open_table(table) for table in work.tables}

    def write(self, batch: Batch) -> None:
        for name in batch.tables:
            table = self._tables[name]
            if batch.merge:
                upsert = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                upsert.execute(batch.rows)
            else:
                table.add(batch.rows)

    def close(self) -> None:
        self._tables.clear()


def _connected(place: Place) -> Any:
    return import_module("lancedb").connect(place.uri, storage_options=place.options)
