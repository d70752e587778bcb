"""Compares two states of one type: the steps between them, and what they come to for its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omniray.engine.schema.alteration import Among, NotNull, RowRule, TableAlteration
from omniray.engine.schema.constraints import properties_of, with_names
from omniray.engine.schema.matching import RENAME_FROM, Matched, former_name, is_reordered
from omniray.engine.schema.printer import print_bounds, print_constraint, print_property_type
from omniray.engine.schema.refusals import (
    ENDS_CHANGED,
    KEY_CHANGED,
    KEY_RETYPED,
    REQUIRED_WITHOUT_DEFAULT,
    UNSUPPORTED_RETYPE,
    Refusal,
)
from omniray.engine.schema.retypes import Conversion, Retype, conversion, makes_other_ids
from omniray.engine.schema.steps import Cost, Step, StepKind
from omniray.engine.schema.types import (
    DST,
    SRC,
    Annotation,
    Cardinality,
    Constraint,
    EdgeType,
    ElementType,
    EnumType,
    Index,
    Key,
    NodeType,
    Property,
    Range,
    Unique,
)


class Comparison:
    """The comparison of a type with what the new schema has in its place."""

    def __init__(self, before: ElementType, after: ElementType, matched: Matched, new_types: Mapping[str, str]) -> None:
        """`new_types` gives the new name of each old node type that stays."""
        self.steps: list[Step] = []
        self._before, self._after, self._new_types = before, after, new_types
        self._matched, self._old, self._new = matched, matched.old, matched.new
        self._constraints = {with_names(c, self._new) for c in before.constraints}
        self._added: list[Property] = []
        self._retyped: list[Retype] = []
        self._made_nullable: list[str] = []
        self._made_required: list[str] = []
        self._rules: list[RowRule] = []
        self._compare()

    @property
    def alteration(self) -> TableAlteration:
        return TableAlteration(
            self._before,
            self._after,
            {old: new for new, old in self._old.items() if old != new},
            tuple(self._added),
            tuple(p.name for p in self._before.properties if p.name not in self._new),
            tuple(self._retyped),
            tuple(self._made_nullable),
            tuple(self._made_required),
            tuple(self._rules),
        )

    def _compare(self) -> None:
        if self._before.name != self._after.name:
            self._add(StepKind.RENAME_TYPE, None, details={"from": self._before.name})
        self._compare_identity()
        for property in self._after.properties:
            if (refusal := self._matched.refused.get(property.name)) is not None:
                former = former_name(property.annotations)
                self._add(StepKind.RENAME_PROPERTY, property.name, refusal=refusal, details={"from": former})
            if property.name in self._old:
                self._compare_property(self._old_property(property), property)
            else:
                self._add_property(property)
        for old in self._before.properties:
            if old.name not in self._new:
                self._add(StepKind.DROP_PROPERTY, old.name, loses_data=True)
        self._compare_constraints()
        self._compare_metadata()

    # What a node or an edge is known by

    def _compare_identity(self) -> None:
        before, after = self._before, self._after
        if isinstance(before, NodeType) and isinstance(after, NodeType):
            old_key = tuple(self._new.get(name, name) for name in before.key)
            if old_key != after.key:
                key = {"from": list(before.key), "to": list(after.key)}
                self._add(StepKind.CHANGE_KEY, None, refusal=KEY_CHANGED, details=key)
        elif isinstance(before, EdgeType) and isinstance(after, EdgeType):
            if (self._new_types.get(before.source), self._new_types.get(before.target)) != (after.source, after.target):
                ends = {"from": [before.source, before.target], "to": [after.source, after.target]}
                self._add(StepKind.CHANGE_ENDS, None, refusal=ENDS_CHANGED, details=ends)
            self._compare_cardinality(before.cardinality, after.cardinality)

    def _compare_cardinality(self, old: Cardinality, new: Cardinality) -> None:
        if old == new:
            return
        tighter = new.low > old.low or (new.high is not None and (old.high is None or new.high < old.high))
        if tighter:
            self._rules.append(new)
        self._add(
            StepKind.CHANGE_CARDINALITY,
            None,
            cost=Cost.CHECK if tighter else Cost.METADATA,
            details={"from": print_bounds(old.low, old.high), "to": print_bounds(new.low, new.high)},
        )

    # Properties

    def _add_property(self, new: Property) -> None:
        self._added.append(new)
        refusal = REQUIRED_WITHOUT_DEFAULT if new.must_be_given else None
        cost = Cost.METADATA if new.default is None else Cost.BACKFILL
        details = {"to": print_property_type(new), "default": new.default}
        self._add(StepKind.ADD_PROPERTY, new.name, cost=cost, refusal=refusal, details=details)

    def _compare_property(self, old: Property, new: Property) -> None:
        if old.name != new.name:
            self._add(StepKind.RENAME_PROPERTY, new.name, details={"from": old.name})
        if old.type != new.type:
            self._retype(old, new)
        if old.nullable and not new.nullable:
            self._require(new)
        elif new.nullable and not old.nullable:
            self._made_nullable.append(new.name)
            self._add(StepKind.MAKE_NULLABLE, new.name)
        if old.default != new.default:
            self._add(StepKind.CHANGE_DEFAULT, new.name, details={"from": old.default, "to": new.default})
        if _kept(old.annotations, old.name != new.name) != _kept(new.annotations, old.name != new.name):
            self._add(StepKind.CHANGE_METADATA, new.name, details={"what": "annotations"})

    def _require(self, new: Property) -> None:
        self._made_required.append(new.name)
        if new.default is None:
            self._rules.append(NotNull(new.name))
        cost = Cost.CHECK if new.default is None else Cost.BACKFILL
        self._add(StepKind.MAKE_REQUIRED, new.name, cost=cost, details={"default": new.default})

    def _retype(self, old: Property, new: Property) -> None:
        if isinstance(old.type, EnumType) and isinstance(new.type, EnumType):
            self._compare_enum(new.name, old.type, new.type)
            return
        how = conversion(old.type, new.type)
        details = {"from": str(old.type), "to": str(new.type)}
        is_key = isinstance(self._after, NodeType) and new.name in self._after.key
        refusal: Refusal | None = None
        if how is None:
            refusal = UNSUPPORTED_RETYPE
        elif is_key and makes_other_ids(old.type, new.type):
            refusal = KEY_RETYPED
        if how is None or refusal is not None:
            self._add(StepKind.CHANGE_TYPE, new.name, refusal=refusal, details=details)
            return
        self._retyped.append(Retype(new.name, old.type, new.type, how))
        if isinstance(new.type, EnumType):
            self._rules.append(Among(new.name, new.type.values))
        loses_data = how is Conversion.NARROWED
        self._add(StepKind.CHANGE_TYPE, new.name, cost=_COSTS[how], loses_data=loses_data, details=details)

    def _compare_enum(self, property: str, old: EnumType, new: EnumType) -> None:
        gone = [value for value in old.values if value not in new.values]
        come = [value for value in new.values if value not in old.values]
        if come:
            self._add(StepKind.WIDEN_ENUM, property, details={"values": come})
        if gone:
            self._rules.append(Among(property, new.values))
            self._add(StepKind.NARROW_ENUM, property, cost=Cost.CHECK, details={"values": gone})
        if [v for v in old.values if v not in gone] != [v for v in new.values if v not in come]:
            self._add(StepKind.CHANGE_METADATA, property, details={"what": "order of values"})

    # Constraints

    def _compare_constraints(self) -> None:
        after = set(self._after.constraints)
        for old in self._before.constraints:
            if not isinstance(old, Key) and with_names(old, self._new) not in after:
                self._constrain(StepKind.DROP_CONSTRAINT, old)
        for new in self._after.constraints:
            if isinstance(new, Key):
                continue
            if new in self._constraints:
                if isinstance(new, Unique) and not self._is_as_it_was(new) and not self._surely_holds(new):
                    self._rules.append(new)
                continue
            if isinstance(new, Index) or self._surely_holds(new):
                self._constrain(StepKind.ADD_CONSTRAINT, new)
                continue
            self._rules.append(new)
            self._constrain(StepKind.ADD_CONSTRAINT, new, cost=Cost.CHECK)

    def _surely_holds(self, new: Constraint) -> bool:
        """Whether a constraint needs no look at the rows: a stricter one held, or all rows have null or a default."""
        added = {p.name: p.default for p in self._added}
        if isinstance(new, Unique):
            if any(name in added and added[name] is None for name in new.properties):
                return True
            stricter = (c for c in self._constraints if isinstance(c, Unique | Key) and self._is_as_it_was(c))
            return any(set(one.properties) <= set(new.properties) for one in stricter)
        if properties_of(new)[0] in added:
            return True
        ranges = (c for c in self._constraints if isinstance(c, Range) and self._is_as_it_was(c))
        return isinstance(new, Range) and any(_contains(new, one) for one in ranges)

    def _is_as_it_was(self, constraint: Constraint) -> bool:
        """Whether the values that a constraint is about stay apart: rounded ones and nulls that are filled may not."""
        names = set(properties_of(constraint))
        touched = {one.name for one in self._retyped if one.conversion is Conversion.NARROWED}
        touched |= {name for name in self._made_required if NotNull(name) not in self._rules}
        return names.isdisjoint(touched) and names <= {*self._old, *_ENDS}

    def _constrain(self, kind: StepKind, constraint: Constraint, cost: Cost = Cost.METADATA) -> None:
        names = properties_of(constraint)
        property = names[0] if len(names) == 1 else None
        self._add(kind, property, cost=cost, details={"constraint": print_constraint(constraint)})

    # What no row knows of

    def _compare_metadata(self) -> None:
        before, after = self._before, self._after
        is_renamed = before.name != after.name
        if _kept(before.annotations, is_renamed) != _kept(after.annotations, is_renamed):
            self._add(StepKind.CHANGE_METADATA, None, details={"what": "annotations"})
        if isinstance(before, NodeType) and isinstance(after, NodeType):
            if before.implements != after.implements or self._of_body(before) != self._of_body(after):
                details = {"from": list(before.implements), "to": list(after.implements)}
                self._add(StepKind.CHANGE_IMPLEMENTS, None, details=details)
            is_reordered_body = self._is_reordered(before.own, after.own)
        else:
            is_reordered_body = False
        if is_reordered_body or self._is_reordered(before.properties, after.properties):
            self._add(StepKind.CHANGE_METADATA, None, details={"what": "order of properties"})

    def _is_reordered(self, old: Iterable[Property], new: Iterable[Property]) -> bool:
        return is_reordered((p.name for p in old), (p.name for p in new), self._new)

    def _of_body(self, type: NodeType) -> set[str]:
        """The properties that stay and that a type declares itself, by their new names."""
        names = {p.name for p in type.own}
        return {new for new, old in self._old.items() if (old if type is self._before else new) in names}

    def _old_property(self, new: Property) -> Property:
        return next(p for p in self._before.properties if p.name == self._old[new.name])

    def _add(
        self,
        kind: StepKind,
        property: str | None,
        *,
        cost: Cost = Cost.METADATA,
        loses_data: bool = False,
        refusal: Refusal | None = None,
        details: Mapping[str, Any] = {},
    ) -> None:
        table = self._before.table_key
        self.steps.append(Step(kind, self._after.name, property, cost, loses_data, details, refusal, table))


_COSTS = {
    Conversion.WIDENED: Cost.BACKFILL,
    Conversion.EXACT: Cost.BACKFILL,
    Conversion.NARROWED: Cost.BACKFILL,
    Conversion.RELABELLED: Cost.METADATA,
    Conversion.RESTRICTED: Cost.CHECK,
}
_ENDS = (SRC, DST)


def _kept(annotations: tuple[Annotation, ...], is_renamed: bool) -> tuple[Annotation, ...]:
    """The annotations; without @rename_from where the step of a rename says it already."""
    return tuple(a for a in annotations if not (is_renamed and a.name == RENAME_FROM))


def _contains(outer: Range, inner: Range) -> bool:
    """Whether whatever lies in the inner range lies in the outer one, too."""
    low = outer.low is None or (inner.low is not None and outer.low <= inner.low)
    high = outer.high is None or (inner.high is not None and inner.high <= outer.high)
    return outer.property == inner.property and low and high
