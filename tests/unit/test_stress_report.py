"""The report counts what happened and shows each violation with its seed and its lines of the history."""

from __future__ import annotations

import io
import json

import msgspec
from rich.console import Console

from omniray.coordinator.stress.history import NOBODY, Disturbed, Unread
from omniray.coordinator.stress.report import Report, show, summarise
from tests.stress_story import Story, account, append, merge, touch


def story() -> Story:
    story = Story()
    story.commit(append("ann", account("ann", "ann")))
    story.repeat(append("ann", account("ann", "ann")))
    story.refuse(append("ann-2", account("ann", "ann-2")), "key_conflict", writer=1)
    story.refuse(append("ann-3", account("ann", "ann-3")), "key_conflict", writer=1)
    story.refuse(merge("storage", "hot"), "storage")
    story.find_nothing(touch("nobody", "nobody"))
    story.lose_sight(merge("unseen", "hot"))
    story.invoke(merge("last words", "hot"), writer=2)
    first, second = merge("first", "hot"), merge("second", "hot")
    story.invoke(first)
    story.invoke(second, writer=1)
    done = story.land(first), story.land(second, with_the_last=True)
    story.answer(first, done[0])
    story.answer(second, done[1], writer=1)
    story.look("hot")
    story.events += [
        Unread(at_ns=story.now, writer=0, kind="storage", retry="safe", message=""),
        Disturbed(at_ns=story.now, writer=NOBODY, what="kill", target="publisher"),
        Disturbed(at_ns=1_000_000_010, writer=NOBODY, what="fault", target="s3"),
    ]
    story.recover("op-of-nobody", "RolledBack")
    return story


def report_of(story: Story, seed: int = 7) -> Report:
    return summarise(story.events, story.final(), story.verdict(), seed=seed)


def shown(report: Report) -> str:
    console = Console(width=120, file=io.StringIO())
    show(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_report_counts_what_happened() -> None:
    report = report_of(story())
    assert report.ok
    assert (report.writers, report.seconds, report.sent, report.commits) == (3, 1.0, 10, 3)
    assert (report.commits_per_s, report.without_effect, report.repeated, report.unknown) == (3.0, 1, 1, 2)
    assert report.refusals == {"key_conflict": 2, "storage": 1}
    assert (report.reads, report.failed_reads) == (1, {"storage": 1})
    assert (report.kills, report.faults, report.recoveries) == (1, 1, {"RolledBack": 1})


def test_a_group_is_what_shares_an_object_of_the_line() -> None:
    groups = report_of(story()).groups
    assert groups is not None
    assert (groups.mean, groups.max) == (1.5, 2)


def test_latencies_are_those_of_commits_and_not_of_repetitions() -> None:
    told = Story()
    for number in range(100):
        write = merge(f"{number}", "hot")
        told.invoke(write)
        told.answer(write, told.land(write))
        told.change(told.events[-1], at_ns=told.events[-2].at_ns + (number + 1) * 1_000_000)
    told.repeat(merge("0", "hot"))
    told.change(told.events[-1], at_ns=told.events[-2].at_ns + 10**12)
    latency = report_of(told).latency
    assert latency is not None
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms) == (50.0, 99.0, 100.0)


def test_a_run_in_which_nothing_happened_has_a_report() -> None:
    report = report_of(Story())
    assert (report.ok, report.latency, report.groups, report.commits_per_s) == (True, None, None, 0.0)
    assert "0 violations" in shown(report)


def test_a_report_is_plain_data_for_programs() -> None:
    document = json.loads(msgspec.json.encode(report_of(story()).as_json()))
    assert document["ok"] is True
    assert document["groups"] == {"mean": 1.5, "max": 2}
    assert document["violations"] == []


def test_a_violation_is_shown_with_its_seed_and_its_history() -> None:
    told = story()
    told.forget_commit("ann")
    report = report_of(told, seed=4711)
    text = shown(report)
    assert "violation lost_commit: ann was acknowledged and is not in the lineage" in text
    assert '    {"event":"invoke"' in text
    assert f"{len(report.violations)} violations; --seed 4711 tries it again" in text
    first = report.as_json()["violations"][0]
    assert (first["rule"], report.as_json()["ok"]) == ("lost_commit", False)
    assert json.loads(first["excerpt"][0])["event"] == "invoke"


def test_only_the_first_violations_are_shown_to_a_person() -> None:
    told = Story()
    for number in range(25):
        told.commit(merge(f"{number}", "hot"))
        told.forget_commit(f"{number}")
    assert "more violations are not shown; --json shows all" in shown(report_of(told))
    assert shown(report_of(told)).count("\nviolation ") <= 10
