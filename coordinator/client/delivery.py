"""Delivers writes to the coordinator that serves a graph, until each is answered.

A write has an id, so that it may be sent again: to a coordinator that takes over, after a time-out, or after a lost
answer. It is applied once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from omniray.coordinator.client.link import Link
from omniray.coordinator.client.waits import Nothing, Pause, Waits
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door.calls import ABANDON, HOLD, NEWEST, OfWrite
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    Fenced,
    InputError,
    LineOwned,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    StorageError,
    Unauthenticated,
    Unreachable,
    Withdrawn,
)
from omniray.engine.writes.write_requests import Request, sent_again

log = logging.getLogger("omniray")

PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
ABANDON_TIMEOUT_S = 1.0
HOLD_EVERY_S = 2.0
TIMEOUT_S_MAX = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a write, and whether an earlier try without an answer may be the one that was applied."""

    answer: WriteAnswer
    in_doubt: bool


class Delivery:
    """Delivers writes over a link."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link, self._timeout_s = link, timeout_s

    def sending(self, request: Request, timeout_s: float | None) -> Waits[Answered]:
        """Send a write until it is answered; an id is applied only once.

        Once a try has ended without an answer, only an answer to the write itself settles the outcome. A write that is
        cancelled is given up: it is dropped if it still waits for its turn, and else it may land.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else checked_timeout(timeout_s))
        if not request.header.began:
            request = _begun(request, (yield from beginning(self._link, _left(request, deadline))))
        yield Nothing()
        try:
            return (yield from self._trying(request, deadline))
        except asyncio.CancelledError:
            yield from self._abandoning(request)
            raise

    def _trying(self, request: Request, deadline: float) -> Waits[Answered]:
        pause_s, in_doubt = PAUSE_S, False
        while True:
            wire = self._link.wire
            left_s = _left(request, deadline)
            try:
                return Answered((yield from wire.writing(request, left_s)), in_doubt)
            except OmnirayError as error:
                if (end := _end(error, request, in_doubt=in_doubt)) is not None:
                    raise end from error
                failed, in_doubt = error, in_doubt or isinstance(error, OutcomeUnknown | Fenced)
                pause_s = max(pause_s, error.facts.get("retry_after_s", 0.0))
            if time.monotonic() + pause_s > deadline:
                if in_doubt:
                    yield from self._abandoning(request)
                    raise _unknown(request) from failed
                raise failed
            if not isinstance(failed, Overloaded | Withdrawn):
                yield from self._finding_again(wire, request, deadline, in_doubt=in_doubt)
            request = sent_again(request)
            yield Pause(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    @contextlib.contextmanager
    def holding(self, commit_id: str) -> Iterator[None]:
        """Tell the coordinator again and again that a prepared load is being judged, for which others may wait."""
        done = threading.Event()

        def hold() -> None:
            while not done.wait(HOLD_EVERY_S):
                with contextlib.suppress(OmnirayError):
                    self._link.wire.call(HOLD, ABANDON_TIMEOUT_S, OfWrite(commit_id))

        thread = threading.Thread(target=hold, name="omniray-hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def beginning(self, timeout_s: float | None) -> Waits[int]:
        """The number at which a write begins, for one that takes several requests."""
        return beginning(self._link, self._timeout_s if timeout_s is None else checked_timeout(timeout_s))

    def _finding_again(self, wire: Wire, request: Request, deadline: float, *, in_doubt: bool) -> Waits[None]:
        """Find the coordinator that serves the graph now; a failure here says nothing about the write in doubt."""
        left_s = _left(request, deadline)
        try:
            yield from self._link.finding_again(wire, left_s)
        except StorageError as error:  # the old one is asked until the time-out
            log.warning("event=coordinator_not_found txn_id=%s error=%s", request.header.commit_id, error)
        except OmnirayError as error:
            if not in_doubt:
                raise
            raise OutcomeUnknown(
                f"write {request.header.commit_id} was not answered, and may have landed before that: {error}; send it "
                "again with this txn_id, and it is applied once",
                **{**error.facts, "txn_id": request.header.commit_id},
            ) from error

    def _abandoning(self, request: Request) -> Waits[None]:
        """Tell the coordinator that nobody waits for a write any more: one that still waits is dropped."""
        with contextlib.suppress(OmnirayError):
            yield from self._link.wire.calling(ABANDON, ABANDON_TIMEOUT_S, OfWrite(request.header.commit_id))


def beginning(link: Link, timeout_s: float) -> Waits[int]:
    """The newest number of the line that is known here, which must not be an old one: what begins now says it.

    It is said again with every try: whatever was reported since is true of them all.
    """
    if link.wire.has_paused:
        with contextlib.suppress(StorageError):  # what is sent will tell
            yield from link.calling(NEWEST, timeout_s)
    return link.wire.newest


def checked_timeout(timeout_s: float) -> float:
    """A time-out that every wait can be given: one without end, such as `math.inf`, is one of a year."""
    if not timeout_s > 0:  # also refuses NaN
        raise InputError(f"a time-out of {timeout_s} s leaves no time for an answer: give more than 0")
    return min(timeout_s, TIMEOUT_S_MAX)


def _end(error: OmnirayError, request: Request, *, in_doubt: bool) -> OmnirayError | None:
    """What the caller is told after a try that ended so; None if the write is sent again.

    `in_doubt`: an earlier try may have landed.
    """
    match error:
        case Overloaded() | Withdrawn():
            return error if error.facts.get("reported") else None  # somebody was told so, and must not be wrong
        case OutcomeUnknown() | Fenced() | Unauthenticated():
            return None
        case Unreachable() if "url" in error.facts:  # it was not even sent
            return None
        case StorageError():
            return _unknown(request) if in_doubt else error
        case LineOwned() | NotFound() if "line" in error.facts:  # of the door, which has read nothing: no answer to it
            return _unknown(request) if in_doubt else error
    return error


def _begun(request: Request, number: int) -> Request:
    one: Any = request
    begun: Request = replace(one, header=replace(request.header, began=number))
    return begun


def _left(request: Request, deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise _unknown(request)
    return left_s


def _unknown(request: Request) -> OutcomeUnknown:
    txn_id = request.header.commit_id
    return OutcomeUnknown(
        f"no answer in time to write {txn_id}: it may have landed, or may yet; send it again with this txn_id, and it "
        "is applied once",
        txn_id=txn_id,
    )
