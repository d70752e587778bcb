"""Reverts a commit: its changes are taken back by a new commit, and what came later stays.

It is a three-way merge whose base is the state after the commit, and whose source the state before it. So a property
that was changed again since is a conflict, as in a merge. Commits that landed together are reverted together.
"""

from __future__ import annotations

from dataclasses import replace

from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.branches.bases import Place, includes
from omniray.engine.branches.merge import Operation
from omniray.engine.branches.states import States
from omniray.engine.line.commit_object import CommitObject

KIND = "Revert"


def revert_of(states: States, head: CommitObject, commit_id: str, branch: str) -> Operation:
    """The operation that takes a commit back on a branch whose head this is."""
    named = states.of_commit(commit_id)
    line, seq = named.place
    if not includes(head.contains, named.place):
        raise NotFound(
            f"commit {commit_id} is no part of the branch {branch}: revert it on the branch that has it",
            wanted=commit_id, branch=branch,
        )  # fmt: skip
    if seq == 1:
        raise InputError(f"commit {commit_id} created the graph, and can't be reverted", commit_id=commit_id)
    before = replace(states.at(Place(line, seq - 1)), commit_id=commit_id)
    what = f"can't revert commit {commit_id} on {branch}"
    return Operation(KIND, what, before, named, bases=(named.place,))
