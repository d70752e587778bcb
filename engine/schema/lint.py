"""What is allowed in a schema and yet seldom meant: findings with stable codes, each with advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from omniray.engine.schema.printer import print_constraint
from omniray.engine.schema.types import DST, SRC, EdgeType, ElementType, Key, NodeType, Schema, Unique


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a type or property that its author may want to change."""

    code: str
    type: str
    property: str | None
    reason: str
    advice: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def lint_schema(schema: Schema) -> tuple[Finding, ...]:
    """All findings, in the order of the schema."""
    return tuple(_findings(schema))


def _findings(schema: Schema) -> Iterator[Finding]:
    implemented = {name for node in schema.nodes for name in node.implements}
    for interface in schema.interfaces:
        if interface.name not in implemented:
            yield Finding(
                "unused_interface", interface.name, None, "no node type implements it", "implement it, or remove it"
            )
    for node in schema.nodes:
        yield from _of_node(node)
        yield from _of_any(node)
    for edge in schema.edges:
        yield from _of_edge(edge)
        yield from _of_any(edge)


def _of_node(node: NodeType) -> Iterator[Finding]:
    if node.key:
        return
    candidate = next((c for c in node.constraints if isinstance(c, Unique) and _may_be_key(node, c)), None)
    if candidate is None:
        reason = "without a @key its nodes can't be merged by a load, and edges need the ids that the graph gave them"
        yield Finding("keyless_node", node.name, None, reason, "add a @key: what a node is known by outside the graph")
    else:
        reason = f"{print_constraint(candidate)} tells its nodes apart, but is not their @key"
        names = ", ".join(candidate.properties)
        yield Finding("unique_without_key", node.name, None, reason, f"write @key({names}) instead, to merge by it")


def _may_be_key(node: NodeType, unique: Unique) -> bool:
    return all((p := node.property(name)) is not None and not p.nullable for name in unique.properties)


def _of_edge(edge: EdgeType) -> Iterator[Finding]:
    if not edge.unique_by_endpoints:
        reason = "two nodes may be connected by it many times, and a load that is merged adds its edges again"
        advice = f"add @unique({SRC}, {DST}) if one edge between two nodes is enough"
        yield Finding("repeatable_edge", edge.name, None, reason, advice)


def _of_any(type: ElementType) -> Iterator[Finding]:
    stricter = [c for c in type.constraints if isinstance(c, Key | Unique)]
    for unique in stricter:
        if not isinstance(unique, Unique):
            continue
        implied = next((c for c in stricter if c != unique and set(c.properties) <= set(unique.properties)), None)
        if implied is not None:
            reason = f"{print_constraint(unique)} always holds where {print_constraint(implied)} does"
            yield Finding("redundant_unique", type.name, None, reason, "remove it")
        defaulted = [type.property(name) for name in unique.properties]
        if all(p is not None and p.default is not None for p in defaulted):
            name = unique.properties[0] if len(unique.properties) == 1 else None
            reason = f"{print_constraint(unique)} refuses the second record that leaves the default to be filled in"
            yield Finding("unique_default", type.name, name, reason, "remove the @default or the @unique")
