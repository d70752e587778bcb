"""The engine's benchmark runs, and reports every figure; what the figures are is not for a test to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.engine import SECTIONS, main
from bench.measure import Figure, Target, in_turns, times
from bench.traffic import Traffic, until_commit
from tests.kit.s3server import LoggedRequest

FIGURES = {
    "branches": [
        "create a branch",
        "requests to create it",
        "their depth",
        "first write on it, beside one on main",
        "requests until its answer",
        "merge 1,000 rows that either side changed",
        "bytes that it reads, beside reading both versions",
        "fast-forward to 10,000 new rows",
        "bytes of data that it writes",
    ],
    "bulk": ["time", "processor time", "memory"],
    "single": [
        "mutate, insert one node",
        "load, one dict",
        "mutate, insert one edge",
        "one of 4 inserts in a row, Phase D included",
    ],
    "s3": [
        "one table",
        "three tables, beside our one table",
        "one edge",
        *(f"requests until the answer, {kind}" for kind in ("one table", "three tables", "one edge")),
        *(f"their depth, {kind}" for kind in ("one table", "three tables", "one edge")),
        "requests in all, one of 4 writes in a row",
        "requests in all, a flush after each write",
    ],
    "history": [
        *(
            f"S3, {commits} commits: {what}"
            for commits in (2, 6)
            for what in (
                "time",
                "requests until the answer",
                "bytes sent to S3 until the answer",
                "bytes read from S3 until the answer",
                "requests in all",
                "bytes sent to S3 in all",
                "bytes read from S3 in all",
                "fragments",
            )
        ),
        "disk, 2 commits: time",
        "disk, 6 commits: time",
    ],
    "lineage": [
        "memory of an owner's history",
        "size of __manifest's own manifest",
        *(
            f"S3, commit by an old id, {heat}: {what}"
            for heat in ("cold", "warm")
            for what in ("requests", "requests in sequence", "bytes read")
        ),
        *(
            f"{what}, {heat}"
            for what in (
                "commit by an old id",
                "commit by an id that there is not",
                "versions of an old number",
                "pins of an old number",
                "commit at an old time",
            )
            for heat in ("cold", "warm")
        ),
        "take-over: the window is filled",
        "a fold of 64 objects",
    ],
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_quick_run_prints_every_figure_with_its_target(
    section: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--only", section, "--json", str(tmp_path / "figures.json")])
    printed = capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [figure["what"] for figure in figures] == FIGURES[section]
    assert all(figure["what"] in printed for figure in figures)
    assert {figure["verdict"] for figure in figures} & {"met", "missed"}


def test_every_section_is_known_to_the_test_above() -> None:
    assert set(SECTIONS) == set(FIGURES)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (times(2.5), 2.5, "met"),
        (times(2.5), 2.51, "missed"),
        (times(1.1, 0.9), 0.89, "missed"),
        (times(1.1, 0.9), 1.0, "met"),
        (None, 9.0, ""),
    ],
)
def test_a_figure_is_judged_by_its_target(target: Target | None, value: float, verdict: str) -> None:
    assert Figure("", "", value=value, target=target).verdict == verdict


def test_whatever_is_compared_takes_turns() -> None:
    order: list[str] = []
    assert in_turns(2, lambda: order.append("ours"), lambda: order.append("bare")) == [[None] * 2] * 2
    assert order == ["ours", "bare"] * 2


def test_what_is_answered_after_the_commit_is_not_counted_before_the_answer() -> None:
    def request(method: str, target: str, end_s: float) -> LoggedRequest:
        return LoggedRequest(method, target, 200, end_s - 1, end_s, received_bytes=10, sent_bytes=1, conditional=False)

    data, commit = request("PUT", "/b/g/data/1", 1), request("PUT", "/b/g/__commits/01M/1.json", 2)
    name = request("PUT", "/b/g/_versions/1.manifest", 3)
    assert until_commit([data, commit, name]) == [data, commit]
    assert until_commit([data, name]) == [data, name]
    assert Traffic.of([data, commit, name]).per(3) == Traffic(1, 3, 10, 1)
