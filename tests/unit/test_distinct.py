"""Hashes are found to differ, or not, wherever they come and however many there are."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniray.engine.base.errors import StorageError
from omniray.engine.judge.distinct import Hashes, may_repeat

RUN = 4


def cut(hashes: list[int], at_once: int) -> Iterator[Hashes]:
    for first in range(0, len(hashes), at_once):
        yield np.array(hashes[first : first + at_once], np.uint64)


@given(
    hashes=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 50) | st.integers(2**64 - 50, 2**64 - 1)),
    at_once=st.integers(1, 10),
)
def test_hashes_repeat_exactly_if_two_of_them_are_equal(hashes: list[int], at_once: int) -> None:
    repeats = len(set(hashes)) < len(hashes)
    assert may_repeat(cut(hashes, at_once), len(hashes), run_hashes=RUN) is repeats


@given(count=st.integers(0, 60))
def test_the_count_is_only_an_estimate(count: int) -> None:
    assert not may_repeat(cut(list(range(30)), 3), count, run_hashes=RUN)
    assert may_repeat(cut([*range(30), 0], 3), count, run_hashes=RUN)


def test_nothing_is_read_on_once_a_run_holds_a_hash_twice() -> None:
    def endless() -> Iterator[Hashes]:
        while True:
            yield np.array([7], np.uint64)

    assert may_repeat(endless(), 1_000_000, run_hashes=RUN)


def test_the_last_hash_of_many_runs_meets_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seeded = random.Random(5)
    hashes = list({seeded.getrandbits(64) for _ in range(10_000)})
    assert not may_repeat(cut(hashes, 100), len(hashes), run_hashes=1_000)
    assert may_repeat(cut([*hashes, hashes[0]], 100), len(hashes) + 1, run_hashes=1_000)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_only_a_part_at_a_time_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    assert may_repeat(cut([*range(30), 0], 3), 31, run_hashes=RUN)
    assert not may_repeat(cut(list(range(30)), 3), 30, run_hashes=RUN)


def test_a_full_disk_is_one_clear_line_and_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left on device; nothing was written to the graph: make room"):
        may_repeat(cut(list(range(30)), 3), 30, run_hashes=RUN)
