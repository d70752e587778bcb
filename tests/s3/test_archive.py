"""What tests/unit/test_archive.py shows on a disk, on S3."""

from tests.unit.test_archive import *  # noqa: F403
