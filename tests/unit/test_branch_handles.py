"""How many handles of branches one handle of a graph keeps open, and which it closes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import pytest

from omniray.engine.branch_handles import BranchHandles
from omniray.engine.history.branch_names import BranchNames


class Names:
    """Names that are the ids of their lines."""

    def main(self) -> None:
        return None


class Handles:
    """Handles that are texts, with a record of which were opened and closed."""

    def __init__(self, most: int) -> None:
        self.opened: list[str] = []
        self.ended: list[str] = []
        self.of: BranchHandles[str] = BranchHandles(
            cast(BranchNames, Names()), self._open, is_gone=lambda one: False, ends=self.ended.append, most=most
        )

    def use(self, *lines: str) -> None:
        for line in lines:
            with self.of.used(line):
                pass

    def _open(self, line: str, main: Any) -> str:
        self.opened.append(line)
        return line


@pytest.fixture
def handles() -> Handles:
    return Handles(most=2)


def test_the_handle_that_was_used_longest_ago_is_closed_for_a_new_one(handles: Handles) -> None:
    handles.use("a", "b", "a", "c")
    assert (handles.ended, handles.of.open) == (["b"], ("a", "c"))


def test_a_handle_that_was_closed_for_others_is_opened_again(handles: Handles) -> None:
    handles.use("a", "b", "c", "a")
    assert handles.opened == ["a", "b", "c", "a"]


def test_a_handle_in_use_is_not_closed_for_others(handles: Handles) -> None:
    with ExitStack() as uses:
        for line in ("a", "b", "c"):
            uses.enter_context(handles.of.used(line))
        assert handles.ended == []
    handles.use("d")
    assert handles.ended == ["a", "b"]
