"""A publisher without Ray: its queues and its Phase D are in the same process, and a test can hold any part of it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from omniray.coordinator.conflicts import WriteAnswer
from omniray.coordinator.publisher import Publisher, Queues
from omniray.coordinator.rounds import Limits
from omniray.coordinator.table_queues import TableQueues
from omniray.engine.clock import suspension_aware_clock
from omniray.engine.commit_log import CommitLog
from omniray.engine.errors import OmnirayError
from omniray.engine.finalise import Finaliser
from omniray.engine.commit_log import MAIN, MAIN_BRANCH
from omniray.engine.identity import new_ulid
from omniray.engine.lease import Lease
from omniray.engine.line import CommitObject
from omniray.engine.lineage import Lineage
from omniray.engine.load import prepare_load
from omniray.engine.load_options import LoadOptions
from omniray.engine.manifest import Manifest
from omniray.engine.owner import Incarnation, release, take_over
from omniray.engine.pinned import State
from omniray.engine.request import Header, LoadRequest, MutationRequest, Request
from omniray.engine.schema import Schema
from omniray.engine.schema_files import read_schema
from omniray.engine.sidecar import Sidecars
from omniray.engine.store import ObjectStore
from omniray.engine.tip import Tip
from omniray.engine.write import Affected, Author, Resolution

TIMEOUT_S = 60.0

Told = WriteAnswer | OmnirayError
"""What somebody is told of a write."""


class Gate:
    """A place where threads wait until the test lets them go on."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def hold(self) -> None:
        self._reached.set()
        assert self._opened.wait(TIMEOUT_S), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(TIMEOUT_S), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()


@dataclass
class Plug:
    """A write without effect whose judgement waits: what is submitted meanwhile makes the next round."""

    header: Header
    gate: Gate = field(default_factory=Gate)
    rows: int = 0
    size_bytes: int = 0
    alone: bool = False

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        yield from ()

    def resolve(self, state: State, schema: Schema) -> Resolution:
        self.gate.hold()
        return Resolution({}, Affected())


class Service:
    """Everything that a publisher needs, in one process."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        wrap_queues: Callable[[TableQueues], Queues] = lambda queues: queues,
        wrap_log: Callable[[CommitLog], CommitLog] = lambda log: log,
        limits: Limits | None = None,
    ) -> None:
        self.store = store
        self.log = wrap_log(CommitLog(store, MAIN_BRANCH))
        self.schema, _, self.state = read_schema(store, self.log)
        manifest, self.sidecars = Manifest(store, MAIN), Sidecars(store)
        read_at = suspension_aware_clock()
        newest = self.log.newest()
        assert newest is not None
        self.tip = Tip(self.log, manifest, newest, read_at=read_at)
        self.owner = str(Incarnation.new("nowhere"))
        take_over(self.tip, self.owner)
        self.finaliser = Finaliser(store, self.log, manifest, self.sidecars)
        self.queues = wrap_queues(TableQueues(store, self.schema))
        self.publisher = Publisher(
            store,
            self.tip,
            Lineage(self.log, manifest, self.tip.refresh),
            self.sidecars,
            self.schema,
            self.state.schema_hash,
            self.queues,
            self.finaliser.notice,
            branch=str(MAIN_BRANCH),
            owner=self.owner,
            limits=limits,
        )

    # Requests

    def load_request(self, source: Any, *, mode: str = "append", type: str | None = None, **header: Any) -> LoadRequest:
        options = LoadOptions.checked(mode, header.pop("on_error", "fail"), header.pop("rejects", None))
        author = Author(header.pop("actor", "ann"), header.pop("tenant", ""))
        intent = prepare_load(
            source, self.schema, options, author, header.pop("expected_versions", {}),
            storage=None, open_table=None, type_name=type, format=None, progress=None,
            txn_id=header.pop("txn_id", None) or new_ulid(), lease=Lease(self.sidecars, str(MAIN_BRANCH), self.newest),
        )  # fmt: skip
        request = intent.request(self.state.schema_hash)
        intent.close(used=True)
        assert request is not None
        return request

    def mutation(self, text: str, params: Mapping[str, Any] | None = None, **header: Any) -> MutationRequest:
        head = self._header("Mutation", header.get("txn_id"), header.get("tenant", ""), header.get("payload_hash", ""))
        head = Header(
            head.commit_id, head.kind, head.author, header.get("expected_versions", {}), head.payload_hash,
            head.schema_hash,
        )  # fmt: skip
        return MutationRequest(head, text, params or {}, None, datetime.now(UTC))

    def plug(self) -> Plug:
        return Plug(self._header("Mutation"))

    def _header(self, kind: str, txn_id: str | None = None, tenant: str = "", payload_hash: str = "") -> Header:
        return Header(txn_id or new_ulid(), kind, Author("ann", tenant), {}, payload_hash, self.state.schema_hash)

    # Writing

    def write(self, request: Request) -> WriteAnswer:
        return self.publisher.submit(request).result(TIMEOUT_S)

    def in_one_round(self, requests: Sequence[Request]) -> list[Told]:
        """Judge and commit writes together; what each of them is told."""
        plug = self.plug()
        plugged = self.publisher.submit(plug)
        plug.gate.wait_until_reached()
        futures = [self.publisher.submit(request) for request in requests]
        plug.gate.open()
        plugged.result(TIMEOUT_S)
        return told(futures)

    # The line

    @property
    def newest(self) -> CommitObject:
        return self.publisher.newest

    def line(self) -> list[CommitObject]:
        """All objects, oldest first."""
        newest = CommitLog(self.store, MAIN_BRANCH).newest_listed()
        assert newest is not None
        return list(reversed(CommitLog(self.store, MAIN_BRANCH).down_to(newest, 1)))

    def close(self) -> None:
        self.publisher.close()
        release(self.tip, self.owner)
        self.finaliser.notice(self.tip.newest)
        self.finaliser.close()


def told(futures: Iterable[Future[WriteAnswer]]) -> list[Told]:
    """The answers, once all are there; an error is an answer too."""
    return [_told(future) for future in futures]


def _told(future: Future[WriteAnswer]) -> Told:
    try:
        return future.result(TIMEOUT_S)
    except OmnirayError as error:
        return error


@contextmanager
def serving(store: ObjectStore, **options: Any) -> Iterator[Service]:
    service = Service(store, **options)
    try:
        yield service
    finally:
        service.close()
