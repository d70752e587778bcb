"""What tests/unit/test_commit_log.py shows on a disk, on the S3 server that others wrote."""

import pytest

from tests.stores import Root
from tests.unit.test_commit_log import *  # noqa: F403


@pytest.fixture
def any_root(moto_bucket: Root) -> Root:
    """A bucket on moto."""
    return moto_bucket
