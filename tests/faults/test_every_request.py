"""Every request of a write is broken in every way, one at a time, and the graph stays whole.

    fault         one request of a write to three tables, Phase D included, fails once (the SDKs repeat it by themselves)
                  or each time that it is repeated
    expectation   the caller is told that the write is done, failed, or of unknown outcome, and that is true
    oracle        `tests/faults/rounds.py`

`make test` breaks each request in one way and the commit object in every way; with OMNIRAY_TORTURE=1 it is every
request in every way. A failure names the fault by its test and the request by its subtest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench.s3server import running_server
from tests.faults.clients import TOO_LONG_MS
from tests.faults.proxy import Fault, Kind, Proxy, running_proxy
from tests.faults.rounds import Field, Step

TORTURE = "OMNIRAY_TORTURE" in os.environ
FAULTS = [(kind, times) for kind in Kind for times in (1, 0)]

pytestmark = pytest.mark.timeout(3600 if TORTURE else 180)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with running_server() as server, running_proxy(server.endpoint) as proxy:
        yield proxy


def chosen(steps: list[Step], turn: int) -> list[Step]:
    """The requests that a fault is tried on: all, or its share of those that differ, and the one that commits."""
    if TORTURE:
        return steps
    differing = sorted({step.role: step for step in steps}.values(), key=str)
    share = differing[turn :: len(FAULTS)]
    return share + [step for step in differing if step.commits and step not in share]


@pytest.mark.parametrize(
    ("turn", "kind", "times"),
    [
        pytest.param(turn, kind, times, id=f"{kind}-{'once' if times else 'each_time'}")
        for turn, (kind, times) in enumerate(FAULTS)
    ],
)
def test_a_broken_request_is_never_answered_with_a_lie(
    proxy: Proxy, subtests: pytest.Subtests, turn: int, kind: Kind, times: int
) -> None:
    field: Field | None = Field.behind(proxy)
    for step in chosen(field.learn(), turn):
        with subtests.test(request=str(step)):
            whole, field = field or Field.behind(proxy), None  # a graph that fails the oracle proves nothing further
            whole.round(Fault(kind, step.pattern, step.nth, times, TOO_LONG_MS))
            assert whole.was_met()
            field = whole
