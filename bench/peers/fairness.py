"""An honest writer beside a hostile client, which sends as fast as it can under one tenant's name, and under many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from bench.measure import Figure, Section, in_turns, milliseconds, times
from bench.peers.alone import Sizes, ours_among
from bench.peers.crew import Member, RunFailed, member
from bench.peers.race import DRAIN_S, START_MARGIN_S, fresh_store, percentile
from bench.peers.rows import Workload
from bench.peers.scenarios import IN_FLIGHT
from bench.peers.systems import OURS, serving

MANY = 1_000
TURNS = 3
WAITING = times(3)
_HOSTILE = Workload(in_flight=IN_FLIGHT, tenants=1)


def fairness(systems: Sequence[str], sizes: Sizes, delay_ms: float) -> Section:
    """Let an honest writer write alone, beside a hostile client, and beside one of many names, in turns."""
    if ours_among(systems) != OURS:
        raise RunFailed(f"it measures {OURS}, which is not among the systems")
    with fresh_store(on_disk=False) as store, ExitStack() as stack:
        place, honest = store.place("shared"), Workload()
        with member(OURS, place, honest) as preparing:
            preparing.ask(do="prepare")
        stack.enter_context(serving(OURS, place))
        works = (honest, _HOSTILE, replace(_HOSTILE, tenants=MANY))
        writer, *hostile = [
            stack.enter_context(member(OURS, place, work, number=number)) for number, work in enumerate(works)
        ]
        for one in (writer, *hostile):
            one.ask(do="open")
        store.set_delay(delay_ms)
        besides: Sequence[Sequence[Member]] = ([], *([one] for one in hostile))
        races = (partial(_p99_s, writer, beside, sizes.seconds) for beside in besides)
        alone_s, one_s, many_s = in_turns(TURNS, *races)
    how = f"p99 of writes of {honest.rows} rows, medians of {TURNS} turns of {sizes.seconds:g} s; {IN_FLIGHT} of the "
    return Section(
        "fairness",
        f"An honest writer beside a hostile client, {delay_ms:g} ms a request",
        how + "hostile client's writes, of as many rows, are under way at a time.",
        (_compared("under one name", one_s, alone_s), _compared(f"under {MANY:,} names", many_s, alone_s)),
    )


def _p99_s(writer: Member, hostile: Sequence[Member], seconds: float) -> float:
    """The p99 of an honest writer's race."""
    start_s = time.monotonic() + START_MARGIN_S
    for one in (writer, *hostile):
        one.tell(do="race", start_s=start_s, seconds=seconds)
    outcomes = [one.heard(seconds + DRAIN_S) for one in (writer, *hostile)]
    if outcomes[0]["failed"]:
        raise RunFailed(f"writes of the honest writer failed: {outcomes[0]['errors']}")
    p99_s = percentile(outcomes[0]["latencies_s"], 99)
    assert p99_s is not None, "it writes at least once"
    return p99_s


def _compared(what: str, beside_s: Sequence[float], alone_s: Sequence[float]) -> Figure:
    beside, alone = sorted(beside_s)[len(beside_s) // 2], sorted(alone_s)[len(alone_s) // 2]
    return Figure(f"p99 {what}, beside p99 alone", milliseconds(beside), milliseconds(alone), beside / alone, WAITING)
