"""How far lines are apart: right for any vectors, and with one reading of each line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

from omniray.engine.base.jobs import AtOnce
from omniray.engine.branches.distance import Distances, Vector

LINES = ("main", "a", "b", "c")


class Histories:
    """Lines whose commits that changed tables have these numbers; it notes what is read."""

    def __init__(self, numbers: dict[str, list[int]]) -> None:
        self.numbers = numbers
        self.read: list[tuple[str, int]] = []

    def changes(self, line: str, after: int) -> list[int]:
        self.read.append((line, after))
        return [number for number in self.numbers[line] if number > after]

    def included(self, vector: Vector) -> list[tuple[str, int, int]]:
        """The commits that a vector includes; several may share a number."""
        return [
            (line, number, at)
            for line, through in vector.items()
            for at, number in enumerate(self.numbers[line])
            if number <= through
        ]


def vector_of(rng: Random) -> Vector:
    return {line: rng.randint(1, 9) for line in rng.sample(LINES, rng.randint(1, len(LINES)))}


def test_what_one_vector_includes_and_the_other_does_not_is_counted() -> None:
    for seed in range(300):
        rng = Random(seed)
        histories = Histories({line: sorted(rng.choices(range(1, 10), k=rng.randint(0, 9))) for line in LINES})
        pairs = [(vector_of(rng), vector_of(rng)) for _ in range(3)]
        distances = Distances(pairs, histories.changes, AtOnce())
        for one, other in pairs:
            own, others = set(histories.included(one)), set(histories.included(other))
            assert distances.ahead(one, other) == len(own - others), f"seed {seed}"
            assert distances.ahead(other, one) == len(others - own), f"seed {seed}"


def test_each_line_is_read_once_as_far_back_as_any_pair_needs() -> None:
    histories = Histories({"main": [2, 5, 7], "a": [2], "b": [2, 3]})
    pairs: list[tuple[Vector, Vector]] = [
        ({"main": 6, "a": 2}, {"main": 8}),
        ({"main": 3, "b": 3}, {"main": 8}),
        ({"main": 8, "c": 1}, {"main": 8, "c": 1}),
    ]
    distances = Distances(pairs, histories.changes, AtOnce())
    assert sorted(histories.read) == [("a", 0), ("b", 0), ("main", 3)]
    assert [distances.ahead(one, other) for one, other in pairs] == [1, 2, 0]
    assert [distances.ahead(other, one) for one, other in pairs] == [1, 2, 0]
    assert len(histories.read) == 3


def test_lines_are_read_at_the_same_time() -> None:
    """Each reading waits until the other one has begun."""
    both = Barrier(2)

    def changes(line: str, after: int) -> list[int]:
        both.wait(timeout=60)
        return [after + 1]

    with ThreadPoolExecutor(2) as pool:
        distances = Distances([({"a": 1}, {"b": 1})], changes, pool)
    assert distances.ahead({"a": 1}, {"b": 1}) == 1
