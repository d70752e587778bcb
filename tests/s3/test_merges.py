"""What tests/unit/test_merges.py shows on a disk, on S3."""

from tests.unit.test_merges import *  # noqa: F403
