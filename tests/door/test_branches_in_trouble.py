"""Branches that a coordinator hosts, and what goes wrong with one: who is told what of it, and who is not held up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import incarnations as incarnations_module
from omniray.coordinator.client import prepared_load
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.client.link import Link
from omniray.coordinator.client.waits import Waits
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import Call, RepairTerms
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    BranchGone,
    Fenced,
    NotFound,
    OutcomeUnknown,
    StorageError,
    Unreachable,
    Withdrawn,
)
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches import branches as branches_module
from omniray.engine.branches.starts import StartOf, start_of_branch
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.writes.write_requests import Request
from tests.coordination import TIMEOUT_S
from tests.door.hosting import A, B, Gate, add, hosted, let_idle_go, newest_on, people, the_hosted, wait_until
from tests.housing import Housed

ROWS_OF_A_PREPARED_LOAD = 17_000

# A branch that is deleted under its writers


class SlowAnswers:
    """A line whose next object lands at once, while the answer to its put keeps its writer waiting."""

    def __init__(self, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, put = Gate(), CommitLog.put

        def put_and_wait(log: CommitLog, obj: CommitObject) -> Answer:
            answer = put(log, obj)
            if obj.line == line and obj.commits and not self.gate.reached.is_set():
                self.gate.wait()
            return answer

        monkeypatch.setattr(CommitLog, "put", put_and_wait)


def test_a_write_that_has_landed_is_told_so_although_its_branch_is_deleted_before_the_store_says_it(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(client, "bob", A)
    slow = SlowAnswers(the_hosted(coordinator, A).line, monkeypatch)
    writing = pool.submit(add, client, "cid", A)
    assert slow.gate.reached.wait(TIMEOUT_S)
    with connect_to_serving(store.uri, None) as other:
        other.merge(A, delete_source=True)
    try:
        assert writing.result(TIMEOUT_S).affected_nodes == 1
    finally:
        slow.gate.opened.set()
    assert people(client) == ["ann", "bob", "cid"]
    with pytest.raises(NotFound):
        add(client, "dan", A)


def test_a_write_on_a_branch_that_was_deleted_is_in_doubt_where_its_line_can_not_be_read(
    coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, "bob", A)
    branch = the_hosted(coordinator, A)
    slow = SlowAnswers(branch.line, monkeypatch)
    writing = pool.submit(add, client, "cid", A, timeout_s=5.0)
    assert slow.gate.reached.wait(TIMEOUT_S)

    def fail(*_: object) -> bool:
        raise StorageError("the line can't be read")

    monkeypatch.setattr(branch.publisher.steps, "is_in", fail)
    try:
        client.delete_branch(A)
        with pytest.raises(OutcomeUnknown):
            writing.result(TIMEOUT_S)
    finally:
        slow.gate.opened.set()


# A write that is reported as not committed


def test_a_first_try_on_a_branch_that_was_reported_as_not_committed_does_not_land_later(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: it is held up before it is sent, until another publisher of the branch has to judge it."""
    txn_id, gate, writing = new_ulid(), Gate(), Wire.writing

    def write_late(wire: Wire, request: Request, timeout_s: float) -> Waits[WriteAnswer]:
        if request.header.commit_id == txn_id:
            gate.wait()
        return (yield from writing(wire, request, timeout_s))

    monkeypatch.setattr(Wire, "writing", write_late)
    late = pool.submit(add, client, "ghost", A, txn_id=txn_id)
    assert gate.reached.wait(TIMEOUT_S)
    with connect_to_serving(store.uri, None) as other:
        assert not other.outcome(txn_id, branch=A).committed
        add(other, "bob", A)
        let_idle_go(coordinator)
        gate.opened.set()
        with pytest.raises(Withdrawn):
            late.result(TIMEOUT_S)
        assert people(other, A) == ["ann", "bob"]


def test_a_client_knows_the_number_of_a_branch_before_its_first_write_and_after_it_has_connected_anew(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    with client._on(A) as on:
        assert on.link.wire.newest == newest_on(store, A).seq > 0
        add(client, "bob", A)
        known = on.link.wire.newest
        assert known == newest_on(store, A).seq
        lost = on.link.wire
        on.link.found_again(lost, TIMEOUT_S)
        assert on.link.wire.root is client._link.wire is not lost.root
        assert on.link.wire.newest == known


LOST = {
    "merge": lambda client, txn_id: client.merge(A, txn_id=txn_id),
    "revert": lambda client, txn_id: client.revert(the_load(client), txn_id=txn_id),
    "create": lambda client, txn_id: client.create_branch("new", txn_id=txn_id),
    "rename": lambda client, txn_id: client.rename_branch(A, "new", txn_id=txn_id),
    "delete": lambda client, txn_id: client.delete_branch(B, txn_id=txn_id),
}


def the_load(client: omniray.Client) -> str:
    (loaded,) = (one.commit_id for one in client.history() if one.kind == "Load")
    return loaded


@pytest.mark.parametrize("verb", LOST)
def test_a_verb_whose_first_try_was_lost_and_reported_as_not_committed_is_not_carried_out_by_the_second_one(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    add(client, "bob", A)
    txn_id, gate, lost = new_ulid(), Gate(), list[str]()
    calling, found_again = Wire.calling, Link.found_again

    def lose_the_first(wire: Wire, call: Call, timeout_s: float, arguments: Any = None) -> Waits[Any]:
        if getattr(arguments, "txn_id", "") == txn_id and call is not calls.OUTCOME and not lost:
            lost.append(call.name)
            raise Unreachable("the publisher died before it did anything", url=wire.url)
        return (yield from calling(wire, call, timeout_s, arguments))

    def find_late(link: Link, gone: Wire, timeout_s: float) -> None:
        gate.wait()
        found_again(link, gone, timeout_s)

    monkeypatch.setattr(Wire, "calling", lose_the_first)
    monkeypatch.setattr(Link, "found_again", find_late)
    doing = pool.submit(LOST[verb], client, txn_id)
    assert gate.reached.wait(TIMEOUT_S)
    before = newest_on(store, "main").seq
    with connect_to_serving(store.uri, None) as other:
        assert not other.outcome(txn_id).committed
        gate.opened.set()
        with pytest.raises(Withdrawn):
            doing.result(TIMEOUT_S)
        assert newest_on(store, "main").seq == before + 1, "the report is all that was put"
        assert [one.name for one in other.branches()] == ["main", A, B]
    LOST[verb](client, txn_id)
    assert client.outcome(txn_id).committed


def test_a_prepared_load_that_was_reported_as_not_committed_between_two_judgements_does_not_land(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    txn_id, gate, judge, judged = new_ulid(), Gate(), prepared_load._judged, list[int]()
    with connect_to_serving(store.uri, None) as other:

        def overtaken_once(*given: Any) -> Any:
            judgement = judge(*given)
            judged.append(1)
            if len(judged) == 1:
                add(other, "mover")
            else:
                gate.wait()
            return judgement

        monkeypatch.setattr(prepared_load, "_judged", overtaken_once)
        rows = [{"name": f"p{n}"} for n in range(ROWS_OF_A_PREPARED_LOAD)]
        loading = pool.submit(client.load, rows, type="Person", txn_id=txn_id)
        assert gate.reached.wait(TIMEOUT_S)
        assert not other.outcome(txn_id).committed
        client.load([{"name": "oslo"}], type="City")  # it hears of the newest number
        gate.opened.set()
        with pytest.raises(Withdrawn):
            loading.result(TIMEOUT_S)
        assert people(other) == ["ann", "mover"]


# A publisher that ends while somebody waits for its rounds


@pytest.mark.parametrize("verb", ["create", "repair"])
def test_a_verb_that_waited_for_the_rounds_of_a_publisher_that_ended_is_not_carried_out_for_it(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A new life of the publisher may have begun, whose rounds do not wait."""
    first = coordinator.incarnations.publisher
    held, ends = first.held, list[bool]()

    @contextmanager
    def held_too_late() -> Iterator[None]:
        with held():
            if not ends:
                ends.append(True)
                first.end(OutcomeUnknown("the connection is gone", txn_id=""))
                wait_until(lambda: coordinator.incarnations.publisher is not first)
            yield

    monkeypatch.setattr(first, "held", held_too_late)
    monkeypatch.setattr(first, "steps", None)  # nobody works with the steps of the first one any more
    terms = RepairTerms(adopt=True)
    if verb == "create":
        client.create_branch("new")
    else:
        with pytest.raises(Fenced):
            coordinator.incarnations.repair(terms)
    assert ends
    add(client, "bob")


# Where a branch begins


class SlowLookUp:
    """Where a branch begins is found at once, and told when the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = Gate()

        def find_slowly(*given: Any) -> StartOf:
            found = start_of_branch(*given)
            self.gate.wait()
            return found

        for module in (branches_module, incarnations_module):
            monkeypatch.setattr(module, "start_of_branch", find_slowly)


def test_main_is_written_to_while_it_is_looked_up_where_a_new_branch_begins(
    coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find a commit, every branch's line and lineage may have to be read."""
    start, slow = add(client, "bob", A).commit_id, SlowLookUp(monkeypatch)
    creating = pool.submit(client.create_branch, "new", start)
    assert slow.gate.reached.wait(TIMEOUT_S)
    add(client, "cid")
    slow.gate.opened.set()
    assert creating.result(TIMEOUT_S).start == start
    assert people(client, "new") == ["ann", "bob"]


def test_a_branch_does_not_begin_on_one_that_was_deleted_since_its_head_was_looked_up(
    coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowLookUp(monkeypatch)
    creating = pool.submit(client.create_branch, "new", A)
    assert slow.gate.reached.wait(TIMEOUT_S)
    client.delete_branch(A)
    slow.gate.opened.set()
    with pytest.raises(BranchGone, match="was deleted meanwhile"):
        creating.result(TIMEOUT_S)
    assert [one.name for one in client.branches()] == ["main", B]


# A branch that can't leave


def test_a_branch_that_could_not_be_let_go_serves_again_whatever_the_failure_was(
    coordinator: Housed, client: omniray.Client
) -> None:
    """Fault: the reconciler's actor is away, which Ray tells with an error of its own."""
    add(client, "bob", A)
    branch = the_hosted(coordinator, A)

    def fail() -> None:
        raise ValueError("Failed to look up actor with name 'reconciler'")

    with pytest.MonkeyPatch.context() as failing:
        failing.setattr(branch.reconciler, "close", fail)
        let_idle_go(coordinator)
    wait_until(lambda: branch.is_serving)
    add(client, "cid", A)
    assert people(client, A) == ["ann", "bob", "cid"]
    let_idle_go(coordinator)
    assert hosted(coordinator) == []
