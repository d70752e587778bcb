"""Final names: where plain Lance looks for the versions that the graph pins."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

from omniray.engine.base.errors import InvariantViolation, NotFinalised, StorageError, TableDrift
from omniray.engine.line.commit_object import Pin
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables.version_names import final_name, history_path, transaction_mark

DRIFT_ADVICE = "stop that writer; 'omniray repair' shows what it did, and adopts it or sets it aside"
UNCLEAR_TRIES_MAX = 8
WAIT_FOR_FINAL_S = 5.0


class FinalName(StrEnum):
    """What the final name of a pinned version holds."""

    OURS = "ours"
    ABSENT = "absent"
    FOREIGN = "foreign"


def observe_final_name(store: ObjectStore, pin: Pin) -> FinalName:
    """What the final name of a version holds; one that was final so long ago that it was moved to the history is ours.

    A pin without a staging path has its final name: an object said so when that had been confirmed.
    """
    if pin.staging is None:
        return FinalName.OURS
    final = final_name(pin.staging)
    table_path = final.partition("/_versions/")[0]
    found = store.get(final) or store.get(history_path(table_path, pin.version))
    if found is None:
        return FinalName.ABSENT
    return FinalName.OURS if transaction_mark(pin) in found else FinalName.FOREIGN


def _has_final_name(store: ObjectStore, table_key: str, pin: Pin) -> bool:
    found = observe_final_name(store, pin)
    if found is FinalName.FOREIGN and pin.staging is not None:
        raise TableDrift(
            f"{table_key}: {final_name(pin.staging)} holds another transaction than the graph pins: something other "
            f"than omniray wrote to the table; {DRIFT_ADVICE}",
            table_key=table_key, version=pin.version,
        )  # fmt: skip
    return found is FinalName.OURS


def give_final_name(store: ObjectStore, table_key: str, pin: Pin) -> None:
    """Make a pinned version visible to plain Lance; when this returns the final name is known to be ours.

    Names are looked for as final, staging, then final again, since another process may do the same meanwhile.
    """
    if pin.staging is None:
        return
    final = final_name(pin.staging)
    for _ in range(UNCLEAR_TRIES_MAX):
        answer = store.copy_if_absent(pin.staging, final)
        if answer is Answer.CREATED:
            return
        if _has_final_name(store, table_key, pin):
            return
        if answer is None:
            raise InvariantViolation(
                f"{table_key}: version {pin.version} is pinned and has neither a final nor a staging name ({final}); "
                "restore the file from a backup",
                table_key=table_key, version=pin.version,
            )  # fmt: skip
    raise StorageError(f"{table_key}: no clear answer to putting {final}; try again", table_key=table_key)


def wait_for_final_name(
    store: ObjectStore, table_key: str, pin: Pin, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """For readers that may not write: wait a little for a writer's Phase D, then say who has to heal it."""
    if pin.staging is None:
        return
    pause, waited = 0.01, 0.0
    while not _has_final_name(store, table_key, pin):
        if waited >= WAIT_FOR_FINAL_S:
            raise NotFinalised(
                f"{table_key}: version {pin.version} is committed, but its writer has not finished Phase D; "
                "open the graph read-write once to heal it, or try again while the writer lives",
                table_key=table_key, version=pin.version,
            )  # fmt: skip
        sleep(pause)
        waited, pause = waited + pause, min(pause * 2, 0.5)
