"""The cost of a long history beside a short one: an owner's memory and take-over, look-ups of old commits, a fold.

Both are made of synthetic objects without tables, folded in large batches, merged and indexed as Phase D does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import Figure, Section, Target, compared, in_fresh_process, in_turns, kibibytes, timed, times
from bench.synthetic_line import BRANCH, Grown, at_us, commit_id
from bench.traffic import Traffic, observe_all
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.manifest_reader import MAIN_PATH
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.versions import VersionReader
from tests.kit.s3server import S3Server, running_server

FLAT = times(1.2)
FOLD_OBJECTS = 64
DELAY_MS = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of the two histories, and how often each figure is timed."""

    short: int
    long: int
    timed: int


FULL = Sizes(10_000, 1_000_000, 60)
QUICK = Sizes(2_000, 20_000, 3)


def lineage(*, quick: bool) -> Section:
    """Make both histories, and measure them in turns."""
    sizes = QUICK if quick else FULL
    with TemporaryDirectory(prefix="omniray-bench-") as directory, running_server() as server:
        short, long = (_grown(Path(directory) / str(commits), commits) for commits in (sizes.short, sizes.long))
        figures = (
            *_sizes(short, long),
            *_requests(server, short, long),
            *_times(short, long, sizes.timed),
        )
    return Section(
        "lineage",
        f"A history of {sizes.long:,} commits beside one of {sizes.short:,}, in the column of the bare library",
        f"One commit an object, two rows each. Times are medians of {sizes.timed} in turns, on disk. Cold is a handle "
        "of its own for every look-up; old ids are any of the history. Requests are those of an in-memory S3 with "
        f"{DELAY_MS:g} ms a request.",
        figures,
    )


def _grown(directory: Path, commits: int) -> Grown:
    directory.mkdir()
    grown = Grown(DirectoryStore(directory))
    grown.grow(commits)
    return grown


def _sizes(short: Grown, long: Grown) -> list[Figure]:
    memory = [in_fresh_process("bench.lineage_owner", one.store.uri)["growth_bytes"] for one in (long, short)]
    manifests = [len(one.store.get(_newest_manifest(one.store)) or b"") for one in (long, short)]
    return [
        _beside("memory of an owner's history", kibibytes, memory, FLAT),
        _beside("size of __manifest's own manifest", kibibytes, manifests),
    ]


def _times(short: Grown, long: Grown, count: int) -> list[Figure]:
    def figure(what: str, timer: Callable[[Grown], Callable[[], float]]) -> Figure:
        long_s, short_s = in_turns(count, timer(long), timer(short))
        return compared(what, long_s, short_s, FLAT)

    asked = [
        figure(f"{what}, {'cold' if cold else 'warm'}", partial(_asking, ask, cold))
        for what, ask in _questions(random.Random(1)).items()
        for cold in (True, False)
    ]
    taking_over = figure("take-over: the window is filled", lambda one: lambda: timed(partial(_take_over, one)))
    folding = figure(f"a fold of {FOLD_OBJECTS} objects", lambda one: lambda: timed(partial(one.fold, FOLD_OBJECTS)))
    return [*asked, taking_over, folding]


def _take_over(grown: Grown) -> RecentCommits:
    log, manifest = CommitLog(grown.store, BRANCH), Manifest(grown.store, BRANCH)
    return RecentCommits(Lineage(log, manifest, lambda: grown.newest), grown.newest)


def _questions(rng: random.Random) -> dict[str, Callable[[Manifest, int], object]]:
    """The look-ups in a history, by name."""

    def time_of(newest: int) -> datetime:
        return datetime.fromtimestamp(at_us(rng.randrange(1, newest)) / 1e6, UTC)

    return {
        "commit by an old id": lambda manifest, newest: manifest.commit(commit_id(rng.randrange(1, newest))),
        "commit by an id that there is not": lambda manifest, newest: manifest.commit(commit_id(newest + 10**7)),
        "versions of an old number": lambda manifest, newest: manifest.versions_introduced(rng.randrange(1, newest)),
        "pins of an old number": lambda manifest, newest: manifest.pins_at(rng.randrange(1, newest)),
        "commit at an old time": lambda manifest, newest: manifest.newest_commit_until(time_of(newest)),
    }


def _asking(ask: Callable[[Manifest, int], object], cold: bool, grown: Grown) -> Callable[[], float]:
    warm = Manifest(grown.store, BRANCH)

    def take() -> float:
        manifest = Manifest(grown.store, BRANCH) if cold else warm
        return timed(partial(ask, manifest, grown.newest.seq))

    return take


def _requests(server: S3Server, short: Grown, long: Grown) -> list[Figure]:
    """The S3 requests of the look-up of one old id, as medians."""
    bucket = server.create_bucket("lineage")
    stores = {}
    for one in (long, short):
        stores[one.newest.seq] = store = open_store(f"{bucket}/{one.newest.seq}", server.storage_options)
        _copy(one.store, store)
    server.set_delay(DELAY_MS)
    figures = []
    for cold in (True, False):
        seen = [_seen(server, store, newest, cold=cold) for newest, store in stores.items()]
        at = f"S3, commit by an old id, {'cold' if cold else 'warm'}"
        requests, depths, read = (
            [median(of(traffic) for traffic in one) for one in seen] for of in (_requests_of, _depth_of, _bytes_of)
        )
        figures += [
            _beside(f"{at}: requests", _number, requests, FLAT),
            _beside(f"{at}: requests in sequence", _number, depths, FLAT),
            _beside(f"{at}: bytes read", kibibytes, read, FLAT),
        ]
    return figures


def _requests_of(traffic: Traffic) -> float:
    return traffic.requests


def _depth_of(traffic: Traffic) -> float:
    return traffic.depth


def _bytes_of(traffic: Traffic) -> float:
    return traffic.sent_bytes


def _seen(server: S3Server, store: ObjectStore, newest: int, *, cold: bool) -> list[Traffic]:
    rng, warm = random.Random(2), Manifest(store, BRANCH)
    ids = [commit_id(rng.randrange(1, newest)) for _ in range(20)]
    for one in ids[:10]:
        warm.commit(one)

    def look_up(one: str) -> None:
        (Manifest(store, BRANCH) if cold else warm).commit(one)

    return [observe_all(server, partial(look_up, one)) for one in ids[10:]]


def _copy(source: ObjectStore, target: ObjectStore) -> None:
    """Copy the newest version of `__manifest`, with everything that it refers to."""
    newest = _newest_manifest(source)
    needed = VersionReader(source).references(MAIN_PATH, newest)
    for file in source.files(MAIN_PATH):
        name = file.path.removeprefix(f"{MAIN_PATH}/")
        if file.path == newest or name in needed or name.rpartition("/")[0] in needed:
            target.put(file.path, source.get(file.path) or b"")


def _newest_manifest(store: ObjectStore) -> str:
    return f"{MAIN_PATH}/_versions/{next(n for n in store.names(f'{MAIN_PATH}/_versions') if n.endswith('.manifest'))}"


def _beside(what: str, shown: Callable[[float], str], values: Sequence[float], target: Target | None = None) -> Figure:
    """A count of the long history beside that of the short one."""
    long, short = values
    return Figure(what, shown(long), shown(short), long / short, target)


def _number(value: float) -> str:
    return f"{value:.1f}"
