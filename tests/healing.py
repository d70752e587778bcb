"""What recoveries are judged by: who left what, what was recorded of it, and what must never be found afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omniray.engine.base.failpoints import Point
from omniray.engine.history import audit
from omniray.engine.line.sidecar import Sidecar
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.final_names import FinalName, observe_final_name
from omniray.engine.tables.version_names import own_path
from tests.graphs import CITY, PERSON, Adding, Parts, parts_of
from tests.kit.mortal import bury, crash

BOTH = (PERSON, CITY)


def everybody_is_dead(sidecar: Sidecar) -> bool:
    return True


@contextlib.contextmanager
def processes_on(store: ObjectStore) -> Iterator[Callable[..., Parts]]:
    """Opens the graph as one more process, which takes every operation's owner for dead; in the end all are closed."""

    def open_one(of: ObjectStore = store, **options: Any) -> Parts:
        return parts_of(of, **{"is_dead": everybody_is_dead, **options})

    with all_buried(open_one) as opened:
        yield opened


@contextlib.contextmanager
def all_buried(opens: Callable[..., Parts]) -> Iterator[Callable[..., Parts]]:
    """The same function; in the end all processes that it opened are closed."""
    found: list[Parts] = []

    def open_one(*arguments: Any, **options: Any) -> Parts:
        found.append(opens(*arguments, **options))
        return found[-1]

    try:
        yield open_one
    finally:
        for parts in found:
            bury(parts)


def add(parts: Parts, *names: str, tables: Sequence[str] = BOTH) -> Adding:
    intent = Adding(parts.schema, {key: list(names) for key in tables})
    parts.writer.commit(intent)
    return intent


def left_by(store: ObjectStore, point: Point, name: str = "ghost") -> str:
    """Have a process die while it writes a name to two tables; the operation that it left."""
    before = set(parts_of(store).sidecars.listed())
    crash(store, point, lambda parts: add(parts, name))
    (left,) = set(parts_of(store).sidecars.listed()) - before
    return left


def recovered(parts: Parts) -> RecoveryReport:
    return parts.recoverer.recover(parts.tip)


def outcomes(parts: Parts) -> dict[str, tuple[str, dict[str, str]]]:
    """By operation: how its recovery is recorded, and how its tables were classified."""
    found = audit.recorded(parts.store)
    assert len({one.operation_id for one in found}) == len(found), "one row for each operation"
    by_line = {one.operation_id: one for one in parts.lineage.recoveries(None)}
    assert by_line == {one.operation_id: one for one in found}, "line and audit say the same"
    return {one.operation_id: (one.recovery_kind, dict(one.outcomes)) for one in found}


def staged_versions(store: ObjectStore, path: str = "nodes/Person.lance") -> list[str]:
    """The manifests of a table that have no final name, or had none."""
    return [file.path for file in store.files(f"{path}/_staged")]


def wounds(store: ObjectStore) -> list[str]:
    """What a recovery must never leave: versions that are pinned and nowhere, and lies about what happened."""
    parts = parts_of(store)
    found: list[str] = []
    for obj in parts.line():
        for key, pin in obj.introduced().items():
            is_final = observe_final_name(store, pin) is FinalName.OURS
            if not is_final and store.get(own_path(pin, parts.branch.graph_id)) is None:
                found.append(f"{key} {pin.version} is nowhere")
    folded = {entry.op_id for entry in parts.lineage.entries(parts.newest())}
    committed = {obj.op_id for obj in parts.line() if obj.commits} | folded
    for recovery in parts.lineage.recoveries(None):
        if (recovery.recovery_kind == "RolledForward") != (recovery.operation_id in committed):
            found.append(f"{recovery.operation_id} is told to be {recovery.recovery_kind}")
    return found
