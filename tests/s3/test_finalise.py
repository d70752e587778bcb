"""What tests/unit/test_finalise.py shows on a disk, on S3."""

from tests.unit.test_finalise import *  # noqa: F403
