"""The comparison with the peers runs, and its figures say what happened; what they are is not for a test to say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.peers.__main__ import main, panels
from bench.peers.check import Findings, judge
from bench.peers.crew import RunFailed, member
from bench.peers.goals import AtLeast, Bounded, Faster, figures, times_at_least
from bench.peers.memory import PeakMemory, family
from bench.peers.race import STUCK, Run, largest_share, percentile, summary
from bench.peers.rows import Workload, batch, keys, own_keys
from bench.peers.systems import Place
from bench.plot import Axis, Panel, svg

CLEAN = Findings(lost=0, doubled=0, torn=0)


def run(system: str, writers: int, rate: float, *, scenario: str = "same-table", requests: float = 4.0) -> Run:
    return Run(
        scenario, system, writers, seconds=10, commits=round(rate * 10), commits_per_s=rate, p50_s=0.1, p99_s=0.2,
        failures=0, requests_per_commit=requests, share_max=1.0, lost=0, doubled=0, torn=0,
    )  # fmt: skip


def test_a_quick_race_of_two_systems_on_a_disk_reports_what_they_did_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, history, plot = tmp_path / "report.json", tmp_path / "history.jsonl", tmp_path / "rates.svg"
    files = ["--json", str(report), "--history", str(history), "--plot", str(plot)]
    main(["--quick", "--only", "disk", "--systems", "pylance,embedded", *files])
    told = json.loads(report.read_text())
    assert told["skipped"] == []
    assert [(one["system"], one["writers"]) for one in told["runs"]] == [("embedded", 2), ("pylance", 2)]
    for one in told["runs"]:
        assert one["commits"] > 0
        assert (one["lost"], one["doubled"], one["torn"], one["failures"]) == (0, 0, 0, 0)
    assert "N = 2: rate, embedded beside pylance" in capsys.readouterr().out
    assert [json.loads(line) for line in history.read_text().splitlines()] == [told]
    ElementTree.fromstring(plot.read_text())


def test_a_system_that_cannot_run_is_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BENCH_DUCKLAKE_CATALOG", raising=False)
    main(["--quick", "--only", "disk", "--systems", "ducklake", "--json", str(tmp_path / "report.json")])
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["runs"] == []
    assert told["skipped"] == ["ducklake is left out: BENCH_DUCKLAKE_CATALOG names no PostgreSQL database"]
    assert told["skipped"][0] in capsys.readouterr().out


def test_a_process_that_fails_says_why_and_one_that_is_silent_is_killed(tmp_path: Path) -> None:
    nowhere = Place(str(tmp_path / "nothing"))
    with member("pylance", nowhere, Workload()) as one:
        with pytest.raises(RunFailed, match="was not found"):
            one.ask(do="open")
        with pytest.raises(RunFailed, match="gave no answer within 0 s"):
            one.heard(timeout_s=0.01)
        assert one.process.wait() < 0


def test_a_batch_has_its_hot_its_shared_and_its_own_keys() -> None:
    work = Workload(merge=True, hot=50, shared=5, base_rows=1_000)
    first, second, stranger = (set(keys(work, writer, 7)) for writer in (0, 1, 2))
    assert {len(first), len(second), len(stranger)} == {100}
    assert len(first & second) == 55
    assert len(first & stranger) == 50
    assert first.isdisjoint(own_keys(work, 0, 8))
    rows = batch(work, 0, 7).rows
    assert (rows.num_rows, rows.num_columns) == (100, 5)
    assert set(rows.column("id").to_pylist()) == first


def test_a_workload_survives_its_way_into_a_process() -> None:
    work = Workload(tables=("Person", "Author"), merge=True, hot=3)
    assert Workload.from_json(json.loads(json.dumps(work.as_json()))) == work


def test_a_scan_tells_lost_and_doubled_rows() -> None:
    work = Workload(rows=2)
    one, other = keys(work, 0, 1)
    acknowledged = [(0, 1)]
    assert judge(work, {"Person": [one, other]}, acknowledged, []) == CLEAN
    assert judge(work, {"Person": [other]}, acknowledged, []) == Findings(lost=1, doubled=0, torn=0)
    assert judge(work, {"Person": [one, other, one]}, acknowledged, []) == Findings(lost=0, doubled=1, torn=0)


def test_a_failed_batch_is_torn_if_some_tables_have_it_and_others_do_not() -> None:
    work = Workload(tables=("Person", "Author"), rows=2)
    there = keys(work, 3, 1)
    assert judge(work, {"Person": there, "Author": []}, [], [(3, 1)]).torn == 1
    assert judge(work, {"Person": there, "Author": there[:1]}, [], [(3, 1)]).torn == 1
    assert judge(work, {"Person": there, "Author": there}, [], [(3, 1)]).torn == 0
    assert judge(work, {"Person": [], "Author": []}, [], [(3, 1)]).torn == 0


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0, 1.0, 2.0], 50, 2.0), ([3.0, 1.0, 2.0], 99, 3.0), ([1.0, 2.0], 50, 1.0), ([5.0], 0, 5.0), ([], 50, None)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_the_busiest_writer_is_measured_in_fair_shares() -> None:
    assert largest_share([10, 10]) == 1.0
    assert largest_share([80, 10, 10, 0]) == 3.2
    assert largest_share([0, 0]) is None


def test_a_commit_after_the_end_counts_as_latency_and_not_as_rate() -> None:
    seen = {"latencies_s": [1.0, 9.0], "ends_s": [1.0, 10.5], "errors": {"OSError": 2}}
    summed = summary("same-table", "pylance", 10, [seen, None], 8, CLEAN)
    assert (summed.writers, summed.commits, summed.commits_per_s, summed.p99_s) == (2, 2, 0.1, 9.0)
    assert summed.requests_per_commit == 4
    assert (summed.failures, summed.errors) == (3, {"OSError": 2, STUCK: 1})


def test_a_goal_is_judged_at_its_own_number_of_writers_alone() -> None:
    goals = (Faster("pylance", 32, times_at_least(15)), Bounded("p99", 32, lambda one: one.p99_s, AtLeast(0.1)))
    runs = [run("omniray", 32, 180.0), run("pylance", 32, 12.0), run("omniray", 64, 200.0), run("pylance", 64, 12.0)]
    assert [figure.verdict for figure in figures("same-table", goals, runs)] == ["met", "met"]
    few = [run("omniray", 4, 1.0), run("pylance", 4, 12.0)]
    assert [figure.verdict for figure in figures("same-table", goals, few)] == ["", ""]
    slow = [run("omniray", 32, 179.0), run("pylance", 32, 12.0)]
    assert figures("same-table", goals, slow)[0].verdict == "missed"


def test_a_goal_whose_peer_did_not_run_gives_no_figure() -> None:
    assert figures("same-table", (Faster("ducklake", 32, times_at_least(3)),), [run("omniray", 32, 1.0)]) == ()
    assert figures("same-table", (Faster("pylance", 32, times_at_least(3)),), [run("pylance", 32, 1.0)]) == ()


def test_ours_is_compared_with_itself_in_another_scenario() -> None:
    runs = [run("omniray", 32, 200.0), run("omniray", 32, 190.0, scenario="three-tables")]
    (figure,) = figures("three-tables", (Faster(None, 32, times_at_least(0.8), scenario="same-table"),), runs)
    assert figure.value == 0.95
    assert str(figure.target) == "≥ 0.8x"


def test_an_axis_is_logarithmic() -> None:
    axis = Axis(1, 100, start=200, end=0)
    assert [axis.at(value) for value in (1, 10, 100)] == [200, 100, 0]


def test_the_plot_has_a_panel_for_each_scenario_and_a_line_for_each_system() -> None:
    runs = [run(system, n, rate) for system, rate in (("omniray", 200.0), ("pylance", 12.0)) for n in (1, 32)]
    drawn = svg(panels([*runs, run("pylance", 1, 100.0, scenario="disk")]))
    names = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()]
    assert names.count("g") == 2
    assert names.count("polyline") == 4
    assert "prefers-color-scheme: dark" in drawn


def test_a_panel_without_commits_is_drawn_empty() -> None:
    assert "<polyline" not in svg([Panel("none", {"pylance": [(1, 0.0)]})])


def test_the_memory_of_this_process_is_seen() -> None:
    assert os.getpid() in family(os.getpid())
    with PeakMemory() as memory:
        pass
    assert memory.peak_bytes > 1 << 20
