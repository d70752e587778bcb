"""The graph after a run: every row of every table, all commits, and the recoveries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from omniray.coordinator.stress.operation import ROW_TYPES, StressedGraph, TypeName
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.line.commit_object import Recovery


@dataclass(frozen=True, slots=True)
class FinalGraph:
    """The graph when all writers are done; `lineage` and `recoveries` are oldest first."""

    rows: Mapping[TypeName, tuple[Mapping[str, Any], ...]]
    lineage: tuple[LineageEntry, ...]
    recoveries: tuple[Recovery, ...]

    @classmethod
    def of(cls, graph: StressedGraph, types: Collection[TypeName] = tuple(ROW_TYPES)) -> FinalGraph:
        """Read everything, the tables by full scans; no process may write meanwhile."""
        snapshot = graph.snapshot()
        rows = {type: tuple(snapshot.table(type).to_pylist()) for type in types}
        return cls(rows, tuple(reversed(graph.history())), tuple(reversed(graph.recoveries())))
