"""The schema of a graph: node and edge types, their properties and constraints, as immutable values.

A schema is what `.pg` text means (`parser.py` reads it, `printer.py` writes it). Each node or edge type
is one Lance table: nodes have the columns `id` and the properties, edges `id`, `src`, `dst` and the properties.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

import pyarrow as pa

from omniray.engine.base.errors import NotFound

ID, SRC, DST = "id", "src", "dst"


class Scalar(StrEnum):
    """A scalar type by the name it has in `.pg`."""

    STRING = "String"
    BOOL = "Bool"
    I32 = "I32"
    I64 = "I64"
    U32 = "U32"
    U64 = "U64"
    F32 = "F32"
    F64 = "F64"
    DATE = "Date"
    DATETIME = "DateTime"
    BLOB = "Blob"


ARROW_OF_SCALAR: Mapping[Scalar, pa.DataType] = {
    Scalar.STRING: pa.string(),
    Scalar.BOOL: pa.bool_(),
    Scalar.I32: pa.int32(),
    Scalar.I64: pa.int64(),
    Scalar.U32: pa.uint32(),
    Scalar.U64: pa.uint64(),
    Scalar.F32: pa.float32(),
    Scalar.F64: pa.float64(),
    Scalar.DATE: pa.date32(),
    Scalar.DATETIME: pa.timestamp("us", tz="UTC"),
    Scalar.BLOB: pa.large_binary(),
}

INTEGER_LIMITS: Mapping[Scalar, tuple[int, int]] = {
    Scalar.I32: (-(1 << 31), (1 << 31) - 1),
    Scalar.I64: (-(1 << 63), (1 << 63) - 1),
    Scalar.U32: (0, (1 << 32) - 1),
    Scalar.U64: (0, (1 << 64) - 1),
}


@dataclass(frozen=True, slots=True)
class ScalarType:
    scalar: Scalar

    def __str__(self) -> str:
        return self.scalar.value

    @property
    def arrow(self) -> pa.DataType:
        return ARROW_OF_SCALAR[self.scalar]


@dataclass(frozen=True, slots=True)
class ListType:
    """A variable list of scalars that are never null: `[String]`."""

    item: ScalarType

    def __str__(self) -> str:
        return f"[{self.item}]"

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(pa.field("item", self.item.arrow))


@dataclass(frozen=True, slots=True)
class VectorType:
    """A fixed number of 32-bit floats: `Vector(8)`."""

    size: int

    def __str__(self) -> str:
        return f"Vector({self.size})"

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(pa.field("item", pa.float32()), self.size)


@dataclass(frozen=True, slots=True)
class EnumType:
    """One of a few texts, declared in place: `enum(dev, ops)`. Stored as a string."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"enum({', '.join(self.values)})"

    @property
    def arrow(self) -> pa.DataType:
        return pa.string()


PropertyType = ScalarType | ListType | VectorType | EnumType
Literal_ = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Annotation:
    """`@name(args)` that carries no rule of its own: @description, @rename_from, @embed, or unknown and kept."""

    name: str
    args: tuple[Literal_, ...] = ()
    options: tuple[tuple[str, Literal_], ...] = ()


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    type: PropertyType
    nullable: bool = False
    annotations: tuple[Annotation, ...] = ()
    default: Literal_ | None = None
    """What it has in a record that leaves it out, as the literal of its canonical text."""

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, self.type.arrow, nullable=self.nullable)

    @property
    def must_be_given(self) -> bool:
        """Whether a record that leaves it out is refused."""
        return not self.nullable and self.default is None


@dataclass(frozen=True, slots=True)
class Key:
    """The properties whose values are a node's identity; its `id` is derived from them."""

    properties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unique:
    """No two rows share these values; a row with a null among them is exempt. Edges may name `src` and `dst`."""

    properties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Index:
    properties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The value lies between the bounds, both included; a missing bound is open. NaN is outside every range."""

    property: str
    low: int | float | None
    high: int | float | None


@dataclass(frozen=True, slots=True)
class Check:
    """The text contains a match of the regular expression (RE2 syntax)."""

    property: str
    pattern: str


Constraint = Key | Unique | Index | Range | Check


@dataclass(frozen=True, slots=True)
class Cardinality:
    """How many edges of a type one source node may have; `high` None is no limit."""

    low: int = 0
    high: int | None = None


ANY_CARDINALITY = Cardinality()


@dataclass(frozen=True)
class Interface:
    name: str
    properties: tuple[Property, ...]


@dataclass(frozen=True)
class NodeType:
    """A node type. `properties` are all of them, those of its interfaces first; `own` are those of its body."""

    name: str
    properties: tuple[Property, ...]
    own: tuple[Property, ...]
    implements: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    kind: Literal["node"] = field(default="node", init=False)

    @property
    def table_key(self) -> str:
        return f"node:{self.name}"

    @property
    def first_path(self) -> str:
        """Where the table of the first type of this name lies."""
        return f"nodes/{self.name}.lance"

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The key's properties; empty for a keyless type."""
        return next((c.properties for c in self.constraints if isinstance(c, Key)), ())

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(ID, pa.string(), nullable=False), *(p.arrow for p in self.properties)])

    def property(self, name: str) -> Property | None:
        return next((p for p in self.properties if p.name == name), None)


@dataclass(frozen=True)
class EdgeType:
    name: str
    source: str
    target: str
    properties: tuple[Property, ...] = ()
    cardinality: Cardinality = ANY_CARDINALITY
    constraints: tuple[Constraint, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    kind: Literal["edge"] = field(default="edge", init=False)

    @property
    def table_key(self) -> str:
        return f"edge:{self.name}"

    @property
    def first_path(self) -> str:
        """Where the table of the first type of this name lies."""
        return f"edges/{self.name}.lance"

    @cached_property
    def arrow(self) -> pa.Schema:
        ends = [pa.field(name, pa.string(), nullable=False) for name in (ID, SRC, DST)]
        return pa.schema([*ends, *(p.arrow for p in self.properties)])

    def property(self, name: str) -> Property | None:
        return next((p for p in self.properties if p.name == name), None)

    @cached_property
    def unique_by_endpoints(self) -> bool:
        """Whether `@unique(src, dst)` identifies an edge by its two ends."""
        return any(isinstance(c, Unique) and set(c.properties) == {SRC, DST} for c in self.constraints)


ElementType = NodeType | EdgeType


@dataclass(frozen=True)
class Schema:
    """All types of a graph, in the order in which their author wrote them."""

    nodes: tuple[NodeType, ...]
    edges: tuple[EdgeType, ...]
    interfaces: tuple[Interface, ...] = ()

    def __iter__(self) -> Iterator[ElementType]:
        yield from self.nodes
        yield from self.edges

    @cached_property
    def by_table_key(self) -> Mapping[str, ElementType]:
        return {t.table_key: t for t in self}

    @cached_property
    def _nodes(self) -> Mapping[str, NodeType]:
        return {t.name: t for t in self.nodes}

    @cached_property
    def _edges(self) -> Mapping[str, EdgeType]:
        return {t.name: t for t in self.edges}

    def node(self, name: str) -> NodeType:
        if name not in self._nodes:
            raise NotFound(f"no node type {name!r}; the schema has {_names(self._nodes)}", type=name)
        return self._nodes[name]

    def edge(self, name: str) -> EdgeType:
        if name not in self._edges:
            raise NotFound(f"no edge type {name!r}; the schema has {_names(self._edges)}", type=name)
        return self._edges[name]

    def type(self, name: str) -> ElementType:
        """The node or edge type of that name; names are unique over both."""
        if name not in self._nodes and name not in self._edges:
            raise NotFound(f"no type {name!r}; the schema has {_names({**self._nodes, **self._edges})}", type=name)
        return self._nodes.get(name) or self._edges[name]

    def edges_at(self, node: str) -> Iterator[EdgeType]:
        """The edge types that start or end at a node type."""
        return (e for e in self.edges if node in (e.source, e.target))


def _names(types: Mapping[str, object]) -> str:
    return ", ".join(types) or "none"
