"""A coordinator that hosts branches beside main, without Ray, reached by clients as they are: over HTTP."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import house as house_module
from omniray.coordinator.actors import line_service
from omniray.coordinator.actors.reconciler import OwnersEnd
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import OfWrite, StageTerms
from omniray.engine.base.errors import (
    BranchExists,
    BranchGone,
    Conflict,
    Fenced,
    GraphGone,
    InputError,
    KeyConflict,
    LineOwned,
    MergeConflicts,
    NotFound,
    OutcomeUnknown,
    PayloadMismatch,
    StorageError,
    Unreachable,
)
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import EMBEDDED, close
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.maintenance.sweep import Sweeper
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.part_message import decode_part, encode_part
from tests.coordination import TIMEOUT_S, Sender
from tests.door.hosting import (
    A,
    B,
    Gate,
    add,
    hosted,
    is_embedded,
    let_idle_go,
    newest_on,
    people,
    the_hosted,
    wait_until,
)
from tests.graphs import INSERT, parts_of, parts_on
from tests.housing import Housed, housed

# Coming


def test_writes_to_several_branches_land_on_theirs_and_nowhere_else(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    client.mutate(INSERT, {"name": "cid", "age": 1}, branch=B)
    add(client, "dan")
    with pytest.raises(KeyConflict):
        add(client, "bob", A)
    assert (people(client), people(client, A), people(client, B)) == (["ann", "dan"], ["ann", "bob"], ["ann", "cid"])
    assert hosted(coordinator) == [A, B]
    assert newest_on(store, A).owner == newest_on(store, "main").owner
    assert newest_on(store, A).policy == {}, "the door's record is main's"
    assert [entry.kind for entry in client.history(branch=A)] == ["Load", "Load", "Init"]


def test_every_way_to_write_takes_a_branch(client: omniray.Client) -> None:
    with client.writer(rows=1, type="Person", branch=A) as writer:
        writer.write({"name": "bob"})
    client.submit_load([{"name": "cid"}], type="Person", branch=A).result(TIMEOUT_S)
    client.submit_mutate(INSERT, {"name": "dan", "age": 1}, branch=A).result(TIMEOUT_S)
    add(client, "eve", A, message="a word")
    assert people(client, A) == ["ann", "bob", "cid", "dan", "eve"]
    assert people(client) == ["ann"]


def test_whoever_only_looks_opens_no_branch(store: ObjectStore, coordinator: Housed, client: omniray.Client) -> None:
    people(client, A)
    client.history(branch=A)
    seen = client.status(branch=A)
    client.branches()
    with client._on(A) as on:
        on.link.wire.call(calls.ABANDON, TIMEOUT_S, OfWrite(new_ulid()))
        on.link.wire.call(calls.HOLD, TIMEOUT_S, OfWrite(new_ulid()))
    assert (seen.branch, seen.owner, seen.seq, seen.hosted) == (A, EMBEDDED, 1, ())
    assert hosted(coordinator) == []
    assert is_embedded(store, A) == [True]


def test_the_status_tells_of_one_branch_and_names_those_that_are_open(
    coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    add(client, "cid", A)
    of_a, of_main = client.status(branch=A), client.status()
    assert (of_a.branch, of_a.commits, of_a.hosted) == (A, 2, (A,))
    assert (of_main.branch, of_main.commits, of_main.hosted) == ("main", 0, (A,))
    assert "omniray_commits_total 2" in coordinator.house.metrics(), "metrics are over all branches"
    assert "omniray_branches 2" in coordinator.house.metrics()


def test_a_name_is_resolved_once_and_the_handle_stays_with_its_branch(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    with connect_to_serving(store.uri, None) as other:
        other.rename_branch(A, "old")
        other.create_branch(A)
        add(client, "cid", A)
        assert (people(other, "old"), people(other, A)) == (["ann", "bob", "cid"], ["ann"])


def test_a_branch_that_there_is_not_is_named_and_others_are_suggested(client: omniray.Client) -> None:
    with pytest.raises(NotFound, match="no branch 'team/c'"):
        add(client, "bob", "team/c")


def test_a_write_with_an_id_lands_once_on_its_branch(client: omniray.Client) -> None:
    txn_id = new_ulid()
    assert [add(client, "bob", A, txn_id=txn_id).repeated for _ in range(2)] == [False, True]
    with pytest.raises(PayloadMismatch):
        add(client, "cid", A, txn_id=txn_id)
    assert client.outcome(txn_id, branch=A).committed
    assert not client.outcome(txn_id).committed, "main knows nothing of it"
    assert people(client, A) == ["ann", "bob"]


def test_upkeep_of_a_branch_is_handed_to_its_own_reconciler(coordinator: Housed, client: omniray.Client) -> None:
    add(client, "bob", A)
    client.flush(branch=A)
    client.recover(branch=A)
    client.sweep(older_than_s=60.0, dry_run=True)
    reconciler: Any = the_hosted(coordinator, A).reconciler
    assert (reconciler.line, reconciler.asked[-2:]) == (the_hosted(coordinator, A).line, ["flush", "recover"])
    assert coordinator.reconciler.asked[-1] == ("sweep", 60.0, True), "a sweep is of the whole graph"


# Going


def test_an_idle_branch_is_handed_back_and_opened_again_by_the_next_write(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    gone = the_hosted(coordinator, A)
    let_idle_go(coordinator)
    assert (hosted(coordinator), is_embedded(store, A)) == ([], [True])
    reconciler: Any = gone.reconciler
    assert reconciler.asked[-2:] == ["close", "let go"]
    queues: Any = coordinator.incarnations.queues
    assert gone.line not in queues.branches.lines
    with omniray.open(store.uri) as graph:
        add(graph, "cid", A)
    add(client, "dan", A)
    assert people(client, A) == ["ann", "bob", "cid", "dan"]
    assert hosted(coordinator) == [A]


def test_of_more_branches_than_may_be_open_those_go_that_were_used_least_lately(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    coordinator.incarnations.hosted._open_max = 2
    client.create_branch("c")
    for name in (A, B, A, "c"):
        add(client, f"p-{new_ulid()}", name)
    wait_until(lambda: hosted(coordinator) == ["c", A])
    wait_until(lambda: is_embedded(store, B) == [True])
    add(client, "bob", B)
    assert "bob" in people(client, B)


def test_a_renamed_branch_is_shown_by_the_name_that_it_has(coordinator: Housed, client: omniray.Client) -> None:
    add(client, "bob", A)
    client.rename_branch(A, "new")
    assert client.status().hosted == ("new",)
    assert client.status(branch="new").branch == "new"


def test_a_large_load_is_staged_by_workers_for_the_branch_that_it_is_for(
    coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def stage(uri: str, options: object, graph_id: str, line: str, terms: object) -> bytes:
        asked.append(line)
        return encode_part(InputError("no worker here"))

    monkeypatch.setattr(house_module, "stage_file", stage)
    terms = StageTerms("a.csv", "proof", "append", "fail", 0)
    with client._on(A) as on:
        assert isinstance(decode_part(on.link.stage(terms, TIMEOUT_S), client.schema), InputError)
        assert asked == [on.graph.line]


def test_main_stays_however_long_nobody_writes_to_it(coordinator: Housed, client: omniray.Client) -> None:
    let_idle_go(coordinator)
    assert coordinator.incarnations.is_serving
    add(client, "bob")


def test_a_branch_with_a_write_under_way_or_a_caller_is_not_let_go(coordinator: Housed, client: omniray.Client) -> None:
    add(client, "bob", A)
    branch = the_hosted(coordinator, A)
    sender = Sender(branch.branch.schema, branch.branch.schema_hash)
    plug = sender.plug()
    under_way = branch.admit().submit(plug)
    plug.gate.wait_until_reached()
    let_idle_go(coordinator)
    assert hosted(coordinator) == [A]
    plug.gate.open()
    under_way.result(TIMEOUT_S)
    with coordinator.incarnations.hosted.used(branch.line):
        let_idle_go(coordinator)
        assert hosted(coordinator) == [A]
    let_idle_go(coordinator)
    assert hosted(coordinator) == []


def test_a_write_that_arrives_while_its_branch_is_let_go_waits_and_lands(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(client, "bob", A)
    gone, gate = the_hosted(coordinator, A), Gate()
    monkeypatch.setattr(gone.reconciler, "close", gate.wait)
    letting_go = pool.submit(let_idle_go, coordinator)
    assert gate.reached.wait(TIMEOUT_S)
    writing = pool.submit(add, client, "cid", A)
    wait_until(lambda: coordinator.incarnations.hosted._entries[gone.line].wanted is not None)
    add(client, "dan", B)
    assert not writing.done()
    gate.opened.set()
    letting_go.result(TIMEOUT_S)
    writing.result(TIMEOUT_S)
    assert people(client, A) == ["ann", "bob", "cid"]
    assert the_hosted(coordinator, A) is not gone


def test_a_branch_that_could_not_be_handed_back_goes_on_and_is_let_go_later(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no route to the store")

    add(client, "bob", A)
    with monkeypatch.context() as failing:
        failing.setattr(line_service, "release", fail)
        let_idle_go(coordinator)
    assert is_embedded(store, A) == [False]
    add(client, "cid", A)
    wait_until(lambda: the_hosted(coordinator, A).is_serving)
    let_idle_go(coordinator)
    assert (hosted(coordinator), is_embedded(store, A), people(client, A)) == ([], [True], ["ann", "bob", "cid"])


def test_a_coordinator_that_is_taken_down_hands_every_line_back(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    add(client, "cid", B)
    with connect_to_serving(store.uri, None) as other:
        client.down()
        assert is_embedded(store, "main", A, B) == [True] * 3
        for branch in (A, "main"):
            with pytest.raises((Unreachable, LineOwned), match="was taken down"):
                add(other, "dan", branch)
    with omniray.open(store.uri) as graph:
        add(graph, "eve", A)
        assert people(graph, A) == ["ann", "bob", "eve"]


def test_a_down_that_could_not_hand_one_line_back_says_so_and_may_be_asked_again(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, "bob", A)
    add(client, "cid", B)
    broken, release = the_hosted(coordinator, A).line, line_service.release

    def fail_on_one(tip: Any, owner: str) -> None:
        if tip.newest.line == broken:
            raise StorageError("no route to the store")
        release(tip, owner)

    with monkeypatch.context() as failing:
        failing.setattr(line_service, "release", fail_on_one)
        with pytest.raises(StorageError, match="no route"):
            client.down()
    assert is_embedded(store, "main", A, B) == [False, False, True]
    client.down()
    assert is_embedded(store, "main", A, B) == [True, True, True]


# Owners


def test_an_embedded_writer_is_told_the_address_while_a_branch_is_open_and_writes_itself_once_it_is_not(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    with omniray.open(store.uri) as graph:
        with pytest.raises(LineOwned) as owned:
            add(graph, "cid", A)
        assert owned.value.facts["address"] == coordinator.incarnations.address
        add(graph, "dan", B)
        let_idle_go(coordinator)
        add(graph, "cid", A)
    assert (people(client, A), people(client, B)) == (["ann", "bob", "cid"], ["ann", "dan"])


def test_a_branch_that_somebody_took_over_is_taken_again_by_the_next_write(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    first = the_hosted(coordinator, A)
    take_over(parts_on(open_branch(store, A)).tip, EMBEDDED)
    add(client, "cid", A)
    assert the_hosted(coordinator, A) is not first
    assert people(client, A) == ["ann", "bob", "cid"]


def test_a_branch_of_a_coordinator_that_died_is_taken_over_when_somebody_writes_to_it(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    dead = "01K9ZQ5T7Z0000000000000000|elsewhere|7|1|10.0.0.1:6379"
    take_over(parts_on(open_branch(store, A)).tip, dead)
    add(client, "bob", A)
    assert newest_on(store, A).owner == newest_on(store, "main").owner
    assert people(client, A) == ["ann", "bob"]


def test_a_coordinator_that_has_lost_main_opens_no_branch_and_lets_its_own_go(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    successor = str(Incarnation.new("10.0.0.2:6379"))
    take_over(parts_of(store).tip, successor)
    with pytest.raises(Fenced, match="another owner has taken this graph over"):
        coordinator.incarnations._host(newest_on(store, B).line)
    with pytest.raises((OutcomeUnknown, Unreachable)):
        add(client, "cid", timeout_s=0.5)
    wait_until(lambda: is_embedded(store, A) == [True])
    assert is_embedded(store, B) == [True]
    with pytest.raises((OutcomeUnknown, Unreachable, Fenced)):
        add(client, "dan", B, timeout_s=0.5)
    assert is_embedded(store, B) == [True]


# Trouble


def test_a_branch_whose_publisher_ended_for_an_open_fate_begins_anew_by_itself(
    coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    branch = the_hosted(coordinator, A)
    first = branch.publisher
    first.end(OutcomeUnknown("the connection is gone", txn_id=""))
    wait_until(lambda: branch.is_serving)
    assert branch.publisher is not first
    add(client, "cid", A)
    assert people(client, A) == ["ann", "bob", "cid"]


def test_a_branch_that_is_slow_to_open_holds_nobody_else_up(
    store: ObjectStore,
    coordinator: Housed,
    client: omniray.Client,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, gate, opened = newest_on(store, A).line, Gate(), coordinator.incarnations._opener.opened

    def open_slowly(line: str, **options: Any) -> Any:
        if line == slow:
            gate.wait()
        return opened(line, **options)

    monkeypatch.setattr(coordinator.incarnations._opener, "opened", open_slowly)
    writing = [pool.submit(add, client, f"slow-{n}", A) for n in range(4)]
    assert gate.reached.wait(TIMEOUT_S)
    add(client, "bob", B)
    add(client, "cid")
    assert not any(one.done() for one in writing)
    gate.opened.set()
    for one in writing:
        one.result(TIMEOUT_S)
    assert people(client, A) == ["ann", *(f"slow-{n}" for n in range(4))]


def test_a_branch_whose_look_ups_hang_holds_nobody_else_up(
    coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor
) -> None:
    add(client, "bob", A)
    gate, queues = Gate(), the_hosted(coordinator, A)._line_queues
    queues.wait = gate.wait  # type: ignore[attr-defined]
    writing = pool.submit(add, client, "cid", A)
    assert gate.reached.wait(TIMEOUT_S)
    flushing = [pool.submit(client.flush, branch=A) for _ in range(3)]
    add(client, "dan", B)
    add(client, "eve")
    client.flush(branch=B)
    assert not writing.done()
    gate.opened.set()
    writing.result(TIMEOUT_S)
    for one in flushing:
        one.result(TIMEOUT_S)


def test_a_branch_that_can_not_be_opened_is_the_trouble_of_its_own_writers(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, opened = newest_on(store, A).line, coordinator.incarnations._opener.opened

    def fail_on_one(line: str, **options: Any) -> Any:
        if line == broken:
            raise StorageError("this branch is broken")
        return opened(line, **options)

    with monkeypatch.context() as failing:
        failing.setattr(coordinator.incarnations._opener, "opened", fail_on_one)
        for _ in range(2):
            with pytest.raises(StorageError, match="this branch is broken"):
                add(client, "bob", A)
        add(client, "cid", B)
        assert hosted(coordinator) == [B]
    add(client, "bob", A)
    assert people(client, A) == ["ann", "bob"]


def test_a_bug_in_the_opening_of_a_branch_is_told_to_its_writer(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(coordinator.incarnations._opener, "opened", fail)
    with pytest.raises(omniray.OmnirayError, match="a bug in omniray kept a branch from being opened"):
        add(client, "bob", A)
    add(client, "bob")


def test_a_graph_that_is_gone_is_found_by_a_writer_of_a_branch_and_told_to_all(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    shutil.rmtree(store.uri)
    for branch in (A, None):
        with pytest.raises(GraphGone):
            add(client, "cid", branch)
    assert not coordinator.house.is_ready
    assert hosted(coordinator) == []


# Verbs of branches


def test_branches_are_created_renamed_listed_and_deleted_through_the_coordinator(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    txn_id = new_ulid()
    made = client.create_branch("new", A, actor="ann", message="why", txn_id=txn_id)
    assert (made.branch_id, made.repeated) == (txn_id, False)
    assert client.create_branch("new", A, actor="ann", message="why", txn_id=txn_id).repeated
    with pytest.raises(BranchExists):
        client.create_branch("new")
    with pytest.raises(InputError, match="invalid branch name"):
        client.create_branch("a..b")
    with pytest.raises(PayloadMismatch):
        client.create_branch("other", txn_id=txn_id)
    assert client.rename_branch("new", "newer").name == "newer"
    assert [one.name for one in client.branches()] == ["main", "newer", A, B]
    with pytest.raises(Conflict, match="branches of its own: newer"):
        client.delete_branch(A)
    client.delete_branch(A, force=True)
    assert [one.name for one in client.branches()] == ["main", B]
    add(client, "bob", B)
    assert [(one.kind, one.actor) for one in client.history(4)][:1] == [("BranchDelete", "")]


def test_a_branch_is_created_while_main_is_written(
    coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor
) -> None:
    writing = [pool.submit(add, client, f"p{n}") for n in range(8)]
    creating = [pool.submit(client.create_branch, f"b{n}") for n in range(4)]
    for one in (*writing, *creating):
        one.result(TIMEOUT_S)
    assert people(client) == ["ann", *(f"p{n}" for n in range(8))]
    for n in range(4):
        add(client, "zoe", f"b{n}")
        assert {"ann", "zoe"} <= set(people(client, f"b{n}"))


def test_a_writer_of_a_branch_that_was_deleted_is_told_so_and_its_hosting_ends(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    gone = the_hosted(coordinator, A)
    with connect_to_serving(store.uri, None) as other:
        add(other, "cid", A)
        client.delete_branch(A)
        assert hosted(coordinator) == []
        with pytest.raises(BranchGone):
            add(other, "dan", A)
        wait_until(lambda: gone.line not in coordinator.incarnations.hosted._entries)
        with pytest.raises(BranchGone):
            coordinator.incarnations._host(gone.line)
        with pytest.raises(NotFound, match="no branch"):
            add(other, "dan", A)
        client.create_branch(A)
        add(other, "eve", A)
        assert people(other, A) == ["ann", "eve"], "it is another branch"
    assert newest_on(store, A).line != gone.line


def test_a_write_that_is_under_way_when_its_branch_is_deleted_is_answered(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor
) -> None:
    """Fault: the closing object takes the number that the write was about to get. Oracle: the closed line."""
    add(client, "bob", A)
    line, gate = the_hosted(coordinator, A).line, Gate()
    with armed({Point.C_BEFORE_PUT: Action(gate.wait, nth=1)}):
        writing = pool.submit(add, client, "cid", A)
        assert gate.reached.wait(TIMEOUT_S)
        deleting = pool.submit(client.delete_branch, A)
        deleting.result(TIMEOUT_S)
        gate.opened.set()
        with pytest.raises(BranchGone):
            writing.result(TIMEOUT_S)
    assert hosted(coordinator) == []
    with pytest.raises(BranchGone):
        coordinator.incarnations._host(line)


def test_a_branch_that_another_process_closed_ends_quietly_at_the_next_write(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    """Its deletion was begun before the coordinator was, say, and finished by whoever wanted the name."""
    add(client, "bob", A)
    tip = open_branch(store, A).tip
    tip.extend(lambda newest: close(newest, op_id=new_ulid()))
    with pytest.raises(BranchGone):
        add(client, "cid", A)
    assert hosted(coordinator) == []
    add(client, "dan", B)


def test_a_deletion_that_a_dead_coordinator_has_begun_is_finished_by_the_next_one(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise StorageError("it died")

    with (
        omniray.open(store.uri) as graph,
        armed({Point.BRANCH_AFTER_MARK: Action(die, nth=1)}),
        pytest.raises(StorageError),
    ):
        graph.delete_branch(A)
    assert newest_on(store, "main").bindings[A].deleting
    with housed(store, monkeypatch):
        wait_until(lambda: A not in newest_on(store, "main").bindings)


# Merging


SET_AGE = "query age($name: String, $age: I32) { update Person set { age: $age } where name = $name }"


def test_a_merge_through_the_coordinator_lands_beside_the_target_s_writers(
    store: ObjectStore, coordinator: Housed, client: omniray.Client, pool: ThreadPoolExecutor
) -> None:
    add(client, "bob", A)
    add(client, "cid")
    txn_id = new_ulid()
    foretold = client.merge(A, preview=True)
    assert (foretold.outcome, foretold.affected_nodes) == ("merged", 1)
    writing = [pool.submit(add, client, f"p{n}") for n in range(6)]
    merged = client.merge(A, actor="ann", message="why", txn_id=txn_id)
    for one in writing:
        one.result(TIMEOUT_S)
    assert (merged.outcome, merged.commit_id, merged.repeated) == ("merged", txn_id, False)
    assert people(client) == ["ann", "bob", "cid", *(f"p{n}" for n in range(6))]
    assert client.merge(A, actor="ann", message="why", txn_id=txn_id).repeated
    assert client.merge(A).outcome == "already_up_to_date"
    (entry,) = (one for one in client.history() if one.kind == "BranchMerge")
    assert (entry.actor, entry.merged[0].line) == ("ann", newest_on(store, A).line)
    add(client, "zoe")


def test_a_merge_into_a_branch_is_carried_out_by_that_branch_s_publisher(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    add(client, "bob", A)
    add(client, "cid", B)
    add(client, "dan")
    assert client.merge(A, into=B).outcome == "merged"
    assert client.merge("main", into=B, delete_source=False).outcome == "merged"
    assert people(client, B) == ["ann", "bob", "cid", "dan"]
    add(client, "eve", B)
    fast = client.merge(B, delete_source=True)
    assert (fast.outcome, people(client)) == ("fast_forward", ["ann", "bob", "cid", "dan", "eve"])
    assert [one.name for one in client.branches()] == ["main", A]


def test_a_source_that_was_written_to_while_it_was_merged_is_kept(client: omniray.Client) -> None:
    add(client, "bob", A)
    with armed({Point.MERGE_AFTER_LEASE: Action(lambda: add(client, "late", A), nth=1)}):
        merged = client.merge(A, delete_source=True)
    assert (merged.outcome, people(client)) == ("fast_forward", ["ann", "bob"])
    assert "was written to since" in merged.source_kept
    assert people(client, A) == ["ann", "bob", "late"]
    assert client.merge(A, delete_source=True).source_kept == ""
    assert [one.name for one in client.branches()] == ["main", B]


def test_conflicts_of_a_merge_come_back_as_they_are_and_nothing_is_written(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    client.mutate(SET_AGE, {"name": "ann", "age": 1}, branch=A)
    client.mutate(SET_AGE, {"name": "ann", "age": 2})
    before = newest_on(store, "main").head
    with pytest.raises(MergeConflicts) as conflicts:
        client.merge(A)
    assert conflicts.value.facts["conflict_count"] == 1
    (found,) = conflicts.value.facts["conflicts"]
    assert (found["kind"], found["type"], found["properties"]) == ("divergent_update", "Person", ["age"])
    assert found["values"] == {"source": {"age": 1}, "target": {"age": 2}}
    assert newest_on(store, "main").head == before
    assert client.merge(A, preview=True).conflict_count == 1
    assert client.merge(A, on_conflict="theirs").outcome == "merged"
    assert client.snapshot().table("Person", ["age"])["age"].to_pylist() == [1]
    with pytest.raises(InputError, match="unknown on_conflict"):
        client.merge(A, on_conflict="both")
    with pytest.raises(InputError, match="into itself"):
        client.merge(A, into=A)
    with pytest.raises(NotFound, match="no branch"):
        client.merge("nobody")


def test_a_commit_is_reverted_through_the_coordinator_and_a_diff_shows_it(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    added = add(client, "bob", A)
    with client.diff("main", A) as diff:
        assert diff.table("Person")["id"].to_pylist() == ["bob"]
    assert client.revert(added.commit_id, branch=A, preview=True).affected_nodes == 1
    assert client.revert(added.commit_id, branch=A).outcome == "reverted"
    assert people(client, A) == ["ann"]
    with pytest.raises(NotFound, match="no part of the branch"):
        client.revert(added.commit_id)


def test_a_sweep_puts_its_barrier_through_the_branches_publishers(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    """The line of a branch that is open is extended by its publisher alone, with any owner's name on it."""
    add(client, "bob", A)
    branch = the_hosted(coordinator, A)
    main = coordinator.incarnations
    end = OwnersEnd(lambda: main.publisher.newest, lambda remark: main.publisher.remark(remark).result(TIMEOUT_S))
    side = OwnersEnd(lambda: branch.publisher.newest, lambda remark: branch.publisher.remark(remark).result(TIMEOUT_S))
    finaliser = Finaliser(main.branch)
    try:
        sweeper = Sweeper(main.branch, end, finaliser, main._owner, lambda line: side if line == branch.line else None)
        swept = sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=3600.0)
    finally:
        finaliser.close()
    for name in ("main", A, B):
        assert newest_on(store, name).swept_before_us == swept.swept_before_us > 0
    assert not is_embedded(store, A)[0]
    add(client, "cid", A)


def test_a_name_leads_a_client_to_the_branch_that_has_it_after_its_own_verbs(client: omniray.Client) -> None:
    add(client, "bob", A)
    client.rename_branch(A, "kept")
    client.create_branch(A)
    assert (people(client, A), people(client, "kept")) == (["ann"], ["ann", "bob"])
    add(client, "cid", A)
    client.delete_branch(A)
    client.create_branch(A)
    assert people(client, A) == ["ann"]
