"""A client's handles of the branches that it works on: each is kept by its line's ULID, and found by a name.

So a handle never comes to mean another branch that has got the name meanwhile. One whose branch was deleted is dropped,
and the next call by that name looks for the branch that has it then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from omniray.coordinator.client.delivery import Delivery
from omniray.coordinator.client.link import Link
from omniray.coordinator.client.wire import Known, Wire
from omniray.engine.base.errors import BranchGone
from omniray.engine.branch_handles import BranchHandles
from omniray.engine.branches.merge import Operation, foretell
from omniray.engine.branches.merge_result import MergeResult, MergeTerms
from omniray.engine.branches.states import States
from omniray.engine.history.branch_names import BranchNames
from omniray.engine.history.open_branch import OpenBranch, open_line
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.load_stager import LoadStager
from omniray.engine.reader import GraphReader
from omniray.engine.store.object_store import ObjectStore


class LineLink(Link):
    """The link of main for another branch: its requests name the line of that branch.

    What is known of the line outlasts the wire of main: a write that began before main's coordinator was found again
    must not seem to have begun at no number.
    """

    def __init__(self, main: Link, branch: OpenBranch) -> None:
        self._main, self._line, self._known = main, branch.branch.ulid, Known(branch.tip.newest.seq)
        self._wire_on = main.wire.on(self._line, self._known)

    @property
    def wire(self) -> Wire:
        root = self._main.wire
        if self._wire_on.root is not root:
            self._wire_on = root.on(self._line, self._known)
        return self._wire_on

    def found_again(self, lost: Wire, timeout_s: float) -> None:
        self._main.found_again(lost.root, timeout_s)

    def close(self) -> None:
        """The link of main has the connections."""


@dataclass(frozen=True, slots=True)
class OnBranch:
    """The graph on one branch: what reads it, stages for it and writes to it."""

    branch: OpenBranch
    graph: GraphReader
    stager: LoadStager
    link: Link
    delivery: Delivery

    @classmethod
    def of(cls, branch: OpenBranch, link: Link, timeout_s: float) -> OnBranch:
        return cls(branch, GraphReader(branch), LoadStager(branch), link, Delivery(link, timeout_s))

    @property
    def name(self) -> str:
        """The branch's name when it was opened."""
        return self.branch.branch.name

    def foretold(self, operation: Callable[[States, CommitObject], Operation], terms: MergeTerms) -> MergeResult:
        """What a merge or a revert would do now; nothing is written."""
        with contextlib.closing(States(self.branch)) as states:
            head = self.branch.newest()
            return foretell(self.branch, head, operation(states, head), terms)


class OnBranches:
    """The handles of one client. Threads may share it."""

    def __init__(self, store: ObjectStore, main: OnBranch, timeout_s: float) -> None:
        self._store, self._main, self._timeout_s = store, main, timeout_s
        names = BranchNames(store, main.branch.graph_id, main.branch.branch, main.branch.tip)
        self._others: BranchHandles[OnBranch] = BranchHandles(
            names, self._opened, is_gone=lambda one: one.branch.tip.newest.closed, ends=lambda one: None
        )

    @contextlib.contextmanager
    def on(self, name: str | None) -> Iterator[OnBranch]:
        """The handle of a branch, main if none is named; dropped if the branch turns out to be deleted."""
        if name in (None, MAIN):
            yield self._main
            return
        line = self._others.line_of(str(name))
        with self._others.used(line) as handle:
            try:
                yield handle
            except BranchGone as gone:
                if gone.facts.get("line") == line:
                    self._others.drop(line)
                raise

    def forget_names(self) -> None:
        """Look for every name anew: which branches there are has changed."""
        self._others.names.forget()

    def _opened(self, line: str, main: CommitObject) -> OnBranch:
        branch = open_line(self._store, line, main=main)
        return OnBranch.of(branch, LineLink(self._main.link, branch), self._timeout_s)
