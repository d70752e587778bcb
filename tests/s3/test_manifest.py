"""What tests/unit/test_manifest.py shows on a disk, on S3."""

from tests.unit.test_manifest import *  # noqa: F403
