"""The chaos of the stress test: its schedule follows from the seed, and what is due is done to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omniray.coordinator.cluster import Place
from omniray.coordinator.stress import chaos as chaos_module
from omniray.coordinator.stress.chaos import Chaos
from omniray.coordinator.stress.fault_proxy import StoreFault, Weather
from omniray.coordinator.stress.history import HistoryFile, read_history
from omniray.coordinator.stress.schedule import (
    AddNode,
    BreakStore,
    Due,
    Freeze,
    KillActor,
    KillWriter,
    LoseNode,
    MendStore,
    Role,
    Thaw,
    schedule,
)

SEEDS = range(50)
SECONDS = 60.0
ENDS = {Freeze: Thaw, LoseNode: AddNode, BreakStore: MendStore}
PLACE = Place("graph", "main")


# The schedule


def test_a_seed_tells_the_whole_schedule() -> None:
    assert schedule(7, SECONDS, store=True) == schedule(7, SECONDS, store=True)
    assert schedule(7, SECONDS, store=True) != schedule(8, SECONDS, store=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_due_lies_within_the_run_in_the_order_of_time(seed: int) -> None:
    times = [due.at_s for due in schedule(seed, SECONDS, store=True)]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] <= SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_lasts_has_an_end_before_it_begins_again(seed: int) -> None:
    due = [one.disturbance for one in schedule(seed, SECONDS, store=True)]
    for begins, ends in ENDS.items():
        kinds = [type(one) for one in due if isinstance(one, begins | ends)]
        assert kinds == [begins, ends] * (len(kinds) // 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_of_a_minute_disturbs_everything(seed: int) -> None:
    due = [one.disturbance for one in schedule(seed, SECONDS, store=True)]
    assert {type(one) for one in due} >= {KillWriter, *ENDS}
    assert {one.role for one in due if isinstance(one, KillActor)} == set(Role)


def test_a_store_that_no_proxy_stands_before_is_left_alone() -> None:
    due = [one.disturbance for seed in SEEDS for one in schedule(seed, SECONDS, store=False)]
    assert not any(isinstance(one, BreakStore | MendStore) for one in due)


# What is done


class Writers:
    """Notes which lots were drawn."""

    def __init__(self, number: int | None = 3) -> None:
        self.lots: list[int] = []
        self._number = number

    def kill(self, lot: int) -> int | None:
        self.lots.append(lot)
        return self._number


class Nodes:
    """Notes what happens to the second node."""

    def __init__(self) -> None:
        self.deeds: list[str] = []

    def add(self) -> None:
        self.deeds.append("add")

    def lose(self) -> None:
        self.deeds.append("lose")


class Sky:
    """Notes the weather."""

    def __init__(self) -> None:
        self.weathers: list[Weather | None] = []

    def set_weather(self, weather: Weather | None) -> None:
        self.weathers.append(weather)


class World:
    """All that a chaos can disturb, with one real process that every actor is said to be."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.writers, self.nodes, self.sky, self.process = Writers(), Nodes(), Sky(), process
        self._path = folder / "chaos.jsonl"
        self._history = HistoryFile(self._path)

    def chaos(self, *due: Due) -> Chaos:
        parts: Any = {"writers": self.writers, "nodes": self.nodes, "proxy": self.sky}
        return Chaos(due, place=PLACE, history=self._history, **parts)

    def told(self) -> list[tuple[str, str]]:
        return [(event.what, event.target) for event in read_history(self._path)]  # type: ignore[union-attr]

    def next_change(self) -> int:
        """The status of the process once a signal has changed it."""
        return os.waitpid(self.process.pid, os.WUNTRACED | os.WCONTINUED)[1]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(chaos_module, "pid_of", lambda name: process.pid)
        monkeypatch.setattr(chaos_module, "find", lambda name: name if name == PLACE.queues(1) else None)
        world = World(tmp_path, process)
        yield world
        world._history.__exit__(None, None, None)
        process.kill()


def test_nothing_is_done_before_its_time_and_all_of_it_once(world: World) -> None:
    chaos = world.chaos(Due(1.0, KillWriter(5)), Due(2.0, KillWriter(6)))
    for elapsed_s in (0.9, 1.0, 1.9, 5.0, 6.0):
        chaos.tick(elapsed_s)
    assert world.writers.lots == [5, 6]
    assert world.told() == [("kill", "writer 3")] * 2
    assert (chaos.kills, chaos.faults) == (2, 0)


def test_a_kill_that_met_nobody_is_not_told(world: World) -> None:
    world.writers = Writers(number=None)
    chaos = world.chaos(Due(1.0, KillWriter(5)))
    chaos.tick(1.0)
    assert (world.told(), chaos.kills) == ([], 0)


def test_an_actor_that_is_away_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_module, "pid_of", lambda name: None)
    chaos = world.chaos(Due(1.0, KillActor(Role.PUBLISHER, 0)), Due(1.0, Freeze(Role.PUBLISHER, 0)))
    chaos.tick(1.0)
    assert (world.told(), chaos.kills, chaos.faults) == ([], 0, 0)


def test_a_killed_actor_is_dead(world: World) -> None:
    chaos = world.chaos(Due(1.0, KillActor(Role.QUEUES, 0)))
    chaos.tick(1.0)
    assert os.WTERMSIG(world.next_change()) == signal.SIGKILL
    assert world.told() == [("kill", f"{PLACE.queues(1)} (process {world.process.pid})")], "the owner that there is"


def test_a_frozen_actor_stops_and_goes_on_when_it_is_thawed(world: World) -> None:
    chaos = world.chaos(Due(1.0, Freeze(Role.PUBLISHER, 0)), Due(2.0, Thaw()))
    chaos.tick(1.0)
    assert os.WIFSTOPPED(world.next_change())
    chaos.tick(2.0)
    assert os.WIFCONTINUED(world.next_change())
    assert world.told() == [("fault", f"{PLACE.publisher} (process {world.process.pid}) frozen")]


def test_a_frozen_actor_can_be_killed_although_it_answers_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = world.chaos(Due(1.0, Freeze(Role.PUBLISHER, 0)), Due(2.0, KillActor(Role.PUBLISHER, 0)), Due(3.0, Thaw()))
    chaos.tick(1.0)
    assert os.WIFSTOPPED(world.next_change())
    monkeypatch.setattr(chaos_module, "pid_of", lambda name: None)
    chaos.tick(2.0)
    assert os.WTERMSIG(world.next_change()) == signal.SIGKILL
    chaos.tick(3.0)
    assert (chaos.kills, chaos.faults) == (1, 1)


def test_when_it_ends_early_everything_is_mended_and_nothing_more_is_broken(world: World) -> None:
    weather = Weather(StoreFault.SLOW_DOWN, 0.5)
    chaos = world.chaos(
        Due(1.0, LoseNode()), Due(1.0, BreakStore(weather)), Due(1.0, Freeze(Role.RECONCILER, 0)),
        Due(5.0, Thaw()), Due(6.0, AddNode()), Due(7.0, MendStore()), Due(8.0, KillWriter(0)), Due(9.0, LoseNode()),
    )  # fmt: skip
    chaos.tick(1.0)
    assert os.WIFSTOPPED(world.next_change())
    chaos.end()
    assert os.WIFCONTINUED(world.next_change())
    assert world.nodes.deeds == ["lose", "add"]
    assert world.sky.weathers == [weather, None]
    assert world.writers.lots == []
