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

A closed line takes no object, so nothing follows its last fold by itself, nor the last row of the audit. A version of
these that was staged on the newest one may land at any time, so files younger than the newest one stay.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
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
from omniray.engine.maintenance.orphans import (
    NOTHING,
    Amount,
    Evidence,
    Kind,
    Listing,
    TableSweep,
    judge,
    kind_of,
    sort_out,
)
from omniray.engine.maintenance.pinned import pinned_on_branches, refuse_missing
from omniray.engine.maintenance.sweep_record import MARGIN_US, record, swept_before
from omniray.engine.store.object_store import ObjectStore, store_now_us
from omniray.engine.tables.version_names import BRANCHES, STAGED, own_path
from omniray.engine.tables.versions import VersionReader

log = logging.getLogger("omniray")

OLDER_THAN_S = 3600.0
DELETE_FILES = 1000
READING_THREADS = 16
CLOCK_SKEW_US = 3600 * 10**6


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
        listing = sort_out(self.store.files(""), tables | _system_tables(lines), before_us, since_us)
        reach(Point.SWEEP_AFTER_FILES)
        spared |= _named_by(sidecars) | listing.strange
        reach(Point.SWEEP_AFTER_SIDECARS)
        evidence = self._look(listing, spared, lines)
        verdicts = judge(listing, evidence)
        if not dry_run:
            orphans = [file.path for verdict in verdicts for file in verdict.orphans]
            self._delete(orphans)
            staged_on_branches = {path.rpartition("/")[0] for path in orphans if f"/{BRANCHES}/" in path}
            for folder in (*(f"{table}/{STAGED}" for table in tables), *staged_on_branches):
                self.store.delete_empty_folders(folder)  # a writer that misses one of these creates it again
            looked_at = tables - evidence.spared.keys()
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

    def _look(self, listing: Listing, spared: Mapping[str, str], lines: Collection[CommitObject]) -> Evidence:
        """Look for reasons to keep the files that were listed."""
        pinned = self._pinned_staging(self._newest())
        with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="omniray-sweep") as pool:
            on_branches = listing.on_branches(spared)
            pinned_there, unknown = pinned_on_branches(self.store, self.branch.graph_id, on_branches, pool)
            spared = {**spared, **unknown}
            listing.leave_out(on_branches - pinned_there)
            references, unread = self._read_references(listing, spared, lines, pool)
        return Evidence({**spared, **unread}, references, pinned | pinned_there, _system_tables(lines))

    def _pinned_staging(self, newest: CommitObject) -> set[str]:
        """The own names of versions that main's line pins and whose Phase D is not known to be finished."""
        done = max(newest.finalised_through, self.branch.manifest.folded().named_through)
        objects = self.branch.log.down_to(newest, done + 1)
        return {own_path(pin, self.branch.graph_id) for obj in objects for pin in obj.pins.values()}

    def _read_references(
        self, listing: Listing, spared: Collection[str], lines: Collection[CommitObject], pool: Executor
    ) -> tuple[dict[str, set[str]], dict[str, str]]:
        """The references of each table's versions; and for some tables, why they can't be read."""
        references: dict[str, set[str]] = {}
        unread: dict[str, str] = {}
        versions = VersionReader(self.store)
        for table in listing.to_be_read(spared):
            try:
                read = partial(versions.references, table)
                found = self._manifests(table, listing)
                refuse_missing(table, found | listing.older_manifests[table], lines, self.branch.graph_id)
                references[table] = set().union(*pool.map(read, found))
                if listing.is_any_unreferenced(table, references[table]):
                    references[table].update(*pool.map(read, listing.older_manifests[table]))
            except OmnirayError as error:
                unread[table] = f"its versions can't be read: {error}"
        return references, unread

    def _manifests(self, table: str, listing: Listing) -> set[str]:
        """The manifests of all versions that may refer to a candidate.

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


def _system_tables(lines: Iterable[CommitObject]) -> set[str]:
    """The folded lines and the audit: tables of compare-and-swap, which no object pins."""
    folded = {manifest_reader.path_of(BranchId(line.line, line.line)) for line in lines if line.parent}
    return {manifest_reader.MAIN_PATH, audit.PATH, *folded}
