"""The report of a benchmark: figures beside their targets, in a table for people and in JSON for programs.

The machine is never quiet, so compared values are measured in turns, and by medians.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

T = TypeVar("T")
RATIO = "x"
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Target:
    """The bounds of a figure: at most `limit`, and at least `least`."""

    limit: float
    least: float = 0.0
    unit: str = ""

    def __str__(self) -> str:
        low = f"{self.least:g} to " if self.least else "≤ "
        return f"{low}{self.limit:g}{self.unit}"

    def met_by(self, value: float) -> bool:
        return self.least <= value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report: its name, omniray's value, plain Lance's, and the value that the target judges."""

    what: str
    ours: str
    bare: str = ""
    value: float | None = None
    target: Target | None = None

    @property
    def verdict(self) -> str:
        """`met` or `missed`; empty without a target."""
        if self.target is None or self.value is None:
            return ""
        return "met" if self.target.met_by(self.value) else "missed"

    @property
    def shown_value(self) -> str:
        if self.value is None:
            return ""
        unit = RATIO if self.target is None else self.target.unit
        return f"{self.value:.2f}{unit}" if unit == RATIO else f"{self.value:.3g}{unit}"


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of one benchmark, and how they were measured."""

    name: str
    title: str
    how: str
    figures: tuple[Figure, ...]


def times(limit: float, least: float = 0.0) -> Target:
    """A target for a ratio."""
    return Target(limit, least, RATIO)


def compared(what: str, ours_s: Sequence[float], bare_s: Sequence[float], target: Target | None = None) -> Figure:
    """Times of omniray beside times of the other, measured in turns."""
    ours, bare = median(ours_s), median(bare_s)
    return Figure(what, milliseconds(ours), milliseconds(bare), ours / bare, target)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def kibibytes(count: float) -> str:
    return f"{count / 1024:,.1f} KiB"


def timed(action: Callable[[], object]) -> float:
    """How long an action takes, in seconds."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Spent:
    """The time that an action took: wall-clock time, and processor time over all cores."""

    seconds: float
    cpu_seconds: float


def spent(action: Callable[[], object]) -> Spent:
    """Measure an action's time in this process."""
    cpu_started = time.process_time()
    seconds = timed(action)
    return Spent(seconds, time.process_time() - cpu_started)


def in_turns(count: int, *actions: Callable[[], T]) -> list[list[T]]:
    """The results of each action, `count` times each, in turns so that noise affects all of them alike."""
    taken: list[list[T]] = [[] for _ in actions]
    for _ in range(count):
        for action, values in zip(actions, taken, strict=True):
            values.append(action())
    return taken


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module as a process of its own and read the JSON that it prints last."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def peak_memory_bytes() -> int:
    """The most memory this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` would include what the parent held when it started this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def print_section(console: Console, section: Section) -> None:
    """Show a section as a table, with verdicts."""
    table = Table(title=escape(section.title), caption=escape(section.how), box=box.SIMPLE_HEAD, title_justify="left")
    table.caption_justify = "left"
    for name in ("", "ours", "bare", "figure", "target", "verdict"):
        table.add_column(name, justify="left" if not name else "right")
    for figure in section.figures:
        colour = {"met": "green", "missed": "red"}.get(figure.verdict, "default")
        target = "" if figure.target is None else str(figure.target)
        cells = (figure.what, figure.ours, figure.bare, figure.shown_value, target)
        table.add_row(*(escape(cell) for cell in cells), f"[{colour}]{figure.verdict}[/]")
    console.print(table)


def write_json(path: Path, sections: Iterable[Section]) -> None:
    """Write all figures with their verdicts, for programs."""
    report = [
        {**asdict(figure), "section": section.name, "verdict": figure.verdict}
        for section in sections
        for figure in section.figures
    ]
    path.write_text(json.dumps(report, indent=2) + "\n")
