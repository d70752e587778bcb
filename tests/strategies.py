"""Hypothesis strategies for the values of the engine: random schemas, small and realistic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st

from omniray.engine.schema.constraints import in_canonical_order, properties_of
from omniray.engine.schema.types import (
    ANY_CARDINALITY,
    DST,
    INTEGER_LIMITS,
    SRC,
    Annotation,
    Cardinality,
    Check,
    Constraint,
    EdgeType,
    EnumType,
    Index,
    Interface,
    Key,
    ListType,
    Literal_,
    NodeType,
    Property,
    PropertyType,
    Range,
    Scalar,
    ScalarType,
    Schema,
    Unique,
    VectorType,
)

NODE_NAMES = ("Person", "City", "Book_2", "Node")
EDGE_NAMES = ("Knows", "LivesIn", "Wrote", "E")
INTERFACE_NAMES = ("Named", "Dated")
# Some are words of the two languages, which must not matter.
PROPERTY_NAMES = (
    "name",
    "age",
    "role",
    "born",
    "score",
    "_note",
    "node",
    "edge",
    "enum",
    "implements",
    "set",
    "insert",
)
ENUM_VALUES = ("dev", "ops", "b-c", "x_1", "2nd", "true")
# A text such as "Ada1" matches all of them.
PATTERNS = ("^[A-Z]", "[a-z0-9]", "^.{0,20}$", r'^[^"\\]*$', "^$|.|é")
FLOATS = (Scalar.F32, Scalar.F64)


ANNOTATIONS: tuple[tuple[Annotation, ...], ...] = (
    (),
    (Annotation("description", ('a "text" // no comment \\ \n',)),),
    (Annotation("instruction", ("",)), Annotation("owner", ("é", -3, 1.5, True), (("a", "b"), ("c", 0)))),
    (Annotation("_x"), Annotation("_x"), Annotation("description", ("false",))),
)
# As the parser keeps them.
DEFAULTS: dict[Scalar, tuple[Literal_, ...]] = {
    Scalar.STRING: ("", 'a "b" \\ é'),
    Scalar.BOOL: (True, False),
    **dict.fromkeys(INTEGER_LIMITS, (0, 7)),
    **dict.fromkeys(FLOATS, (0.0, -1.5, 1e20)),
    Scalar.DATE: ("2026-01-31", "0001-01-01"),
    Scalar.DATETIME: ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.250000Z"),
}
CARDINALITIES = (ANY_CARDINALITY, Cardinality(0, 1), Cardinality(0, 3), Cardinality(1), Cardinality(1, 2))


# Strategies are built once each: Hypothesis validates every new one, which takes longer than drawing from it.
@cache
def property_types(*, blobs: bool = True) -> st.SearchStrategy[PropertyType]:
    """Any type that a property can have."""
    scalars = st.sampled_from([ScalarType(s) for s in Scalar if blobs or s is not Scalar.BLOB])
    vectors = st.integers(1, 4).map(VectorType)
    return st.one_of(scalars, scalars.map(ListType), vectors, _some(ENUM_VALUES, 1, 3).map(EnumType))


@cache
def _some(pool: tuple[str, ...], least: int, most: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(pool), unique=True, min_size=least, max_size=most).map(tuple)


@cache
def _column_constraints(columns: tuple[str, ...]) -> st.SearchStrategy[list[Constraint]]:
    over = _some(columns, 1, 2)
    return st.lists(st.one_of(over.map(Unique), over.map(Index)), max_size=2)


@cache
def _ranges(scalar: Scalar) -> st.SearchStrategy[tuple[int | float | None, int | float | None]]:
    least = 0 if scalar in (Scalar.U32, Scalar.U64) else -5
    whole: list[tuple[int | None, int | None]] = [(least, 150), (0, 0), (least, None), (None, 7)]
    real: list[tuple[float | None, float | None]] = [(-5.0, 0.5), (0.25, 1e20), (0.0, None), (None, 1e-07)]
    return st.sampled_from(real if scalar in FLOATS else whole)


@cache
def _defaults(type: PropertyType) -> st.SearchStrategy[Literal_ | None]:
    if isinstance(type, EnumType):
        return st.sampled_from((None, *type.values))
    return st.sampled_from((None, *DEFAULTS.get(type.scalar, ()))) if isinstance(type, ScalarType) else st.none()


_ANNOTATIONS = st.sampled_from(ANNOTATIONS)
_CARDINALITIES = st.sampled_from(CARDINALITIES)
_PATTERNS = st.sampled_from(PATTERNS)
_KEY_TYPES = st.sampled_from((ScalarType(Scalar.STRING), ScalarType(Scalar.I64)))
_EITHER = st.booleans()


@st.composite
def schemas(
    draw: st.DrawFn,
    *,
    nodes: tuple[int, int] = (1, 3),
    edges: tuple[int, int] = (0, 3),
    properties: tuple[int, int] = (0, 5),
    keyed: bool | None = None,
    interfaces: bool = True,
    constraints: bool = True,
    cardinalities: bool = True,
    annotations: bool = True,
    blobs: bool = True,
    defaults: bool = False,
) -> Schema:
    """A schema as the parser would give it.

    The pairs are the least and the most of each. `keyed` True gives every node type a key, False none. Without
    `constraints` there are keys only; without `cardinalities` no edge type has a limit. With `defaults` some properties
    of types have one.
    """
    maker = _Maker(draw, constraints, annotations, blobs, defaults)
    shared = draw(_some(INTERFACE_NAMES, 0, 2)) if interfaces else ()
    # Disjoint names, since one type may implement both.
    declared = tuple(
        Interface(name, maker.properties((1, 2), PROPERTY_NAMES[2 * i : 2 * i + 2])) for i, name in enumerate(shared)
    )
    names = draw(_some(NODE_NAMES, *nodes))
    node_types = tuple(maker.node(name, properties, keyed, declared) for name in names)
    edge_types = tuple(maker.edge(name, names, cardinalities) for name in draw(_some(EDGE_NAMES, *edges)))
    return Schema(node_types, edge_types, declared)


@dataclass(frozen=True)
class _Maker:
    """Draws the parts of one schema."""

    draw: st.DrawFn
    constrained: bool
    annotated: bool
    blobs: bool
    defaulted: bool

    def properties(self, count: tuple[int, int], pool: tuple[str, ...]) -> tuple[Property, ...]:
        types = property_types(blobs=self.blobs)
        return tuple(
            Property(name, self.draw(types), self.draw(_EITHER), self.annotations())
            for name in self.draw(_some(pool, *count))
        )

    def annotations(self) -> tuple[Annotation, ...]:
        return self.draw(_ANNOTATIONS) if self.annotated else ()

    def node(self, name: str, count: tuple[int, int], keyed: bool | None, interfaces: Sequence[Interface]) -> NodeType:
        implemented = [interface for interface in interfaces if self.draw(_EITHER)]
        inherited = tuple(p for interface in implemented for p in interface.properties)
        taken = {p.name for p in inherited}
        own = self.properties(count, tuple(n for n in PROPERTY_NAMES if n not in taken))
        stated: list[Constraint] = []
        if keyed or (keyed is None and self.draw(_EITHER)):
            own, key = self.key(own, inherited)
            stated.append(key)
        columns = (*inherited, *own)
        if self.constrained:
            stated += self.column_constraints(columns) + self.value_constraints(columns)
        own = self.with_defaults(own, stated)
        columns = (*inherited, *own)
        return NodeType(
            name, columns, own,
            implements=tuple(interface.name for interface in implemented),
            constraints=in_canonical_order(dict.fromkeys(stated), [p.name for p in columns]),
            annotations=self.annotations(),
        )  # fmt: skip

    def key(self, own: tuple[Property, ...], inherited: tuple[Property, ...]) -> tuple[tuple[Property, ...], Key]:
        """A key of one or two properties; where none is fit for it, one is added that is."""
        fit = tuple(p.name for p in (*inherited, *own) if not p.nullable and _comparable(p.type))
        if not fit:
            own, fit = (*own, Property("code", self.draw(_KEY_TYPES))), ("code",)
        return own, Key(self.draw(_some(fit, 1, 2)))

    def with_defaults(self, properties: tuple[Property, ...], stated: Sequence[Constraint]) -> tuple[Property, ...]:
        """The properties, some with a default: none of a key, and none whose values are bounded."""
        bound = {name for c in stated if isinstance(c, Key | Range | Check) for name in properties_of(c)}
        return tuple(
            replace(p, default=self.draw(_defaults(p.type))) if self.defaulted and p.name not in bound else p
            for p in properties
        )

    def column_constraints(self, columns: Sequence[Property]) -> list[Constraint]:
        comparable = tuple(p.name for p in columns if _comparable(p.type))
        return list(self.draw(_column_constraints(comparable))) if comparable else []

    def value_constraints(self, columns: Sequence[Property]) -> list[Constraint]:
        stated: list[Constraint] = []
        for p in columns:
            if not isinstance(p.type, ScalarType) or not self.draw(_EITHER):
                continue
            if p.type.scalar in INTEGER_LIMITS or p.type.scalar in FLOATS:
                stated.append(Range(p.name, *self.draw(_ranges(p.type.scalar))))
            elif p.type.scalar is Scalar.STRING:
                stated.append(Check(p.name, self.draw(_PATTERNS)))
        return stated

    def edge(self, name: str, nodes: tuple[str, ...], cardinalities: bool) -> EdgeType:
        ends = st.sampled_from(nodes)
        properties = self.properties((0, 2), PROPERTY_NAMES)
        stated: list[Constraint] = self.column_constraints(properties) if self.constrained else []
        if self.constrained and self.draw(_EITHER):
            stated.append(Unique((SRC, DST)))
        properties = self.with_defaults(properties, stated)
        return EdgeType(
            name, self.draw(ends), self.draw(ends), properties,
            cardinality=self.draw(_CARDINALITIES) if cardinalities else ANY_CARDINALITY,
            constraints=in_canonical_order(dict.fromkeys(stated), [SRC, DST, *(p.name for p in properties)]),
            annotations=self.annotations(),
        )  # fmt: skip


def _comparable(type: PropertyType) -> bool:
    return isinstance(type, EnumType) or (isinstance(type, ScalarType) and type.scalar is not Scalar.BLOB)
