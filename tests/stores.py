"""Where tests keep a graph: a folder on disk, or a bucket of a real S3 server over HTTP."""

from __future__ import annotations

from typing import NamedTuple

from omniray.coordinator.stress import moto_server


class Root(NamedTuple):
    """A place for a graph, and what Lance needs to reach it."""

    uri: str
    storage_options: dict[str, str]

    def __repr__(self) -> str:
        return f"Root({self.uri!r})"


def new_bucket(endpoint: str) -> Root:
    """A bucket that nobody else uses."""
    bucket = moto_server.new_bucket(endpoint)
    return Root(bucket.uri, dict(bucket.storage_options))
