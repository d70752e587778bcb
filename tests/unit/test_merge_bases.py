"""Best common ancestors by vectors, against a walk over random histories; and the vectors that a history keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from omniray.engine.branches.bases import Place, Vector, best_common_ancestors, includes, joined
from omniray.engine.line.commit_object import MergedParent, follow, unlawful
from tests.branch_histories import History, random_history
from tests.lines import birth, commit

MAIN, X, Y = "main", "x", "y"


def asked(vectors: dict[Place, Vector]) -> tuple[list[Place], Callable[[Place], Vector]]:
    """A function that tells vectors, and which ones it was asked for."""
    found: list[Place] = []

    def vector_of(place: Place) -> Vector:
        found.append(place)
        return vectors[place]

    return found, vector_of


def test_the_base_of_two_branches_is_where_they_parted() -> None:
    history = History(MAIN)
    for _ in range(3):
        history.write(MAIN)
    history.branch(X, MAIN)
    history.write(MAIN)
    history.write(X)
    assert history.bases(X, MAIN) == (Place(MAIN, 4),)


def test_a_merge_back_is_the_base_of_the_next_merge() -> None:
    history = History(MAIN)
    history.branch(X, MAIN)
    history.write(X)
    history.merge(X, MAIN)
    history.write(X)
    history.write(MAIN)
    assert history.bases(X, MAIN) == (Place(X, 2),)
    history.merge(MAIN, X)
    history.write(X)
    assert history.bases(X, MAIN) == (Place(MAIN, 3),)


def test_two_branches_that_merged_each_other_have_two_bases() -> None:
    history = History(MAIN)
    history.branch(X, MAIN)
    for line in (MAIN, X):
        history.write(line)
    here, there = history.head(MAIN), history.head(X)
    history.merge(X, MAIN, there)
    history.merge(MAIN, X, here)
    assert history.bases(X, MAIN) == tuple(sorted((here, there)))


@pytest.mark.parametrize("seed", range(200))
def test_the_vectors_give_what_a_walk_over_the_history_gives(seed: int) -> None:
    """The oracle knows of each state all states that it includes, and needs no vector."""
    history = random_history(Random(seed), [MAIN, X, Y], 30)
    for one in history.heads():
        for other in history.heads():
            assert set(history.bases_of(one, other)) == history.bases_by_walking(one, other)


@pytest.mark.parametrize("seed", range(50))
def test_few_vectors_are_asked_for(seed: int) -> None:
    """Each costs a look-up in the history of its line."""
    history = random_history(Random(seed), [MAIN, X, Y], 30)
    for line in (X, Y):
        found, vector_of = asked(history.vectors)
        one, other = (history.vector(history.head(name)) for name in (line, MAIN))
        bases = best_common_ancestors(one, other, vector_of)
        assert len(found) <= 2 + len(bases)


def test_vectors_are_joined_by_line() -> None:
    assert joined({MAIN: 3, X: 1}, {X: 4, Y: 2}) == {MAIN: 3, X: 4, Y: 2}
    assert includes({MAIN: 3}, Place(MAIN, 3))
    assert not includes({MAIN: 3}, Place(MAIN, 4))
    assert not includes({MAIN: 3}, Place(X, 1))


def test_an_object_that_contains_more_without_a_merge_is_unlawful() -> None:
    before = birth()
    merged = replace(commit(2), merged=(MergedParent("x", 4, "commit-9"),))
    after = follow(before, op_id="op-2", changed={}, commits=(merged,), finalised_through=0, contains={"x": 4})
    assert after.contains == {before.line: 2, "x": 4}
    assert unlawful(before, after) is None
    silent = replace(after, commits=(commit(2),))
    assert "merges nothing" in str(unlawful(before, silent))
    later = follow(after, op_id="op-3", changed={}, commits=(), finalised_through=0, contains={"x": 3})
    assert later.contains == {before.line: 3, "x": 4}, "what is contained never becomes less"
