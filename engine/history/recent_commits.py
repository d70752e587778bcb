"""Which commit ids are in the line already: the newest are remembered, older ones are looked up.

The owner of a line must never commit an id twice. It knows every commit that lands while it owns the line, and reads
the newest earlier ones when it takes over; it keeps a bounded number of both. Any other id is looked up, all those of a
round at once, unless it is certain to be new: its client created it for this very request, and the time in it is later
than the oldest remembered commit. Either condition would do if clients and clocks were always right. The time of a
clock that is far ahead is later than any commit, remembered or not, and so says nothing: such an id is looked up.

Commits that came from other lines, with a merge or the begin, are in the line as well and are not remembered: an id
that is not certainly younger than the newest merge, or than the begin, is looked up.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from omniray.engine.base.errors import StorageError
from omniray.engine.base.ulids import time_us_of
from omniray.engine.history.lineage import LandedCommit, Lineage
from omniray.engine.history.lineage_entry import CommitId
from omniray.engine.line.commit_object import CommitObject

WINDOW_COMMITS = 8192
SKEW_US_MAX = 60_000_000  # how far a client's clock may be ahead of ours before its ids are looked up


def _now_us() -> int:
    return time.time_ns() // 1000


class RecentCommits:
    """The commits of a line, for its owner. Threads may share it."""

    def __init__(
        self,
        lineage: Lineage,
        newest: CommitObject,
        *,
        size: int = WINDOW_COMMITS,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        self._lineage, self._size, self._now_us = lineage, size, now_us
        taken = list(itertools.islice(lineage.commit_ids(newest), size + 1))
        self._is_whole = len(taken) <= size  # it holds every commit of the line
        self._newest_last = deque(reversed(taken[:size]))
        self._ids = {one.commit_id for one in self._newest_last}
        self._forgotten_us = 0  # the latest time in an id that was forgotten
        self._merged_us = 0  # the time of the newest merge, or of the commit that the line began with
        if len(newest.contains) > 1:
            self._merged_us = max((at_us for _, at_us in lineage.vectors(newest)), default=0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._newest_last)

    def advance(self, landed: CommitObject) -> None:
        """Remember the commits of an object that has landed."""
        with self._lock:
            for commit in landed.commits:
                self._newest_last.append(CommitId(commit.commit_id, landed.seq, commit.at_us))
                self._ids.add(commit.commit_id)
                if commit.merged:
                    self._merged_us = max(self._merged_us, commit.at_us)
            while len(self._newest_last) > self._size:
                self._forget(self._newest_last.popleft())

    def _forget(self, oldest: CommitId) -> None:
        """Forget a commit; its id may be of a clock that was ahead, and so be later than commits that are remembered.

        One that is too far ahead does not count, or it would have all others looked up until its time comes.
        """
        self._ids.discard(oldest.commit_id)
        self._is_whole = False
        if (time_us := time_us_of(oldest.commit_id)) <= oldest.at_us + SKEW_US_MAX:
            self._forgotten_us = max(self._forgotten_us, time_us)

    def known(self, asked: Mapping[str, bool], base: CommitObject) -> dict[str, LandedCommit]:
        """The ids that are in the line up to `base`; `asked` says of each whether its client calls it fresh."""
        remembered, doubtful, known_above = self._sort_out(asked)
        if not remembered and (not doubtful or self._lineage.are_new(doubtful, known_above)):
            return self._lineage.merged(doubtful, base) if self._merged_us else {}
        found = self._lineage.landed([*remembered, *doubtful], base)
        for commit_id in remembered:
            if commit_id not in found:
                raise StorageError(f"commit {commit_id} is known and not in the lineage; try again")
        return found

    def is_committed(self, commit_id: str, newest: CommitObject) -> bool:
        """Whether an id is in the line up to `newest`."""
        if self._remembers(commit_id):
            return True
        may_be_older = not self._is_whole or self._merged_us > 0
        return may_be_older and self._lineage.find(commit_id, newest) is not None

    def _remembers(self, commit_id: str) -> bool:
        with self._lock:
            return commit_id in self._ids

    def _sort_out(self, asked: Mapping[str, bool]) -> tuple[list[str], list[str], int]:
        """The remembered ids, the ids to look up, and the number above which all commits are known."""
        with self._lock:
            remembered = [commit_id for commit_id in asked if commit_id in self._ids]
            others = {commit_id: fresh for commit_id, fresh in asked.items() if commit_id not in self._ids}
            doubtful = [commit_id for commit_id, fresh in others.items() if not self._is_new(commit_id, fresh)]
            return remembered, doubtful, self._newest_last[0].seq if self._newest_last else 0

    def _is_new(self, commit_id: str, fresh: bool) -> bool:
        """Whether an id that is not remembered is certain to be new."""
        if self._is_whole and not self._merged_us:
            return True
        oldest_us = 0 if self._is_whole else max(self._newest_last[0].at_us, self._forgotten_us)
        known_us = max(oldest_us, self._merged_us)
        return fresh and known_us < time_us_of(commit_id) <= self._now_us() + SKEW_US_MAX
