"""Lines that no branch has: closed ones, whose branches were deleted, and such as are not there at all.

What was left on them is cleared away by main's recovery, since no owner of theirs can do so any more. A line that is
not there is of a graph that was never created, or that was deleted before this one was created in its place.
"""

from __future__ import annotations

from collections.abc import Collection

from omniray.engine.history import audit
from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import ObjectStore


class StrayLines:
    """Finds such lines; `closed` has the last objects of the closed ones that it has come upon."""

    def __init__(self, store: ObjectStore, graph_id: str) -> None:
        self._store, self._graph_id = store, graph_id
        self._there: set[str] = set()
        self.closed: dict[str, CommitObject] = {}

    def among(self, lines: Collection[str], main: CommitObject) -> set[str]:
        """Those among the lines that no branch has; only such as main's object does not know are looked at."""
        live = {binding.ulid for binding in main.bindings.values() if not binding.is_doomed}
        return {line for line in set(lines) - live if self._is_stray(line, main)}

    def lineage(self, line: str) -> Lineage:
        """The history of a closed line."""
        return lineage_of(self._store, log_of(self._store, self._graph_id, line), self.closed[line])

    def recorded(self, line: str, operation_ids: Collection[str]) -> set[str]:
        """The operations among these that were recovered on a line before it was closed; the audit has them, then."""
        log, last = log_of(self._store, self._graph_id, line), self.closed[line]
        found = self.lineage(line).recorded(operation_ids, last)
        if found:  # whoever recorded them may have died before the record was folded
            unfolded = log.down_to(last, Manifest(self._store, log.branch).folded_through() + 1)
            if told := [obj for obj in unfolded if obj.recoveries]:
                audit.record(self._store, told)
        return found

    def _is_stray(self, line: str, main: CommitObject) -> bool:
        if line in self.closed or not line or not self._is_there(line, main):
            return True
        newest = log_of(self._store, self._graph_id, line).newest()
        if newest is not None and newest.closed:
            self.closed[line] = newest
        return line in self.closed

    def _is_there(self, line: str, main: CommitObject) -> bool:
        """Whether a line is in the store: nothing is written on a line before its first object, which always stays."""
        if line not in self._there:
            is_bound = any(binding.ulid == line for binding in main.bindings.values())
            if not is_bound and CommitLog(self._store, BranchId(line, line)).read(1) is None:
                return False
            self._there.add(line)
        return True
