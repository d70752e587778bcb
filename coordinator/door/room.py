"""The memory that a door has for the bodies of requests, and how the lines of a graph share it.

Room is taken for bytes that have arrived, not for those that a head announces, and is given back with the answer: a
write that waits for its round keeps it. Small requests need none, so that calls and small writes get through however
much the large ones hold. A line may hold twice as much as it leaves free: one that is slow leaves room for all others,
and a line alone has two thirds, more than the largest write. The tenants of a line share it once their writes are read
(`rounds/machine.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omniray.engine.base.errors import Overloaded

BODIES_BYTES_MAX = 1 << 30
SMALL_BYTES = 64 << 10  # about what is buffered of a connection in any case, and the connections are counted
LINE_SHARE = 2
RETRY_AFTER_S = 0.5


class Room:
    """The room of one door, for its event loop alone."""

    def __init__(self, size: int = BODIES_BYTES_MAX) -> None:
        self.left = size
        self._held: dict[str, int] = {}  # by lines

    @contextmanager
    def share(self, line: str, size: int) -> Iterator[Share]:
        """What one request takes, given back in the end; raises `Overloaded` if there is no room for so many bytes."""
        share = Share(self, line)
        if not self.has(line, size - SMALL_BYTES):
            raise _full()
        try:
            yield share
        finally:
            self._hold(line, -share.held)

    def has(self, line: str, size: int) -> bool:
        left = self.left - size
        return size <= 0 or (left >= 0 and self._held.get(line, 0) + size <= LINE_SHARE * left)

    def take(self, line: str, size: int) -> None:
        if not self.has(line, size):
            raise _full()
        self._hold(line, size)

    def _hold(self, line: str, size: int) -> None:
        self.left -= size
        held = self._held.pop(line, 0) + size
        if held:
            self._held[line] = held


class Share:
    """The room of one request."""

    def __init__(self, room: Room, line: str) -> None:
        self._room, self._line = room, line
        self._arrived = self.held = 0

    def arrived(self, size: int) -> None:
        """Take room for bytes that have arrived; raises `Overloaded` if there is none."""
        self._arrived += size
        more = max(0, self._arrived - SMALL_BYTES) - self.held
        self._room.take(self._line, more)
        self.held += more


def _full() -> Overloaded:
    return Overloaded("the door has no room for more at the moment", retry_after_s=RETRY_AFTER_S)
