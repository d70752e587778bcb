"""What tests/unit/test_recoverer.py shows on a disk, on S3."""

from tests.unit.test_recoverer import *  # noqa: F403
