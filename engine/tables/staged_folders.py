"""The folders on a disk in which versions are staged, each alone: an emptied one becomes the next version's.

To create and delete a folder for each version costs a small write more than all else in its Phases A to D: on ext4 the
deletion waits for the journal, and holds the lock of the folder above, in which the next version's is created. To
rename an empty folder costs a few microseconds.

A folder is found by its name alone, so it does not matter whose it was. Whoever finds one missing creates it; those of
a process that was killed are deleted by the next sweep.
"""

from __future__ import annotations

import os
from pathlib import Path

from omniray.engine.store.object_store import ObjectStore

SPARE_MAX = 32  # of one table; Phase D empties sixteen at once


class StagedFolders:
    """The folders of one process for one graph. Threads may share it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._spare: dict[str, list[str]] = {}  # by the folder above, of the tables that this process stages

    def move_in(self, source: Path, target: str) -> bool:
        """Rename a file into a folder of its own, if the graph is on the same disk and only that folder is missing."""
        if (root := self._store.local_root) is None:
            return False
        folder = target.rpartition("/")[0]
        try:
            self._make(str(root), folder)
            os.rename(source, f"{root}/{target}")
        except OSError:
            return False
        return True

    def _make(self, root: str, folder: str) -> None:
        spare = self._spare.setdefault(folder.rpartition("/")[0], [])
        try:
            os.rename(f"{root}/{spare.pop()}", f"{root}/{folder}")
        except (IndexError, OSError):  # there is none, or another process has deleted it
            os.mkdir(f"{root}/{folder}")

    def retire(self, folder: str) -> None:
        """Keep a folder, whose version has its final name now, for the next version; or delete it."""
        spare = self._spare.get(folder.rpartition("/")[0])
        if spare is None or len(spare) >= SPARE_MAX or not self._is_empty(folder):
            self._store.delete_empty_folders(folder)
        else:
            spare.append(folder)

    def _is_empty(self, folder: str) -> bool:
        try:
            with os.scandir(f"{self._store.local_root}/{folder}") as entries:
                return next(entries, None) is None
        except OSError:  # another process has deleted it
            return False

    def close(self) -> None:
        """Delete the folders that are kept."""
        kept, self._spare = self._spare, {}
        for spare in kept.values():
            for folder in spare:
                self._store.delete_empty_folders(folder)
