"""Parquet files that stand for far more than they hold: they are read in bounded memory, or refused in one sentence.

Memory is what Arrow allocates, seen through a pool of the test's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omniray.engine.base.errors import InputError, RecordError
from omniray.engine.rows import source_parquet
from omniray.engine.rows.records import BLOCK_BYTES_TARGET
from omniray.engine.rows.row_validation import conform_block
from omniray.engine.rows.source_parquet import BATCH_BYTES_MAX, VALUE_BYTES_MAX, BoundedParquet
from omniray.engine.rows.sources import open_source
from omniray.engine.schema.parser import parse_schema

SCHEMA = parse_schema("node Doc { text: String? tags: [String]? marks: [F64]? at: Vector(4)? n: I64? data: Blob? }")
MIB = 1 << 20
TOP_MAX = 4 * BATCH_BYTES_MAX  # what is read, what of it is kept, and what is made of it


@contextlib.contextmanager
def allocated_at_most(size: int) -> Iterator[None]:
    """Fails if Arrow allocates more than that at any time within the block."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() <= size


def written(folder: Path, table: pa.Table, **options: Any) -> Path:
    path = folder / "Doc.parquet"
    pq.write_table(table, path, **options)
    return path


def repeated(value: Any, count: int, type: pa.DataType) -> pa.ChunkedArray:
    """The same value so many times, without taking so much memory."""
    entries = pa.array([value], type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), entries)])


def read_rows(path: Path, blocks_max: int | None = None) -> tuple[int, int]:
    """The rows of a file, or of its first blocks, and the bytes of the largest block."""
    rows = largest = 0
    for number, block in enumerate(open_source(path, SCHEMA), 1):
        batches, rejections = conform_block(block)
        assert rejections == []
        rows += sum(len(batch.rows) for batch in batches)
        largest = max(largest, sum(batch.rows.nbytes for batch in batches))
        if number == blocks_max:
            break
    return rows, largest


def dictionary_bomb(folder: Path) -> Path:
    """200,000 rows of a megabyte each: 200 GB in a few kilobytes."""
    return written(folder, pa.table({"text": repeated("x" * MIB, 200_000, pa.string())}), compression="zstd")


def list_bomb(folder: Path) -> Path:
    """20,000 lists of forty texts of 100 KB each: 80 GB."""
    entries = pa.DictionaryArray.from_arrays(pa.array(np.zeros(800_000, np.int32)), pa.array(["x" * 100_000]))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(20_001, dtype=np.int32) * 40), entries)
    return written(folder, pa.table({"tags": lists}), compression="zstd")


def zipped_bomb(folder: Path) -> Path:
    """Ten thousand short texts, and then 300 of a megabyte each that differ in their last bytes."""
    texts = ["short"] * 10_000 + ["x" * MIB + str(n) for n in range(300)]
    return written(folder, pa.table({"text": texts}), compression="zstd", use_dictionary=False, write_batch_size=8)


def prefix_bomb(folder: Path) -> Path:
    """500 texts of a megabyte that share their first part: 500 MB, of which the file has one."""
    texts = ["x" * MIB + f"{n:04d}" for n in range(500)]
    encoding = {"text": "DELTA_BYTE_ARRAY"}
    one_page = {"use_dictionary": False, "data_page_size": 1 << 30}
    return written(folder, pa.table({"text": texts}), column_encoding=encoding, **one_page)


@pytest.mark.parametrize("bomb", [dictionary_bomb, zipped_bomb, prefix_bomb])
def test_a_small_file_that_stands_for_much_is_read_in_bounded_memory(
    bomb: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = bomb(tmp_path)
    assert path.stat().st_size < 20 * MIB
    with allocated_at_most(TOP_MAX):
        rows, largest = read_rows(path, blocks_max=40)
    assert rows > 0
    assert largest <= BATCH_BYTES_MAX + VALUE_BYTES_MAX  # not all that is read goes through the pool


def test_all_rows_of_such_a_file_arrive_in_their_order(tmp_path: Path) -> None:
    texts = [f"{n % 7}" * (n % 7) * 1000 + str(n) for n in range(3000)]
    tags = [[texts[n % 50]] * (n % 3) if n % 11 else None for n in range(3000)]
    marks = [[float(n)] * (n % 5) for n in range(3000)]
    table = pa.table({"text": texts, "tags": tags, "marks": marks, "n": range(3000)})
    for options in ({}, {"row_group_size": 700}, {"use_dictionary": False}, {"row_group_size": 1}):
        path = written(tmp_path, table, **options)
        with BoundedParquet(path, "x") as parquet:
            assert pa.Table.from_batches(parquet.batches()).select(table.schema.names).equals(table)


@pytest.mark.parametrize("limit", ["_RATIO_USUAL", "BATCH_BYTES_MAX", "BLOCK_BYTES_TARGET"])
def test_rows_that_are_read_a_few_at_a_time_are_the_same(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{n % 7}" * 100 for n in range(3000)]
    table = pa.table({"text": texts, "tags": [[one, one] for one in texts], "n": range(3000)})
    path = written(tmp_path, table, row_group_size=1300)
    monkeypatch.setattr(source_parquet, limit, 0 if limit == "_RATIO_USUAL" else 100)
    monkeypatch.setattr(source_parquet, "BATCH_BYTES_MAX", min(100_000, source_parquet.BATCH_BYTES_MAX))
    with BoundedParquet(path, "x") as parquet:
        batches = list(parquet.batches())
    assert len(batches) > 2
    assert pa.Table.from_batches(batches).equals(table)


@pytest.mark.parametrize("encoding", ["dictionary", "plain"])
def test_a_value_beyond_the_limit_is_refused_with_its_place(encoding: str, tmp_path: Path) -> None:
    fits, too_large = "x" * VALUE_BYTES_MAX, "x" * (VALUE_BYTES_MAX + 1)
    path = written(tmp_path, pa.table({"text": ["a", fits]}), use_dictionary=encoding == "dictionary")
    assert read_rows(path)[0] == 2
    path = written(tmp_path, pa.table({"text": ["a", too_large]}), use_dictionary=encoding == "dictionary")
    with pytest.raises(RecordError, match=r"Doc\.parquet row 2: a value of 'text' is larger than 32 MiB"):
        read_rows(path)


def test_a_list_beyond_the_limit_is_refused_with_its_place(tmp_path: Path) -> None:
    lists = [["a"], ["x" * MIB + str(n) for n in range(33)]]
    with pytest.raises(RecordError, match=r"row 2: a value of 'tags' is larger than 32 MiB"):
        read_rows(written(tmp_path, pa.table({"tags": lists})))


def test_a_dictionary_with_an_entry_beyond_the_limit_refuses_the_file_unread(tmp_path: Path) -> None:
    texts = repeated("x" * (VALUE_BYTES_MAX + 1), 100, pa.string())
    path = written(tmp_path, pa.table({"text": texts}), compression="zstd")
    with (
        allocated_at_most(BLOCK_BYTES_TARGET),
        pytest.raises(InputError, match="a value of 'text' is larger than 32 MiB"),
    ):
        read_rows(path)


def zeros(folder: Path) -> Path:
    """A million lists of a hundred zeros: no bomb, but it can't be told from one list of a hundred million."""
    count = 1_000_000
    numbers = pa.array(np.zeros(count * 100, np.int8)).cast(pa.float64())
    lists = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * 100), numbers)
    return written(folder, pa.table({"marks": lists}), compression="zstd")


def one_text(folder: Path) -> Path:
    """A list of 20,000 times the same megabyte, among empty ones."""
    entries = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * MIB]))
    offsets = pa.array([0] * 999 + [20_000], pa.int32())
    return written(folder, pa.table({"tags": pa.ListArray.from_arrays(offsets, entries)}), compression="zstd")


@pytest.mark.parametrize("bomb", [zeros, one_text, list_bomb])
def test_lists_of_which_one_may_be_gigabytes_are_refused_unread(bomb: Callable[[Path], Path], tmp_path: Path) -> None:
    path = bomb(tmp_path)
    with (
        allocated_at_most(2 * BLOCK_BYTES_TARGET),
        pytest.raises(InputError, match=r"the lists of .* take up to \d+ MiB.*write the file with smaller row groups"),
    ):
        read_rows(path)


def test_a_column_of_wide_values_is_refused_unread(tmp_path: Path) -> None:
    wide = pa.array([b"x" * (VALUE_BYTES_MAX + 1)], pa.binary(VALUE_BYTES_MAX + 1))
    path = written(tmp_path, pa.table({"data": wide}), compression="zstd")
    with (
        allocated_at_most(BLOCK_BYTES_TARGET),
        pytest.raises(InputError, match="a value of 'data' is larger than 32 MiB"),
    ):
        read_rows(path)


def test_columns_that_no_property_can_take_are_refused_by_their_rows(tmp_path: Path) -> None:
    odd = pa.array([{"a": "x" * 1000}] * 3000)
    path = written(tmp_path, pa.table({"text": odd, "tags": pa.array([[["a"]]] * 3000)}))
    found = [conform_block(block) for block in open_source(path, SCHEMA)]
    assert sum(len(rejections) for _, rejections in found) == 3000
    assert sum(len(batch.rows) for batches, _ in found for batch in batches) == 0
