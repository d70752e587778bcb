"""Counts and times of a publisher: counts since it began, times and rates of the last seconds."""

from __future__ import annotations

import pytest

from omniray.coordinator.actors.gauges import RECENT_S, Gauges
from omniray.coordinator.door.status import Rates


class _Clock:
    """A time that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def _round(gauges: Gauges, seconds: float) -> None:
    gauges.judged(seconds)
    gauges.staged(seconds)
    gauges.landed(2, seconds, seconds)


def test_times_of_steps_are_those_of_the_last_seconds_as_rates_are(clock: _Clock) -> None:
    """Fault: slow rounds of long ago. Oracle: what is told when quick ones have followed, far fewer."""
    gauges = Gauges(clock=clock)
    for _ in range(100):
        _round(gauges, 5.0)
    clock.now += RECENT_S + 1
    _round(gauges, 0.01)
    rates = gauges.rates()
    assert (rates.judge_ms, rates.stage_ms, rates.put_ms, rates.round_ms) == (10.0, 10.0, 10.0, 10.0)
    assert gauges.commits == 202


def test_who_has_done_nothing_lately_has_no_times(clock: _Clock) -> None:
    gauges = Gauges(clock=clock)
    _round(gauges, 5.0)
    clock.now += RECENT_S + 1
    assert gauges.rates() == Rates()


def test_rounds_that_are_judged_and_never_land_are_seen(clock: _Clock) -> None:
    """Else a store that takes no object would look as if nothing were tried."""
    gauges = Gauges(clock=clock)
    gauges.judged(0.02)
    assert gauges.rates() == Rates(judge_ms=20.0)


def test_the_total_counts_what_each_branch_does(clock: _Clock) -> None:
    total = Gauges(clock=clock)
    for gauges in (Gauges(total, clock=clock), Gauges(total, clock=clock)):
        _round(gauges, 0.5)
        gauges.refused("key_conflict")
    assert (total.commits, total.rounds, total.refusals["key_conflict"]) == (4, 2, 2)
    assert total.rates().judge_ms == 500.0
