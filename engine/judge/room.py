"""How much a write may read of what its conditions match: taken before it is read, so that a refusal costs no more."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from omniray.engine.base.errors import QueryError

ROWS_MAX = 1_000_000
BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """How many rows and bytes are left."""

    rows: int = ROWS_MAX
    size_bytes: int = BYTES_MAX

    def after(self, rows: int, size_bytes: int) -> Room:
        """The room that these leave; raises `QueryError` if there is not enough for them."""
        if rows > self.rows:
            raise QueryError(f"more than {self.rows} rows are matched")
        if size_bytes > self.size_bytes:
            raise QueryError(f"the matched rows and the values that they get take more than {self.size_bytes} bytes")
        return Room(self.rows - rows, self.size_bytes - size_bytes)

    def read(self, reader: pa.RecordBatchReader) -> pa.Table:
        """All rows of a reader; raises `QueryError` at the first batch for which there is no room."""
        left, batches = self, []
        for batch in reader:
            left = left.after(batch.num_rows, batch.nbytes)
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)
