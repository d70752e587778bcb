"""Finds out in bounded memory whether any of very many values repeats, from their hashes alone.

A hash takes 8 bytes, however long its value. Hashes are collected in sorted runs, where equal ones are neighbours. Runs
without duplicates are written to disk; then one range of hashes after another is read from all runs and sorted again.
Since no run has a hash twice, a range never holds more than its share, whatever the values are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from omniray.engine.base.errors import StorageError

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

RUN_HASHES = 1 << 20
_HASH_BYTES = 8


def may_repeat(hashes: Iterable[Hashes], count: int, *, run_hashes: int = RUN_HASHES) -> bool:
    """Whether two of about `count` hashes are equal. If not, all values differ; if so, two values may be equal."""
    ranges = -(-count // run_hashes) or 1
    bounds = np.array([number * 2**64 // ranges for number in range(1, ranges)], np.uint64)
    with tempfile.TemporaryFile(prefix="omniray-hashes-", buffering=0) as file:
        first, cuts = 0, []
        for run in _runs(hashes, run_hashes):
            run.sort()
            if _has_equal_neighbours(run):
                return True
            _put(file.fileno(), run)
            cuts.append(first + np.concatenate([[0], np.searchsorted(run, bounds), [len(run)]]))
            first += len(run)
        if len(cuts) < 2:
            return False
        return any(_has_equal_neighbours(_range(file.fileno(), number, cuts)) for number in range(ranges))


def _runs(hashes: Iterable[Hashes], length: int) -> Iterator[Hashes]:
    gathered: list[Hashes] = []
    for some in hashes:
        gathered.append(some)
        if sum(map(len, gathered)) >= length:
            yield np.concatenate(gathered)
            gathered = []
    if gathered:
        yield np.concatenate(gathered)


def _put(file: int, run: Hashes) -> None:
    """Write a whole run: missing hashes could not be compared."""
    rest = run.data.cast("B")
    try:
        while rest:
            rest = rest[os.write(file, rest) :]  # an almost full disk may accept only a part
    except OSError as error:
        folder = tempfile.gettempdir()
        raise StorageError(
            f"can't write to {folder} the hashes of a load's keys: {error.strerror}; nothing was written to the graph: "
            "make room there, or point TMPDIR at another disk",
            folder=folder,
        ) from error


def _range(file: int, number: int, cuts: list[np.ndarray[Any, np.dtype[np.int64]]]) -> Hashes:
    """One range of hashes out of all runs, sorted."""
    pieces = []
    for cut in cuts:
        low, high = int(cut[number]), int(cut[number + 1])
        data = os.pread(file, (high - low) * _HASH_BYTES, low * _HASH_BYTES)
        assert len(data) == (high - low) * _HASH_BYTES, "hashes that were put are there"
        pieces.append(np.frombuffer(data, np.uint64))
    merged = np.concatenate(pieces)
    merged.sort()
    return merged


def _has_equal_neighbours(ordered: Hashes) -> bool:
    return bool((ordered[1:] == ordered[:-1]).any())
