"""omniray's goals as data, and their figures from the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.measure import RATIO, Figure, Target
from bench.peers.race import Run
from bench.peers.systems import EMBEDDED, OURS


@dataclass(frozen=True, slots=True)
class AtLeast(Target):
    """A target with a lower bound: `limit` is the least value that meets it."""

    def __str__(self) -> str:
        return f"≥ {self.limit:g}{self.unit}"

    def met_by(self, value: float) -> bool:
        return value >= self.limit


@dataclass(frozen=True, slots=True)
class Faster:
    """A multiple of the commit rate of a peer; `peer` None is omniray itself, in another scenario."""

    peer: str | None
    writers: int
    target: Target
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class Bounded:
    """A figure of omniray with an absolute bound."""

    what: str
    writers: int
    value: Callable[[Run], float | None]
    target: Target


Goal = Faster | Bounded


def times_at_least(limit: float) -> Target:
    return AtLeast(limit, unit=RATIO)


def ours_in(runs: Iterable[Run]) -> str:
    """The name under which omniray ran: the coordinator, or embedded if only that ran."""
    return OURS if any(run.system == OURS for run in runs) else EMBEDDED


def figures(scenario: str, goals: Sequence[Goal], runs: Sequence[Run]) -> tuple[Figure, ...]:
    """One figure for each goal whose runs exist; it is judged only at the goal's own number of writers."""
    ours = [run for run in runs if run.scenario == scenario and run.system == ours_in(runs)]
    if not ours:
        return ()
    made = [_figure(goal, _nearest(ours, goal.writers), runs) for goal in goals]
    return tuple(figure for figure in made if figure is not None)


def _nearest(runs: Sequence[Run], writers: int) -> Run:
    """The run with this number of writers, or else the one with the most."""
    return max(runs, key=lambda run: (run.writers == writers, run.writers))


def _figure(goal: Goal, ours: Run, runs: Sequence[Run]) -> Figure | None:
    target = goal.target if ours.writers == goal.writers else None
    if isinstance(goal, Bounded):
        value = goal.value(ours)
        shown = "" if value is None else f"{value:.3g}{goal.target.unit}"
        return Figure(f"N = {ours.writers}: {goal.what}, {ours.system}", shown, "", value if target else None, target)
    scenario, system = goal.scenario or ours.scenario, goal.peer or ours.system
    wanted = (scenario, system, ours.writers)
    peer = next((run for run in runs if (run.scenario, run.system, run.writers) == wanted), None)
    if peer is None or not peer.commits_per_s:
        return None
    beside = system if goal.scenario is None else f"its {scenario}"
    ratio = ours.commits_per_s / peer.commits_per_s
    what = f"N = {ours.writers}: rate, {ours.system} beside {beside}"
    return Figure(what, f"{ours.commits_per_s:,.1f}/s", f"{peer.commits_per_s:,.1f}/s", ratio, target)
