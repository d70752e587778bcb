"""The barrier of a sweep: from its time on, no line takes a file that was staged before, and no earlier fold can land.

It is put into main's line first, then into the line of every branch that is bound there, which is begun for that if
nobody has done so; a branch that is bound later inherits it with its binding. Then each line is folded up to its
barrier: a fold that was staged before that loses its compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from omniray.engine.base.errors import NotFound
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.open_branch import OpenBranch, open_branch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Remark
from omniray.engine.line.line_end import LineEnd
from omniray.engine.line.owner import refuse_stranger
from omniray.engine.store.object_store import ObjectStore

EndOf = Callable[[str], LineEnd | None]
"""The end of a line that the caller's owner owns; None of one that every process may extend."""


def put_barrier(end: LineEnd, finaliser: Finaliser, owner: str, swept_before_us: int) -> CommitObject:
    """Put the time into one line and finish Phase D up to there; raises `LineOwned` if the line is somebody else's."""

    def build(newest: CommitObject) -> Remark:
        refuse_stranger(owner, newest)
        reach(Point.SWEEP_BEFORE_PUT)
        return Remark(new_ulid(), swept_before_us=swept_before_us)

    ours = end.record(build)
    assert ours is not None, "an object is always built"
    reach(Point.SWEEP_AFTER_PUT)
    finaliser.notice(ours)
    finaliser.flush()
    return ours


def put_on_branches(store: ObjectStore, main: CommitObject, end_of: EndOf) -> None:
    """Put the barrier that main's line has into the lines of all branches bound there."""
    for name, binding in main.bindings.items():
        if not binding.deleting:  # such a line is about to be closed
            with suppress(NotFound):  # it was deleted meanwhile
                _put_on(open_branch(store, name), main.swept_before_us, end_of)


def _put_on(branch: OpenBranch, swept_before_us: int, end_of: EndOf) -> None:
    end = end_of(branch.branch.ulid)
    finaliser = Finaliser(branch)
    try:
        owner = EMBEDDED if end is None else end.newest.owner
        put_barrier(end or branch.tip, finaliser, owner, swept_before_us)
    finally:
        finaliser.close()


def nobody_owns(line: str) -> LineEnd | None:
    """For a process that owns no line."""
    return None
