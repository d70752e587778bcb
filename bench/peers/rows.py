"""The batches of writers: they follow from the writer's number and a sequence number, so that a scan can check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

BATCH_ROWS = 100
TABLES = ("Person", "Author", "Editor")
WARM_UP = 0  # the sequence number of the write that is not timed
_CITIES = tuple(f"City {number}" for number in range(100))


@dataclass(frozen=True, slots=True)
class Workload:
    """The contents of each batch, and of the tables before the first batch.

    The `hot` keys are in the table from the start and in every batch of every writer. `shared` keys are new, and two
    writers bring each of them. All others are new, and of one writer alone.
    """

    tables: tuple[str, ...] = TABLES[:1]
    rows: int = BATCH_ROWS
    merge: bool = False
    hot: int = 0
    shared: int = 0
    base_rows: int = 0
    in_flight: int = 1  # how many batches a writer has under way at a time
    awaited: bool = False  # by tasks of one event loop, in place of threads
    tenants: int = 0  # how many tenants a writer calls itself in turns; with 0 it names none

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        return cls(**{**value, "tables": tuple(value["tables"])})


@dataclass(frozen=True, slots=True)
class Batch:
    """The same rows for each of some tables: appended, or merged by id."""

    tables: tuple[str, ...]
    rows: pa.Table
    merge: bool
    tenant: str = ""


def own_keys(work: Workload, writer: int, sequence: int) -> list[str]:
    """The keys of a batch that no other batch has."""
    return [f"own-{writer:03}-{sequence:07}-{row:03}" for row in range(work.rows - work.hot - work.shared)]


def keys(work: Workload, writer: int, sequence: int) -> list[str]:
    """All keys of a batch."""
    hot = [base_key(row) for row in range(work.hot)]
    shared = [f"pair-{writer // 2:03}-{sequence:07}-{row:03}" for row in range(work.shared)]
    return hot + shared + own_keys(work, writer, sequence)


def base_key(row: int) -> str:
    return f"base-{row:09}"


def batch(work: Workload, writer: int, sequence: int) -> Batch:
    """The batch of a writer with a sequence number."""
    tenant = f"tenant-{sequence % work.tenants}" if work.tenants else ""
    return Batch(work.tables, rows_of(keys(work, writer, sequence), age=sequence % 100), work.merge, tenant)


def base(work: Workload) -> pa.Table:
    """The rows of each table before the first batch."""
    return rows_of([base_key(row) for row in range(work.base_rows)], age=0)


def rows_of(ids: list[str], *, age: int) -> pa.Table:
    """Rows of five columns; the id is the key, as omniray derives it."""
    count = len(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "email": pa.array(ids, pa.string()),
            "city": pa.array([_CITIES[row % len(_CITIES)] for row in range(count)], pa.string()),
            "age": pa.array([age] * count, pa.int32()),
            "score": pa.array([row / 100 for row in range(count)], pa.float64()),
        }
    )
