"""Tests without servers: what holds on any root is shown on a disk here, and in tests/s3 on an S3 server."""

from __future__ import annotations

import pytest

from tests.stores import Root


@pytest.fixture
def any_root(disk: Root) -> Root:
    """A folder."""
    return disk


@pytest.fixture(scope="module")
def lasting_root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A folder that the tests of a module share."""
    return Root(str(tmp_path_factory.mktemp("root")), {})
