"""Where a branch begins: at main's head, at the head of another branch, at a commit, or at a time of main's history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from omniray.engine.base.errors import NotFound
from omniray.engine.base.ulids import is_ulid
from omniray.engine.branches.distance import Vector
from omniray.engine.history.ancestry import lineage_of
from omniray.engine.history.branch_head import bound, find_line, newest_of
from omniray.engine.history.lineage import Lineage, moment
from omniray.engine.history.lineage_entry import LineageEntry, us_of
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, Pin, SchemaRef
from omniray.engine.line.line_end import Tip


@dataclass(frozen=True, slots=True)
class Start:
    """The state that a branch begins with."""

    line: str
    seq: int
    pins: Mapping[str, Pin]
    schema: SchemaRef
    contains: Vector
    head: str
    head_at_us: int
    group: tuple[str, ...]

    @classmethod
    def at(cls, obj: CommitObject) -> Start:
        group = tuple(commit.commit_id for commit in obj.commits)
        return cls(obj.line, obj.seq, obj.pins, obj.schema, obj.contains, obj.head, obj.head_at_us, group)


StartOf: TypeAlias = Callable[[CommitObject], Start]
"""Finds the state that a branch begins with, by the object of main's line that its binding follows."""


def start_of_branch(main: OpenBranch, tip: Tip, from_: str | None) -> StartOf:
    """How to find the state that a branch begins with; main's head is that of the object that is followed."""
    if from_ is None or from_ == MAIN:
        return Start.at
    newest = tip.refresh()
    if from_ in newest.bindings:
        start = Start.at(find_line(main.store, bound(newest, from_).ulid, main=newest).newest)
    else:
        start = _past(main, from_, newest)
    return lambda _: start


def _past(main: OpenBranch, when: str, newest: CommitObject) -> Start:
    """A commit of any branch, by its id, or the newest one of main at a time."""
    if not is_ulid(when.upper()):
        found = main.lineage.at(moment(when), newest)
        if found is None:
            raise NotFound(f"no commit at or before {when} in the history of {MAIN}", wanted=when)
        return _at_entry(main.lineage, found.entry, newest)
    for line, head in _lines(main, newest):
        lineage = lineage_of(main.store, line, head)
        if (landed := lineage.find(when.upper(), head)) is not None:
            return _at_entry(lineage, landed.entry, head)
    raise NotFound(
        f"no branch and no commit {when!r}: the list of branches and 'omniray history' show what there is",
        wanted=when,
    )


def _lines(main: OpenBranch, newest: CommitObject) -> Iterator[tuple[CommitLog, CommitObject]]:
    """The lines of all branches with their newest objects, main's first."""
    yield main.log, newest
    for name, binding in newest.bindings.items():
        if not binding.deleting:
            line = CommitLog(main.store, BranchId(name, binding.ulid))
            yield line, newest_of(line, binding, read_only=True)


def _at_entry(lineage: Lineage, entry: LineageEntry, newest: CommitObject) -> Start:
    """The state after the object that a commit landed in, with all commits of that."""
    group = lineage.committed_at(entry.seq, newest)
    pins, contains = lineage.pins_at(entry.seq, newest), lineage.contains_at(entry.seq, newest)
    head = group[-1] if group else entry.commit_id
    return Start(newest.line, entry.seq, pins, newest.schema, contains, head, us_of(entry.at), group)
