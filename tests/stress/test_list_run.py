"""Writers that share lists for real leave a history in which the checker finds nothing, and which it can judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import omniray
from omniray.coordinator.stress.edn import edn_lines
from omniray.coordinator.stress.history import HistoryFile
from omniray.coordinator.stress.list_checker import check_lists
from omniray.coordinator.stress.list_writer import TRIES, run_list_writer
from omniray.coordinator.stress.lists import SCHEMA
from omniray.coordinator.stress.report import Report
from omniray.coordinator.stress.transactions import Append, Event, read_transactions
from omniray.coordinator.stress.violation import ListRule
from omniray.coordinator.stress.workloads import CHAOS, PARTS, Workload, list_events
from omniray.engine.base.errors import KeyConflict, OutcomeUnknown
from tests.edn import read_edn
from tests.stores import Root
from tests.stress.sharing import SEED, WRITERS, written_by_several

STEPS = 40

pytestmark = pytest.mark.xdist_group("stress")  # so that the run is made once


class Run:
    """What several writers did to lists on a disk, some of them sharing a handle."""

    def __init__(self, folder: Path) -> None:
        with written_by_several(folder, SCHEMA, run_list_writer, STEPS) as graph:
            HistoryFile(folder / CHAOS).__exit__(None, None, None)
            self.report: Report = PARTS[Workload.LIST_APPEND].judge(folder, graph, SEED)
        self.events = list_events(folder)
        lines = (folder / "writer-0000.jsonl").read_bytes()
        self.acknowledged = PARTS[Workload.LIST_APPEND].acknowledged(lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def landed(events: Sequence[Event]) -> list[Append]:
    return [append for event in events if event.event == "ok" for append in event.appends]


def test_writers_that_share_lists_break_no_rule(run: Run) -> None:
    assert run.report.violations == ()


def test_the_report_of_a_real_run_adds_up(run: Run) -> None:
    report = run.report
    assert report.writers == WRITERS
    assert report.sent == report.commits + sum(report.refusals.values()) + report.unknown
    assert report.sent + report.reads == WRITERS * STEPS
    assert (report.failed_reads, report.unknown) == ({}, 0)


def test_writes_are_counted_while_they_run_and_reads_are_not(run: Run) -> None:
    acknowledged = [event for event in run.events if event.writer == 0 and event.event == "ok" and event.appends]
    assert run.acknowledged == len(acknowledged) > 0


def test_the_last_read_shows_all_that_was_acknowledged(run: Run) -> None:
    last = run.events[-1]
    shown = {Append(read.key, value) for read in last.reads for value in read.values or ()}
    assert set(landed(run.events)) == shown


def test_an_append_that_vanishes_from_the_last_read_is_found(run: Run) -> None:
    *others, last = run.events
    reads = tuple(msgspec.structs.replace(read, values=(read.values or ())[:-1]) for read in last.reads)
    doctored = check_lists([*others, msgspec.structs.replace(last, ops=reads)])
    assert {violation.rule for violation in doctored.violations} & {ListRule.LOST_APPEND, ListRule.STALE_READ}


def test_the_exported_history_is_whole(run: Run) -> None:
    lines = [read_edn(line) for line in edn_lines(run.events)]
    assert [line["index"] for line in lines] == list(range(2 * WRITERS * STEPS + 2))
    assert (lines[-1]["process"], lines[-1]["type"]) == (WRITERS, "ok")


# One writer on a graph that misbehaves


@pytest.fixture
def graph(disk: Root) -> Any:
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        yield graph


class Trouble:
    """A graph whose loads raise an error, each time or before they succeed."""

    def __init__(self, graph: omniray.Graph, error: Exception, times: int) -> None:
        self._graph, self._error, self.times = graph, error, times

    def snapshot(self) -> Any:
        return self._graph.snapshot()

    def load(self, *arguments: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise self._error
        return self._graph.load(*arguments, **options)


def ends(graph: Any, path: Path, ops: int) -> list[str]:
    run_list_writer(graph, seed=SEED, writer_no=0, history_path=path, ops=ops)
    return [event.event for event in read_transactions(path) if event.event != "invoke" and event.appends]


def test_an_append_that_conflicts_is_tried_behind_the_other_one_a_few_times(graph: Any, tmp_path: Path) -> None:
    conflict = KeyConflict("node:EvenItem", "x")
    one_too_few = Trouble(graph, conflict, TRIES - 1)
    assert "fail" not in ends(one_too_few, tmp_path / "0.jsonl", ops=8)
    assert one_too_few.times == 0
    assert set(ends(Trouble(graph, conflict, 1000), tmp_path / "1.jsonl", ops=8)) == {"fail"}


def test_an_append_without_a_clear_answer_is_not_sent_again(graph: Any, tmp_path: Path) -> None:
    trouble = Trouble(graph, OutcomeUnknown("?"), 1)
    told = ends(trouble, tmp_path / "0.jsonl", ops=8)
    assert (told[0], told.count("info")) == ("info", 1)
