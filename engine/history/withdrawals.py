"""The writes that were reported as not committed: no try of theirs that began before that may land.

The report is recorded in the line (`Remark.withdrawn`), and a try says the newest number of the line that its caller
knew when it began. A try that began at or after the record is a new one, which is welcome.
"""

from __future__ import annotations

from omniray.engine.base.errors import Withdrawn
from omniray.engine.history.lineage import Lineage
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject

LOOK_BACK_MAX = 10_000  # objects; a caller's number is renewed whenever it has paused


def refuse_withdrawn(commit_id: str, lineage: Lineage, began: CommitObject, newest: CommitObject) -> None:
    """Raise if a write was reported as not committed since its try began: the try may not land any more."""
    if any(commit_id in obj.withdrawn for obj in lineage.since(began, newest)):
        raise Withdrawn(
            f"write {commit_id} was withdrawn: outcome() reported it as not committed. Nothing was written; submit it "
            "again",
            txn_id=commit_id,
        )


class Withdrawals:
    """The withdrawals of a line, for its owner, who knows those that it recorded and reads older ones when asked."""

    def __init__(self, log: CommitLog, newest: CommitObject) -> None:
        self._log, self._oldest = log, newest
        self._lowest = newest.seq - LOOK_BACK_MAX
        self._numbers: dict[str, int] = {}  # by write: the number of the object that records its withdrawal
        self.advance(newest)

    def advance(self, landed: CommitObject) -> None:
        for commit_id in landed.withdrawn:
            self._numbers[commit_id] = max(landed.seq, self._numbers.get(commit_id, 0))

    def look_back(self, began: int) -> None:
        """Read the line down to the number at which the oldest try began: an earlier owner may have recorded some."""
        lowest = max(began + 1, self._lowest)
        if began <= 0 or lowest >= self._oldest.seq:
            return
        for obj in self._log.down_to(self._oldest, lowest):
            self.advance(obj)
            self._oldest = obj

    def voids(self, commit_id: str, began: int) -> bool:
        """Whether a try may not land: its write was withdrawn since it began, or that is too long ago to be known.

        A try that does not say when it began does not land after a withdrawal.
        """
        return 0 < began < self._oldest.seq - 1 or began < self._numbers.get(commit_id, 0)
