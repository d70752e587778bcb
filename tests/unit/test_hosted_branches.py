"""The branches that a coordinator's process hosts, without publishers: who gets a place, who waits, who leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from omniray.coordinator.actors import hosted_branches
from omniray.coordinator.actors.bound_lines import BoundLines
from omniray.coordinator.actors.hosted_branches import HostedBranches
from omniray.engine.base.errors import BranchGone, OmnirayError, Overloaded, StorageError, Unreachable
from omniray.engine.base.ulids import new_ulid
from tests.coordination import TIMEOUT_S

LEAVING = Unreachable("the coordinator was taken down")


def bindings(*lines: str) -> Any:
    """Main's newest object, which names the branches that have these lines."""
    return SimpleNamespace(
        bindings={f"b{n}": SimpleNamespace(ulid=one, is_doomed=False) for n, one in enumerate(lines)}
    )


@dataclass
class Branch:
    """A hosted branch that says what was done with it; it leaves when it may."""

    line: str
    may_leave: threading.Event
    leaves: OmnirayError | None = None
    is_over: bool = False
    publisher: Any = field(default_factory=lambda: SimpleNamespace(is_idle=True))
    done: list[str] = field(default_factory=list)

    def leave(self) -> None:
        assert self.may_leave.wait(TIMEOUT_S)
        if self.leaves is not None:
            raise self.leaves
        self.done.append("left")

    def drain(self) -> None:
        self.done.append("drained")

    def close(self) -> None:
        self.done.append("closed")


class House:
    """Hosts every line; one is opened when it may be."""

    def __init__(self, open_max: int = 256) -> None:
        self.opened: dict[str, Branch] = {}
        self.may_open: dict[str, threading.Event] = {}
        self.may_leave = threading.Event()
        self.may_leave.set()
        self.reads, self.lines = 0, [new_ulid() for _ in range(6)]
        self.now_s = 0.0
        bound = BoundLines(lambda: bindings(*self.lines), self._read)
        host: Any = self._host
        self.hosted = HostedBranches(host, bound, open_max=open_max, clock=self._clock)

    def open(self, *lines: str) -> None:
        for line in lines:
            self.hosted.opening(line).result(TIMEOUT_S)

    @property
    def open_lines(self) -> list[str]:
        return [one.line for one in self.hosted.open]

    def _host(self, line: str) -> Branch:
        if (gate := self.may_open.get(line)) is not None:
            assert gate.wait(TIMEOUT_S)
        self.opened[line] = Branch(line, self.may_leave)
        return self.opened[line]

    def _read(self) -> Any:
        self.reads += 1
        return bindings(*self.lines)

    def _clock(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


class FailingPool:
    """A pool that can start no thread for the first job, though it keeps the job, as Python's own does."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool, self.kept = pool, list[tuple[Any, ...]]()

    def submit(self, *job: Any) -> Future[Any]:
        if not self.kept:
            self.kept.append(job)
            raise RuntimeError("can't start new thread")
        return self._pool.submit(*job)

    def run_the_kept(self) -> None:
        ((do, *arguments),) = self.kept
        do(*arguments)


# Lines that are none


def test_a_line_that_no_branch_has_is_refused_and_leaves_nothing_behind(house: House) -> None:
    for _ in range(20):
        with pytest.raises(BranchGone, match="no branch of this graph"):
            house.open(new_ulid())
    assert (house.hosted._entries, house.opened) == ({}, {})


def test_lines_that_no_branch_has_cost_one_read_at_a_time_however_many_are_asked_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin reads for each: 100 reads."""
    gate, read = threading.Event(), house.hosted._lines._read

    def read_slowly() -> Any:
        assert gate.wait(TIMEOUT_S)
        return read()

    monkeypatch.setattr(house.hosted._lines, "_read", read_slowly)
    asked = [house.hosted.opening(new_ulid()) for _ in range(100)]
    gate.set()
    assert {type(one.exception(TIMEOUT_S)) for one in asked} == {BranchGone}
    assert 1 <= house.reads <= 2
    house.open(house.lines[0])
    assert house.reads <= 2, "main's newest object names it"


def test_a_branch_that_was_created_since_main_was_last_read_here_is_found(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.hosted._lines, "_known", bindings)
    house.open(house.lines[0])
    assert house.open_lines == [house.lines[0]]


def test_a_store_that_can_not_be_read_is_told_to_those_who_asked_and_is_asked_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise StorageError("the store is away")

    with monkeypatch.context() as failing:
        failing.setattr(house.hosted._lines, "_known", bindings)
        failing.setattr(house.hosted._lines, "_read", fail)
        with pytest.raises(StorageError, match="the store is away"):
            house.open(house.lines[0])
    house.open(house.lines[0])


# Places


def test_no_more_branches_are_open_than_may_be_and_the_one_that_was_used_longest_ago_makes_room() -> None:
    house = House(open_max=2)
    first, second, third, *_ = house.lines
    house.open(first, second)
    with house.hosted.used(first):
        pass
    house.may_leave.clear()
    waiting = house.hosted.opening(third)
    assert third not in house.opened, "it is not opened before the other one has left"
    house.may_leave.set()
    waiting.result(TIMEOUT_S)
    assert house.open_lines == sorted([first, third])
    assert house.opened[second].done == ["left"]


def test_a_branch_for_which_there_is_no_place_is_refused_while_all_are_in_use() -> None:
    house = House(open_max=1)
    first, second, *_ = house.lines
    house.open(first)
    with house.hosted.used(first), pytest.raises(Overloaded, match="1 branches are open"):
        house.open(second)
    house.opened[first].publisher.is_idle = False
    with pytest.raises(Overloaded):
        house.open(second)
    house.opened[first].publisher.is_idle = True
    house.open(second)
    assert house.open_lines == [second]


def test_each_who_waits_for_a_place_gets_one_and_those_who_come_too_late_are_refused() -> None:
    house = House(open_max=2)
    house.open(*house.lines[:2])
    house.may_leave.clear()
    waiting = [house.hosted.opening(line) for line in house.lines[2:]]
    refused = [one for one in waiting if one.done()]
    assert [type(one.exception(TIMEOUT_S)) for one in refused] == [Overloaded] * 2
    house.may_leave.set()
    for one in waiting[:2]:
        one.result(TIMEOUT_S)
    assert house.open_lines == sorted(house.lines[2:4])


def test_who_waits_for_the_place_of_a_branch_that_can_not_leave_is_told_so() -> None:
    house = House(open_max=1)
    first, second, *_ = house.lines
    house.open(first)
    house.opened[first].leaves = StorageError("the line could not be handed back")
    with pytest.raises(Overloaded):
        house.open(second)
    assert house.open_lines == [first]


def test_a_branch_that_is_asked_for_while_it_makes_room_waits_for_a_place_like_any_other() -> None:
    house = House(open_max=1)
    first, second, *_ = house.lines
    house.open(first)
    house.may_leave.clear()
    asked = house.hosted.opening(second), house.hosted.opening(first)
    house.may_leave.set()
    for one in asked:
        assert isinstance(one.exception(TIMEOUT_S), Overloaded | None)
    assert len(house.hosted.open) == 1


# No thread


def test_who_asks_for_a_branch_is_told_when_no_thread_can_open_it_and_the_next_one_gets_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingPool(house.hosted._opening)
    monkeypatch.setattr(house.hosted, "_opening", failing)
    with pytest.raises(StorageError, match="can't start new thread"):
        house.open(house.lines[0])
    failing.run_the_kept()
    assert house.opened == {}, "nobody waits for it any more"
    house.open(house.lines[0])
    assert house.open_lines == [house.lines[0]]


def test_who_asks_for_an_unknown_line_is_told_when_no_thread_can_read_main(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.hosted._lines, "_reading", FailingPool(house.hosted._lines._reading))
    line = new_ulid()
    with pytest.raises(StorageError, match="can't start new thread"):
        house.open(line)
    with pytest.raises(BranchGone):
        house.open(line)


def test_a_branch_that_no_thread_can_let_go_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.open(house.lines[0])
    failing = FailingPool(house.hosted._leaving)
    monkeypatch.setattr(house.hosted, "_leaving", failing)
    house.hosted.let_all_go()
    failing.run_the_kept()
    assert (house.open_lines, house.opened[house.lines[0]].done) == ([house.lines[0]], [])
    house.hosted.let_all_go()
    house.hosted.drain(LEAVING)
    assert house.opened[house.lines[0]].done == ["left"]


# The end


def test_a_branch_that_hangs_while_it_is_opened_keeps_no_other_from_being_handed_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_branches, "DRAIN_WAIT_S", 0.1)
    there, hangs, *_ = house.lines
    house.open(there)
    gate = house.may_open[hangs] = threading.Event()
    waiting = house.hosted.opening(hangs)
    house.hosted.drain(LEAVING)
    assert waiting.exception(TIMEOUT_S) is LEAVING
    assert house.opened[there].done == ["drained", "closed"]
    with pytest.raises(Unreachable):
        house.hosted.opening(hangs)
    gate.set()
    house.hosted._opening.shutdown()
    assert house.opened[hangs].done == ["left"], "it is handed back as soon as it is there"
    assert house.open_lines == []


def test_a_branch_that_hangs_while_it_is_let_go_is_told_when_all_others_have_left(
    house: House, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_branches, "DRAIN_WAIT_S", 0.1)
    first, second, *_ = house.lines
    house.open(first)
    house.may_leave.clear()
    house.hosted.let_all_go()
    house.open(second)
    with pytest.raises(StorageError, match="still being handed back"):
        house.hosted.drain(LEAVING)
    assert house.opened[second].done == ["drained", "closed"]
    house.may_leave.set()
    house.hosted._leaving.shutdown()
    house.hosted.drain(LEAVING)
    assert house.opened[first].done == ["left"]
