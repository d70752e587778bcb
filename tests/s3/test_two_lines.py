"""What tests/unit/test_two_lines.py shows on a disk, on S3."""

from tests.unit.test_two_lines import *  # noqa: F403
