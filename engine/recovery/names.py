"""Gives final names that a foreign writer took back to the versions that the line pins.

A foreign commit between a write's Phase C and its Phase D finds the next number free and takes it. The write was
acknowledged and its manifest exists under its own name; so the foreign manifest is copied aside and the final name is
overwritten. Overwriting is safe where deleting is not: a number that the line pins has one right content for ever, so
a process that was paused before its put writes the same bytes again, even long after the name was given back. A delete
by a paused process could remove a name that is in use again. Only a repair, which a person asked for, overwrites;
Phase D itself only ever puts if absent.
"""

from __future__ import annotations

import hashlib

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import Pin
from omniray.engine.recovery.drift import DriftedTable
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.version_names import final_path, history_path, is_of, manifest_name, own_path


def reclaim(branch: OpenBranch, table: DriftedTable) -> list[str]:
    """Give all unfinished versions of a table their final names, in the line's order; returns the paths set aside."""
    aside: list[str] = []
    for one in table.unfinished:
        aside += _overwrite_foreign(branch, table.table_key, one.pin)
        give_final_name(branch.store, branch.graph_id, table.table_key, one.pin)
    return aside


def _overwrite_foreign(branch: OpenBranch, table_key: str, pin: Pin) -> list[str]:
    """Overwrite a foreign manifest under the final name or, if it has been moved meanwhile, in the history."""
    aside: list[str] = []
    for path in (final_path(pin.path, pin.version), history_path(pin.path, pin.version)):
        found = branch.store.get(path)
        if found is None or is_of(pin, found):
            continue
        ours = _own_bytes(branch, table_key, pin)
        aside.append(_put_aside(branch.store, pin, found))
        reach(Point.REPAIR_AFTER_ASIDE)
        branch.store.put(path, ours)
        reach(Point.REPAIR_AFTER_FINAL_NAME)
    return aside


def _own_bytes(branch: OpenBranch, table_key: str, pin: Pin) -> bytes:
    path = own_path(pin, branch.graph_id)
    ours = branch.store.get(path)
    if ours is None or not is_of(pin, ours):
        raise InvariantViolation(
            f"{table_key}: version {pin.version} is pinned, its final name holds a foreign manifest, and its own "
            f"({path}) is gone; restore the file from a backup",
            table_key=table_key, version=pin.version,
        )  # fmt: skip
    return ours


def _put_aside(store: ObjectStore, pin: Pin, manifest: bytes) -> str:
    """Copy a foreign manifest to a folder named after its content, so that a repeated repair keeps it once.

    It keeps a manifest's name, so that Lance can read it and the sweep spares the files that it refers to.
    """
    digest = hashlib.sha256(manifest).hexdigest()[:16]
    path = f"{pin.path}/_aside/{digest}/{manifest_name(pin.version)}"
    if store.put_if_absent(path, manifest) is Answer.UNCLEAR and store.get(path) is None:
        raise StorageError(f"no clear answer to putting {path}; try again", path=path)
    return path
