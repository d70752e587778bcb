"""Tests that share a Ray or a Spark run in one process; some versions of pytest make xdist forget which ones do."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("spark")


def test_xdist_knows_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@spark")
