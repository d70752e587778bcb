"""The S3 requests of a write, their depth and bytes, split at the write's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure import timed
from tests.kit.s3server import LoggedRequest, S3Server, sequential_depth

COMMITS = "/__commits/"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The sums over some requests."""

    requests: float
    depth: int
    received_bytes: float
    sent_bytes: float

    @classmethod
    def of(cls, requests: Sequence[LoggedRequest]) -> Traffic:
        return cls(
            len(requests),
            sequential_depth(requests),
            sum(request.received_bytes for request in requests),
            sum(request.sent_bytes for request in requests),
        )

    def per(self, writes: int) -> Traffic:
        """One write's share; the depth stays that of all requests."""
        return Traffic(self.requests / writes, self.depth, self.received_bytes / writes, self.sent_bytes / writes)


@dataclass(frozen=True, slots=True)
class Observed:
    """One write: its time, and its requests until the answer."""

    seconds: float
    foreground: Traffic


def observe(server: S3Server, write: Callable[[], object]) -> Observed:
    """Measure one write; earlier requests must be finished."""
    server.reset()
    seconds = timed(write)
    return Observed(seconds, Traffic.of(until_commit(server.requests())))


def observe_all(server: S3Server, writes: Callable[[], object]) -> Traffic:
    """All requests of some writes, which must flush."""
    server.reset()
    writes()
    return Traffic.of(server.requests())


def until_commit(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """The requests that were answered no later than the commit object's put; all of them if there is no such put.

    Phase D begins after the answer to that put, so this cut is exact.
    """
    commits = [r.end_s for r in requests if r.method == "PUT" and COMMITS in r.target and r.status == 200]
    return [r for r in requests if not commits or r.end_s <= max(commits)]
