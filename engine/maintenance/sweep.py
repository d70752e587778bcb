"""The sweep: deletes files that nothing refers to, and nothing else, while writers continue.

Killed writers leave data files, deletion files, transactions, staged manifests and temporary files; folds leave the
data files that they replaced. Age alone says nothing about a file: it may be part of every version, or staged by a load
that is about to commit. So the sweep goes by reference, in this order:

    1. an object `swept_before_us = T` in main's line and in those of all branches (`barrier.py`): an attempt on top of
       it commits no file staged before T, and an attempt on an older object finds its number taken
    2. Phase D is finished up to there: every version up to T has its final name, and no fold that was staged before T
       can land any more
    3. the files are listed, then the sidecars, then the newest object and the versions of each table

So a version committed later refers to no file older than T except those of a version seen here; and a running load has
a sidecar, so its tables are spared. T is also bounded by the store's clock, which dates the files.
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from omniray.engine.base.errors import InputError, OmnirayError, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history import audit, manifest_reader
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import FOLDER as COMMITS
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import LineEnd
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.maintenance.barrier import EndOf, nobody_owns, put_barrier, put_on_branches
from omniray.engine.maintenance.sweep_record import MARGIN_US, record, swept_before
from omniray.engine.store.object_store import PROBE, ObjectStore, StoredFile, store_now_us
from omniray.engine.tables.version_names import STAGED, own_path, version_of
from omniray.engine.tables.versions import VersionReader

log = logging.getLogger("omniray")

OLDER_THAN_S = 3600.0
DELETE_FILES = 1000
READING_THREADS = 16
CLOCK_SKEW_US = 3600 * 10**6
ELSEWHERE = ""


class Kind(StrEnum):
    """The kind of a file, by its name within its table."""

    TEMPORARY = "temporary"
    REFERABLE = "referable"  # manifests say whether it is needed
    STAGING = "staging"
    MANIFEST = "manifest"
    KEPT = "kept"
    UNKNOWN = "unknown"


# Lance's temporary files are named `.tmp` and six characters, or the final file name followed by `#1`.
_TEMPORARY = re.compile(rf"(.*/)?(\.tmp-[^/]+|\.tmp\w{{6}}|[^/]+#\d+)|{PROBE}/.+")
_IN_TABLE = {
    Kind.REFERABLE: re.compile(
        r"data/[^/]+\.lance|_deletions/[^/]+\.(arrow|bin)|_transactions/[^/]+\.txn|_indices/[0-9a-f-]{36}/[^/]+"
    ),
    Kind.STAGING: re.compile(r"_staged/[^/]+/\d{20}\.manifest|_versions/\d{20}\.manifest-[^/]+"),
    Kind.MANIFEST: re.compile(r"(.*/)?\d{20}\.manifest"),  # in any folder: a repair may have set it aside
    Kind.KEPT: re.compile(r"_versions/latest_version_hint\.json"),
}
_MANIFEST_LIKE = ".manifest"
NEVER: Mapping[str, int] = {}
_ELSEWHERE = {
    Kind.KEPT: re.compile(r"__commits/.+|__recovery/.+|__schema/.+\.pg|__door/\d{20}\.json|__graph\.json|__swept\.json")
}


@dataclass(frozen=True, slots=True)
class Amount:
    files: int
    bytes: int

    @classmethod
    def of(cls, files: Collection[StoredFile]) -> Amount:
        return cls(len(files), sum(file.size for file in files))

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.files + other.files, self.bytes + other.bytes)


NOTHING = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class TableSweep:
    """The sweep of one table, or of the files outside of all tables; `spared` says why nothing may be deleted."""

    table: str
    found: Amount  # files old enough to be deleted if nothing refers to them
    orphans: tuple[StoredFile, ...] = ()
    spared: str = ""

    @property
    def deleted(self) -> Amount:
        return Amount.of(self.orphans)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The files that a sweep deleted, or would delete if it is a dry run."""

    swept_before_us: int
    tables: tuple[TableSweep, ...]
    unknown: Amount  # files that are not omniray's, which are never touched
    dry_run: bool

    @property
    def deleted(self) -> Amount:
        return sum((table.deleted for table in self.tables), NOTHING)


# Deciding


@dataclass(slots=True)
class Listing:
    """The files of a graph, by table: candidates for deletion, and the manifests that may refer to them."""

    candidates: dict[str, list[StoredFile]] = field(default_factory=lambda: defaultdict(list))
    manifests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    older_manifests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # than every candidate
    unknown: list[StoredFile] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)  # by table: why its references are unknown

    def to_be_read(self, spared: Collection[str]) -> list[str]:
        """The tables whose versions must be read to decide about their files."""
        return [
            table
            for table, files in self.candidates.items()
            if table not in spared and any(kind_of(table, file.path) is Kind.REFERABLE for file in files)
        ]

    def is_any_unreferenced(self, table: str, references: Collection[str]) -> bool:
        """Whether younger manifests alone would make a file an orphan.

        Then the older ones are read, too: a file that was restored or copied is younger than the versions it is in.
        """
        names = (file.path for file in self.candidates[table] if kind_of(table, file.path) is Kind.REFERABLE)
        return any(_referred_as(name[len(table) + 1 :]) not in references for name in names)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reasons to keep files: spared tables and why, references of the others' versions, pinned staged manifests."""

    spared: Mapping[str, str]
    references: Mapping[str, Collection[str]]
    pinned_staging: Collection[str]


def kind_of(table: str, path: str) -> Kind:
    """The kind of a file of a table, or of one outside of all tables."""
    if _TEMPORARY.fullmatch(path):
        return Kind.TEMPORARY
    layout, name = (_IN_TABLE, path[len(table) + 1 :]) if table else (_ELSEWHERE, path)
    return next((kind for kind, pattern in layout.items() if pattern.fullmatch(name)), Kind.UNKNOWN)


def sort_out(
    files: Iterable[StoredFile], tables: Collection[str], before_us: int, since_us: Mapping[str, int] = NEVER
) -> Listing:
    """Sort files by table and kind; files modified at `before_us` or later are no candidates.

    Nor are referable files that an earlier sweep examined: those modified before the table's `since_us`.
    """
    listing = Listing()
    for file in files:
        table = _table_of(file.path, tables)
        kind = kind_of(table, file.path)
        is_new = file.modified_us >= since_us.get(table, 0)
        if kind is Kind.MANIFEST:
            (listing.manifests if is_new else listing.older_manifests)[table].add(file.path)
        elif kind is Kind.UNKNOWN:
            listing.unknown.append(file)
            if table and _MANIFEST_LIKE in file.path:
                listing.strange[table] = f"{file.path} may refer to its files, and is none of omniray's manifests"
        elif kind is not Kind.KEPT and file.modified_us < before_us and (is_new or kind is not Kind.REFERABLE):
            listing.candidates[table].append(file)
    return listing


def _table_of(path: str, tables: Collection[str]) -> str:
    """The table of a file: tables are one or two folders deep."""
    first, _, rest = path.partition("/")
    for table in (first, f"{first}/{rest.partition('/')[0]}"):
        if table in tables:
            return table
    return ELSEWHERE


def judge(listing: Listing, evidence: Evidence) -> tuple[TableSweep, ...]:
    """Decide for each table which of its candidates to delete: those without a reason to keep them."""
    return tuple(_judge(table, files, evidence) for table, files in listing.candidates.items())


def _judge(table: str, candidates: Collection[StoredFile], evidence: Evidence) -> TableSweep:
    found = Amount.of(candidates)
    if table in evidence.spared:
        return TableSweep(table, found, spared=evidence.spared[table])
    return TableSweep(table, found, tuple(file for file in candidates if _is_orphan(table, file.path, evidence)))


def _is_orphan(table: str, path: str, evidence: Evidence) -> bool:
    match kind_of(table, path):
        case Kind.TEMPORARY:
            return True
        case Kind.STAGING:
            return path not in evidence.pinned_staging
        case Kind.REFERABLE:  # the versions of a table that is not spared were read
            return _referred_as(path[len(table) + 1 :]) not in evidence.references[table]
        case _:
            return False


def _referred_as(name: str) -> str:
    """The form in which a manifest refers to a file of its table: its name, or the folder of its index."""
    folder, _, rest = name.partition("/")
    return f"{folder}/{rest.partition('/')[0]}" if folder == "_indices" else name


# Sweeping


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Sweeps one graph, at the end of main's line; the pins of other lines protect files as well."""

    branch: OpenBranch
    tip: LineEnd
    finaliser: Finaliser
    owner: str = EMBEDDED
    end_of: EndOf = nobody_owns  # of other lines that the owner owns

    @property
    def store(self) -> ObjectStore:
        return self.branch.store

    def sweep(self, *, now_us: int, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete every file of the layout that is older than `older_than_s` and that nothing refers to.

        Raises `LineOwned` while a coordinator owns the line, and any error that keeps Phase D from being finished. A
        dry run writes nothing, so it spares the tables that have versions without a final name.
        """
        older_than_us = _checked_age_us(older_than_s, now_us)
        if dry_run:
            barrier, before_us = self._newest(), now_us - older_than_us
            spared = self._unfinished(barrier)
        else:
            # A clock ahead of the store's would make young files look old, and its time would stay in the line.
            before_us = min(now_us, store_now_us(self.store)) - older_than_us
            barrier, spared = put_barrier(self.tip, self.finaliser, self.owner, before_us), {}
            put_on_branches(self.store, barrier, self.end_of)
        sidecars = Sidecars(self.store, read_only=dry_run)
        unreadable_us = sidecars.unreadable_since_us()
        if unreadable_us is not None:  # the tables that it names are unknown: younger files stay
            before_us = min(before_us, unreadable_us - CLOCK_SKEW_US)
        lines = self._lines()
        tables = {pin.path for line in lines for pin in line.pins.values()}
        swept = swept_before(self.store)
        since_us = {table: swept[table] - MARGIN_US for table in tables & swept.keys()}
        listing = sort_out(self.store.files(""), {*tables, *_system_tables(lines, self.branch)}, before_us, since_us)
        reach(Point.SWEEP_AFTER_FILES)
        spared |= _named_by(sidecars) | listing.strange
        reach(Point.SWEEP_AFTER_SIDECARS)
        pinned_staging = self._pinned_staging(self._newest())
        references, unread = self._read_references(listing, spared, barrier)
        verdicts = judge(listing, Evidence(spared | unread, references, pinned_staging))
        if not dry_run:
            self._delete([file.path for verdict in verdicts for file in verdict.orphans])
            for table in tables:  # a writer that misses one of these creates it again
                self.store.delete_empty_folders(f"{table}/{STAGED}")
            looked_at = tables - (spared | unread).keys()
            record(self.store, {**swept, **dict.fromkeys(looked_at, before_us)})
        report = SweepReport(before_us, verdicts, Amount.of(listing.unknown), dry_run)
        log.info("event=sweep before_us=%d orphans=%d dry_run=%s", before_us, report.deleted.files, dry_run)
        return report

    def _newest(self) -> CommitObject:
        newest = self.branch.log.newest_listed()
        if newest is None:
            refuse_gone(self.store, self.branch.graph_id)
            raise StorageError(f"{self.store.uri} has no line of commits; try again")
        return newest

    def _lines(self) -> list[CommitObject]:
        """The newest object of every existing line."""
        ulids = (name.rstrip("/") for name in self.store.names(COMMITS))
        lines = (CommitLog(self.store, BranchId(ulid, ulid)).newest_listed() for ulid in ulids)
        return [newest for newest in lines if newest is not None]

    # Before the look

    def _unfinished(self, newest: CommitObject) -> dict[str, str]:
        """Tables with versions that are not known to have final names, and so can't be read."""
        done = self.branch.manifest.folded().named_through
        objects = self.branch.log.down_to(newest, done + 1)
        pins = (pin for obj in objects if obj.seq > done for pin in obj.introduced().values())
        return {pin.path: "Phase D of its newest version is not finished" for pin in pins}

    # The look

    def _pinned_staging(self, newest: CommitObject) -> set[str]:
        """The own names of versions that main's line pins and whose Phase D is not known to be finished."""
        done = max(newest.finalised_through, self.branch.manifest.folded().named_through)
        objects = self.branch.log.down_to(newest, done + 1)
        return {own_path(pin, self.branch.graph_id) for obj in objects for pin in obj.pins.values()}

    def _read_references(
        self, listing: Listing, spared: Collection[str], barrier: CommitObject
    ) -> tuple[dict[str, set[str]], dict[str, str]]:
        """The references of each table's versions; and for some tables, why they can't be read."""
        references: dict[str, set[str]] = {}
        unread: dict[str, str] = {}
        versions = VersionReader(self.store)
        with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="omniray-sweep") as pool:
            for table in listing.to_be_read(spared):
                try:
                    read = partial(versions.references, table)
                    references[table] = set().union(*pool.map(read, self._manifests(table, listing, barrier)))
                    if listing.is_any_unreferenced(table, references[table]):
                        references[table].update(*pool.map(read, listing.older_manifests[table]))
                except OmnirayError as error:
                    unread[table] = f"its versions can't be read: {error}"
        return references, unread

    def _manifests(self, table: str, listing: Listing, barrier: CommitObject) -> set[str]:
        """The manifests of all versions that may refer to a candidate; raises if the pinned one is missing.

        They are listed again, `_versions/` before `_history/`: one that is moved meanwhile is seen in one of them.
        """
        fresh = [
            f"{table}/{folder}/{name}"
            for folder in ("_versions", "_history")
            for name in self.store.names(f"{table}/{folder}")
        ]
        older = listing.older_manifests[table]
        found = listing.manifests[table] | {
            path for path in fresh if kind_of(table, path) is Kind.MANIFEST and path not in older
        }
        if not found | older:
            raise StorageError(f"{table} has no version")
        for pin in barrier.pins.values():
            if pin.path == table and not any(version_of(path) == pin.version for path in found | older):
                raise StorageError(f"version {pin.version}, which the graph pins, was not found")
        return found

    # The deletion

    def _delete(self, paths: list[str]) -> None:
        for start in range(0, len(paths), DELETE_FILES):
            reach(Point.SWEEP_BEFORE_DELETE)
            self.store.delete_all(paths[start : start + DELETE_FILES])
            reach(Point.SWEEP_AFTER_DELETE)


def _checked_age_us(older_than_s: float, now_us: int) -> int:
    """An age in microseconds, back to the epoch at most.

    A negative one would put a time to come into the lines, and until then every load of staged files would be refused.
    """
    if not 0 <= older_than_s < math.inf:
        raise InputError(f"files older than {older_than_s} s: give 0 or more")
    return int(min(older_than_s * 1e6, now_us))


def _named_by(sidecars: Sidecars) -> dict[str, str]:
    """Tables that operations are working on, on any branch, with the operation."""
    found = sidecars.read_all(sidecars.listed())
    return {table.table_path: f"in use by {sidecar}" for sidecar in found for table in sidecar.tables}


def _system_tables(lines: Iterable[CommitObject], branch: OpenBranch) -> set[str]:
    """The folded lines and the audit: Lance tables that no object pins."""
    folded = {manifest_reader.path_of(BranchId(line.line, line.line)) for line in lines if line.line != branch.graph_id}
    return {manifest_reader.MAIN_PATH, audit.PATH, *folded}
