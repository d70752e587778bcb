"""Namespace clients: what decides, in each commit and each look, where Lance keeps and finds a table's manifests.

They are clients by their methods alone, with mappings for answers: Lance asks for no more, and its package of client
classes takes longer to import than all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


class Attempt:
    """One commit attempt on one table: notes the staged manifest, and answers nothing else."""

    def __init__(self) -> None:
        self.created: list[Mapping[str, Any]] = []

    def namespace_id(self) -> str:
        return "omniray-attempt"

    def create_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        entry = {name: request.get(name) for name in ("version", "manifest_path", "manifest_size", "e_tag")}
        self.created.append(entry)
        return {"version": entry}


class Restoring(Attempt):
    """An attempt that shows Lance the one older version which it brings back, in the way `History` does."""

    def __init__(self, manifest_path: str) -> None:
        super().__init__()
        self._manifest_path = manifest_path

    def describe_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"version": {"version": request["version"], "manifest_path": self._manifest_path}}


class History:
    """Shows Lance one archived version. The path ends in `.manifest`, so Lance reads it as it is and copies nothing."""

    def __init__(self, location: str, manifest_path: str) -> None:
        self._location = location
        self._manifest_path = manifest_path

    def namespace_id(self) -> str:
        return "omniray-history"

    def describe_table(self, request: Any) -> Any:
        return SimpleNamespace(location=self._location, managed_versioning=True, storage_options=None)

    def describe_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"version": {"version": request["version"], "manifest_path": self._manifest_path}}
