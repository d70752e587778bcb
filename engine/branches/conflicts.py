"""What two branches disagree about: the conflicts of a merge, each with both sides' values and commits.

A merge lists all of its conflicts, but no list is longer than `LISTED_MAX`; the total is always told. Long values are
shortened, so that a conflict fits into an error, an answer and a line on a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omniray.engine.rows.export import plain_value

LISTED_MAX = 1_000
TEXT_CHARS_MAX = 256
ITEMS_MAX = 32


class OnConflict(StrEnum):
    """How conflicts between two values of a row are settled; rules over several rows are never settled that way."""

    FAIL = "fail"
    OURS = "ours"  # the target's value
    THEIRS = "theirs"  # the source's


class ConflictKind(StrEnum):
    """What a conflict is about."""

    DIVERGENT_INSERT = "divergent_insert"  # both sides inserted a row with this key, with other values
    DIVERGENT_UPDATE = "divergent_update"  # both sides set the same properties, to other values
    DELETE_VS_UPDATE = "delete_vs_update"  # one side deleted the row, the other changed it
    ORPHAN_EDGE = "orphan_edge"  # one side has an edge at a node that the other deleted
    UNIQUE_VIOLATION = "unique_violation"  # a row of each side has the same values of a `@unique`
    CARDINALITY_VIOLATION = "cardinality_violation"  # both sides' edges together are too many or too few for `@card`
    VALUE_CONSTRAINT_VIOLATION = "value_constraint_violation"  # the merged row breaks a rule over its own values
    SCHEMA_CONFLICT = "schema_conflict"  # the branches have different schemas
    DUPLICATE_COMMIT = "duplicate_commit"  # the same write was applied on both sides

    @property
    def is_of_cells(self) -> bool:
        """Whether `ours` or `theirs` settles it: it is about two values of one row, or two applications of a write."""
        return self in (
            ConflictKind.DIVERGENT_INSERT,
            ConflictKind.DIVERGENT_UPDATE,
            ConflictKind.DELETE_VS_UPDATE,
            ConflictKind.DUPLICATE_COMMIT,
        )


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One conflict. `source` and `target` are the properties' values on both sides, None where there is no such row.

    `type` is empty, and `id` that of a commit or a schema, where the conflict is not about a row.
    """

    kind: ConflictKind
    type: str
    id: str
    properties: tuple[str, ...] = ()
    source: Mapping[str, Any] | None = None
    target: Mapping[str, Any] | None = None
    reason: str = ""
    source_commit: str = ""
    target_commit: str = ""

    def as_json(self) -> dict[str, Any]:
        """The conflict as plain data."""
        return {
            "kind": self.kind.value,
            "type": self.type,
            "id": self.id,
            "properties": list(self.properties),
            "values": {"source": _plain(self.source), "target": _plain(self.target)},
            "reason": self.reason,
            "commits": {"source": self.source_commit, "target": self.target_commit},
        }

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.type, repr(self.id))))
        about = f" ({', '.join(self.properties)})" if self.properties else ""
        return f"{self.kind} {where}{about}" + (f": {self.reason}" if self.reason else "")


@dataclass(slots=True)
class Conflicts:
    """The conflicts found so far, the first ones listed, all counted."""

    source_commit: str
    target_commit: str
    listed: list[MergeConflict] = field(default_factory=list)
    count: int = 0

    @property
    def room(self) -> int:
        """How many more are listed."""
        return max(0, LISTED_MAX - len(self.listed))

    def add(self, found: Iterable[MergeConflict], *, count: int) -> None:
        """Add conflicts, of which only the first need be given."""
        for one in found:
            if not self.room:
                break
            self.listed.append(_with_commits(one, self.source_commit, self.target_commit))
        self.count += count


def _with_commits(one: MergeConflict, source: str, target: str) -> MergeConflict:
    return MergeConflict(one.kind, one.type, one.id, one.properties, one.source, one.target, one.reason, source, target)


def shown(row: Mapping[str, Any], properties: Sequence[str]) -> dict[str, Any]:
    """The values of some properties, in their JSON form and shortened."""
    return {name: shortened(row[name]) for name in properties}


def shortened(value: Any) -> Any:
    """A value in its JSON form; a long one is cut, and says so. JSON has no NaN and no infinity: they become texts."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes() if len(value) > TEXT_CHARS_MAX:
            return f"<{len(value)} bytes>"
        case str() if len(value) > TEXT_CHARS_MAX:
            return f"{value[:TEXT_CHARS_MAX]}… ({len(value)} characters)"
        case list() if len(value) > ITEMS_MAX:
            return [*map(shortened, value[:ITEMS_MAX]), f"… ({len(value)} items)"]
        case list():
            return [shortened(item) for item in value]
        case _:
            return plain_value(value)


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)
