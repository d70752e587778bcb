"""What tests/unit shows on a disk for any root, on an S3 server.

A module of tests/unit with such tests has a namesake here that imports all of it; what does not depend on the root was
shown there, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.s3server import S3Server, running_server
from tests.stores import Root, new_bucket

ROOTS = frozenset({"any_root", "lasting_root"})


@pytest.fixture
def any_root(s3: Root) -> Root:
    """A bucket."""
    return s3


@pytest.fixture(scope="module")
def lasting_root(s3_endpoint: str) -> Root:
    """A bucket that the tests of a module share."""
    return new_bucket(s3_endpoint)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server that tells what it was asked for and can be made to fail, with an empty bucket `bucket`."""
    with running_server() as server:
        server.create_bucket("bucket")
        yield server


def _is_shown_elsewhere(item: pytest.Item) -> bool:
    here, unit = Path(__file__).parent, "tests.unit."
    return (
        isinstance(item, pytest.Function)
        and item.path.is_relative_to(here)
        and item.function.__module__.startswith(unit)
        and ROOTS.isdisjoint(item.fixturenames)
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    elsewhere = [item for item in items if _is_shown_elsewhere(item)]
    config.hook.pytest_deselected(items=elsewhere)
    left_out = set(elsewhere)
    items[:] = [item for item in items if item not in left_out]
