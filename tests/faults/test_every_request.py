"""Every request of a write is broken in every way, one at a time, and the graph stays whole.

    fault         one request of a write to three tables, Phase D included, fails once, and the SDKs repeat it by
                  themselves, or it fails each time that they do
    expectation   the caller is told that the write is done, failed, or of unknown outcome, and that is true
    oracle        `tests/faults/rounds.py`

`make test` breaks each request in one way and the commit object in every way; with OMNIRAY_TORTURE=1 it is every
request in every way. A failure names the fault by its test and the request by its subtest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from omniray.coordinator.stress.fault_proxy import FaultProxy, running_proxy
from omniray.coordinator.stress.request_faults import RequestFault, StoreFault
from omniray.engine.base.errors import KeyConflict, OmnirayError, StorageError
from omniray.engine.line import line_end as tip
from omniray.engine.line.commit_object import Fate
from omniray.engine.tables import table as tables
from omniray.engine.writer import Writer
from tests.faults.clients import FAR_TOO_LONG_MS, TOO_LONG_MS
from tests.faults.rounds import Field, Step
from tests.kit.s3server import running_server

TORTURE = "OMNIRAY_TORTURE" in os.environ
FAULTS = [(kind, times) for kind in StoreFault for times in (1, 0)]

# In the short form one process plays on one ground; in the long one, several share the work.
pytestmark = [
    pytest.mark.timeout(3600 if TORTURE else 180),
    *([] if TORTURE else [pytest.mark.xdist_group("every request")]),
]


class Ground:
    """The graph that rounds are played on, one after another: healed each time, or else given up for a new one.

    So is one on which a write would make other requests than those that were learned.
    """

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._field: Field | None = Field.behind(proxy)
        self.steps = self._field.learn()
        self.commit = next(step for step in self.steps if step.commits)
        # Deletes wait until a handle has been idle for a while, or is closed.
        self.before_flush = [step for step in self.steps if not step.line.startswith("POST")]

    def play(self, way: Callable[[Field, RequestFault], object], fault: RequestFault) -> None:
        field, self._field = self._field, None
        if field is None or field.is_worn:
            field = Field.behind(self._proxy)
        way(field, fault)
        assert field.was_met()
        self._field = field


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with running_server() as server, running_proxy(server.endpoint, seed=0) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def ground(proxy: FaultProxy) -> Ground:
    return Ground(proxy)


def name(kind: StoreFault, times: int) -> str:
    return f"{kind}-{'once' if times else 'each_time'}"


def fault(kind: StoreFault, times: int, step: Step) -> RequestFault:
    return RequestFault(kind, step.pattern, step.nth, times, FAR_TOO_LONG_MS if step.commits else TOO_LONG_MS)


def chosen(steps: list[Step], turn: int) -> list[Step]:
    """The requests that a fault is tried on: all, or its share of those that differ, and the one that commits."""
    if TORTURE:
        return steps
    differing = sorted({step.role: step for step in steps}.values(), key=str)
    return [step for at, step in enumerate(differing) if at % len(FAULTS) == turn or step.commits]


@pytest.mark.parametrize("turn", range(len(FAULTS)), ids=[name(*each) for each in FAULTS])
def test_a_broken_request_is_never_answered_with_a_lie(ground: Ground, subtests: pytest.Subtests, turn: int) -> None:
    for step in chosen(ground.steps, turn):
        with subtests.test(request=str(step)):
            ground.play(Field.round, fault(*FAULTS[turn], step))


@pytest.mark.parametrize("kind", StoreFault)
def test_a_handle_writes_on_after_a_broken_request(ground: Ground, subtests: pytest.Subtests, kind: StoreFault) -> None:
    for step in ground.before_flush if TORTURE else [ground.commit]:
        with subtests.test(request=str(step)):
            ground.play(Field.go_on, fault(kind, 0, step))


def test_a_graph_whose_tables_have_lost_their_tails_is_given_up_for_a_new_one(proxy: FaultProxy) -> None:
    """Fault: so many writes that a table's tail is sealed, so that no write reads it. Oracle: each fault is met."""
    with patch.object(tables, "TAIL_ROWS_MAX", 8):
        ground = Ground(proxy)
        *_, tail = (step for step in ground.steps if re.match(r"GET .*/Person\.lance/data/", step.line))
        for _ in range(2):
            ground.play(Field.round, fault(StoreFault.INTERNAL_ERROR, 1, tail))


# With a guard switched off the oracle sees it


@pytest.mark.parametrize(
    ("kind", "guess"),
    [
        pytest.param(StoreFault.INTERNAL_ERROR, Fate.LANDED, id="an_unclear_put_is_believed"),
        pytest.param(StoreFault.LOST_ANSWER, Fate.LOST, id="an_unclear_put_is_given_up"),
    ],
)
def test_a_writer_that_guesses_what_became_of_its_put_is_found_out(
    ground: Ground, kind: StoreFault, guess: Fate
) -> None:
    with patch.object(tip, "fate", lambda ours, answer, seen: guess), pytest.raises((AssertionError, OmnirayError)):
        ground.play(Field.round, RequestFault(kind, ground.commit.pattern, times=0))


def test_a_writer_that_forgets_the_ids_of_writes_is_found_out(ground: Ground) -> None:
    with patch.object(Writer, "_known", lambda self, intent, base: None), pytest.raises(KeyConflict):
        ground.play(Field.round, RequestFault(StoreFault.LOST_ANSWER, ground.commit.pattern, times=0))


def test_a_writer_that_tells_an_unknown_outcome_as_a_failure_is_found_out(ground: Ground) -> None:
    failure = StorageError("the store failed")
    with patch.object(tip, "_unknown", lambda ours: failure), pytest.raises(AssertionError, match="is there"):
        ground.play(
            Field.round, RequestFault(StoreFault.DELAY, ground.commit.pattern, times=0, wait_ms=FAR_TOO_LONG_MS)
        )
