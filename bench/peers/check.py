"""Checks a run by a full scan: every acknowledged row must be there once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers.rows import Workload, keys, own_keys

BatchName = tuple[int, int]  # the writer, and the place in its sequence


@dataclass(frozen=True, slots=True)
class Findings:
    """The numbers of acknowledged rows that are lost, of duplicate ids, and of failed batches that are partly there."""

    lost: int
    doubled: int
    torn: int


def judge(
    work: Workload,
    found: Mapping[str, Sequence[str]],
    acknowledged: Iterable[BatchName],
    failed: Iterable[BatchName],
) -> Findings:
    """Compare the ids that a scan found in each table with the answers to the writers."""
    distinct = {table: set(ids) for table, ids in found.items()}
    expected = {key for writer, sequence in acknowledged for key in keys(work, writer, sequence)}
    return Findings(
        lost=sum(len(expected - ids) for ids in distinct.values()),
        doubled=sum(len(ids) - len(distinct[table]) for table, ids in found.items()),
        torn=sum(_is_torn(set(own_keys(work, *name)), distinct) for name in failed),
    )


def _is_torn(own: set[str], distinct: Mapping[str, set[str]]) -> bool:
    parts = {len(own & ids) for ids in distinct.values()}
    return parts not in ({0}, {len(own)})
