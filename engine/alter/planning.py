"""The plan of a schema change on a graph: what its rows make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.plan import SchemaPlan, plan_change
from omniray.engine.schema.steps import Step


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """What leads from the schema of a branch at a commit to another one, with the rows that each step touches."""

    branch: str
    commit_id: str
    plan: SchemaPlan
    rows: Mapping[str, int]  # of each table, by its key before the change

    @property
    def supported(self) -> bool:
        """Whether no step is refused; one that loses data may need a flag."""
        return self.plan.supported

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.plan.steps

    def as_json(self) -> dict[str, Any]:
        return {"branch": self.branch, "commit_id": self.commit_id, **self.plan.as_json(self.rows)}


def plan_on(snapshot: Snapshot, text: str) -> GraphPlan:
    """Plan the change to a schema, given as `.pg` text, of a branch as a snapshot shows it; no row is read."""
    rows = {table["table_key"]: table["row_count"] for table in snapshot.describe()["tables"]}
    return GraphPlan(snapshot.branch, snapshot.commit_id, plan_change(snapshot.schema, parse_schema(text)), rows)
