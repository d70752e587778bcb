"""The verbs of branches of a client: the coordinator carries them out, each once for its id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from omniray.coordinator.client.link import Link
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import Call, CreateTerms, DeleteTerms, RenameTerms
from omniray.engine.base.principal import Author, checked_message
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.branches.branches import BranchChange
from omniray.engine.branches.listing import BranchInfo
from omniray.engine.reader import GraphReader


class BranchVerbs(ABC):
    """What a client can do to branches, with the signatures that `Graph` has."""

    _graph: GraphReader
    _link: Link
    _timeout_s: float

    @abstractmethod
    def written_by(self, actor: str | None, tenant: str | None) -> Author:
        """The author of a write: the given actor and tenant, else those of this client."""

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

    def _said(
        self, name: str, actor: str | None, tenant: str | None, message: str, txn_id: str | None
    ) -> dict[str, Any]:
        """What all verbs of branches have in common; one that is sent again is carried out once, by its id."""
        author = self.written_by(actor, tenant)
        said = {"name": name, "actor": author.actor, "tenant": author.tenant, "message": checked_message(message)}
        return {**said, "txn_id": new_ulid() if txn_id is None else checked_txn_id(txn_id)}

    def _changed(self, call: Call, terms: Any, txn_id: str | None) -> BranchChange:
        self._refuse_unusable()
        done: BranchChange = self._link.call(call, self._timeout_s, terms)
        return replace(done, repeated=False) if txn_id is None else done  # a new id can only have been ours
