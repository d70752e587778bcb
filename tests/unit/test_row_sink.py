"""Staged files of a load: which are the graph's afterwards, and which go."""

from __future__ import annotations

import pyarrow as pa
import pytest

from omniray.engine import row_sink
from omniray.engine.row_sink import RowSink
from omniray.engine.schema import ID
from omniray.engine.schema_parser import parse_schema
from omniray.engine.store import open_store
from omniray.engine.tables import StagedRows, Table, TableStorage
from tests.graphs import SCHEMA, files_below, rows_of
from tests.stores import Root

PERSON = parse_schema(SCHEMA).type("Person")
NOTHING_DROPPED = pa.array([], pa.int64())
NOTHING_ADOPTED = pa.table({"row": pa.array([], pa.int64()), "id": pa.array([], pa.string())})


@pytest.fixture
def table(disk: Root) -> Table:
    return TableStorage(open_store(disk.uri)).create(PERSON)


@pytest.fixture
def sink(disk: Root, table: Table, monkeypatch: pytest.MonkeyPatch) -> RowSink:
    """A sink whose rows have all gone to files, for there are too many of them."""
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 2)
    sink = RowSink(PERSON, TableStorage(open_store(disk.uri)), lambda key: table)
    for name in "abcd":
        sink.write(rows_of(PERSON, [name]).to_batches()[0])
    sink.finish()
    return sink


def ids(disk: Root, rows: pa.Table | StagedRows) -> list[str]:
    assert isinstance(rows, StagedRows)
    batches = TableStorage(open_store(disk.uri)).read_staged(PERSON, rows)
    return [one for batch in batches for one in batch.column(ID).to_pylist()]


def files(disk: Root) -> list[str]:
    return files_below(f"{disk.uri}/{PERSON.path}/data")


def test_rows_that_a_judgement_drops_are_left_out_and_the_first_files_go(sink: RowSink, disk: Root) -> None:
    rows = sink.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    sink.close(used=True)
    assert ids(disk, rows) == ["a", "c", "d"]
    assert files(disk) == sorted(rows.files)  # type: ignore[union-attr]


def test_rows_that_a_second_judgement_takes_back_are_the_graph_s(sink: RowSink, disk: Root) -> None:
    """A record was rejected for what the graph held; the write lost its race, and on the next state it fits."""
    sink.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    rows = sink.rows(dropped=NOTHING_DROPPED, adopted=NOTHING_ADOPTED)
    sink.close(used=True)
    assert ids(disk, rows) == ["a", "b", "c", "d"]
    assert files(disk) == sorted(rows.files)  # type: ignore[union-attr]


def test_a_load_that_failed_leaves_no_files(sink: RowSink, disk: Root) -> None:
    sink.rows(dropped=pa.array([0, 3]), adopted=NOTHING_ADOPTED)
    sink.close(used=False)
    assert files(disk) == []


def test_adopted_ids_take_the_place_of_minted_ones(sink: RowSink, disk: Root) -> None:
    adopted = pa.table({"row": pa.array([2], pa.int64()), "id": ["old"]})
    rows = sink.rows(dropped=pa.array([0]), adopted=adopted)
    assert ids(disk, rows) == ["b", "old", "d"]
    sink.close(used=True)
