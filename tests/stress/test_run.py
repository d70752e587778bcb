"""Writers that share a graph for real leave a history and a graph in which the checker finds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.coordinator.stress.checker import check
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import (
    Event,
    Failed,
    Invoked,
    Read,
    Succeeded,
    Unclear,
    Unread,
    merge_histories,
    read_history,
)
from omniray.coordinator.stress.operation import SCHEMA
from omniray.coordinator.stress.report import summarise
from omniray.coordinator.stress.violation import Rule
from omniray.coordinator.stress.writer import run_writer
from omniray.engine.base.errors import OutcomeUnknown, StorageError
from tests.stores import Root
from tests.stress.sharing import SEED, WRITERS, written_by_several

STEPS = 60

pytestmark = pytest.mark.xdist_group("stress")  # so that the run is made once


class Run:
    """What several writers did to a graph on a disk, some of them sharing a handle."""

    def __init__(self, folder: Path) -> None:
        with written_by_several(folder, SCHEMA, run_writer, STEPS) as graph:
            self.events = merge_histories(map(read_history, sorted(folder.glob("*.jsonl"))))
            self.final = FinalGraph.of(graph)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def test_writers_that_share_a_graph_break_no_rule(run: Run) -> None:
    assert check(run.events, run.final).violations == ()


def test_the_run_put_the_rules_to_the_test(run: Run) -> None:
    """A run without conflicts, reads and repetitions would prove nothing."""
    refused = Counter(event.kind for event in run.events if isinstance(event, Failed))
    assert refused.keys() >= {"key_conflict", "constraint"}
    assert any(isinstance(event, Read) and any(event.digests.values()) for event in run.events)
    assert any(isinstance(event, Succeeded) and event.repeated for event in run.events)
    assert any(isinstance(event, Invoked) and event.write.basis for event in run.events)


def test_the_report_of_a_real_run_adds_up(run: Run) -> None:
    report = summarise(run.events, run.final, check(run.events, run.final), seed=SEED)
    assert report.writers == WRITERS
    answered = sum(report.refusals.values()) + report.repeated + report.without_effect + report.commits
    assert (report.sent, report.unknown) == (answered, 0)
    assert report.groups is not None
    assert report.groups.max == 1  # the embedded engine commits one write at a time


def test_a_row_that_vanishes_from_a_real_run_is_found(run: Run) -> None:
    rows = dict(run.final.rows)
    rows["Account"] = rows["Account"][1:]
    doctored = FinalGraph(rows, run.final.lineage, run.final.recoveries)
    assert Rule.LOST_ROW in {violation.rule for violation in check(run.events, doctored).violations}


# One writer on a graph that misbehaves


class Trouble:
    """A graph whose verbs raise what a test wants, before they do anything or after they have."""

    def __init__(self, graph: omniray.Graph, error: BaseException, *, after: bool = False) -> None:
        self._graph, self._error, self._after = graph, error, after

    def load(self, *args: Any, **options: Any) -> Any:
        return self._raise(self._graph.load, args, options)

    def mutate(self, *args: Any, **options: Any) -> Any:
        return self._raise(self._graph.mutate, args, options)

    def snapshot(self) -> Any:
        if self._after:
            return self._graph.snapshot()  # there is nothing to be unsure about after a read
        raise self._error

    def _raise(self, verb: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        if self._after:
            with suppress(omniray.OmnirayError):
                verb(*args, **options)
        raise self._error


def history_of(graph: Any, folder: Path, *, ops: int = 8, **limits: Any) -> list[Event]:
    path = folder / "history.jsonl"
    run_writer(graph, seed=SEED, writer_no=0, history_path=path, ops=ops, **limits)
    return read_history(path)


@pytest.fixture
def graph(disk: Root) -> Any:
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        yield graph


def test_a_write_without_a_clear_answer_is_sent_once_more_with_its_id(graph: omniray.Graph, tmp_path: Path) -> None:
    events = history_of(Trouble(graph, OutcomeUnknown("?"), after=True), tmp_path, ops=4)
    sent = Counter(event.txn_id for event in events if isinstance(event, Invoked))
    assert set(sent.values()) == {2}
    assert sum(isinstance(event, Unclear) for event in events) == sent.total()
    assert check(events, FinalGraph.of(graph)).violations == ()


def test_an_error_of_the_store_goes_into_the_history_and_ends_nothing(graph: omniray.Graph, tmp_path: Path) -> None:
    events = history_of(Trouble(graph, StorageError("down")), tmp_path, ops=40)
    assert {type(event) for event in events} == {Invoked, Failed, Unread}
    assert check(events, FinalGraph.of(graph)).violations == ()


def test_an_exception_of_no_type_says_nothing_about_the_write_and_is_a_violation(
    graph: omniray.Graph, tmp_path: Path
) -> None:
    events = history_of(Trouble(graph, ValueError("a bug"), after=True), tmp_path, ops=4)
    assert {event.message for event in events if isinstance(event, Unclear)} == {"ValueError: a bug"}
    assert {v.rule for v in check(events, FinalGraph.of(graph)).violations} == {Rule.UNEXPECTED_ERROR}


def test_a_writer_stops_when_it_is_told_to(graph: omniray.Graph, tmp_path: Path) -> None:
    answers = iter((False, False, True))
    events = history_of(graph, tmp_path, stop=lambda: next(answers))
    assert len({event.txn_id for event in events if isinstance(event, Invoked)}) <= 2


def test_a_writer_stops_when_its_time_is_over(graph: omniray.Graph, tmp_path: Path) -> None:
    assert history_of(graph, tmp_path, seconds=0.0) == []


def test_a_killed_writer_leaves_what_it_was_about_to_do(graph: omniray.Graph, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    with pytest.raises(Killed):
        history_of(Trouble(graph, Killed(), after=True), tmp_path)
    events = read_history(tmp_path / "history.jsonl")
    assert isinstance(events[-1], Invoked)
    assert check(events, FinalGraph.of(graph)).violations == ()
