"""Reports races: a table of systems by writers, JSON, and a line of history for each run of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.measure import Section, milliseconds
from bench.peers.race import Run
from bench.peers.systems import EMBEDDED, OURS

OURS_ALL = (OURS, EMBEDDED)


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run of the benchmark."""

    started: str
    commit: str
    machine: str
    runs: tuple[Run, ...]
    sections: tuple[Section, ...]
    skipped: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        judged = [
            {**asdict(figure), "section": section.name, "verdict": figure.verdict}
            for section in self.sections
            for figure in section.figures
        ]
        about = {"started": self.started, "commit": self.commit, "machine": self.machine}
        return {**about, "skipped": self.skipped, "figures": judged, "runs": [asdict(run) for run in self.runs]}


def print_runs(console: Console, title: str, runs: Sequence[Run]) -> None:
    """Show the runs of one scenario, a row for each system and a column for each number of writers."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=True)
    counts = sorted({run.writers for run in runs})
    table.add_column("")
    for count in counts:
        table.add_column(f"N = {count}", justify="right")
    for system in dict.fromkeys(run.system for run in runs):
        cells = {run.writers: _cell(run) for run in runs if run.system == system}
        table.add_row(system, *(cells.get(count, "") for count in counts))
    console.print(escape(title), style="italic")
    console.print(table)


def print_processors(console: Console, runs: Sequence[Run]) -> None:
    """Show how the processor time of a commit divides over the processes of omniray and of the store."""
    for run in runs:
        if run.system in OURS_ALL and run.cpu_ms is not None:
            parts = sorted(run.cpu_ms_per_commit.items(), key=lambda part: -part[1])
            shown = ", ".join(f"{kind} {ms:.2f}" for kind, ms in parts)
            console.print(
                f"{run.system}, N = {run.writers}: {run.cpu_ms:.2f} ms of CPU per commit: {shown}", markup=False
            )


def _cell(run: Run) -> str:
    lines = [f"[bold]{run.commits_per_s:,.1f}/s[/]"]
    if run.p50_s is not None and run.p99_s is not None:
        lines.append(f"p50 {milliseconds(run.p50_s)}, p99 {milliseconds(run.p99_s)}")
    if run.requests_per_commit is not None:
        lines.append(f"{run.requests_per_commit:.2f} requests")
    if run.cpu_ms is not None:
        lines.append(f"{run.cpu_ms:.1f} ms of CPU")
    if run.writers > 1 and run.share_max is not None:
        lines.append(f"busiest {run.share_max:.1f} shares")
    faults = {"failed": run.failures, "lost": run.lost, "doubled": run.doubled, "torn": run.torn}
    lines += [f"[red]{count:,} {what}[/]" for what, count in faults.items() if count]
    return "\n".join(lines)


def write_report(path: Path, report: Report) -> None:
    """Write the report as JSON, for programs."""
    path.write_text(json.dumps(report.as_json(), indent=2) + "\n")


def append_history(path: Path, report: Report) -> None:
    """Append the report as a line to a JSONL file, which records the figures over time."""
    with path.open("a") as file:
        file.write(json.dumps(report.as_json()) + "\n")
