"""Resolves the name of a branch to its line and newest object; no other module resolves names."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import BranchGone, GraphGone, NotFound
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, first_of
from omniray.engine.line.graph_identity import read_identity
from omniray.engine.store.object_store import ObjectStore

_ID_SHOWN_CHARS = 26


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


def find_line(
    store: ObjectStore, line: str, *, main: CommitObject | None = None, read_only: bool = False
) -> BranchHead:
    """The branch whose line has this ULID, whatever its name is by now; raises `BranchGone` if it was deleted.

    `main` is the newest object of main's line, for a caller that has just read it.
    """
    if main is None:
        found = find_branch(store)
        if found.branch.ulid == line:
            return found
        main = found.newest
    name, binding = next(((n, b) for n, b in main.bindings.items() if b.ulid == line and not b.deleting), ("", None))
    if binding is None:
        raise BranchGone(
            f"the branch with the id {line[:_ID_SHOWN_CHARS]} was deleted, or is no branch of this graph; nothing was "
            "written",
            line=line[:_ID_SHOWN_CHARS],
        )
    log = CommitLog(store, BranchId(name, line))
    read_at = suspension_aware_clock()
    newest = log.newest()
    if newest is None:
        newest = first_of(binding)
        if not read_only:
            log.put(newest)
    return BranchHead(main.line, log.branch, log, newest, read_at)
