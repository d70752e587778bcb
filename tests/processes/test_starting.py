"""A client that starts a coordinator: what becomes of it when another one is faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omniray.coordinator.client import starting
from omniray.coordinator.client.starting import Terms
from omniray.engine.base.errors import Unreachable

TIMEOUT_S = 60.0


class Refused(Terms):
    """Terms whose coordinator is refused, as one is that comes too late."""

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('somebody else serves it')"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_coordinator_that_was_not_needed_any_more_is_no_error() -> None:
    """Fault: the coordinator that was to be started ends at once. Expected: no error, if the graph is served by now."""
    looks = iter([False, True])
    starting.start(Refused("graph", None), "graph", lambda: next(looks), TIMEOUT_S)
    assert list(looks) == []


def test_a_coordinator_that_could_not_begin_is_told_with_the_end_of_its_log() -> None:
    with pytest.raises(Unreachable, match="somebody else serves it"):
        starting.start(Refused("graph", None), "graph", lambda: False, TIMEOUT_S)


def test_nobody_starts_a_coordinator_for_a_graph_that_is_served_when_it_is_their_turn() -> None:
    starting.start(Refused("graph", None), "graph", lambda: True, TIMEOUT_S)
