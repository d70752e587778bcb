"""What a schema change does to one table, as those who carry it out read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omniray.engine.schema.retypes import Retype
from omniray.engine.schema.types import Cardinality, Check, ElementType, Property, Range, Unique


@dataclass(frozen=True, slots=True)
class NotNull:
    """No row may have a null in the property."""

    property: str


@dataclass(frozen=True, slots=True)
class Among:
    """Each row has one of these texts in the property, or null."""

    property: str
    values: tuple[str, ...]


RowRule = NotNull | Among | Unique | Range | Check | Cardinality
"""What the rows that are there must satisfy, in the new names."""


@dataclass(frozen=True, slots=True)
class TableAlteration:
    """A table of the old schema that the new one has too, otherwise. Properties have their new names, but `dropped`.

    An added property is filled with its default, if it has one; so are the nulls of one that is made required.
    """

    before: ElementType
    after: ElementType
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)  # from old to new
    added: tuple[Property, ...] = ()
    dropped: tuple[str, ...] = ()
    retyped: tuple[Retype, ...] = ()
    made_nullable: tuple[str, ...] = ()
    made_required: tuple[str, ...] = ()
    rules: tuple[RowRule, ...] = ()

    @property
    def is_renamed(self) -> bool:
        return self.before.name != self.after.name

    @property
    def filled(self) -> tuple[Property, ...]:
        """The properties whose default is written into rows that are there."""
        required = (p for p in self.after.properties if p.name in self.made_required)
        return tuple(p for p in (*self.added, *required) if p.default is not None)

    @property
    def rewrites(self) -> bool:
        """Whether a column is written anew; the rest of the table stays where it is."""
        return bool(self.filled) or any(one.rewrites for one in self.retyped)

    @property
    def changes_columns(self) -> bool:
        """Whether the table's own schema differs afterwards: else it keeps its version."""
        named = self.renamed or self.added or self.dropped
        return bool(named or self.made_nullable or self.made_required or any(one.rewrites for one in self.retyped))

    def old_name(self, property: str) -> str | None:
        """The old name of a property of the new type; None if it is added."""
        if any(p.name == property for p in self.added):
            return None
        return next((old for old, new in self.renamed.items() if new == property), property)
