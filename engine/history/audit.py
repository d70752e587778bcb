"""The audit of recoveries, `_graph_commit_recoveries.lance`: one row for each operation that was recovered.

It is derived from the line, where a recovery is recorded first: Phase D writes the rows before it folds the objects
that record them. After a kill in between they are only checked again: a row is added only if its operation has none, on
top of exactly the version that was searched. The table is created with its first row.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.history.cas_table import SwapTable, lance_errors
from omniray.engine.line.commit_object import CommitObject, Recovery
from omniray.engine.store.object_store import ObjectStore

PATH = "_graph_commit_recoveries.lance"
TAIL_ROWS_MAX = 1024
RECORD_ATTEMPTS_MAX = 32

SCHEMA = pa.schema(
    [
        pa.field("operation_id", pa.string(), nullable=False),
        pa.field("recovery_kind", pa.string(), nullable=False),
        pa.field("recovery_for_actor", pa.string(), nullable=False),
        pa.field("sidecar_writer_kind", pa.string(), nullable=False),
        pa.field("outcomes", pa.string(), nullable=False),
        pa.field("actor", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
    ]
)


def record(store: ObjectStore, objects: Iterable[CommitObject]) -> None:
    """Ensure that every recovery recorded in these objects of the line has exactly one row."""
    told = _rows_of(objects)
    table = SwapTable(store, PATH, SCHEMA)
    try:
        with lance_errors(f"write to {table.uri}"):
            _record(table, told)
    finally:
        with contextlib.suppress(StorageError):  # leftovers are harmless, and the sweep deletes them
            store.delete_all(table.take_leftovers())


def recorded(store: ObjectStore) -> list[Recovery]:
    """The audit, in the order of the line."""
    table = SwapTable(store, PATH, SCHEMA)
    dataset = table.open()
    if dataset is None:
        return []
    with lance_errors(f"read {table.uri}"):
        rows = dataset.to_table().sort_by([("seq", "ascending")])
    return _recoveries(rows)


def _record(table: SwapTable, told: pa.Table) -> None:
    for _ in range(RECORD_ATTEMPTS_MAX):
        dataset = table.open()
        if dataset is None:
            table.create()
            continue
        missing = _missing(dataset, told)
        if missing.num_rows == 0:
            return
        with contextlib.suppress(CommitConflictError):  # another process was first: check what it has written
            staged = table.stage(dataset, _addition(dataset, missing))
            reach(Point.D_AUDIT_STAGED)
            after = table.publish(staged)
            with contextlib.suppress(StorageError):  # the rows are there; old versions may stay
                table.discard_old_versions(after.version)
            return
    raise StorageError(f"can't write to {table.uri}: lost {RECORD_ATTEMPTS_MAX} races in a row; try again")


def _missing(dataset: lance.LanceDataset, told: pa.Table) -> pa.Table:
    """The rows of operations that have none in this version."""
    ids = told["operation_id"].to_pylist()
    found = dataset.to_table(columns=["operation_id"], filter=pc.field("operation_id").isin(ids))
    is_there = pc.is_in(told["operation_id"], value_set=found["operation_id"].combine_chunks())
    return told.filter(pc.invert(is_there))


def _addition(dataset: lance.LanceDataset, rows: pa.Table) -> lance.LanceOperation.BaseOperation:
    """Rows added to the newest fragment, while that is small: else each recovery would leave a fragment."""
    tail = [f for f in dataset.get_fragments()[-1:] if f.physical_rows < TAIL_ROWS_MAX]
    together = pa.concat_tables([*(f.to_table() for f in tail), rows]).combine_chunks()
    return lance.LanceOperation.Update(
        removed_fragment_ids=[f.fragment_id for f in tail],
        updated_fragments=[],
        new_fragments=write_fragments(together, dataset),
        fields_modified=[],
    )


def _rows_of(objects: Iterable[CommitObject]) -> pa.Table:
    """One row for each operation: its first in the line."""
    rows: dict[str, dict[str, Any]] = {}
    for obj in objects:
        for told in obj.recoveries:
            row = {
                "operation_id": told.operation_id,
                "recovery_kind": told.recovery_kind,
                "recovery_for_actor": told.recovery_for_actor,
                "sidecar_writer_kind": told.sidecar_writer_kind,
                "outcomes": json.dumps(dict(told.outcomes)),
                "actor": told.actor,
                "created_at": told.created_at_us,
                "seq": obj.seq,
            }
            rows.setdefault(told.operation_id, row)
    return pa.Table.from_pylist(list(rows.values()), schema=SCHEMA)


def _recoveries(rows: pa.Table) -> list[Recovery]:
    created_at_us = rows["created_at"].cast(pa.int64()).to_pylist()
    facts = rows.drop_columns(["created_at", "seq"]).to_pylist()
    return [
        Recovery(**{**row, "outcomes": json.loads(row["outcomes"]), "created_at_us": at_us})
        for row, at_us in zip(facts, created_at_us, strict=True)
    ]
