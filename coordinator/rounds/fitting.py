"""Checks that the rows of loads fit their types, for all loads of a round at once.

A client has checked them already, to refuse them early and near their source, but is not believed: values, enums,
`@range`, `@check` and the ids that keys make are checked again. For a whole round that costs little more than for one
load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from omniray.engine.base.errors import OmnirayError
from omniray.engine.rows.records import RawBatch, Rejection, as_error, numbered
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import ElementType, Schema
from omniray.engine.writes.write_requests import LoadRequest, Request


def misfits(requests: Sequence[Request], schema: Schema) -> dict[str, OmnirayError]:
    """The errors of the loads that have a row which does not fit its type, by commit id."""
    loads = [request for request in requests if isinstance(request, LoadRequest)]
    found: dict[str, OmnirayError] = {}
    for table_key in sorted({key for load in loads for key in load.tables}):
        concerned = [load for load in loads if table_key in load.tables]
        type = schema.by_table_key[table_key]
        if _first_misfit(type, pa.concat_tables([load.tables[table_key] for load in concerned])) is None:
            continue
        for load in concerned:
            if (rejection := _first_misfit(type, load.tables[table_key])) is not None:
                found.setdefault(load.header.commit_id, as_error(_placed(rejection, load, table_key)))
    return found


def _first_misfit(type: ElementType, rows: pa.Table) -> Rejection | None:
    whole = rows.combine_chunks()
    columns = {name: _array(whole[name]) for name in type.arrow.names}
    _, rejections = conform(RawBatch(type, columns, numbered(0, rows.num_rows)))
    return rejections[0] if rejections else None


def _placed(rejection: Rejection, load: LoadRequest, table_key: str) -> Rejection:
    """The rejection by the record's place in its source instead of by its row."""
    _, keys = load.keys.tables[table_key]
    row = rejection.record
    source = load.keys.sources[keys["source"][row].as_py()]
    return replace(rejection, source=source, record=keys["record"][row].as_py())


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
