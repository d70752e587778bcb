"""The keys of all rows that a merge writes or removes: what rules over several rows are checked by.

One key log holds both, told apart by the number in `record`: so memory stays bounded for a merge of any size, and one
statement can join them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa

from omniray.engine.judge.keylog import KeyLog, KeyMemory, key_columns, no_keys
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.reading.table_diff import apart
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ElementType, NodeType, Schema, Unique
from omniray.engine.tables.table import Table

WRITTEN, REMOVED = 1, 0
MEMORY = KeyMemory(64 << 20, 256)


class MergeKeys:
    """The keys by table: of the rows written, and of the target's rows that are replaced or deleted."""

    def __init__(self, schema: Schema, *, memory_rows: int = 100_000, memory: KeyMemory = MEMORY) -> None:
        self._schema = schema
        self._log = KeyLog(schema, memory_rows=memory_rows, memory=memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._log.close()

    def forget(self, type: ElementType) -> None:
        """Forget the rows of a table, which is merged anew."""
        self._log.forget(type)

    def add(self, type: ElementType, written: pa.Table, removed: pa.Table) -> None:
        """Add rows of a table, whole ones or their key columns alone; of a table without such rules none are kept."""
        if not self._has_rules(type):
            return
        self._log.begin(type, Mode.MERGE)
        for rows, which in ((written, WRITTEN), (removed, REMOVED)):
            if rows.num_rows:
                self._log.add(type, rows, pa.array(np.full(rows.num_rows, which, np.int64)), "")

    def _has_rules(self, type: ElementType) -> bool:
        """Whether a rule over several rows may be broken by rows of the table."""
        is_unique = any(isinstance(rule, Unique) for rule in type.constraints)
        return is_unique or not isinstance(type, NodeType) or any(True for _ in self._schema.edges_at(type.name))

    def add_adopted(self, type: ElementType, before: Table, after: Table) -> None:
        """Add the rows by which an adopted version differs from the one that it replaces.

        Rows that were only moved are on both sides, which no rule minds.
        """
        columns = list(key_columns(type))
        nothing = type.arrow.empty_table().select(columns)
        come, gone = apart(after, before)
        self._each(type, come.read(columns=columns), nothing, written=True)
        self._each(type, gone.read(columns=columns), nothing, written=False)

    def _each(self, type: ElementType, batches: Iterable[pa.Table], nothing: pa.Table, *, written: bool) -> None:
        for rows in batches:
            rows = rows.cast(nothing.schema)
            self.add(type, rows if written else nothing, nothing if written else rows)

    def of(self, type: ElementType) -> Relation:
        """All keys of a table."""
        table = self._log.table(type.table_key)
        return no_keys(type) if table is None else self._log.written(table)

    def sets(self) -> Sets:
        """A connection that sees them all."""
        for type in self._schema:
            self.of(type)  # before it is opened: it sees nothing that goes to a file later
        return Sets(self._log.connect, self._log.memory_limit_mb)
