"""What a write is, before and after it is resolved: the values between loads, mutations and the commit.

An intent says what somebody wants. Resolved against one pinned state it becomes exact: for each table the rows to add
and the rows they replace. It is resolved again whenever the line has moved under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from omniray.engine.base.errors import StorageError
from omniray.engine.base.principal import Author
from omniray.engine.judge.pinned import State
from omniray.engine.judge.verdict import Verdict, Violation
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import Rejection
from omniray.engine.tables.storage import StagedRows


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
    `rejected` counts the records that are set aside, here and while they were read; `unfit` are those of here.
    """

    tables: Mapping[str, TableWrite]
    affected: Affected
    read_strictly: frozenset[str] = frozenset()
    rejected: int = 0
    unfit: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did: its commit, or None where it had no effect.

    `repeated` says that its id had been committed before: nothing was applied now, and all else is of the first time.
    """

    commit_id: str | None
    affected_nodes: int
    affected_edges: int
    rejected: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a write: whether it was committed, as the commit of the same id."""

    txn_id: str
    committed: bool

    @property
    def commit_id(self) -> str | None:
        return self.txn_id if self.committed else None


class Intent(Protocol):
    """A write that can be resolved as often as it takes."""

    @property
    def commit_id(self) -> str: ...

    @property
    def resubmittable(self) -> bool:
        """Whether the caller gave the id, so that it may have been committed before."""

    @property
    def payload_hash(self) -> str:
        """What it says, to be compared with the first time; empty if it is not resubmittable."""

    @property
    def kind(self) -> str: ...

    @property
    def author(self) -> Author: ...

    @property
    def expected_versions(self) -> Mapping[str, int]: ...

    @property
    def strict(self) -> bool:
        """Whether it must see the newest state first, because it fails if what it read moves."""

    def resolve(self, state: State) -> Resolution: ...


def as_rejection(violation: Violation) -> Rejection:
    """A rule broken by a record of this write, as the record's rejection."""
    return Rejection(
        violation.source, violation.record or 0, violation.reason, violation.kind, violation.table_key, violation.key
    )


def refuse_swept(tables: Mapping[str, TableWrite], base: CommitObject) -> None:
    """Refuse data files that a sweep may have deleted, because they were staged before the time it swept by."""
    for table_key, write in tables.items():
        if isinstance(write.rows, StagedRows) and write.rows.staged_since_us < base.swept_before_us:
            raise StorageError(
                f"{table_key}: the data files of this load may have been swept meanwhile, and nothing was written: "
                "load again, and let 'omniray cleanup --older-than' be longer than the longest load",
                table_key=table_key,
            )
