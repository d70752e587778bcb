"""Which other branches something was left on: each is recovered on its own line."""

from __future__ import annotations

from collections.abc import Iterator

from omniray.engine.history.branch_head import newest_of
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED


def left_on_branches(main: OpenBranch, *, take_over: bool) -> Iterator[str]:
    """The lines of branches that have sidecars; with `take_over` also those that a coordinator owns.

    Their names may be others by the time that somebody works on them.
    """
    bindings = main.newest().bindings
    named = {sidecar.line for sidecar in main.sidecars.read_all(main.sidecars.listed())} if bindings else set()
    for name, binding in bindings.items():
        if binding.deleting:
            continue
        line = CommitLog(main.store, BranchId(name, binding.ulid))
        is_owned = take_over and newest_of(line, binding, read_only=True).owner != EMBEDDED
        if is_owned or binding.ulid in named:
            yield binding.ulid
