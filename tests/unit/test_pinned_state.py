"""The pinned state that a write or a merge is judged against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

import omniray
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.tables.cache import KnownIds
from tests.merging import seeded
from tests.stores import Root

PEOPLE = "node:Person"


class Slow:
    """Ids that are asked for while something happens."""

    def __init__(self, ids: list[str], meanwhile: Callable[[], None]) -> None:
        self._ids, self._meanwhile = ids, meanwhile

    def __len__(self) -> int:
        return len(self._ids)

    def to_pylist(self) -> list[str]:
        self._meanwhile()
        return self._ids


@pytest.mark.parametrize("is_beside_writer", [True, False], ids=["guarded", "twin"])
def test_a_state_beside_the_writer_does_not_see_what_the_writer_has_only_staged(
    disk: Root, is_beside_writer: bool
) -> None:
    """The writer moves the ids that it keeps on to the version that it makes, before that has landed."""
    with seeded(disk) as graph:
        known, state = _known(graph), PinnedState(graph._branch.cache, graph._branch.newest())
        if is_beside_writer:
            state = PinnedState(graph._branch.cache, graph._branch.newest(), is_beside_writer=True)

        def stage() -> None:
            nothing = pa.table({"id": pa.array([], pa.string()), "_rowaddr": pa.array([], pa.uint64())})
            known.advance((99, "staged"), removed=pa.array(["ann"]), placed=nothing)

        found = state.existing(PEOPLE, cast(Any, Slow(["ann", "bob", "eve"], stage))).to_pylist()
        assert (found == ["ann", "bob"]) == is_beside_writer


def _known(graph: omniray.Graph) -> KnownIds:
    """The ids as the writer keeps them."""
    branch = graph._branch
    found = branch.cache.known_ids(branch.cache.open(PEOPLE, branch.newest().pins[PEOPLE]))
    assert found is not None
    return found
