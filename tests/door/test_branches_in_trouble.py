"""Branches that a coordinator hosts, and what goes wrong with one: who is told what of it, and who is not held up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import omniray
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.client.waits import Waits
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import BranchGone, OutcomeUnknown, StorageError, Withdrawn
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.writes.write_requests import Request
from tests.coordination import TIMEOUT_S
from tests.door.hosting import A, Gate, add, let_idle_go, newest_on, people, the_hosted
from tests.housing import Housed

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
    with pytest.raises(BranchGone):
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
