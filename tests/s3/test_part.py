"""What tests/unit/test_part.py shows on a disk, on S3."""

from tests.unit.test_part import *  # noqa: F403
