"""The tests of tests/unit that hold on any root, on S3."""

from tests.unit.test_door_record import *  # noqa: F403
