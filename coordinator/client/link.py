"""A client's link to the coordinator that owns its branch: found by the line, and found again when that one has gone.

The line names the owner, and the record of its door says where it is. Nothing else is contacted, and nothing is
believed of it that it does not answer itself.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from omniray.coordinator.client import starting
from omniray.coordinator.client.starting import Terms
from omniray.coordinator.client.waits import Waits, Work, carried_out, deadline_in
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door.calls import NEWEST, Call, StageTerms
from omniray.coordinator.door.record import find_door, is_loopback
from omniray.engine.base.errors import Fenced, LineOwned, OmnirayError, StorageError, Unreachable
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.owner import Incarnation, is_owner_known_dead

log = logging.getLogger("omniray")

Asked = TypeVar("Asked")

LOOK_S_MAX = 5.0
PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
PATIENCE_S = 45.0  # how long Ray is given to restart a coordinator that is known to be dead
PATIENCE_WITHOUT_RAY_S = 2.0
LISTENING_TIMEOUT_S = 1.0


class Link:
    """The wire to a branch's coordinator. Threads may share it."""

    def __init__(self, branch: OpenBranch, terms: Terms) -> None:
        self._branch, self._terms = branch, terms
        self._lock = threading.Lock()
        self._wire: Wire | None = None

    @property
    def url(self) -> str:
        return self.wire.url

    @property
    def wire(self) -> Wire:
        assert self._wire is not None, "a link is opened before it is used"
        return self._wire

    def open(self, *, starts: bool, timeout_s: float) -> None:
        """Find the coordinator that serves the branch; where there is none, start one, or raise `Unreachable`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._wire = self._found(deadline)
            if self._wire is not None:
                return
            if not starts:
                raise none_serves(self._branch.store.uri)
            left_s = max(0.1, deadline - time.monotonic())
            starting.start(self._terms, self._branch.graph_id, self._is_served, left_s)

    def found_again(self, lost: Wire, timeout_s: float) -> None:
        """Find the coordinator that has followed the one behind a wire.

        One that was taken down is not started again: its clients must not undo `omniray down`. Nor is one whose graph
        is gone (`GraphGone`).
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):  # of a thread that has more time for it
            raise _not_found(lost)
        try:
            if self._wire is lost:  # else another thread was faster
                self._wire = self._successor(lost, deadline)
                lost.close()
        finally:
            self._lock.release()

    def finding_again(self, lost: Wire, timeout_s: float) -> Waits[None]:
        """`found_again`, by a thread that has it to do."""
        try:
            yield Work(partial(self.found_again, lost), deadline_in(timeout_s))
        except TimeoutError as error:
            raise _not_found(lost) from error

    def _successor(self, lost: Wire, deadline: float) -> Wire:
        while (found := self._found(deadline)) is None:
            owner = self._branch.tip.refresh().owner
            if owner == EMBEDDED:
                raise LineOwned(
                    f"the coordinator at {lost.url} was taken down: connect again, which starts one", owner=owner
                )
            left_s = max(0.1, deadline - time.monotonic())
            starting.start(self._terms, self._branch.graph_id, self._is_served, left_s)
        return found

    def call(self, call: Call, timeout_s: float, arguments: Any = None) -> Any:
        """Make a call; once more, if the coordinator has been replaced or has begun anew."""
        return carried_out(self.calling(call, timeout_s, arguments))

    def calling(self, call: Call, timeout_s: float, arguments: Any = None) -> Waits[Any]:
        """`call`, as waits."""
        return self._twice(lambda wire, left_s: wire.calling(call, left_s, arguments), timeout_s)

    def stage(self, terms: StageTerms, timeout_s: float) -> bytes:
        """Have a file staged by workers; once more, if the coordinator has been replaced or has begun anew."""
        return carried_out(self._twice(lambda wire, left_s: wire.staging(terms, left_s), timeout_s))

    def _twice(self, ask: Callable[[Wire, float], Waits[Asked]], timeout_s: float) -> Waits[Asked]:
        deadline = time.monotonic() + timeout_s
        wire = self.wire
        try:
            return (yield from ask(wire, timeout_s))
        except (Unreachable, Fenced):
            yield from self.finding_again(wire, max(0.1, deadline - time.monotonic()))
            return (yield from ask(self.wire, max(0.1, deadline - time.monotonic())))

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    # Finding

    def _is_served(self) -> bool:
        newest = self._branch.tip.refresh()
        return newest.owner != EMBEDDED and self._answering(newest, LOOK_S_MAX) is not None

    def _found(self, deadline: float) -> Wire | None:
        """The wire to the owner of the line, or None if there is none to be expected; raises if it does not answer.

        An owner that is known to be dead gets a successor within moments, as long as its Ray lives.
        """
        began, pause_s = time.monotonic(), PAUSE_S
        while True:
            refuse_gone(self._branch.store, self._branch.graph_id)
            newest = self._branch.tip.refresh()
            if newest.owner == EMBEDDED:
                return None
            if (wire := self._answering(newest, LOOK_S_MAX)) is not None:
                return wire
            now = time.monotonic()
            if is_owner_known_dead(newest.owner):
                ray_left = _may_have_ray(Incarnation.parse(newest.owner).address)
                if now > began + (PATIENCE_S if ray_left else PATIENCE_WITHOUT_RAY_S):
                    return None
            if now + pause_s > deadline:
                raise _gone(newest)
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _answering(self, newest: CommitObject, timeout_s: float) -> Wire | None:
        """A wire to the owner of the line if it answers; raises what it says of this client or this graph."""
        door = find_door(self._branch.store, newest)
        if door is None:
            return None
        wire = Wire(door, newest.line, newest.seq)
        try:
            wire.call(NEWEST, timeout_s)
        except StorageError as error:
            log.info("event=coordinator_silent url=%s error=%s", wire.url, error)
            wire.close()
            return None
        except OmnirayError:
            wire.close()
            raise
        return wire


def _may_have_ray(address: str) -> bool:
    """Whether the Ray at an address may bring its coordinator back: not, if it was on this machine and is gone."""
    host, _, port = address.rpartition(":")
    if not (port.isdigit() and is_loopback(host)):
        return True
    try:
        socket.create_connection((host, int(port)), LISTENING_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _not_found(lost: Wire) -> Unreachable:
    return Unreachable(f"the coordinator at {lost.url} does not answer, and no other is found yet", url=lost.url)


def none_serves(uri: str) -> Unreachable:
    return Unreachable(
        "no coordinator serves this graph: start one with 'omniray up', or write to it without one", uri=uri
    )


def _gone(newest: CommitObject) -> Unreachable:
    address = Incarnation.parse(newest.owner).address
    return Unreachable(
        f"the coordinator of this graph at {address} does not answer: if it is gone for good, start one with "
        "'omniray up --take-over', or write without one after 'omniray recover --take-over'",
        address=address,
    )
