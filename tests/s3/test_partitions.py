"""What tests/unit/test_partitions.py shows on a disk, on S3."""

from tests.unit.test_partitions import *  # noqa: F403
