"""Final names: where plain Lance looks for the versions of main that the graph pins.

A version is staged under its own name, and readers of the graph find it there once it is pinned. Phase D gives it its
final name, a put-if-absent of the same bytes; only plain Lance readers wait for that. Other branches have none.
"""

from __future__ import annotations

from enum import StrEnum

from omniray.engine.base.errors import InvariantViolation, StorageError, TableDrift
from omniray.engine.line.commit_object import Pin
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.version_names import final_path, history_path, is_of, own_path

DRIFT_ADVICE = "stop that writer; 'omniray repair' shows what it did, and adopts it or sets it aside"
UNCLEAR_TRIES_MAX = 8


class FinalName(StrEnum):
    """What the final name of a pinned version holds."""

    OURS = "ours"
    ABSENT = "absent"
    FOREIGN = "foreign"


def observe_final_name(store: ObjectStore, pin: Pin) -> FinalName:
    """What the final name of a version holds, or its place in the history."""
    found = store.get(final_path(pin.path, pin.version)) or store.get(history_path(pin.path, pin.version))
    if found is None:
        return FinalName.ABSENT
    return FinalName.OURS if is_of(pin, found) else FinalName.FOREIGN


def give_final_name(store: ObjectStore, main_line: str, table_key: str, pin: Pin) -> None:
    """Make a pinned version of main visible to plain Lance; when this returns the final name is known to be ours.

    A version without its own name has its final one: Phase D deleted the own name, or a repair adopted the version.
    """
    own, final = own_path(pin, main_line), final_path(pin.path, pin.version)
    for _ in range(UNCLEAR_TRIES_MAX):
        answer = store.copy_if_absent(own, final)
        if answer is Answer.CREATED:
            return
        match observe_final_name(store, pin):
            case FinalName.OURS:
                return
            case FinalName.FOREIGN:
                raise _taken(table_key, pin)
            case FinalName.ABSENT if answer is None:
                raise lost(table_key, pin)
    raise StorageError(f"{table_key}: no clear answer to putting {final}; try again", table_key=table_key)


def _taken(table_key: str, pin: Pin) -> TableDrift:
    return TableDrift(
        f"{table_key}: {final_path(pin.path, pin.version)} holds another transaction than the graph pins: something "
        f"other than omniray wrote to the table; {DRIFT_ADVICE}",
        table_key=table_key, version=pin.version,
    )  # fmt: skip


def lost(table_key: str, pin: Pin) -> InvariantViolation:
    """The error for a pinned version that has no name at all."""
    return InvariantViolation(
        f"{table_key}: version {pin.version} is pinned and has neither a final name nor one of its own "
        f"({final_path(pin.path, pin.version)}); restore the file from a backup",
        table_key=table_key, version=pin.version,
    )  # fmt: skip
