"""Which versions the lines of a graph pin: a sweep must find the manifest of each."""

from __future__ import annotations

from collections.abc import Iterable, Set

from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.tables.version_names import final_path, history_path, own_path


def refuse_missing(table: str, manifests: Set[str], lines: Iterable[CommitObject], main_line: str) -> None:
    """Raise if a version of a table that the newest object of a line pins is not among these manifests.

    A version of main that has no final name yet has a sidecar, which spares its table: it is not asked about here.
    """
    for line in lines:
        for pin in line.pins.values():
            if pin.path == table and manifests.isdisjoint(_places(pin, main_line)):
                where = "the graph" if line.line == main_line else f"the branch with the id {line.line}"
                raise StorageError(f"version {pin.version}, which {where} pins, was not found")


def _places(pin: Pin, main_line: str) -> tuple[str, ...]:
    if pin.line != main_line:
        return (own_path(pin, main_line),)
    return (final_path(pin.path, pin.version), history_path(pin.path, pin.version))
