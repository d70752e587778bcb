"""One open branch of one graph: the parts that every reader and writer of it works with."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.history.accepted_schema import AcceptedSchema, read_schema
from omniray.engine.history.ancestry import Ancestry
from omniray.engine.history.branch_head import BranchHead, find_branch, find_line
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.merged_commits import OtherLines
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import Tip, refuse_closed
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Table


@dataclass(frozen=True, slots=True)
class OpenBranch:
    """A branch and the parts that work on it. Threads may share all of them; one that puts has a `tip` of its own."""

    store: ObjectStore
    graph_id: str
    branch: BranchId
    accepted: AcceptedSchema
    log: CommitLog
    manifest: Manifest
    tip: Tip
    lineage: Lineage
    ancestry: Ancestry
    sidecars: Sidecars
    storage: TableStorage
    cache: TableCache

    @classmethod
    def at(
        cls,
        store: ObjectStore,
        graph_id: str,
        branch: BranchId,
        accepted: AcceptedSchema,
        newest: CommitObject,
        *,
        log: CommitLog | None = None,
        read_at: float | None = None,
    ) -> OpenBranch:
        """The branch, by an object of its line or the empty predecessor of its first one."""
        log = log or CommitLog(store, branch)
        manifest = Manifest(store, branch)
        tip = Tip(
            log, newest, is_folded=manifest.is_folded, refuse_gone=lambda: refuse_gone(store, graph_id), read_at=read_at
        )
        storage = TableStorage(store, branch.ulid, graph_id)
        lineage = Lineage(log, manifest, lambda: refuse_closed(tip.refresh()), OtherLines(store, graph_id))
        return cls(
            store, graph_id, branch, accepted, log, manifest, tip, lineage, Ancestry(store, graph_id, log, lineage),
            Sidecars(store), storage, TableCache(storage, accepted.schema),
        )  # fmt: skip

    @property
    def schema(self) -> Schema:
        return self.accepted.schema

    @property
    def schema_hash(self) -> str:
        """The hash that a write made elsewhere is checked against."""
        return self.accepted.ref.hash

    def newest(self) -> CommitObject:
        """The newest object of the line; raises `BranchGone` if the branch was deleted."""
        return refuse_closed(self.tip.refresh())

    def open_newest(self, table_key: str) -> Table:
        """A table as it is now."""
        newest = self.newest()
        pin = newest.pins[table_key]
        return self.cache.open(table_key, pin, is_final=newest.is_final(pin))


def open_branch(store: ObjectStore, name: str = MAIN, *, read_only: bool = False) -> OpenBranch:
    """Open a branch of the graph in a store; with `read_only` nothing is written."""
    return _opened(store, find_branch(store, name, read_only=read_only))


def open_line(
    store: ObjectStore, line: str, *, main: CommitObject | None = None, read_only: bool = False
) -> OpenBranch:
    """Open the branch whose line has this ULID (`find_line`): its name may have changed, or be another branch's."""
    return _opened(store, find_line(store, line, main=main, read_only=read_only))


def _opened(store: ObjectStore, found: BranchHead) -> OpenBranch:
    accepted = read_schema(store, found.newest.schema)
    return OpenBranch.at(
        store, found.graph_id, found.branch, accepted, found.newest, log=found.log, read_at=found.read_at
    )
