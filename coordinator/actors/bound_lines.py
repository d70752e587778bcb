"""Which lines the branches of a graph have: a coordinator opens no other one, however often it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from omniray.engine.history.branch_head import find_binding
from omniray.engine.line.commit_object import CommitObject

Told = Callable[[BaseException | None], None]


class BoundLines:
    """Says whether a branch has a line. Threads may share it; nobody who asks waits for a store.

    Main's newest object that is known here names almost every line that is asked for. For another one main's line is
    read, once for all who have asked meanwhile: lines that are none cost one request at a time, and no thread each.
    """

    def __init__(self, known: Callable[[], CommitObject], read: Callable[[], CommitObject]) -> None:
        self._known, self._read = known, read
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="omniray-bound-lines")
        self._next: Future[CommitObject] | None = None  # a read that has not begun
        self._lock = threading.Lock()

    def look_up(self, line: str, told: Told) -> None:
        """Tell the error for a line, `BranchGone` if no branch has it; or None, if one has."""
        if any(one.ulid == line and not one.deleting for one in self._known().bindings.values()):
            told(None)
            return
        with self._lock:
            if self._next is None:
                self._next = self._reading.submit(self._look)
            reading = self._next
        reading.add_done_callback(lambda read: told(_error(line, read)))

    def _look(self) -> CommitObject:
        with self._lock:
            self._next = None  # what this read does not see may be asked for from now on
        return self._read()


def _error(line: str, read: Future[CommitObject]) -> BaseException | None:
    try:
        find_binding(read.result(), line)
    except BaseException as error:
        return error
    return None
