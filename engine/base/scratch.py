"""Scratch folders: temporary files of one process, deleted in the end even if it is killed.

A process that is killed deletes nothing. So each process keeps its folders in one of its own and holds a lock there,
which the system releases with the process. A process that creates its first scratch folder deletes those whose lock is
free. Unlike process ids, locks tell live processes from dead ones across containers that share a disk.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_PREFIX = "omniray-scratch-"
_UNBORN = ".omniray-scratch-"
_LOCK = "lock"


def scratch_folder(purpose: str) -> Path:
    """A new folder of this process; delete it when it is not needed any more, else it is deleted with the process."""
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own(os.getpid())))


@cache
def _own(pid: int) -> Path:
    """The folder of this process. A fork is another process and creates its own."""
    parent = Path(tempfile.gettempdir())
    reap(parent)
    unborn = Path(tempfile.mkdtemp(prefix=_UNBORN, dir=parent))
    fcntl.flock(os.open(unborn / _LOCK, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)  # held until the process ends
    own = unborn.rename(parent / unborn.name.removeprefix("."))  # only now can `reap` find it
    atexit.register(_leave, own, pid)
    return own


def _leave(own: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits this call
        shutil.rmtree(own, ignore_errors=True)


def reap(parent: Path) -> None:
    """Delete the folders of processes that have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, locked, or just being deleted
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
