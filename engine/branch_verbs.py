"""The verbs of a graph that are about branches: create, delete, rename, merge, revert."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from omniray.engine.base.errors import BranchGone, Conflict, NotFound
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_commit_id
from omniray.engine.branches.branches import BranchChange, Branches
from omniray.engine.branches.merge import Merger, foretell, merge_of
from omniray.engine.branches.merge_result import MergeResult, MergeTerms, refuse_undeletable
from omniray.engine.branches.revert import revert_of
from omniray.engine.branches.states import States
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.line_end import Tip
from omniray.engine.reader import GraphReader
from omniray.engine.writer import Writer


class BranchVerbs(GraphReader):
    """A graph that can also change its branches; what it writes with is made by the class that opens it."""

    _writer: Writer
    _finaliser: Finaliser
    _tip: Tip
    _owner: str
    _branches_of_main: Branches  # of a handle of main

    def _refuse_unwritable(self) -> None:
        raise NotImplementedError

    def create_branch(
        self,
        name: str,
        from_: str | None = None,
        *,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Create a branch of another one's head, or of a commit or a time of the history; by default of main's head.

        No table is touched. `txn_id` makes it safe to repeat, as in `load`, and is the branch's id.
        """
        author = Author(actor, tenant)
        with self._branches() as branches:
            return branches.create(name, from_, author=author, message=message, txn_id=txn_id)

    def delete_branch(
        self,
        name: str,
        *,
        force: bool = False,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Delete a branch; with `force` the branches that began on it, too, without it such a branch is refused.

        From then on its writers and readers get `BranchGone`; a later branch of its name is another one.
        """
        author = Author(actor, tenant)
        with self._branches() as branches:
            return branches.delete(name, force=force, author=author, message=message, txn_id=txn_id)

    def rename_branch(
        self,
        name: str,
        new_name: str,
        *,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Give a branch another name; handles that are open keep working."""
        author = Author(actor, tenant)
        with self._branches() as branches:
            return branches.rename(name, new_name, author=author, message=message, txn_id=txn_id)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        preview: bool = False,
        on_conflict: str = "fail",
        delete_source: bool = False,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        txn_id: str | None = None,
    ) -> MergeResult:
        """Merge a branch, or a commit of one, into a branch: row by row and property by property, as one commit.

        Raises `MergeConflicts` if both sides changed the same things differently, and nothing is written then;
        `on_conflict` may settle values with `ours` (the target's) or `theirs`. A `preview` writes nothing, and returns
        the conflicts. `txn_id` makes it safe to repeat, as in `load`. `delete_source` deletes the branch afterwards,
        unless somebody has written to it since: then the result says that it was kept (`source_kept`).
        """
        terms = MergeTerms.checked(Author(actor, tenant), message, txn_id, on_conflict)
        if delete_source:
            refuse_undeletable(source)
        with self._using(into) as on, closing(States(on._branch)) as states:
            if preview:
                operation = merge_of(on._branch.branch, states.named(source))
                return foretell(on._branch, on._branch.newest(), operation, terms)
            merger = on._merger()
            try:
                named = states.named(source)
            except NotFound:  # it may have been deleted after the first try
                if txn_id is None or (first := merger.first_outcome(txn_id)) is None:
                    raise
                result = first
            else:
                result = merger.merge(named, terms)
        return self._without_source(result, terms) if delete_source else result

    def _without_source(self, merged: MergeResult, terms: MergeTerms) -> MergeResult:
        """Delete the branch that was merged, if it may be deleted; the merge stands in any case."""
        line, head = merged.source_line, merged.source_commit
        try:
            with self._branches() as branches:
                branches.delete_merged(line, head, author=terms.author, message=terms.message)
        except BranchGone:  # it was deleted already
            return merged
        except Conflict as kept:
            return replace(merged, source_kept=str(kept))
        return merged

    def revert(
        self,
        commit_id: str,
        *,
        branch: str | None = None,
        preview: bool = False,
        on_conflict: str = "fail",
        actor: str = "",
        tenant: str = "",
        message: str = "",
        txn_id: str | None = None,
    ) -> MergeResult:
        """Take back what a commit changed, as a new commit; what was changed again since conflicts, as in a merge.

        A commit that landed in a group is reverted with its group (`source_group` of the result).
        """
        terms = MergeTerms.checked(Author(actor, tenant), message, txn_id, on_conflict)
        with self._using(branch) as on, closing(States(on._branch)) as states:
            head = on._branch.newest()
            operation = revert_of(states, head, checked_commit_id(commit_id), on.branch)
            if preview:
                return foretell(on._branch, head, operation, terms)
            return on._merger().carry_out(operation, terms)

    def _merger(self) -> Merger:
        self._refuse_unwritable()
        writer, tip = self._writer, self._branch.tip.another()
        return Merger(self._branch, tip, self._finaliser, writer.attempts, owner=self._owner, held=writer.held)

    @contextlib.contextmanager
    def _branches(self) -> Iterator[Branches]:
        """What changes the branches, while this process's writes to main wait: it moves the end of main's line."""
        self._refuse_unwritable()
        try:
            with self._using(MAIN) as main, main._writer.held():
                yield main._branches_of_main
        finally:
            self._others.names.forget()
