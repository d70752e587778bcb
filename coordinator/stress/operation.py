"""The rows and writes of the stress test as frozen values, to be applied, recorded and replayed.

Every write is complete: the writes in the order of their commits determine the content of the whole graph (`model.py`).
Each row carries the id of the write that made it, so that no two writes leave the same row.
They are msgspec structs rather than dataclasses because a history holds them in one tagged union.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.line.commit_object import Recovery
from omniray.engine.reading.snapshot import Snapshot

OWNED_MAX = 3

SCHEMA = f"""\
node Account {{
  name: String @key
  owner: String
  counter: I64
  stamp: String
}}
node Device {{
  name: String @key
  owner: String
  slot: I64? @unique
  counter: I64
  stamp: String
}}
edge Owns: Account -> Device @card(0..{OWNED_MAX}) {{
  counter: I64
  stamp: String
}}
edge Follows: Account -> Account {{
  counter: I64
  stamp: String
  @unique(src, dst)
}}
"""

REGISTER = """\
query register(
  $name: String, $device: String, $friend: String, $owner: String, $slot: I64?, $counter: I64, $stamp: String
) {
  insert Account { name: $name, owner: $owner, counter: $counter, stamp: $stamp }
  insert Device { name: $device, owner: $owner, slot: $slot, counter: $counter, stamp: $stamp }
  insert Follows { from: $name, to: $friend, counter: $counter, stamp: $stamp }
}
"""

TypeName: TypeAlias = Literal["Account", "Device", "Owns", "Follows"]


class StressedGraph(Protocol):
    """The verbs that the stress test needs; an open graph and a client of the coordinator have them."""

    def load(
        self, source: Any, *, mode: str, expected_versions: Mapping[str, int] | None, txn_id: str | None
    ) -> WriteResult: ...

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None,
        *,
        expected_versions: Mapping[str, int] | None,
        txn_id: str | None,
    ) -> WriteResult: ...

    def snapshot(self) -> Snapshot: ...

    def history(self) -> list[LineageEntry]: ...

    def recoveries(self) -> list[Recovery]: ...


# Rows


class _Node(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    name: str
    owner: str
    counter: int
    stamp: str

    @property
    def key(self) -> str:
        return self.name

    def record(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "data": msgspec.structs.asdict(self)}


class Account(_Node, frozen=True, tag=True, kw_only=True):
    pass


class Device(_Node, frozen=True, tag=True, kw_only=True):
    """A node that may have a slot, which is unique."""

    slot: int | None


class _Edge(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    src: str
    dst: str
    counter: int
    stamp: str

    def record(self) -> dict[str, Any]:
        data = {"counter": self.counter, "stamp": self.stamp}
        return {"edge": type(self).__name__, "from": self.src, "to": self.dst, "data": data}


class Owns(_Edge, frozen=True, tag=True, kw_only=True):
    """An edge with an id of its own; an account has at most a few of them."""

    id: str

    @property
    def key(self) -> str:
        return self.id

    def record(self) -> dict[str, Any]:
        return {**super().record(), "id": self.id}


class Follows(_Edge, frozen=True, tag=True, kw_only=True):
    """An edge that is identified by its ends; its id, which the graph mints, is ignored here."""

    @property
    def key(self) -> str:
        return f"{self.src}>{self.dst}"


Row: TypeAlias = Account | Device | Owns | Follows
ROW_TYPES: Mapping[TypeName, type[Row]] = {"Account": Account, "Device": Device, "Owns": Owns, "Follows": Follows}
TABLE_KEYS: Mapping[TypeName, str] = {
    "Account": "node:Account",
    "Device": "node:Device",
    "Owns": "edge:Owns",
    "Follows": "edge:Follows",
}
ENDS: Mapping[TypeName, Mapping[str, TypeName]] = {
    "Owns": {"src": "Account", "dst": "Device"},
    "Follows": {"src": "Account", "dst": "Account"},
}
"""The columns of each edge type that name a node, and the node's type."""


def type_of(row: Row) -> TypeName:
    match row:
        case Account():
            return "Account"
        case Device():
            return "Device"
        case Owns():
            return "Owns"
        case Follows():
            return "Follows"


def row_of(type: TypeName, columns: Mapping[str, Any]) -> Row:
    """The row of a table, from its columns."""
    kind = ROW_TYPES[type]
    return kind(**{name: columns[name] for name in kind.__struct_fields__})


def found_by(type: TypeName) -> str:
    """The column by which a read finds rows: the name of a node, the source of an edge."""
    return "src" if type in ENDS else "name"


# Writes


class Basis(msgspec.Struct, frozen=True):
    """The snapshot on which a strict write is based, and the versions that it expects."""

    commit_id: str
    versions: dict[str, int]


class _Write(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb"):
    txn_id: str
    basis: Basis | None = None

    @property
    def expected_versions(self) -> Mapping[str, int] | None:
        return None if self.basis is None else self.basis.versions


class Load(_Write, frozen=True, tag=True, kw_only=True):
    """Rows of any types in one load; a merge replaces rows with the same keys."""

    mode: Literal["append", "merge"]
    rows: tuple[Row, ...]

    @property
    def types(self) -> tuple[TypeName, ...]:
        return tuple(dict.fromkeys(type_of(row) for row in self.rows))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for row in self.rows for name in _names(row))

    def apply(self, graph: StressedGraph) -> WriteResult:
        records = [row.record() for row in self.rows]
        return graph.load(records, mode=self.mode, expected_versions=self.expected_versions, txn_id=self.txn_id)


class Register(_Write, frozen=True, tag=True, kw_only=True):
    """A mutation that inserts into three tables; nodes with the same keys are replaced, an equal edge is refused."""

    account: Account
    device: Device
    follows: Follows

    @property
    def rows(self) -> tuple[Row, ...]:
        return (self.account, self.device, self.follows)

    @property
    def types(self) -> tuple[TypeName, ...]:
        return ("Account", "Device", "Follows")

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.account.name, self.device.name, self.follows.dst))

    def apply(self, graph: StressedGraph) -> WriteResult:
        params = {
            "name": self.account.name,
            "device": self.device.name,
            "friend": self.follows.dst,
            "owner": self.account.owner,
            "slot": self.device.slot,
            "counter": self.account.counter,
            "stamp": self.txn_id,
        }
        return graph.mutate(REGISTER, params, expected_versions=self.expected_versions, txn_id=self.txn_id)


class Update(_Write, frozen=True, tag=True, kw_only=True):
    """Sets the counter and the stamp of the rows found by a name."""

    type: TypeName
    name: str
    counter: int

    @property
    def types(self) -> tuple[TypeName, ...]:
        return (self.type,)

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.name,))

    def apply(self, graph: StressedGraph) -> WriteResult:
        text = (
            "query touch($name: String, $counter: I64, $stamp: String) "
            f"{{ update {self.type} set {{ counter: $counter, stamp: $stamp }} where {_asked_by(self.type)} = $name }}"
        )
        params = {"name": self.name, "counter": self.counter, "stamp": self.txn_id}
        return graph.mutate(text, params, expected_versions=self.expected_versions, txn_id=self.txn_id)


class Delete(_Write, frozen=True, tag=True, kw_only=True):
    """Deletes the rows found by a name and, for a node, its edges."""

    type: TypeName
    name: str

    @property
    def types(self) -> tuple[TypeName, ...]:
        return (self.type, *(edge for edge, ends in ENDS.items() if self.type in ends.values()))

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.name,))

    def apply(self, graph: StressedGraph) -> WriteResult:
        text = f"query leave($name: String) {{ delete {self.type} where {_asked_by(self.type)} = $name }}"
        return graph.mutate(text, {"name": self.name}, expected_versions=self.expected_versions, txn_id=self.txn_id)


Write: TypeAlias = Load | Register | Update | Delete


def decided_on(write: Write, commit_id: str, versions: Mapping[str, int]) -> Write:
    """The same write made strict: it expects the versions of its tables in a snapshot."""
    named = {TABLE_KEYS[type]: versions[TABLE_KEYS[type]] for type in write.types}
    return msgspec.structs.replace(write, basis=Basis(commit_id, named))


def _asked_by(type: TypeName) -> str:
    return "from" if type in ENDS else "name"


def _names(row: Row) -> tuple[str, ...]:
    return (row.src, row.dst) if isinstance(row, Owns | Follows) else (row.name,)
