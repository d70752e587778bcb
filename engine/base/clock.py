"""A clock that keeps running during suspension, to detect paused writers."""

from __future__ import annotations

import time


def suspension_aware_clock() -> float:
    """Seconds on a clock that runs on while the machine or the process is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()
