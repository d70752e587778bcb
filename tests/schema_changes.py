"""Changes of a schema as an author makes them, for tests of plans and merges: each gives a schema that parses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hypothesis import strategies as st

from omniray.engine.base.errors import InputError
from omniray.engine.schema.constraints import in_canonical_order, properties_of, with_names
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import print_schema
from omniray.engine.schema.types import (
    DST,
    SRC,
    Annotation,
    EdgeType,
    ElementType,
    EnumType,
    Key,
    NodeType,
    Property,
    Scalar,
    ScalarType,
    Schema,
)
from tests.strategies import schemas

Change = Callable[[Schema, int], Schema]
_TEXT = ScalarType(Scalar.STRING)
_WIDER = {Scalar.I32: Scalar.I64, Scalar.I64: Scalar.F64, Scalar.U32: Scalar.U64, Scalar.F32: Scalar.F64}


@st.composite
def changed_schemas(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """A schema, and what an author made of it by a few changes."""
    schema = draw(schemas(interfaces=False))
    return schema, draw(changes_of(schema))


@st.composite
def changes_of(draw: st.DrawFn, schema: Schema, *, most: int = 4) -> Schema:
    """What an author makes of a schema by a few changes."""
    for change, number in draw(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 40)), max_size=most)):
        schema = _parsed(change(schema, number)) or schema
    return schema


def _parsed(schema: Schema) -> Schema | None:
    """The schema as its text is read; None for one that is refused."""
    try:
        return parse_schema(print_schema(schema))
    except InputError:
        return None


def add_property(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    new = Property(f"new{number % 3}", _TEXT, nullable=True)
    return _with(schema, type, (*type.properties, new)) if type.property(new.name) is None else schema


def add_required(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    new = Property(f"new{number % 3}", _TEXT, default="x")
    return _with(schema, type, (*type.properties, new)) if type.property(new.name) is None else schema


def drop_property(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    names = [p.name for p in type.properties if not (isinstance(type, NodeType) and p.name in type.key)]
    if not names:
        return schema
    gone = names[number % len(names)]
    return _with(schema, type, tuple(p for p in type.properties if p.name != gone))


def rename_property(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    if not type.properties:
        return schema
    old = type.properties[number % len(type.properties)]
    name = f"renamed{number % 3}"
    if type.property(name) is not None:
        return schema
    new = replace(old, name=name, annotations=_renamed_from(old.annotations, old.name))
    return _with(schema, type, tuple(new if p is old else p for p in type.properties), {old.name: name})


def widen(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)

    def wider(p: Property) -> Property:
        if isinstance(p.type, EnumType):
            return replace(p, type=EnumType((*p.type.values, "more")))
        scalar = _WIDER.get(p.type.scalar) if isinstance(p.type, ScalarType) else None
        return p if scalar is None else replace(p, type=ScalarType(scalar))

    return _with(schema, type, tuple(wider(p) for p in type.properties))


def make_nullable(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    at = number % max(1, len(type.properties))
    properties = tuple(replace(p, nullable=True) if i == at else p for i, p in enumerate(type.properties))
    return _with(schema, type, properties)


def drop_constraints(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    return _put(schema, type, replace(type, constraints=tuple(c for c in type.constraints if isinstance(c, Key))))


def describe(schema: Schema, number: int) -> Schema:
    type = _chosen(schema, number)
    return _put(schema, type, replace(type, annotations=(Annotation("note", (number % 2,)),)))


def add_type(schema: Schema, number: int) -> Schema:
    code = (Property("code", _TEXT),)
    new = NodeType(f"New{number % 2}", code, code, constraints=(Key(("code",)),))
    return replace(schema, nodes=(*schema.nodes, new))


def drop_type(schema: Schema, number: int) -> Schema:
    gone = _chosen(schema, number)
    edges = (e for e in schema.edges if gone.name not in (e.name, e.source, e.target))
    return replace(schema, nodes=tuple(n for n in schema.nodes if n is not gone), edges=tuple(edges))


def rename_type(schema: Schema, number: int) -> Schema:
    old = _chosen(schema, number)
    name = f"Renamed{number % 2}"
    renamed = replace(old, name=name, annotations=_renamed_from(old.annotations, old.name))
    schema = _put(schema, old, renamed)
    if isinstance(old, EdgeType):
        return schema
    edges = (
        replace(e, **{end: name for end in ("source", "target") if getattr(e, end) == old.name}) for e in schema.edges
    )
    return replace(schema, edges=tuple(edges))


CHANGES: tuple[Change, ...] = (
    add_property,
    add_required,
    drop_property,
    rename_property,
    widen,
    make_nullable,
    drop_constraints,
    describe,
    add_type,
    drop_type,
    rename_type,
)


def _chosen(schema: Schema, number: int) -> ElementType:
    types = list(schema)
    return types[number % len(types)]


def _renamed_from(annotations: tuple[Annotation, ...], old: str) -> tuple[Annotation, ...]:
    return (*(a for a in annotations if a.name != "rename_from"), Annotation("rename_from", (old,)))


def _with(
    schema: Schema, type: ElementType, properties: tuple[Property, ...], renamed: Mapping[str, str] = {}
) -> Schema:
    """The schema with other properties in a type, and its constraints about those that are left."""
    names = [*((SRC, DST) if isinstance(type, EdgeType) else ()), *(p.name for p in properties)]
    constraints = [with_names(c, renamed) for c in type.constraints]
    left = in_canonical_order((c for c in constraints if set(properties_of(c)) <= set(names)), names)
    own = {"own": properties} if isinstance(type, NodeType) else {}
    return _put(schema, type, replace(type, properties=properties, constraints=left, **own))


def _put(schema: Schema, old: ElementType, new: ElementType) -> Schema:
    nodes = tuple(new if node is old else node for node in schema.nodes)
    edges = tuple(new if edge is old else edge for edge in schema.edges)
    return Schema(nodes, edges, schema.interfaces)  # type: ignore[arg-type]
