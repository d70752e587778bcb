"""The cost of a write as the history grows: after 10, 1,000 and 5,000 commits, on S3 and on a disk.

A table's tail is rewritten until it holds 1,024 rows, and so is the lineage's newest fragment; old versions are moved
away 8 at a time. So the cost of a write rises and falls, and two points can be compared only if all of these are
equally full. They are at 10 commits and at any multiple of 1,024 more: hence 1,034 and 5,130.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

from bench.measure import Figure, Section, Target, in_turns, kibibytes, milliseconds, timed, times
from bench.traffic import Observed, Traffic, observe, observe_all
from bench.writers import BareWriter, OurWriter
from tests.kit.s3server import S3Server, running_server

FOLD_COMMITS = 64
FLAT = times(1.1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of the histories, the timed writes at each point, and the writes in a row that are counted."""

    points: tuple[int, ...]
    timed: int
    in_a_row: int
    delay_ms: float


FULL = Sizes(points=(10, 10 + 1024, 10 + 5 * 1024), timed=32, in_a_row=FOLD_COMMITS, delay_ms=20)
QUICK = Sizes(points=(2, 6), timed=1, in_a_row=2, delay_ms=1)


@dataclass(slots=True)
class Subject:
    """A growing graph, the bare dataset that grows beside it, and their number of commits."""

    ours: OurWriter
    bare: BareWriter
    commits: int = 1

    def grow(self, commits: int) -> None:
        """Write up to a number of commits, flushing at the same numbers in every graph."""
        first = FULL.points[0]
        while self.commits < commits:
            step = min(commits - self.commits, FOLD_COMMITS - (self.commits - first) % FOLD_COMMITS)
            self.ours.insert_many(step)
            self.commits += step
        self.bare.append_many(commits - self.bare.fragments)


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements at one length of the history; `fresh` is a graph that has just reached the first length."""

    commits: int
    ours: Sequence[Observed]
    fresh: Sequence[Observed]
    bare: Sequence[Observed]
    in_a_row: Traffic
    our_fragments: int
    bare_fragments: int


def history(*, quick: bool) -> Section:
    """Let a graph grow, and measure it at each point in turns with a fresh graph."""
    sizes = QUICK if quick else FULL
    with running_server() as server, TemporaryDirectory(prefix="omniray-bench-") as directory:
        figures = (*_on_s3(server, sizes), *_on_disk(Path(directory), sizes))
    return Section(
        "history",
        f"One row after {', '.join(f'{n:,}' for n in sizes.points)} commits; on S3 {sizes.delay_ms:g} ms a request",
        f"{sizes.timed} writes in turns with a fresh graph of {sizes.points[0]} commits and with bare appends, medians,"
        f" Phase D waited for on nobody's time; then {sizes.in_a_row} in a row and a flush, all requests and bytes "
        "counted. All points are equally full: the ends of table and lineage hold as many rows as at the first. The "
        "figure of a time is ours beside the fresh graph, of anything else beside our first point.",
        figures,
    )


def _on_s3(server: S3Server, sizes: Sizes) -> list[Figure]:
    bucket, options = server.create_bucket("bench"), server.storage_options
    subject = Subject(OurWriter(f"{bucket}/graph", options), BareWriter(f"{bucket}/bare", options))
    points = []
    for commits in sizes.points:
        subject.grow(commits)
        fresh = OurWriter(f"{bucket}/fresh-{commits}", options)
        fresh.insert_many(sizes.points[0] - 1)
        server.set_delay(sizes.delay_ms)
        points.append(_measured(server, subject, fresh, sizes))
        server.set_delay(0)
        fresh.close()
    subject.ours.close()
    first = points[0]
    return [figure for point in points for figure in _s3_figures(point, first)]


def _measured(server: S3Server, subject: Subject, fresh: OurWriter, sizes: Sizes) -> Point:
    def seen(write: Callable[[], None]) -> Observed:
        observed = observe(server, write)
        subject.ours.graph.flush()
        fresh.graph.flush()
        return observed

    commits = subject.commits
    ours, beside, bare = in_turns(
        sizes.timed,
        lambda: seen(subject.ours.insert),
        lambda: seen(fresh.insert),
        lambda: seen(subject.bare.append),
    )
    in_a_row = observe_all(server, lambda: subject.ours.insert_many(sizes.in_a_row))
    subject.commits += sizes.timed + sizes.in_a_row
    fragments = subject.ours.fragments, subject.bare.fragments
    return Point(commits, ours, beside, bare, in_a_row.per(sizes.in_a_row), *fragments)


def _s3_figures(point: Point, first: Point) -> list[Figure]:
    at = f"S3, {point.commits:,} commits"
    flat = None if point is first else FLAT

    def counted(what: str, shown: Callable[[float], str], of: Callable[[Traffic], float]) -> Figure:
        ours, bare, then = (mean(of(o.foreground) for o in seen) for seen in (point.ours, point.bare, first.ours))
        return Figure(f"{at}: {what} until the answer", shown(ours), shown(bare), ours / then, flat)

    def in_all(what: str, shown: Callable[[float], str], of: Callable[[Traffic], float]) -> Figure:
        ours, then = of(point.in_a_row), of(first.in_a_row)
        return Figure(f"{at}: {what} in all", shown(ours), "", ours / then, flat)

    return [
        _beside_fresh(f"{at}: time", _seconds(point.ours), _seconds(point.fresh), _seconds(point.bare), flat),
        counted("requests", _number, lambda t: t.requests),
        counted("bytes sent to S3", kibibytes, lambda t: t.received_bytes),
        counted("bytes read from S3", kibibytes, lambda t: t.sent_bytes),
        in_all("requests", _number, lambda t: t.requests),
        in_all("bytes sent to S3", kibibytes, lambda t: t.received_bytes),
        in_all("bytes read from S3", kibibytes, lambda t: t.sent_bytes),
        Figure(f"{at}: fragments", f"{point.our_fragments:,}", f"{point.bare_fragments:,}"),
    ]


def _seconds(seen: Sequence[Observed]) -> list[float]:
    return [one.seconds for one in seen]


def _beside_fresh(
    what: str, ours_s: Sequence[float], fresh_s: Sequence[float], bare_s: Sequence[float], target: Target | None
) -> Figure:
    """A time of the grown graph, judged beside the fresh graph's; the bare dataset's is shown for contrast."""
    ours = median(ours_s)
    return Figure(what, milliseconds(ours), milliseconds(median(bare_s)), ours / median(fresh_s), target)


def _number(value: float) -> str:
    return f"{value:.1f}"


def _on_disk(directory: Path, sizes: Sizes) -> list[Figure]:
    subject = Subject(OurWriter(str(directory / "graph")), BareWriter(str(directory / "bare")))
    figures = []
    for commits in sizes.points:
        subject.grow(commits)
        fresh = OurWriter(str(directory / f"fresh-{commits}"))
        fresh.insert_many(sizes.points[0] - 1)

        ours_s, fresh_s, bare_s = in_turns(
            sizes.timed,
            partial(_settled, subject.ours),
            partial(_settled, fresh),
            partial(timed, subject.bare.append),
        )
        subject.commits += sizes.timed
        fresh.close()
        flat = FLAT if commits != sizes.points[0] else None
        figures.append(_beside_fresh(f"disk, {commits:,} commits: time", ours_s, fresh_s, bare_s, flat))
    subject.ours.close()
    return figures


def _settled(writer: OurWriter) -> float:
    seconds = timed(writer.insert)
    writer.graph.flush()
    return seconds
