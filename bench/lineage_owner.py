"""Measures the memory that a line's owner needs for the history, as the growth of RSS in a process of its own.

python -m bench.lineage_owner URI
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from bench.synthetic_line import BRANCH
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.store.open_store import open_store


def main() -> None:
    store = open_store(sys.argv[1])
    log, manifest = CommitLog(store, BRANCH), Manifest(store, BRANCH)
    newest = log.newest_listed()
    assert newest is not None
    manifest.folded_through()  # the library's own memory, taken on first use, is not counted
    before = _resident_bytes()
    recent = RecentCommits(Lineage(log, manifest, lambda: newest), newest)
    print(json.dumps({"growth_bytes": _resident_bytes() - before, "commits": len(recent)}))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
