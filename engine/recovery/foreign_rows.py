"""Decides whether the rows of a foreign writer may be adopted.

They are judged like a load that overwrites their tables: every value, every id, and every rule over several rows, in
the whole graph. The first violation refuses all of them; nothing is corrected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from omniray.engine.base.errors import ConstraintViolation, RecordError, TableDrift
from omniray.engine.judge.constraints import judge
from omniray.engine.judge.keylog import KeyLog
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import RawBatch, numbered
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import Schema
from omniray.engine.tables.storage import STORAGE_VERSION
from omniray.engine.tables.table import Table

ADVICE = "mend the table with what wrote it and try again, or set the change aside with 'omniray repair --discard'"


def refuse_unfit(schema: Schema, foreign: Iterable[Table], state: PinnedState) -> None:
    """Raise unless the rows of these tables may replace those of the graph at `state`."""
    with KeyLog(schema) as log:
        for table in foreign:
            _refuse_other_shape(table, state.table(table.type.table_key))
            log.begin(table.type, Mode.OVERWRITE)
            _take(log, table)
        refusal = judge(log, schema, state).refusal
    if refusal is not None:
        raise ConstraintViolation(
            f"{refusal.table_key} can't be adopted: {refusal.reason}; {ADVICE}", table_key=refusal.table_key
        )


def _refuse_other_shape(foreign: Table, pinned: Table) -> None:
    """Refuse other columns, field ids or file formats: later writes add their files beside the foreign ones."""
    before, after = pinned.dataset, foreign.dataset
    if after.lance_schema != before.lance_schema:
        what = f"its schema changed to {', '.join(f'{f.name}: {f.type}' for f in after.schema)}"
    elif after.data_storage_version != STORAGE_VERSION or after.has_stable_row_ids:
        what = f"it was rewritten in another storage format ({after.data_storage_version})"
    else:
        return
    raise TableDrift(
        f"{foreign.type.table_key} can't be adopted: {what}; {ADVICE}",
        table_key=foreign.type.table_key, version=foreign.version,
    )  # fmt: skip


def _take(log: KeyLog, table: Table) -> None:
    """Check the values of all rows and log their keys. Ids are never null: their column is not nullable."""
    for raw in _raw(table):
        conformed, rejections = conform(raw)
        if rejections:
            raise RecordError(
                f"{table.type.table_key} can't be adopted: {rejections[0]}; {ADVICE}",
                table_key=table.type.table_key, version=table.version,
            )  # fmt: skip
        log.add(table.type, conformed.rows, conformed.records, conformed.source)


def _raw(table: Table) -> Iterator[RawBatch]:
    source, first = f"{table.path} version {table.version}", 1
    for batch in table.scan():
        columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        yield RawBatch(table.type, columns, numbered(first, batch.num_rows), source)
        first += batch.num_rows
