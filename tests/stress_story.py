"""A run of the stress test that never took place: told by a test, true at first, and then doctored by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from omniray.coordinator.stress.checker import check
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import Event, Failed, Invoked, Read, Succeeded, Unclear, merge_histories
from omniray.coordinator.stress.model import Affected, Model, digest_of
from omniray.coordinator.stress.operation import (
    ENDS,
    ROW_TYPES,
    TABLE_KEYS,
    Account,
    Basis,
    Delete,
    Device,
    Follows,
    Load,
    Owns,
    Row,
    Update,
    Write,
)
from omniray.coordinator.stress.violation import Rule, Verdict
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.line.commit_object import Recovery

BIRTH = "BIRTH"
ACCOUNTS = TABLE_KEYS["Account"]
RETRY = {
    "key_conflict": "never",
    "constraint": "never",
    "expected_version_mismatch": "after_refresh",
    "storage": "safe",
}


def account(name: str, stamp: str) -> Account:
    return Account(name=name, owner="w0", counter=1, stamp=stamp)


def device(name: str, stamp: str, slot: int | None = None) -> Device:
    return Device(name=name, owner="w0", slot=slot, counter=1, stamp=stamp)


def owns(id: str, source: str, target: str) -> Owns:
    return Owns(id=id, src=source, dst=target, counter=1, stamp=id)


def follows(source: str, target: str, stamp: str) -> Follows:
    return Follows(src=source, dst=target, counter=1, stamp=stamp)


def append(id: str, *rows: Row) -> Load:
    return Load(txn_id=id, mode="append", rows=rows)


def merge(id: str, *names: str, basis: Basis | None = None) -> Load:
    return Load(txn_id=id, mode="merge", rows=tuple(account(name, id) for name in names), basis=basis)


def touch(id: str, name: str) -> Update:
    return Update(txn_id=id, type="Account", name=name, counter=9)


def remove(id: str, name: str) -> Delete:
    return Delete(txn_id=id, type="Account", name=name)


@dataclass
class Story:
    """Events and the graph that they lead to. Whatever is told happens at once, one thing after the other."""

    events: list[Event] = field(default_factory=list)
    lineage: list[LineageEntry] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    model: Model = field(default_factory=Model)
    rows: dict[str, list[dict[str, Any]]] | None = None  # those of the model, unless a test has its own

    def __post_init__(self) -> None:
        self._enter(BIRTH, "Init", TABLE_KEYS.values(), Affected(0, 0), None)

    # Telling

    def commit(self, write: Write, writer: int = 0) -> None:
        self.invoke(write, writer)
        self.answer(write, self.land(write), writer)

    def land(self, write: Write, *, with_the_last: bool = False) -> Affected:
        """The write enters the line, in an object of its own or in that of the one before."""
        before = {type: dict(rows) for type, rows in self.model.tables.items()}
        affected = self.model.apply(write)
        changed = [TABLE_KEYS[type] for type, rows in self.model.tables.items() if rows != before[type]]
        self._enter(write.txn_id, "Load", changed, affected, self.lineage[-1] if with_the_last else None)
        return affected

    def invoke(self, write: Write, writer: int = 0) -> None:
        self.events.append(Invoked(at_ns=self.now, writer=writer, write=write))

    def answer(self, write: Write, affected: Affected, writer: int = 0, *, repeated: bool = False) -> None:
        self.events.append(
            Succeeded(
                at_ns=self.now, writer=writer, txn_id=write.txn_id, commit_id=write.txn_id, nodes=affected.nodes,
                edges=affected.edges, repeated=repeated,
            )
        )  # fmt: skip

    def repeat(self, write: Write) -> None:
        first = next(event for event in self.events if isinstance(event, Succeeded) and event.txn_id == write.txn_id)
        self.invoke(write)
        self.answer(write, Affected(first.nodes, first.edges), repeated=True)

    def refuse(self, write: Write, kind: str, writer: int = 0) -> None:
        self.invoke(write, writer)
        self.fail(write, kind, writer)

    def fail(self, write: Write, kind: str, writer: int = 0) -> None:
        retry = RETRY.get(kind, "never")
        self.events.append(
            Failed(at_ns=self.now, writer=writer, txn_id=write.txn_id, kind=kind, retry=retry, message="")
        )

    def find_nothing(self, write: Write) -> None:
        self.invoke(write)
        self.events.append(
            Succeeded(
                at_ns=self.now, writer=0, txn_id=write.txn_id, commit_id=None, nodes=0, edges=0, repeated=False
            )
        )  # fmt: skip

    def lose_sight(self, write: Write, kind: str = "outcome_unknown") -> None:
        self.invoke(write)
        self.events.append(Unclear(at_ns=self.now, writer=0, txn_id=write.txn_id, kind=kind, message=""))

    def look(self, *names: str) -> Read:
        began_ns = self.now
        digests = {
            type: {name: digest_of(rows) for name in names if (rows := self.model.found(type, name))}
            for type in ROW_TYPES
        }
        read = Read(
            at_ns=began_ns + 1, writer=0, began_ns=began_ns, commit_id=self.lineage[-1].commit_id, names=names,
            counts={type: len(rows) for type, rows in self.model.tables.items()}, digests=digests,
        )  # fmt: skip
        self.events.append(read)
        return read

    def basis(self) -> Basis:
        """A snapshot of now, of which somebody names the accounts' version."""
        moves = sum(ACCOUNTS in entry.tables for entry in self.lineage)
        return Basis(self.lineage[-1].commit_id, {ACCOUNTS: moves})

    def recover(self, operation_id: str, recovery_kind: str) -> None:
        self.recoveries.append(Recovery(operation_id, recovery_kind, "", "Load", {}, 0))

    @property
    def now(self) -> int:
        return self.events[-1].at_ns + 10 if self.events else 10

    def _enter(
        self, id: str, kind: str, tables: Iterable[str], affected: Affected, joined: LineageEntry | None
    ) -> None:
        last = self.lineage[-1] if self.lineage else None
        seq = 1 if last is None else last.seq + (joined is None)
        self.lineage.append(
            LineageEntry(
                commit_id=id, parent="" if last is None else last.commit_id, seq=seq, kind=kind, actor="", tenant="",
                at=datetime(2026, 1, 1, tzinfo=UTC), tables=tuple(tables), op_id=f"op-{seq}", payload_hash="",
                nodes=affected.nodes, edges=affected.edges, rejected=0,
            )
        )  # fmt: skip

    # Doctoring

    def forget_commit(self, id: str) -> None:
        """Take a commit out of the lineage without a trace."""
        kept = [entry for entry in self.lineage if entry.commit_id != id]
        self.lineage = self._chained(kept)

    def swap(self, first: str, second: str) -> None:
        """Let two commits change their places in the lineage."""
        place = {entry.commit_id: n for n, entry in enumerate(self.lineage)}
        a, b = place[first], place[second]
        entries = list(self.lineage)
        entries[a] = replace(self.lineage[b], seq=self.lineage[a].seq, op_id=self.lineage[a].op_id)
        entries[b] = replace(self.lineage[a], seq=self.lineage[b].seq, op_id=self.lineage[b].op_id)
        self.lineage = self._chained(entries)

    def change(self, old: Event, **changes: Any) -> None:
        self.events[self.events.index(old)] = msgspec.structs.replace(old, **changes)

    def last(self, kind: type[Any]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    def _chained(self, entries: list[LineageEntry]) -> list[LineageEntry]:
        parents = ["", *(entry.commit_id for entry in entries)]
        return [replace(entry, parent=parent) for entry, parent in zip(entries, parents, strict=False)]

    # Judging

    def scanned(self) -> dict[str, list[dict[str, Any]]]:
        """The rows as full scans find them; change them, and they stay so."""
        if self.rows is None:
            self.rows = {
                type: [
                    {"id": row.key if type in ENDS else row.name, **msgspec.structs.asdict(row)}  # type: ignore[union-attr]
                    for row in rows.values()
                ]
                for type, rows in self.model.tables.items()
            }
        return self.rows

    def final(self) -> FinalGraph:
        rows = {type: tuple(rows) for type, rows in self.scanned().items()}
        return FinalGraph(rows, tuple(self.lineage), tuple(self.recoveries))  # type: ignore[arg-type]

    def verdict(self) -> Verdict:
        return check(merge_histories([self.events]), self.final())

    def broken_rules(self) -> set[Rule]:
        return {violation.rule for violation in self.verdict().violations}
