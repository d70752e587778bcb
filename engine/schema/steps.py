"""The steps of a schema change: what each is called, what it costs, and whether it can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omniray.engine.schema.refusals import Refusal


class StepKind(StrEnum):
    """What a step changes; the names are those of the JSON, and stay."""

    ADD_TYPE = "add_type"
    RENAME_TYPE = "rename_type"
    DROP_TYPE = "drop_type"
    ADD_PROPERTY = "add_property"
    RENAME_PROPERTY = "rename_property"
    DROP_PROPERTY = "drop_property"
    CHANGE_TYPE = "change_type"
    MAKE_NULLABLE = "make_nullable"
    MAKE_REQUIRED = "make_required"
    WIDEN_ENUM = "widen_enum"
    NARROW_ENUM = "narrow_enum"
    CHANGE_DEFAULT = "change_default"
    ADD_CONSTRAINT = "add_constraint"
    DROP_CONSTRAINT = "drop_constraint"
    CHANGE_CARDINALITY = "change_cardinality"
    CHANGE_KEY = "change_key"
    CHANGE_ENDS = "change_ends"
    ADD_INTERFACE = "add_interface"
    CHANGE_INTERFACE = "change_interface"
    DROP_INTERFACE = "drop_interface"
    CHANGE_IMPLEMENTS = "change_implements"
    CHANGE_METADATA = "change_metadata"


class Cost(StrEnum):
    """What a step does with the rows of its table."""

    METADATA = "metadata"  # nothing
    BACKFILL = "backfill"  # a column is written for all of them
    CHECK = "check"  # all of them are read, and one that does not fit refuses the change


@dataclass(frozen=True, slots=True)
class Step:
    """One difference of two schemas. `type` and `property` are new names, or those of what is dropped.

    `type` is empty in a step about the schema as a whole. `table_key` names the table whose rows the cost counts, as
    it is before the change; it is empty where there is none.
    """

    kind: StepKind
    type: str
    property: str | None = None
    cost: Cost = Cost.METADATA
    loses_data: bool = False
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    refusal: Refusal | None = None
    table_key: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.type}{f'.{self.property}' if self.property else ''}"

    def as_json(self, rows: Mapping[str, int]) -> dict[str, Any]:
        """The step with the number of rows that it touches, by the number of rows of each table."""
        touched = 0 if self.cost is Cost.METADATA else rows.get(self.table_key, 0)
        return {
            "kind": self.kind.value,
            "type": self.type or None,
            "property": self.property,
            "cost": {"kind": self.cost.value, "rows": touched},
            "loses_data": self.loses_data,
            "refusal": None if self.refusal is None else self.refusal.as_json(),
            **self.details,
        }
