"""One writer of the stress test: carries out the steps of its workload and records each in its history."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict, TypeVar, Unpack

import pyarrow.compute as pc

from omniray.coordinator.stress.history import (
    Failed,
    HistoryFile,
    Invoked,
    Outcome,
    Read,
    Succeeded,
    Unclear,
    Unread,
    named,
    text_of,
)
from omniray.coordinator.stress.model import digest_of
from omniray.coordinator.stress.operation import (
    ROW_TYPES,
    StressedGraph,
    TypeName,
    Write,
    decided_on,
    found_by,
    row_of,
)
from omniray.coordinator.stress.workload import Look, Submit, steps
from omniray.engine.reading.snapshot import Snapshot

NS_PER_S = 1_000_000_000

Step = TypeVar("Step")


class Limits(TypedDict, total=False):
    """When a writer ends: after `ops` steps or `seconds`, or if `stop` returns true, whichever comes first."""

    ops: int
    seconds: float
    stop: Callable[[], bool]


def run_writer(
    graph: StressedGraph,
    *,
    seed: int,
    writer_no: int,
    history_path: str | os.PathLike[str],
    **limits: Unpack[Limits],
) -> None:
    """Work on a graph within limits.

    Errors of the graph are recorded and don't end the writer. The replacement of a dead writer gets a new number and
    file: with the old number it would append the old keys.
    """
    with HistoryFile(history_path) as history:
        writer = _Writer(graph, writer_no, history)
        for step in within(steps(seed, writer_no, _now_ms), **limits):
            match step:
                case Submit(write, strictly=True):
                    writer.submit_strictly(write)
                case Submit(write):
                    writer.submit(write)
                case Look(names):
                    writer.look(names)


def within(
    steps: Iterable[Step],
    *,
    ops: int | None = None,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """The steps, as far as the limits allow."""
    ends_ns = None if seconds is None else time.monotonic_ns() + int(seconds * NS_PER_S)
    for step in itertools.islice(steps, ops):
        if stop() or (ends_ns is not None and time.monotonic_ns() >= ends_ns):
            return
        yield step


class _Writer:
    def __init__(self, graph: StressedGraph, number: int, history: HistoryFile) -> None:
        self._graph, self._number, self._history = graph, number, history

    def submit(self, write: Write) -> None:
        """Send a write; if its outcome is unknown, send it once more with the same id, as a caller would."""
        if isinstance(self._send(write), Unclear):
            self._send(write)

    def submit_strictly(self, write: Write) -> None:
        """Send a write that expects the versions of a new snapshot; none is sent if the snapshot can't be read."""
        snapshot = self.look(tuple(sorted(write.names)))
        if snapshot is not None:
            self.submit(decided_on(write, snapshot.commit_id, snapshot.versions))

    def look(self, names: tuple[str, ...]) -> Snapshot | None:
        """Read the rows found by the names, all from one snapshot."""
        began_ns = time.monotonic_ns()
        try:
            snapshot = self._graph.snapshot()
            digests = {type: _digests(snapshot, type, names) for type in ROW_TYPES}
        except Exception as error:
            kind, retry = named(error)
            self._history.append(
                Unread(at_ns=time.monotonic_ns(), writer=self._number, kind=kind, retry=retry, message=text_of(error))
            )
            return None
        self._history.append(
            Read(
                at_ns=time.monotonic_ns(),
                writer=self._number,
                began_ns=began_ns,
                commit_id=snapshot.commit_id,
                names=names,
                counts={type: snapshot.count(type) for type in ROW_TYPES},
                digests=digests,
            )
        )
        return snapshot

    def _send(self, write: Write) -> Outcome:
        self._history.append(Invoked(at_ns=time.monotonic_ns(), writer=self._number, write=write))
        outcome = self._outcome(write)
        self._history.append(outcome)
        return outcome

    def _outcome(self, write: Write) -> Outcome:
        """The outcome of a write; after an error of an unknown type it is unclear."""
        try:
            result = write.apply(self._graph)
        except Exception as error:
            at_ns, (kind, retry) = time.monotonic_ns(), named(error)
            if retry == "unknown":
                return Unclear(at_ns=at_ns, writer=self._number, txn_id=write.txn_id, kind=kind, message=text_of(error))
            return Failed(
                at_ns=at_ns, writer=self._number, txn_id=write.txn_id, kind=kind, retry=retry, message=text_of(error)
            )
        return Succeeded(
            at_ns=time.monotonic_ns(),
            writer=self._number,
            txn_id=write.txn_id,
            commit_id=result.commit_id,
            nodes=result.affected_nodes,
            edges=result.affected_edges,
            repeated=result.repeated,
        )


def _digests(snapshot: Snapshot, type: TypeName, names: tuple[str, ...]) -> dict[str, str]:
    """A digest of the rows found by each name; names without rows are left out."""
    column = found_by(type)
    rows = snapshot.table(type, filter=pc.field(column).isin(list(names))).to_pylist()
    found = {name: [row_of(type, row) for row in rows if row[column] == name] for name in names}
    return {name: digest_of(rows) for name, rows in found.items() if rows}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
