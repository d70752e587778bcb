"""What tests/unit/test_audit.py shows on a disk, on S3."""

from tests.unit.test_audit import *  # noqa: F403
