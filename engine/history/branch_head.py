"""Resolves the name of a branch to its line and newest object; no other module resolves names."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.base.clock import suspension_aware_clock
from omniray.engine.base.errors import BranchGone, GraphGone, InputError, InvariantViolation, NotFound
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Binding, CommitObject, first_of
from omniray.engine.line.graph_identity import read_identity
from omniray.engine.line.line_end import refuse_closed
from omniray.engine.store.object_store import ObjectStore

_NAME_SHOWN_CHARS, _ID_SHOWN_CHARS = 128, 26


@dataclass(frozen=True, slots=True)
class BranchHead:
    """A branch and the newest object of its line; `read_at` is when the request began, by `base.clock`."""

    graph_id: str
    branch: BranchId
    log: CommitLog
    newest: CommitObject
    read_at: float


def find_branch(store: ObjectStore, name: str = MAIN, *, read_only: bool = False) -> BranchHead:
    """The branch of a name in the graph of a store.

    A branch is bound before its line begins. If its creator died in between, the first object is put here; it follows
    from the binding, so with `read_only` it need not be there.
    """
    graph_id = read_identity(store).graph_id
    main = CommitLog(store, BranchId(MAIN, graph_id))
    read_at = suspension_aware_clock()
    newest = main.newest()
    if newest is None:
        raise GraphGone(f"the graph {graph_id} at {store.uri} has no line of commits: it was deleted", uri=store.uri)
    if name == MAIN:
        return BranchHead(graph_id, main.branch, main, newest, read_at)
    binding = bound(newest, name)
    log = CommitLog(store, BranchId(name, binding.ulid))
    head = newest_of(log, binding, read_only=read_only)
    refuse_closed(head)
    return BranchHead(graph_id, log.branch, log, head, read_at)


def find_line(
    store: ObjectStore, line: str, *, main: CommitObject | None = None, read_only: bool = False
) -> BranchHead:
    """The branch whose line has this ULID, whatever its name is by now; raises `BranchGone` if it was deleted.

    `main` is the newest object of main's line, for a caller that has just read it.
    """
    if main is None or main.line == line:
        found = find_branch(store, read_only=read_only)
        if found.branch.ulid == line:
            return found
        main = found.newest
    name, binding = find_binding(main, line)
    log = CommitLog(store, BranchId(name, line))
    read_at = suspension_aware_clock()
    head = refuse_closed(newest_of(log, binding, read_only=read_only))
    return BranchHead(main.line, log.branch, log, head, read_at)


def find_binding(main: CommitObject, line: str) -> tuple[str, Binding]:
    """The branch whose line has this ULID, with its name, by the newest object of main's line."""
    for name, binding in main.bindings.items():
        if binding.ulid == line and not binding.is_doomed:
            return name, binding
    shown = line[:_ID_SHOWN_CHARS]
    raise BranchGone(
        f"the branch with the id {shown} was deleted, or is no branch of this graph; nothing was written", line=shown
    )


def newest_of(log: CommitLog, binding: Binding, *, read_only: bool) -> CommitObject:
    """The newest object of a branch that is bound; puts its first one if there is none, unless `read_only`."""
    newest = log.newest()
    if newest is None:
        if binding.is_begun:
            raise InvariantViolation(
                f"the line of branch {log.branch.name!r} is gone: {log.path(1)} was there; restore it from a backup",
                line=binding.ulid,
            )
        newest = first_of(binding)
        if not read_only:
            log.begin(newest)
    return newest


def bound(main: CommitObject, name: str) -> Binding:
    """The binding of a name, by the newest object of main's line."""
    found = main.bindings.get(name)
    if found is None or found.is_doomed:
        raise unknown_branch(main, name)
    return found


def unknown_branch(main: CommitObject, name: str) -> InputError:
    """The error for a name that no branch has, or for main's, which is bound to nothing."""
    if name == MAIN:
        return InputError("every graph has its main branch: it can't be deleted or renamed", branch=MAIN)
    known = (MAIN, *sorted(other for other, binding in main.bindings.items() if not binding.deleting))
    shown = name[:_NAME_SHOWN_CHARS]
    return NotFound(f"no branch {shown!r}: {did_you_mean(shown, known)}", branch=shown)
