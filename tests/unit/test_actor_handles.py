"""The handles by which the publisher calls its other Ray actors, without Ray: what they do when an actor is away."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from omniray.coordinator.actors import queue_actor, reconciler_actor
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.queue_actor import RemoteQueues
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.actors.table_queues import Question
from omniray.engine.base.errors import GraphGone, StorageError
from omniray.engine.commit.staging import Base
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import ObjectStore
from tests.coordination import TIMEOUT_S
from tests.graphs import PERSON, main_of


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
    line = main_of(store).ulid
    return Storage(store.uri, None, line, line)


def newest_of(store: ObjectStore) -> CommitObject:
    newest = CommitLog(store, main_of(store)).newest()
    assert newest is not None
    return newest


def test_the_owner_of_a_queue_whose_graph_is_gone_is_not_created_again(store: ObjectStore, created: list[str]) -> None:
    newest = newest_of(store)
    queues = RemoteQueues(Place(newest.line), storage_of(store), 1)
    shutil.rmtree(store.uri)
    with pytest.raises(GraphGone, match="was deleted"):
        queues.read(Base.on(newest, newest), [Question("scan", PERSON, ())])
    queues.drop([PERSON])
    assert created == [Place(newest.line).queues(0)], "once, by the first call"


def test_the_owner_of_a_queue_that_died_is_waited_for_while_its_graph_is_there(
    store: ObjectStore, created: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = newest_of(store)
    queues = RemoteQueues(Place(newest.line), storage_of(store), 1)
    answers = [_die, _die, lambda *_, **__: []]
    monkeypatch.setattr(RAY, "get", lambda *args, **options: answers.pop(0)(*args, **options))
    with pytest.raises(StorageError, match="tried again"):
        queues.read(Base.on(newest, newest), [Question("scan", PERSON, ())])
    assert (len(created), answers) == (3, [])


def test_a_reconciler_whose_graph_is_gone_is_not_created_again(store: ObjectStore, created: list[str]) -> None:
    newest = newest_of(store)
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), lambda finalised: None)
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
    reconciler = RemoteReconciler(Place(newest.line), storage_of(store), told.append)

    async def ask_twice() -> None:
        reports = [asyncio.Future[tuple[Finalised, int, str]](), asyncio.Future[tuple[Finalised, int, str]]()]
        reports[1].set_result((Finalised(7, {}), 3, ""))
        reconciler._actor = SimpleNamespace(report=SimpleNamespace(remote=lambda: reports.pop(0)))
        await reconciler.ask()
        assert (told, reconciler.recovered, reconciler.trouble) == ([], 0, "the reconciler gave no answer in 0.01 s")
        await reconciler.ask()
        assert (told, reconciler.recovered, reconciler.trouble) == ([Finalised(7, {})], 3, "")

    asyncio.run(asyncio.wait_for(ask_twice(), TIMEOUT_S))
