"""What tests/unit/test_heal.py shows on a disk, on S3."""

from tests.unit.test_heal import *  # noqa: F403
