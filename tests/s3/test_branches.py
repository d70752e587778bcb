"""What tests/unit/test_branches.py shows on a disk, on S3."""

from tests.unit.test_branches import *  # noqa: F403
