"""The history of a branch: what `__manifest` has folded, and the few objects of the line that it has not yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

from omniray.engine.commit_log import CommitLog
from omniray.engine.errors import InputError, InvariantViolation, NotFound
from omniray.engine.identity import is_ulid
from omniray.engine.line import CommitObject, Pin, reaches
from omniray.engine.manifest import LineageEntry, Manifest, entries_of

READS_MAX = 8


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A commit of the history, and the pins of all tables as of it."""

    entry: LineageEntry
    pins: dict[str, Pin]


class Lineage:
    """Reads manifest and line as one. `newest` gives the newest object of the line."""

    def __init__(self, log: CommitLog, manifest: Manifest, newest: Callable[[], CommitObject]) -> None:
        self._log, self._manifest, self._newest = log, manifest, newest

    def entries(self, limit: int | None) -> list[LineageEntry]:
        """The commits, newest first."""
        if limit is not None and limit < 1:
            raise InputError(f"a limit of {limit} shows nothing: give 1 or more")
        recent, folded_through = self._recent()
        folded = (entry for entry in self._manifest.commits() if entry.seq <= folded_through)
        newest_first = itertools.chain((entry for entry, _ in recent), folded)
        return list(itertools.islice(newest_first, limit))

    def at(self, when: str | date) -> PointInTime:
        """The commit with an id, or the newest one at or before a time; a date is its first moment."""
        if isinstance(when, str) and is_ulid(when.upper()):
            commit_id = when.upper()
            return self._find(
                lambda entry: entry.commit_id == commit_id, lambda: self._manifest.commit(commit_id), f"commit {when}"
            )
        time = _as_time(when)
        return self._find(
            lambda entry: entry.at <= time,
            lambda: self._manifest.newest_commit_until(time),
            f"commit at or before {time.isoformat()}",
        )

    def _find(
        self, fits: Callable[[LineageEntry], bool], folded: Callable[[], LineageEntry | None], what: str
    ) -> PointInTime:
        recent, _ = self._recent()
        for entry, obj in recent:
            if fits(entry):
                return PointInTime(entry, dict(obj.pins))
        found = folded()
        if found is None:
            raise NotFound(f"no {what} in the history; 'omniray history' shows what there is", wanted=what)
        return PointInTime(found, self._manifest.pins_at(found.seq))

    def _recent(self) -> tuple[list[tuple[LineageEntry, CommitObject]], int]:
        """Commits that are not folded yet, newest first, with their objects; and the number folded through.

        The two reads must meet: an object may be folded, and later pruned, between them.
        """
        for _ in range(READS_MAX):
            folded_through = self._manifest.folded_through()
            chain = self._log.down_to(self._newest(), folded_through)
            if reaches(chain, folded_through):
                return list(_unfolded(chain, folded_through)), folded_through
        raise InvariantViolation("the line does not reach down to what __manifest has folded")


def _unfolded(chain: tuple[CommitObject, ...], folded_through: int) -> Iterator[tuple[LineageEntry, CommitObject]]:
    heads = {obj.seq: obj.head for obj in chain}
    for obj in chain:
        if obj.seq > folded_through:
            entries = list(entries_of(obj, parent=heads.get(obj.seq - 1, "")))
            yield from ((entry, obj) for entry in reversed(entries))


def _as_time(when: str | date) -> datetime:
    """A time given as text, date or datetime; without a zone it is UTC."""
    try:
        time = when if isinstance(when, datetime) else datetime.fromisoformat(str(when))
    except ValueError as error:
        raise InputError(f"{when!r} is neither a commit id nor a time; write a time as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
