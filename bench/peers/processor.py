"""The processor time of a process and all its descendants, by what they are; on Linux."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench.peers.memory import family

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KINDS = (  # the first pattern that is found in a command line names its process
    ("publisher", re.compile(r"ray::.*Publisher")),
    ("queues", re.compile(r"ray::.*Queues")),
    ("reconciler", re.compile(r"ray::.*Reconciler")),
    ("Ray", re.compile(r"ray::|/ray/|raylet|gcs_server")),
    ("store", re.compile(r"s3server|moto|postgres")),
    ("writers", re.compile(r"bench\.peers\.process")),
)
OTHER = "other"


def spent_by(root: int) -> dict[int, tuple[str, float]]:
    """For each process of a family what it is, and the seconds that it has computed so far."""
    found = {pid: (_kind(pid), _seconds(pid)) for pid in family(root)}
    return {pid: (kind, seconds) for pid, (kind, seconds) in found.items() if seconds is not None}


def spent_between(before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]]) -> dict[str, float]:
    """The seconds that each kind of process has computed between two looks."""
    spent: defaultdict[str, float] = defaultdict(float)
    for pid, (kind, seconds) in after.items():
        spent[kind] += seconds - before.get(pid, ("", 0.0))[1]
    return dict(spent)


def _kind(pid: int) -> str:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return next((kind for kind, pattern in _KINDS if pattern.search(command)), OTHER)
    return OTHER


def _seconds(pid: int) -> float | None:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return None
