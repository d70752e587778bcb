"""What tests/unit/test_staged_claims.py shows on a disk, on S3."""

from tests.unit.test_staged_claims import *  # noqa: F403
