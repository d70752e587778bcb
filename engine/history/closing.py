"""Closes the line of a branch that is being deleted: that is the deletion, and whoever finds it unfinished does it."""

from __future__ import annotations

from omniray.engine.base.errors import BranchGone
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history.branch_head import newest_of
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Binding, CommitObject, close
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import Tip
from omniray.engine.store.object_store import ObjectStore


def close_line(store: ObjectStore, graph_id: str, name: str, binding: Binding) -> bool:
    """Close the line of a binding that is marked as `deleting`, whoever owns it; it is begun first if nobody has.

    False if it was to be closed only at a commit and has gone on since: then it lives. The closing object follows the
    one that was looked at, so no commit comes in between.
    """
    line = CommitLog(store, BranchId(name, binding.ulid))
    newest = newest_of(line, binding, read_only=False)
    tip = Tip(line, newest, is_folded=lambda obj: False, refuse_gone=lambda: refuse_gone(store, graph_id))

    def closing(newest: CommitObject) -> CommitObject | None:
        return None if binding.only_at not in ("", newest.head) else close(newest, op_id=new_ulid())

    try:
        return tip.extend(closing) is not None
    except BranchGone:  # it is closed
        return True
