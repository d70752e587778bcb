"""The verbs of branches of a client: the coordinator carries them out, each once for its id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from omniray.coordinator.client.delivery import beginning, checked_timeout
from omniray.coordinator.client.link import Link
from omniray.coordinator.client.on_branch import OnBranch, OnBranches
from omniray.coordinator.client.waits import carried_out
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import Call, CreateTerms, DeleteTerms, MergeCall, RenameTerms, RevertCall
from omniray.engine.base.errors import BranchGone, Conflict
from omniray.engine.base.principal import Author, checked_message
from omniray.engine.base.ulids import checked_commit_id, checked_txn_id, new_ulid
from omniray.engine.branches.branches import BranchChange
from omniray.engine.branches.diff import GraphDiff
from omniray.engine.branches.listing import BranchInfo
from omniray.engine.branches.merge import merge_of
from omniray.engine.branches.merge_result import MergeResult, MergeTerms, refuse_undeletable
from omniray.engine.branches.revert import revert_of
from omniray.engine.line.branch_id import MAIN
from omniray.engine.reader import GraphReader

MERGE_TIMEOUT_S = 3600.0

Result = TypeVar("Result", BranchChange, MergeResult)


class BranchVerbs(ABC):
    """What a client can do to branches, with the signatures that `Graph` has."""

    _graph: GraphReader
    _link: Link
    _handles: OnBranches
    _timeout_s: float

    @abstractmethod
    def written_by(self, actor: str | None, tenant: str | None) -> Author:
        """The author of a write: the given actor and tenant, else those of this client."""

    @abstractmethod
    def _on(self, branch: str | None) -> AbstractContextManager[OnBranch]:
        """The graph on a branch, by its name; main if none is named."""

    @abstractmethod
    def _refuse_unusable(self) -> None:
        """Raise if the client is closed, or was connected before a fork."""

    def branches(self) -> list[BranchInfo]:
        """The branches of the graph: main, then the others by name."""
        self._refuse_unusable()
        return self._graph.branches()

    def create_branch(
        self,
        name: str,
        from_: str | None = None,
        *,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Create a branch of another one's head, or of a commit or a time of the history, as `Graph.create_branch`."""
        said = self._said(name, actor, tenant, message, txn_id)
        return self._changed(calls.BRANCH_CREATE, CreateTerms(**said, start=from_), txn_id)

    def delete_branch(
        self,
        name: str,
        *,
        force: bool = False,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Delete a branch; with `force` the branches that began on it, too, as `Graph.delete_branch`."""
        said = self._said(name, actor, tenant, message, txn_id)
        return self._changed(calls.BRANCH_DELETE, DeleteTerms(**said, force=force), txn_id)

    def rename_branch(
        self,
        name: str,
        new_name: str,
        *,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        txn_id: str | None = None,
    ) -> BranchChange:
        """Give a branch another name; handles that are open keep working."""
        said = self._said(name, actor, tenant, message, txn_id)
        return self._changed(calls.BRANCH_RENAME, RenameTerms(**said, new_name=new_name), txn_id)

    def diff(self, before: str, after: str) -> GraphDiff:
        """What leads from one state to another, each a branch or a commit of one, as `Graph.diff`."""
        self._refuse_unusable()
        return self._graph.diff(before, after)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        preview: bool = False,
        on_conflict: str = "fail",
        delete_source: bool = False,
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        txn_id: str | None = None,
        timeout_s: float = MERGE_TIMEOUT_S,
    ) -> MergeResult:
        """Merge a branch, or a commit of one, into a branch, as `Graph.merge`; a preview needs no coordinator."""
        author = self.written_by(actor, tenant)
        terms = MergeTerms.checked(author, message, _checked(txn_id), on_conflict)
        timeout_s = checked_timeout(timeout_s)
        if delete_source:
            refuse_undeletable(source)
        with self._on(into) as on:
            if preview:
                return on.foretold(lambda states, _: merge_of(on.branch.branch, states.named(source)), terms)
            call = MergeCall(source=source, **_asked(terms), began=_begun(on.link, timeout_s))
            done: MergeResult = on.link.call(calls.MERGE, timeout_s, call)
        return _ours(self._without_source(source, done, terms) if delete_source else done, txn_id)

    def _without_source(self, source: str, merged: MergeResult, terms: MergeTerms) -> MergeResult:
        """Delete the branch that was merged, if it may be deleted, as `Graph.merge` does."""
        said = self._said(source, terms.author.actor, terms.author.tenant, terms.message, None)
        asked = DeleteTerms(**said, line=merged.source_line, only_at=merged.source_commit)
        try:
            self._changed(calls.BRANCH_DELETE, asked, None)
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
        actor: str | None = None,
        tenant: str | None = None,
        message: str = "",
        txn_id: str | None = None,
        timeout_s: float = MERGE_TIMEOUT_S,
    ) -> MergeResult:
        """Take back what a commit changed, as a new commit, as `Graph.revert`."""
        author = self.written_by(actor, tenant)
        terms = MergeTerms.checked(author, message, _checked(txn_id), on_conflict)
        timeout_s = checked_timeout(timeout_s)
        commit_id = checked_commit_id(commit_id)
        with self._on(branch) as on:
            if preview:
                return on.foretold(lambda states, head: revert_of(states, head, commit_id, on.name), terms)
            call = RevertCall(commit_id=commit_id, **_asked(terms), began=_begun(on.link, timeout_s))
            done: MergeResult = on.link.call(calls.REVERT, timeout_s, call)
            return _ours(done, txn_id)

    def _said(
        self, name: str, actor: str | None, tenant: str | None, message: str, txn_id: str | None
    ) -> dict[str, Any]:
        """What all verbs of branches have in common; one that is sent again is carried out once, by its id."""
        self._refuse_unusable()
        author = self.written_by(actor, tenant)
        said = {"name": name, "actor": author.actor, "tenant": author.tenant, "message": checked_message(message)}
        return {**said, "txn_id": _checked(txn_id), "began": _begun(self._link, self._timeout_s)}

    def _changed(self, call: Call, terms: Any, txn_id: str | None) -> BranchChange:
        try:
            done: BranchChange = self._link.call(call, self._timeout_s, terms)
        finally:
            self._handles.forget_names()
        return _ours(done, txn_id)


def _checked(txn_id: str | None) -> str:
    """The id of a verb, a new one if none is given: one that is sent again is carried out once."""
    return new_ulid() if txn_id is None else checked_txn_id(txn_id)


def _begun(link: Link, timeout_s: float) -> int:
    return carried_out(beginning(link, timeout_s))


def _asked(terms: MergeTerms) -> dict[str, Any]:
    author = terms.author
    return {
        "txn_id": terms.txn_id, "on_conflict": terms.on_conflict.value, "actor": author.actor,
        "tenant": author.tenant, "message": terms.message,
    }  # fmt: skip


def _ours(result: Result, txn_id: str | None) -> Result:
    """The result of a verb: only a verb of ours can have had a new id before."""
    return replace(result, repeated=False) if txn_id is None else result
