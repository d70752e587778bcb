"""A coordinator without Ray: its incarnations and what lies behind its door, with all of its actors in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from omniray.coordinator.actors import incarnations as incarnations_module
from omniray.coordinator.actors import line_service
from omniray.coordinator.actors.branch_queues import BranchQueues
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.hosted_branches import IDLE_S
from omniray.coordinator.actors.house import CoordinatorHouse
from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.actors.opener import Opener
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.door.app import DoorApp
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.questions import Question
from omniray.coordinator.door.record import DoorRecord
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.history.open_branch import OpenBranch, open_branch
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.maintenance.orphans import NOTHING
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.recovery.recoverer import GRACE_S, RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import main_of

CLUSTER = "10.0.0.1:6379"


class LocalQueues:
    """The table queues of all branches, in the publisher's own process."""

    def __init__(self, place: Place, storage: Storage, owners: int) -> None:
        self.made, self.has_ended = owners, False
        self.use(storage)

    def of(self, line: str) -> LocalLineQueues:
        return LocalLineQueues(self, line)

    def use(self, storage: Storage) -> None:
        self.storage, self.branches = storage, BranchQueues(Opener(storage).opened)

    def end(self) -> None:
        self.has_ended = True


class LocalLineQueues:
    """The table queues of one branch; `wait` is where its look-ups wait."""

    def __init__(self, local: LocalQueues, line: str) -> None:
        self._local, self._line = local, line
        self.wait: Callable[[], None] = lambda: None

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        self.wait()
        with self._local.branches.of(self._line) as queues:
            return queues.read(base, questions)

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        with self._local.branches.of(self._line) as queues:
            return queues.stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> None:
        with self._local.branches.of(self._line) as queues:
            queues.drop(table_keys)

    def let_go(self) -> None:
        self._local.branches.let_go(self._line)


class LocalReconciler:
    """A reconciler that finishes nothing, and says what it was asked for."""

    def __init__(self, place: Place, storage: Storage, line: str, on_finalised: Callable[[Finalised], None]) -> None:
        self.storage, self.line, self._on_finalised = storage, line, on_finalised
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

    def recover(self, grace_s: float = GRACE_S) -> RecoveryReport:
        self.asked.append(("recover", grace_s))
        return RecoveryReport(rolled_back=("01",))

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        self.asked.append(("sweep", older_than_s, dry_run))
        return SweepReport(7, (), NOTHING, dry_run)

    def close(self) -> None:
        self.asked.append("close")

    def let_go(self) -> None:
        self.asked.append("let go")

    def end(self) -> None:
        self.asked.append("end")


def begun(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    instead_of: str = "",
    address: str = CLUSTER,
    door: DoorRecord | None = None,
    branch_idle_s: float = IDLE_S,
    is_asked_for: bool = True,
    **storage: str,
) -> Incarnations:
    """The incarnations of a graph's publisher, the first of which has begun."""
    monkeypatch.setattr(incarnations_module, "RemoteQueues", LocalQueues)
    monkeypatch.setattr(incarnations_module, "RemoteReconciler", LocalReconciler)
    monkeypatch.setattr(line_service, "RELEASE_PAUSES_S", (0.0,))
    graph_id = main_of(store).ulid
    opened = Storage(store.uri, None, graph_id, **storage)
    record = door or DoorRecord.new("http://127.0.0.1:9")
    return Incarnations(
        Place(graph_id), opened, address, 1, instead_of, record,
        branch_idle_s=branch_idle_s, is_asked_for=is_asked_for,
    )  # fmt: skip


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
        incarnations.hosted._ending.set()  # its watch would go on through all later tests
        incarnations.publisher.close()
