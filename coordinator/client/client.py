"""The client of a coordinator: the verbs of an embedded graph, with every write sent to the coordinator.

Reading does not need the coordinator: a snapshot is read from storage, as by an embedded graph. A write is read and
checked here, in parallel with those of other clients, and sent with an id, so that it is applied once (`delivery`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any

from omniray.coordinator.client.batch_writer import IN_FLIGHT, ROWS, BatchWriter
from omniray.coordinator.client.branch_verbs import BranchVerbs
from omniray.coordinator.client.delivery import checked_timeout
from omniray.coordinator.client.large_load import large_files, stage_by_workers
from omniray.coordinator.client.link import Link
from omniray.coordinator.client.on_branch import OnBranch, OnBranches
from omniray.coordinator.client.prepared_load import sending_prepared
from omniray.coordinator.client.starting import Terms
from omniray.coordinator.client.under_way import UnderWay
from omniray.coordinator.client.waits import Waits, carried_out
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import OfWrite, RepairTerms, SweepTerms
from omniray.coordinator.door.status import Status
from omniray.engine.base.errors import InputError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.open_branch import open_branch
from omniray.engine.judge.keylog import ROOMY, KeyMemory
from omniray.engine.judge.resolution import Outcome, WriteResult
from omniray.engine.line.commit_object import Recovery
from omniray.engine.maintenance.sweep import OLDER_THAN_S, SweepReport
from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.recovery.repair import RepairReport
from omniray.engine.schema.types import Schema
from omniray.engine.store.open_store import open_store
from omniray.engine.writes.load import LoadIntent, Progress
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.terms import WriteTerms
from omniray.engine.writes.write_requests import Header, MutationRequest

TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0


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
    """Connect to the coordinator that serves a graph, or start one in the background.

    One that is started so runs on the Ray cluster at `address`, else on a Ray of its own on this machine, and ends when
    no client has been connected for a minute. This process needs no Ray, and joins none. `timeout_s` is how long a
    write may take before its outcome is reported as unknown, at most a year. `durability` is that of `open`, for what
    this client stages and for a coordinator that it starts.
    """
    return Client(fspath(uri), actor, tenant, storage_options, address, checked_timeout(timeout_s), durability)


def connect_to_serving(
    uri: str, storage_options: Mapping[str, str] | None, *, durability: str = "process", timeout_s: float = TIMEOUT_S
) -> Client:
    """Connect to the coordinator that serves a graph; raises `Unreachable` where none does, and starts none."""
    return Client(uri, "", "", storage_options, None, checked_timeout(timeout_s), durability, starts=False)


class Client(BranchVerbs):
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
        *,
        starts: bool = True,
    ) -> None:
        self._arguments = (uri, actor, tenant, storage_options, address, timeout_s, durability)
        self._author, self._timeout_s, self._address = Author(actor, tenant), timeout_s, address
        self._store = open_store(uri, storage_options, durability)
        branch = open_branch(self._store)
        self._link = Link(branch, Terms(uri, storage_options, address, durability))
        try:
            self._link.open(starts=starts, timeout_s=START_TIMEOUT_S if starts else timeout_s)
        except BaseException:
            self._store.close()
            raise
        main = OnBranch.of(branch, self._link, timeout_s)
        self._graph, self._handles = main.graph, OnBranches(self._store, main, timeout_s)
        self._under_way = UnderWay()
        self._closed, self._pid = False, os.getpid()

    def __repr__(self) -> str:
        return f"Client({self._graph.uri!r}, url={self.url!r})"

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
    def url(self) -> str:
        """Where the coordinator's door is; its `/healthz`, `/readyz` and `/metrics` need no credential."""
        return self._link.url

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
        branch: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Load any number of records in one atomic commit, as `Graph.load` does."""
        return carried_out(
            self._loading(
                source, mode=mode, type=type, format=format, branch=branch, actor=actor, tenant=tenant, message=message,
                expected_versions=expected_versions, txn_id=txn_id, on_error=on_error, rejects=rejects,
                progress=progress, timeout_s=timeout_s,
            )
        )  # fmt: skip

    def _loading(
        self,
        source: Any,
        *,
        mode: str = "append",
        type: str | None = None,
        format: str | None = None,
        branch: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Waits[WriteResult]:
        with self._on(branch) as on:
            options = LoadOptions.checked(mode, on_error, rejects)
            terms = WriteTerms(self.written_by(actor, tenant), expected_versions or {}, txn_id, message)
            if txn_id is None and (files := large_files(source)):
                intent = on.stager.begin_load(options, terms)
                stage_by_workers(files, intent, on.link, on.stager, on.graph.schema, options, type, format)
            else:
                intent = on.stager.prepare_load(source, options, terms, type=type, format=format, progress=progress)
            return (yield from self._committing(on, intent, timeout_s))

    def begin_load(
        self,
        options: LoadOptions,
        terms: WriteTerms,
        *,
        announced: Iterable[str] = (),
        memory: KeyMemory = ROOMY,
        branch: str | None = None,
    ) -> LoadIntent:
        """Begin a load whose parts are made elsewhere, as `Graph.begin_load` does."""
        with self._on(branch) as on:
            return on.stager.begin_load(options, terms, announced=announced, memory=memory)

    def commit_load(
        self, intent: LoadIntent, timeout_s: float | None = None, *, branch: str | None = None
    ) -> WriteResult:
        """Commit a load that has all its parts, to the branch that it was begun for."""
        with self._on(branch) as on:
            return carried_out(self._committing(on, intent, timeout_s))

    def _committing(self, on: OnBranch, intent: LoadIntent, timeout_s: float | None) -> Waits[WriteResult]:
        with intent:
            intent.refuse_other(on.graph.line)
            request = intent.request(on.graph.schema_hash)
            if request is None:
                sending = sending_prepared(intent, on.graph, on.stager, on.delivery, timeout_s)
            else:
                sending = on.delivery.sending(request, timeout_s)
            answered = yield from sending
            intent.judged(answered.answer.unfit)
            return intent.finished(answered.answer.result, sent_again=answered.in_doubt)

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Run one query of a `.gq` text as one atomic commit, as `Graph.mutate` does."""
        return carried_out(
            self._mutating(
                text, params, name=name, branch=branch, actor=actor, tenant=tenant, message=message,
                expected_versions=expected_versions, txn_id=txn_id, timeout_s=timeout_s,
            )
        )  # fmt: skip

    def _mutating(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Waits[WriteResult]:
        with self._on(branch) as on:
            now = datetime.now(UTC)
            terms = WriteTerms(self.written_by(actor, tenant), expected_versions or {}, txn_id, message)
            checked = MutationIntent.of(text, params or {}, on.graph.schema, terms, name=name, now=now)
            header = Header(
                checked.commit_id, checked.kind, checked.author, checked.expected_versions, checked.payload_hash,
                on.graph.schema_hash, fresh=txn_id is None, message=checked.message,
            )  # fmt: skip
            request = MutationRequest(header, text, params or {}, name, now)
            return (yield from on.delivery.sending(request, timeout_s)).answer.result

    def submit_load(self, source: Any, **options: Any) -> Future[WriteResult]:
        """`load`, in the background; the future gets its result. Many may be under way at once.

        To cancel the future gives the write up: it may have landed all the same, and sent again with its `txn_id` it
        is applied once.
        """
        self._refuse_unusable()
        return self._under_way.submit(self._loading(source, **options))

    def submit_mutate(self, text: str, params: Mapping[str, Any] | None = None, **options: Any) -> Future[WriteResult]:
        """`mutate`, in the background."""
        self._refuse_unusable()
        return self._under_way.submit(self._mutating(text, params, **options))

    def writer(self, *, rows: int = ROWS, in_flight: int = IN_FLIGHT, **options: Any) -> BatchWriter:
        """A writer that gathers records and loads them in batches; `options` are those of `load`.

        Up to `in_flight` batches of appends are under way at a time; batches of other modes are sent one by one.
        """
        return BatchWriter(self.submit_load, options, rows=rows, in_flight=in_flight)

    async def load_async(self, source: Any, **options: Any) -> WriteResult:
        """`load`, for asyncio, from any event loop. To cancel it gives the write up, as with `submit_load`."""
        return await asyncio.wrap_future(self.submit_load(source, **options))

    async def mutate_async(self, text: str, params: Mapping[str, Any] | None = None, **options: Any) -> WriteResult:
        """`mutate`, for asyncio."""
        return await asyncio.wrap_future(self.submit_mutate(text, params, **options))

    def written_by(self, actor: str | None, tenant: str | None) -> Author:
        """The author of a write: the given actor and tenant, else those of this client."""
        given = {"actor": actor, "tenant": tenant}
        return replace(self._author, **{name: value for name, value in given.items() if value is not None})

    def join_ray(self) -> None:
        """Have this process be part of a Ray cluster, for work that it sends there itself, such as a handoff of Spark.

        One that it has joined already stays. Else it joins the one at the `address` that was given to `connect`, or at
        `RAY_ADDRESS`; no address is ever taken from storage.
        """
        self._refuse_unusable()
        if find_spec("ray") is None:
            raise InputError("this needs a Ray cluster, and Ray is not installed here: pip install 'omniray[ray]'")
        from omniray.coordinator.actors import cluster

        if self._address is None and not (cluster.ray().is_initialized() or os.environ.get("RAY_ADDRESS")):
            raise InputError(
                "this process is part of no Ray cluster: call ray.init(address=...) before, or give the address of one "
                "with omniray.connect(uri, address='HOST:PORT'); address='local' starts one"
            )
        cluster.join(self._address)

    # Reading

    def snapshot(self, *, branch: str | None = None, at: str | date | None = None) -> Snapshot:
        """One consistent cut over all tables: at the head, at a commit id, or as of a time."""
        with self._on(branch) as on:
            return on.graph.snapshot(at=at)

    def history(self, limit: int | None = None, *, branch: str | None = None) -> list[LineageEntry]:
        """The commits of a branch, newest first: its own, then those of its parents that it began with."""
        with self._on(branch) as on:
            return on.graph.history(limit)

    def recoveries(self, limit: int | None = None, *, branch: str | None = None) -> list[Recovery]:
        """What recoveries did on a branch, newest first."""
        with self._on(branch) as on:
            return on.graph.recoveries(limit)

    def outcome(self, txn_id: str, *, branch: str | None = None) -> Outcome:
        """Whether a write whose answer was lost was committed.

        "Not committed" stays true until the write is sent again: a try that is still under way, anywhere, ends with
        `Withdrawn`.
        """
        with self._on(branch) as on:
            found: Outcome = on.link.call(calls.OUTCOME, self._timeout_s, OfWrite(checked_txn_id(txn_id)))
            return found

    # The coordinator

    def status(self, *, branch: str | None = None) -> Status:
        """The status of the coordinator now, and of one branch."""
        with self._on(branch) as on:
            status: Status = on.link.call(calls.STATUS, self._timeout_s)
            return status

    def flush(self, *, branch: str | None = None) -> None:
        """Wait until Phase D of all commits is finished: then plain Lance readers see those of main too."""
        with self._on(branch) as on:
            on.link.call(calls.FLUSH, self._timeout_s)

    def recover(self, *, branch: str | None = None) -> RecoveryReport:
        """Recover the operations of dead writers now; the coordinator also does so by itself."""
        with self._on(branch) as on:
            report: RecoveryReport = on.link.call(calls.RECOVER, self._timeout_s)
            return report

    def repair(
        self, *, adopt: bool = False, discard: bool = False, tables: Sequence[str] | None = None, actor: str = ""
    ) -> RepairReport:
        """Show which tables a foreign writer changed; `adopt` or `discard` its changes, as `Graph.repair` does."""
        self._refuse_unusable()
        terms = RepairTerms(adopt, discard, None if tables is None else list(tables), actor)
        report: RepairReport = self._link.call(calls.REPAIR, self._timeout_s, terms)
        return report

    def sweep(self, *, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete files that nothing refers to and that are older than `older_than_s`; files of running loads stay."""
        self._refuse_unusable()
        report: SweepReport = self._link.call(calls.SWEEP, self._timeout_s, SweepTerms(older_than_s, dry_run))
        return report

    def down(self, timeout_s: float | None = None) -> None:
        """Take the coordinator down: what it accepted is committed first, then everybody may write without it."""
        self._refuse_unusable()
        self._link.wire.call(calls.DOWN, self._timeout_s if timeout_s is None else checked_timeout(timeout_s))

    def close(self) -> None:
        """Disconnect. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._under_way.close()
        self._link.close()
        self._store.close()

    @contextmanager
    def _on(self, branch: str | None) -> Iterator[OnBranch]:
        """The graph on a branch, by its name; main if none is named."""
        self._refuse_unusable()
        with self._handles.on(branch) as on:
            yield on

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise InputError("the client is closed; connect again")
        if os.getpid() != self._pid:  # no thread survives a fork, and no connection may be shared
            raise InputError("the client was connected before this process was forked; connect again here")
