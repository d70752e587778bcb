"""What a long history costs: an owner's memory and take-over, look-ups of old commits, a fold, beside a short history.

Both are made of objects whose tables nobody made, folded in large batches, merged and indexed as Phase D does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import Figure, Section, Target, compared, in_fresh_process, in_turns, kibibytes, timed, times
from bench.s3server import S3Server, running_server
from bench.synthetic_line import Grown, at_us, commit_id
from bench.traffic import Traffic, observe_all
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import PATH, Manifest
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.line.commit_log import MAIN_BRANCH, CommitLog
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.versions import VersionReader

FLAT = times(1.2)
FOLD_OBJECTS = 64
DELAY_MS = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of the two histories, and how often everything is timed."""

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
        _beside("memory of an owner's history", kibibytes, *memory, FLAT),
        _beside("size of __manifest's own manifest", kibibytes, *manifests),
    ]


def _times(short: Grown, long: Grown, count: int) -> list[Figure]:
    rng = random.Random(1)
    figures = []
    for what, ask in _questions(rng).items():
        for cold in (True, False):
            taken = in_turns(count, *(_timer(one, ask, cold=cold) for one in (long, short)))
            figures.append(compared(f"{what}, {'cold' if cold else 'warm'}", *taken, FLAT))
    taken = in_turns(
        count, *(lambda one=one: timed(lambda: RecentCommits(_lineage(one), one.newest)) for one in (long, short))
    )
    figures.append(compared("take-over: the window is filled", *taken, FLAT))
    taken = in_turns(count, *(lambda one=one: timed(lambda: one.fold(FOLD_OBJECTS)) for one in (long, short)))
    figures.append(compared(f"a fold of {FOLD_OBJECTS} objects", *taken, FLAT))
    return figures


def _questions(rng: random.Random) -> dict[str, Callable[[Manifest, int], object]]:
    """What is asked of a history of some length."""

    def time_of(newest: int) -> datetime:
        return datetime.fromtimestamp(at_us(rng.randrange(1, newest)) / 1e6, UTC)

    return {
        "commit by an old id": lambda manifest, newest: manifest.commit(commit_id(rng.randrange(1, newest))),
        "commit by an id that there is not": lambda manifest, newest: manifest.commit(commit_id(newest + 10**7)),
        "versions of an old number": lambda manifest, newest: manifest.versions_introduced(rng.randrange(1, newest)),
        "pins of an old number": lambda manifest, newest: manifest.pins_at(rng.randrange(1, newest)),
        "commit at an old time": lambda manifest, newest: manifest.newest_commit_until(time_of(newest)),
    }


def _timer(grown: Grown, ask: Callable[[Manifest, int], object], *, cold: bool) -> Callable[[], float]:
    warm = Manifest(grown.store, "main")

    def take() -> float:
        manifest = Manifest(grown.store, "main") if cold else warm
        return timed(lambda: ask(manifest, _seq(grown)))

    return take


def _requests(server: S3Server, short: Grown, long: Grown) -> list[Figure]:
    """What the look-up of one old id asks of S3: the median of some."""
    bucket = server.create_bucket("lineage")
    stores = []
    for one in (long, short):
        store = open_store(f"{bucket}/{_seq(one)}", server.storage_options)
        _copy(one.store, store)
        stores.append(store)
    server.set_delay(DELAY_MS)
    figures = []
    for cold in (True, False):
        seen = [_seen(server, store, _seq(one), cold=cold) for store, one in zip(stores, (long, short), strict=True)]
        at = f"S3, commit by an old id, {'cold' if cold else 'warm'}"
        for what, shown, of in (
            ("requests", _number, lambda t: t.requests),
            ("requests in sequence", _number, lambda t: t.depth),
            ("bytes read", kibibytes, lambda t: t.sent_bytes),
        ):  # type: str, Callable[[float], str], Callable[[Traffic], float]
            figures.append(_beside(f"{at}: {what}", shown, *(median(map(of, one)) for one in seen), FLAT))
    return figures


def _seen(server: S3Server, store: ObjectStore, newest: int, *, cold: bool) -> list[Traffic]:
    rng, warm = random.Random(2), Manifest(store, "main")
    ids = [commit_id(rng.randrange(1, newest)) for _ in range(20)]
    for one in ids[:10]:
        warm.commit(one)
    return [
        observe_all(server, lambda one=one: (Manifest(store, "main") if cold else warm).commit(one)) for one in ids[10:]
    ]


def _copy(source: ObjectStore, target: ObjectStore) -> None:
    """The newest version of `__manifest`, with everything that it refers to."""
    newest = _newest_manifest(source)
    needed = VersionReader(source).references(PATH, newest)
    for file in source.files(PATH):
        name = file.path.removeprefix(f"{PATH}/")
        if file.path == newest or name in needed or name.rpartition("/")[0] in needed:
            target.put(file.path, source.get(file.path) or b"")


def _newest_manifest(store: ObjectStore) -> str:
    return f"{PATH}/_versions/{next(n for n in store.names(f'{PATH}/_versions') if n.endswith('.manifest'))}"


def _lineage(grown: Grown) -> Lineage:
    return Lineage(CommitLog(grown.store, MAIN_BRANCH), Manifest(grown.store, "main"), lambda: grown.newest)


def _seq(grown: Grown) -> int:
    return grown.newest.seq


def _beside(
    what: str, shown: Callable[[float], str], long: float, short: float, target: Target | None = None
) -> Figure:
    return Figure(what, shown(long), shown(short), long / short, target)


def _number(value: float) -> str:
    return f"{value:.1f}"
