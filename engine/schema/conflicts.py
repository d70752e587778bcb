"""Conflicts of two changes of one schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ConflictKind(StrEnum):
    """Why two changes of a schema can't both be made; the names are those of the JSON, and stay."""

    CHANGED_DIFFERENTLY = "changed_differently"
    DROPPED_AND_CHANGED = "dropped_and_changed"
    SAME_NAME = "same_name"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Two changes that can't both be made. `type` and `property` are the names that both began with, if they did.

    `ours` and `theirs` are what either side made of it, as text; None where it was dropped, or was never there.
    """

    kind: ConflictKind
    type: str
    property: str | None
    ours: str | None
    theirs: str | None
    reason: str

    def as_json(self) -> dict[str, str | None]:
        return {
            "kind": self.kind.value,
            "type": self.type or None,
            "property": self.property,
            "ours": self.ours,
            "theirs": self.theirs,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The conflicts that a merge finds."""

    found: list[SchemaConflict] = field(default_factory=list)

    def changed_differently(
        self, type: str, property: str | None, what: str, ours: str | None, theirs: str | None
    ) -> None:
        reason = f"both sides changed {what}"
        self.found.append(SchemaConflict(ConflictKind.CHANGED_DIFFERENTLY, type, property, ours, theirs, reason))

    def dropped(self, type: str, property: str | None, ours: str | None, theirs: str | None) -> None:
        reason = "one side dropped it, and the other one changed it"
        self.found.append(SchemaConflict(ConflictKind.DROPPED_AND_CHANGED, type, property, ours, theirs, reason))

    def lost(self, type: str, reason: str) -> None:
        """Something that one side added is about something that the other one dropped."""
        self.found.append(SchemaConflict(ConflictKind.DROPPED_AND_CHANGED, type, None, None, None, reason))

    def added_differently(self, type: str, property: str | None, ours: str | None, theirs: str | None) -> None:
        reason = "both sides added it, otherwise defined"
        self.found.append(SchemaConflict(ConflictKind.SAME_NAME, type, property, ours, theirs, reason))

    def same_name(self, type: str, property: str | None) -> None:
        reason = f"both sides have another {'property' if property else 'type'} of that name; rename one first"
        self.found.append(SchemaConflict(ConflictKind.SAME_NAME, type, property, None, None, reason))

    def invalid(self, reason: str) -> None:
        self.found.append(SchemaConflict(ConflictKind.INVALID, "", None, None, None, reason))
