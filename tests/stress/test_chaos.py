"""The chaos of the stress test: its schedule follows from the seed, and what is due is done to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omniray.coordinator.actors.cluster import Place
from omniray.coordinator.stress import chaos as chaos_module
from omniray.coordinator.stress.chaos import Chaos
from omniray.coordinator.stress.history import HistoryFile, read_history
from omniray.coordinator.stress.request_faults import StoreFault, Weather
from omniray.coordinator.stress.schedule import (
    BreakStore,
    Disturbance,
    Due,
    Freeze,
    KillActor,
    KillWriter,
    LoseNode,
    Role,
    schedule,
)

SEEDS = range(200)
SECONDS = 60.0
PLACE = Place("graph", "main")
TIMEOUT_S = 20.0


# The schedule


def disturbances(seed: int, *, store: bool = True) -> list[Disturbance]:
    return [due.disturbance for due in schedule(seed, SECONDS, store=store)]


def test_a_seed_tells_the_whole_schedule() -> None:
    assert schedule(7, SECONDS, store=True) == schedule(7, SECONDS, store=True)
    assert schedule(7, SECONDS, store=True) != schedule(8, SECONDS, store=True)


def test_what_is_due_lies_within_the_run_in_the_order_of_time() -> None:
    for seed in SEEDS:
        times = [due.at_s for due in schedule(seed, SECONDS, store=True)]
        assert times == sorted(times)
        assert 0 < times[0] <= times[-1] < SECONDS


def test_a_run_of_a_minute_disturbs_everything() -> None:
    for seed in SEEDS:
        assert {type(one) for one in disturbances(seed)} == {KillWriter, KillActor, Freeze, LoseNode, BreakStore}
        assert {one.role for one in disturbances(seed) if isinstance(one, KillActor)} == set(Role)


def test_some_disturbances_wait_for_a_sign_of_life_and_some_do_not() -> None:
    assert {due.patient for due in schedule(7, SECONDS, store=True)} == {True, False}


def test_a_store_that_no_proxy_stands_before_is_left_alone() -> None:
    for seed in SEEDS:
        assert not any(isinstance(one, BreakStore) for one in disturbances(seed, store=False))


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
        return Chaos(due, sign_of_life=3, place=PLACE, history=self._history, **parts)

    def told(self) -> list[tuple[str, str]]:
        return [(event.what, event.target) for event in read_history(self._path)]  # type: ignore[union-attr]

    def next_change(self) -> int:
        """The status of the process once a signal has changed it."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (changes := self.changes()):
            assert time.monotonic() < deadline, "no signal has come"
            time.sleep(0.01)
        return changes[0]

    def changes(self) -> list[int]:
        """What signals have changed about it meanwhile."""
        pid, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WCONTINUED | os.WNOHANG)
        return [status] if pid else []


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


def at(at_s: float, disturbance: Disturbance, *, patient: bool = False) -> Due:
    return Due(at_s, disturbance, patient)


def test_nothing_is_done_before_its_time_and_all_of_it_once(world: World) -> None:
    chaos = world.chaos(at(1.0, KillWriter(5)), at(2.0, KillWriter(6)))
    for elapsed_s in (0.9, 1.0, 1.9, 5.0, 6.0):
        chaos.tick(elapsed_s, 0)
    assert world.writers.lots == [5, 6]
    assert world.told() == [("kill", "writer 3")] * 2
    assert (chaos.kills, chaos.faults) == (2, 0)


def test_a_patient_disturbance_waits_for_a_sign_of_life_after_the_last_one(world: World) -> None:
    chaos = world.chaos(at(1.0, KillWriter(5)), at(1.0, KillWriter(6), patient=True), at(2.0, KillWriter(7)))
    chaos.tick(1.0, 10)
    assert world.writers.lots == [5]
    chaos.tick(2.0, 10)
    assert world.writers.lots == [5, 7], "those that do not wait come in between"
    chaos.tick(3.0, 12)
    assert world.writers.lots == [5, 7]
    chaos.tick(4.0, 13)
    assert world.writers.lots == [5, 7, 6]


def test_a_kill_that_met_nobody_is_not_told(world: World) -> None:
    world.writers = Writers(number=None)
    chaos = world.chaos(at(1.0, KillWriter(5)))
    chaos.tick(1.0, 0)
    assert (world.told(), chaos.kills) == ([], 0)


def test_an_actor_that_is_away_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_module, "pid_of", lambda name: None)
    chaos = world.chaos(at(1.0, KillActor(Role.PUBLISHER, 0)), at(1.0, Freeze(Role.PUBLISHER, 0, 1.0)))
    chaos.tick(1.0, 0)
    chaos.end()
    assert (world.told(), chaos.kills, chaos.faults) == ([], 0, 0)


def test_a_killed_actor_is_dead(world: World) -> None:
    chaos = world.chaos(at(1.0, KillActor(Role.QUEUES, 0)))
    chaos.tick(1.0, 0)
    assert os.WTERMSIG(world.next_change()) == signal.SIGKILL
    assert world.told() == [("kill", f"{PLACE.queues(1)} (process {world.process.pid})")], "the owner that there is"


def test_a_frozen_actor_stops_and_goes_on_after_its_time(world: World) -> None:
    chaos = world.chaos(at(1.0, Freeze(Role.PUBLISHER, 0, seconds=3.0)))
    chaos.tick(1.5, 0)
    assert os.WIFSTOPPED(world.next_change())
    chaos.tick(4.4, 0)
    assert world.changes() == []
    chaos.tick(4.5, 0)
    assert os.WIFCONTINUED(world.next_change())
    assert world.told() == [("fault", f"{PLACE.publisher} (process {world.process.pid}) frozen")]


def test_a_frozen_actor_can_be_killed_although_it_answers_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = world.chaos(at(1.0, Freeze(Role.PUBLISHER, 0, 3.0)), at(2.0, KillActor(Role.PUBLISHER, 0)))
    chaos.tick(1.0, 0)
    assert os.WIFSTOPPED(world.next_change())
    monkeypatch.setattr(chaos_module, "pid_of", lambda name: None)
    chaos.tick(2.0, 0)
    assert os.WTERMSIG(world.next_change()) == signal.SIGKILL
    chaos.tick(4.0, 0)
    assert (chaos.kills, chaos.faults) == (1, 1)


def test_a_node_that_is_away_is_not_lost_again_until_another_one_is_there(world: World) -> None:
    chaos = world.chaos(at(1.0, LoseNode(seconds=3.0)), at(2.0, LoseNode(seconds=3.0)))
    for elapsed_s in (1.0, 2.0, 3.9):
        chaos.tick(elapsed_s, 0)
    assert world.nodes.deeds == ["lose"]
    chaos.tick(4.0, 0)
    assert world.nodes.deeds == ["lose", "add", "lose"]


def test_the_store_is_broken_for_its_time(world: World) -> None:
    weather = Weather(StoreFault.SLOW_DOWN, 0.5)
    chaos = world.chaos(at(1.0, BreakStore(weather, seconds=3.0)))
    chaos.tick(1.0, 0)
    assert world.sky.weathers == [weather]
    chaos.tick(4.0, 0)
    assert world.sky.weathers == [weather, None]
    assert world.told() == [("fault", "store: slow_down of 50% of the requests")]


def test_when_it_ends_early_everything_is_mended_and_nothing_more_is_broken(world: World) -> None:
    weather = Weather(StoreFault.DELAY, 0.5)
    chaos = world.chaos(
        at(1.0, LoseNode(9.0)), at(1.0, BreakStore(weather, 9.0)), at(1.0, Freeze(Role.RECONCILER, 0, 9.0)),
        at(8.0, KillWriter(0)),
    )  # fmt: skip
    chaos.tick(1.0, 0)
    assert os.WIFSTOPPED(world.next_change())
    chaos.end()
    chaos.tick(20.0, 0)
    assert os.WIFCONTINUED(world.next_change())
    assert world.nodes.deeds == ["lose", "add"]
    assert world.sky.weathers == [weather, None]
    assert world.writers.lots == []
