"""How far two lines are apart: the commits that one of them includes and the other does not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.store.object_store import ObjectStore

Vector = Mapping[str, int]


class Distances:
    """Counts commits that changed tables, by the vectors of lines. Each line is read once, as far as it was asked."""

    def __init__(self, changes: Callable[[str, int], list[int]]) -> None:
        self._changes = changes
        self._known: dict[str, tuple[int, list[int]]] = {}  # by line: the number above which its changes are known

    def ahead(self, own: Vector, other: Vector) -> int:
        """How many commits one vector includes that the other does not."""
        return sum(self._between(line, other.get(line, 0), number) for line, number in own.items())

    def _between(self, line: str, after: int, through: int) -> int:
        if after >= through:
            return 0
        above, numbers = self._known.get(line, (through, []))
        if line not in self._known or above > after:
            above, numbers = self._known[line] = after, self._changes(line, after)
        return bisect_right(numbers, through) - bisect_right(numbers, after)


class Lines:
    """The histories of a graph's lines, those of deleted branches included."""

    def __init__(self, store: ObjectStore, graph_id: str) -> None:
        self._store, self._graph_id = store, graph_id

    def changes(self, line: str, after: int) -> list[int]:
        """The numbers above `after` of a line's commits that changed tables."""
        log = log_of(self._store, self._graph_id, line)
        newest = log.newest()
        if newest is None:  # bound, and nobody has begun it
            return []
        return lineage_of(self._store, log, newest).change_numbers(after, newest)
