"""The history of a branch: what `__manifest` has folded, and the few objects of the line that it has not yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import NamedTuple, Protocol, TypeAlias

from omniray.engine.base.errors import InputError, InvariantViolation
from omniray.engine.base.ulids import is_ulid
from omniray.engine.history.lineage_entry import CommitId, LineageEntry, Step, entries_of, us_of
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject, Pin, Recovery, reaches

READS_MAX = 8
STEPS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A commit of the history, and the pins of all tables as of it."""

    entry: LineageEntry
    pins: dict[str, Pin]


class LandedCommit(NamedTuple):
    """A commit that is in the line, and the table versions that its object introduced."""

    entry: LineageEntry
    versions: dict[str, int]


Moment: TypeAlias = str | datetime
"""A commit by its id, or the newest one at or before a time."""


class MergedCommits(Protocol):
    """Finds commits that came to a line with its merges (`merged_commits.py`)."""

    def find(self, commit_ids: Collection[str], newest: CommitObject, lineage: Lineage) -> list[LineageEntry]:
        """The entries of those among the ids, as of one object of the line."""


class Lineage:
    """Reads manifest and line as one. `newest` gives the newest object of the line.

    With `merged`, look-ups of a commit by its id also find those that came to the line with a merge.
    """

    def __init__(
        self,
        log: CommitLog,
        manifest: Manifest,
        newest: Callable[[], CommitObject],
        merged: MergedCommits | None = None,
    ) -> None:
        self._log, self._manifest, self._newest, self._merged = log, manifest, newest, merged

    def newest(self) -> CommitObject:
        """The newest object of the line; raises `BranchGone` if the branch was deleted."""
        return self._newest()

    def entries(self, newest: CommitObject, through: int = SEQ_MAX) -> Iterator[LineageEntry]:
        """The commits up to `newest`, or only those up to a number, newest first; reads only as many as are taken."""
        unfolded, folded_through = self._read(newest)
        yield from (entry for entry, _ in _commits(unfolded, folded_through) if entry.seq <= through)
        last = min(folded_through, newest.seq, through)
        yield from (entry for entry in self._manifest.commits() if entry.seq <= last)

    def recoveries(self, limit: int | None) -> list[Recovery]:
        """What recoveries did, newest first."""
        unfolded, folded_through = self._read(self._newest())
        newest_first = itertools.chain(_recoveries(unfolded, folded_through), self._manifest.recoveries(folded_through))
        return list(itertools.islice(newest_first, checked_limit(limit)))

    def commit_ids(self, newest: CommitObject) -> Iterator[CommitId]:
        """The ids of the commits up to one object of the line, newest first; reads only as many as are taken."""
        unfolded, folded_through = self._read(newest)
        for obj in unfolded:
            if obj.seq > folded_through:
                yield from (CommitId(one.commit_id, obj.seq, one.at_us) for one in reversed(obj.commits))
        last = min(folded_through, newest.seq)
        yield from (one for one in self._manifest.commit_ids() if one.seq <= last)

    def commit(self, commit_id: str) -> LandedCommit | None:
        """The commit with an id; None if there is none in the line as it is now, and none came with a merge."""
        return self.find(commit_id, self._newest())

    def find(self, commit_id: str, newest: CommitObject) -> LandedCommit | None:
        """The same as of one object of the line: None says that neither it nor any object below holds the commit."""
        return self.landed([commit_id], newest).get(commit_id)

    def landed(self, commit_ids: Collection[str], newest: CommitObject) -> dict[str, LandedCommit]:
        """The same for many ids, with one read of the line and at most two of the manifest, if no merge is asked."""
        found = self.landed_here(commit_ids, newest)
        return self.merged(set(commit_ids) - found.keys(), newest) | found

    def merged(self, commit_ids: Collection[str], newest: CommitObject) -> dict[str, LandedCommit]:
        """The commits among these ids that landed on another line and came with a merge.

        They have no versions: those of the other line mean nothing here.
        """
        if self._merged is None or not commit_ids:
            return {}
        return {e.commit_id: LandedCommit(e, {}) for e in self._merged.find(commit_ids, newest, self)}

    def landed_here(self, commit_ids: Collection[str], newest: CommitObject) -> dict[str, LandedCommit]:
        """The commits among these ids that landed on this line itself."""
        wanted = set(commit_ids)
        if not wanted:
            return {}
        unfolded, folded_through = self._read(newest)
        found = {
            entry.commit_id: LandedCommit(entry, {key: pin.version for key, pin in obj.introduced().items()})
            for entry, obj in _commits(unfolded, folded_through)
            if entry.commit_id in wanted
        }
        missing = wanted - found.keys()
        folded = [e for e in self._manifest.commits_with(missing) if e.seq <= newest.seq] if missing else []
        versions = self._manifest.versions_introduced_by({e.seq for e in folded}) if folded else {}
        return found | {e.commit_id: LandedCommit(e, versions.get(e.seq, {})) for e in folded}

    def are_new(self, commit_ids: Collection[str], known_above: int) -> bool:
        """Whether none of the ids is in the line, for a caller that itself knows all commits above a number.

        Reads the manifest and not the line; also False if the manifest is not folded that far.
        """
        return self._manifest.holds_none(commit_ids, known_above)

    def find_all(self, commit_ids: Collection[str], newest: CommitObject) -> dict[str, LineageEntry]:
        """The entries of many ids with one read of line and manifest: ids that are left out are in neither."""
        wanted = set(commit_ids)
        if not wanted:
            return {}
        unfolded, folded_through = self._read(newest)
        in_line = {e.commit_id: e for e, _ in _commits(unfolded, folded_through) if e.commit_id in wanted}
        folded = {e.commit_id: e for e in self._manifest.commits_with(wanted) if e.seq <= newest.seq}
        return folded | in_line

    def recorded(self, operation_ids: Collection[str], newest: CommitObject) -> set[str]:
        """The operations among these that have a recovery recorded up to `newest`."""
        unfolded, folded_through = self._read(newest)
        in_line = {recovery.operation_id for recovery in _recoveries(unfolded, folded_through)}
        return (in_line & set(operation_ids)) | self._manifest.recorded(operation_ids)

    def since(self, known: CommitObject, newest: CommitObject) -> Iterator[CommitObject]:
        """The objects above `known` up to `newest`, newest first; objects in this process's cache cost no request."""
        return (obj for obj in self._log.down_to(newest, known.seq + 1) if obj.seq > known.seq)

    def steps(self, after: int, newest: CommitObject) -> Iterator[Step]:
        """What each object above a number introduced, up to `newest` and oldest first, pruned objects included."""
        unfolded, folded_through = self._read(newest)
        folded_through = min(folded_through, newest.seq)
        for start in range(after, folded_through, STEPS_AT_ONCE):
            yield from self._manifest.steps(start, min(start + STEPS_AT_ONCE, folded_through))
        for obj in reversed(unfolded):
            if obj.seq > max(after, folded_through) and (pins := obj.introduced()):
                yield Step(obj.seq, tuple(commit.commit_id for commit in obj.commits), pins)

    def change_numbers(self, after: int, newest: CommitObject) -> list[int]:
        """The numbers above `after` of commits up to `newest` that changed tables, in order; one for each commit."""
        unfolded, folded_through = self._read(newest)
        folded_through = min(folded_through, newest.seq)
        numbers = self._manifest.change_numbers(after, folded_through) if after < folded_through else []
        for obj in reversed(unfolded):
            if obj.seq > max(after, folded_through) and obj.introduced():
                numbers += [obj.seq] * len(obj.commits)
        return numbers

    def committed_at(self, seq: int, newest: CommitObject) -> tuple[str, ...]:
        """The ids of the commits of one object of the line, which landed together."""
        _refuse_above(seq, newest)
        step = next(self.steps(seq - 1, newest), None)
        return () if step is None or step.seq != seq else step.commit_ids  # else the object changed no table

    def contains_at(self, seq: int, newest: CommitObject) -> dict[str, int]:
        """What a number of the line at or below `newest` includes, by line, pruned objects included."""
        _refuse_above(seq, newest)
        unfolded, folded_through = self._read(newest)
        found = next((obj.contains for obj in unfolded if obj.seq == seq), None)
        if found is None:
            found = self._manifest.contains_at(min(seq, folded_through)) or {}
        return {**found, newest.line: seq}

    def vectors(self, newest: CommitObject) -> list[tuple[int, int]]:
        """The numbers up to `newest` at which what the line includes of others has changed, and when, in microseconds.

        The first is that of the line's begin, if it began on another line.
        """
        unfolded, folded_through = self._read(newest)
        last = min(folded_through, newest.seq)
        folded = [(seq, us_of(at)) for seq, at in self._manifest.vectors() if seq <= last]
        above = (obj for obj in reversed(unfolded) if obj.seq > last and obj.includes_anew)
        return [*folded, *((obj.seq, obj.head_at_us) for obj in above)]

    def pins_at(self, seq: int, newest: CommitObject) -> dict[str, Pin]:
        """The version of every table as of a number of the line at or below `newest`."""
        _refuse_above(seq, newest)
        unfolded, folded_through = self._read(newest)
        found = next((obj for obj in unfolded if obj.seq == seq), None)
        return self._manifest.pins_at(min(seq, folded_through)) if found is None else dict(found.pins)

    def at(self, when: Moment, newest: CommitObject) -> PointInTime | None:
        """The commit with an id, or the newest one at or before a time, up to `newest`."""
        if isinstance(when, str):
            return self._find(lambda entry: entry.commit_id == when, lambda: self._manifest.commit(when), newest)
        return self._find(lambda entry: entry.at <= when, lambda: self._manifest.newest_commit_until(when), newest)

    def _find(
        self,
        fits: Callable[[LineageEntry], bool],
        folded: Callable[[], LineageEntry | None],
        newest: CommitObject,
    ) -> PointInTime | None:
        unfolded, folded_through = self._read(newest)
        for entry, obj in _commits(unfolded, folded_through):
            if fits(entry):
                return PointInTime(entry, dict(obj.pins))
        found = folded()
        if found is not None and found.seq > newest.seq:  # folded since: what fits is this object's head, if any
            found = self._manifest.commit(newest.head)
            found = found if found is not None and fits(found) else None
        return None if found is None else PointInTime(found, self._manifest.pins_at(found.seq))

    def _read(self, newest: CommitObject) -> tuple[tuple[CommitObject, ...], int]:
        """The line from `newest` down to what is folded, newest first, and the number that it is folded through.

        The two reads must meet: an object may be folded, and later pruned, between them.
        """
        for _ in range(READS_MAX):
            folded_through = self._manifest.folded_through()
            chain = self._log.down_to(newest, folded_through)
            if reaches(chain, folded_through):
                return chain, folded_through
        raise InvariantViolation(
            "the line does not reach down to what __manifest has folded; restore the missing objects from a backup"
        )


def _refuse_above(seq: int, newest: CommitObject) -> None:
    """Refuse a number that the reader's object says nothing about: an older state would be taken for its own."""
    if seq > newest.seq:
        raise InvariantViolation(
            f"a bug in omniray: number {seq} of the line {newest.line} is asked for as of {newest.seq}; try again",
            line=newest.line, seq=seq, newest=newest.seq,
        )  # fmt: skip


def _commits(chain: tuple[CommitObject, ...], folded_through: int) -> Iterator[tuple[LineageEntry, CommitObject]]:
    """The commits of objects that are not folded, newest first, with their objects."""
    heads = {obj.seq: obj.head for obj in chain}
    for obj in chain:
        if obj.seq > folded_through:
            entries = list(entries_of(obj, parent=heads.get(obj.seq - 1, "")))
            yield from ((entry, obj) for entry in reversed(entries))


def _recoveries(chain: tuple[CommitObject, ...], folded_through: int) -> Iterator[Recovery]:
    for obj in chain:
        if obj.seq > folded_through:
            yield from reversed(obj.recoveries)


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InputError(f"a limit of {limit} shows nothing: give 1 or more")
    return limit


def moment(when: str | date) -> Moment:
    """A commit id, or a time given as text, date or datetime; without a zone it is UTC, a date is its first moment."""
    if isinstance(when, str) and is_ulid(when.upper()):
        return when.upper()
    try:
        time = when if isinstance(when, datetime) else datetime.fromisoformat(str(when))
    except ValueError as error:
        raise InputError(f"{when!r} is neither a commit id nor a time; write a time as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
