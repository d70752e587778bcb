"""Resolves the name of a branch to its line and newest object; no other module resolves names."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import GraphGone, NotFound
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.graph_identity import read_identity
from omniray.engine.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class BranchHead:
    """A branch and the newest object of its line; `read_at` is when the request began, by `base.clock`."""

    graph_id: str
    branch: BranchId
    log: CommitLog
    newest: CommitObject
    read_at: float


def find_branch(store: ObjectStore, name: str = MAIN) -> BranchHead:
    """The branch of a name in the graph of a store."""
    graph_id = read_identity(store).graph_id
    main = CommitLog(store, BranchId(MAIN, graph_id))
    read_at = suspension_aware_clock()
    newest = main.newest()
    if newest is not None and name != MAIN:
        main = CommitLog(store, _bound(newest, name))
        newest = main.newest()
    if newest is None:
        raise GraphGone(f"the graph {graph_id} at {store.uri} has no line of commits: it was deleted", uri=store.uri)
    return BranchHead(graph_id, main.branch, main, newest, read_at)


def _bound(main: CommitObject, name: str) -> BranchId:
    if name not in main.bindings:
        known = ", ".join((MAIN, *main.bindings))
        raise NotFound(f"no branch {name!r}; this graph has {known}", branch=name)
    return BranchId(name, main.bindings[name].ulid)
