"""The reconciler's actor without Ray: one reconciler for each line that its publisher serves, and for no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import reconciler_actor
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.reconciler import NotServed, Reconciler
from omniray.coordinator.actors.reconciler_actor import ReconcilerActor, RemoteReconciler
from omniray.engine.base.errors import BranchGone, OmnirayError, StorageError
from omniray.engine.base.failpoints import Point
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Remark, follow_with
from omniray.engine.line.owner import take_over
from omniray.engine.recovery import recoverer
from omniray.engine.recovery.recoverer import GRACE_S, RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from tests.coordination import TIMEOUT_S
from tests.graphs import create_store, main_of
from tests.stores import Root
from tests.unit.test_two_lines import left_on

OWNER = "01K9ZQ5T7Z0000000000000000|elsewhere|7|1|10.0.0.1:6379"
SIDE, OTHER = "side", "other"


class FakePublisher:
    """A publisher that serves some lines: it answers at once, as Ray's handles of it would."""

    def __init__(self, store: ObjectStore, *names: str) -> None:
        self.tips = {}
        self.store, self.hosts = store, list[str]()
        for name in names:
            self.serve(name)

    def serve(self, name: str) -> str:
        branch = open_branch(self.store, name)
        take_over(branch.tip, OWNER)
        self.tips[branch.branch.ulid] = branch.tip
        return branch.branch.ulid

    def __getattr__(self, method: str) -> Any:
        answer = getattr(self, f"_{method}")
        return SimpleNamespace(remote=lambda *arguments: answer(*arguments))

    def _lines(self) -> list[str]:
        return [line for line in self.tips if line != main_of(self.store).ulid]

    def _newest(self, line: str) -> CommitObject | OmnirayError:
        return self.tips[line].refresh() if line in self.tips else NotServed("not hosted", line=line)

    def _remark(self, line: str, remark: Remark) -> None:
        self.tips[line].extend(lambda newest: follow_with(newest, remark))

    def _host(self, line: str) -> None:
        self.hosts.append(line)
        (name,) = (n for n, b in open_branch(self.store).tip.newest.bindings.items() if b.ulid == line)
        self.serve(name)


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    store = create_store(disk)
    with omniray.open(store.uri) as graph:
        graph.load([{"name": "ann"}], type="Person")
        for name in (SIDE, OTHER):
            graph.create_branch(name)
            graph.load([{"name": name}], type="Person", branch=name)
    return store


Begin = Callable[..., ReconcilerActor]


@pytest.fixture
def begin(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins an actor whose publisher is this one; all are closed in the end."""
    begun: list[ReconcilerActor] = []

    def actor(publisher: FakePublisher) -> ReconcilerActor:
        ray = SimpleNamespace(get=lambda answer, timeout=0: answer, exceptions=SimpleNamespace(RayError=KeyError))
        monkeypatch.setattr(reconciler_actor, "ray", lambda: ray)
        monkeypatch.setattr(reconciler_actor, "find", lambda name: publisher)
        graph_id = main_of(store).ulid
        begun.append(ReconcilerActor(Place(graph_id), Storage(store.uri, None, graph_id)))
        return begun[-1]

    yield actor
    for one in begun:
        for line in list(one._reconcilers):
            one.close(line)


def line_of(store: ObjectStore, name: str) -> str:
    return open_branch(store, name, read_only=True).branch.ulid


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(int(TIMEOUT_S / 0.01)):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never")


def test_each_line_has_a_reconciler_which_begins_when_the_line_is_mentioned(store: ObjectStore, begin: Begin) -> None:
    publisher = FakePublisher(store, "main")
    actor = begin(publisher)
    main, side = main_of(store).ulid, publisher.serve(SIDE)
    assert set(actor._reconcilers) == {main}
    newest = publisher.tips[side].refresh()
    actor.notice(encode(newest), newest.op_id)
    assert set(actor._reconcilers) == {main, side}
    assert actor.flush(side).through == newest.seq
    assert actor.flush(main).through == publisher.tips[main].refresh().seq
    assert open_branch(store, SIDE).manifest.folded().through == newest.seq, "in a dataset of its own"


def test_an_actor_that_was_restarted_has_the_lines_that_are_served_again(store: ObjectStore, begin: Begin) -> None:
    publisher = FakePublisher(store, "main", SIDE, OTHER)
    actor = begin(publisher)
    wait_until(lambda: set(actor._reconcilers) == set(publisher.tips))


def test_a_line_that_is_let_go_is_finished_and_forgotten(store: ObjectStore, begin: Begin) -> None:
    publisher = FakePublisher(store, "main", SIDE)
    actor = begin(publisher)
    side = line_of(store, SIDE)
    actor.report(side)
    actor.close(side)
    assert side not in actor._reconcilers
    assert open_branch(store, SIDE).manifest.folded().through == publisher.tips[side].newest.seq
    actor.close(side)


def test_a_reconciler_whose_line_is_not_served_any_more_ends_by_itself(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the publisher died, and its successor has not opened the branch: nobody says so."""
    publisher = FakePublisher(store, "main", SIDE)
    actor = begin(publisher)
    side = line_of(store, SIDE)
    actor.report(side)
    del publisher.tips[side]
    actor._reconcilers[side]._work()
    wait_until(lambda: side not in actor._reconcilers)
    with pytest.raises(NotServed):
        actor.flush(side)


def test_a_line_that_is_slow_to_open_holds_no_other_up(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = FakePublisher(store, "main")
    actor = begin(publisher)
    side, other = publisher.serve(SIDE), publisher.serve(OTHER)
    opened, reached, go = actor._opener.opened, threading.Event(), threading.Event()

    def open_slowly(line: str) -> Any:
        if line == side:
            reached.set()
            assert go.wait(TIMEOUT_S)
        return opened(line)

    monkeypatch.setattr(actor._opener, "opened", open_slowly)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(actor.flush, side)
        assert reached.wait(TIMEOUT_S)
        actor.flush(other)
        actor.flush(main_of(store).ulid)
        assert not slow.done()
        go.set()
        slow.result(TIMEOUT_S)


# What was left on other branches


@pytest.fixture
def all_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every writer of an operation that is there has died."""
    monkeypatch.setattr(recoverer, "is_known_dead", lambda process: True)


@pytest.mark.usefixtures("all_are_dead")
def test_what_was_left_on_an_embedded_branch_is_recovered_and_the_branch_stays_everybody_s(
    store: ObjectStore, begin: Begin
) -> None:
    publisher = FakePublisher(store, "main")
    actor = begin(publisher)
    left = left_on(store, SIDE, Point.C_BEFORE_PUT)
    report = actor.recover(main_of(store).ulid, GRACE_S)
    assert left in report.rolled_back or left not in open_branch(store).sidecars.listed(), "or by its own loop"
    assert open_branch(store, SIDE).tip.newest.owner == EMBEDDED
    assert publisher.hosts == []


def test_a_writer_that_may_live_is_taken_for_dead_after_the_grace_that_was_asked_for(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recoverer, "is_known_dead", lambda process: False)
    lefts = {left_on(store, name, Point.C_BEFORE_PUT) for name in ("main", SIDE)}
    actor = begin(FakePublisher(store, "main"))
    assert actor.recover(main_of(store).ulid, GRACE_S).rolled_back == ()
    assert set(actor.recover(main_of(store).ulid, 1e-6).rolled_back) == lefts


@pytest.mark.usefixtures("all_are_dead")
def test_what_was_left_on_a_branch_of_a_dead_coordinator_is_recovered_by_opening_it(
    store: ObjectStore, begin: Begin
) -> None:
    publisher = FakePublisher(store, "main")
    actor = begin(publisher)
    left = left_on(store, SIDE, Point.C_BEFORE_PUT)
    take_over(open_branch(store, SIDE).tip, OWNER.replace("elsewhere", "the-dead-one"))
    actor.recover(main_of(store).ulid, GRACE_S)
    assert line_of(store, SIDE) in publisher.hosts
    wait_until(lambda: left not in open_branch(store).sidecars.listed())


@pytest.mark.usefixtures("all_are_dead")
def test_a_branch_that_can_not_be_recovered_keeps_no_other_from_it_and_is_told_of_in_the_end(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = begin(FakePublisher(store, "main"))
    broken, *others = sorted(line_of(store, name) for name in (SIDE, OTHER))
    recovered: list[str] = []

    def recover(line: str, grace_s: float) -> RecoveryReport:
        recovered.append(line)
        if line == broken:
            raise StorageError("this branch is broken")
        return RecoveryReport(rolled_back=("01",))

    monkeypatch.setattr(actor, "_recovered", recover)
    monkeypatch.setattr(Reconciler, "left_elsewhere", lambda self, grace_s: {broken, *others})
    with pytest.raises(StorageError, match="this branch is broken"):
        actor.recover(main_of(store).ulid, GRACE_S)
    assert recovered == [broken, *others]


def test_so_many_branches_are_recovered_at_a_time_and_the_others_after_them(
    store: ObjectStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator of hundreds of branches may have died."""
    actor, go, recovered = begin(FakePublisher(store, "main")), threading.Event(), set[str]()

    def recover(line: str) -> None:
        assert go.wait(TIMEOUT_S)
        recovered.add(line)

    def at_once() -> int:
        return sum(one.name.startswith("omniray-recover-branch") for one in threading.enumerate())

    monkeypatch.setattr(actor, "_recovered", recover)
    lines = {new_ulid() for _ in range(50)}
    for line in lines:
        actor._recover_soon(line)
    assert at_once() == reconciler_actor.RECOVERED_AT_ONCE
    go.set()
    wait_until(lambda: recovered == lines)


def test_a_line_that_was_let_go_leaves_nothing_behind(store: ObjectStore, begin: Begin) -> None:
    publisher = FakePublisher(store, "main", SIDE)
    actor = begin(publisher)
    side = line_of(store, SIDE)
    actor.flush(side)
    actor.close(side)
    wait_until(lambda: not actor._turns._running and not actor._turns._waiting)


@pytest.mark.usefixtures("all_are_dead")
def test_main_s_reconciler_has_other_branches_recovered_by_itself(store: ObjectStore, begin: Begin) -> None:
    left = left_on(store, SIDE, Point.C_BEFORE_PUT)
    begin(FakePublisher(store, "main"))
    wait_until(lambda: left not in open_branch(store).sidecars.listed())


def test_a_sweep_goes_through_the_owner_of_a_branch_that_has_one(store: ObjectStore, begin: Begin) -> None:
    publisher = FakePublisher(store, "main", SIDE)
    actor = begin(publisher)
    swept = actor.sweep(0.0, False)
    for name in ("main", SIDE, OTHER):
        assert open_branch(store, name).tip.newest.swept_before_us == swept.swept_before_us > 0
    assert publisher.hosts == [line_of(store, SIDE)]
    assert open_branch(store, OTHER).tip.newest.owner == EMBEDDED


# Telling


def test_a_branch_that_is_gone_is_not_told_of_for_ever(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class TaskFailed(Exception):
        cause = BranchGone("it was deleted")

    def fail(answer: Any, timeout: float) -> Any:
        raise TaskFailed

    ray = SimpleNamespace(get=fail, exceptions=SimpleNamespace(RayError=TaskFailed, RayTaskError=TaskFailed))
    monkeypatch.setattr(reconciler_actor, "ray", lambda: ray)
    newest = open_branch(store, SIDE).tip.newest
    graph_id = main_of(store).ulid
    remote = RemoteReconciler(Place(graph_id), Storage(store.uri, None, graph_id), newest.line, lambda _: None)
    remote._actor = SimpleNamespace(
        notice=SimpleNamespace(remote=lambda *_: None), close=SimpleNamespace(remote=lambda *_: None)
    )
    with pytest.raises(BranchGone):
        remote._told(newest, newest.op_id)
    remote.let_go()
