"""The handles of other branches that one handle of a graph has opened, each kept by the id of its line.

A branch is opened by the first who asks for it; those who ask for it meanwhile wait, and those who ask for another one
do not. Each has threads and caches of its own: beyond a number of them, those are closed that nobody has used for
longest. A handle of a branch that is gone is closed by the last who uses it: somebody's write may be under way on it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omniray.engine.base.errors import InputError, OmnirayError
from omniray.engine.history.branch_names import BranchNames
from omniray.engine.line.commit_object import CommitObject

log = logging.getLogger("omniray")


H = TypeVar("H")

OPEN_MAX = 32


@dataclass(slots=True, eq=False)
class _Kept(Generic[H]):
    """A branch that was asked for; `handle` is None while it is being opened."""

    handle: H | None = None
    users: int = 0
    is_retired: bool = False
    opening: threading.Lock = field(default_factory=threading.Lock)


class BranchHandles(Generic[H]):
    """Handles by their lines, and the names that led to them. Threads may share it."""

    def __init__(
        self,
        names: BranchNames,
        opens: Callable[[str, CommitObject], H],
        *,
        is_gone: Callable[[H], bool],
        ends: Callable[[H], None],
    ) -> None:
        """`opens` makes the handle of a line, given the newest object of main's; `ends` releases what it holds.

        `is_gone` says whether a handle has seen that its branch was deleted.
        """
        self.names, self._opens, self._is_gone, self._ends = names, opens, is_gone, ends
        self._kept: dict[str, _Kept[H]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def line_of(self, name: str) -> str:
        """The line of a branch by its name, looked for anew if the one that had the name is known to be gone."""
        line = self.names.line_of(name)
        with self._lock:
            kept = self._kept.get(line)
        if kept is None or kept.handle is None or not self._is_gone(kept.handle):
            return line
        self.names.forget_line(line)
        return self.names.line_of(name)

    @contextlib.contextmanager
    def used(self, line: str) -> Iterator[H]:
        """The handle of a line, opened if it is not; it is not closed within this block."""
        kept = self._entered(line)
        try:
            with kept.opening:
                is_new = kept.handle is None
                if kept.handle is None:
                    kept.handle = self._opens(line, self.names.main())
                handle = kept.handle
            if is_new:
                self._close_surplus()
            if self._is_closed:
                raise _closed()
            yield handle
        finally:
            self._left(line, kept)

    def is_open(self, line: str) -> bool:
        return any(one == line for one, _ in self._handles())

    @property
    def open(self) -> tuple[H, ...]:
        """The handles that are open."""
        return tuple(handle for _, handle in self._handles())

    def each(self) -> Iterator[H]:
        """The handles that are open, one by one: each stays open while it is looked at."""
        for line, handle in self._handles():
            with self._lock:
                kept = self._kept.get(line)
                if kept is None or kept.handle is not handle:
                    continue
                kept.users += 1
            try:
                yield handle
            finally:
                self._left(line, kept)

    def drop(self, line: str) -> None:
        """Forget the handle of a branch that was deleted: whoever uses it still closes it."""
        self.names.forget_line(line)
        with self._lock:
            kept = self._kept.pop(line, None)
            if kept is None:
                return
            kept.is_retired = True
            is_idle = not kept.users
        if is_idle:
            self._end(line, kept)

    def close(self) -> None:
        """Close all handles; nothing is opened from now on. Raises the first error after all were tried."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = tuple(self._kept.values()), {}
            for one in kept:
                one.is_retired = True
            idle = [one.handle for one in kept if not one.users and one.handle is not None]
        failed = []
        for handle in idle:
            try:
                self._ends(handle)
            except OmnirayError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _handles(self) -> list[tuple[str, H]]:
        with self._lock:
            return [(line, one.handle) for line, one in self._kept.items() if one.handle is not None]

    def _entered(self, line: str) -> _Kept[H]:
        """The entry of a line with one user more; a new one if the branch of the old one is gone."""
        with self._lock:
            if self._is_closed:
                raise _closed()
            kept = self._kept.get(line)
            gone = None
            if kept is not None and kept.handle is not None and self._is_gone(kept.handle):
                gone, kept = kept, None
                gone.is_retired = True
            self._kept.pop(line, None)
            is_idle = gone is not None and not gone.users
            if kept is None:
                kept = _Kept()
            self._kept[line] = kept  # as the one that was used last
            kept.users += 1
        if gone is not None and is_idle:
            self._end(line, gone)
        return kept

    def _close_surplus(self) -> None:
        """Close those that nobody uses, the least lately used first, while there are more than may be open."""
        with self._lock:
            idle = [(line, one) for line, one in self._kept.items() if not one.users and one.handle is not None]
            surplus = idle[: max(len(self._kept) - OPEN_MAX, 0)]
            for line, one in surplus:
                del self._kept[line]
                one.is_retired = True
        for line, one in surplus:
            self._end(line, one)

    def _left(self, line: str, kept: _Kept[H]) -> None:
        with self._lock:
            kept.users -= 1
            if kept.handle is None and not kept.users and self._kept.get(line) is kept:  # it could not be opened
                del self._kept[line]
            is_last = kept.is_retired and not kept.users
        if is_last:
            self._end(line, kept)

    def _end(self, line: str, kept: _Kept[H]) -> None:
        """Close a handle that nobody uses; what it has not finished is finished by the next writer of its line."""
        if kept.handle is None:
            return
        try:
            self._ends(kept.handle)
        except OmnirayError as error:
            log.warning("event=handle_not_closed line=%s error=%s", line, error)


def _closed() -> InputError:
    return InputError("the graph is closed; open it again")
