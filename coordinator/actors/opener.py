"""Opens the branches of one graph in a process of the coordinator, by their lines and over one client of the store."""

from __future__ import annotations

import threading

from omniray.coordinator.actors.cluster import Storage
from omniray.engine.history.branch_head import BranchHead, find_line
from omniray.engine.history.open_branch import OpenBranch, open_line
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.store.object_store import ObjectStore


class Opener:
    """Opens branches by the ULIDs of their lines. Threads may share it."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, threading.Lock()
        self._store: ObjectStore | None = None

    @property
    def graph_id(self) -> str:
        return self._storage.graph_id

    def opened(self, line: str, *, main: CommitObject | None = None) -> OpenBranch:
        """The open branch of a line; raises `GraphGone` or `BranchGone` if it is not there any more.

        `main` is the newest object of main's line, for a caller that has just read it.
        """
        store = self._opened_store()
        refuse_gone(store, self.graph_id)
        return open_line(store, line, main=main)

    def looked_at(self, line: str, *, main: CommitObject | None = None) -> BranchHead:
        """The newest object of a line; nothing is put, and no table is opened."""
        return find_line(self._opened_store(), line, main=main, read_only=True)

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened_store(self) -> ObjectStore:
        with self._lock:
            if self._store is None:
                self._store = self._storage.store()
            return self._store
