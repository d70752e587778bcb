"""Finds commits that came to a line from others, with its merges or its begin, on the lines where they landed.

A write that landed on a branch must not be applied again where that branch was merged into, nor one that landed on main
on a branch that began later. Its id is not in the line's own lineage, so it is looked for in the lines that it
includes. Most ids that are looked for are new, and a line may have merged a thousand branches: only those are asked
that were taken in since a day before the time in the id, and only as far back as that. What was read of a line is kept,
since it never changes. So a look-up costs nothing on a line without merges that has not begun today, and next to
nothing after the first one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile

from omniray.engine.base.ulids import time_us_of
from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import ObjectStore

CLOCKS_US_MAX = 24 * 3600 * 1_000_000
"""How far the clock of an id may have been ahead of the clock of the merge that took it in."""

IDS_MAX = 1 << 20

Vector = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Known:
    """The commits of another line between two numbers, and since a time, by id."""

    after: int
    through: int
    since_us: int
    numbers: Mapping[str, int]

    def covers(self, after: int, through: int, since_us: int) -> bool:
        return self.after <= after and through <= self.through and self.since_us <= since_us


class OtherLines:
    """The lines that one line of a graph includes beside itself. Threads may share it."""

    def __init__(
        self, store: ObjectStore, graph_id: str, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._store, self._graph_id, self._now_us = store, graph_id, now_us
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._vectors: tuple[Vector, list[tuple[int, int]]] = {}, []  # of the line, as of what it includes of others

    def find(self, commit_ids: Collection[str], newest: CommitObject, lineage: Lineage) -> list[LineageEntry]:
        """The entries of those commits among the ids that came to the line from another one."""
        others = {line: number for line, number in newest.contains.items() if line != newest.line}
        if not others:
            return []
        with self._lock:
            since_us = min(min(time_us_of(one), self._now_us()) for one in commit_ids) - CLOCKS_US_MAX
            before = self._before(since_us, others, newest, lineage)
            raised = {line: number for line, number in others.items() if number > before.get(line, 0)}
            return [
                entry
                for line, number in raised.items()
                for entry in self._on(line, before.get(line, 0), number, since_us, commit_ids)
            ]

    def _before(self, since_us: int, others: Vector, newest: CommitObject, lineage: Lineage) -> Vector:
        """What the line included of others before a time."""
        if self._vectors[0] != others:
            self._vectors = others, lineage.vectors(newest)
        older = [seq for seq, at_us in self._vectors[1] if at_us < since_us]
        return lineage.contains_at(max(older), newest) if older else {}

    def _on(
        self, line: str, after: int, through: int, since_us: int, commit_ids: Collection[str]
    ) -> list[LineageEntry]:
        """The entries of those commits among the ids that landed on another line between two numbers."""
        known = self._known.get(line)
        if known is None or not known.covers(after, through, since_us):
            known = self._known[line] = self._read(line, after, through, since_us)
            if sum(len(one.numbers) for one in self._known.values()) > IDS_MAX:
                self._known = {}
        found = [one for one in commit_ids if after < known.numbers.get(one, 0) <= through]
        if not found:
            return []
        log = log_of(self._store, self._graph_id, line)
        head = log.newest()
        return [] if head is None else list(lineage_of(self._store, log, head).find_all(found, head).values())

    def _read(self, line: str, after: int, through: int, since_us: int) -> _Known:
        log = log_of(self._store, self._graph_id, line)
        head = log.newest()
        if head is None:
            return _Known(after, through, since_us, {})
        ids = lineage_of(self._store, log, head).commit_ids(head)
        within = takewhile(lambda one: one.seq > after and one.at_us >= since_us, ids)
        return _Known(after, through, since_us, {one.commit_id: one.seq for one in within})
