"""A part of a large load, staged by a worker: its rows are in data files, and it carries their keys.

Parts are staged in parallel, from sources that can be read again: a part that fails is staged anew from its beginning,
and the files of the first try are left to the sweep. Nothing refers to them before the whole load is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omniray.engine.base.errors import StorageError
from omniray.engine.judge.keylog import KeyLog, PackedKeys
from omniray.engine.rows.records import Rejection, as_error
from omniray.engine.rows.row_ids import fill_ids
from omniray.engine.rows.row_validation import conform_block
from omniray.engine.rows.sources import Source
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.row_sink import RowSink
from omniray.engine.writes.staging_tables import StagingTables


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The result of one part: the data files and keys of each table, and the rejections."""

    tables: Mapping[str, StagedRows]
    keys: PackedKeys
    rejections: tuple[Rejection, ...]
    records: int


def stage_part(
    source: Source,
    tables: StagingTables,
    options: LoadOptions,
    since_us: int,
) -> StagedPart:
    """Read, check and stage a source that is part of a load; `since_us` is when the load announced its files."""
    sinks: dict[str, RowSink] = {}
    rejected: list[Rejection] = []
    records = 0
    with KeyLog(tables.schema) as log:
        for block in source:
            batches, rejections = conform_block(block)
            if rejections and options.on_error is OnError.FAIL:
                raise as_error(min(rejections, key=lambda r: r.record))
            rejected += rejections
            for batch in batches:
                key = batch.type.table_key
                if key not in sinks:
                    log.begin(batch.type, options.mode)
                    sinks[key] = RowSink(batch.type, tables, lambda _: since_us, inline_rows_max=0)
                log.add(batch.type, batch.rows, batch.records, batch.source)
                sinks[key].write(fill_ids(batch).rows)
                records += batch.rows.num_rows
        for sink in sinks.values():
            sink.finish()
        staged = {key: sink.staged for key, sink in sinks.items()}
        _check_rows(source, records, staged)
        return StagedPart(staged, log.packed(), tuple(rejected), records + len(rejected))


def _check_rows(source: Source, records: int, staged: Mapping[str, StagedRows]) -> None:
    """Raise unless as many rows were staged as read: a retry could lose rows silently."""
    rows = sum(one.rows for one in staged.values())
    if rows != records:
        raise StorageError(f"{source.name}: {records} rows were read and {rows} staged; nothing was written: try again")
