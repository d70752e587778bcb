"""Failpoints of a process are armed by its environment."""

from __future__ import annotations

import os
import subprocess
import sys

from omniray.engine.base.failpoints import VARIABLE
from tests.unit.test_failpoints import SIGKILLED


def test_a_process_is_armed_by_its_environment() -> None:
    code = "from omniray.engine.base.failpoints import Point, reach\nfor _ in range(2): reach(Point.C_BEFORE_PUT)\n"
    for text, expected in (("phase_c.before_put=kill@2", SIGKILLED), ("phase_c.before_put=kill@3", 0), ("typo", 1)):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: text},
            stderr=subprocess.PIPE,
            check=False,
        )
        assert ended.returncode == expected, ended.stderr.decode()
