"""A whole coordinator without Ray, reached by clients as they are: over HTTP, found by the line."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import house as house_module
from omniray.coordinator.actors import line_service
from omniray.coordinator.actors.call_threads import OF_A_KIND
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.client.waits import carried_out
from omniray.coordinator.door import calls
from omniray.coordinator.door import record as record_module
from omniray.coordinator.door.calls import CALLS, Call
from omniray.coordinator.door.record import DoorRecord, put_record
from omniray.coordinator.door.requests import RequestDecoder
from omniray.coordinator.rounds.events import Event, Instruction, Submitted
from omniray.coordinator.rounds.fairness import Ticket
from omniray.coordinator.rounds.machine import Rounds
from omniray.engine.base.errors import (
    Fenced,
    InputError,
    KeyConflict,
    LineOwned,
    OmnirayError,
    OutcomeUnknown,
    StorageError,
    Unreachable,
    Withdrawn,
)
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.branches import BranchChange
from omniray.engine.branches.conflicts import ConflictKind, MergeConflict
from omniray.engine.branches.merge_plan import How, TableSummary
from omniray.engine.branches.merge_result import MergeOutcome as Merged
from omniray.engine.branches.merge_result import MergeResult
from omniray.engine.judge.resolution import Outcome
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import take_over
from omniray.engine.maintenance.orphans import Amount
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.recovery.drift import Drift, TableClass
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.recovery.repair import RepairReport
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.write_requests import MutationRequest
from tests.coordination import TIMEOUT_S, Sender
from tests.graphs import INSERT, PERSON, create_store, parts_of
from tests.housing import Housed, housed
from tests.stores import Root


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "root").mkdir()
    return create_store(Root(str(tmp_path / "root"), {}))


@pytest.fixture
def coordinator(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Housed]:
    with housed(store, monkeypatch) as coordinator:
        yield coordinator


@contextmanager
def connected(store: ObjectStore, **options: Any) -> Iterator[omniray.Client]:
    with connect_to_serving(store.uri, None, **options) as client:
        yield client


def add(client: omniray.Client, name: str, **options: Any) -> omniray.WriteResult:
    return client.load([{"name": name}], type="Person", **options)


def people(store: ObjectStore) -> list[str]:
    return parts_of(store).rows(PERSON)


# Writes


def test_a_client_finds_the_coordinator_by_the_line_and_writes_through_it(
    store: ObjectStore, coordinator: Housed
) -> None:
    with connected(store) as client:
        assert client.url == coordinator.server.url
        result = add(client, "ann")
        assert client.mutate(INSERT, {"name": "bob"}).affected_nodes == 1
        with pytest.raises(KeyConflict):
            add(client, "ann")
        assert client.snapshot().table("Person", ["name"]).num_rows == 2
    assert result.commit_id is not None
    assert people(store) == ["ann", "bob"]


def test_a_large_write_is_read_beside_the_others(store: ObjectStore, coordinator: Housed) -> None:
    """What it takes to read it would keep all connections waiting."""
    names = [f"{number:06}{'x' * 100}" for number in range(5_000)]
    with connected(store) as client:
        assert client.load([{"name": name} for name in names], type="Person").affected_nodes == len(names)


@pytest.mark.parametrize(("statements", "is_beside"), [(1, False), (200, True)])
def test_a_mutation_is_queued_with_what_its_text_says_and_a_long_text_is_read_beside_the_others(
    store: ObjectStore, coordinator: Housed, monkeypatch: pytest.MonkeyPatch, statements: int, is_beside: bool
) -> None:
    tickets: list[Ticket] = []
    readers: list[str] = []
    handle, scoped = Rounds.handle, RequestDecoder.scoped

    def handled(rounds: Rounds, event: Event) -> list[Instruction]:
        tickets.extend([event.ticket] if isinstance(event, Submitted) else [])
        return handle(rounds, event)

    def read(decoder: RequestDecoder, request: MutationRequest) -> MutationRequest:
        readers.append(threading.current_thread().name)
        return scoped(decoder, request)

    monkeypatch.setattr(Rounds, "handle", handled)
    monkeypatch.setattr(RequestDecoder, "scoped", read)
    inserts = " ".join(f'insert Person {{ name: "n{n}" }}' for n in range(statements))
    with connected(store) as client:
        assert client.mutate(f"query q() {{ {inserts} }}").affected_nodes == statements
    assert [(ticket.rows, ticket.tables) for ticket in tickets] == [(statements, frozenset({PERSON}))]
    assert [name != "omniray-door" for name in readers] == [is_beside]


def test_what_can_not_be_read_is_refused_alone(store: ObjectStore, coordinator: Housed) -> None:
    request = urllib.request.Request(
        f"{coordinator.server.url}/v1/write", data=b"no message", method="POST",
        headers={
            "Authorization": f"Bearer {coordinator.record.secret}", "X-Omniray-Line": coordinator.line,
            "X-Omniray-Place": next(iter(coordinator.house.places)),
        },
    )  # fmt: skip
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=TIMEOUT_S)
    refused.value.close()
    assert refused.value.code == 400
    with connected(store) as client:
        add(client, "ann")


def test_a_write_that_is_sent_again_is_applied_once(store: ObjectStore, coordinator: Housed) -> None:
    txn_id = new_ulid()
    with connected(store) as client:
        assert [add(client, "ann", txn_id=txn_id).repeated for _ in range(2)] == [False, True]
        assert client.outcome(txn_id) == Outcome(txn_id, committed=True)


def test_a_write_that_was_reported_as_not_committed_lands_when_its_caller_begins_it_anew(
    store: ObjectStore, coordinator: Housed
) -> None:
    txn_id = new_ulid()
    with connected(store) as asking, connected(store) as writing:
        assert asking.outcome(txn_id) == Outcome(txn_id, committed=False)
        with pytest.raises(Withdrawn, match="submit it again"):
            add(writing, "ann", txn_id=txn_id)  # it knew only what was before the report
        assert add(writing, "ann", txn_id=txn_id).repeated is False
        assert add(asking, "ann", txn_id=txn_id).repeated is True
    assert people(store) == ["ann"]


# When it begins anew


def test_clients_of_an_earlier_incarnation_go_on_with_the_next_one(store: ObjectStore, coordinator: Housed) -> None:
    """It has another record at another place, and is the same coordinator: they have not read a copy of the graph."""
    with connected(store) as client:
        add(client, "ann")
        coordinator.incarnations.publisher.end(Fenced("a put of unknown fate"))
        coordinator.incarnations.begin("")
        add(client, "bob")
        assert client.status().epoch > 1
    assert people(store) == ["ann", "bob"]


def test_a_call_waits_for_the_next_incarnation(
    store: ObjectStore, coordinator: Housed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(store) as client:
        coordinator.incarnations.publisher.end(OutcomeUnknown("the connection is gone", txn_id=""))
        assert client.outcome(new_ulid()).committed is False


def test_a_client_is_told_that_the_coordinator_was_taken_down(store: ObjectStore, coordinator: Housed) -> None:
    with connected(store) as client, connected(store) as other:
        client.down()
        assert parts_of(store).newest().owner == EMBEDDED
        with pytest.raises(Unreachable, match="was taken down"):
            add(other, "ann")
        with pytest.raises((LineOwned, Unreachable), match="was taken down"):
            other.outcome(new_ulid())
    queues: Any = coordinator.incarnations.queues
    assert queues.has_ended
    with omniray.open(store.uri) as graph:
        graph.load([{"name": "bob"}], type="Person")
    assert people(store) == ["bob"]


def test_the_process_of_a_coordinator_that_was_taken_down_ends_after_its_answer(
    store: ObjectStore, coordinator: Housed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house_module, "END_AFTER_S", 0.0)
    ended = threading.Event()
    monkeypatch.setattr(coordinator.house, "_end", ended.set)
    with connected(store) as client:
        client.down()
    assert ended.wait(TIMEOUT_S)


def test_a_down_that_fails_says_why_and_the_process_lives_on_to_be_asked_again(
    store: ObjectStore, coordinator: Housed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no route to the store")

    with connected(store) as client:
        with monkeypatch.context() as failing:
            failing.setattr(line_service, "release", fail)
            with pytest.raises(StorageError, match="no route"):
                client.down()
        assert coordinator.ends == []
        client.down()
    assert parts_of(store).newest().owner == EMBEDDED


# A write whose coordinator has lost the line


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_fenced_write_stays_one_also_when_nobody_can_be_named_who_owns_the_line(
    store: ObjectStore, coordinator: Housed, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """ "The store failed" would say that nothing was written, and of that nobody is sure."""
    successor = str(omniray.engine.line.owner.Incarnation.new("10.0.0.2:6379"))
    fenced = Fenced("another owner took the line over")
    take_over(parts_of(store).tip, successor)

    def fail(*_: object) -> None:
        raise StorageError("no route to the store")

    if not is_readable:
        monkeypatch.setattr(coordinator.incarnations.branch.tip, "another", fail)
    answer = coordinator.house._fenced(fenced)
    assert isinstance(answer, Fenced)
    assert answer.facts == ({"owner": successor} if is_readable else {})


def test_a_client_whose_coordinator_lost_the_line_is_told_the_door_of_the_new_owner(
    store: ObjectStore, coordinator: Housed
) -> None:
    successor = str(omniray.engine.line.owner.Incarnation.new("10.0.0.2:6379"))
    door = DoorRecord.new("http://127.0.0.1:7")
    with connected(store) as client:
        wire = client._link.wire
        taken = take_over(parts_of(store).tip, successor, door=door.digest)
        put_record(store, door, taken.epoch)
        write = Sender(client.schema, client._graph.schema_hash).load_request([{"name": "x"}], type="Person")
        for ask in (
            lambda: carried_out(wire.writing(write, TIMEOUT_S)),
            lambda: wire.call(calls.OUTCOME, TIMEOUT_S, calls.OfWrite(new_ulid())),
        ):
            with pytest.raises(Fenced) as told:
                ask()
            assert (told.value.facts["owner"], told.value.facts["url"]) == (successor, door.url)


def test_a_client_is_told_which_versions_a_coordinator_of_a_later_release_speaks(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "VERSIONS", (7, 8))
    with (
        housed(store, monkeypatch),
        pytest.raises(InputError, match="speaks version 7, 8 of the messages, and this omniray 1"),
        connected(store),
    ):
        pass


# Calls


def test_the_status_tells_of_the_publisher_and_of_the_reconciler(store: ObjectStore, coordinator: Housed) -> None:
    with connected(store) as client:
        add(client, "ann")
        status = client.status()
    newest = parts_of(store).newest()
    assert (status.uri, status.url) == (store.uri, coordinator.server.url)
    assert (status.seq, status.epoch, status.owner, status.head) == (
        newest.seq, newest.epoch, newest.owner, newest.head
    )  # fmt: skip
    assert (status.commits, status.rounds, status.recovered, status.finalised_through) == (1, 1, 1, 1)
    assert status.pending_finalisations == newest.seq - 1


def test_upkeep_is_handed_to_the_reconciler(store: ObjectStore, coordinator: Housed) -> None:
    with connected(store) as client:
        client.flush()
        assert client.recover() == RecoveryReport(rolled_back=("01",))
        client.recover(grace_s=30.0)
        assert client.sweep(older_than_s=60.0, dry_run=True).dry_run
    assert coordinator.reconciler.asked[-4:] == ["flush", ("recover", 600.0), ("recover", 30.0), ("sweep", 60.0, True)]


def test_a_repair_shows_what_there_is(store: ObjectStore, coordinator: Housed) -> None:
    with connected(store) as client:
        assert client.repair() == RepairReport(())
        with pytest.raises(InputError, match="one of them"):
            client.repair(adopt=True, discard=True)


def test_calls_that_wait_keep_no_client_from_writing_and_no_call_of_another_kind_waiting(
    store: ObjectStore, coordinator: Housed
) -> None:
    """Fault: more flushes wait than there are threads. Large writes and long texts are read on threads, too."""
    free = threading.Event()
    waiting = threading.Semaphore(0)

    def wait() -> None:
        waiting.release()
        assert free.wait(TIMEOUT_S)

    coordinator.reconciler.wait = wait
    with connected(store) as client:
        flushing = [threading.Thread(target=client.flush) for _ in range(OF_A_KIND + 1)]
        for thread in flushing:
            thread.start()
        for _ in range(OF_A_KIND):
            assert waiting.acquire(timeout=TIMEOUT_S)
        try:
            with connected(store, timeout_s=TIMEOUT_S) as another:
                add(another, "ann")
                another.load([{"name": f"{number:06}{'x' * 100}"} for number in range(5_000)], type="Person")
                another.mutate("query q() { " + 'insert City { name: "Bonn" } ' * 200 + "}")
                assert another.outcome(new_ulid()).committed is False
                assert another.recover()
                assert another.status().waiting == 0
        finally:
            free.set()
            for thread in flushing:
                thread.join(TIMEOUT_S)


def test_a_bug_in_a_call_is_told_to_its_caller_alone(
    store: ObjectStore, coordinator: Housed, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    coordinator.reconciler.wait = fail
    with connected(store) as client:
        with pytest.raises(OmnirayError, match="a bug in omniray: 'flush' failed"):
            client.flush()
        add(client, "ann")
    assert "event=call_failed" in caplog.text


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (calls.OUTCOME, {}),
        (calls.OUTCOME, {"txn_id": "no id"}),
        (calls.OUTCOME, {"txn_id": 7}),
        (calls.OUTCOME, []),
        (calls.REPAIR, {"tables": "node:Person"}),
        (calls.REPAIR, {"adopt": "yes"}),
        (calls.SWEEP, {"older_than_s": "long"}),
        (calls.SWEEP, {"older_than_s": -1e9}),
        (calls.RECOVER, {"grace_s": 0}),
        (calls.ABANDON, {"txn_id": "../.."}),
    ],
)
def test_arguments_of_another_form_are_bad_input(coordinator: Housed, call: Call, arguments: Any) -> None:
    import asyncio

    reply = asyncio.run(coordinator.house.call(coordinator.line, call, json.dumps(arguments).encode()))
    assert (reply.status, json.loads(reply.body)["kind"]) == (400, "bad_input")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"later": 1}'])
def test_arguments_have_defaults_and_may_have_fields_of_a_later_omniray(data: bytes) -> None:
    assert calls.decode_arguments(calls.SWEEP, data) == calls.SweepTerms()


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b"\xff", b"{", b'{"dry_run": tru}', b'{"older_than_s": NaN}', b'{"older_than_s": 1e999}'],
)
def test_arguments_that_are_no_json_are_bad_input(data: bytes) -> None:
    with pytest.raises(InputError, match="'sweep' can't be read"):
        calls.decode_arguments(calls.SWEEP, data)


ANSWERS: dict[str, Any] = {
    "newest": 41,
    "flush": None,
    "abandon": None,
    "hold": None,
    "down": None,
    "recover": RecoveryReport(("01",), ("02", "03"), (), ("04",)),
    "outcome": Outcome(new_ulid(), committed=True),
    "sweep": SweepReport(7, (), Amount(2, 20), dry_run=True),
    "repair": RepairReport(
        (Drift(PERSON, next(iter(TableClass)), 3, 4, ("01",), ()),), "01", {PERSON: 4}, ("nodes/x",)
    ),
    **dict.fromkeys(
        ("branch_create", "branch_delete", "branch_rename"), BranchChange("a", "01", "02", "03", ("03", "04"), True)
    ),
    **dict.fromkeys(
        ("merge", "revert"),
        MergeResult(
            Merged.MERGED, "01", "02", ("02", "03"),
            (MergeConflict(ConflictKind.ORPHAN_EDGE, "Knows", "x", ("src",), {"src": "ann"}, None, "gone"),), 1, 2, 3,
            {PERSON: 4}, (TableSummary(PERSON, How.ROWS, 5, 6),), True,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CALLS if name != "status"])
def test_the_answer_of_each_call_comes_back_as_it_was(name: str) -> None:
    call = CALLS[name]
    assert calls.decode_answer(call, calls.encode(ANSWERS[name])) == ANSWERS[name]


def test_the_status_of_a_coordinator_of_a_later_omniray_is_understood(coordinator: Housed) -> None:
    status = coordinator.house._status(coordinator.line)
    later = json.dumps({**json.loads(calls.encode(status)), "later": 7}).encode()
    assert calls.decode_answer(calls.STATUS, later) == status


# Metrics


def test_metrics_are_text_for_prometheus_without_the_name_of_any_tenant_or_table(
    store: ObjectStore, coordinator: Housed
) -> None:
    with connected(store) as client:
        add(client, "ann", tenant="acme-secret", actor="eve-secret")
        with pytest.raises(KeyConflict):
            add(client, "ann", tenant="acme-secret")
    with urllib.request.urlopen(f"{coordinator.server.url}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    assert samples["omniray_commits_total"] == samples["omniray_rounds_total"] == 1
    assert samples['omniray_refusals_total{kind="key_conflict"}'] == 1
    assert samples["omniray_waiting_writes"] == 0
    assert samples["omniray_phase_d_behind"] > 0
    assert samples['omniray_round_seconds{quantile="0.99"}'] > 0
    described = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.partition("{")[0] for name in samples} == described
    assert text.endswith("\n")
    assert not [word for word in ("secret", "Person", "ann", store.uri) if word in text]


def test_a_coordinator_is_ready_while_it_serves(store: ObjectStore, coordinator: Housed) -> None:
    assert coordinator.house.is_ready
    with connected(store) as client:
        client.down()
    assert not coordinator.house.is_ready
