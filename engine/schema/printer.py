"""Printing a schema: the one canonical text of it, which parses back to the same schema.

Two texts that mean the same print the same, so the hash of the canonical text is the schema's identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from omniray.engine.schema.constraints import properties_of
from omniray.engine.schema.types import (
    ANY_CARDINALITY,
    Annotation,
    Cardinality,
    Check,
    Constraint,
    EdgeType,
    Interface,
    Literal_,
    NodeType,
    Property,
    Range,
    Schema,
)


def print_schema(schema: Schema) -> str:
    """The canonical text: interfaces, nodes, edges, each in the author's order."""
    declarations = [
        *(_interface(interface) for interface in schema.interfaces),
        *(_node(node) for node in schema.nodes),
        *(_edge(edge) for edge in schema.edges),
    ]
    return "\n\n".join(declarations) + "\n"


def schema_hash(schema: Schema) -> str:
    """The schema's identity: the SHA-256 of its canonical text, in hexadecimal."""
    return hashlib.sha256(print_schema(schema).encode()).hexdigest()


def _interface(interface: Interface) -> str:
    return f"interface {interface.name} {_body(interface.properties, ())}"


def _node(node: NodeType) -> str:
    head = ["node", node.name, *map(_annotation, node.annotations)]
    if node.implements:
        head.append("implements " + ", ".join(node.implements))
    return f"{' '.join(head)} {_body(node.own, node.constraints)}"


def _edge(edge: EdgeType) -> str:
    head = [f"edge {edge.name}: {edge.source} -> {edge.target}"]
    if edge.cardinality != ANY_CARDINALITY:
        head.append(_card(edge.cardinality))
    head += map(_annotation, edge.annotations)
    if edge.properties or edge.constraints:
        head.append(_body(edge.properties, edge.constraints))
    return " ".join(head)


def _body(properties: Iterable[Property], constraints: Iterable[Constraint]) -> str:
    properties = list(properties)
    own = {p.name for p in properties}
    at: dict[str, list[str]] = {}
    apart: list[str] = []
    for constraint in constraints:
        about = properties_of(constraint)
        if isinstance(constraint, Range | Check) or len(about) > 1 or about[0] not in own:
            apart.append(print_constraint(constraint))
        else:
            at.setdefault(about[0], []).append(f"@{_word(constraint)}")
    lines = [*(_property(p, at.get(p.name, [])) for p in properties), *apart]
    return "{\n" + "".join(f"  {line}\n" for line in lines) + "}" if lines else "{}"


def print_property_type(property: Property) -> str:
    """The type of a property as it is declared: `I32?`."""
    return f"{property.type}{'?' if property.nullable else ''}"


def print_property(property: Property) -> str:
    """A property as it is declared, without its constraints."""
    return _property(property, [])


def _property(property: Property, constraints: list[str]) -> str:
    declared = f"{property.name}: {print_property_type(property)}"
    default = [] if property.default is None else [f"@default({_literal(property.default)})"]
    return " ".join([declared, *constraints, *default, *map(_annotation, property.annotations)])


def print_constraint(constraint: Constraint) -> str:
    """A constraint as it stands by itself: over several properties, with arguments, or about an inherited one."""
    arguments = list(properties_of(constraint))
    if isinstance(constraint, Range):
        arguments.append(print_bounds(constraint.low, constraint.high))
    if isinstance(constraint, Check):
        arguments.append(_literal(constraint.pattern))
    return f"@{_word(constraint)}({', '.join(arguments)})"


def _word(constraint: Constraint) -> str:
    return type(constraint).__name__.lower()


def _card(cardinality: Cardinality) -> str:
    return f"@card({print_bounds(cardinality.low, cardinality.high)})"


def print_bounds(low: int | float | None, high: int | float | None) -> str:
    """Bounds as `@range` and `@card` have them: `0..150`, `1..`."""
    return "..".join("" if bound is None else repr(bound) for bound in (low, high))


def _annotation(annotation: Annotation) -> str:
    arguments = [_literal(a) for a in annotation.args]
    arguments += (f"{name}={_literal(value)}" for name, value in annotation.options)
    return f"@{annotation.name}({', '.join(arguments)})" if arguments else f"@{annotation.name}"


def _literal(value: Literal_) -> str:
    # As in JSON, but readable in every script: only quotes, backslashes and control characters are escaped.
    return json.dumps(value, ensure_ascii=False)
