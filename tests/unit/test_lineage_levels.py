"""Which fragments are merged and indexed: few are left of any history, and no row is rewritten often."""

from __future__ import annotations

import random
from itertools import count

import pytest

from omniray.engine.history import lineage_levels
from omniray.engine.history.lineage_levels import (
    FAN_IN,
    LEVEL_MAX,
    OPEN_FRAGMENTS,
    SEALED_ROWS,
    Fragment,
    full,
    to_index,
    to_merge,
)


def fragments(*rows: int) -> list[Fragment]:
    """Sealed fragments of these sizes, a tail and a head."""
    return [Fragment(place, one) for place, one in enumerate((*rows, 10, 1))]


@pytest.mark.parametrize(
    ("rows", "level"),
    [(1, 0), (SEALED_ROWS, 0), (full(0) - 1, 0), (full(0), 1), (full(1), 2), (full(4), 5), (10 * full(4), LEVEL_MAX)],
)
def test_the_level_of_a_fragment_follows_from_its_rows(rows: int, level: int) -> None:
    assert Fragment(0, rows).level == level


def test_neighbours_are_merged_once_they_are_enough_for_the_level_above() -> None:
    assert to_merge(fragments(*[1024] * (FAN_IN - 1))) is None
    assert to_merge(fragments(*[1024] * FAN_IN)) == range(FAN_IN)
    assert to_merge(fragments(full(0), *[1024] * FAN_IN)) == range(1, FAN_IN + 1)


def test_tail_and_head_are_never_merged() -> None:
    assert to_merge([Fragment(0, full(0) - 1), Fragment(1, full(0) - 1), Fragment(2, 1)]) is None
    assert to_merge([]) is None
    assert to_merge([Fragment(0, 1)]) is None


def test_small_fragments_between_larger_ones_do_not_stay() -> None:
    assert to_merge(fragments(1024, full(0), 1024, full(0), 1024, full(0), 1024, full(0))) == range(8)


def test_the_largest_are_left_alone_and_a_merge_has_a_bound() -> None:
    assert to_merge(fragments(*[full(LEVEL_MAX - 1)] * 20)) is None
    merged = to_merge(fragments(*[1024] * 100_000))
    assert merged == range(full(LEVEL_MAX - 1) // 1024)


def test_every_fragment_above_the_lowest_level_gets_a_segment_oldest_first() -> None:
    found = fragments(full(1), full(0), 1024)
    none: dict[str, dict[str, set[int]]] = {"by_id": {}, "by_seq": {}}
    assert to_index(found, none) == lineage_levels.IndexWork(0, frozenset())
    one = {"by_id": {"a": {0}}, "by_seq": {"b": {0}}}
    assert to_index(found, one) == lineage_levels.IndexWork(1, frozenset())
    half = {"by_id": {"a": {0}, "c": {1}}, "by_seq": {"b": {0}}}
    assert to_index(found, half) == lineage_levels.IndexWork(1, frozenset())
    both = {"by_id": {"a": {0}, "c": {1}}, "by_seq": {"b": {0}, "d": {1}}}
    assert to_index(found, both) is None


def test_segments_of_fragments_that_are_gone_are_dropped() -> None:
    found = fragments(full(0))
    segments = {"by_id": {"a": {0}, "old": {77}}, "by_seq": {"b": {0}, "older": {66, 55}}}
    assert to_index(found, segments) == lineage_levels.IndexWork(None, frozenset({"old", "older"}))
    assert to_index([], {"by_id": {}, "by_seq": {}}) is None


@pytest.mark.parametrize("seed", range(6))
def test_a_long_history_has_few_fragments_and_each_row_is_rewritten_a_few_times(seed: int) -> None:
    """Folds of any size, seals as they come: what is left is logarithmic, and so is the work."""
    rng, ids = random.Random(seed), count()
    sizes = rng.choice([(1024, 1100), (1024, 4000), (1024, 40_000)])
    sealed: list[Fragment] = []
    rows = rewritten = most = 0
    for _ in range(3000):
        added = rng.randint(*sizes)
        rows += added
        sealed.append(Fragment(next(ids), added))
        while (places := to_merge([*sealed, Fragment(-1, 5), Fragment(-2, 1)])) is not None:
            size = sum(sealed[place].rows for place in places)
            assert Fragment(0, size).level > max(sealed[place].level for place in places)
            rewritten += size
            sealed[places.start : places.stop] = [Fragment(next(ids), size)]
        most = max(most, len(sealed) - rows // full(LEVEL_MAX - 1))
        assert sum(one.rows for one in sealed) == rows
    assert most <= OPEN_FRAGMENTS + LEVEL_MAX * (2 * FAN_IN)
    assert rewritten <= rows * LEVEL_MAX
