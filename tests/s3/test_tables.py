"""What tests/unit/test_tables.py shows on a disk, on S3."""

from tests.unit.test_tables import *  # noqa: F403
