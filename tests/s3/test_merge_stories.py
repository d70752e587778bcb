"""What tests/unit/test_merge_stories.py shows on a disk, on S3."""

from tests.unit.test_merge_stories import *  # noqa: F403
