"""The plan of a pipeline: its mappings, checked against the schema before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import ENDS, row_names, unknown_property
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, NodeType, Schema
from omniray.workers.spark.pipeline.config import Pipeline, TypeMapping
from omniray.workers.spark.pipeline.yaml_nodes import Faults, Text


@dataclass(frozen=True)
class TypePlan:
    """One type of the graph, and the expressions for its mapped columns."""

    type: ElementType
    mapping: TypeMapping
    columns: Mapping[str, Text]

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def has_ids(self) -> bool:
        """Whether rows have ids: derived from a key, or given."""
        return ID in self.columns or (isinstance(self.type, NodeType) and bool(self.type.key))

    def identity(self, mode: Mode) -> tuple[str, ...]:
        """The columns that identify a row: its id or, for merged edges without one, its ends; else none."""
        if self.has_ids:
            return (ID,)
        by_ends = mode is Mode.MERGE and isinstance(self.type, EdgeType) and self.type.unique_by_endpoints
        return (SRC, DST) if by_ends else ()


def plan(pipeline: Pipeline, schema: Schema) -> tuple[TypePlan, ...]:
    """The types to write in the schema's order, nodes first; raises `InputError` with the faulty lines.

    After this, every type and column that the file names is known to be in the schema.
    """
    faults = Faults(pipeline.file)
    nodes = {t.name: t for t in schema.nodes}
    edges = {t.name: t for t in schema.edges}
    plans = {
        **_planned(pipeline.nodes, "node", nodes, edges, faults),
        **_planned(pipeline.edges, "edge", edges, nodes, faults),
    }
    faults.refuse()
    return tuple(plans[type.name] for type in schema if type.name in plans)


def _planned(
    mappings: tuple[TypeMapping, ...],
    kind: str,
    types: Mapping[str, ElementType],
    others: Mapping[str, ElementType],
    faults: Faults,
) -> dict[str, TypePlan]:
    found = {}
    for mapping in mappings:
        if mapping.type in types:
            type = types[mapping.type]
            found[mapping.type] = TypePlan(type, mapping, _columns(type, mapping, faults))
        elif mapping.type in others:
            other = "edges" if kind == "node" else "nodes"
            faults.add(mapping.line, f"{mapping.type} is no {kind} type: move it to {other!r}")
        else:
            near = did_you_mean(mapping.type, types)
            faults.add(mapping.line, f"the graph has no {kind} type {mapping.type!r}; {near}")
    return found


def _columns(type: ElementType, mapping: TypeMapping, faults: Faults) -> dict[str, Text]:
    """The expressions by column of the type's table."""
    columns: dict[str, Text] = {}
    for name, text in mapping.columns.items():
        column = ENDS.get(name, name) if isinstance(type, EdgeType) else name
        if name not in row_names(type):
            faults.add(text.line, unknown_property(type, name))
        elif column in columns:
            faults.add(text.line, f"{mapping.title}.columns gives {name!r} twice, once under its other name; keep one")
        else:
            columns[column] = text
    for column, name, why in _needed(type):
        if column not in columns:
            faults.add(mapping.line, f"{mapping.title}.columns lacks {name!r}, which {why}: give it an expression")
    return columns


def _needed(type: ElementType) -> Iterator[tuple[str, str, str]]:
    """The required columns, their names in a file, and why they are needed: without them every row is refused."""
    if isinstance(type, EdgeType):
        yield SRC, "from", f"is the id of a {type.source}"
        yield DST, "to", f"is the id of a {type.target}"
    key = type.key if isinstance(type, NodeType) else ()
    for p in type.properties:
        if p.name in key or p.must_be_given:
            yield p.name, p.name, "is part of the key" if p.name in key else "is required"
