"""Branches: what it costs to create one, to write to one, and to merge one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa

import omniray
from bench.measure import Figure, Section, Target, compared, milliseconds, timed, times
from bench.traffic import Observed, Traffic, observe
from tests.kit.s3server import S3Server, running_server

DELAY_MS = 20.0
TABLES = 100
CHANGED = 1_000
DIMENSIONS = 64
DEPTH = Target(2, unit=" in a row")
SAME_REQUESTS = Target(1, least=-1, unit=" more")
FIVE_TIMES_LESS = times(0.2)
ONE_ROW = "query add($name: String) { insert T0 { name: $name, number: 1 } }"


def branches(*, quick: bool) -> Section:
    """Create branches of a graph with many tables, write to them beside main, and merge into a large table."""
    count, tables, rows, delay_ms = (2, 3, 10_000, 1.0) if quick else (15, TABLES, 1_000_000, DELAY_MS)
    with running_server() as server:
        bucket = server.create_bucket("bench")
        figures = [
            *_creating(server, f"{bucket}/many", tables, count, delay_ms),
            *_merging(server, f"{bucket}/large", rows),
        ]
    return Section(
        "branches",
        f"Branches on S3, {delay_ms:g} ms a request",
        f"{count} branches of a graph with {tables} tables, medians; each is written to once, in turns with main. "
        f"Phase D is waited for on nobody's time. Merges of a branch of {rows:,} rows are made without delay.",
        tuple(figures),
    )


def _creating(server: S3Server, uri: str, tables: int, count: int, delay_ms: float) -> Iterator[Figure]:
    schema = "".join(f"node T{number} {{ name: String @key   number: I32? }}\n" for number in range(tables))
    with omniray.init(uri, schema=schema, storage_options=server.storage_options) as graph:
        _insert(graph, "first", "main")
        graph.flush()
        with _delayed(server, delay_ms):
            made, on_branch, on_main = _in_turns(server, graph, count)
    yield Figure("create a branch", milliseconds(median(one.seconds for one in made)))
    yield _requests("requests to create it", made)
    depth = median(one.foreground.depth for one in made)
    yield Figure("their depth", f"{depth:g}", "", depth, DEPTH)
    yield compared(
        "first write on it, beside one on main",
        [one.seconds for one in on_branch],
        [one.seconds for one in on_main],
        times(1.1),
    )
    first, usual = (median(one.foreground.requests for one in seen) for seen in (on_branch, on_main))
    yield Figure("requests until its answer", f"{first:g}", f"{usual:g}", first - usual, SAME_REQUESTS)


def _in_turns(
    server: S3Server, graph: omniray.Graph, count: int
) -> tuple[list[Observed], list[Observed], list[Observed]]:
    made, on_branch, on_main = [], [], []
    for number in range(count):
        name = f"b{number}"
        made.append(_whole(server, partial(graph.create_branch, name)))
        graph.flush()
        graph.snapshot(branch=name)  # opens the handle, as main's is
        on_branch.append(observe(server, partial(_insert, graph, f"x{number}", name)))
        graph.flush()
        on_main.append(observe(server, partial(_insert, graph, f"y{number}", "main")))
        graph.flush()
    return made, on_branch, on_main


def _whole(server: S3Server, action: Callable[[], object]) -> Observed:
    """All requests of an action."""
    server.reset()
    seconds = timed(action)
    return Observed(seconds, Traffic.of(server.requests()))


def _requests(what: str, seen: Sequence[Observed]) -> Figure:
    return Figure(what, f"{median(one.foreground.requests for one in seen):g}")


def _insert(graph: omniray.Graph, name: str, branch: str) -> None:
    graph.mutate(ONE_ROW, {"name": name}, branch=branch)


def _merging(server: S3Server, uri: str, rows: int) -> Iterator[Figure]:
    schema = f"node T0 {{ name: String @key   number: I64?   note: String?   place: Vector({DIMENSIONS})? }}\n"
    with omniray.init(uri, schema=schema, storage_options=server.storage_options) as graph:
        graph.load(_rows(range(rows), 0), type="T0")
        graph.create_branch("changed")
        graph.load(_rows(range(0, rows, rows // CHANGED), 1), type="T0", mode="merge", branch="changed")
        graph.load(_rows(range(1, rows, rows // CHANGED), 2), type="T0", mode="merge")
        graph.flush()
        merged = _whole(server, lambda: graph.merge("changed"))
        both = _whole(server, lambda: [graph.snapshot(branch=name).table("T0") for name in ("main", "changed")])
        yield Figure(
            f"merge {CHANGED:,} rows that either side changed", milliseconds(merged.seconds), milliseconds(both.seconds)
        )
        share = merged.foreground.sent_bytes / both.foreground.sent_bytes
        ours, whole = (f"{one.foreground.sent_bytes / 2**20:,.1f} MiB" for one in (merged, both))
        yield Figure("bytes that it reads, beside reading both versions", ours, whole, share, FIVE_TIMES_LESS)
        graph.create_branch("grown")
        graph.load(_rows(range(rows, 2 * rows), 0), type="T0", branch="grown")
        graph.flush()
        taken = _whole(server, lambda: graph.merge("grown"))
        data = [r.received_bytes for r in server.requests() if r.method == "PUT" and "/data/" in r.target]
        yield Figure(f"fast-forward to {rows:,} new rows", milliseconds(taken.seconds))
        yield Figure("bytes of data that it writes", f"{sum(data)}", "", float(sum(data)), Target(0, unit=" bytes"))


def _rows(numbers: range, edition: int) -> pa.Table:
    ids = pa.array(numbers)
    names = pa.array([f"name-{number:09}" for number in numbers])
    notes = pa.array([f"note {edition} of {number}" for number in numbers])
    floats = np.random.default_rng(edition).random(len(numbers) * DIMENSIONS, np.float32)
    places = pa.FixedSizeListArray.from_arrays(pa.array(floats), DIMENSIONS)
    return pa.table({"name": names, "number": ids, "note": notes, "place": places})


@contextmanager
def _delayed(server: S3Server, delay_ms: float) -> Iterator[None]:
    server.set_delay(delay_ms)
    try:
        yield
    finally:
        server.set_delay(0)
