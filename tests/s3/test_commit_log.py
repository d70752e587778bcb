"""What tests/unit/test_commit_log.py shows on a disk, on S3."""

from tests.unit.test_commit_log import *  # noqa: F403
