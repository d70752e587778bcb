"""The barrier of a sweep: from its time on, no line takes a file that was staged before, and no earlier fold can land.

It is put into main's line first, then into the line of every branch that is bound there, which is begun for that if
nobody has done so; a branch that is bound later inherits it with its binding. A line that is being deleted still takes
commits, so it is closed instead. Then each line is folded up to its barrier: a fold that was staged before that loses
its compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from omniray.engine.base.errors import BranchGone, LineOwned
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.branch_head import find_branch
from omniray.engine.history.closing import close_line
from omniray.engine.history.open_branch import OpenBranch, open_line
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Remark
from omniray.engine.line.line_end import LineEnd
from omniray.engine.line.owner import inherit, refuse_stranger
from omniray.engine.store.object_store import ObjectStore

BRANCHES_AT_ONCE = 8

EndOf = Callable[[str], LineEnd | None]
"""The end of a line that has an owner, if that is the caller's own."""


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
    """Put the barrier that main's line has into the lines of all branches bound there; those being deleted are closed.

    A branch is known by its line alone: its name may be another one by now.
    """
    with ThreadPoolExecutor(BRANCHES_AT_ONCE, thread_name_prefix="omniray-barrier") as pool:
        for _ in pool.map(partial(_put_on, store, main, end_of), main.bindings):
            pass


def _put_on(store: ObjectStore, main: CommitObject, end_of: EndOf, name: str) -> None:
    binding = main.bindings[name]
    try:
        if not binding.is_doomed:  # one that is deleted only if nobody writes to it may live on
            _put_as_owner(open_line(store, binding.ulid, main=main), main.swept_before_us, end_of)
            return
    except LineOwned as owned:
        raise LineOwned(f"branch {name!r}: {owned}", **{**owned.facts, "branch": name}) from owned
    except BranchGone:  # told by its line, which is closed then, or by somebody who has found it being deleted
        if _is_live(store, binding.ulid):
            raise
    close_line(store, main.line, name, binding)


def _put_as_owner(branch: OpenBranch, swept_before_us: int, end_of: EndOf) -> None:
    """Put the barrier as the owner of a branch's line, or as anybody if it has none that lives."""
    is_embedded = branch.tip.newest.owner == EMBEDDED or inherit(branch.tip)
    end = None if is_embedded else end_of(branch.branch.ulid)
    finaliser = Finaliser(branch)
    try:
        owner = EMBEDDED if end is None else end.newest.owner
        put_barrier(end or branch.tip, finaliser, owner, swept_before_us)
    finally:
        finaliser.close()


def _is_live(store: ObjectStore, line: str) -> bool:
    """Whether a branch has this line, by what main's says now, and nobody is deleting it, under a condition or not."""
    bindings = find_branch(store).newest.bindings.values()
    return any(binding.ulid == line and not binding.deleting for binding in bindings)


def nobody_owns(line: str) -> LineEnd | None:
    """For a process that owns no line."""
    return None
