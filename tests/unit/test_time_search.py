"""The commit of a time is found by the places of a few rows, however long the history is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
import pytest

from omniray.engine.history import time_search
from omniray.engine.history.time_search import last_commit_until

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
AT = pa.timestamp("us", tz="UTC")


class Rows:
    """A dataset as the search sees it; counts what is read."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.takes = self.taken = 0

    def count_rows(self) -> int:
        return int(self._rows.num_rows)

    def take(self, places: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        self.takes, self.taken = self.takes + 1, self.taken + len(places)
        return self._rows.select(columns or self._rows.column_names).take(pa.array(places, pa.int64()))


def found(rows: Rows, at: datetime) -> dict[str, Any] | None:
    return last_commit_until(cast("lance.LanceDataset", rows), at)


def history(rng: random.Random, objects: int, tables: int, *, timed: bool = True) -> list[tuple[str, datetime | None]]:
    """Rows of objects with some commits and versions each, and of recoveries, whose clocks are wrong."""
    rows: list[tuple[str, datetime | None]] = []
    at = BEGIN
    for _ in range(objects):
        at += timedelta(seconds=rng.choice((0, 1, 1000)))
        rows += [("graph_commit", at)] * rng.choice((0, 1, 1, 5))
        rows += [("graph_recovery", BEGIN + timedelta(days=rng.choice((-9, 9))))] * rng.choice((0, 0, 1))
        rows += [("table_version", at if timed else None)] * rng.randint(0, tables)
    return rows


def as_rows(rows: Sequence[tuple[str, datetime | None]]) -> Rows:
    types, times = zip(*rows, strict=True)
    places = pa.array(range(len(rows)), pa.int64())
    return Rows(pa.table({"place": places, "object_type": types, "at": pa.array(times, AT)}))


@pytest.mark.parametrize("timed", [True, False], ids=["every row has a time", "versions have none"])
@pytest.mark.parametrize("tables", [1, 40])
def test_the_last_commit_until_any_time_is_found(monkeypatch: pytest.MonkeyPatch, tables: int, timed: bool) -> None:
    monkeypatch.setattr(time_search, "PROBES", 3)
    monkeypatch.setattr(time_search, "READ_ROWS", 7)
    rng = random.Random(tables)
    for _ in range(8):
        rows = history(rng, 40, tables, timed=timed)
        moments = rng.sample(sorted({at for type, at in rows if type == "graph_commit" and at is not None}), 6)
        for at in [BEGIN - timedelta(days=99), *moments, *(moment + timedelta(microseconds=1) for moment in moments)]:
            until = [n for n, (type, time) in enumerate(rows) if type == "graph_commit" and time and time <= at]
            answer = found(as_rows(rows), at)
            assert (answer and answer["place"]) == (until[-1] if until else None)


def test_a_history_of_two_million_rows_is_read_at_a_few_places() -> None:
    count = 2_000_000
    at = pa.array(np.arange(count) * 1_000_000 + int(BEGIN.timestamp()) * 1_000_000).cast(AT)
    types = pa.DictionaryArray.from_arrays(np.arange(count) % 2, ["graph_commit", "table_version"]).cast(pa.string())
    rows = Rows(pa.table({"object_type": types, "at": at}))
    answer = found(rows, BEGIN + timedelta(seconds=1_234_567))
    assert answer is not None
    assert answer["at"] == BEGIN + timedelta(seconds=1_234_566)
    assert (rows.takes, rows.taken) == (4, 2 * time_search.PROBES + time_search.READ_ROWS + 1)


def test_a_time_before_the_first_commit_of_a_long_history_costs_no_more() -> None:
    rows = as_rows([("graph_commit", BEGIN + timedelta(seconds=n)) for n in range(20_000)])
    assert found(rows, BEGIN - timedelta(seconds=1)) is None
    assert rows.taken <= time_search.PROBES
