"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from omniray.coordinator.stress import moto_server
from tests.kit.s3server import S3Server, running_server
from tests.stores import Root, new_bucket

# A deadline would assert on the wall clock of a shared machine. Continuous integration judges a change by the same
# examples each time; new ones are sought wherever somebody runs the tests.
settings.register_profile(
    "omniray", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("omniray")

# These run a few modules hundreds or thousands of times: measuring their coverage takes as long as running them.
REPEATING = tuple(Path(__file__).parent / folder for folder in ("model", "recovery", "faults"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(map(item.path.is_relative_to, REPEATING)):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def _no_credentials_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see only the credentials that they set, and never ask a cloud's metadata service for some."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The kit's S3 server; each xdist worker has its own.

    A request costs moto ten times as much. So moto is for what shows that the two servers agree, and for credentials.
    """
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_endpoint(s3_server: S3Server) -> str:
    """Where the kit's S3 server listens."""
    return s3_server.endpoint


@pytest.fixture
def s3(s3_server: S3Server) -> Root:
    """An empty bucket on a real S3 server."""
    s3_server.reset()  # or the log of requests grows with every test
    return new_bucket(s3_server.endpoint)


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """A moto server, which others wrote; each xdist worker has its own."""
    with moto_server.s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def moto_bucket(moto_endpoint: str) -> Root:
    """An empty bucket on moto."""
    return new_bucket(moto_endpoint)


@pytest.fixture
def disk(tmp_path: Path) -> Root:
    """An empty folder."""
    folder = tmp_path / "root"
    folder.mkdir()
    return Root(str(folder), {})


@pytest.fixture(params=["disk", "s3"])
def any_root(request: pytest.FixtureRequest) -> Root:
    """The same test on a disk and on S3."""
    root: Root = request.getfixturevalue(request.param)
    return root
