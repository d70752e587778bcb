"""The verdict of a judgement: which rows of a write land, which pinned rows they displace, and the violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

VIOLATIONS = pa.schema(
    {
        "table_key": pa.string(),
        "row": pa.int64(),
        "record": pa.int64(),
        "source": pa.string(),
        "kind": pa.string(),
        "reason": pa.string(),
        "key": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that one record breaks; `row` and `record` are None where no record of the write is to blame."""

    table_key: str
    row: int | None
    record: int | None
    source: str
    kind: str
    reason: str
    key: str


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows of a table a write inserts, replaces and deletes."""

    inserted: int = 0
    replaced: int = 0
    deleted: int = 0

    @property
    def affected(self) -> int:
        return self.inserted + self.replaced + self.deleted


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The verdict on one table.

    `dropped` are the sorted positions of rows that must not be written: superseded by a later row of the same key, or
    rejected. `replaced` (id, _rowaddr) are the pinned rows to remove; an overwrite lists none, since it removes all.
    `adopted` (row, id) are edges that take over the id of the pinned edge between the same two nodes.
    """

    dropped: pa.Int64Array
    replaced: pa.Table
    adopted: pa.Table
    counts: Counts


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a write: refused as a whole if there is a `refusal`, else the verdicts of its `tables`.

    `rejected` has the columns of `VIOLATIONS` and one row per rejected record.
    """

    tables: Mapping[str, TableVerdict]
    rejected: pa.Table
    refusal: Violation | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All rejected records, then the refusal."""
        rejected = tuple(Violation(**row) for row in self.rejected.to_pylist())
        return rejected if self.refusal is None else (*rejected, self.refusal)

    def counts(self, kind: str) -> Counts:
        """The sum over all tables of a kind, `node` or `edge`."""
        of_kind = [table.counts for key, table in self.tables.items() if key.startswith(f"{kind}:")]
        return Counts(
            sum(c.inserted for c in of_kind), sum(c.replaced for c in of_kind), sum(c.deleted for c in of_kind)
        )
