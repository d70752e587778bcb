"""What a write is, before and after it is resolved: the values between loads, mutations and the commit.

An intent says what somebody wants. Resolved against one pinned state it becomes exact: for each table the rows to add
and the rows they replace. It is resolved again whenever the line has moved under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from omniray.engine.mode import Mode
from omniray.engine.records import Rejection
from omniray.engine.state import PinnedState
from omniray.engine.tables import StagedRows
from omniray.engine.verdict import Verdict, Violation


@dataclass(frozen=True, slots=True)
class TableWrite:
    """What a resolved write does to one table; `replaced` has the `id` and `_rowaddr` of the pinned rows that go."""

    mode: Mode
    rows: pa.Table | StagedRows
    replaced: pa.Table


@dataclass(frozen=True, slots=True)
class Affected:
    """How many nodes and edges a write inserted, replaced or deleted."""

    nodes: int = 0
    edges: int = 0

    @classmethod
    def by(cls, verdict: Verdict) -> Affected:
        return cls(verdict.counts("node").affected, verdict.counts("edge").affected)


@dataclass(frozen=True, slots=True)
class Resolution:
    """An intent made exact on one state. With no tables it has no effect and nothing is committed.

    `read_strictly` are the tables whose rows the caller's decision depends on: if one of them moves, the write fails.
    """

    tables: Mapping[str, TableWrite]
    affected: Affected
    read_strictly: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did: its commit, or None where it had no effect."""

    commit_id: str | None
    affected_nodes: int
    affected_edges: int
    rejected: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Author:
    """For whom a write is made."""

    actor: str = ""
    tenant: str = ""


class Intent(Protocol):
    """A write that can be resolved as often as it takes."""

    @property
    def commit_id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def author(self) -> Author: ...

    @property
    def expected_versions(self) -> Mapping[str, int]: ...

    @property
    def strict(self) -> bool:
        """Whether it must see the newest state first, because it fails if what it read moves."""

    def resolve(self, state: PinnedState) -> Resolution: ...


def as_rejection(violation: Violation) -> Rejection:
    """A rule broken by a record of this write, as the record's rejection."""
    return Rejection(
        violation.source, violation.record or 0, violation.reason, violation.kind, violation.table_key, violation.key
    )
