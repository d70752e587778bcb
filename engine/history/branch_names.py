"""The names of branches that one handle has resolved: each leads to a line, which is what the handle then works on.

A name is resolved with one look at main's line, and kept, so that a read or a write by a name costs no request more. It
is resolved anew when this process knows better: after a verb of its own that changes branches, after it was told that
the branch is gone, or when it has seen an object of main's line that gives the name to another branch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from omniray.engine.history.branch_head import bound
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import Tip
from omniray.engine.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The line that a name led to, by the number of main's object that said so."""

    line: str
    seq: int


class BranchNames:
    """Names and the lines that they led to, for one handle of a graph. Threads may share it."""

    def __init__(self, store: ObjectStore, graph_id: str, own: BranchId, main: Tip | None) -> None:
        """`own` is the handle's branch; `main` the end of main's line where the handle follows it anyway."""
        self._store, self._graph_id, self._main = store, graph_id, main
        self._resolved = {own.name: _Resolved(own.ulid, 0)}
        self._lock = threading.Lock()

    def line_of(self, name: str) -> str:
        """The line of the branch that has a name; raises `NotFound` if none has it."""
        if name == MAIN:
            return self._graph_id
        with self._lock:
            known = self._resolved.get(name)
            if known is not None and (self._main is None or _is_current(known, name, self._main.newest)):
                return known.line
        main = self.main()
        line = bound(main, name).ulid
        with self._lock:
            self._resolved[name] = _Resolved(line, main.seq)
        return line

    def main(self) -> CommitObject:
        """The newest object of main's line, read now."""
        refuse_gone(self._store, self._graph_id)
        if self._main is None:
            self._main = self._end_of_main()
        return self._main.refresh()

    def forget(self) -> None:
        """Resolve every name anew: which branches there are has changed."""
        with self._lock:
            self._resolved = {}

    def forget_line(self, line: str) -> None:
        """Resolve the names anew that led to a line, whose branch is gone."""
        with self._lock:
            self._resolved = {name: one for name, one in self._resolved.items() if one.line != line}

    def _end_of_main(self) -> Tip:
        log = CommitLog(self._store, BranchId(MAIN, self._graph_id))
        newest = log.newest()
        assert newest is not None, "a graph that is there has a line"
        return Tip(log, newest, is_folded=_never, refuse_gone=_never_gone)


def _is_current(known: _Resolved, name: str, main: CommitObject) -> bool:
    """Whether no later object of main's line is known that gives the name to another branch, or to none."""
    if main.seq <= known.seq:
        return True
    binding = main.bindings.get(name)
    return binding is not None and not binding.is_doomed and binding.ulid == known.line


def _never(obj: CommitObject) -> bool:
    return False


def _never_gone() -> None:
    """Nothing is put by this end of the line."""
