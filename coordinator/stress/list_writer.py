"""One writer of the workload over lists: carries out its transactions and records each."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from typing import Unpack

from omniray.coordinator.stress.list_workload import AppendAll, ReadAll, list_steps
from omniray.coordinator.stress.lists import append, read_lists
from omniray.coordinator.stress.operation import StressedGraph
from omniray.coordinator.stress.recorder import Recorder
from omniray.coordinator.stress.transactions import Append, Key, Read
from omniray.coordinator.stress.writer import Limits, within
from omniray.engine.base.errors import KeyConflict

TRIES = 8


def run_list_writer(
    graph: StressedGraph,
    *,
    seed: int,
    writer_no: int,
    history_path: str | os.PathLike[str],
    **limits: Unpack[Limits],
) -> None:
    """Append to the lists of a graph, and read them, within limits.

    Errors are recorded and don't end the writer. The replacement of a dead writer gets a new number and file.
    """
    with Recorder(history_path, writer_no) as recorder:
        writer = _Writer(graph)
        for step in within(list_steps(seed, writer_no), **limits):
            with contextlib.suppress(Exception), recorder.transaction(*step.ops) as recorded:
                match step:
                    case AppendAll(appends):
                        writer.append(appends)
                    case ReadAll(reads):
                        for read in writer.look(reads):
                            recorded.saw(read.key, read.values or ())


class _Writer:
    """Knows how long each list was when it last saw it, or appended to it."""

    def __init__(self, graph: StressedGraph) -> None:
        self._graph = graph
        self._lengths: Counter[Key] = Counter()

    def append(self, ops: Sequence[Append]) -> None:
        """Append; looks again each time that another writer was first, and raises the last conflict."""
        for left in reversed(range(TRIES)):
            try:
                append(self._graph, ops, self._lengths)
                break
            except KeyConflict:
                if not left:
                    raise
                self.look(ops)
        self._lengths.update(op.key for op in ops)

    def look(self, ops: Sequence[Append | Read]) -> tuple[Read, ...]:
        """The lists that operations name, all from one snapshot."""
        reads = read_lists(self._graph.snapshot(), (op.key for op in ops))
        for read in reads:
            self._lengths[read.key] = len(read.values or ())
        return reads
