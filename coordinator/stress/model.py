"""The stress graph in plain Python: its rows after some writes, and the errors that a write may get there."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from omniray.coordinator.stress.operation import (
    ENDS,
    OWNED_MAX,
    ROW_TYPES,
    Delete,
    Device,
    Follows,
    Load,
    Owns,
    Register,
    Row,
    TypeName,
    Update,
    Write,
    found_by,
    type_of,
)
from omniray.engine.base.errors import ConstraintViolation, KeyConflict

Item = tuple[TypeName, str]
"""A row by its type and key."""


@dataclass(frozen=True, slots=True)
class Affected:
    """How many nodes and edges a write inserted, replaced or deleted."""

    nodes: int
    edges: int


def digest_of(rows: Iterable[Row]) -> str:
    """A short digest of the rows that does not depend on their order."""
    lines = b"\n".join(sorted(msgspec.json.encode(row) for row in rows))
    return hashlib.blake2b(lines, digest_size=8).hexdigest()


class Model:
    """A graph after some commits. Rows are found by their key, and by every node that they are or join."""

    def __init__(self) -> None:
        self.tables: dict[TypeName, dict[str, Row]] = {type: {} for type in ROW_TYPES}
        self._found: defaultdict[tuple[TypeName, str, str], dict[str, None]] = defaultdict(dict)
        self._slots: dict[int, str] = {}

    def found(self, type: TypeName, name: str, column: str | None = None) -> list[Row]:
        """The rows of a type that are found by a name."""
        return [self.tables[type][key] for key in self._found.get((type, column or found_by(type), name), ())]

    # What a write would do

    def refusals(self, write: Write) -> frozenset[str]:
        """The kinds of error that may refuse the write here; with several causes, any of them is allowed."""
        if not isinstance(write, Load | Register):
            return frozenset()
        kinds = set()
        if isinstance(write, Load) and write.mode == "append" and self._existing_keys(write.rows):
            kinds.add(KeyConflict.kind)
        if self._breaks_a_rule(write):
            kinds.add(ConstraintViolation.kind)
        return frozenset(kinds)

    def has_effect(self, write: Write) -> bool:
        """Whether the write would change anything: an update or delete that matches nothing makes no commit."""
        return not isinstance(write, Update | Delete) or bool(self.found(write.type, write.name))

    def apply(self, write: Write) -> Affected:
        """Change the graph as the write does; returns how many rows it touched."""
        match write:
            case Load() | Register():
                return self._put(write.rows)
            case Update():
                return self._put([_touched(row, write) for row in self.found(write.type, write.name)])
            case Delete():
                return self._delete(write)

    def _existing_keys(self, rows: Sequence[Row]) -> bool:
        """Whether a row's key exists; an edge that is identified by its ends breaks a constraint instead."""
        return any(row.key in self.tables[type_of(row)] for row in rows if not isinstance(row, Follows))

    def _breaks_a_rule(self, write: Load | Register) -> bool:
        new = {(type_of(row), row.key) for row in write.rows}
        return (
            (_adds_edges(write) and self._links_again(write.rows))
            or any(self._is_loose(row, new) for row in write.rows)
            or any(self._takes_a_slot(row, new) for row in write.rows)
            or self._owns_too_much(write.rows)
        )

    def _links_again(self, rows: Sequence[Row]) -> bool:
        return any(isinstance(row, Follows) and row.key in self.tables["Follows"] for row in rows)

    def _is_loose(self, row: Row, new: set[Item]) -> bool:
        """Whether it is an edge whose node neither exists nor comes with the same write."""
        ends = ENDS.get(type_of(row), {})
        items = [(node, getattr(row, column)) for column, node in ends.items()]
        return any(item not in new and item[1] not in self.tables[item[0]] for item in items)

    def _takes_a_slot(self, row: Row, new: set[Item]) -> bool:
        """Whether it is a device whose slot another device has, and keeps."""
        if not isinstance(row, Device) or row.slot is None:
            return False
        holder = self._slots.get(row.slot)
        return holder is not None and ("Device", holder) not in new

    def _owns_too_much(self, rows: Sequence[Row]) -> bool:
        added = Counter(row.src for row in rows if isinstance(row, Owns) and row.key not in self.tables["Owns"])
        return any(len(self.found("Owns", account)) + count > OWNED_MAX for account, count in added.items())

    # Changes

    def _put(self, rows: Iterable[Row]) -> Affected:
        nodes = edges = 0
        for row in rows:
            self._remove((type_of(row), row.key))
            self._add(row)
            nodes, edges = (nodes, edges + 1) if type_of(row) in ENDS else (nodes + 1, edges)
        return Affected(nodes, edges)

    def _delete(self, write: Delete) -> Affected:
        doomed: dict[Item, None] = {(write.type, row.key): None for row in self.found(write.type, write.name)}
        matched = len(doomed)
        for edge, ends in ENDS.items() if matched else ():
            for column, node in ends.items():
                if node == write.type:
                    doomed |= {(edge, row.key): None for row in self.found(edge, write.name, column)}
        for item in doomed:
            self._remove(item)
        if write.type in ENDS:
            return Affected(0, matched)
        return Affected(matched, len(doomed) - matched)

    def _add(self, row: Row) -> None:
        type = type_of(row)
        self.tables[type][row.key] = row
        for column in _columns(type):
            self._found[type, column, getattr(row, column)][row.key] = None
        if isinstance(row, Device) and row.slot is not None:
            self._slots[row.slot] = row.name

    def _remove(self, item: Item) -> None:
        type, key = item
        row = self.tables[type].pop(key, None)
        if row is None:
            return
        for column in _columns(type):
            del self._found[type, column, getattr(row, column)][key]
        if isinstance(row, Device) and row.slot is not None and self._slots.get(row.slot) == row.name:
            del self._slots[row.slot]


def _columns(type: TypeName) -> Iterable[str]:
    return ENDS.get(type, ("name",))


def _adds_edges(write: Load | Register) -> bool:
    """Whether its edges must be new: the edges of a merge replace those between the same ends."""
    return isinstance(write, Register) or write.mode == "append"


def _touched(row: Row, write: Update) -> Row:
    return msgspec.structs.replace(row, counter=write.counter, stamp=write.txn_id)
