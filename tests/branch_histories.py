"""Random histories of branches that write and merge each other, without any graph: vectors, and a plain oracle.

Every state has a vector, as the objects of a line have, and the set of all states that it includes, which is the
oracle's.
"""

from __future__ import annotations

from random import Random

from omniray.engine.branches.bases import Place, Vector, best_common_ancestors, joined


class History:
    """States of several lines. A state that merges another one includes all that this includes."""

    def __init__(self, first: str) -> None:
        self.vectors: dict[Place, Vector] = {}
        self.includes: dict[Place, frozenset[Place]] = {}
        self._heads: dict[str, Place] = {}
        self._put(Place(first, 1), {}, frozenset())

    def head(self, line: str) -> Place:
        return self._heads[line]

    def heads(self) -> list[Place]:
        return list(self._heads.values())

    def vector(self, place: Place) -> Vector:
        return self.vectors[place]

    def branch(self, line: str, parent: str) -> Place:
        """Begin a line where another one is now."""
        start = self.head(parent)
        return self._put(Place(line, 1), self.vectors[start], self.includes[start])

    def write(self, line: str) -> Place:
        before = self.head(line)
        return self._put(Place(line, before.seq + 1), self.vectors[before], self.includes[before])

    def merge(self, source: str, target: str, at: Place | None = None) -> Place:
        taken, before = at or self.head(source), self.head(target)
        vector = joined(self.vectors[taken], self.vectors[before])
        return self._put(Place(target, before.seq + 1), vector, self.includes[taken] | self.includes[before])

    def bases(self, one: str, other: str) -> tuple[Place, ...]:
        return self.bases_of(self.head(one), self.head(other))

    def bases_of(self, one: Place, other: Place) -> tuple[Place, ...]:
        return best_common_ancestors(self.vectors[one], self.vectors[other], self.vector)

    def bases_by_walking(self, one: Place, other: Place) -> set[Place]:
        common = self.includes[one] & self.includes[other]
        return {place for place in common if not any(place in self.includes[o] for o in common if o != place)}

    def _put(self, place: Place, vector: Vector, included: frozenset[Place]) -> Place:
        self.vectors[place] = {**vector, place.line: place.seq}
        self.includes[place] = included | {place}
        self._heads[place.line] = place
        return place


def random_history(rng: Random, lines: list[str], steps: int) -> History:
    """A history in which every line writes, and merges others' heads and older states."""
    history = History(lines[0])
    for line in lines[1:]:
        history.branch(line, rng.choice(lines[: lines.index(line)]))
    for _ in range(rng.randint(1, steps)):
        line = rng.choice(lines)
        if rng.random() < 0.5:
            history.write(line)
        else:
            other = rng.choice([one for one in lines if one != line])
            at = Place(other, rng.randint(max(1, history.head(other).seq - 1), history.head(other).seq))
            history.merge(other, line, at)
    return history
