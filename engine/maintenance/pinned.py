"""Which versions the lines of a graph pin.

A sweep must find the manifest of each version that is pinned now. A manifest of a branch has one name for ever, so only
its line tells a version from what a killed writer has staged: a version is one that the line has ever pinned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.engine.base.jobs import Jobs
from omniray.engine.history.ancestry import lineage_of, log_of
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.version_names import branch_and_table_of, final_path, history_path, own_path, version_of


def refuse_missing(table: str, manifests: Set[str], lines: Iterable[CommitObject], main_line: str) -> None:
    """Raise if a version of a table that the newest object of a line pins is not among these manifests.

    A version of main that has no final name yet has a sidecar, which spares its table: it is not asked about here.
    """
    for line in lines:
        for pin in line.pins.values():
            if pin.path == table and manifests.isdisjoint(_places(pin, main_line)):
                where = "the graph" if line.line == main_line else f"the branch with the id {line.line}"
                raise StorageError(f"version {pin.version}, which {where} pins, was not found")


def pinned_on_branches(
    store: ObjectStore, main_line: str, manifests: Iterable[str], jobs: Jobs
) -> tuple[set[str], dict[str, str]]:
    """Those manifests of branches that their lines have ever pinned; and for some tables, why that is unknown."""
    by_line: dict[str, set[str]] = defaultdict(set)
    for path in manifests:
        by_line[branch_and_table_of(path)[0]].add(path)
    asked = {line: jobs.submit(_pinned_on, store, main_line, line, paths) for line, paths in by_line.items()}
    pinned: set[str] = set()
    unknown: dict[str, str] = {}
    for line, answer in asked.items():
        try:
            pinned |= answer.result()
        except OmnirayError as error:
            reason = f"the history of the branch with the id {line} can't be read: {error}"
            unknown |= {branch_and_table_of(path)[1]: reason for path in by_line[line]}
    return pinned, unknown


def _pinned_on(store: ObjectStore, main_line: str, line: str, manifests: Set[str]) -> set[str]:
    log = log_of(store, main_line, line)
    newest = log.newest_listed()
    if newest is None:
        return set(manifests)  # nobody knows about a line that is not there
    keys = {pin.path: key for key, pin in newest.pins.items()}
    tables = {path: branch_and_table_of(path)[1] for path in manifests}
    versions = {(keys[table], version_of(path)) for path, table in tables.items() if table in keys}
    pins = lineage_of(store, log, newest).pins_of(versions, newest)
    pinned = {own_path(pin, main_line) for pin in pins}
    return {path for path, table in tables.items() if path in pinned or table not in keys}


def _places(pin: Pin, main_line: str) -> tuple[str, ...]:
    if pin.line != main_line:
        return (own_path(pin, main_line),)
    return (final_path(pin.path, pin.version), history_path(pin.path, pin.version))
