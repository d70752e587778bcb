"""Moves manifests of old versions to the history, so that a commit need not list them.

Lance lists `_versions/` in each commit, so a table with a long history pays for all of it in every write. Phase D keeps
the newest manifests there and moves older ones, byte for byte, to `_history/` beside it. Time travel reads them from
there (`storage.py`); a plain Lance reader sees the newest versions, and those not older than `KEPT_VERSIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator

from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.version_names import final_path, final_versions, history_path

KEPT_VERSIONS = 8


def is_due(version: int, every: int = 0) -> bool:
    """Whether a table that reached this version should be tidied: now and then, so that one listing serves many."""
    return version % (every or KEPT_VERSIONS) == 0


def archive(store: ObjectStore, table_path: str) -> None:
    """Move all but the newest versions of a table to its history; any number of processes may do so at once."""
    old = list(_old_versions(store, table_path, KEPT_VERSIONS))
    moved = [path for version, path in old if store.copy(path, history_path(table_path, version))]
    store.delete_all(moved)


def discard(store: ObjectStore, table_path: str, *, keep: int) -> None:
    """Delete all but the newest versions of a table that needs no time travel."""
    store.delete_all([path for _, path in _old_versions(store, table_path, keep)])


def newest_version(store: ObjectStore, table_path: str) -> int:
    """The newest version that has its final name, or 0."""
    return max(final_versions(store.names(f"{table_path}/_versions")), default=0)


def _old_versions(store: ObjectStore, table_path: str, keep: int) -> Iterator[tuple[int, str]]:
    versions = sorted(final_versions(store.names(f"{table_path}/_versions")), reverse=True)
    for version in versions[keep:]:
        yield version, final_path(table_path, version)
