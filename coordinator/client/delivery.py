"""Delivers writes to the coordinator that serves a graph, until each is answered.

A write has an id, so that it may be sent again: to a coordinator that takes over, after a time-out, or after a lost
answer. It is applied once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from omniray.coordinator.actors.actor import first_line
from omniray.coordinator.actors.cluster import ray
from omniray.coordinator.client.service import Service
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    Fenced,
    InputError,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    StorageError,
    Withdrawn,
)
from omniray.engine.reader import GraphReader
from omniray.engine.writes.write_requests import Request, sent_again

log = logging.getLogger("omniray")

PAUSE_S = 0.05
PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a write, and whether an earlier try without an answer may be the one that was applied."""

    answer: WriteAnswer
    in_doubt: bool


class Delivery:
    """The way to a graph's coordinator; `service` is the one that was found last."""

    def __init__(self, graph: GraphReader, service: Service, timeout_s: float) -> None:
        self._graph, self._timeout_s = graph, timeout_s
        self.service = service

    def send(self, request: Request, timeout_s: float | None) -> Answered:
        """Send a write until it is answered; an id is applied only once.

        Once a try has ended without an answer, only an answer to the write itself settles the outcome.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else checked_timeout(timeout_s))
        pause_s, in_doubt = PAUSE_S, False
        while True:
            try:
                return Answered(self.service.submit(request, _left(request, deadline)), in_doubt)
            except (Overloaded, Withdrawn) as error:
                failed: OmnirayError = error
                pause_s = max(pause_s, error.facts.get("retry_after_s", 0.0))
            except (Fenced, OutcomeUnknown) as error:
                failed, in_doubt = error, True
            except StorageError as error:
                if in_doubt:
                    raise _unknown(request) from error
                raise
            if time.monotonic() + pause_s > deadline:
                if in_doubt:
                    raise _unknown(request) from failed
                raise failed
            if isinstance(failed, Fenced | OutcomeUnknown):
                self._find_again(request, deadline)
            request = sent_again(request)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _find_again(self, request: Request, deadline: float) -> None:
        """Find the coordinator that serves the graph now; a failure here says nothing about the write in doubt."""
        left_s = _left(request, deadline)
        try:
            self.service = self.service.found_again(self._graph, left_s)
        except (StorageError, ray().exceptions.RayError) as error:  # the old service is asked until the time-out
            log.warning("event=coordinator_not_found txn_id=%s error=%s", request.header.commit_id, first_line(error))
        except OmnirayError as error:
            raise OutcomeUnknown(
                f"write {request.header.commit_id} was not answered, and may have landed before that: {error}; send it "
                "again with this txn_id, and it is applied once",
                **{**error.facts, "txn_id": request.header.commit_id},
            ) from error


def checked_timeout(timeout_s: float) -> float:
    if not timeout_s > 0:  # also refuses NaN
        raise InputError(f"a time-out of {timeout_s} s leaves no time for an answer: give more than 0")
    return timeout_s


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
