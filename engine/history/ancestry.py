"""The history of a branch through its parents: its own commits, then those that it began with, down to the first.

Each line has a lineage of its own. A branch sees that of its parent up to the object at which it began; what came there
later is no part of it. Lines of deleted parents are read like others: they stay as long as something refers to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from omniray.engine.base.errors import InvariantViolation, NotFound
from omniray.engine.history.lineage import Lineage, PointInTime, checked_limit, moment
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject
from omniray.engine.store.object_store import ObjectStore

_FIRST = 1


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of the history: one line up to a number. `child` is the first object of the branch that began there."""

    lineage: Lineage
    newest: CommitObject
    through: int = SEQ_MAX
    child: CommitObject | None = None


class Ancestry:
    """The commits of a branch and of its parents, as far as they are part of the branch."""

    def __init__(self, store: ObjectStore, graph_id: str, log: CommitLog, lineage: Lineage) -> None:
        self._store, self._graph_id, self._log, self._lineage = store, graph_id, log, lineage

    def entries(self, limit: int | None = None) -> list[LineageEntry]:
        """The commits, newest first."""
        count = checked_limit(limit)
        of_all = (stretch.lineage.entries(stretch.newest, stretch.through) for stretch in self._stretches())
        return list(itertools.islice(itertools.chain.from_iterable(of_all), count))

    def at(self, when: str | date) -> PointInTime:
        """The commit with an id, or the newest one at or before a time; a date means its first moment."""
        wanted = moment(when)
        for stretch in self._stretches():
            found = stretch.lineage.at(wanted, stretch.newest)
            if found is not None and found.entry.seq <= stretch.through:
                return found
            if found is not None and not isinstance(wanted, str) and stretch.child is not None:
                # At that time the parent had gone on already: the branch has the last commit before it began.
                begun_with = stretch.lineage.find(stretch.child.head, stretch.newest)
                if begun_with is not None:
                    return PointInTime(begun_with.entry, dict(stretch.child.pins))
        what = f"commit {wanted}" if isinstance(wanted, str) else f"commit at or before {wanted.isoformat()}"
        raise NotFound(f"no {what} in the history; 'omniray history' shows what there is", wanted=what)

    def _stretches(self) -> Iterator[_Stretch]:
        """The lines of the branch and its parents, each up to the number where the next branch began."""
        stretch = _Stretch(self._lineage, self._lineage.newest())
        log = self._log
        yield stretch
        while stretch.newest.parent:
            child = stretch.newest if stretch.newest.seq == _FIRST else log.read(_FIRST)  # it need not be there yet
            log = log_of(self._store, self._graph_id, stretch.newest.parent)
            newest = log.newest()
            if newest is None or child is None:
                raise InvariantViolation(
                    f"the line {stretch.newest.parent}, on which a branch began, is gone; restore it from a backup",
                    line=stretch.newest.parent,
                )
            stretch = _Stretch(lineage_of(self._store, log, newest), newest, child.parent_seq, child)
            yield stretch


def log_of(store: ObjectStore, graph_id: str, line: str) -> CommitLog:
    """A line of a graph by its id, for a reader that does not care for the branch's name."""
    return CommitLog(store, BranchId(MAIN if line == graph_id else line, line))


def lineage_of(store: ObjectStore, log: CommitLog, newest: CommitObject) -> Lineage:
    """The history of a line as of one object."""
    return Lineage(log, Manifest(store, log.branch), lambda: newest)
