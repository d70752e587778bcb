"""The handles by which the publisher calls its other Ray actors, without Ray: what they do when an actor is away."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from omniray.coordinator.actors import queue_actor, reconciler_actor
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.queue_actor import LineQueues, RemoteQueues
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.door.questions import Scan
from omniray.coordinator.door.queue_messages import FOUND, READ
from omniray.engine.base.errors import GraphGone, StorageError
from omniray.engine.base.messages import Form
from omniray.engine.commit.staging import Base, Cold, StagedPin, TableStage
from omniray.engine.commit.table_change import announced as _announced
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.storage import NOTHING_REPLACED
from tests.graphs import CITY, KNOWS, PERSON, SCHEMA, main_of, rows_of

_SCHEMA = parse_schema(SCHEMA)
_PERSON = _SCHEMA.by_table_key[PERSON]


class ActorDied(Exception):
    """What a call of a dead actor comes to."""


class TaskFailed(ActorDied):
    """What a call comes to that raised in the actor."""


def _die(*_: object, **__: object) -> Any:
    raise ActorDied("the actor died in its creation")


RAY = SimpleNamespace(exceptions=SimpleNamespace(RayError=ActorDied, RayTaskError=TaskFailed), get=_die)


class DeadActor:
    """An actor that died when it was created: every method can be called and none answers."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *_: None)


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the actors that were created, all of which die at once."""
    names: list[str] = []

    def create(actor: type, name: str, *_: object, **__: object) -> DeadActor:
        names.append(name)
        return DeadActor()

    for module in (queue_actor, reconciler_actor):
        monkeypatch.setattr(module, "create", create)
        monkeypatch.setattr(module, "ray", lambda: RAY)
        monkeypatch.setattr(module, "AWAY_PAUSE_S", 0)
    return names


def storage_of(store: ObjectStore) -> Storage:
    return Storage(store.uri, None, main_of(store).ulid)


def newest_of(store: ObjectStore) -> CommitObject:
    newest = CommitLog(store, main_of(store)).newest()
    assert newest is not None
    return newest


def test_the_owner_of_a_queue_whose_graph_is_gone_is_not_created_again(store: ObjectStore, created: list[str]) -> None:
    newest = newest_of(store)
    queues = RemoteQueues(Place(newest.line), storage_of(store), 1).of(newest.line)
    shutil.rmtree(store.uri)
    with pytest.raises(GraphGone, match="was deleted"):
        queues.read(Base.on(newest, newest), [Scan(_PERSON, ())])
    queues.drop([PERSON])
    assert created == [Place(newest.line).queues(0)], "once, by the first call"


def test_the_owner_of_a_queue_that_died_is_waited_for_while_its_graph_is_there(
    store: ObjectStore, created: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = newest_of(store)
    queues = RemoteQueues(Place(newest.line), storage_of(store), 1).of(newest.line)
    answers = [_die, _die, lambda *_, **__: []]
    monkeypatch.setattr(RAY, "get", lambda *args, **options: answers.pop(0)(*args, **options))
    with pytest.raises(StorageError, match="tried again"):
        queues.read(Base.on(newest, newest), [Scan(_PERSON, ())])
    assert (len(created), answers) == (3, [])


class Local:
    """The actors, in this process: what one is told and answers are bytes, and what it raises gets lost in Ray."""

    def __init__(self, actor: type, *arguments: Any) -> None:
        self._actor = actor(*arguments)

    def __getattr__(self, method: str) -> Any:
        def remote(asked: bytes) -> bytes:
            assert isinstance(asked, bytes)
            answer = getattr(self._actor, method)(asked)
            assert isinstance(answer, bytes)
            return answer

        return SimpleNamespace(remote=remote)


@pytest.fixture
def queues(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> LineQueues:
    """Three owners, which live: people and cities have different ones."""
    local = SimpleNamespace(exceptions=RAY.exceptions, get=lambda answers, timeout: answers)
    monkeypatch.setattr(queue_actor, "ray", lambda: local)
    monkeypatch.setattr(queue_actor, "create", lambda actor, name, *arguments, **_: Local(actor, *arguments))
    line = main_of(store).ulid
    queues = RemoteQueues(Place(line), storage_of(store), 3)
    assert queues._number(line, PERSON) != queues._number(line, CITY)
    return queues.of(line)


def staged_on(base: CommitObject, table_key: str, **announced: Any) -> TableStage:
    write = TableWrite(Mode.APPEND, rows_of(_SCHEMA.by_table_key[table_key], ["ann"]), NOTHING_REPLACED)
    return TableStage(replace(_announced(base, table_key, write), **announced), write)


def test_what_several_owners_answer_comes_in_the_order_of_the_questions(store: ObjectStore, queues: LineQueues) -> None:
    newest = newest_of(store)
    base = Base.on(newest, newest)
    staged = queues.stage(base, [staged_on(newest, key) for key in (CITY, PERSON)])
    pins = {key: one.pin for key, one in zip((CITY, PERSON), staged, strict=True) if isinstance(one, StagedPin)}
    assert {key: pin.table_id for key, pin in pins.items()} == {key: newest.pins[key].table_id for key in pins}
    after = Base({**newest.pins, **pins}, newest.line, newest.seq)
    scans = [Scan(_SCHEMA.by_table_key[key], (ID,)) for key in (PERSON, CITY, KNOWS, PERSON)]
    assert [rows[ID].to_pylist() for rows in queues.read(after, scans)] == [["ann"], ["ann"], [], ["ann"]]
    queues.drop([PERSON, CITY])


def test_an_error_of_a_queue_is_raised_as_itself(store: ObjectStore, queues: LineQueues) -> None:
    newest = newest_of(store)
    (staged,) = queues.stage(Base.on(newest, newest), [staged_on(newest, PERSON)])
    assert isinstance(staged, StagedPin)
    lost = Base({PERSON: replace(staged.pin, transaction="lost", since=newest.seq + 1)}, newest.line, newest.seq)
    with pytest.raises(Cold, match=f"{PERSON}: version 2 was staged and is gone"):
        queues.read(lost, [Scan(_PERSON, (ID,))])


@pytest.mark.parametrize(
    ("message", "told"),
    [(READ, "a write queue can't read what it is asked"), (FOUND, "a write queue's answer can't be read")],
)
def test_a_queue_of_another_release_is_blamed_on_no_write(
    store: ObjectStore, queues: LineQueues, monkeypatch: pytest.MonkeyPatch, message: Form, told: str
) -> None:
    """Fault: its messages have another version. Expected: an error that may be tried again, and names the versions."""
    newest = newest_of(store)
    monkeypatch.setattr(message, "_versions", (2,))
    with pytest.raises(StorageError, match=f"{told}: a message of version 1, and this omniray understands 2"):
        queues.read(Base.on(newest, newest), [Scan(_PERSON, (ID,))])


def test_a_bug_in_a_queue_is_an_error_that_names_it(
    store: ObjectStore, queues: LineQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(answers: Any, timeout: float) -> Any:
        error = TaskFailed("in the actor")
        error.cause = KeyError("x")  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(queue_actor.ray(), "get", fail)
    newest = newest_of(store)
    with pytest.raises(StorageError, match=r"a write queue failed: KeyError\('x'\)"):
        queues.read(Base.on(newest, newest), [Scan(_PERSON, (ID,))])


def test_a_reconciler_whose_graph_is_gone_is_not_created_again(store: ObjectStore, created: list[str]) -> None:
    newest = newest_of(store)
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), newest.line, lambda finalised: None)
    assert reconciler._told(newest, newest.op_id) is None, "it is away, and is told again"
    shutil.rmtree(store.uri)
    with pytest.raises(GraphGone, match="was deleted"):
        reconciler._told(newest, newest.op_id)


def test_a_reconciler_that_does_not_answer_does_not_hold_up_the_status(
    store: ObjectStore, created: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: its report never comes. Expected: the last one holds, and what is wrong is said until the next one."""
    monkeypatch.setattr(reconciler_actor, "REPORT_TIMEOUT_S", 0.01)
    newest, told = newest_of(store), list[Finalised]()
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), newest.line, told.append)

    class TookTooLong(Exception):
        pass

    reports: list[Any] = [TookTooLong(), (Finalised(7, {}), 3, "")]

    def get(report: Any, *, timeout: float) -> Any:
        if isinstance(report, Exception):
            raise report
        return report

    monkeypatch.setattr(RAY.exceptions, "GetTimeoutError", TookTooLong, raising=False)
    monkeypatch.setattr(RAY, "get", get)
    reconciler._actor = SimpleNamespace(report=SimpleNamespace(remote=lambda line: reports.pop(0)))
    reconciler.ask()
    assert (told, reconciler.recovered, reconciler.trouble) == ([], 0, "the reconciler gave no answer in 0.01 s")
    reconciler.ask()
    assert (told, reconciler.recovered, reconciler.trouble) == ([Finalised(7, {})], 3, "")


def test_a_reconciler_s_handle_has_no_thread_before_something_has_landed(
    store: ObjectStore, created: list[str]
) -> None:
    """A line that can't be opened is let go by nobody: each try would leave a thread behind."""

    def tellers() -> int:
        return sum(one.name == "omniray-tell-reconciler" for one in threading.enumerate())

    newest, before = newest_of(store), tellers()
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), newest.line, lambda finalised: None)
    assert tellers() == before
    reconciler.notice(newest, newest.op_id)
    assert tellers() == before + 1
    shutil.rmtree(store.uri)  # so that it gives up
    reconciler.let_go()


def test_a_reconciler_that_there_is_not_any_more_keeps_no_branch_from_being_let_go(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_of_that_name(*_: object, **__: object) -> Any:
        raise ValueError("Failed to look up actor with name 'reconciler'")

    monkeypatch.setattr(reconciler_actor, "create", none_of_that_name)
    monkeypatch.setattr(reconciler_actor, "ray", lambda: RAY)
    newest = newest_of(store)
    RemoteReconciler(Place(newest.line), storage_of(store), newest.line, lambda finalised: None).close()


def test_a_reconciler_that_works_without_end_keeps_no_thread_waiting_for_ever(
    store: ObjectStore, created: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class TookTooLong(ActorDied):
        pass

    def get(answer: Any, *, timeout: float) -> Any:
        raise TookTooLong

    monkeypatch.setattr(RAY.exceptions, "GetTimeoutError", TookTooLong, raising=False)
    monkeypatch.setattr(RAY, "get", get)
    newest = newest_of(store)
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), newest.line, lambda finalised: None)
    with pytest.raises(StorageError, match="no answer to 'flush' in 3600 s"):
        reconciler.flush()
