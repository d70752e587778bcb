"""Compares a write that was judged elsewhere with the pinned rows: those that it replaces, and those that it adds.

Whoever judged it may have lied, or have looked at another graph. Rows in data files are not read again for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import ConstraintViolation, InputError, KeyConflict
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID
from omniray.engine.tables.storage import StagedRows

LOOKUP_IDS_MAX = 1_000_000
"""In one question: more are asked for in several."""


def refuse_unfounded(tables: Mapping[str, TableWrite], state: State) -> None:
    """Raise unless each table's replaced rows are there under their addresses, and its own rows bring no id again."""
    for table_key, write in tables.items():
        _refuse_repeated(table_key, write.replaced[ID])
        brought = _brought(write)
        _refuse_repeated(table_key, brought)
        if write.mode is Mode.OVERWRITE:
            if write.replaced.num_rows:
                raise InputError(f"{table_key}: an overwrite replaces all rows, and can't name some of them")
        else:
            _compare(table_key, write.replaced, brought, state)


def _brought(write: TableWrite) -> pa.ChunkedArray:
    """The ids of the rows that it carries itself."""
    return pa.chunked_array([], pa.string()) if isinstance(write.rows, StagedRows) else write.rows[ID]


def _refuse_repeated(table_key: str, ids: pa.ChunkedArray) -> None:
    if pc.count_distinct(ids).as_py() < len(ids):
        counted = ids.value_counts()
        first = next(one["values"] for one in counted.to_pylist() if one["counts"] > 1)
        raise ConstraintViolation(f"{table_key}: the load has two rows of the id {first!r}", table_key=table_key)


def _compare(table_key: str, replaced: pa.Table, brought: pa.ChunkedArray, state: State) -> None:
    asked = pa.chunked_array([*replaced[ID].chunks, *brought.chunks], pa.string()).unique()
    if not len(asked) or (state.count(table_key) == 0 and not replaced.num_rows):
        return
    found = pa.concat_tables(_located(table_key, asked, state))
    is_claimed = pc.is_in(found[ID], value_set=replaced[ID].combine_chunks())
    if not _same_rows(found.filter(is_claimed), replaced):
        raise InputError(
            f"{table_key}: the rows that the load says it replaces are not those of the graph; load again",
            table_key=table_key,
        )
    unclaimed = found.filter(pc.invert(is_claimed))
    if unclaimed.num_rows:
        raise KeyConflict(table_key, unclaimed[ID][0].as_py())


def _located(table_key: str, ids: pa.Array, state: State) -> Iterator[pa.Table]:
    for start in range(0, len(ids), LOOKUP_IDS_MAX):
        found = state.matching(table_key, ID, ids.slice(start, LOOKUP_IDS_MAX), (ID,))
        yield pa.table({ID: found[ID], ROWADDR: found[ROWADDR]})


def _same_rows(found: pa.Table, claimed: pa.Table) -> bool:
    mine, theirs = found.sort_by(ID), claimed.sort_by(ID)
    return all(mine[name].equals(theirs[name]) for name in (ID, ROWADDR))
