"""The values of a branch's history: its commits, and what each object of its line introduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from omniray.engine.line.commit_object import Commit, CommitObject, MergedParent, Pin

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """One commit of the history."""

    commit_id: str
    parent: str
    seq: int
    kind: str
    actor: str
    tenant: str
    at: datetime
    tables: tuple[str, ...]
    op_id: str
    payload_hash: str
    nodes: int
    edges: int
    rejected: int
    message: str = ""
    merged: tuple[MergedParent, ...] = ()
    outcome: str = ""


class CommitId(NamedTuple):
    """A commit by its id, with the number and the time of its object."""

    commit_id: str
    seq: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one object of the line introduced: its commits, oldest first, and versions of tables."""

    seq: int
    commit_ids: tuple[str, ...]
    pins: Mapping[str, Pin]


def entries_of(obj: CommitObject, parent: str) -> Iterator[LineageEntry]:
    """An object's commits as lineage, oldest first; `parent` is the head of the object before."""
    for commit in obj.commits:
        yield _lineage(commit, parent, obj)
        parent = commit.commit_id


def _lineage(commit: Commit, parent: str, obj: CommitObject) -> LineageEntry:
    return LineageEntry(
        commit_id=commit.commit_id,
        parent=parent,
        seq=obj.seq,
        kind=commit.kind,
        actor=commit.actor,
        tenant=commit.tenant,
        at=time_of(commit.at_us),
        tables=commit.tables,
        op_id=obj.op_id,
        payload_hash=commit.payload_hash,
        nodes=commit.nodes,
        edges=commit.edges,
        rejected=commit.rejected,
        message=commit.message,
        merged=commit.merged,
        outcome=commit.outcome,
    )


def us_of(at: datetime) -> int:
    """A time as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def time_of(since_epoch_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=since_epoch_us)
