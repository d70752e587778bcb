"""A client's link: a coordinator is found by the line alone, found again when it has gone, started where none is."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from omniray.coordinator.client import link as link_module
from omniray.coordinator.client import starting
from omniray.coordinator.client import waits as waits_module
from omniray.coordinator.client.background import Detached
from omniray.coordinator.client.link import PATIENCE_S, Link
from omniray.coordinator.client.starting import Terms
from omniray.coordinator.client.waits import Nothing, Waits
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door.calls import FLUSH, NEWEST, STATUS, Call
from omniray.coordinator.door.record import DoorRecord, FoundDoor, put_record
from omniray.engine.base.errors import (
    Fenced,
    GraphGone,
    LineOwned,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    StorageError,
    Unauthenticated,
    Unreachable,
)
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.store.object_store import ObjectStore
from tests.clocks import SleepersClock
from tests.graphs import parts_of

ELSEWHERE = str(Incarnation(new_ulid(), Process("elsewhere", 1, "1"), "10.0.0.1:6379"))
DEAD = str(Incarnation(new_ulid(), replace(this_process(), started="long ago"), "10.0.0.1:6379"))
SILENT = Unreachable("no answer", url="")


class _Doors:
    """The coordinators that there are, by the URL of their door: what each answers when it is called."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.called: list[tuple[str, str]] = []
        self.closed: list[str] = []

    def wire(self, door: FoundDoor, line: str, newest: int) -> _Wire:
        return _Wire(self, door.record.url, newest)


class _Wire:
    def __init__(self, doors: _Doors, url: str, newest: int) -> None:
        self._doors, self.url, self.newest = doors, url, newest

    def call(self, call: Call, timeout_s: float, arguments: Any = None) -> Any:
        self._doors.called.append((self.url, call.name))
        left = self._doors.answers.get(self.url, [SILENT])
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, OmnirayError):
            raise answer
        return answer

    def calling(self, call: Call, timeout_s: float, arguments: Any = None) -> Waits[Any]:
        yield Nothing()
        return self.call(call, timeout_s, arguments)

    def close(self) -> None:
        self._doors.closed.append(self.url)


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> _Doors:
    doors = _Doors()
    monkeypatch.setattr(link_module, "Wire", doors.wire)
    return doors


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepersClock:
    clock = SleepersClock()
    for module in (link_module, waits_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What becomes of each coordinator that is to be started; none may be, unless the test says so."""
    left: list[Callable[[], object]] = []

    def run_detached(terms: Terms, graph_id: str, *options: str) -> Any:
        left.pop(0)()
        return Detached

    monkeypatch.setattr(Terms, "run_detached", run_detached)
    monkeypatch.setattr(starting, "refuse_without_ray", lambda: None)
    return left


@pytest.fixture
def link(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Link]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link = Link(open_branch(store), Terms(store.uri, None))
    yield link
    link.close()


def serve(store: ObjectStore, port: int, *, owner: str = ELSEWHERE) -> str:
    """Let a coordinator take the line over and put the record of its door; its URL."""
    record = DoorRecord.new(f"http://127.0.0.1:{port}")
    taken = take_over(parts_of(store).tip, owner, door=record.digest)
    put_record(store, record, taken.epoch)
    return record.url


# Found


def test_a_coordinator_is_found_by_the_line_and_has_to_answer(store: ObjectStore, doors: _Doors, link: Link) -> None:
    url = serve(store, 1)
    doors.answers[url] = [7]
    link.open(starts=False, timeout_s=60)
    assert (link.url, doors.called) == (url, [(url, "newest")])


def test_one_that_begins_is_waited_for(store: ObjectStore, doors: _Doors, link: Link, clock: SleepersClock) -> None:
    url = serve(store, 1)
    doors.answers[url] = [SILENT, StorageError("not yet"), Fenced("it begins anew"), Unauthenticated("old"), 7]
    link.open(starts=False, timeout_s=60)
    assert link.url == url
    assert len(doors.closed) == 4
    assert clock.now_s > 0


def test_one_whose_record_is_not_there_yet_is_waited_for(
    store: ObjectStore, doors: _Doors, link: Link, clock: SleepersClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = DoorRecord.new("http://127.0.0.1:1")
    taken = take_over(parts_of(store).tip, ELSEWHERE, door=record.digest)
    doors.answers[record.url] = [7]
    monkeypatch.setattr(clock, "sleep", lambda seconds: put_record(store, record, taken.epoch))
    link.open(starts=False, timeout_s=60)
    assert link.url == record.url


def test_one_that_does_not_answer_in_time_is_told_with_its_address_and_what_to_do(
    store: ObjectStore, doors: _Doors, link: Link, clock: SleepersClock
) -> None:
    serve(store, 1)
    with pytest.raises(Unreachable, match=r"10\.0\.0\.1:6379.*up --take-over.*recover --take-over") as gone:
        link.open(starts=True, timeout_s=60)
    assert gone.value.facts["address"] == "10.0.0.1:6379"
    assert 30 < clock.now_s <= 60


@pytest.mark.parametrize(
    "refused", [LineOwned("this graph is a copy"), NotFound("not that branch"), GraphGone("gone")],
    ids=lambda error: error.kind,
)  # fmt: skip
def test_what_it_says_of_this_client_or_this_graph_is_told_at_once(
    store: ObjectStore, doors: _Doors, link: Link, clock: SleepersClock, refused: OmnirayError
) -> None:
    doors.answers[serve(store, 1)] = [refused]
    with pytest.raises(type(refused)):
        link.open(starts=True, timeout_s=60)
    assert (clock.now_s, len(doors.closed)) == (0, 1)


def test_a_graph_that_is_gone_has_no_coordinator(store: ObjectStore, doors: _Doors, link: Link) -> None:
    url = serve(store, 1)
    shutil.rmtree(store.uri)
    with pytest.raises(GraphGone):
        link.open(starts=True, timeout_s=60)
    assert (url, "newest") not in doors.called


# Started


def test_where_none_serves_none_is_found_unless_it_may_be_started(link: Link, started: list[Any]) -> None:
    with pytest.raises(Unreachable, match="no coordinator serves this graph"):
        link.open(starts=False, timeout_s=60)
    assert started == []


def test_where_none_serves_one_is_started_and_found(
    store: ObjectStore, doors: _Doors, link: Link, started: list[Any]
) -> None:
    doors.answers["http://127.0.0.1:1"] = [7]
    started.append(lambda: serve(store, 1))
    link.open(starts=True, timeout_s=60)
    assert link.url == "http://127.0.0.1:1"


def test_the_second_client_to_find_none_waits_for_the_one_that_the_first_starts(
    store: ObjectStore, doors: _Doors, link: Link, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is its turn when that one serves: it must look again, and start none."""
    doors.answers["http://127.0.0.1:1"] = [7]
    monkeypatch.setattr(starting, "refuse_without_ray", lambda: serve(store, 1))
    link.open(starts=True, timeout_s=60)
    assert link.url == "http://127.0.0.1:1"
    assert started == []


def test_one_that_is_known_to_be_dead_gets_a_successor_after_ray_had_its_time(
    store: ObjectStore, doors: _Doors, link: Link, started: list[Any], clock: SleepersClock
) -> None:
    serve(store, 1, owner=DEAD)
    doors.answers["http://127.0.0.1:2"] = [7]
    started.append(lambda: serve(store, 2))
    link.open(starts=True, timeout_s=60)
    assert link.url == "http://127.0.0.1:2"
    assert clock.now_s > PATIENCE_S, "Ray may be restarting it"


def test_what_keeps_one_from_being_started_is_told(link: Link, started: list[Any]) -> None:
    def fail() -> None:
        raise Unreachable("the coordinator ended with exit code 1 before it served")

    started.append(fail)
    with pytest.raises(Unreachable, match="exit code 1"):
        link.open(starts=True, timeout_s=60)


# Found again


@pytest.fixture
def opened(store: ObjectStore, doors: _Doors, link: Link) -> Link:
    """A link to a coordinator that has answered."""
    doors.answers[serve(store, 1)] = [7]
    link.open(starts=False, timeout_s=60)
    return link


def test_a_successor_is_found_by_the_line(store: ObjectStore, doors: _Doors, opened: Link) -> None:
    lost, url = opened.wire, serve(store, 2)
    doors.answers[url] = [9]
    opened.found_again(lost, 60)
    assert opened.url == url
    assert doors.closed == ["http://127.0.0.1:1"]


def test_who_comes_second_takes_what_another_thread_has_found(store: ObjectStore, doors: _Doors, opened: Link) -> None:
    lost, url = opened.wire, serve(store, 2)
    doors.answers[url] = [9]
    opened.found_again(lost, 60)
    calls = len(doors.called)
    opened.found_again(lost, 60)
    assert (opened.url, len(doors.called)) == (url, calls)


def test_who_has_less_time_does_not_wait_for_another_thread_that_looks(
    store: ObjectStore, doors: _Doors, opened: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a write with a short time-out waits as long as one with a long one."""
    lost, url = opened.wire, serve(store, 2)
    looks, told = threading.Event(), threading.Event()
    find = Link._found

    def found(self: Link, deadline: float) -> Wire | None:
        looks.set()
        assert told.wait(60)
        return find(self, deadline)

    monkeypatch.setattr(Link, "_found", found)
    doors.answers[url] = [9]
    patient = threading.Thread(target=opened.found_again, args=(lost, 60))
    patient.start()
    assert looks.wait(60)
    with pytest.raises(Unreachable, match="no other is found yet"):
        opened.found_again(lost, 0.01)
    told.set()
    patient.join(60)
    assert opened.url == url


def test_one_that_was_taken_down_is_not_started_again_by_its_clients(
    store: ObjectStore, opened: Link, started: list[Any]
) -> None:
    """They would undo 'omniray down'."""
    take_over(parts_of(store).tip, EMBEDDED)
    with pytest.raises(LineOwned, match="was taken down") as refused:
        opened.found_again(opened.wire, 60)
    assert refused.value.facts["owner"] == EMBEDDED
    assert started == []


def test_one_that_died_is_started_again(store: ObjectStore, doors: _Doors, opened: Link, started: list[Any]) -> None:
    serve(store, 3, owner=DEAD)
    doors.answers["http://127.0.0.1:2"] = [9]
    started.append(lambda: serve(store, 2))
    opened.found_again(opened.wire, 60)
    assert opened.url == "http://127.0.0.1:2"


def test_a_link_that_finds_nobody_keeps_its_wire(store: ObjectStore, opened: Link) -> None:
    """It is asked until the time-out: it may come back."""
    lost = opened.wire
    serve(store, 2)
    with pytest.raises(Unreachable):
        opened.found_again(lost, 1)
    assert opened.wire is lost


# Calls


@pytest.mark.parametrize(
    "failed", [SILENT, Unauthenticated("the secret of before"), Fenced("this life has ended")],
    ids=lambda error: error.kind,
)  # fmt: skip
def test_a_call_is_made_again_to_the_coordinator_that_has_followed(
    store: ObjectStore, doors: _Doors, opened: Link, failed: OmnirayError
) -> None:
    doors.answers[opened.url] = [failed]
    url = serve(store, 2)
    doors.answers[url] = [9, 10]
    assert opened.call(FLUSH, 60) == 10
    assert doors.called[-2:] == [(url, "newest"), (url, "flush")]


@pytest.mark.parametrize(
    "failed", [StorageError("the disk is full"), OutcomeUnknown("open", txn_id=""), NotFound("no such table")],
    ids=lambda error: error.kind,
)  # fmt: skip
def test_an_error_of_the_call_itself_is_told_at_once(doors: _Doors, opened: Link, failed: OmnirayError) -> None:
    doors.answers[opened.url] = [failed]
    with pytest.raises(type(failed)):
        opened.call(STATUS, 60)
    assert doors.called[-1] == (opened.url, "status")


def test_a_call_to_one_that_was_taken_down_says_so(store: ObjectStore, doors: _Doors, opened: Link) -> None:
    doors.answers[opened.url] = [SILENT]
    take_over(parts_of(store).tip, EMBEDDED)
    with pytest.raises(LineOwned, match="was taken down"):
        opened.call(NEWEST, 60)


def test_no_patience_is_had_where_the_ray_of_a_dead_coordinator_is_gone_from_this_machine(
    store: ObjectStore, doors: _Doors, link: Link, started: list[Any], clock: SleepersClock
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    gone = replace(Incarnation.parse(DEAD), address=address)
    serve(store, 1, owner=str(gone))
    doors.answers["http://127.0.0.1:2"] = [7]
    started.append(lambda: serve(store, 2))
    link.open(starts=True, timeout_s=60)
    assert link.url == "http://127.0.0.1:2"
    assert clock.now_s < PATIENCE_S


@pytest.mark.parametrize(
    ("given", "environment", "chosen"),
    [(None, None, "local"), ("auto", None, "auto"), (None, "10.0.0.1:6379", None)],
)
def test_a_coordinator_that_a_client_starts_joins_no_ray_that_the_user_has_not_named(
    monkeypatch: pytest.MonkeyPatch, given: str | None, environment: str | None, chosen: str | None
) -> None:
    """It would hand the options of the store to somebody else's processes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    assert starting._chosen(Terms("/graph", None, given)).address == chosen
