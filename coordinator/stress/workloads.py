"""The workloads that the stress test can run: what is written, by whom, and how a run is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Unpack

from omniray.coordinator.stress import lists, operation
from omniray.coordinator.stress.checker import check
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import NOBODY, merge_histories, read_history
from omniray.coordinator.stress.list_checker import check_lists, unexpected_errors
from omniray.coordinator.stress.list_report import summarise_lists
from omniray.coordinator.stress.list_writer import run_list_writer
from omniray.coordinator.stress.lists import all_lists
from omniray.coordinator.stress.operation import StressedGraph
from omniray.coordinator.stress.recorder import Recorder
from omniray.coordinator.stress.report import Report, summarise
from omniray.coordinator.stress.transactions import Event, Read, read_transactions
from omniray.coordinator.stress.violation import Verdict
from omniray.coordinator.stress.writer import Limits, run_writer

CHAOS = "chaos.jsonl"
LAST_READ = "last-read.jsonl"
WRITERS = "writer-*.jsonl"


class Workload(StrEnum):
    """What the writers of a run do."""

    GRAPH = "graph"
    LIST_APPEND = "list-append"


class RunWriter(Protocol):
    """Works on a graph within limits and records it; the number tells the writers of a run apart."""

    def __call__(
        self,
        graph: StressedGraph,
        *,
        seed: int,
        writer_no: int,
        history_path: Path,
        **limits: Unpack[Limits],
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a workload. `judge` reads the histories of a folder and the graph after the run."""

    schema: str
    run_writer: RunWriter
    acknowledged: Callable[[bytes], int]
    judge: Callable[[Path, StressedGraph, int], Report]


def list_events(folder: Path) -> list[Event]:
    """What the writers over lists recorded, and the last read."""
    paths = [*sorted(folder.glob(WRITERS)), folder / LAST_READ]
    return [event for path in paths for event in read_transactions(path)]


def _judge_graph(folder: Path, graph: StressedGraph, seed: int) -> Report:
    final = FinalGraph.of(graph)
    events = merge_histories(map(read_history, sorted(folder.glob("*.jsonl"))))
    return summarise(events, final, check(events, final), seed=seed)


def _judge_lists(folder: Path, graph: StressedGraph, seed: int) -> Report:
    """Read all lists once more as a writer of its own, so that no acknowledged append is left without a read."""
    recorded = [event for path in folder.glob(WRITERS) for event in read_transactions(path)]
    keys = {append.key for event in recorded for append in event.appends} | all_lists(graph.snapshot()).keys()
    with Recorder(folder / LAST_READ, 1 + max((event.writer for event in recorded), default=NOBODY)) as recorder:
        if keys:
            with recorder.transaction(*map(Read, sorted(keys, key=int))) as last:
                found = all_lists(graph.snapshot())
                for key in keys:
                    last.saw(key, found.get(key, ()))
    events = list_events(folder)
    chaos = read_history(folder / CHAOS)
    verdict = Verdict((*check_lists(events).violations, *unexpected_errors(events)))
    return summarise_lists(events, chaos, FinalGraph.of(graph, types=()), verdict, seed=seed)


def _graph_answers(lines: bytes) -> int:
    return lines.count(b'"event":"ok"')


def _list_answers(lines: bytes) -> int:
    """Transactions that appended something: reads don't count as writes."""
    return sum(b'"event":"ok"' in line and b'["append",' in line for line in lines.splitlines())


PARTS: Mapping[Workload, Parts] = {
    Workload.GRAPH: Parts(operation.SCHEMA, run_writer, _graph_answers, _judge_graph),
    Workload.LIST_APPEND: Parts(lists.SCHEMA, run_list_writer, _list_answers, _judge_lists),
}
