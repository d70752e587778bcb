"""Finds the commit of a time in `__manifest`, by the places of its rows: no index is searched.

Rows lie in the order of the line and commits never go back in time, so times rise with the places. A few probes, spread
evenly, narrow the places down, and the few thousand rows that are left are read at once. So a history of a million
commits takes one round of probes more than one of ten thousand.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

PROBES = 16
READ_ROWS = 8192
_COLUMNS = ["object_type", "at"]


def last_commit_until(dataset: lance.LanceDataset, at: datetime) -> dict[str, Any] | None:
    """The row of the last commit that was made at or before a time."""
    end = _end_of(dataset, at)
    while end > 0:
        begin = max(end - READ_ROWS, 0)
        rows = dataset.take(list(range(begin, end)), columns=_COLUMNS)
        is_until = pc.less_equal(rows["at"], pa.scalar(at, rows.schema.field("at").type))
        found = pc.indices_nonzero(pc.and_(pc.equal(rows["object_type"], "graph_commit"), is_until))
        if len(found):
            row: dict[str, Any] = dataset.take([begin + found[-1].as_py()]).to_pylist()[0]
            return row
        end = begin
    return None


def _end_of(dataset: lance.LanceDataset, at: datetime) -> int:
    """A place that the commits until a time lie before, the last of them not far before it."""
    begin, end = 0, int(dataset.count_rows())
    while end - begin > READ_ROWS:
        probes = range(begin, end, -(-(end - begin) // PROBES))
        rows = zip(probes, dataset.take(list(probes), columns=_COLUMNS).to_pylist(), strict=True)
        # The time of a recovery is its own process's, and not that of the line.
        times = {place: row["at"] for place, row in rows if row["at"] and row["object_type"] != "graph_recovery"}
        last_until = max((place for place, time in times.items() if time <= at), default=begin)
        first_after = min((place for place, time in times.items() if time > at), default=end)
        if (last_until, first_after) == (begin, end):
            break  # rows without times, of an object with many tables: they are read as they are
        begin, end = last_until, first_after
    return end
