"""Single-row writes to S3 with 20 ms a request: their time, their requests, and how many of those are sequential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.measure import Figure, Section, Target, compared, times
from bench.traffic import Observed, observe, observe_all
from bench.writers import BareWriter, OurWriter
from tests.kit.s3server import S3Server, running_server

DELAY_MS = 20.0
AMORTISED_WRITES = 64
FLUSHED_WRITES = 32  # so that the housekeeping of every eighth version is included
FEW = Target(14.9, unit=" requests")
ONE, THREE, EDGE, BARE = "one table", "three tables", "one edge", "bare append"


def remote(*, quick: bool) -> Section:
    """Write in turns with an append against a server in memory that delays every request."""
    count, amortised, delay_ms = (1, 4, 1) if quick else (25, AMORTISED_WRITES, DELAY_MS)
    with running_server() as server:
        bucket = server.create_bucket("bench")
        ours = OurWriter(f"{bucket}/graph", server.storage_options)
        bare = BareWriter(f"{bucket}/bare", server.storage_options)
        try:
            figures = _figures(server, ours, bare, delay_ms, count, amortised)
        finally:
            ours.close()
    return Section(
        "s3",
        f"One row on S3, {delay_ms:g} ms a request",
        f"{count} writes of each kind in turns, medians; Phase D of ours is waited for before the next turn, on "
        "nobody's time. The answer comes with that of the commit object's put. Depth is the longest chain of "
        "requests of which none overlaps the next.",
        tuple(figures),
    )


def _figures(
    server: S3Server, ours: OurWriter, bare: BareWriter, delay_ms: float, count: int, amortised: int
) -> list[Figure]:
    kinds = {ONE: ours.insert, THREE: ours.insert_three, EDGE: ours.insert_edge, BARE: bare.append}
    for write in kinds.values():
        write()  # the first of a kind opens its tables
    ours.graph.flush()
    server.set_delay(delay_ms)
    seen: dict[str, list[Observed]] = {kind: [] for kind in kinds}
    for _ in range(count):
        for kind, write in kinds.items():
            seen[kind].append(observe(server, write))
            ours.graph.flush()
    return [*_answers(seen), *_requests(seen), *_in_all(server, ours, amortised)]


def _answers(seen: Mapping[str, Sequence[Observed]]) -> list[Figure]:
    seconds = {kind: [one.seconds for one in observed] for kind, observed in seen.items()}
    return [
        compared(ONE, seconds[ONE], seconds[BARE], times(2)),
        compared(f"{THREE}, beside our {ONE}", seconds[THREE], seconds[ONE], times(1.1, 0.9)),
        compared(EDGE, seconds[EDGE], seconds[BARE], times(2)),
    ]


def _requests(seen: Mapping[str, Sequence[Observed]]) -> list[Figure]:
    requests = {kind: median(one.foreground.requests for one in observed) for kind, observed in seen.items()}
    depth = {kind: median(one.foreground.depth for one in observed) for kind, observed in seen.items()}
    counted = [
        Figure(f"requests until the answer, {kind}", f"{requests[kind]:g}", f"{requests[BARE]:g}", requests[kind], FEW)
        for kind in (ONE, THREE, EDGE)
    ]
    chained = [Figure(f"their depth, {kind}", f"{depth[kind]:g}", f"{depth[BARE]:g}") for kind in (ONE, THREE, EDGE)]
    return counted + chained


def _in_all(server: S3Server, ours: OurWriter, amortised: int) -> list[Figure]:
    per_write = observe_all(server, lambda: ours.insert_many(amortised)).requests / amortised
    flushed = observe_all(server, lambda: ours.insert_and_flush(FLUSHED_WRITES)).requests / FLUSHED_WRITES
    return [
        Figure(f"requests in all, one of {amortised} writes in a row", f"{per_write:.1f}", "", per_write, FEW),
        Figure("requests in all, a flush after each write", f"{flushed:.1f}", "", flushed, FEW),
    ]
