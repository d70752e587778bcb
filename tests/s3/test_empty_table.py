"""What tests/unit/test_empty_table.py shows on a disk, on S3."""

from tests.unit.test_empty_table import *  # noqa: F403
