"""The list of a graph's branches, and how far each has gone beside its parent."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from omniray.engine.branches.distance import Distances, Lines
from omniray.engine.history.branch_head import newest_of
from omniray.engine.history.lineage_entry import time_of
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Binding, CommitObject

READING_THREADS = 16


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """A branch as it is listed. `ahead` and `behind` count commits beside its parent, or main if that was deleted."""

    name: str
    branch_id: str
    parent: str  # its name; empty for main, and where the parent was deleted
    start: str  # the commit of the parent that it began with
    head: str
    head_at: datetime
    created_at: datetime | None
    actor: str
    ahead: int
    behind: int
    tables: tuple[str, ...]  # those that were written on it


def list_branches(main: OpenBranch) -> list[BranchInfo]:
    """Main, then the other branches by name; those that are being deleted are left out. Nothing is written."""
    newest = main.newest()
    bindings = {name: newest.bindings[name] for name in sorted(newest.bindings) if not newest.bindings[name].deleting}

    def read(name: str) -> CommitObject:
        line = CommitLog(main.store, BranchId(name, bindings[name].ulid))
        return newest_of(line, bindings[name], read_only=True)

    with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="omniray-branches") as pool:
        heads = {name: head for name, head in zip(bindings, pool.map(read, bindings), strict=True) if not head.closed}
        names = {newest.line: MAIN} | {head.line: name for name, head in heads.items()}
        lines = {newest.line: newest} | {head.line: head for head in heads.values()}
        beside = {name: lines.get(bindings[name].parent, newest) for name in heads}
        pairs = [(head.contains, beside[name].contains) for name, head in heads.items()]
        distances = Distances(pairs, Lines(main.store, main.graph_id).changes, pool)
    return [
        _main_of(newest),
        *(_described(name, bindings[name], heads[name], names, beside[name], distances) for name in heads),
    ]


def _main_of(newest: CommitObject) -> BranchInfo:
    tables = tuple(sorted(newest.pins))
    return BranchInfo(MAIN, newest.line, "", "", newest.head, time_of(newest.head_at_us), None, "", 0, 0, tables)


def _described(
    name: str,
    binding: Binding,
    head: CommitObject,
    names: Mapping[str, str],
    beside: CommitObject,
    distances: Distances,
) -> BranchInfo:
    return BranchInfo(
        name=name,
        branch_id=binding.ulid,
        parent=names.get(binding.parent, ""),
        start=binding.head,
        head=head.head,
        head_at=time_of(head.head_at_us),
        created_at=time_of(binding.at_us),
        actor=binding.actor,
        ahead=distances.ahead(head.contains, beside.contains),
        behind=distances.ahead(beside.contains, head.contains),
        tables=tuple(sorted(key for key, pin in head.pins.items() if pin.line == head.line)),
    )
