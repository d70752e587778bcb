"""What tests/unit/test_drift.py shows on a disk, on S3."""

from tests.unit.test_drift import *  # noqa: F403
