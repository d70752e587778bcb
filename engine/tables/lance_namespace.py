"""Namespace clients: they decide where Lance keeps and finds a table's manifests, in each commit and each read.

They have only the methods that Lance calls, and answer with mappings: Lance's package of client classes takes longer
to import than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from omniray.engine.base.errors import OmnirayError


class CommitAttempt:
    """One commit attempt on one table: notes the staged manifest, and answers nothing else.

    `shown` is the path of an older version's manifest, which a Restore brings back.
    """

    def __init__(self, shown: str | None = None) -> None:
        self.created: list[Mapping[str, Any]] = []
        self._shown = shown

    def namespace_id(self) -> str:
        return "omniray-attempt"

    def create_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        entry = {name: request.get(name) for name in ("version", "manifest_path", "manifest_size", "e_tag")}
        self.created.append(entry)
        return {"version": entry}

    def describe_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._shown is None:
            raise NotImplementedError("an attempt shows no version")
        return {"version": {"version": request["version"], "manifest_path": self._shown}}

    @property
    def staged_name(self) -> str:
        """The file name under which Lance left the new manifest."""
        return str(self.created[-1]["manifest_path"]).rsplit("/", 1)[-1]


class ShownVersion:
    """Shows Lance one version, wherever its manifest is when Lance asks: it may get its final name meanwhile.

    The path that `locate` gives ends in `.manifest`, so Lance reads it as it is and copies nothing.
    """

    def __init__(self, location: str, locate: Callable[[], str]) -> None:
        self._location, self._locate = location, locate
        self._failure: OmnirayError | None = None  # of which Lance tells no more than the text

    def namespace_id(self) -> str:
        return "omniray-version"

    def describe_table(self, request: Any) -> Any:
        return SimpleNamespace(location=self._location, managed_versioning=True, storage_options=None)

    def describe_table_version(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            path = self._locate()
        except OmnirayError as error:
            self._failure = error
            raise
        return {"version": {"version": request["version"], "manifest_path": path}}

    def raise_failure(self) -> None:
        """Raise the error that kept the version from being shown, if there was one since it was raised last."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
