"""Branches that a coordinator hosts, and what goes wrong with one: who is told what of it, and who is not held up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import omniray
from omniray.coordinator.client.client import connect_to_serving
from omniray.engine.base.errors import BranchGone, OutcomeUnknown, StorageError
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import Answer, ObjectStore
from tests.coordination import TIMEOUT_S
from tests.door.hosting import A, Gate, add, people, the_hosted
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
