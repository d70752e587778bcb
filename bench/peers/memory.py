"""Measures the memory of a process and all its descendants while a block runs; on Linux."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

SAMPLE_EVERY_S = 0.25
_PROC = Path("/proc")


class PeakMemory:
    """The peak memory of this process and its descendants in a block, with shared pages counted once."""

    def __init__(self, every_s: float = SAMPLE_EVERY_S) -> None:
        self.peak_bytes = 0
        self._every_s = every_s
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, held_bytes(os.getpid()))
            if self._done.wait(self._every_s):
                return


def held_bytes(root: int) -> int:
    """The memory of a process and its descendants now: each counts its proportional share of shared pages."""
    return sum(_proportional_bytes(pid) for pid in family(root))


def family(root: int) -> Iterator[int]:
    """A process and all its descendants."""
    children = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children[parent].append(int(entry.name))
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        pending += children[pid]


def _parent(entry: Path) -> int | None:
    with suppress(OSError):  # it has ended since
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
