"""A pinned state over plain rows, for judging writes without storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.schema.types import ElementType, Schema

Row = dict[str, Any]
Graph = dict[str, list[Row]]
"""Rows by type name."""

FIRST_ADDRESS = 100


class PinnedRows:
    """A graph's rows, which insists on being asked the way the protocol says, and notes which tables were."""

    def __init__(self, schema: Schema, graph: Graph, lookup_keys_max: int = 5_000) -> None:
        self.lookup_keys_max = lookup_keys_max
        self.tables = {t.table_key: _with_addresses(t, graph.get(t.name, [])) for t in schema}
        self.asked: list[tuple[str, str]] = []
        self.looked_up: list[str] = []
        self.counted: set[str] = set()

    def count(self, table_key: str) -> int:
        self.counted.add(table_key)
        return int(self.tables[table_key].num_rows)

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        assert self.count(table_key)
        assert 0 < len(ids) <= self.lookup_keys_max
        self.asked.append(("existing", table_key))
        return ids.filter(pc.is_in(ids, value_set=self.tables[table_key]["id"]))

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        assert self.count(table_key)
        assert 0 < len(values) <= self.lookup_keys_max
        self.asked.append(("matching", table_key))
        self.looked_up.append(column)
        table = self.tables[table_key]
        return table.filter(pc.is_in(table[column], value_set=values)).select([*columns, "_rowaddr"])

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        assert self.count(table_key)
        self.asked.append(("scan", table_key))
        return self.tables[table_key].select(["_rowaddr", *columns]).to_reader(max_chunksize=2)


def _with_addresses(type: ElementType, rows: list[Row]) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema=type.arrow)
    return table.append_column("_rowaddr", pa.array(range(FIRST_ADDRESS, FIRST_ADDRESS + len(rows)), pa.uint64()))


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema of rows whose ids may still be missing."""
    return pa.schema([field.with_nullable(True) for field in schema])
