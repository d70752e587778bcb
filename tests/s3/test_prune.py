"""What tests/unit/test_prune.py shows on a disk, on S3."""

from tests.unit.test_prune import *  # noqa: F403
