"""Decides which fragments of the lineage are merged and indexed next, from sizes and coverage alone.

A sealed fragment of about a thousand rows is of level 0. Four neighbours of a level become one of the next, up to about
a million rows. So a history has few fragments of each level, a row is rewritten once per level, and the cost of a merge
is shared by the many folds between two of them. Fragments of level 1 and above are indexed, one segment each; only a
few small fragments, the tail and the head are not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

SEALED_ROWS = 1024
FAN_IN = 4
LEVEL_MAX = 5
OPEN_FRAGMENTS = 2  # the tail, sealed or not, and the head: the next fold replaces them


def full(level: int) -> int:
    """The number of rows from which a fragment is of the level above."""
    return int(SEALED_ROWS * FAN_IN ** (level + 1))


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment by its id, which is never used again, and its rows."""

    fragment_id: int
    rows: int

    @property
    def level(self) -> int:
        return next((level for level in range(LEVEL_MAX) if self.rows < full(level)), LEVEL_MAX)


@dataclass(frozen=True, slots=True)
class IndexWork:
    """A fragment to be indexed, if there is one, and the segments that no fragment needs any more."""

    fragment_id: int | None
    dead_segments: frozenset[str]


def to_merge(fragments: Sequence[Fragment]) -> range | None:
    """The places of neighbours that should become one fragment; None if there are too few of any level.

    They are the newest ones up to some level, once together they are enough for the level above: so every row that is
    rewritten rises, and small fragments between larger ones do not stay for ever. Low levels come first: their
    merged fragment may complete the next.
    """
    sealed = _sealed(fragments)
    for level in range(LEVEL_MAX):
        start = len(sealed)
        while start and sealed[start - 1].level <= level:
            start -= 1
        if sum(one.rows for one in sealed[start:]) >= full(level):
            end, rows = start, 0
            while end < len(sealed) and rows < full(LEVEL_MAX - 1):
                rows, end = rows + sealed[end].rows, end + 1
            return range(start, end)
    return None


def to_index(fragments: Sequence[Fragment], segments: Mapping[str, Mapping[str, Collection[int]]]) -> IndexWork | None:
    """The oldest fragment that lacks a segment of any index; `segments` are the present ones, by index and uuid."""
    ids = {one.fragment_id for one in fragments}
    dead = frozenset(uuid for index in segments.values() for uuid, covered in index.items() if ids.isdisjoint(covered))
    covered_by_all = set[int](ids)
    for index in segments.values():
        covered_by_all &= {fragment_id for covered in index.values() for fragment_id in covered}
    bare = [one.fragment_id for one in _sealed(fragments) if one.level > 0 and one.fragment_id not in covered_by_all]
    if not bare and not dead:
        return None
    return IndexWork(bare[0] if bare else None, dead)


def _sealed(fragments: Sequence[Fragment]) -> Sequence[Fragment]:
    return fragments[: max(len(fragments) - OPEN_FRAGMENTS, 0)]
