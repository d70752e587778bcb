"""Identifies a process so that its death can be detected at once on the same machine.

The death of a process says only *when* to recover its operations, never whether that is safe: the epoch does that.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

_STARTTIME_FIELD = 19  # of /proc/<pid>/stat, counted after the command's closing parenthesis
_ENDED = "ended"  # a zombie, whose parent has not read its exit code yet: signals still reach it


@dataclass(frozen=True, slots=True)
class Process:
    """A process of one machine. `started` tells it from a later one with the same pid."""

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"


def this_process() -> Process:
    pid = os.getpid()
    return Process(_host(), pid, _started(pid) or "")


def is_known_dead(process: Process) -> bool:
    """Whether a process is known to have ended; never so for one on another machine."""
    if process.host != _host():
        return False
    started = _started(process.pid)
    if started is not None:
        return started != process.started
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@functools.cache
def _host() -> str:
    """This machine, its boot and its PID namespace: pids can be compared only within one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: only the host name is known
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if it does not exist or can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _ENDED if fields[0] in "ZX" else fields[_STARTTIME_FIELD]
