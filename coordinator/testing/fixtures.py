"""Fixtures for pytest; `omniray.testing` is the plugin that has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omniray.coordinator.stress.fault_proxy import FaultProxy, running_proxy
from omniray.coordinator.stress.moto_server import Bucket, new_bucket, s3_server
from omniray.coordinator.testing.served_graph import ServedGraph, served_graph


@pytest.fixture(scope="session")
def omniray_s3() -> Iterator[str]:
    """The endpoint of an S3 server in memory, one for all tests of a process."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def omniray_bucket(omniray_s3: str) -> Bucket:
    """An empty bucket."""
    return new_bucket(omniray_s3)


@pytest.fixture
def omniray_fault_proxy(omniray_s3: str) -> Iterator[FaultProxy]:
    """A proxy before the S3 server; `omniray_bucket.behind(omniray_fault_proxy)` goes through it."""
    with running_proxy(omniray_s3) as proxy:
        yield proxy


@pytest.fixture
def omniray_schema() -> str | Path:
    """The schema of `omniray_graph`, for you to override."""
    pytest.fail("omniray_graph needs a schema: define a fixture omniray_schema that returns .pg text or a Path to it")


@pytest.fixture
def omniray_graph(omniray_bucket: Bucket, omniray_schema: str | Path) -> Iterator[ServedGraph]:
    """A new graph with a coordinator of its own."""
    uri, options = f"{omniray_bucket.uri}/graph", omniray_bucket.storage_options
    with served_graph(uri, omniray_schema, storage_options=options) as graph:
        yield graph
