"""One writer alone: its latency, and whether the latency stays the same as the history grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from bench.measure import Figure, Section, compared, in_turns, times
from bench.peers.crew import Member, RunFailed, member
from bench.peers.race import Store, fresh_store
from bench.peers.rows import Workload
from bench.peers.systems import EMBEDDED, OURS, PYLANCE, serving

GROWN_AT_ONCE = 64  # commits in one command, so that its answer does not take long
FLAT = times(1.1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of timed writes of each system, the lengths of the two histories, and of each race.

    The newest fragments of table and lineage are rewritten until they hold 1,024 rows, so the two lengths differ by a
    multiple of that: only then are both equally full.
    """

    timed: int
    young: int
    old: int
    seconds: float


FULL = Sizes(timed=32, young=100, old=100 + 5 * 1024, seconds=10.0)
QUICK = Sizes(timed=2, young=2, old=4, seconds=0.5)


def single(systems: Sequence[str], sizes: Sizes, delay_ms: float) -> Section:
    """Let one writer of each system write in turns."""
    if PYLANCE not in systems:
        raise RunFailed(f"it compares with {PYLANCE}, which is not among the systems")
    with fresh_store(on_disk=False) as store, ExitStack() as stack:
        writers = {system: stack.enter_context(_alone(store, system, system, Workload())) for system in systems}
        store.set_delay(delay_ms)
        taken = in_turns(sizes.timed, *(_write_of(writer) for writer in writers.values()))
        store.set_delay(0)
    seconds = dict(zip(writers, taken, strict=True))
    figures = [
        compared(
            f"{system} beside {PYLANCE}", seconds[system], seconds[PYLANCE], times(1.7) if system == OURS else None
        )
        for system in systems
        if system != PYLANCE
    ]
    return Section(
        "single",
        f"One writer, batches of {Workload().rows} rows, {delay_ms:g} ms a request",
        f"{sizes.timed} writes of each in turns, each in a process of its own; medians.",
        tuple(figures),
    )


def flat(systems: Sequence[str], sizes: Sizes, delay_ms: float) -> Section:
    """Make one graph with a long history and one with a short history, then write to both in turns."""
    system = ours_among(systems)
    with fresh_store(on_disk=False) as store, ExitStack() as stack:
        lengths = {"old": sizes.old, "young": sizes.young}
        writers = [stack.enter_context(_alone(store, system, name, Workload(rows=1))) for name in lengths]
        for writer, commits in zip(writers, lengths.values(), strict=True):
            _grow(writer, commits - 1)  # the warm-up was the first commit
        store.set_delay(delay_ms)
        store.forget_requests()
        old_s, young_s = in_turns(sizes.timed, *(_write_of(writer) for writer in writers))
        requests = [_requests_under(store, name) / sizes.timed for name in lengths]
        store.set_delay(0)
    return Section(
        "flat",
        f"Commit {sizes.old:,} beside commit {sizes.young:,} of {system}, one row each, {delay_ms:g} ms a request",
        f"{sizes.timed} writes to each graph in turns, medians; all requests of both are counted, those behind the "
        "answers too.",
        (
            compared("time", old_s, young_s, FLAT),
            Figure("requests", f"{requests[0]:.1f}", f"{requests[1]:.1f}", requests[0] / requests[1], FLAT),
        ),
    )


def ours_among(systems: Sequence[str]) -> str:
    """The name of the coordinator's system, or else of the embedded engine's."""
    found = next((system for system in (OURS, EMBEDDED) if system in systems), None)
    if found is None:
        raise RunFailed(f"it measures ours, yet neither {OURS} nor {EMBEDDED} is among the systems")
    return found


@contextmanager
def _alone(store: Store, system: str, name: str, work: Workload) -> Iterator[Member]:
    """A connected, warmed-up writer with tables of its own."""
    place = store.place(name)
    with ExitStack() as stack:
        with member(system, place, work) as preparing:
            preparing.ask(do="prepare")
        stack.enter_context(serving(system, place))
        writer = stack.enter_context(member(system, place, work))
        writer.ask(do="open")
        yield writer
        writer.ask(do="close")


def _write_of(writer: Member) -> Callable[[], float]:
    def write() -> float:
        (latency_s,) = writer.ask(do="write", count=1)["latencies_s"]
        return float(latency_s)

    return write


def _grow(writer: Member, commits: int) -> None:
    for done in range(0, commits, GROWN_AT_ONCE):
        writer.ask(do="write", count=min(GROWN_AT_ONCE, commits - done))


def _requests_under(store: Store, name: str) -> int:
    """The number of requests to one graph: its name is in the path of objects and in the query of listings."""
    assert store.server is not None
    targets = [unquote(request.target) for request in store.server.requests()]
    return sum(f"/{name}/" in target or f"prefix={name}" in target for target in targets)
