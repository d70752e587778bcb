"""Checks that the rows of loads fit their types, for all loads of a round at once.

A client has checked them already, to refuse them early and near their source, but is not believed: values, enums,
`@range`, `@check` and the ids that keys make are checked again. For a whole round that costs little more than for one
load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from omniray.engine.base.errors import OmnirayError
from omniray.engine.rows.records import RawBatch, Rejection, as_error, numbered
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import ElementType, Schema
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.write_requests import LoadRequest, PreparedRequest, Request


def misfits(requests: Sequence[Request], schema: Schema) -> dict[str, OmnirayError]:
    """The errors of the loads that have a row which does not fit its type, by commit id."""
    carried = [(request, tables) for request in requests if (tables := _carried(request))]
    found: dict[str, OmnirayError] = {}
    for table_key in sorted({key for _, tables in carried for key in tables}):
        concerned = [(request, tables[table_key]) for request, tables in carried if table_key in tables]
        type = schema.by_table_key[table_key]
        if _first_misfit(type, pa.concat_tables([rows for _, rows in concerned])) is None:
            continue
        for request, rows in concerned:
            if (rejection := _first_misfit(type, rows)) is not None:
                found.setdefault(request.header.commit_id, as_error(_placed(rejection, request, table_key)))
    return found


def _carried(request: Request) -> Mapping[str, pa.Table]:
    """The rows that a load carries, by table: a prepared one carries those of which it has few."""
    match request:
        case LoadRequest():
            return request.tables
        case PreparedRequest():
            writes = request.resolution.tables.items()
            return {key: write.rows for key, write in writes if not isinstance(write.rows, StagedRows)}
    return {}


def _first_misfit(type: ElementType, rows: pa.Table) -> Rejection | None:
    whole = rows.combine_chunks()
    columns = {name: _array(whole[name]) for name in type.arrow.names}
    _, rejections = conform(RawBatch(type, columns, numbered(0, rows.num_rows)))
    return rejections[0] if rejections else None


def _placed(rejection: Rejection, load: Request, table_key: str) -> Rejection:
    """The rejection by the record's place in its source instead of by its row, if the load says it."""
    if not isinstance(load, LoadRequest):
        return replace(rejection, source=table_key, record=rejection.record + 1)
    _, keys = load.keys.tables[table_key]
    row = rejection.record
    source = load.keys.sources[keys["source"][row].as_py()]
    return replace(rejection, source=source, record=keys["record"][row].as_py())


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
