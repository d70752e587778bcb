"""A schema whose types and properties are known by their identities, as merges compare it.

Names are values like any others here, so that a rename is one change and not a drop and an addition. Constraints and
ends of edges name what they are about by identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from omniray.engine.schema.constraints import in_canonical_order, with_names
from omniray.engine.schema.identities import Identities, TypeIdentity
from omniray.engine.schema.matching import Matched
from omniray.engine.schema.plan import SchemaPlan, plan_change
from omniray.engine.schema.types import (
    ANY_CARDINALITY,
    DST,
    SRC,
    Annotation,
    Cardinality,
    Constraint,
    EdgeType,
    ElementType,
    Interface,
    NodeType,
    Property,
    Schema,
)


@dataclass(frozen=True, slots=True)
class IdentifiedSchema:
    """A schema and the identities of its types and properties."""

    schema: Schema
    identities: Identities


@dataclass(frozen=True, slots=True)
class IdentifiedType:
    """A node or edge type; `ends` are the identities of an edge's node types. `own` is what its body declares."""

    kind: str
    name: str
    annotations: tuple[Annotation, ...]
    ends: tuple[str, ...]
    cardinality: Cardinality
    implements: tuple[str, ...]
    own: tuple[str, ...]
    properties: Mapping[str, Property]
    constraints: frozenset[Constraint]

    def names(self, constraint: Constraint) -> Constraint:
        """A constraint with the names of its properties."""
        return with_names(constraint, {one: p.name for one, p in self.properties.items()})

    def renamed(self, alias: Mapping[str, str]) -> IdentifiedType:
        """The same type with other identities for some things that it names."""
        return replace(
            self,
            ends=tuple(alias.get(one, one) for one in self.ends),
            own=tuple(alias.get(one, one) for one in self.own),
            properties={alias.get(one, one): p for one, p in self.properties.items()},
            constraints=frozenset(with_names(c, alias) for c in self.constraints),
        )


@dataclass(frozen=True, slots=True)
class _ByIdentity:
    """The matching of two schemas whose identities are known."""

    before: Identities
    after: Identities

    def types(self, before: Sequence[ElementType], after: Sequence[ElementType]) -> Matched:
        old = {type.name: self.before.types[type.name].id for type in before}
        return _matched(old, {type.name: self.after.types[type.name].id for type in after})

    def properties(self, before: ElementType, after: ElementType) -> Matched:
        return _matched(self.before.types[before.name].properties, self.after.types[after.name].properties)


def plan_by_identity(before: IdentifiedSchema, after: IdentifiedSchema) -> SchemaPlan:
    """Plan the change between two schemas of one graph, whatever their texts say about renames."""
    return plan_change(before.schema, after.schema, _ByIdentity(before.identities, after.identities))


def _matched(before: Mapping[str, str], after: Mapping[str, str]) -> Matched:
    old = {one: name for name, one in before.items()}
    return Matched({name: old[one] for name, one in after.items() if one in old}, {})


def by_identity(identified: IdentifiedSchema) -> dict[str, IdentifiedType]:
    """The types of a schema by their identities, in its order."""
    ids = identified.identities.types
    return {ids[type.name].id: _identified(type, ids) for type in identified.schema}


def by_name(types: Mapping[str, IdentifiedType], interfaces: Sequence[Interface]) -> IdentifiedSchema:
    """The schema of these types, and their identities; a node's inherited properties are not among its properties."""
    names = {one: type.name for one, type in types.items()}
    nodes = tuple(_node(type) for type in types.values() if type.kind == "node")
    edges = tuple(_edge(type, names) for type in types.values() if type.kind == "edge")
    identities = {
        type.name: TypeIdentity(one, {p.name: id for id, p in type.properties.items()}) for one, type in types.items()
    }
    return IdentifiedSchema(Schema(nodes, edges, tuple(interfaces)), Identities(identities))


def _identified(type: ElementType, ids: Mapping[str, TypeIdentity]) -> IdentifiedType:
    id_of = ids[type.name].properties
    own = type.own if isinstance(type, NodeType) else type.properties
    return IdentifiedType(
        kind=type.kind,
        name=type.name,
        annotations=type.annotations,
        ends=(ids[type.source].id, ids[type.target].id) if isinstance(type, EdgeType) else (),
        cardinality=type.cardinality if isinstance(type, EdgeType) else ANY_CARDINALITY,
        implements=type.implements if isinstance(type, NodeType) else (),
        own=tuple(id_of[p.name] for p in own),
        properties={id_of[p.name]: p for p in type.properties},
        constraints=frozenset(with_names(c, id_of) for c in type.constraints),
    )


def _node(type: IdentifiedType) -> NodeType:
    own = tuple(type.properties[one] for one in type.own)
    return NodeType(type.name, own, own, type.implements, _constraints(type), type.annotations)


def _edge(type: IdentifiedType, names: Mapping[str, str]) -> EdgeType:
    own = tuple(type.properties[one] for one in type.own)
    source, target = (names[one] for one in type.ends)
    return EdgeType(type.name, source, target, own, type.cardinality, _constraints(type), type.annotations)


def _constraints(type: IdentifiedType) -> tuple[Constraint, ...]:
    columns = [SRC, DST, *(p.name for p in type.properties.values())]
    return in_canonical_order((type.names(c) for c in type.constraints), columns)
