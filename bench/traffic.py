"""What a write asks of S3: requests, their depth and bytes, split into those before the answer and those behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure import timed
from tests.kit.s3server import LoggedRequest, S3Server, sequential_depth

COMMITS = "/__commits/"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Some requests, summed up."""

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
        """One write's share; the depth stays that of all of them."""
        return Traffic(self.requests / writes, self.depth, self.received_bytes / writes, self.sent_bytes / writes)


@dataclass(frozen=True, slots=True)
class Observed:
    """One write as the server saw it: how long it took, and its requests until the answer."""

    seconds: float
    foreground: Traffic


def observe(server: S3Server, write: Callable[[], object]) -> Observed:
    """Watch one write; other requests of before must be through."""
    server.reset()
    seconds = timed(write)
    return Observed(seconds, Traffic.of(until_commit(server.requests())))


def observe_all(server: S3Server, writes: Callable[[], object]) -> Traffic:
    """Everything that some writes ask for; they must flush."""
    server.reset()
    writes()
    return Traffic.of(server.requests())


def until_commit(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """The requests that were answered by the time the commit object was; all of them where there is none.

    Phase D begins when the commit's answer is there, so this cut is exact.
    """
    commits = [r.end_s for r in requests if r.method == "PUT" and COMMITS in r.target and r.status == 200]
    return [r for r in requests if not commits or r.end_s <= max(commits)]
