"""A publisher without Ray: queues and Phase D are in the same process, and a test can hold any part of it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.steps import Queues
from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.door.questions import Question
from omniray.coordinator.door.queue_answers import decode_found, decode_staged, encode_found, encode_staged
from omniray.coordinator.door.queue_requests import (
    decode_drop,
    decode_read,
    decode_stage,
    encode_drop,
    encode_read,
    encode_stage,
)
from omniray.coordinator.rounds.admission import Limits
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.judge.condition import Condition
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.resolution import Affected, Resolution
from omniray.engine.judge.room import Room
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.owner import Incarnation, release, take_over
from omniray.engine.schema.types import ID, Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.load import prepare_load
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.staging_tables import StagingTables
from omniray.engine.writes.terms import WriteTerms
from omniray.engine.writes.write_requests import Header, LoadRequest, MutationRequest, Request
from tests.graphs import opened

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
    touched: frozenset[str] = frozenset()

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        yield from ()

    def resolve(self, state: State, schema: Schema) -> Resolution:
        self.gate.hold()
        return Resolution({}, Affected())


class _NothingToLease:
    """The lease of a load whose rows are too few to be staged."""

    def adopt(self, taken: Iterable[str]) -> None:
        pass

    def release(self) -> None:
        pass


@dataclass
class Sender:
    """Makes writes as a client sends them: read and checked, as far as that takes no state."""

    schema: Schema
    schema_hash: str = "hash"

    def load_request(self, source: Any, *, mode: str = "append", type: str | None = None, **header: Any) -> LoadRequest:
        options = LoadOptions.checked(mode, header.pop("on_error", "fail"), header.pop("rejects", None))
        author = Author(header.pop("actor", "ann"), header.pop("tenant", ""))
        nothing: Any = None
        tables = StagingTables(self.schema, nothing, nothing, _NothingToLease)  # type: ignore[arg-type]
        txn_id = header.pop("txn_id", None) or new_ulid()
        terms = WriteTerms(author, header.pop("expected_versions", {}), txn_id)
        intent = prepare_load(source, tables, options, terms, type_name=type, format=None, progress=None)
        request = intent.request(self.schema_hash)
        intent.close(used=True)
        assert request is not None
        return request

    def mutation(self, text: str, params: Mapping[str, Any] | None = None, **header: Any) -> MutationRequest:
        now, author = datetime.now(UTC), Author("ann", header.get("tenant", ""))
        expected = header.get("expected_versions", {})
        terms = WriteTerms(author, expected, header.get("txn_id") or new_ulid())
        intent = MutationIntent.of(text, params or {}, self.schema, terms, name=None, now=now)
        head = Header(intent.commit_id, intent.kind, author, expected, intent.payload_hash, self.schema_hash)
        return MutationRequest(head, text, params or {}, None, now)

    def plug(self) -> Plug:
        return Plug(Header(new_ulid(), "Mutation", Author(), {}, "", self.schema_hash))


class ByMessages:
    """Table queues as a publisher reaches them in other processes: by messages."""

    def __init__(self, queues: TableQueues) -> None:
        self._queues = queues

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        asked = decode_read(encode_read(base, questions), self._queues.schema)
        found = decode_found(encode_found(asked[1], self._queues.read(*asked)), questions)
        assert not isinstance(found, OmnirayError)
        return found

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        asked = decode_stage(encode_stage(base, stages), self._queues.schema)
        staged = decode_staged(encode_staged(self._queues.stage(*asked)), base, stages)
        assert not isinstance(staged, OmnirayError)
        return staged

    def drop(self, table_keys: Sequence[str]) -> None:
        self._queues.drop(decode_drop(encode_drop("", table_keys), self._queues.schema))

    def close(self) -> None:
        self._queues.close()


class Service(Sender):
    """Everything that a publisher needs, in one process."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        wrap_queues: Callable[[Queues], Queues] = lambda queues: queues,
        wrap_log: Callable[[CommitLog], CommitLog] = lambda log: log,
        limits: Limits | None = None,
    ) -> None:
        self.store = store
        self.branch = opened(store, wrap_log)
        self.log, self.sidecars = self.branch.log, self.branch.sidecars
        super().__init__(self.branch.schema, self.branch.schema_hash)
        self.tip = self.branch.tip.another()
        self.owner = str(Incarnation.new("nowhere"))
        take_over(self.tip, self.owner)
        self.finaliser = Finaliser(self.branch)
        self.queues = wrap_queues(ByMessages(TableQueues(opened(store))))
        self.publisher = Publisher(
            self.branch, self.tip, self.queues, self.finaliser.notice, owner=self.owner, limits=limits
        )

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
        log = CommitLog(self.store, self.branch.branch)
        newest = log.newest_listed()
        assert newest is not None
        return list(reversed(log.down_to(newest, 1)))

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


class Held:
    """A state whose tables are in memory, rows at the addresses 0, 1, …; it counts what it is asked for."""

    def __init__(self, schema: Schema, tables: Mapping[str, pa.Table] | None = None, version: int = 7) -> None:
        self._version = version
        self._tables = {
            type.table_key: _addressed((tables or {}).get(type.table_key, type.arrow.empty_table())) for type in schema
        }
        self.asked = 0

    def count(self, table_key: str) -> int:
        return int(self._tables[table_key].num_rows)

    def version(self, table_key: str) -> int:
        return self._version

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        return self.matching(table_key, ID, ids, (ID,))[ID].combine_chunks()

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        self.asked += 1
        return self._tables[table_key].filter(pc.field(column).isin(values)).select([*columns, ROWADDR])

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        self.asked += 1
        return self._tables[table_key].select([*columns, ROWADDR]).to_reader(max_chunksize=2)

    def select(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        self.asked += 1
        return room.read(self._tables[table_key].filter(where.expression).select(columns).to_reader(max_chunksize=2))


def _addressed(rows: pa.Table) -> pa.Table:
    return rows.append_column(ROWADDR, pa.array(range(rows.num_rows), pa.uint64()))


@contextmanager
def serving(store: ObjectStore, **options: Any) -> Iterator[Service]:
    service = Service(store, **options)
    try:
        yield service
    finally:
        service.close()
