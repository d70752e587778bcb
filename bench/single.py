"""Single-row writes on a disk, beside a one-row append to an open dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Figure, Section, compared, in_turns, timed, times
from bench.writers import BareWriter, OurWriter

AT_MOST = times(5)
BURST = 64


def single(*, quick: bool) -> Section:
    """Time single writes, each in turns with an append; then bursts, including their Phase D."""
    count, bursts = (2, 1) if quick else (200, 7)
    burst = 4 if quick else BURST
    with TemporaryDirectory(prefix="omniray-bench-") as directory:
        ours, bare = OurWriter(str(Path(directory, "graph"))), BareWriter(str(Path(directory, "bare")))
        try:
            figures = (*_one_by_one(ours, bare, count), *_in_bursts(ours, bare, bursts, burst))
        finally:
            ours.close()
    return Section(
        "single",
        "One row on a disk",
        f"{count} writes of each kind in turns, medians; Phase D of ours is waited for before bare's turn, on nobody's "
        f"time. Then {bursts} bursts of {burst} writes, with Phase D, per write.",
        figures,
    )


def _one_by_one(ours: OurWriter, bare: BareWriter, count: int) -> list[Figure]:
    def alone(write: Callable[[], None]) -> float:
        seconds = timed(write)
        ours.graph.flush()
        return seconds

    inserts, loads, edges, appends = in_turns(
        count,
        lambda: alone(ours.insert),
        lambda: alone(ours.load),
        lambda: alone(ours.insert_edge),
        lambda: timed(bare.append),
    )
    return [
        compared("mutate, insert one node", inserts, appends, AT_MOST),
        compared("load, one dict", loads, appends, AT_MOST),
        compared("mutate, insert one edge", edges, appends, AT_MOST),
    ]


def _in_bursts(ours: OurWriter, bare: BareWriter, bursts: int, burst: int) -> list[Figure]:
    inserts, appends = in_turns(
        bursts,
        lambda: timed(lambda: ours.insert_many(burst)) / burst,
        lambda: timed(lambda: bare.append_many(burst)) / burst,
    )
    return [compared(f"one of {burst} inserts in a row, Phase D included", inserts, appends, AT_MOST)]
