"""What tests/unit/test_sweep.py shows on a disk, on S3."""

from tests.unit.test_sweep import *  # noqa: F403
