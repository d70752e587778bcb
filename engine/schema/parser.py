"""Parsing a schema: `.pg` text in, a checked `Schema` out.

What is refused here can't go wrong later: every name is known, every constraint fits its property, and every type and
property has a name that is valid for a directory, a column and in SQL. A text that does not parse raises `ParseError`;
one that parses but makes no sense raises a `SchemaError` that names the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from omniray.engine.base.errors import SchemaError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.schema.constraints import (
    Place,
    Stated,
    is_constraint,
    names_its_properties,
    read_constraint,
    settle_constraints,
)
from omniray.engine.schema.defaults import DEFAULT, check_defaults, read_default
from omniray.engine.schema.syntax import (
    Argument,
    Bounds,
    Declaration,
    EdgeDeclaration,
    InlineEnum,
    InterfaceDeclaration,
    Member,
    NodeDeclaration,
    Option,
    SizedVector,
    Word,
    WrittenAnnotation,
    WrittenProperty,
    WrittenType,
    read_declarations,
)
from omniray.engine.schema.types import (
    ANY_CARDINALITY,
    DST,
    ID,
    SRC,
    Annotation,
    Cardinality,
    EdgeType,
    EnumType,
    Interface,
    ListType,
    Literal_,
    NodeType,
    Property,
    PropertyType,
    Scalar,
    ScalarType,
    Schema,
    VectorType,
)

NAME_LENGTH_MAX = 128
VECTOR_SIZE_MAX = 65_536
CARDINALITY_MAX = (1 << 63) - 1
RESERVED_PROPERTIES = frozenset({
    ID, SRC, DST, "from", "to",
    "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version",
})  # fmt: skip

_TEXT = ScalarType(Scalar.STRING)
_ENDPOINTS = {name: Property(name, _TEXT) for name in (SRC, DST)}
# Annotations with a meaning of their own: one text each, at most once at each thing.
_ONE_TEXT = ("description", "instruction", "rename_from", "embed")


def parse_schema(text: str) -> Schema:
    """The schema that a `.pg` text describes; raises `ParseError` or `SchemaError`."""
    declarations = read_declarations(text)
    _check_type_names(declarations)
    bodies = {d.name: _read_body(Place(d.line, d.name), d.members) for d in declarations}
    inheritable = {d.name: bodies[d.name] for d in declarations if isinstance(d, InterfaceDeclaration)}
    for body in inheritable.values():
        # Checked by itself too: perhaps no type implements it.
        _check_body(body, body.by_name)
        check_defaults(body.by_name, settle_constraints(body.stated, body.by_name, "node"), body.place)
    nodes = tuple(_node(d, bodies[d.name], inheritable) for d in declarations if isinstance(d, NodeDeclaration))
    if not nodes:
        raise SchemaError("the schema has no node type; write at least one, as in: node Person { name: String @key }")
    node_names = {node.name for node in nodes}
    edges = tuple(
        _edge(d, bodies[d.name], node_names, inheritable) for d in declarations if isinstance(d, EdgeDeclaration)
    )
    return Schema(nodes, edges, tuple(Interface(name, body.properties) for name, body in inheritable.items()))


@dataclass(frozen=True, slots=True)
class _Body:
    """The properties and constraints between the braces of one declaration."""

    properties: tuple[Property, ...]
    stated: tuple[Stated, ...]
    places: Mapping[str, Place]
    head: Place

    @property
    def by_name(self) -> dict[str, Property]:
        return {p.name: p for p in self.properties}

    def place(self, property: str) -> Place:
        """The place of a property; of an inherited one, the head of the type with its name."""
        return self.places.get(property) or replace(self.head, property=property)


def _node(declaration: NodeDeclaration, body: _Body, interfaces: Mapping[str, _Body]) -> NodeType:
    place = Place(declaration.line, declaration.name)
    columns, stated = _inherit(declaration, body, interfaces)
    _check_body(body, columns)
    constraints = settle_constraints(stated, columns, "node")
    check_defaults(columns, constraints, body.place)
    return NodeType(
        name=declaration.name,
        properties=tuple(columns.values()),
        own=body.properties,
        implements=declaration.implements,
        constraints=constraints,
        annotations=_head_annotations(declaration.annotations, place),
    )


def _edge(declaration: EdgeDeclaration, body: _Body, nodes: Iterable[str], interfaces: Mapping[str, _Body]) -> EdgeType:
    place = Place(declaration.line, declaration.name)
    for end in (declaration.source, declaration.target):
        if end in interfaces:
            raise place.error(f"{end!r} is an interface; an edge connects node types")
        if end not in nodes:
            raise place.error(f"no node type {end!r} to connect; {did_you_mean(end, sorted(nodes))}")
    _check_body(body, body.by_name)
    cards = [a for a in declaration.annotations if a.name == "card"]
    others = [a for a in declaration.annotations if a.name != "card"]
    if len(cards) > 1:
        raise place.error("a second @card; write one with both bounds")
    return EdgeType(
        name=declaration.name,
        source=declaration.source,
        target=declaration.target,
        properties=body.properties,
        cardinality=_cardinality(cards[0], place) if cards else ANY_CARDINALITY,
        constraints=settle_constraints(body.stated, {**_ENDPOINTS, **body.by_name}, "edge"),
        annotations=_head_annotations(others, place),
    )


def _inherit(
    declaration: NodeDeclaration, body: _Body, interfaces: Mapping[str, _Body]
) -> tuple[dict[str, Property], list[Stated]]:
    """All columns and constraints of a node type: its interfaces' first, then its own.

    A property may be declared again if it is the same: then the type's own annotations count.
    """
    place = Place(declaration.line, declaration.name)
    columns: dict[str, Property] = {}
    stated: list[Stated] = []
    if len(set(declaration.implements)) < len(declaration.implements):
        raise place.error("implements an interface twice")
    for name in declaration.implements:
        if name not in interfaces:
            raise place.error(f"implements the unknown interface {name!r}; {did_you_mean(name, interfaces)}")
        for inherited in interfaces[name].properties:
            _check_agrees(columns.get(inherited.name), inherited, place)
            columns.setdefault(inherited.name, inherited)
        stated += (replace(one, place=replace(one.place, type=declaration.name)) for one in interfaces[name].stated)
    for own in body.properties:
        _check_agrees(columns.get(own.name), own, body.places[own.name])
        columns[own.name] = own
    _check_property_names(columns, place)
    return columns, [*stated, *body.stated]


def _check_agrees(known: Property | None, again: Property, place: Place) -> None:
    if known and (known.type, known.nullable) != (again.type, again.nullable):
        written, before = (f"{p.type}{'?' if p.nullable else ''}" for p in (again, known))
        raise place.error(f"declares {again.name!r} as {written}, but an interface has it as {before}; make them equal")


def _read_body(head: Place, members: Sequence[Member]) -> _Body:
    """Separate the properties of a body, their annotations and the constraints.

    An annotation belongs to the property before it; a constraint that names its properties belongs to the type, and
    ends the property before it.
    """
    owner = head.type
    written: dict[str, tuple[WrittenProperty, list[WrittenAnnotation]]] = {}
    stated: list[Stated] = []
    current = ""
    for member in members:
        place = Place(member.line, owner, current)
        if isinstance(member, WrittenProperty):
            _check_property_name(member, owner, written)
            current = member.name
            written[current] = (member, [])
        elif is_constraint(member) and names_its_properties(member):
            current = ""
            place = replace(place, property="")
            stated.append(Stated(read_constraint(member, current, place), place))
        elif not current:
            raise place.error(f"@{member.name} belongs to no property here; write it right after its property")
        elif is_constraint(member):
            stated.append(Stated(read_constraint(member, current, place), place))
        else:
            written[current][1].append(member)
    places = {name: Place(one.line, owner, name) for name, (one, _) in written.items()}
    properties = tuple(_property(one, annotations, places[name]) for name, (one, annotations) in written.items())
    _check_property_names(written, Place(members[0].line if members else 0, owner))
    return _Body(properties, tuple(stated), places, head)


def _property(written: WrittenProperty, annotations: Iterable[WrittenAnnotation], place: Place) -> Property:
    type = _type(written.type, place)
    defaults = [a for a in annotations if a.name == DEFAULT]
    kept = _annotations((a for a in annotations if a.name != DEFAULT), place)
    if len(defaults) > 1:
        raise replace(place, line=defaults[1].line).error("a second @default; remove one")
    default = read_default(defaults[0], type, replace(place, line=defaults[0].line)) if defaults else None
    return Property(written.name, type, written.nullable, kept, default)


def _check_body(body: _Body, columns: Mapping[str, Property]) -> None:
    """Check what a property says about other properties of its type."""
    for property in body.properties:
        for annotation in property.annotations:
            if annotation.name != "embed":
                continue
            place = body.places[property.name]
            embedded = columns.get(str(annotation.args[0]))
            if not isinstance(property.type, VectorType):
                raise place.error(f"@embed on a property of type {property.type}; an embedding is a Vector")
            if embedded is None or embedded.type != _TEXT:
                raise place.error(f"@embed names {annotation.args[0]!r}, which is not a String property of the type")


def _type(written: WrittenType, place: Place) -> PropertyType:
    if isinstance(written, SizedVector):
        if not (isinstance(written.size, int) and 1 <= written.size <= VECTOR_SIZE_MAX):
            raise place.error(f"Vector({written.size}); the size is a whole number in 1..{VECTOR_SIZE_MAX}")
        return VectorType(written.size)
    if isinstance(written, InlineEnum):
        return _enum(written, place)
    scalars = {scalar.value: scalar for scalar in Scalar}
    if written.name not in scalars:
        raise place.error(f"no type {written.name!r}; {did_you_mean(written.name, scalars)}")
    scalar = ScalarType(scalars[written.name])
    return ListType(scalar) if written.is_list else scalar


def _enum(written: InlineEnum, place: Place) -> EnumType:
    if not written.values:
        raise place.error("an enum without values; write at least one")
    seen: set[str] = set()
    for value in written.values:
        if value in seen:
            raise place.error(f"the enum value {value!r} twice; remove one")
        if len(value) > NAME_LENGTH_MAX:
            raise place.error(f"an enum value of {len(value)} characters; at most {NAME_LENGTH_MAX}")
        seen.add(value)
    return EnumType(written.values)


def _cardinality(card: WrittenAnnotation, place: Place) -> Cardinality:
    match card.arguments:
        case (Bounds(low=int() as low, high=int() | None as high),) if 0 <= low <= CARDINALITY_MAX:
            if high is None or max(low, 1) <= high <= CARDINALITY_MAX:
                return Cardinality(low, high)
    raise place.error("@card takes two counts, the second optional, at least 1 and not below the first: @card(0..3)")


def _head_annotations(written: Iterable[WrittenAnnotation], place: Place) -> tuple[Annotation, ...]:
    annotations = list(written)
    for annotation in annotations:
        if is_constraint(annotation):
            raise place.error(f"@{annotation.name} before the body; constraints stand between the braces")
        if annotation.name == DEFAULT:
            raise place.error("@default before the body; it belongs to a property, right after it")
    return _annotations(annotations, place)


def _annotations(written: Iterable[WrittenAnnotation], place: Place) -> tuple[Annotation, ...]:
    annotations: list[Annotation] = []
    for one in written:
        at = replace(place, line=one.line)
        if one.name == "card":
            raise at.error("@card belongs to the head of an edge type: edge Knows: Person -> Person @card(0..3)")
        annotation = _annotation(one, at)
        if one.name in _ONE_TEXT:
            if not annotation.args or not isinstance(annotation.args[0], str) or len(annotation.args) > 1:
                raise at.error(f'@{one.name} takes one text: @{one.name}("…")')
            if any(other.name == one.name for other in annotations):
                raise at.error(f"a second @{one.name}; remove one")
        annotations.append(annotation)
    return tuple(annotations)


def _annotation(written: WrittenAnnotation, place: Place) -> Annotation:
    args = [a for a in written.arguments or () if not isinstance(a, Option)]
    options = [a for a in written.arguments or () if isinstance(a, Option)]
    names = [option.name for option in options]
    if len(set(names)) < len(names):
        raise place.error(f"@{written.name} has an option twice")
    return Annotation(
        written.name,
        tuple(_value(a, written, place) for a in args),
        tuple((option.name, _value(option.value, written, place)) for option in options),
    )


def _value(argument: Argument, written: WrittenAnnotation, place: Place) -> Literal_:
    """The value of an argument that is only kept: a bare word is a text, save `true` and `false`."""
    if isinstance(argument, Word):
        return {"true": True, "false": False}.get(argument.text, argument.text)
    if isinstance(argument, Bounds | Option):
        raise place.error(f"@{written.name} has bounds; only @range and @card take them")
    return argument


def _check_type_names(declarations: Iterable[Declaration]) -> None:
    seen: dict[str, Declaration] = {}
    for declaration in declarations:
        place = Place(declaration.line, declaration.name)
        _check_length(declaration.name, place)
        if other := seen.get(declaration.name.lower()):
            if other.name == declaration.name:
                raise place.error(f"declared already in line {other.line}; each type has a name of its own")
            raise place.error(
                f"differs from {other.name!r} (line {other.line}) only in case, and some file systems tell no case;"
                " rename one"
            )
        seen[declaration.name.lower()] = declaration


def _check_property_name(property: WrittenProperty, owner: str, before: Iterable[str]) -> None:
    place = Place(property.line, owner, property.name)
    _check_length(property.name, place)
    if property.name.lower() in RESERVED_PROPERTIES:
        raise place.error(f"the name {property.name!r} is reserved; choose another")
    if property.name in before:
        raise place.error("declared twice; remove one")


def _check_property_names(names: Iterable[str], place: Place) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise place.error(f"the properties {other!r} and {name!r} differ only in case, and SQL tells no case;"
                              " rename one")  # fmt: skip


def _check_length(name: str, place: Place) -> None:
    if len(name) > NAME_LENGTH_MAX:
        shown = f"{name[:20]}…"
        raise SchemaError(
            f"line {place.line}: the name {shown} has {len(name)} characters; at most {NAME_LENGTH_MAX}",
            line=place.line,
        )
