"""The plan of a schema change: two schemas compared, as typed steps and as what is to be done to each table.

Pure: it knows no rows. Types and properties are matched by their names and by `@rename_from`, or by their identities
where both are known (`identified.py`). Whatever else differs is a step: a plan without steps means equal schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omniray.engine.schema.alteration import TableAlteration
from omniray.engine.schema.comparison import Comparison
from omniray.engine.schema.matching import ByName, Matched, Matching, former_name, is_reordered
from omniray.engine.schema.printer import print_property_type
from omniray.engine.schema.refusals import DATA_LOSS
from omniray.engine.schema.steps import Step, StepKind
from omniray.engine.schema.types import EdgeType, ElementType, Interface, Schema

BY_NAME = ByName()


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What leads from one schema to another; tables that are not named stay as they are."""

    before: Schema
    after: Schema
    steps: tuple[Step, ...]
    created: tuple[ElementType, ...] = ()
    dropped: tuple[ElementType, ...] = ()
    altered: tuple[TableAlteration, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether no step is refused; one that loses data may need a flag."""
        return not self.refused(allow_data_loss=True)

    def refused(self, *, allow_data_loss: bool) -> tuple[Step, ...]:
        """The steps that can't be taken, each with its refusal."""
        lossy = (replace(s, refusal=DATA_LOSS) if s.loses_data and s.refusal is None else s for s in self.steps)
        return tuple(step for step in (self.steps if allow_data_loss else lossy) if step.refusal is not None)

    def as_json(self, rows: Mapping[str, int]) -> dict[str, Any]:
        """The plan as programs read it, by the number of rows of each table of the old schema."""
        return {
            "supported": self.supported,
            "step_count": len(self.steps),
            "steps": [step.as_json(rows) for step in self.steps],
        }


def plan_change(before: Schema, after: Schema, matching: Matching = BY_NAME) -> SchemaPlan:
    """Plan the change from one schema to another."""
    planner = _Planner(matching)
    planner.plan_interfaces(before.interfaces, after.interfaces)
    nodes, edges = matching.types(before.nodes, after.nodes), matching.types(before.edges, after.edges)
    planner.plan_types(before.nodes, after.nodes, nodes, nodes.new)
    planner.plan_types(before.edges, after.edges, edges, nodes.new)
    orders = [
        (_names(before.nodes), _names(after.nodes), nodes.new),
        (_names(before.edges), _names(after.edges), edges.new),
        (_names(before.interfaces), _names(after.interfaces), {name: name for name in _names(before.interfaces)}),
    ]
    if any(is_reordered(*order) for order in orders):
        planner.steps.append(Step(StepKind.CHANGE_METADATA, "", details={"what": "order of types"}))
    return SchemaPlan(
        before, after, tuple(planner.steps), tuple(planner.created), tuple(planner.dropped), tuple(planner.altered)
    )


@dataclass(frozen=True, slots=True)
class _Planner:
    """Gathers the parts of a plan."""

    matching: Matching
    steps: list[Step] = field(default_factory=list)
    created: list[ElementType] = field(default_factory=list)
    dropped: list[ElementType] = field(default_factory=list)
    altered: list[TableAlteration] = field(default_factory=list)

    def plan_interfaces(self, before: Sequence[Interface], after: Sequence[Interface]) -> None:
        """The steps of interfaces; what they mean for rows are steps of the types that implement them."""
        old, new = ({one.name: one for one in interfaces} for interfaces in (before, after))
        for name, one in new.items():
            if name not in old:
                self.steps.append(Step(StepKind.ADD_INTERFACE, name))
            elif one != old[name]:
                self.steps.append(Step(StepKind.CHANGE_INTERFACE, name))
        self.steps.extend(Step(StepKind.DROP_INTERFACE, name) for name in old if name not in new)

    def plan_types(
        self,
        before: Sequence[ElementType],
        after: Sequence[ElementType],
        matched: Matched,
        new_nodes: Mapping[str, str],
    ) -> None:
        """The steps of all node types, or of all edge types."""
        old = {type.name: type for type in before}
        for type in after:
            if (refusal := matched.refused.get(type.name)) is not None:
                former = {"from": former_name(type.annotations)}
                self.steps.append(Step(StepKind.RENAME_TYPE, type.name, refusal=refusal, details=former))
            if type.name in matched.old:
                self._compare(old[matched.old[type.name]], type, new_nodes)
            else:
                self.created.append(type)
                self.steps.append(Step(StepKind.ADD_TYPE, type.name, details=_described(type)))
        for name, type in old.items():
            if name not in matched.new:
                self.dropped.append(type)
                details, table = {"of": type.kind}, type.table_key
                self.steps.append(Step(StepKind.DROP_TYPE, name, loses_data=True, details=details, table_key=table))

    def _compare(self, before: ElementType, after: ElementType, new_nodes: Mapping[str, str]) -> None:
        comparison = Comparison(before, after, self.matching.properties(before, after), new_nodes)
        if comparison.steps:
            self.steps.extend(comparison.steps)
            self.altered.append(comparison.alteration)


def _names(types: Iterable[ElementType | Interface]) -> list[str]:
    return [type.name for type in types]


def _described(type: ElementType) -> dict[str, Any]:
    ends = {"ends": [type.source, type.target]} if isinstance(type, EdgeType) else {}
    return {"of": type.kind, **ends, "properties": {p.name: print_property_type(p) for p in type.properties}}
