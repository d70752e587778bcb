"""Failures of the oracle are told in full, and the summary says how many states were killed."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.recovery.matrix", "tests.recovery.oracle")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [dict(report.user_properties) for report in terminalreporter.getreports("passed")]
    states = sum(properties.get("states", 0) for properties in told)
    if states:
        terminalreporter.write_line(f"kill matrix: states killed and found whole: {states}")
    for properties in told:
        if "matrix" in properties:
            terminalreporter.write_line(f"kill matrix: {properties['matrix']}")
