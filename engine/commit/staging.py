"""Phases A and B of one attempt: what is about to happen is announced, and every table's next version is staged.

Both run side by side. Nothing of it counts before the commit object pins it, and nobody else uses what one attempt
made: one that is known to be lost clears away after itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import Intent, Resolution, TableWrite
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.line.sidecar import Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.storage import StagedRows, StagedVersion, TableStorage, VersionTaken

log = logging.getLogger("omniray")


@dataclass(frozen=True, slots=True)
class Staging:
    """An attempt's Phases A and B under way."""

    sidecar: Sidecar
    versions: Mapping[str, Future[StagedVersion]]
    announced: Future[None]


class Stager:
    """Stages the attempts of one writer on one branch."""

    def __init__(
        self,
        store: ObjectStore,
        storage: TableStorage,
        cache: TableCache,
        sidecars: Sidecars,
        schema: Schema,
        pool: Executor,
        *,
        branch: str,
    ) -> None:
        self._store, self._storage, self._cache = store, storage, cache
        self._sidecars, self._schema, self._pool, self._branch = sidecars, schema, pool, branch
        self._process = this_process()

    def begin(self, intent: Intent, base: CommitObject, resolution: Resolution) -> Staging:
        """Begin a new operation: its own id, transactions and sidecar, whatever was tried before.

        The sidecar comes second: the staging takes several requests in a row, and should not wait for a thread.
        """
        intents = [SidecarIntent(intent.commit_id, intent.author.actor)]
        sidecar = announce(base, self._branch, self._process, intent.kind, intents, self._schema, resolution.tables)
        versions = {
            table.table_key: self._pool.submit(
                stage_table, self._storage, self._cache, table, base.pins[table.table_key],
                resolution.tables[table.table_key],
            )
            for table in sidecar.tables
        }  # fmt: skip
        return Staging(sidecar, versions, self._pool.submit(self._announce, sidecar))

    def finish(self, staging: Staging) -> dict[str, StagedVersion]:
        """The staged versions, once all of them are there and the sidecar too; else nothing is left, and it raises."""
        staged: dict[str, StagedVersion] = {}
        failed: BaseException | None = None
        for key, future in staging.versions.items():
            try:
                staged[key] = future.result()
            except BaseException as error:
                failed = error
        try:
            staging.announced.result()
        except BaseException as error:
            failed = error
        if failed is not None:
            self.give_up(staging.sidecar, staged)
            raise failed
        return staged

    def give_up(self, sidecar: Sidecar, staged: Mapping[str, StagedVersion]) -> None:
        """An attempt is known to be lost: its handles show rows that never happened, and its files help nobody.

        What can't be deleted now is the sweep's, and the sidecar the next recovery's.
        """
        for key in staged:
            self._cache.drop(key)
        files = [path for version in staged.values() for path in self._storage.staged_for_itself(version)]
        reach(Point.LOST_BEFORE_DISCARD)
        try:
            self._store.delete_all([*files, self._sidecars.path(sidecar.operation_id)])
        except StorageError as error:
            log.warning("event=discard_failed op=%s error=%s", sidecar.operation_id, error)
        reach(Point.LOST_AFTER_DISCARD)

    def _announce(self, sidecar: Sidecar) -> None:
        reach(Point.A_BEFORE_SIDECAR)
        self._sidecars.put(sidecar)
        reach(Point.A_AFTER_SIDECAR)


def announce(
    base: CommitObject,
    branch: str,
    process: Process,
    kind: str,
    intents: Iterable[SidecarIntent],
    schema: Schema,
    writes: Mapping[str, TableWrite],
) -> Sidecar:
    """The sidecar of a new attempt on top of `base`: a new operation with transactions of its own."""
    tables = (
        SidecarTable(
            table_key=key,
            table_path=schema.by_table_key[key].path,
            expected_version=base.pins[key].version,
            transaction_uuid=str(uuid.uuid4()),
            table_branch=base.pins[key].branch,
            files=write.rows.files if isinstance(write.rows, StagedRows) else (),
        )
        for key, write in writes.items()
    )
    return Sidecar.on(base, new_ulid(), kind, branch, process, intents, tables)


def stage_table(
    storage: TableStorage, cache: TableCache, announced: SidecarTable, pin: Pin, write: TableWrite
) -> StagedVersion:
    """Phase B for one table: its rows, and the version after `pin` under a staging name."""
    reach(Point.B_BEFORE_TABLE)
    table = cache.open(announced.table_key, pin)
    match write.mode:
        case Mode.APPEND:
            change = storage.stage_append(table, write.rows)
        case Mode.MERGE:
            change = storage.stage_merge(table, write.rows, write.replaced)
        case Mode.OVERWRITE:
            change = storage.stage_overwrite(table, write.rows)
        case Mode.DELETE:
            change = storage.stage_delete(table, write.replaced)
    reach(Point.B_AFTER_ROWS)
    try:
        staged = storage.commit_staged(table, change, announced.transaction_uuid)
    except VersionTaken:
        if change.inline is not None:
            storage.forget_rows(table.type, change.inline)
        raise
    reach(Point.B_AFTER_TABLE)
    return staged
