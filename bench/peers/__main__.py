"""Runs omniray and its peers, and prints each figure beside its target.

    python -m bench.peers [--only NAME,…] [--systems NAME,…] [--writers 1,4,16,32] [--seconds 10] [--quick]
                          [--rows N] [--json PATH] [--history PATH] [--plot PATH]

It always exits with 0: a noisy machine is no reason for a build to fail. Read the verdicts.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.measure import REPOSITORY, Section, print_section
from bench.peers.alone import FULL, QUICK, Sizes, flat, single
from bench.peers.crew import RunFailed, member
from bench.peers.fairness import fairness
from bench.peers.goals import figures
from bench.peers.race import Run, race
from bench.peers.report import Report, append_history, print_processors, print_runs, write_report
from bench.peers.rows import Workload
from bench.peers.scenarios import SCENARIOS, Scenario
from bench.peers.systems import NAMES, Place
from bench.plot import Panel, svg

BULK = "bulk"
ALONE = {"single": single, "flat": flat, "fairness": fairness}
PARTS = (*SCENARIOS, *ALONE, BULK)
WIDTH_MIN = 140


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run: full, or only to check that everything runs."""

    seconds: float = 10.0
    delay_ms: float = 20.0
    writers: tuple[int, ...] | None = None  # None: as in each scenario
    base_rows_max: int = 1_000_000
    alone: Sizes = FULL
    bulk_rows: int = 20_000_000


SMALL = Scale(seconds=1.0, delay_ms=1.0, writers=(2,), base_rows_max=1_000, alone=QUICK, bulk_rows=8_000)


class Bench:
    """A run of the benchmark; results are shown as they come."""

    def __init__(self, console: Console, systems: Sequence[str], scale: Scale) -> None:
        self._console, self._scale = console, scale
        self.skipped: list[str] = []
        self.runs: list[Run] = []
        self.sections: list[Section] = []
        self._systems = [system for system in systems if self._can_run(system)]

    def _can_run(self, system: str) -> bool:
        with member(system, Place(""), Workload()) as asked:
            try:
                reason = asked.ask(do="probe")["missing"]
            except RunFailed as error:
                reason = str(error)
        if reason:
            self._skip(f"{system} is left out: {reason}")
        return not reason

    def _skip(self, line: str) -> None:
        self.skipped.append(line)
        self._console.print(line, style="yellow", markup=False)

    def part(self, name: str) -> None:
        """Run one part; if it fails, say so and let the others run."""
        try:
            section = self._race_all(name, SCENARIOS[name]) if name in SCENARIOS else self._alone(name)
        except (RunFailed, subprocess.SubprocessError, OSError) as error:
            self._skip(f"{name} failed: {error}")
            return
        self.sections.append(section)
        print_section(self._console, section)

    def _alone(self, name: str) -> Section:
        if name == BULK:
            from bench.peers.bulk import bulk  # only this part needs Lance in this process

            return bulk(self._systems, self._scale.bulk_rows)
        return ALONE[name](self._systems, self._scale.alone, self._scale.delay_ms)

    def _race_all(self, name: str, scenario: Scenario) -> Section:
        runs = list(self._races(name, scenario))
        self.runs += runs
        print_runs(self._console, f"{name}: {scenario.title}", runs)
        print_processors(self._console, runs)
        where = "on a disk" if scenario.on_disk else f"S3 in memory, {self._scale.delay_ms:g} ms a request"
        how = (
            f"Batches of {scenario.work.rows} rows, every writer a process that writes as fast as it gets answers, "
            f"{self._scale.seconds:g} s, {where}. Writes that end later are waited for and count as latency, not as "
            "rate. Requests are all those from the start until the last writer has closed."
        )
        return Section(name, f"{name}: ours beside the others", how, figures(name, scenario.goals, self.runs))

    def _races(self, name: str, scenario: Scenario) -> Iterator[Run]:
        """The systems take turns at each number of writers, so that noise hits all of them alike."""
        work = replace(scenario.work, base_rows=min(scenario.work.base_rows, self._scale.base_rows_max))
        for writers in self._scale.writers or scenario.writers:
            for system in self._systems:
                if scenario.systems is not None and system not in scenario.systems:
                    continue
                try:
                    run = race(
                        name, system, work, writers=writers, seconds=self._scale.seconds,
                        delay_ms=self._scale.delay_ms, on_disk=scenario.on_disk,
                    )  # fmt: skip
                except (RunFailed, subprocess.SubprocessError) as error:
                    self._skip(f"{name}, {system}, N = {writers} failed: {error}")
                    continue
                self._console.print(f"{name}, {system}, N = {writers}: {run.commits_per_s:,.1f}/s", style="dim")
                yield run

    def report(self, started: datetime) -> Report:
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
        return Report(
            started.isoformat(timespec="seconds"), _commit(), machine,
            tuple(self.runs), tuple(self.sections), tuple(self.skipped),
        )  # fmt: skip


def _commit() -> str:
    """The commit of this checkout; empty where there is none."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()


def panels(runs: Sequence[Run]) -> list[Panel]:
    """A diagram for each scenario."""
    return [
        Panel(
            SCENARIOS[name].title.partition(";")[0],
            {
                system: [
                    (run.writers, run.commits_per_s) for run in runs if (run.scenario, run.system) == (name, system)
                ]
                for system in dict.fromkeys(run.system for run in runs)
            },
        )
        for name in dict.fromkeys(run.scenario for run in runs)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    scale = SMALL if args.quick else Scale()
    given = {"seconds": args.seconds, "writers": args.writers, "bulk_rows": args.rows}
    scale = replace(scale, **{name: value for name, value in given.items() if value is not None})
    console = Console()
    if console.width < WIDTH_MIN:
        console = Console(width=WIDTH_MIN)
    started = datetime.now(UTC)
    bench = Bench(console, args.systems, scale)
    for name in args.only:
        bench.part(name)
    report = bench.report(started)
    if args.json is not None:
        write_report(args.json, report)
    if args.history is not None:
        append_history(args.history, report)
    if args.plot is not None:
        args.plot.write_text(svg(panels(bench.runs)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Ours and its peers in one run.")
    parser.add_argument("--only", type=_names(PARTS), default=PARTS, metavar="NAME,…", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--systems", type=_names(NAMES), default=NAMES, metavar="NAME,…", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--writers", type=_counts, metavar="N,…", help="how many, in place of what each scenario says")
    parser.add_argument("--seconds", type=float, help="how long each race takes")
    parser.add_argument("--rows", type=int, help="how many rows the bulk load has")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs; its figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything there, too")
    parser.add_argument("--history", type=Path, metavar="PATH", help="append everything there, as one line of JSON")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the rates there, as SVG")
    return parser


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parsed(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}: choose of {', '.join(known)}")
        return tuple(name for name in known if name in names)

    return parsed


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(sorted({int(part) for part in text.split(",")}))
    if counts[0] < 1:
        raise argparse.ArgumentTypeError("give numbers of writers from 1 up")
    return counts


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that child processes are ended, too
    main()
