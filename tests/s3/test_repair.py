"""What tests/unit/test_repair.py shows on a disk, on S3."""

from tests.unit.test_repair import *  # noqa: F403
