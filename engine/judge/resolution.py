"""A write before and after it is resolved: the values between loads, mutations and the commit.

An intent is a requested write. Resolved against one pinned state it becomes exact: for each table the rows to add and
the rows they replace. It is resolved again whenever the line has moved.
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
    """A resolved write of one table; `replaced` has the `id` and `_rowaddr` of the pinned rows to remove."""

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
    """An intent resolved on one state. Without tables it has no effect, and nothing is committed.

    `read_strictly` are the tables whose rows the write depends on: if one of them moves, the write fails. `rejected`
    counts the records rejected by the judgement or during reading; `unfit` are those rejected by the judgement.
    """

    tables: Mapping[str, TableWrite]
    affected: Affected
    read_strictly: frozenset[str] = frozenset()
    rejected: int = 0
    unfit: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: its commit, or None if it had no effect.

    `repeated` says that its id had been committed before: nothing was applied now, and the result is the first one.
    """

    commit_id: str | None
    affected_nodes: int
    affected_edges: int
    rejected: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a write was committed, as the commit of the same id."""

    txn_id: str
    committed: bool

    @property
    def commit_id(self) -> str | None:
        return self.txn_id if self.committed else None


class Intent(Protocol):
    """A write that can be resolved any number of times."""

    @property
    def commit_id(self) -> str: ...

    @property
    def resubmittable(self) -> bool:
        """Whether the caller gave the id, so that it may have been committed before."""

    @property
    def payload_hash(self) -> str:
        """The hash of its content, compared with the first write of the same id; empty if not resubmittable."""

    @property
    def kind(self) -> str: ...

    @property
    def author(self) -> Author: ...

    @property
    def message(self) -> str:
        """What its author says about it."""

    @property
    def expected_versions(self) -> Mapping[str, int]: ...

    @property
    def strict(self) -> bool:
        """Whether it must first read the newest state, because it fails if a table that it read moves."""

    def resolve(self, state: State) -> Resolution: ...


def as_rejection(violation: Violation) -> Rejection:
    """A violation by a record of this write, as its rejection."""
    return Rejection(
        violation.source, violation.record or 0, violation.reason, violation.kind, violation.table_key, violation.key
    )


def refuse_swept(tables: Mapping[str, TableWrite], base: CommitObject) -> None:
    """Refuse data files that a sweep may have deleted, because they were staged before its `swept_before`."""
    for table_key, write in tables.items():
        if isinstance(write.rows, StagedRows) and write.rows.staged_since_us < base.swept_before_us:
            raise StorageError(
                f"{table_key}: the data files of this load may have been swept meanwhile, and nothing was written: "
                "load again, and let 'omniray cleanup --older-than' be longer than the longest load",
                table_key=table_key,
            )
