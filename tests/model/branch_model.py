"""Branches and merges in plain Python: dicts of rows, and of each state all the states that it includes.

Slow and meant to be obviously right. It has no vectors, no tables and no files, and walks over everything. A state is
never changed; a write, a merge or a revert makes the next state of a branch. What a merge makes of two states is
written down here once more, row by row.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from omniray.engine.branches.conflicts import OnConflict
from omniray.engine.branches.merge_result import MergeOutcome

PERSON, KNOWS, PAIR = "Person", "Knows", "Pair"
SCHEMA = """
node Person {
    name: String @key
    n: I32?
    m: I32?
}
edge Knows: Person -> Person @card(0..2) {
    n: I32?
}
edge Pair: Person -> Person {
    n: I32?
    @unique(src, dst)
}
"""
EDGES = (KNOWS, PAIR)
TYPES = (PERSON, *EDGES)
DEGREE_MAX = 2
ENDS = ("src", "dst")
BOTTOM: Final = "unlike anything"
TORN: Final = {"torn": BOTTOM}

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Mapping[str, Row]
Conflict: TypeAlias = tuple[str, str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Shape:
    """What a merge knows of a schema: its types, and by type the ends, the unique rules and the numbers of edges."""

    types: tuple[str, ...] = TYPES
    ends: Mapping[str, tuple[str, str]] = field(default_factory=lambda: dict.fromkeys(EDGES, (PERSON, PERSON)))
    uniques: Mapping[str, Sequence[tuple[str, ...]]] = field(default_factory=lambda: {PAIR: [ENDS]})
    degrees: Mapping[str, tuple[int, int]] = field(default_factory=lambda: {KNOWS: (0, DEGREE_MAX)})

    def may_agree(self, type: str) -> bool:
        """Whether equal edges under different ids are one."""
        return type in self.ends and type in self.uniques

    def is_of_ends(self, type: str) -> bool:
        """Whether there may be one edge between two nodes."""
        return self.may_agree(type) and ENDS in self.uniques[type]


@dataclass(frozen=True, eq=False)
class State:
    """A branch at one of its commits. `place` orders states as the graph does: by line, then by number."""

    place: tuple[str, int]
    rows: Mapping[str, Rows]
    content: Mapping[str, Any]  # by type: two states with the same content have the same version
    before: State | None
    includes: frozenset[State] = frozenset()
    commit_id: str = ""

    def all(self) -> frozenset[State]:
        return self.includes | {self}


@dataclass(frozen=True)
class Merged:
    """What a merge comes to."""

    outcome: MergeOutcome
    rows: Mapping[str, Rows]
    content: Mapping[str, Any]
    conflicts: frozenset[Conflict] = frozenset()


@dataclass
class Branches:
    """All branches of a graph; `heads` by name, and `parents` as long as they are there."""

    shape: Shape = field(default_factory=Shape)
    heads: dict[str, State] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def begin(self, name: str, line: str, parent: str | None) -> None:
        if parent is None:
            nothing = {type: dict[str, Row]() for type in TYPES}
            content = {type: next(self.numbers) for type in TYPES}
            self.heads[name] = State((line, 0), nothing, content, None)
            return
        start = self.heads[parent]
        self.parents[name] = parent
        self.heads[name] = State((line, 0), start.rows, start.content, start, start.all())

    def children(self, name: str) -> list[str]:
        return [child for child, parent in self.parents.items() if parent == name]

    def delete(self, name: str) -> None:
        del self.heads[name], self.parents[name]

    def write(self, name: str, rows: Mapping[str, Rows], touched: Iterable[str], commit_id: str) -> None:
        """The next state of a branch, with new contents of the types that a write touched."""
        content = {**self.heads[name].content, **{type: next(self.numbers) for type in touched}}
        self._follow(name, {**self.heads[name].rows, **rows}, content, frozenset(), commit_id)

    def take(self, name: str, merged: Merged, taken: State | None, commit_id: str) -> None:
        """The next state of a branch after a merge of a state, or a revert, which takes none in."""
        includes = frozenset() if taken is None else taken.all()
        self._follow(name, merged.rows, merged.content, includes, commit_id)

    def _follow(
        self, name: str, rows: Mapping[str, Rows], content: Mapping[str, int], taken: frozenset[State], commit_id: str
    ) -> None:
        head = self.heads[name]
        place = (head.place[0], head.place[1] + 1)
        self.heads[name] = State(place, rows, content, head, head.all() | taken, commit_id)

    # Merging

    def merged(self, source: State, target: State, how: OnConflict) -> Merged:
        """What a merge of a state into another comes to."""
        if source in target.all():
            return Merged(MergeOutcome.ALREADY_UP_TO_DATE, target.rows, target.content)
        return self._merged(best(source.all() & target.all()), source, target, how)

    def reverted(self, state: State, target: State, how: OnConflict) -> Merged:
        """What taking a state's commit back comes to."""
        assert state.before is not None
        found = self._merged([state], state.before, target, how)
        if found.outcome in (MergeOutcome.FAST_FORWARD, MergeOutcome.MERGED):
            return Merged(MergeOutcome.REVERTED, found.rows, found.content)
        return found

    def _merged(self, bases: Sequence[State], source: State, target: State, how: OnConflict) -> Merged:
        rows: dict[str, Rows] = {}
        content: dict[str, Any] = {}
        conflicts: set[Conflict] = set()
        types = self.shape.types
        for type in types:
            there, here = source.content[type], target.content[type]
            of_bases = {base.content[type] for base in bases}
            if there == here or of_bases == {there}:
                rows[type], content[type] = target.rows[type], here
            elif of_bases == {here}:
                rows[type], content[type] = source.rows[type], there
            else:
                rows[type], found = _merged_table(self.shape, type, bases, source, target, how)
                conflicts |= found
                content[type] = here if rows[type] == target.rows[type] else next(self.numbers)
        if content == target.content and all(
            source.content[type] == target.content[type]
            or {base.content[type] for base in bases} == {source.content[type]}
            for type in types
        ):
            return Merged(MergeOutcome.ALREADY_UP_TO_DATE, target.rows, target.content)
        conflicts |= broken_rules(self.shape, rows, target.rows, source.rows)
        if conflicts:
            return Merged(MergeOutcome.CONFLICTS, target.rows, target.content, frozenset(conflicts))
        is_untouched = all({base.content[type] for base in bases} == {target.content[type]} for type in types)
        return Merged(MergeOutcome.FAST_FORWARD if is_untouched else MergeOutcome.MERGED, rows, content)


def best(states: Iterable[State]) -> list[State]:
    """Those that no other one includes, in the order of their places."""
    found = list(states)
    return sorted(
        (one for one in found if not any(one in other.includes for other in found)), key=lambda state: state.place
    )


def _merged_table(
    shape: Shape, type: str, bases: Sequence[State], source: State, target: State, how: OnConflict
) -> tuple[Rows, set[Conflict]]:
    there, here = source.rows[type], target.rows[type]
    of_bases = [base.rows[type] for base in bases]
    agreed = {id for id in there if shape.may_agree(type) and _has_equal(id, there, here, of_bases)}
    on_source = _replaced(of_bases, there, here) if shape.is_of_ends(type) else {}
    on_target = _replaced(of_bases, here, there) if shape.is_of_ends(type) else {}
    there, here = _as_replaced(there, on_source), _as_replaced(here, on_target)
    after: dict[str, Row] = dict(here)
    conflicts: set[Conflict] = set()
    for id in sorted(there.keys() | here.keys()):
        base = _base_row(bases, type, id)
        row, kind, names = _merged_row(base, there.get(id), here.get(id), how)
        if kind and how is OnConflict.FAIL:
            conflicts.add((kind, type, id, names))
            continue
        if id in agreed:
            continue
        if row is None:
            after.pop(id, None)
        else:
            after[id] = row
    return {on_target.get(id, id): row for id, row in after.items()}, conflicts


def _replaced(bases: Sequence[Rows], side: Rows, other: Rows) -> dict[str, str]:
    """The edges of all bases that a side has replaced by new ones between the same nodes, as new ids by old ones.

    Of each of them the other side has an edited one, or none at all.
    """
    known = set[str]().union(*bases)
    found: dict[str, str] = {}
    for id in sorted(known - side.keys()):
        if not all(id in base and other.get(id) != base[id] for base in bases):
            continue
        ends = {_ends(base[id]) for base in bases}
        new, there = (
            [one for one in sorted(rows.keys() - known) if {_ends(rows[one])} == ends] for rows in (side, other)
        )
        if not there and new and new[0] not in other and new[0] not in found.values():
            found[id] = new[0]
    return found


def _ends(edge: Row) -> tuple[str, str]:
    return edge["src"], edge["dst"]


def _as_replaced(rows: Rows, replaced: Mapping[str, str]) -> Rows:
    """The rows with the new edges under the old ids."""
    old = {new: id for id, new in replaced.items()}
    return {old.get(id, id): row for id, row in rows.items()}


def _has_equal(id: str, there: Rows, here: Rows, bases: Sequence[Rows]) -> bool:
    """Whether the target inserted an edge that equals one that the source inserted."""
    known = set[str]().union(*bases)
    return id not in here.keys() | known and any(here[new] == there[id] for new in here.keys() - there.keys() - known)


def _merged_row(
    base: Row | None, there: Row | None, here: Row | None, how: OnConflict
) -> tuple[Row | None, str, tuple[str, ...]]:
    """The row after a merge; and the kind and the properties of a conflict, if it is one."""
    theirs = how is OnConflict.THEIRS
    if there is None and here is None:
        return None, "", ()
    if there is None or here is None:
        stays = there if here is None else here
        assert stays is not None
        if base is None:
            return stays, "", ()
        edited = tuple(name for name in stays if _differs(stays, base, name))
        if not edited and base is not TORN:
            return None, "", ()
        keeps = theirs if here is None else not theirs
        return stays if keeps else None, "delete_vs_update", edited
    clash = []
    row = dict(here)
    for name in there:
        if there[name] == here[name]:
            continue
        by_source = base is None or _differs(there, base, name)
        by_target = base is None or _differs(here, base, name)
        if by_source and by_target:
            clash.append(name)
        if by_source and (not by_target or theirs):
            row[name] = there[name]
    kind = "divergent_insert" if base is None else "divergent_update"
    return row, kind if clash else "", tuple(clash)


def _differs(row: Row, base: Row, name: str) -> bool:
    return base is TORN or base[name] is BOTTOM or row[name] != base[name]


def _base_row(bases: Sequence[State], type: str, id: str) -> Row | None:
    """The row of the base: where several differ, what a merge of them would have."""
    row, known = bases[0].rows[type].get(id), bases[0].all()
    for base in bases[1:]:
        other = base.rows[type].get(id)
        if row is TORN or row != other:
            older = best(known & base.all())
            row = _merged_bases(_base_row(older, type, id) if older else None, row, other)
        known |= base.all()
    return row


def _merged_bases(older: Row | None, one: Row | None, other: Row | None) -> Row | None:
    if TORN is one or TORN is other:
        return TORN
    if one is None or other is None:
        stays = other if one is None else one
        if older is None or stays is None:
            return stays
        return TORN if older is TORN or any(_differs(stays, older, name) for name in stays) else None
    return {name: _merged_cell(older, one, other, name) for name in one}


def _merged_cell(older: Row | None, one: Row, other: Row, name: str) -> Any:
    if one[name] == other[name] and one[name] is not BOTTOM:
        return one[name]
    if older is None or older is TORN or older[name] is BOTTOM:
        return BOTTOM
    if one[name] == older[name]:
        return other[name]
    return one[name] if other[name] == older[name] else BOTTOM


def broken_rules(
    shape: Shape, rows: Mapping[str, Rows], before: Mapping[str, Rows], there: Mapping[str, Rows]
) -> set[Conflict]:
    """The rules over several rows that a state breaks, given the one before it, and the one that was merged."""
    found: set[Conflict] = set()
    for type, nodes in shape.ends.items():
        for id, edge in rows[type].items():
            lost = tuple(end for end, node in zip(ENDS, nodes, strict=True) if edge[end] not in rows[node])
            if lost:
                found.add(("orphan_edge", type, id, lost))
    for type, rules in shape.uniques.items():
        written = {id for id, row in rows[type].items() if before[type].get(id) != row}
        for names in rules:
            values = {id: tuple(row[name] for name in names) for id, row in rows[type].items()}
            counted = Counter(value for value in values.values() if None not in value)
            found |= {("unique_violation", type, id, names) for id in written if counted[values[id]] > 1}
    for type, bounds in shape.degrees.items():
        node_type = shape.ends[type][0]
        for node in _unbalanced(rows[type], before[type], bounds):
            is_removed = node in before[node_type] and node not in rows[node_type]
            is_as_there = node in there[node_type] and _degree(there[type], node) == _degree(rows[type], node)
            if not is_removed and not is_as_there:
                found.add(("cardinality_violation", type, node, ("src",)))
    return found


def _unbalanced(rows: Rows, before: Rows, bounds: tuple[int, int]) -> set[str]:
    """The nodes that got or lost edges, and have too few or too many now."""
    low, high = bounds
    changed = [id for id in rows.keys() | before.keys() if rows.get(id) != before.get(id)]
    nodes = {edge["src"] for id in changed for edge in (rows.get(id), before.get(id)) if edge is not None}
    return {node for node in nodes if not low <= _degree(rows, node) <= high}


def _degree(edges: Rows, node: str) -> int:
    return sum(edge["src"] == node for edge in edges.values())
