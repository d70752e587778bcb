"""The publisher without Ray: rounds that are committed as one, and what becomes of those that come to nothing.

Every fault is made at a named point, and every wait is for something that happens.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from omniray.coordinator.actors.steps import RoundSteps
from omniray.coordinator.actors.table_queues import Question, TableQueues
from omniray.coordinator.rounds import machine as rounds
from omniray.coordinator.rounds.admission import Limits
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.coordinator.rounds.fairness import RoundLimits
from omniray.coordinator.rounds.machine import ATTEMPTS_MAX, CROWD
from omniray.engine.base.errors import (
    Fenced,
    KeyConflict,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    PayloadMismatch,
    SchemaChanged,
    StorageError,
    TableDrift,
    Withdrawn,
)
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit import attempt
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.judge.overlay import Overlay
from omniray.engine.judge.pinned import State
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Recovery, Remark
from omniray.engine.line.owner import take_over
from omniray.engine.line.sidecar import Sidecar
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.writes.write_requests import Header, PreparedRequest, Request
from tests import foreign
from tests.coordination import TIMEOUT_S, Gate, Plug, Service, serving, told
from tests.graphs import AGE, CITY, DELETE, INSERT, KNOWS, PERSON, parts_of
from tests.healing import staged_versions, wounds


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.001)


def person(service: Service, name: str, **header: Any) -> Request:
    return service.load_request([{"name": name}], type="Person", **header)


def city(service: Service, name: str) -> Request:
    return service.load_request([{"name": name}], type="City")


def names(store: ObjectStore, table_key: str = PERSON) -> list[str]:
    return parts_of(store).rows(table_key)


def commits(service: Service) -> list[list[str]]:
    """The commit ids of each object that has any, but for the birth."""
    return [[c.commit_id for c in obj.commits] for obj in service.line()[1:] if obj.commits]


def result_of(future: Future[Any]) -> Any:
    return future.result(TIMEOUT_S).result


def left_behind(store: ObjectStore, path: str = foreign.PEOPLE) -> dict[str, list[str]]:
    """Files of a table that nothing refers to, and sidecars."""
    table = foreign.plain(store, path)
    versions = [table.checkout_version(one["version"]) for one in table.versions()]
    used = {file.path for one in versions for fragment in one.get_fragments() for file in fragment.metadata.files}
    data = [file.path.rpartition("/")[2] for file in store.files(f"{path}/data")]
    return {
        "data": [file for file in data if file not in used],
        "staging": staged_versions(store, path),
        "sidecars": list(parts_of(store).sidecars.listed()),
    }


NOTHING_LEFT: dict[str, list[str]] = {"data": [], "staging": [], "sidecars": []}


@dataclass
class WatchedQueues:
    """Queues that tell when they have staged, and fail when they are told to."""

    inner: TableQueues
    failures: list[OmnirayError] = field(default_factory=list)  # each takes the place of one table's staging
    gate: Gate | None = None  # where the next staging waits
    drop_gate: Gate | None = None  # where a drop waits
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    staged: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        self.asked.release()
        return self.inner.read(base, questions)

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        if self.gate is not None:
            self.gate.hold()
        failed = [self.failures.pop(0)] if self.failures else []
        outcomes = self.inner.stage(base, stages[len(failed) :])
        self.staged.release()
        return [*failed, *outcomes]

    def drop(self, table_keys: Sequence[str]) -> None:
        if self.drop_gate is not None:
            self.drop_gate.hold()
        self.inner.drop(table_keys)

    def wait_until_asked(self) -> None:
        assert self.asked.acquire(timeout=TIMEOUT_S), "nothing was asked"

    def wait_until_staged(self) -> None:
        assert self.staged.acquire(timeout=TIMEOUT_S), "nothing was staged"


@contextmanager
def watched(store: ObjectStore, **options: Any) -> Iterator[tuple[Service, WatchedQueues]]:
    with serving(store, wrap_queues=WatchedQueues, **options) as service:
        queues: Any = service.queues
        yield service, queues


@contextmanager
def held_at(point: Point) -> Iterator[Gate]:
    """The first to come to a point waits there until the gate is opened, at the latest by the end of the block."""
    gate = Gate()
    with armed({point: Action(gate.hold, nth=1)}):
        try:
            yield gate
        finally:
            gate.open()


def crowd(service: Service, *requests: Request) -> list[Future[WriteAnswer]]:
    """Submit so many writes that they have a round of their own, while the one below is still in Phase C."""
    assert len(requests) >= CROWD
    return [service.publisher.submit(request) for request in requests]


@dataclass
class Watched:
    """A write that tells when it has been judged."""

    inner: Request
    judged: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def resolve(self, state: State, schema: Schema) -> Resolution:
        try:
            return self.inner.resolve(state, schema)
        finally:
            self.judged.set()

    def wait_until_judged(self) -> None:
        assert self.judged.wait(TIMEOUT_S), "it was not judged"


# One round


def test_a_round_is_one_version_of_each_touched_table_and_one_object(store: ObjectStore) -> None:
    with serving(store) as service:
        before, length = service.newest.pins, len(service.line())
        writes = [
            person(service, "ann"),
            person(service, "bob"),
            city(service, "rome"),
            service.load_request([{"from": "ann", "to": "bob"}], type="Knows"),
            service.mutation(AGE, {"name": "ann", "age": 3}),
            service.mutation(DELETE, {"name": "bob"}),
        ]
        results = [answer.result for answer in service.in_one_round(writes)]
        (ours,) = service.line()[length:]
    ids = [write.header.commit_id for write in writes]
    assert [commit.commit_id for commit in ours.commits] == [result.commit_id for result in results] == ids
    affected = [(result.affected_nodes, result.affected_edges) for result in results]
    assert affected == [(1, 0), (1, 0), (1, 0), (0, 1), (1, 0), (1, 1)]
    versions = {key: ours.pins[key].version - before[key].version for key in before}
    assert versions == {PERSON: 1, CITY: 1, KNOWS: 0}, "the only edge came and went"
    assert [set(result.versions) for result in results] == [{PERSON}, {PERSON}, {CITY}, set(), {PERSON}, {PERSON}]
    assert names(store) == ["ann"]
    assert left_behind(store) == NOTHING_LEFT


def test_writes_that_undo_each_other_are_commits_all_the_same(store: ObjectStore) -> None:
    with serving(store) as service:
        before = service.newest.pins
        writes = [person(service, "ann"), service.mutation(DELETE, {"name": "ann"})]
        answers = service.in_one_round(writes)
        assert commits(service) == [[answer.result.commit_id for answer in answers]]
        assert service.newest.pins == before
    assert left_behind(store) == NOTHING_LEFT


def test_a_round_is_no_larger_than_it_may_be(store: ObjectStore) -> None:
    with serving(store, limits=Limits(round=RoundLimits(intents=2))) as service:
        service.in_one_round([person(service, name) for name in "abcde"])
        assert [len(round) for round in commits(service)] == [2, 2, 1]


def test_mutations_that_meet_more_than_a_round_may_hold_land_in_several(store: ObjectStore) -> None:
    update = "query q($age: I32) { update Person set { age: $age } where age >= 0 }"
    with serving(store, limits=Limits(RoundLimits(rows=6))) as service:
        service.write(service.load_request([{"name": name, "age": 0} for name in "abcd"], type="Person"))
        ages = [service.mutation(update, {"age": age}) for age in (1, 2, 3)]
        told_of = service.in_one_round([*ages, person(service, "e")])
        assert all(isinstance(one, WriteAnswer) for one in told_of)
        assert [len(obj) for obj in commits(service)[1:]] == [2, 2], "the second one fills the round"
    assert names(store) == ["a", "b", "c", "d", "e"]


def test_the_ids_of_a_round_are_looked_up_at_once_when_the_history_is_longer_than_what_is_remembered(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that their callers chose may be of any time: none of them is certain to be new."""
    with serving(store) as service:
        old = [person(service, name) for name in ("ann", "bob")]
        for write in old:
            service.write(write)
        service.finaliser.flush()
        steps = service.publisher.steps
        steps.recent = RecentCommits(service.branch.lineage, service.newest, size=1)
        looks: list[set[str]] = []
        holds_none, commits_with = Manifest.holds_none, Manifest.commits_with
        monkeypatch.setattr(
            Manifest,
            "holds_none",
            lambda self, ids, through: (looks.append(set(ids)), holds_none(self, ids, through))[1],
        )
        monkeypatch.setattr(
            Manifest, "commits_with", lambda self, ids: (looks.append(set(ids)), commits_with(self, ids))[1]
        )
        new = [person(service, name) for name in ("cid", "dan", "eve")]
        plug = service.plug()
        plugged = service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        looks.clear()  # that of the plug
        futures = [service.publisher.submit(write) for write in new]
        plug.gate.open()
        told([plugged, *futures])
        assert looks == [{write.header.commit_id for write in new}]
    assert names(store) == ["ann", "bob", "cid", "dan", "eve"]


def test_all_commits_of_a_round_have_one_time(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """They land at once. The clock of this test never shows the same time twice."""
    clock = itertools.count(2_000_000_000_000_000_000, 1_000_000)
    with serving(store) as service:
        monkeypatch.setattr(attempt, "time", SimpleNamespace(time_ns=lambda: next(clock)))
        told_of = service.in_one_round([person(service, name) for name in ("ann", "bob", "cid")])
        assert all(isinstance(one, WriteAnswer) for one in told_of)
        commits = service.newest.commits
        assert (len(commits), len({commit.at_us for commit in commits})) == (3, 1)


def test_a_write_without_effect_is_answered_and_leaves_no_object(store: ObjectStore) -> None:
    with serving(store) as service:
        length = len(service.line())
        answer = service.write(service.mutation(AGE, {"name": "nobody", "age": 1}))
        assert (answer.result.commit_id, len(service.line())) == (None, length)


def test_a_client_of_another_schema_is_refused(store: ObjectStore) -> None:
    with serving(store) as service:
        write = person(service, "ann")
        stranger = replace(write, header=replace(write.header, schema_hash="another"))
        with pytest.raises(SchemaChanged, match="connect again"):
            service.write(stranger)
    assert names(store) == []


def test_a_write_that_is_committed_has_its_answer_although_the_schema_has_changed_since(store: ObjectStore) -> None:
    """Fault: its answer is lost, and the schema changes before the client asks again. A refusal would be a lie."""
    with serving(store) as service:
        write = person(service, "ann")
        first = service.write(write).result
        again, other = (
            replace(one, header=replace(one.header, schema_hash="of the schema before"))
            for one in (write, person(service, "bob"))
        )
        repeated, refused = service.in_one_round([again, other])
        assert isinstance(repeated, WriteAnswer)
        assert (repeated.result.repeated, repeated.result.commit_id) == (True, first.commit_id)
        assert isinstance(refused, SchemaChanged)
    assert names(store) == ["ann"]


# Pipelining


def test_the_next_round_is_staged_while_the_last_one_is_in_phase_c_and_put_after_it(store: ObjectStore) -> None:
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as gate:
        length = len(service.line())
        first = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        second, _ = crowd(service, service.mutation(AGE, {"name": "ann", "age": 4}), person(service, "bob"))
        for _ in range(2):
            queues.wait_until_staged()
        assert len(service.line()) == length, "the second is not put before the first"
        assert not first.done()
        gate.open()
        versions = [result_of(one).versions[PERSON] for one in (first, second)]
        assert versions == [versions[0], versions[0] + 1]
        assert result_of(second).affected_nodes == 1, "it saw what the first has brought"
    assert left_behind(store) == NOTHING_LEFT


def test_a_refusal_waits_for_the_object_that_it_was_judged_on(store: ObjectStore) -> None:
    """Fault: the publisher is fenced while a loser's winner is in Phase C.

    Expectation: the loser is not told of a winner that never landed.
    """
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        winner = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        late = Watched(person(service, "ann"))
        loser, _ = crowd(service, late, person(service, "bob"))
        late.wait_until_judged()
        assert not loser.done()
        take_over(parts_of(store).tip, EMBEDDED)
        gate.open()
        assert [type(one) for one in told([winner, loser])] == [Fenced, Fenced]
    assert names(store) == []


def test_a_refusal_leaves_once_the_object_that_it_was_judged_on_has_landed(store: ObjectStore) -> None:
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        winner = person(service, "ann")
        won = service.publisher.submit(winner)
        gate.wait_until_reached()
        lost = service.publisher.submit(person(service, "ann"))
        gate.open()
        error = told([won, lost])[1]
        assert isinstance(error, KeyConflict)
        assert result_of(won).commit_id == winner.header.commit_id


# Rounds that come to nothing


def overtake(service: Service) -> None:
    """Put an object at the next number, as only the owner of the line may."""
    tip = parts_of(service.store).tip
    assert tip.record(lambda newest: Remark(new_ulid())) is not None


def test_a_round_that_is_overtaken_lands_in_a_new_attempt_and_leaves_nothing_of_the_old_one(
    store: ObjectStore,
) -> None:
    with serving(store) as service:
        with armed({Point.C_BEFORE_PUT: Action(lambda: overtake(service), nth=1)}):
            writes = [person(service, "ann"), person(service, "bob"), person(service, "ann")]
            answers = service.in_one_round(writes)
        assert commits(service) == [[write.header.commit_id for write in writes[:2]]]
        assert isinstance(answers[2], KeyConflict)
    assert names(store) == ["ann", "bob"]
    assert left_behind(store) == NOTHING_LEFT


def test_what_was_staged_on_top_of_a_round_that_is_lost_is_void_too(store: ObjectStore) -> None:
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as gate:
        writes = [person(service, "ann"), service.mutation(DELETE, {"name": "ann"})]
        writes += [person(service, "bob"), person(service, "cid")]
        futures = [service.publisher.submit(writes[0])]
        gate.wait_until_reached()
        futures += crowd(service, *writes[1:3])
        for _ in range(2):
            queues.wait_until_staged()
        futures.append(service.publisher.submit(writes[3]))
        overtake(service)
        gate.open()
        ids = [result_of(future).commit_id for future in futures]
        assert [id for round in commits(service) for id in round] == ids
    assert names(store) == ["bob", "cid"]
    assert left_behind(store) == NOTHING_LEFT


def test_nobody_waits_while_what_a_void_round_staged_is_cleared_away(store: ObjectStore) -> None:
    """Fault: the owner of a queue is slow to drop its handle. Expected: writes are taken and land meanwhile."""
    with watched(store) as (service, queues):
        queues.failures.append(StorageError("503 SlowDown"))
        queues.drop_gate = Gate()
        void = service.publisher.submit(person(service, "ann"))
        queues.drop_gate.wait_until_reached()
        result_of(void)
        service.write(person(service, "bob"))
        queues.drop_gate.open()
    assert names(store) == ["ann", "bob"]
    assert left_behind(store) == NOTHING_LEFT


@pytest.mark.parametrize("failures", [1, ATTEMPTS_MAX - 1])
def test_a_store_that_fails_while_staging_is_tried_again(store: ObjectStore, failures: int) -> None:
    with watched(store) as (service, queues):
        queues.failures += [StorageError(f"failure {n}") for n in range(failures)]
        answers = service.in_one_round([person(service, "ann"), city(service, "rome")])
        assert [answer.result.affected_nodes for answer in answers] == [1, 1]
    assert (names(store), names(store, CITY)) == (["ann"], ["rome"])
    assert left_behind(store) == NOTHING_LEFT


def test_a_sidecar_that_can_not_be_put_leaves_nothing_of_what_was_staged_beside_it(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(store) as service:
        put, failures = service.sidecars.put, [StorageError("503 SlowDown")]

        def put_at_the_second_try(sidecar: Sidecar) -> None:
            if failures:
                raise failures.pop()
            put(sidecar)

        monkeypatch.setattr(service.sidecars, "put", put_at_the_second_try)
        assert service.write(person(service, "ann")).result.affected_nodes == 1
    assert names(store) == ["ann"]
    assert left_behind(store) == NOTHING_LEFT


def test_a_store_that_keeps_failing_is_told_after_some_attempts_and_nothing_is_left(store: ObjectStore) -> None:
    with watched(store) as (service, queues):
        queues.failures += [StorageError(f"failure {n}") for n in range(ATTEMPTS_MAX)]
        answers = service.in_one_round([person(service, "ann"), city(service, "rome")])
        assert [str(answer) for answer in answers] == [f"failure {ATTEMPTS_MAX - 1}"] * 2
        assert service.write(person(service, "bob")).result.commit_id is not None, "the publisher goes on"
    assert (names(store), names(store, CITY)) == (["bob"], [])
    assert left_behind(store) == NOTHING_LEFT


def test_a_round_whose_table_has_lost_its_staged_version_waits_for_the_one_below(store: ObjectStore) -> None:
    """Fault: a staged version can't be found while its round is in Phase C, which takes long.

    Expectation: the next round is tried until that one has landed, however often; nobody is told that a queue is cold.
    """
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as gate:
        first = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        (staged,) = staged_versions(store)
        manifest = store.get(staged)
        assert manifest is not None
        store.delete(staged)
        queues.inner.drop([PERSON])
        second, _ = crowd(service, person(service, "bob"), person(service, "cid"))
        for _ in range(ATTEMPTS_MAX + 1):
            queues.wait_until_asked()
        store.put(staged, manifest)
        gate.open()
        assert result_of(second).versions[PERSON] == result_of(first).versions[PERSON] + 1
    assert names(store) == ["ann", "bob", "cid"]
    assert left_behind(store) == NOTHING_LEFT


def test_a_round_that_is_void_while_it_is_being_staged_leaves_nothing(
    store: ObjectStore,
) -> None:
    """Fault: the round below is lost while this one is being staged: then its Person has no base any more, City has."""
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as committing:
        first = service.publisher.submit(person(service, "ann"))
        committing.wait_until_reached()
        queues.gate = Gate()
        both = [{"type": "City", "data": {"name": "bonn"}}, {"type": "Person", "data": {"name": "bob"}}]
        second, _ = crowd(service, service.load_request(both), person(service, "cid"))
        queues.gate.wait_until_reached()
        staging, queues.gate = queues.gate, None
        overtake(service)
        committing.open()
        for _ in range(2):  # the first attempt of the first write, and its second
            queues.wait_until_staged()
        staging.open()
        for future in (first, second):
            assert result_of(future).commit_id is not None
    assert (names(store), names(store, CITY)) == (["ann", "bob", "cid"], ["bonn"])
    assert left_behind(store) == left_behind(store, "nodes/City.lance") == NOTHING_LEFT


def test_a_caller_that_cancels_keeps_nobody_else_waiting(store: ObjectStore) -> None:
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as gate:
        cancelled = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        cancelled.cancel()
        others = crowd(service, person(service, "bob"), person(service, "cid"))
        for _ in range(2):
            queues.wait_until_staged()
        gate.open()
        assert [result_of(one).affected_nodes for one in others] == [1, 1]
    assert names(store) == ["ann", "bob", "cid"]


# The end of a publisher's life


class LosingAnswers(CommitLog):
    """A line whose objects land while their answers, and whatever is asked then, are lost; when `is_lossy`."""

    def __init__(self, log: CommitLog) -> None:
        super().__init__(log._store, log.branch)
        self.is_lossy = False

    def put(self, obj: CommitObject) -> Answer:
        answer = super().put(obj)
        if self.is_lossy:
            raise StorageError("the connection is gone")
        return answer

    def read(self, seq: int) -> CommitObject | None:
        if self.is_lossy:
            raise StorageError("the connection is gone")
        return super().read(seq)


def test_an_outcome_that_stays_unclear_ends_the_publisher_and_nothing_is_deleted(store: ObjectStore) -> None:
    """Fault: a round's object lands and the answer is lost. Oracle: what a recovery finds afterwards is whole."""
    with serving(store, wrap_log=LosingAnswers) as service:
        log: Any = service.log
        log.is_lossy = True
        (answer,) = told([service.publisher.submit(person(service, "ann"))])
        assert isinstance(answer, OutcomeUnknown)
        (later,) = told([service.publisher.submit(person(service, "bob"))])
        assert isinstance(later, OutcomeUnknown)
        log.is_lossy = False
        assert len(staged_versions(store)) == 1, "what may have landed stays"
        assert len(list(service.sidecars.listed())) == 1
        service.tip.refresh()
    assert names(store) == ["ann"]
    assert wounds(store) == []


def test_a_publisher_that_is_fenced_tells_everybody_and_lands_nothing(store: ObjectStore) -> None:
    with watched(store) as (service, queues), held_at(Point.C_BEFORE_PUT) as gate:
        futures = [service.publisher.submit(person(service, "ann"))]
        gate.wait_until_reached()
        futures += crowd(service, person(service, "bob"), person(service, "cid"))
        for _ in range(2):
            queues.wait_until_staged()
        futures.append(service.publisher.submit(person(service, "dan")))
        take_over(parts_of(store).tip, EMBEDDED)
        gate.open()
        assert [type(one) for one in told(futures)] == [Fenced] * 4
        assert [type(one) for one in told([service.publisher.submit(person(service, "eve"))])] == [Fenced]
        assert commits(service) == []
        assert len(list(service.sidecars.listed())) == 2, "what it staged is left to whoever recovers it"
    assert names(store) == []


def test_an_answer_that_needs_no_commit_is_not_given_by_a_publisher_that_is_fenced(store: ObjectStore) -> None:
    with serving(store) as service:
        service.write(person(service, "ann"))
        take_over(parts_of(store).tip, EMBEDDED)
        idle = service.mutation(AGE, {"name": "nobody", "age": 1})
        assert [type(one) for one in told([service.publisher.submit(idle)])] == [Fenced]


def test_a_mistake_in_the_publisher_is_told_rather_than_waited_for(
    store: ObjectStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RoundSteps, "commit", mistaken)
    with serving(store) as service:
        request = person(service, "ann")
        (answer,) = told([service.publisher.submit(request)])
        assert type(answer) is OutcomeUnknown
        assert answer.facts["txn_id"] == request.header.commit_id
    assert "event=publisher_failed" in caplog.text


def test_a_mistake_in_a_look_up_falls_on_the_write_that_made_it_alone(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        rows, size_bytes, alone, touched = 1, 1, False, None

        def __init__(self, header: Header) -> None:
            self.header = header

        def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
            raise ZeroDivisionError

        resolve: Callable[..., Resolution]

    with serving(store) as service:
        broken: Any = Broken(person(service, "x").header)
        requests: list[Any] = [broken, person(service, "ann")]
        answers = told([service.publisher.submit(request) for request in requests])
        assert [type(answer) for answer in answers] == [OmnirayError, WriteAnswer]
        assert answers[0].facts["txn_id"] == broken.header.commit_id
        assert isinstance(service.write(person(service, "bob")), WriteAnswer), "the publisher lives on"
    assert "event=look_up_failed" in caplog.text


def test_a_mistake_in_the_overlay_falls_on_the_write_that_made_it_alone(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(store) as service:
        requests = [person(service, name) for name in ("ann", "broken", "bob")]
        take = Overlay.take

        def mistaken(self: Overlay, tables: Any, writer: str) -> None:
            if writer == requests[1].header.commit_id:
                raise ZeroDivisionError
            take(self, tables, writer)

        monkeypatch.setattr(Overlay, "take", mistaken)
        answers = service.in_one_round(requests)
        assert [type(answer) for answer in answers] == [WriteAnswer, OmnirayError, WriteAnswer]
        assert [c.commit_id for c in service.newest.commits] == [requests[n].header.commit_id for n in (0, 2)]


# Whose fault it is


def test_a_table_that_somebody_else_wrote_to_refuses_its_writes_and_no_others(store: ObjectStore) -> None:
    with serving(store) as service:
        service.write(person(service, "ann"))
        service.finaliser.flush()
        foreign.append(store, "mallory")
        both = [{"type": "Person", "data": {"name": "bob"}}, {"type": "City", "data": {"name": "bonn"}}]
        writes = [person(service, "cid"), city(service, "rome"), service.load_request(both)]
        answers = service.in_one_round(writes)
        assert [type(answer).__name__ for answer in answers] == ["TableDrift", "WriteAnswer", "TableDrift"]
        assert "omniray repair" in str(answers[0])
        assert commits(service)[1:] == [[writes[1].header.commit_id]]
    assert names(store, CITY) == ["rome"]


def test_a_table_that_is_known_to_have_drifted_is_not_even_staged(store: ObjectStore) -> None:
    with watched(store) as (service, queues):
        service.publisher.finalised(0, {PERSON: TableDrift("somebody was here", table_key=PERSON)})
        answers = service.in_one_round([person(service, "ann"), city(service, "rome")])
        assert [type(answer).__name__ for answer in answers] == ["TableDrift", "WriteAnswer"]
        queues.wait_until_staged()
        assert not queues.staged.acquire(blocking=False), "one staging, of the other table"
        service.publisher.finalised(0, {})
        service.write(person(service, "bob"))
    assert names(store) == ["bob"]


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_a_publisher_that_was_replaced_refuses_nothing_for_drift(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin goes on refusing: no round of it gets as far as the line, and nobody tells it of the repair."""
    if not has_guard:
        monkeypatch.setattr(RoundSteps, "_unless_fenced", lambda self, drift: drift)
    with serving(store) as service:
        service.publisher.finalised(0, {PERSON: TableDrift("somebody was here", table_key=PERSON)})
        take_over(parts_of(store).tip, EMBEDDED)
        told_at_once = told([service.publisher.submit(person(service, "ann"))])
        assert [type(one) for one in told_at_once] == [Fenced if has_guard else TableDrift]


def test_of_two_tables_that_drifted_each_write_is_told_of_the_one_that_it_touches(store: ObjectStore) -> None:
    with serving(store) as service:
        drifted = {key: TableDrift("somebody was here", table_key=key) for key in (PERSON, CITY)}
        service.publisher.finalised(0, drifted)
        answers = service.in_one_round([person(service, "ann"), city(service, "rome")])
        assert [answer.facts["table_key"] for answer in answers] == [PERSON, CITY]


# Ids


def test_a_write_that_is_under_way_is_joined_by_its_id(store: ObjectStore) -> None:
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        txn_id = new_ulid()
        first = service.publisher.submit(person(service, "ann", txn_id=txn_id))
        gate.wait_until_reached()
        again = service.publisher.submit(person(service, "ann", txn_id=txn_id))
        other = service.publisher.submit(person(service, "bob", txn_id=txn_id))
        assert isinstance(told([other])[0], PayloadMismatch)
        gate.open()
        assert result_of(first) is result_of(again)
        assert commits(service) == [[txn_id]]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_write_that_has_landed_is_answered_from_the_lineage(store: ObjectStore, restarted: bool) -> None:
    txn_id = new_ulid()
    with serving(store) as service:
        first = service.write(person(service, "ann", txn_id=txn_id)).result
        if not restarted:
            _repeat(service, txn_id, first)
    if restarted:
        with serving(store) as service:
            _repeat(service, txn_id, first)
    assert names(store) == ["ann"]


@pytest.mark.parametrize("looks_up", [True, False])
def test_a_write_from_before_the_window_is_answered_from_the_lineage(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, looks_up: bool
) -> None:
    """The twin takes whatever it does not remember for new, and so the write is applied a second time."""
    if not looks_up:
        monkeypatch.setattr(RecentCommits, "_is_new", lambda self, commit_id, fresh: True)
    with serving(store) as service:
        monkeypatch.setattr(service.publisher.steps, "recent", RecentCommits(*_lineage_of(service), size=2))
        first = service.mutation(INSERT, {"name": "ann"}, txn_id=new_ulid())
        service.write(first)
        for name in ("bob", "cid", "dan"):
            service.write(person(service, name))
        assert service.publisher.is_committed(first.header.commit_id)
        (again,) = service.in_one_round([first])
        assert again.result.repeated == looks_up
        assert sum(first.header.commit_id in round for round in commits(service)) == (1 if looks_up else 2)


def _lineage_of(service: Service) -> tuple[Lineage, CommitObject]:
    return service.publisher.steps._lineage, service.newest


def _repeat(service: Service, txn_id: str, first: object) -> None:
    again = [person(service, "ann", txn_id=txn_id), person(service, "zoe")]
    answers = service.in_one_round(again)
    assert answers[0].result == replace(first, repeated=True)
    assert answers[1].result.repeated is False
    (other,) = service.in_one_round([person(service, "bob", txn_id=txn_id)])
    assert isinstance(other, PayloadMismatch)
    assert service.publisher.is_committed(txn_id)
    service.write(service.mutation(DELETE, {"name": "zoe"}))


def test_a_write_that_is_given_up_before_its_turn_never_lands_unless_it_is_sent_again(store: ObjectStore) -> None:
    with serving(store) as service:
        plug = service.plug()
        service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        write = person(service, "ann")
        given_up = service.publisher.submit(write)
        service.publisher.abandon(write.header.commit_id)
        assert isinstance(told([given_up])[0], Withdrawn)
        plug.gate.open()
        service.write(person(service, "bob"))
        assert names(store) == ["bob"]
        assert service.write(write).result.repeated is False
    assert names(store) == ["ann", "bob"]


def test_a_write_that_is_given_up_in_a_round_is_carried_through(store: ObjectStore) -> None:
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        write = person(service, "ann")
        future = service.publisher.submit(write)
        gate.wait_until_reached()
        service.publisher.abandon(write.header.commit_id)
        gate.open()
        assert result_of(future).commit_id == write.header.commit_id


# Remarks


def recovery(service: Service) -> Recovery:
    return Recovery(new_ulid(), "RolledBack", "ann", "Load", {PERSON: "NoMovement"}, 7)


def test_remarks_ride_along_with_the_writes_of_their_round(store: ObjectStore) -> None:
    with serving(store) as service:
        plug = service.plug()
        service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        said = [recovery(service) for _ in range(2)]
        remarks = [service.publisher.remark(Remark(new_ulid(), (one,))) for one in said]
        write = service.publisher.submit(person(service, "ann"))
        plug.gate.open()
        told([*remarks, write])
        newest = service.newest
        assert newest.recoveries == tuple(said)
        assert [commit.commit_id for commit in newest.commits] == [result_of(write).commit_id]


def test_a_remark_alone_is_an_object_that_changes_no_table(store: ObjectStore) -> None:
    with serving(store) as service:
        service.write(person(service, "ann"))
        before = service.newest
        for swept_before_us in (50, 40):
            told([service.publisher.remark(Remark(new_ulid(), swept_before_us=swept_before_us))])
        newest = service.newest
        assert (newest.seq, newest.swept_before_us, newest.commits) == (before.seq + 2, 50, ())
        assert {key: pin.version for key, pin in newest.pins.items()} == {
            key: pin.version for key, pin in before.pins.items()
        }
    assert left_behind(store) == NOTHING_LEFT


def test_files_that_a_sweep_may_have_taken_are_refused(store: ObjectStore) -> None:
    with serving(store) as service:
        told([service.publisher.remark(Remark(new_ulid(), swept_before_us=50))])
        version = service.newest.pins[PERSON].version
        write = TableWrite(Mode.APPEND, StagedRows((), 0, staged_since_us=49), NOTHING_REPLACED)
        resolution = Resolution({PERSON: write}, Affected(nodes=1))
        late = PreparedRequest(person(service, "x").header, resolution, {PERSON: version})
        (error,) = told([service.publisher.submit(late)])
        assert isinstance(error, StorageError)
        assert "load again" in str(error)


# Too much


def test_a_queue_that_is_full_takes_nothing_more_until_there_is_room(store: ObjectStore) -> None:
    with serving(store, limits=Limits(waiting_intents=2)) as service:
        plug = service.plug()
        service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        write = person(service, "bob")
        taken = service.publisher.submit(person(service, "ann"))
        (error,) = told([service.publisher.submit(write)])
        assert isinstance(error, Overloaded)
        assert error.facts["retry_after_s"] > 0
        plug.gate.open()
        result_of(taken)
        assert service.write(write).result.commit_id == write.header.commit_id


def test_one_tenant_can_not_fill_the_queue_for_another(store: ObjectStore) -> None:
    with serving(store, limits=Limits(tenant_intents=1)) as service:
        plug = service.plug()
        service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        futures = [
            service.publisher.submit(person(service, f"{tenant}{n}", tenant=tenant))
            for tenant in "ab"
            for n in range(2)
        ]
        plug.gate.open()
        assert [isinstance(one, Overloaded) for one in told(futures)] == [False, True, False, True]


def test_a_write_that_a_bug_keeps_from_being_judged_does_not_end_the_publisher(store: ObjectStore) -> None:
    class Poison(Plug):
        def resolve(self, state: State, schema: Schema) -> Resolution:
            raise pa.ArrowInvalid("offset overflow")

    with serving(store) as service:
        poison = service.publisher.submit(Poison(service.plug().header))
        with pytest.raises(OmnirayError, match="offset overflow"):
            result_of(poison)
        result_of(service.publisher.submit(person(service, "ann")))
    assert names(store) == ["ann"]


# Held


def test_no_round_is_under_way_while_the_line_is_held_and_writes_land_after_it(store: ObjectStore) -> None:
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        first = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        is_held, may_free = threading.Event(), Gate()
        seen: list[bool] = []

        def hold() -> None:
            with service.publisher.held():
                seen.append(first.done())
                is_held.set()
                may_free.hold()

        holder = threading.Thread(target=hold)
        holder.start()
        gate.open()
        assert is_held.wait(TIMEOUT_S)
        assert seen == [True], "the round under way is through"
        length = len(service.line())
        second = service.publisher.submit(person(service, "bob"))
        overtake_with_the_tip_of(service)
        assert (len(service.line()), second.done()) == (length + 1, False)
        may_free.open()
        holder.join(TIMEOUT_S)
        assert result_of(second).commit_id is not None
    assert names(store) == ["ann", "bob"]


def overtake_with_the_tip_of(service: Service) -> None:
    """Extend the line as somebody may who holds it."""
    assert service.tip.record(lambda newest: Remark(new_ulid())) is not None


def test_the_line_is_free_again_after_an_error_of_the_one_that_held_it(store: ObjectStore) -> None:
    with serving(store) as service:
        with pytest.raises(StorageError, match="the repair failed"), service.publisher.held():
            raise StorageError("the repair failed")
        service.write(person(service, "ann"))
    assert names(store) == ["ann"]


class _Turns:
    """A lock that tells when a second one comes to it."""

    def __init__(self) -> None:
        self._lock, self._came = threading.Lock(), threading.Semaphore(0)

    def __enter__(self) -> None:
        self._came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for_another(self) -> None:
        assert self._came.acquire(timeout=TIMEOUT_S), "nobody came"


def test_two_who_want_to_hold_the_line_take_turns(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first to free it would let rounds begin under the hands of the other."""
    with serving(store) as service:
        turns, heard = _Turns(), list[str]()
        monkeypatch.setattr(service.publisher, "_holding", turns)
        handle = service.publisher._rounds.handle
        monkeypatch.setattr(
            service.publisher._rounds, "handle", lambda event: (heard.append(type(event).__name__), handle(event))[1]
        )

        def hold() -> None:
            with service.publisher.held():
                pass

        with service.publisher.held():
            turns.wait_for_another()  # this one
            second = threading.Thread(target=hold)
            second.start()
            turns.wait_for_another()
        second.join(TIMEOUT_S)
        assert heard == ["Held", "Freed"] * 2


def test_a_publisher_that_ends_while_it_is_to_be_held_keeps_nobody_waiting(store: ObjectStore) -> None:
    with serving(store) as service, held_at(Point.C_BEFORE_PUT) as gate:
        write = service.publisher.submit(person(service, "ann"))
        gate.wait_until_reached()
        held = threading.Event()

        def hold() -> None:
            with service.publisher.held():
                held.set()

        holder = threading.Thread(target=hold)
        holder.start()
        service.publisher.end(Fenced("another owner took the line over"))
        assert held.wait(TIMEOUT_S)
        holder.join(TIMEOUT_S)
        gate.open()
        assert [type(one) for one in told([write])] == [OutcomeUnknown]
