"""How far two lines are apart: the commits that one of them includes and the other does not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping

from omniray.engine.base.jobs import Jobs
from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.store.object_store import ObjectStore

Vector = Mapping[str, int]

Changes = Callable[[str, int], list[int]]
"""The numbers of a line, above one, of the commits that changed tables, in order."""


class Distances:
    """Counts commits that changed tables, by the vectors of lines.

    All pairs that will be asked about are given at once, so that each line is read once, as far back as any of them
    needs, and several lines at a time.
    """

    def __init__(self, pairs: Collection[tuple[Vector, Vector]], changes: Changes, jobs: Jobs) -> None:
        above: dict[str, int] = {}
        for one, other in (*pairs, *((other, one) for one, other in pairs)):
            for line, after, _ in _ranges(one, other):
                above[line] = min(after, above.get(line, after))
        reading = {line: jobs.submit(changes, line, after) for line, after in above.items()}
        self._numbers = {line: numbers.result() for line, numbers in reading.items()}

    def ahead(self, own: Vector, other: Vector) -> int:
        """How many commits one vector includes that the other does not."""
        return sum(
            bisect_right(self._numbers[line], through) - bisect_right(self._numbers[line], after)
            for line, after, through in _ranges(own, other)
        )


def _ranges(own: Vector, other: Vector) -> Iterator[tuple[str, int, int]]:
    """Of which lines one vector includes more: above which number, and through which."""
    for line, through in own.items():
        after = other.get(line, 0)
        if after < through:
            yield line, after, through


class Lines:
    """The histories of a graph's lines, those of deleted branches included."""

    def __init__(self, store: ObjectStore, graph_id: str) -> None:
        self._store, self._graph_id = store, graph_id

    def changes(self, line: str, after: int) -> list[int]:
        """As `Changes`."""
        log = log_of(self._store, self._graph_id, line)
        newest = log.newest()
        if newest is None:  # bound, and nobody has begun it
            return []
        return lineage_of(self._store, log, newest).change_numbers(after, newest)
