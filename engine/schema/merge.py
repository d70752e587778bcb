"""The three-way merge of schemas, by identity: one side's changes are taken, equal ones agree, others conflict.

Each name, type, default, constraint, annotation … is a value of its own, so that two sides may change different
things about one type. What comes of it must be a schema that parses. What the two sides added under one name with
equal definitions is one thing: it has our identity, and theirs becomes its alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omniray.engine.base.errors import InputError
from omniray.engine.schema.conflicts import Conflicts, SchemaConflict
from omniray.engine.schema.constraints import properties_of
from omniray.engine.schema.identified import IdentifiedSchema, IdentifiedType, by_identity, by_name
from omniray.engine.schema.merge_cells import Cells, merge_properties
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import print_bounds, print_constraint, print_schema
from omniray.engine.schema.three_way import Unmerged, in_merged_order, merged, merged_members
from omniray.engine.schema.types import DST, SRC, Cardinality, Constraint, Interface, Key, Property, Range

Types = Mapping[str, IdentifiedType]


@dataclass(frozen=True, slots=True)
class MergedSchema:
    """What two sides made of a schema, taken together; `aliases` gives our identity for some of theirs."""

    schema: IdentifiedSchema
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)


def merge_schemas(
    base: IdentifiedSchema, ours: IdentifiedSchema, theirs: IdentifiedSchema
) -> MergedSchema | tuple[SchemaConflict, ...]:
    """Merge two schemas that began with one; returns all conflicts if there are any."""
    if ours == base:
        return MergedSchema(theirs)
    if theirs in (base, ours):
        return MergedSchema(ours)
    sides = by_identity(base), by_identity(ours), by_identity(theirs)
    aliases = _aliases(*sides)
    merge = _Merge(*sides[:2], {aliases.get(one, one): type.renamed(aliases) for one, type in sides[2].items()})
    types = merge.types()
    interfaces = merge.interfaces(base.schema.interfaces, ours.schema.interfaces, theirs.schema.interfaces)
    if not merge.conflicts.found:
        merge.refuse_same_names(types)
        merge.refuse_lost_references(types)
    if not merge.conflicts.found and (drawn := _parsed(types, interfaces, merge.conflicts)) is not None:
        return MergedSchema(drawn, aliases)
    return tuple(merge.conflicts.found)


def _parsed(types: Types, interfaces: tuple[Interface, ...], conflicts: Conflicts) -> IdentifiedSchema | None:
    """The schema of the merged types as its text is read; a conflict if it is refused, or says something else."""
    drawn = by_name(types, interfaces)
    try:
        found = IdentifiedSchema(parse_schema(print_schema(drawn.schema)), drawn.identities)
    except InputError as error:
        conflicts.invalid(f"what both sides changed is no valid schema together: {error.message}")
        return None
    if not found.identities.names(found.schema) or by_identity(found) != types:
        conflicts.invalid(
            "one side changed an interface and the other one what implements it; change one of them first"
        )
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Merge:
    """One merge: the types of the three sides by identity, and the conflicts that were found."""

    base: Types
    ours: Types
    theirs: Types
    conflicts: Conflicts = field(default_factory=Conflicts)

    def types(self) -> dict[str, IdentifiedType]:
        """The merged types in their order."""
        found: dict[str, IdentifiedType] = {}
        for one in dict.fromkeys((*self.base, *self.ours, *self.theirs)):
            type = self._type(self.base.get(one), self.ours.get(one), self.theirs.get(one))
            if type is not None:
                found[one] = type
        order = in_merged_order([*self.base], [*self.ours], [*self.theirs], set(found))
        return {one: found[one] for one in order}

    def _type(
        self, base: IdentifiedType | None, ours: IdentifiedType | None, theirs: IdentifiedType | None
    ) -> IdentifiedType | None:
        try:
            return merged(base, ours, theirs)
        except Unmerged:
            pass
        if base is None:
            assert ours is not None, "both sides changed it"
            self.conflicts.added_differently(ours.name, None, None, None)
            return ours
        if ours is None or theirs is None:
            self.conflicts.dropped(base.name, None, _name_of(ours), _name_of(theirs))
            return ours or theirs
        return self._both_changed(base, ours, theirs)

    def _both_changed(self, base: IdentifiedType, ours: IdentifiedType, theirs: IdentifiedType) -> IdentifiedType:
        cells = Cells(self.conflicts, base.name)
        properties = merge_properties(self.conflicts, base.name, base.properties, ours.properties, theirs.properties)
        own = merged_members(base.own, ours.own, theirs.own)
        return IdentifiedType(
            base.kind,
            cells.merged("its name", base.name, ours.name, theirs.name),
            cells.annotations(base, ours, theirs),
            cells.merged("its ends", base.ends, ours.ends, theirs.ends),
            cells.merged("@card", base.cardinality, ours.cardinality, theirs.cardinality, _bounds),
            merged_members(base.implements, ours.implements, theirs.implements),
            tuple(one for one in own if one in properties),
            properties,
            self._constraints(base, ours, theirs),
        )

    def _constraints(self, base: IdentifiedType, ours: IdentifiedType, theirs: IdentifiedType) -> frozenset[Constraint]:
        """The constraints that both sides left and those that either added; of a key and a range there is one each."""
        sides = [side.constraints for side in (base, ours, theirs)]
        many = [[c for c in side if not isinstance(c, Key | Range)] for side in sides]
        found: set[Constraint] = set(merged_members(*many))
        began, our, their = ({_place(c): c for c in side if isinstance(c, Key | Range)} for side in sides)

        def shown(constraint: Key | Range | None) -> str:
            return "" if constraint is None else _in_names(constraint, base, ours, theirs)

        for place in dict.fromkeys((*began, *our, *their)):
            property = base.properties.get(place) or ours.properties.get(place)
            cells = Cells(self.conflicts, base.name, _name_of(property))
            word = "@range" if place else "@key"
            one = cells.merged(word, began.get(place), our.get(place), their.get(place), shown)
            if one is not None:
                found.add(one)
        return frozenset(found)

    # Interfaces, which are known by name

    def interfaces(
        self, base: tuple[Interface, ...], ours: tuple[Interface, ...], theirs: tuple[Interface, ...]
    ) -> tuple[Interface, ...]:
        """The merged interfaces in their order."""
        began, our, their = ({one.name: one for one in side} for side in (base, ours, theirs))
        found: dict[str, Interface] = {}
        for name in dict.fromkeys((*began, *our, *their)):
            one = self._interface(name, began.get(name), our.get(name), their.get(name))
            if one is not None:
                found[name] = one
        return tuple(found[name] for name in in_merged_order([*began], [*our], [*their], set(found)))

    def _interface(
        self, name: str, base: Interface | None, ours: Interface | None, theirs: Interface | None
    ) -> Interface | None:
        try:
            return merged(base, ours, theirs)
        except Unmerged:
            pass
        if ours is None or theirs is None:
            self.conflicts.dropped(name, None, _name_of(ours), _name_of(theirs))
            return ours or theirs
        began, our, their = (_properties_of(side) for side in (base, ours, theirs))
        found = merge_properties(self.conflicts, name, began, our, their)
        order = in_merged_order([*began], [*our], [*their], set(found))
        return Interface(name, tuple(found[one] for one in order))

    # What only the whole shows

    def refuse_same_names(self, types: Types) -> None:
        """Find types, and properties of a type, that got the name of another one."""
        for name in _repeated([type.name for type in types.values()]):
            self.conflicts.same_name(name, None)
        for type in types.values():
            for name in _repeated([p.name for p in type.properties.values()]):
                self.conflicts.same_name(type.name, name)

    def refuse_lost_references(self, types: Types) -> None:
        """Find what one side added about something that the other one dropped."""
        for one, type in types.items():
            for end in type.ends:
                if end not in types:
                    lost = self._known(end)[0].name
                    self.conflicts.lost(type.name, f"it connects nodes of {lost}, which the other side dropped")
            there = {*type.properties, SRC, DST}
            for constraint in sorted((c for c in type.constraints if not there.issuperset(properties_of(c))), key=str):
                text = _in_names(constraint, *self._known(one))
                self.conflicts.lost(type.name, f"{text} is about a property that the other side dropped")

    def _known(self, one: str) -> list[IdentifiedType]:
        return [side[one] for side in (self.base, self.ours, self.theirs) if one in side]


def _place(constraint: Key | Range) -> str:
    """The property of a range; a type has one key, wherever it is."""
    return constraint.property if isinstance(constraint, Range) else ""


def _in_names(constraint: Constraint, *sides: IdentifiedType) -> str:
    """A constraint by the names that its properties have in the first of some sides which knows them."""
    for side in sides:
        constraint = side.names(constraint)
    return print_constraint(constraint)


def _name_of(one: IdentifiedType | Interface | Property | None) -> str | None:
    return None if one is None else one.name


def _bounds(cardinality: Cardinality) -> str:
    return print_bounds(cardinality.low, cardinality.high)


def _properties_of(interface: Interface | None) -> dict[str, Property]:
    return {p.name: p for p in interface.properties} if interface else {}


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _aliases(base: Types, ours: Types, theirs: Types) -> dict[str, str]:
    """Our identities for those of theirs that were added under the same name."""
    found: dict[str, str] = {}
    added = {(type.kind, type.name): one for one, type in ours.items() if one not in base and one not in theirs}
    for one, type in theirs.items():
        our = one if one in base or one in ours else added.get((type.kind, type.name))
        if our is None or our not in ours:
            continue
        if our != one:
            found[one] = our
        began = base[one].properties if one in base else {}
        found |= _property_aliases(began, ours[our].properties, type.properties)
    return found


def _property_aliases(
    base: Mapping[str, Property], ours: Mapping[str, Property], theirs: Mapping[str, Property]
) -> dict[str, str]:
    added = {p.name: one for one, p in ours.items() if one not in base and one not in theirs}
    return {one: added[p.name] for one, p in theirs.items() if one not in base and one not in ours and p.name in added}
