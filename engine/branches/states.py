"""States of a graph: one number of one line each, whichever branch it is of, also a deleted one.

A merge reads the source, the target and their bases at once. Each line's tables are opened in a session of its own,
since versions of different lines share numbers under one URI.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from omniray.engine.base.errors import InvariantViolation, NotFound
from omniray.engine.base.ulids import is_ulid
from omniray.engine.branches.bases import Place, Vector
from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.history.branch_head import find_branch
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, Pin, SchemaRef, first_of
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Table


@dataclass(frozen=True, slots=True)
class LineState:
    """The graph as of one number of a line.

    `group` are all commits of that number, if there are several: they landed together, and no state lies between them.
    """

    place: Place
    commit_id: str
    pins: Mapping[str, Pin]
    contains: Vector
    schema: SchemaRef
    is_final: Callable[[Pin], bool]
    group: tuple[str, ...] = ()
    is_named: bool = False  # its commit was named, and not the head of a branch

    @classmethod
    def of(cls, obj: CommitObject) -> LineState:
        """The state of an object, which is a branch's head."""
        return cls(Place(obj.line, obj.seq), obj.head, obj.pins, obj.contains, obj.schema, obj.is_final, _group(obj))


@dataclass(frozen=True, slots=True)
class _Line:
    """One line, as of its newest object when it was first asked for."""

    log: CommitLog
    newest: CommitObject
    lineage: Lineage
    storage: TableStorage


class States:
    """The states that one operation on a branch looks at; close it in the end. Threads may share it."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._lines: dict[str, _Line] = {}
        self._vectors: dict[Place, Vector] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        for line in self._lines.values():
            line.storage.close()

    def named(self, what: str) -> LineState:
        """The head of a branch, or the state of a commit of any branch."""
        if is_ulid(what.upper()):
            return self.of_commit(what.upper())
        return LineState.of(find_branch(self._branch.store, what, read_only=True).newest)

    def of_commit(self, commit_id: str) -> LineState:
        """The state of the object that a commit landed in, on any branch that is there or was merged."""
        for line in self._known_lines():
            found = self._line(line)
            landed = found.lineage.landed_here([commit_id], found.newest).get(commit_id)
            if landed is not None:
                return self.at(Place(line, landed.entry.seq), commit_id)
        raise NotFound(
            f"no branch and no commit {commit_id!r}: 'omniray history' shows what there is", wanted=commit_id
        )

    def at(self, place: Place, commit_id: str = "") -> LineState:
        """The state of a number of a line; `commit_id` is the commit that it was named by."""
        line = self._line(place.line, place.seq)
        pins = line.lineage.pins_at(place.seq, line.newest)
        group = line.lineage.committed_at(place.seq, line.newest) if commit_id else ()
        return LineState(
            place, commit_id, pins, self.vector(place), line.newest.schema, line.newest.is_final,
            group if len(group) > 1 else (), bool(commit_id),
        )  # fmt: skip

    def vector(self, place: Place) -> Vector:
        """What a number of a line includes."""
        with self._lock:
            if place not in self._vectors:
                line = self._line(place.line, place.seq)
                self._vectors[place] = line.lineage.contains_at(place.seq, line.newest)
            return self._vectors[place]

    def lineage(self, line: str) -> tuple[Lineage, CommitObject]:
        """The history of a line, and its newest object."""
        found = self._line(line)
        return found.lineage, found.newest

    def table(self, state: LineState, table_key: str) -> Table:
        """A table of a state."""
        pin = state.pins[table_key]
        storage = self._line(state.place.line).storage
        return storage.open(self._branch.schema.by_table_key[table_key], pin, is_final=state.is_final(pin))

    def _line(self, line: str, seq: int = 0) -> _Line:
        """A line, as of an object that is not below a number: another line's state may include more than was known."""
        with self._lock:
            known = self._lines.get(line)
            if known is None or known.newest.seq < seq:
                opened = self._opened(line)
                self._lines[line] = opened if known is None else replace(opened, storage=known.storage)
            return self._lines[line]

    def _opened(self, line: str) -> _Line:
        store, graph_id = self._branch.store, self._branch.graph_id
        log = log_of(store, graph_id, line)
        newest = log.newest() or self._unborn(line)
        if newest is None:
            raise InvariantViolation(
                f"the line {line}, which a branch includes, is gone; restore it from a backup", line=line
            )
        return _Line(log, newest, lineage_of(store, log, newest), TableStorage(store, line, graph_id))

    def _unborn(self, line: str) -> CommitObject | None:
        """The first object of a line that is bound and that nobody has begun."""
        bindings = self.main_head().bindings.values()
        return next((first_of(one) for one in bindings if one.ulid == line and not one.is_begun), None)

    def main_head(self) -> CommitObject:
        """The newest object of main's line, read now."""
        return find_branch(self._branch.store, MAIN).newest

    def _known_lines(self) -> list[str]:
        """The lines that a commit may be on: this branch's, main's, those of the other branches, and merged ones."""
        newest = self._branch.newest()
        main = self.main_head()
        bound = (binding.ulid for binding in main.bindings.values())
        return list(dict.fromkeys((newest.line, main.line, *bound, *newest.contains, *main.contains)))


def _group(obj: CommitObject) -> tuple[str, ...]:
    return tuple(commit.commit_id for commit in obj.commits) if len(obj.commits) > 1 else ()
