"""Merges of what a type or property consists of: each value by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from omniray.engine.schema.conflicts import Conflicts
from omniray.engine.schema.identified import IdentifiedType
from omniray.engine.schema.matching import RENAME_FROM
from omniray.engine.schema.printer import print_property
from omniray.engine.schema.three_way import Unmerged, in_merged_order, merged, merged_members
from omniray.engine.schema.types import Annotation, EnumType, Property, PropertyType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of one type, or of one of its properties."""

    conflicts: Conflicts
    type: str
    property: str | None = None

    def merged(self, what: str, base: T, ours: T, theirs: T, shown: Callable[[T], str] = str) -> T:
        """The merged value; ours, and a conflict, if both sides changed it."""
        try:
            return merged(base, ours, theirs)
        except Unmerged:
            texts = (None if value is None else shown(value) for value in (ours, theirs))
            self.conflicts.changed_differently(self.type, self.property, what, *texts)
            return ours

    def annotations(
        self,
        base: IdentifiedType | Property,
        ours: IdentifiedType | Property,
        theirs: IdentifiedType | Property,
    ) -> tuple[Annotation, ...]:
        """The merged annotations, by their names; @rename_from goes with the name that was taken."""
        try:
            return merged(base.annotations, ours.annotations, theirs.annotations)
        except Unmerged:
            pass
        began, our, their = (_grouped(one.annotations) for one in (base, ours, theirs))
        found = {}
        for name in dict.fromkeys((*began, *our, *their)):
            if name == RENAME_FROM:
                renamed = our if theirs.name == base.name else their
                found[name] = renamed.get(name, ())
            else:
                sides = began.get(name, ()), our.get(name, ()), their.get(name, ())
                found[name] = self.merged(f"@{name}", *sides)
        order = in_merged_order([*began], [*our], [*their], set(found))
        return tuple(annotation for name in order for annotation in found[name])


def merge_properties(
    conflicts: Conflicts,
    type: str,
    base: Mapping[str, Property],
    ours: Mapping[str, Property],
    theirs: Mapping[str, Property],
) -> dict[str, Property]:
    """The merged properties of one type or interface, whatever they are known by."""
    found = {}
    for one in dict.fromkeys((*base, *ours, *theirs)):
        property = _merged_property(conflicts, type, base.get(one), ours.get(one), theirs.get(one))
        if property is not None:
            found[one] = property
    return found


def _merged_property(
    conflicts: Conflicts, type: str, base: Property | None, ours: Property | None, theirs: Property | None
) -> Property | None:
    try:
        return merged(base, ours, theirs)
    except Unmerged:
        pass
    if base is None:
        assert ours is not None, "both sides changed it"
        conflicts.added_differently(type, ours.name, _shown(ours), _shown(theirs))
        return ours
    if ours is None or theirs is None:
        conflicts.dropped(type, base.name, _shown(ours), _shown(theirs))
        return ours or theirs
    cells = Cells(conflicts, type, base.name)
    return Property(
        cells.merged("its name", base.name, ours.name, theirs.name),
        _merged_type(cells, base.type, ours.type, theirs.type),
        cells.merged("whether it may be null", base.nullable, ours.nullable, theirs.nullable),
        cells.annotations(base, ours, theirs),
        cells.merged("its default", base.default, ours.default, theirs.default),
    )


def _merged_type(cells: Cells, base: PropertyType, ours: PropertyType, theirs: PropertyType) -> PropertyType:
    if isinstance(base, EnumType) and isinstance(ours, EnumType) and isinstance(theirs, EnumType):
        return EnumType(merged_members(base.values, ours.values, theirs.values))
    return cells.merged("its type", base, ours, theirs)


def _grouped(annotations: tuple[Annotation, ...]) -> dict[str, tuple[Annotation, ...]]:
    found: dict[str, tuple[Annotation, ...]] = {}
    for annotation in annotations:
        found[annotation.name] = (*found.get(annotation.name, ()), annotation)
    return found


def _shown(property: Property | None) -> str | None:
    return None if property is None else print_property(property)
