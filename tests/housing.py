"""A coordinator without Ray: its incarnations and what lies behind its door, with all of its actors in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from omniray.coordinator.actors import incarnations as incarnations_module
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.house import CoordinatorHouse
from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.door.app import DoorApp
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.questions import Question
from omniray.coordinator.door.record import DoorRecord
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.history.open_branch import OpenBranch, open_branch
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.maintenance.sweep import NOTHING, SweepReport
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import main_of

CLUSTER = "10.0.0.1:6379"


class LocalQueues:
    """The table queues of a publisher, in its own process."""

    def __init__(self, place: Place, storage: Storage, owners: int) -> None:
        self.storage, self.made, self.has_ended = storage, owners, False
        self._queues: TableQueues | None = None

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        return self._of_now().read(base, questions)

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        return self._of_now().stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> None:
        self._of_now().drop(table_keys)

    def use(self, storage: Storage) -> None:
        self.storage, self._queues = storage, None

    def end(self) -> None:
        self.has_ended = True

    def _of_now(self) -> TableQueues:
        self._queues = self._queues or TableQueues(self.storage.opened())
        return self._queues


class LocalReconciler:
    """A reconciler that finishes nothing, and says what it was asked for."""

    def __init__(self, place: Place, storage: Storage, on_finalised: Callable[[Finalised], None]) -> None:
        self.storage, self._on_finalised = storage, on_finalised
        self.recovered, self.trouble = 1, ""
        self.asked: list[Any] = []
        self.wait: Callable[[], None] = lambda: None  # where `flush` waits

    def use(self, storage: Storage) -> None:
        self.storage = storage

    def notice(self, landed: CommitObject, operation_id: str) -> None:
        self.asked.append(landed.seq)

    def ask(self) -> None:
        self._on_finalised(Finalised(1, {}))

    def flush(self) -> None:
        self.wait()
        self.asked.append("flush")

    def recover(self) -> RecoveryReport:
        self.asked.append("recover")
        return RecoveryReport(rolled_back=("01",))

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        self.asked.append(("sweep", older_than_s, dry_run))
        return SweepReport(7, (), NOTHING, dry_run)

    def close(self) -> None:
        self.asked.append("close")

    def end(self) -> None:
        self.asked.append("end")


def begun(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    instead_of: str = "",
    address: str = CLUSTER,
    door: DoorRecord | None = None,
    **storage: str,
) -> Incarnations:
    """The incarnations of a branch's publisher, the first of which has begun."""
    monkeypatch.setattr(incarnations_module, "RemoteQueues", LocalQueues)
    monkeypatch.setattr(incarnations_module, "RemoteReconciler", LocalReconciler)
    monkeypatch.setattr(incarnations_module, "RELEASE_PAUSES_S", (0.0,))
    main = main_of(store)
    opened = Storage(store.uri, None, open_branch(store).graph_id, main.ulid, **storage)
    record = door or DoorRecord.new("http://127.0.0.1:9")
    return Incarnations(Place(main.ulid), opened, address, 1, instead_of, record)


@dataclass
class Housed:
    """A coordinator that serves a graph over HTTP."""

    incarnations: Incarnations
    house: CoordinatorHouse
    server: HttpServer
    record: DoorRecord
    ends: list[str] = field(default_factory=list)  # how often it was to be ended

    @property
    def line(self) -> str:
        return self.house.line

    @property
    def reconciler(self) -> Any:
        return self.incarnations.reconciler

    def another_branch(self) -> OpenBranch:
        """The branch as a process of a client opens it."""
        return open_branch(open_store(self.incarnations.storage.uri))


@contextmanager
def housed(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Housed]:
    """Serve a graph on loopback."""
    server = HttpServer("127.0.0.1")
    record = DoorRecord.new(server.url)
    incarnations = begun(store, monkeypatch, door=record, **options)
    ends: list[str] = []
    house = CoordinatorHouse(incarnations, server.url, lambda: ends.append("ended"))
    server.start(DoorApp(house, record.secret))
    try:
        yield Housed(incarnations, house, server, record, ends)
    finally:
        server.close()
        incarnations.publisher.close()
