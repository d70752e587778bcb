"""The client of a coordinator: the verbs of an embedded graph, with every write sent to the coordinator.

Reading does not need the coordinator: a snapshot is read from storage, as by an embedded graph. A write is read and
checked here, in parallel with those of other clients, and sent with an id, so that it may be sent again: to a
coordinator that takes over, after a time-out, or after a lost answer. It is applied once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from omniray.coordinator.actors.actor import first_line
from omniray.coordinator.actors.cluster import ray
from omniray.coordinator.client.batch_writer import IN_FLIGHT, ROWS, BatchWriter
from omniray.coordinator.client.service import Service, absolute, serve
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    Conflict,
    Fenced,
    InputError,
    Moved,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    StorageError,
    Withdrawn,
)
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.open_branch import open_branch
from omniray.engine.judge.keylog import ROOMY, KeyMemory
from omniray.engine.judge.resolution import Affected, Outcome, Resolution, WriteResult
from omniray.engine.line.commit_object import Recovery
from omniray.engine.load_stager import LoadStager
from omniray.engine.reader import GraphReader
from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.rows.source_files import find_file
from omniray.engine.schema.types import Schema
from omniray.engine.store.open_store import open_store
from omniray.engine.writes.load import LoadIntent, Progress
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.write_requests import (
    Header,
    MutationRequest,
    PreparedRequest,
    Request,
    sent_again,
)
from omniray.workers.staging import staged_parts

if TYPE_CHECKING:
    from omniray.coordinator.actors.publisher_actor import Status

log = logging.getLogger("omniray")

TIMEOUT_S = 60.0
IN_FLIGHT_MAX = 64
PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
JUDGEMENTS_MAX = 100
WORKERS_BYTES_MIN = 32 << 20


@dataclass(frozen=True, slots=True)
class _Answered:
    """The answer to a write, and whether an earlier try without an answer may be the one that was applied."""

    answer: WriteAnswer
    in_doubt: bool


def connect(
    uri: str | PathLike[str],
    *,
    actor: str = "",
    tenant: str = "",
    storage_options: Mapping[str, str] | None = None,
    address: str | None = None,
    timeout_s: float = TIMEOUT_S,
    durability: str = "process",
) -> Client:
    """Connect to the coordinator that serves a graph, or start one.

    It runs on the Ray cluster at `address`, else on this machine's, which is started if there is none and then ends
    with this process. `timeout_s` is how long a write may take before its outcome is reported as unknown. `durability`
    is that of `open`, for what this client stages and for a coordinator that it starts.
    """
    return Client(fspath(uri), actor, tenant, storage_options, address, _checked_timeout(timeout_s), durability)


class Client:
    """A graph that a coordinator serves; use it as a context manager, or `close()` it. Threads may share it."""

    def __init__(
        self,
        uri: str,
        actor: str,
        tenant: str,
        storage_options: Mapping[str, str] | None,
        address: str | None,
        timeout_s: float,
        durability: str,
    ) -> None:
        self._arguments = (uri, actor, tenant, storage_options, address, timeout_s, durability)
        self._author, self._timeout_s = Author(actor, tenant), timeout_s
        self._store = open_store(uri, storage_options, durability)
        branch = open_branch(self._store)
        self._graph, self._stager = GraphReader(branch), LoadStager(branch)
        try:
            self._service: Service = serve(self._graph, uri, storage_options, address, durability=durability)
        except BaseException:
            self._store.close()
            raise
        self._pool = ThreadPoolExecutor(IN_FLIGHT_MAX, thread_name_prefix="omniray-client")
        self._closed, self._pid = False, os.getpid()

    def __repr__(self) -> str:
        return f"Client({self._graph.uri!r}, address={self._service.address!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, self._arguments

    @property
    def uri(self) -> str:
        return self._graph.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        return self._graph.storage_options

    @property
    def graph_id(self) -> str:
        return self._graph.graph_id

    @property
    def schema(self) -> Schema:
        return self._graph.schema

    # Writing

    def load(
        self,
        source: Any,
        *,
        mode: str = "append",
        type: str | None = None,
        format: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Load any number of records in one atomic commit, as `Graph.load` does."""
        self._refuse_unusable()
        options = LoadOptions.checked(mode, on_error, rejects)
        author = self.written_by(actor, tenant)
        if txn_id is None and (files := _large_files(source)):
            intent = self._staged_by_workers(files, options, author, expected_versions or {}, type, format)
        else:
            intent = self._stager.prepare_load(
                source, options, author, expected_versions or {},
                type=type, format=format, progress=progress, txn_id=txn_id,
            )  # fmt: skip
        return self.commit_load(intent, timeout_s)

    def begin_load(
        self,
        options: LoadOptions,
        author: Author,
        expected_versions: Mapping[str, int],
        *,
        txn_id: str | None = None,
        announced: Iterable[str] = (),
        memory: KeyMemory = ROOMY,
    ) -> LoadIntent:
        """Begin a load whose parts are made elsewhere, as `Graph.begin_load` does."""
        self._refuse_unusable()
        return self._stager.begin_load(
            options, author, expected_versions, txn_id=txn_id, announced=announced, memory=memory
        )

    def commit_load(self, intent: LoadIntent, timeout_s: float | None = None) -> WriteResult:
        """Commit a load that has all its parts."""
        self._refuse_unusable()
        with intent:
            request = intent.request(self._graph.schema_hash)
            answered = self._send_prepared(intent, timeout_s) if request is None else self._send(request, timeout_s)
            intent.judged(answered.answer.unfit)
            return intent.finished(answered.answer.result, sent_again=answered.in_doubt)

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Run one query of a `.gq` text as one atomic commit, as `Graph.mutate` does."""
        self._refuse_unusable()
        now = datetime.now(UTC)
        author = self.written_by(actor, tenant)
        checked = MutationIntent.of(
            text, params or {}, self.schema, author, expected_versions or {},
            name=name, now=now, txn_id=txn_id,
        )  # fmt: skip
        header = Header(
            checked.commit_id, checked.kind, author, checked.expected_versions, checked.payload_hash,
            self._graph.schema_hash, fresh=txn_id is None,
        )  # fmt: skip
        return self._send(MutationRequest(header, text, params or {}, name, now), timeout_s).answer.result

    def submit_load(self, source: Any, **options: Any) -> Future[WriteResult]:
        """`load`, in the background; the future gets its result. Many may be under way at once."""
        self._refuse_unusable()
        return self._pool.submit(self.load, source, **options)

    def submit_mutate(self, text: str, params: Mapping[str, Any] | None = None, **options: Any) -> Future[WriteResult]:
        """`mutate`, in the background."""
        self._refuse_unusable()
        return self._pool.submit(self.mutate, text, params, **options)

    def writer(self, *, rows: int = ROWS, in_flight: int = IN_FLIGHT, **options: Any) -> BatchWriter:
        """A writer that gathers records and loads them in batches; `options` are those of `load`.

        Up to `in_flight` batches of appends are under way at a time; batches of other modes are sent one by one.
        """
        return BatchWriter(self.submit_load, options, rows=rows, in_flight=in_flight)

    async def load_async(self, source: Any, **options: Any) -> WriteResult:
        """`load`, for asyncio."""
        return await asyncio.wrap_future(self.submit_load(source, **options))

    async def mutate_async(self, text: str, params: Mapping[str, Any] | None = None, **options: Any) -> WriteResult:
        """`mutate`, for asyncio."""
        return await asyncio.wrap_future(self.submit_mutate(text, params, **options))

    def _staged_by_workers(
        self,
        files: Sequence[str],
        options: LoadOptions,
        author: Author,
        expected_versions: Mapping[str, int],
        type: str | None,
        format: str | None,
    ) -> LoadIntent:
        """A load of several large files, each read, checked and staged by a worker."""
        uri, _, _, storage_options, *_ = self._arguments
        intent = self.begin_load(options, author, expected_versions)
        try:
            concerned = [self.schema.type(type)] if type is not None else list(self.schema)
            since_us = intent.announce(one.table_key for one in concerned)
            parts = staged_parts(
                absolute(uri), storage_options, self.graph_id, files, options, since_us, type=type, format=format
            )
            for part in parts:
                intent.take_part(part)
        except BaseException:
            intent.close(used=False)
            raise
        return intent

    def _send_prepared(self, intent: LoadIntent, timeout_s: float | None) -> _Answered:
        """Commit a prepared load: judge it here, and again whenever a table that it was judged on has moved."""
        for judgement in range(JUDGEMENTS_MAX):
            resolution, judged_on = self._judged(intent)
            header = Header(
                intent.commit_id, intent.kind, intent.author, intent.expected_versions, intent.payload_hash,
                self._graph.schema_hash, fresh=judgement == 0 and not intent.resubmittable,
            )  # fmt: skip
            with contextlib.suppress(Moved):
                return self._send(PreparedRequest(header, resolution, judged_on), timeout_s)
        raise Moved(
            f"the load was judged {JUDGEMENTS_MAX} times and its tables moved each time; nothing was written: load "
            "again while fewer others write"
        )

    def _judged(self, intent: LoadIntent) -> tuple[Resolution, Mapping[str, int]]:
        """Judge a load here. A committed load may conflict with its own rows: then it is sent without rows."""
        try:
            return self._stager.judge(intent)
        except (Conflict, InputError):
            with contextlib.suppress(OutcomeUnknown):
                self._graph.outcome(intent.commit_id)
                return Resolution({}, Affected()), {}
            raise

    def _send(self, request: Request, timeout_s: float | None) -> _Answered:
        """Send a write until it is answered; an id is applied only once.

        Once a try has ended without an answer, only an answer to the write itself settles the outcome.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else _checked_timeout(timeout_s))
        pause_s, in_doubt = PAUSE_S, False
        while True:
            try:
                return _Answered(self._service.submit(request, _left(request, deadline)), in_doubt)
            except (Overloaded, Withdrawn) as error:
                failed: OmnirayError = error
                pause_s = max(pause_s, error.facts.get("retry_after_s", 0.0))
            except (Fenced, OutcomeUnknown) as error:
                failed, in_doubt = error, True
            except StorageError as error:
                if in_doubt:
                    raise _unknown(request) from error
                raise
            if time.monotonic() + pause_s > deadline:
                if in_doubt:
                    raise _unknown(request) from failed
                raise failed
            if isinstance(failed, Fenced | OutcomeUnknown):
                self._find_again(request, deadline)
            request = sent_again(request)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _find_again(self, request: Request, deadline: float) -> None:
        """Find the coordinator that serves the graph now; a failure here says nothing about the write in doubt."""
        left_s = _left(request, deadline)
        try:
            self._service = self._service.found_again(self._graph, left_s)
        except (StorageError, ray().exceptions.RayError) as error:  # the old service is asked until the time-out
            log.warning("event=coordinator_not_found txn_id=%s error=%s", request.header.commit_id, first_line(error))
        except OmnirayError as error:
            raise OutcomeUnknown(
                f"write {request.header.commit_id} was not answered, and may have landed before that: {error}; send it "
                "again with this txn_id, and it is applied once",
                **{**error.facts, "txn_id": request.header.commit_id},
            ) from error

    def written_by(self, actor: str | None, tenant: str | None) -> Author:
        """The author of a write: the given actor and tenant, else those of this client."""
        given = {"actor": actor, "tenant": tenant}
        return replace(self._author, **{name: value for name, value in given.items() if value is not None})

    # Reading

    def snapshot(self, *, at: str | date | None = None) -> Snapshot:
        """One consistent cut over all tables: at the head, at a commit id, or as of a time."""
        return self._graph.snapshot(at=at)

    def history(self, limit: int | None = None) -> list[LineageEntry]:
        """The commits, newest first."""
        return self._graph.history(limit)

    def recoveries(self, limit: int | None = None) -> list[Recovery]:
        """What recoveries did, newest first."""
        return self._graph.recoveries(limit)

    def outcome(self, txn_id: str) -> Outcome:
        """Whether a write was committed.

        Raises `OutcomeUnknown` if it is not found, since a try may be on its way: send it again with this id.
        """
        self._refuse_unusable()
        txn_id = checked_txn_id(txn_id)
        if self._service.is_committed(txn_id, self._timeout_s):
            return Outcome(txn_id, committed=True)
        raise OutcomeUnknown(
            f"{txn_id} is not committed, but a try may be under way: send the write again with this txn_id",
            txn_id=txn_id,
        )

    # The coordinator

    def status(self) -> Status:
        """The status of the coordinator now."""
        self._refuse_unusable()
        return self._service.status(self._timeout_s)

    def flush(self) -> None:
        """Wait until Phase D of all commits is finished: then plain Lance readers see them too."""
        self._refuse_unusable()
        self._service.flush(self._timeout_s)

    def recover(self) -> RecoveryReport:
        """Recover the operations of dead writers now; the coordinator also does so by itself."""
        self._refuse_unusable()
        return self._service.recover(self._timeout_s)

    def close(self) -> None:
        """Disconnect; a coordinator that this client started is taken down. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._pool.shutdown()
        try:
            self._service.close(self._timeout_s)
        finally:
            self._store.close()

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise InputError("the client is closed; connect again")
        if os.getpid() != self._pid:  # no thread survives a fork, ours or Ray's: a request would wait for ever
            raise InputError("the client was connected before this process was forked; connect again here")


def _large_files(source: Any) -> list[str]:
    """The files of a load that workers should stage: several large ones; empty for any other source."""
    if not isinstance(source, list | tuple) or len(source) < 2:
        return []
    if not all(isinstance(one, str | PathLike) for one in source):
        return []
    files = [find_file(one) for one in source]
    is_large = sum(file.size or 0 for file in files) >= WORKERS_BYTES_MIN and all(file.replayable for file in files)
    return [file.path for file in files] if is_large else []


def _checked_timeout(timeout_s: float) -> float:
    if not timeout_s > 0:  # also refuses NaN
        raise InputError(f"a time-out of {timeout_s} s leaves no time for an answer: give more than 0")
    return timeout_s


def _left(request: Request, deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise _unknown(request)
    return left_s


def _unknown(request: Request) -> OutcomeUnknown:
    txn_id = request.header.commit_id
    return OutcomeUnknown(
        f"no answer in time to write {txn_id}: it may have landed, or may yet; send it again with this txn_id, and it "
        "is applied once",
        txn_id=txn_id,
    )
