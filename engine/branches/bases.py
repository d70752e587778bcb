"""The best common ancestors of two states, by their vectors alone: nothing is walked.

A vector says which number of which line a state includes. What two states have in common is the pointwise minimum of
their vectors; the best of it is what no other common state includes. There is one, unless both sides merged each
other's work before (criss-cross).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

Vector: TypeAlias = Mapping[str, int]
"""Which number of which line a state includes, by the line's id."""


class Place(NamedTuple):
    """A number of a line."""

    line: str
    seq: int


def best_common_ancestors(one: Vector, other: Vector, vector_of: Callable[[Place], Vector]) -> tuple[Place, ...]:
    """The common states that no other common state includes.

    `vector_of` is asked for as few as possible: mostly for one, which includes all others. The lines that either of the
    two states has the lower number of come first: it began on them, or merged them last.
    """
    common = [Place(line, min(number, other[line])) for line, number in one.items() if line in other]
    left = sorted((p for p in common if p.seq > 0), key=lambda p: (one[p.line] == other[p.line], p.line))
    best: list[Place] = []
    while left:
        found = left.pop(0)
        vector = vector_of(found)
        best = [place for place in best if not includes(vector, place)] + [found]
        left = [place for place in left if not includes(vector, place)]
    return tuple(sorted(best))


def includes(vector: Vector, place: Place) -> bool:
    """Whether a state with this vector includes a number of a line."""
    return vector.get(place.line, 0) >= place.seq


def joined(*vectors: Vector) -> dict[str, int]:
    """The vector of a state that includes all of these: the pointwise maximum."""
    lines = {line for vector in vectors for line in vector}
    return {line: max(vector.get(line, 0) for vector in vectors) for line in sorted(lines)}
