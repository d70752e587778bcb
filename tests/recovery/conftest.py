"""Failures in the oracle are told in full."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.recovery.matrix", "tests.recovery.oracle", "tests.recovery.rows")
