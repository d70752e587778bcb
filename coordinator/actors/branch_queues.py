"""The table queues of all branches that one process was asked about lately, each opened when it is first asked for.

Branches get their turns one after the other, however much one of them asks for; and one that is slow to open, or can't
be opened, holds no other up.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.actors.turns import Turns
from omniray.engine.base.errors import OmnirayError
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.tables.cache import TableCache

log = logging.getLogger("omniray")

IDLE_S = 300.0  # longer than a publisher keeps an idle branch: it says when it lets one go, unless it dies
CALLS_AT_ONCE = 32
CALLS_OF_A_BRANCH = 8


@dataclass(slots=True)
class _Kept:
    """A branch's queues, once they are open; `users` are the calls that use them."""

    opening: threading.Lock = field(default_factory=threading.Lock)
    queues: TableQueues | None = None
    users: int = 0
    used_at: float = 0.0
    is_let_go: bool = False


class BranchQueues:
    """Keeps the queues of branches while they are used. Threads may share it."""

    def __init__(
        self,
        opened: Callable[[str], OpenBranch],
        *,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self._opened, self._idle_s, self._clock = opened, idle_s, clock
        self._turns = turns or Turns(CALLS_AT_ONCE, CALLS_OF_A_BRANCH)
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    @property
    def lines(self) -> list[str]:
        """The lines whose queues are kept."""
        with self._lock:
            return sorted(self._kept)

    @contextlib.contextmanager
    def of(self, line: str) -> Iterator[TableQueues]:
        """The queues of a branch, when it is its turn; raises `BranchGone` if it was deleted."""
        with self._using(line) as kept:
            with kept.opening:  # before its turn comes: a branch that is slow to open takes no turn from others
                kept.queues = kept.queues or self._new(line)
            with self._turns.taken(line):
                yield kept.queues

    def let_go(self, line: str) -> None:
        """Forget a branch, once nobody uses its queues any more."""
        with self._lock:
            kept = self._kept.pop(line, None)
            if kept is None:
                return
            kept.is_let_go = True
            unused = not kept.users
        if unused:
            _close(line, kept)

    def close(self) -> None:
        for line in self.lines:
            self.let_go(line)

    def _new(self, line: str) -> TableQueues:
        queues = TableQueues(self._opened(line))
        queues.cache.look_beside(lambda: self._caches_beside(line))
        return queues

    def _caches_beside(self, line: str) -> list[TableCache]:
        """What is cached of other branches, on one of which this one may have begun."""
        with self._lock:
            return [one.queues.cache for other, one in self._kept.items() if other != line and one.queues is not None]

    @contextlib.contextmanager
    def _using(self, line: str) -> Iterator[_Kept]:
        now = self._clock()
        with self._lock:
            kept = self._kept.setdefault(line, _Kept())
            kept.users += 1
            kept.used_at = now
            idle = [o for o, one in self._kept.items() if not one.users and now - one.used_at >= self._idle_s]
        for other in idle:  # on a thread of its own: this caller has nothing to do with it
            threading.Thread(target=self.let_go, args=(other,), name="omniray-let-go", daemon=True).start()
        try:
            yield kept
        finally:
            with self._lock:
                kept.users -= 1
                kept.used_at = self._clock()
                if not kept.users and kept.queues is None and self._kept.get(line) is kept:  # it could not be opened
                    del self._kept[line]
                is_over = kept.is_let_go and not kept.users
            if is_over:
                _close(line, kept)


def _close(line: str, kept: _Kept) -> None:
    try:
        if kept.queues is not None:
            kept.queues.close()
    except OmnirayError as error:
        log.warning("event=queues_not_closed line=%s error=%s", line, error)
