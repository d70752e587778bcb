"""Staged files of a load: when they are announced, which are the graph's afterwards, and which go."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.storage import StagedRows, TableStorage
from omniray.engine.tables.table import Table
from omniray.engine.writes.row_sink import RowSink
from tests.graphs import SCHEMA, files_below, new_graph, rows_of
from tests.stores import Root

ANNOUNCED_US = 1_700_000_000_000_000
PERSON = parse_schema(SCHEMA).type("Person")
NOTHING_DROPPED = pa.array([], pa.int64())
NOTHING_ADOPTED = pa.table({"row": pa.array([], pa.int64()), "id": pa.array([], pa.string())})


class Storage(TableStorage):
    """Notes how often staging began."""

    def __init__(self, disk: Root) -> None:
        super().__init__(open_store(f"{disk.uri}/graph"))
        self.begun = 0

    def stage_rows(self, table: Table, rows: pa.RecordBatchReader | pa.Table) -> StagedRows:
        self.begun += 1
        return super().stage_rows(table, rows)


@pytest.fixture
def storage(disk: Root) -> Storage:
    new_graph(disk).close()
    return Storage(disk)


@pytest.fixture
def table(storage: Storage) -> Table:
    return storage.open(PERSON, 1, "", 0)


MakeSink = Callable[..., RowSink]


@pytest.fixture
def new_sink(storage: Storage, table: Table) -> MakeSink:
    """Makes sinks that hold two rows in memory and stage more of them."""

    def make(announce: Callable[[Table], int] = lambda table: ANNOUNCED_US) -> RowSink:
        return RowSink(PERSON, storage, lambda key: table, announce, inline_rows_max=2)

    return make


def fill(sink: RowSink, names: str) -> None:
    for name in names:
        sink.write(rows_of(PERSON, [name]).to_batches()[0])
    sink.finish()


@pytest.fixture
def sink(new_sink: MakeSink) -> RowSink:
    """A sink whose rows have all gone to files, for there are too many of them."""
    sink = new_sink()
    fill(sink, "abcd")
    return sink


def ids(disk: Root, rows: pa.Table | StagedRows) -> list[str]:
    assert isinstance(rows, StagedRows)
    batches = Storage(disk).read_staged(PERSON, rows)
    return [one for batch in batches for one in batch.column(ID).to_pylist()]


def files(disk: Root) -> list[str]:
    return files_below(f"{disk.uri}/graph/{PERSON.path}/data")


def test_rows_that_a_judgement_drops_are_left_out_and_the_first_files_go(sink: RowSink, disk: Root) -> None:
    rows = sink.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    sink.close(used=True)
    assert ids(disk, rows) == ["a", "c", "d"]
    assert files(disk) == sorted(rows.files)


def test_rows_that_a_second_judgement_takes_back_are_the_graph_s(sink: RowSink, disk: Root) -> None:
    """A record was rejected for what the graph held; the write lost its race, and on the next state it fits."""
    sink.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    rows = sink.rows(dropped=NOTHING_DROPPED, adopted=NOTHING_ADOPTED)
    sink.close(used=True)
    assert ids(disk, rows) == ["a", "b", "c", "d"]
    assert files(disk) == sorted(rows.files)


def test_a_load_that_failed_leaves_no_files(sink: RowSink, disk: Root) -> None:
    sink.rows(dropped=pa.array([0, 3]), adopted=NOTHING_ADOPTED)
    sink.close(used=False)
    assert files(disk) == []


def test_adopted_ids_take_the_place_of_minted_ones(sink: RowSink, disk: Root) -> None:
    adopted = pa.table({"row": pa.array([2], pa.int64()), "id": ["old"]})
    rows = sink.rows(dropped=pa.array([0]), adopted=adopted)
    assert ids(disk, rows) == ["b", "old", "d"]
    sink.close(used=True)


def test_files_are_announced_once_before_the_first_of_them_is_there(
    new_sink: MakeSink, storage: Storage, table: Table
) -> None:
    announced: list[tuple[Table, int]] = []

    def announce(table: Table) -> int:
        announced.append((table, storage.begun))
        return ANNOUNCED_US

    sink = new_sink(announce)
    fill(sink, "abcdef")
    sink.rows(dropped=pa.array([0]), adopted=NOTHING_ADOPTED)
    sink.close(used=False)
    assert (announced, storage.begun) == ([(table, 0)], 2)


def test_rows_that_stay_in_memory_are_not_announced(new_sink: MakeSink) -> None:
    announced: list[Table] = []
    sink = new_sink(announced.append)
    fill(sink, "ab")
    sink.close(used=False)
    assert announced == []


def test_nothing_is_staged_that_could_not_be_announced(new_sink: MakeSink, disk: Root) -> None:
    def refuse(table: Table) -> None:
        raise StorageError("the store is down")

    sink = new_sink(refuse)
    with pytest.raises(StorageError, match="down"):
        fill(sink, "abcd")
    sink.close(used=False)
    assert files(disk) == []


def test_staged_rows_bear_the_time_of_their_announcement(sink: RowSink) -> None:
    first = sink.rows(dropped=NOTHING_DROPPED, adopted=NOTHING_ADOPTED)
    rewritten = sink.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    sink.close(used=True)
    assert isinstance(first, StagedRows)
    assert isinstance(rewritten, StagedRows)
    assert first.staged_since_us == rewritten.staged_since_us == ANNOUNCED_US


def test_rows_that_were_only_taken_bear_their_own_time_when_they_are_rewritten(
    sink: RowSink, new_sink: MakeSink
) -> None:
    taker = new_sink()
    taker.take(sink.staged)
    taker.finish()
    rewritten = taker.rows(dropped=pa.array([1]), adopted=NOTHING_ADOPTED)
    taker.close(used=False)
    assert isinstance(rewritten, StagedRows)
    assert rewritten.staged_since_us == ANNOUNCED_US
