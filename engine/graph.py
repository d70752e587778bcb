"""A graph: open it, write to it, read it as of any commit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import InputError, NotFound, OmnirayError, OutcomeUnknown
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.commit.create_graph import give_birth
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.accepted_schema import SchemaState, read_schema
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import LineageEntry, Manifest
from omniray.engine.judge.keylog import ROOMY, KeyMemory
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.judge.resolution import Outcome, Resolution, WriteResult
from omniray.engine.line.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Pin, Recovery
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import is_owner_known_dead, release, take_over
from omniray.engine.line.sidecar import SidecarIntent, Sidecars
from omniray.engine.maintenance.sweep import OLDER_THAN_S, Sweeper, SweepReport
from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.recovery.recoverer import GRACE_S, Recoverer, RecoveryReport
from omniray.engine.recovery.repair import Repair, RepairReport
from omniray.engine.rows.sources import open_source
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Table
from omniray.engine.writer import Writer
from omniray.engine.writes.lease import Lease
from omniray.engine.writes.load import LoadIntent, Progress, prepare_load
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import StagedPart, stage_part
from omniray.engine.writes.table_part import TablePart, read_part


def init(
    uri: str | PathLike[str],
    *,
    schema: str | Path,
    storage_options: Mapping[str, str] | None = None,
    actor: str = "",
    durability: str = "process",
) -> Graph:
    """Create a graph where nothing is yet and open it. `schema` is `.pg` text, or a `Path` to a file with it."""
    text = _read_schema_file(schema) if isinstance(schema, Path) else schema
    if text.rstrip().endswith(".pg") and len(text.splitlines()) == 1:
        raise InputError(f"the schema is the text {text!r}: to read it from a file, give schema=pathlib.Path({text!r})")
    store = open_store(uri, storage_options, durability)
    give_birth(store, text, actor=actor)
    return Graph(store, read_only=False)


def open(
    uri: str | PathLike[str],
    *,
    read_only: bool = False,
    storage_options: Mapping[str, str] | None = None,
    durability: str = "process",
    grace_s: float = GRACE_S,
) -> Graph:
    """Open a graph, and heal what writers that died have left; read-only, nothing is ever written, not even that.

    On a disk, an acknowledged write survives the death of the process; with `durability="power"` a power cut too. A
    writer that died on this machine is recognised at once, one elsewhere after `grace_s` seconds.
    """
    if not grace_s > 0:
        raise InputError(f"a grace period of {grace_s} s would take every writer for dead: give more than 0")
    return Graph(open_store(uri, storage_options, durability), read_only=read_only, grace_s=grace_s)


def _read_schema_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't read the schema {path}: {error.strerror}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"can't read the schema {path}: it is not UTF-8 (byte {error.start})") from error


class Graph:
    """An open graph; use it as a context manager, or `close()` it, so that Phase D of its writes is through.

    Threads may share it; processes open their own.
    """

    def __init__(self, store: ObjectStore, *, read_only: bool, grace_s: float = GRACE_S, owner: str = EMBEDDED) -> None:
        self._store, self._read_only, self._owner = store, read_only, owner
        self._log = CommitLog(store, MAIN_BRANCH)
        self._schema, self._schema_text, self._state = read_schema(store, self._log)
        read_at = suspension_aware_clock()
        newest = self._require_newest()
        self._manifest = Manifest(store, MAIN)
        self._storage, self._sidecars = TableStorage(store), Sidecars(store)
        self._cache = TableCache(store, self._storage, self._schema, read_only=read_only)
        self._finaliser = Finaliser(store, self._log, self._manifest, self._sidecars)
        self._reading = Tip(self._log, newest, is_folded=self._manifest.is_folded, read_at=read_at)
        self._lineage = Lineage(self._log, self._manifest, self._reading.refresh)
        self._recoverer = Recoverer(store, self._sidecars, self._lineage, self._finaliser, owner=owner, grace_s=grace_s)
        self._writing = self._reading.another()
        self._writer = Writer(
            store, self._writing, self._lineage, self._storage, self._cache, self._finaliser, self._sidecars,
            self._recoverer, self._schema, branch=str(MAIN_BRANCH), owner=owner,
        )  # fmt: skip
        self._closed = False
        self._pid = os.getpid()
        self.recovered = RecoveryReport()  # what opening it healed
        if not read_only:
            self._begin()

    def _begin(self) -> None:
        """Take the line over if it is to have an owner, or from one that is dead, and heal what others left."""
        try:
            if self._owner != EMBEDDED:
                take_over(self._writing, self._owner)
            self._writer.inherit()
            self.recovered = self._recoverer.recover(self._writing)
        except BaseException:
            with contextlib.suppress(OmnirayError):
                self._release()
            self._let_go()
            raise

    def __repr__(self) -> str:
        return f"Graph({self._store.uri!r}{', read_only=True' if self._read_only else ''})"

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open graph can't be pickled: pass its URI, and open it there with omniray.open(uri)")

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options it was opened with, for those who open it elsewhere."""
        return self._store.lance_options or {}

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def schema_text(self) -> str:
        """The schema as its author wrote it."""
        return self._schema_text

    @property
    def graph_id(self) -> str:
        """What the graph was called when it was born; one that is created anew at the same place is another one."""
        return self._state.graph_id

    @property
    def schema_state(self) -> SchemaState:
        return self._state

    # Writing

    def load(
        self,
        source: Any,
        *,
        mode: str = "append",
        type: str | None = None,
        format: str | None = None,
        branch: str = MAIN,
        actor: str = "",
        tenant: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Progress | None = None,
    ) -> WriteResult:
        """Load records of any number in one atomic commit.

        `source`: a path (JSONL, CSV, Parquet), Arrow data, a DataFrame, dicts, or a list of those. `mode`: `append`
        (an existing key is a KeyConflict), `merge` (replace by key) or `overwrite` (the touched tables only).
        `on_error="reject"` writes refused records to `rejects` and loads the others. `txn_id`: a ULID that makes the
        write safe to repeat, from anywhere and at any time: the first outcome is returned and nothing applied twice.
        """
        self._writable(branch)
        options = LoadOptions.checked(mode, on_error, rejects)
        submitted_at = None if txn_id is None else self._reading.refresh()
        intent = self.prepare_load(
            source, options, Author(actor, tenant), expected_versions or {},
            type=type, format=format, progress=progress, txn_id=txn_id,
        )  # fmt: skip
        with intent:
            return intent.finished(self._writer.commit(intent, submitted_at))

    def prepare_load(
        self,
        source: Any,
        options: LoadOptions,
        author: Author,
        expected_versions: Mapping[str, int],
        *,
        type: str | None = None,
        format: str | None = None,
        progress: Progress | None = None,
        txn_id: str | None = None,
    ) -> LoadIntent:
        """Read, check and stage a load: what is left is to judge and commit it, here or by a coordinator."""
        return prepare_load(
            source, self._schema, options, author, expected_versions,
            storage=self._storage, open_table=self._open_newest, type_name=type, format=format, progress=progress,
            txn_id=txn_id, lease=self._new_lease(),
        )  # fmt: skip

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
        """A load whose parts are made elsewhere, with `stage_part` or `read_part`, and added to it.

        `announced` are the operations by which others have said that they stage for it: it releases them in the end.
        `memory` is what the judgement of its keys may hold.
        """
        lease = self._new_lease()
        lease.adopt(announced)
        return LoadIntent(
            self._schema, options, author, expected_versions, self._storage, self._open_newest,
            txn_id=txn_id, lease=lease, in_parts=True, memory=memory,
        )  # fmt: skip

    def commit_load(self, intent: LoadIntent) -> WriteResult:
        """Judge and commit a load that has all its parts."""
        self._writable(MAIN)
        submitted_at = self._reading.refresh() if intent.resubmittable else None
        with intent:
            return intent.finished(self._writer.commit(intent, submitted_at))

    def read_part(
        self, batches: Iterable[pa.RecordBatch], type: str, source: str, announced: SidecarIntent
    ) -> TablePart:
        """Check rows that are part of a load and stage them if they are many; `announced` says for which write."""
        lease = self._new_lease()
        return read_part(
            batches, self._schema.type(type), source, storage=self._storage, open_table=self._open_newest,
            announce=lambda table: lease.take(announced, table), lease=lease,
        )  # fmt: skip

    def _new_lease(self) -> Lease:
        return Lease(self._sidecars, str(MAIN_BRANCH), self._reading.newest)

    def stage_part(
        self, source: Any, options: LoadOptions, since_us: int, *, type: str | None = None, format: str | None = None
    ) -> StagedPart:
        """Read, check and stage one part of a load that was begun elsewhere."""
        opened = open_source(source, self._schema, type_name=type, format=format)
        return stage_part(opened, self._schema, options, self._storage, self._open_newest, since_us)

    def judge(self, intent: LoadIntent) -> tuple[Resolution, dict[str, int]]:
        """Resolve a load on the newest state, and say on which versions of which tables that rests."""
        pins = self._reading.refresh().pins
        state = PinnedState(self._cache, pins)
        resolution = intent.resolve(state)
        return resolution, {key: pins[key].version for key in state.consulted | resolution.tables.keys()}

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str = "",
        tenant: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
    ) -> WriteResult:
        """Run one query of a `.gq` text as one atomic commit; `name` chooses it where the text has several.

        `txn_id`: a ULID that makes the write safe to repeat, as in `load`.
        """
        self._writable(branch)
        submitted_at = None if txn_id is None else self._reading.refresh()
        intent = MutationIntent.of(
            text,
            params or {},
            self._schema,
            Author(actor, tenant),
            expected_versions or {},
            name=name,
            now=datetime.now(UTC),
            txn_id=txn_id,
        )
        return self._writer.commit(intent, submitted_at)

    def flush(self) -> None:
        """Wait until Phase D of this handle's writes is through: then plain Lance readers see them too."""
        self._refuse_fork()
        self._finaliser.flush()

    def close(self) -> None:
        """Flush and let go; safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._release()  # if this fails, closing may be tried again: an owner that lives keeps everybody out
        self._closed = True
        self._let_go()

    def _release(self) -> None:
        """Hand the line back, if this graph owns it."""
        if self._owner != EMBEDDED:
            release(self._writing, self._owner)
            self._finaliser.notice(self._writing.newest)

    def _let_go(self) -> None:
        try:
            self._finaliser.close()
        finally:
            self._writer.close()
            self._store.close()

    # Recovery

    def recover(self, *, take_over: bool = False) -> RecoveryReport:
        """Heal what writers that died have left; opening does so too, and every write.

        With `take_over` a branch whose coordinator is gone for good is handed back to embedded writers first.
        """
        self._writable(MAIN)
        return self._writer.recover(take_over=take_over)

    def recoveries(self, limit: int | None = None) -> list[Recovery]:
        """What recoveries did, newest first: one entry for each operation that was left by its writer."""
        return self._lineage.recoveries(limit)

    def repair(
        self, *, adopt: bool = False, discard: bool = False, tables: Sequence[str] | None = None, actor: str = ""
    ) -> RepairReport:
        """Show which tables something other than omniray wrote to; `adopt` or `discard` what it wrote.

        Adopted rows become a commit of their own, if they keep every rule of the graph; discarded ones are set aside.
        """
        self._writable(MAIN)
        if adopt and discard:
            raise InputError("a change is adopted or discarded, not both: give one of them")
        repair = Repair(
            self._store, self._schema, self._log, self._reading.another(), self._storage, self._cache,
            self._finaliser, self._sidecars, owner=self._owner,
        )  # fmt: skip
        if not (adopt or discard):
            return RepairReport(repair.inspect(tables))
        report = repair.adopt(tables, actor=actor) if adopt else repair.discard(tables, actor=actor)
        self._finaliser.flush()
        self._writer.recover()  # operations may have waited for it
        return report

    def sweep(self, *, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete files that nothing refers to and that are older than a time; what a running load staged stays."""
        self._writable(MAIN)
        if older_than_s < 0:
            raise InputError(f"files older than {older_than_s} s: give 0 or more")
        if not dry_run:
            self._finaliser.flush()
            self._finaliser.tidy()  # or the sidecars of this handle's own writes would spare their tables
        sweeper = Sweeper(
            self._store, self._log, self._reading.another(), self._manifest, self._finaliser, self._schema, self._owner
        )
        return sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=older_than_s, dry_run=dry_run)

    def outcome(self, txn_id: str) -> Outcome:
        """What became of a write whose answer was lost: whether it was committed.

        "Not committed" stays true until somebody sends the write again: a try that is still under way, anywhere, ends
        with `Withdrawn`. Where that can't be seen to, in a graph that was opened read-only or whose line belongs to a
        coordinator, a write that is not found raises `OutcomeUnknown`.
        """
        txn_id = checked_txn_id(txn_id)
        found = self._lineage.commit(txn_id)
        if found is None:
            self._refuse_unwithdrawable(txn_id)
            found = self._writer.withdraw(txn_id)
        return Outcome(txn_id, committed=found is not None)

    def _refuse_unwithdrawable(self, txn_id: str) -> None:
        if self._reading.newest.owner != self._owner:
            advice = "ask the coordinator of this branch"
        elif self._read_only:
            advice = "open the graph read-write to find out"
        else:
            return self._writable(MAIN)
        raise OutcomeUnknown(
            f"{txn_id} is not committed, but a try may be under way: {advice}, or write again with this txn_id",
            txn_id=txn_id,
        )

    # Reading

    def snapshot(self, *, branch: str = MAIN, at: str | date | None = None) -> Snapshot:
        """One consistent cut over all tables: at the head, at a commit id, or as of a time."""
        self._on_branch(branch)
        if at is None:
            newest = self._reading.refresh()
            return self._snapshot(newest.head, newest.pins)
        point = self._lineage.at(at)
        return self._snapshot(point.entry.commit_id, point.pins)

    def history(self, limit: int | None = None, *, branch: str = MAIN) -> list[LineageEntry]:
        """The commits of a branch, newest first."""
        self._on_branch(branch)
        return self._lineage.entries(limit)

    def _snapshot(self, commit_id: str, pins: Mapping[str, Pin]) -> Snapshot:
        return Snapshot(MAIN, commit_id, self._schema, pins, self._cache)

    # The line

    @property
    def owner(self) -> str:
        """Who may extend the line now: everybody (`embedded`), or one incarnation of a coordinator."""
        return self._reading.refresh().owner

    @property
    def served(self) -> bool:
        """Whether a coordinator owns the line, as far as can be known from here: then writes go through it."""
        owner = self.owner
        return owner != EMBEDDED and not is_owner_known_dead(owner)

    def _require_newest(self) -> CommitObject:
        newest = self._log.newest()
        if newest is None:
            raise NotFound(f"no graph at {self._store.uri}; create one with 'omniray init'", uri=self._store.uri)
        return newest

    def _open_newest(self, table_key: str) -> Table:
        return self._cache.open(table_key, self._reading.refresh().pins[table_key])

    def _writable(self, branch: str) -> None:
        self._on_branch(branch)
        self._refuse_fork()
        if self._closed:
            raise InputError("the graph is closed; open it again")
        if self._read_only:
            raise InputError("the graph was opened read-only; open it without read_only to write")

    def _refuse_fork(self) -> None:
        """Threads do not survive a fork, neither ours nor Lance's: a write would wait for them for ever."""
        if os.getpid() != self._pid:
            raise InputError("the graph was opened before this process was forked; open it again here")

    def _on_branch(self, branch: str) -> None:
        if branch != MAIN:
            raise NotFound(f"no branch {branch!r}; this graph has {MAIN}", branch=branch)
