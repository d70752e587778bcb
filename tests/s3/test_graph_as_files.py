"""What tests/unit/test_graph_as_files.py shows on a disk, on S3."""

from tests.unit.test_graph_as_files import *  # noqa: F403
