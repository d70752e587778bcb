"""A read-only graph: nothing is written, recovered or waited for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Self

from omniray.engine.base.errors import InputError, OutcomeUnknown
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.branch_handles import BranchHandles
from omniray.engine.branches.diff import GraphDiff
from omniray.engine.branches.listing import BranchInfo, list_branches
from omniray.engine.branches.states import States
from omniray.engine.history.branch_names import BranchNames
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.open_branch import OpenBranch, open_line
from omniray.engine.judge.resolution import Outcome
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Recovery
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.owner import is_owner_known_dead
from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.schema.types import Schema


class GraphReader:
    """Reads one branch of a graph as of any commit. Threads may share it; each process opens its own."""

    def __init__(self: Self, branch: OpenBranch) -> None:
        self._branch, self._pid = branch, os.getpid()
        self._others = self._no_others()

    @property
    def uri(self) -> str:
        return self._branch.store.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options it was opened with, for other processes that open it."""
        return self._branch.store.lance_options or {}

    @property
    def graph_id(self) -> str:
        """The id of the graph; a graph that is created anew at the same place has another id."""
        return self._branch.graph_id

    @property
    def line(self) -> str:
        """The ULID of the branch's line, which a later branch of the same name does not share."""
        return self._branch.branch.ulid

    @property
    def schema(self) -> Schema:
        return self._branch.schema

    @property
    def schema_text(self) -> str:
        """The schema as its author wrote it."""
        return self._branch.accepted.text

    @property
    def schema_version(self) -> int:
        """How many schemas the branch has accepted so far."""
        return self._branch.accepted.ref.version

    @property
    def schema_hash(self) -> str:
        """The hash of the schema's meaning."""
        return self._branch.schema_hash

    @property
    def branch(self) -> str:
        """The branch that the verbs work on if no other one is named, by its name when it was opened."""
        return self._branch.branch.name

    def snapshot(self, *, branch: str | None = None, at: str | date | None = None) -> Snapshot:
        """One consistent snapshot of all tables: at the head, at a commit id, or as of a time."""
        return self._on(branch)._snapshot(at)

    def _snapshot(self, at: str | date | None) -> Snapshot:
        if at is None:
            newest = self._branch.newest()
            return Snapshot(self._branch, newest.head, newest.pins, newest.is_final)
        point = self._branch.ancestry.at(at)
        return Snapshot(self._branch, point.entry.commit_id, point.pins, self._branch.tip.newest.is_final)

    def history(self, limit: int | None = None, *, branch: str | None = None) -> list[LineageEntry]:
        """The commits of a branch, newest first: its own, then those of its parents that it began with."""
        return self._on(branch)._branch.ancestry.entries(limit)

    def recoveries(self, limit: int | None = None, *, branch: str | None = None) -> list[Recovery]:
        """The recorded recoveries of a branch, newest first: one entry for each recovered operation."""
        return self._on(branch)._branch.lineage.recoveries(limit)

    def branches(self) -> list[BranchInfo]:
        """The branches of the graph: main, then the others by name."""
        return list_branches(self._on(MAIN)._branch)

    def diff(self, before: str, after: str) -> GraphDiff:
        """What leads from one state to another, each a branch or a commit of one, by rows and properties.

        Close it, or use it as a context manager, when it has been read.
        """
        main = self._on(MAIN)._branch
        states = States(main)
        try:
            return GraphDiff(states, self.schema, states.named(before), states.named(after))
        except BaseException:
            states.close()
            raise

    def outcome(self, txn_id: str, *, branch: str | None = None) -> Outcome:
        """Whether a write was committed; raises `OutcomeUnknown` if it is not found, since it may be under way."""
        txn_id = checked_txn_id(txn_id)
        on = self._on(branch)
        if on._branch.lineage.commit(txn_id) is None:
            raise on._undecided(txn_id, "open the graph read-write to find out")
        return Outcome(txn_id, committed=True)

    def _undecided(self, txn_id: str, advice: str) -> OutcomeUnknown:
        served = self._branch.tip.newest.owner != EMBEDDED
        advice = "ask the coordinator of this branch" if served else advice
        return OutcomeUnknown(
            f"{txn_id} is not committed, but a try may be under way: {advice}, or write again with this txn_id",
            txn_id=txn_id,
        )

    @property
    def owner(self) -> str:
        """The line's owner: every process (`embedded`), or one incarnation of a coordinator."""
        return self._branch.tip.refresh().owner

    def refuse_gone(self) -> None:
        """Raise `GraphGone` if the graph was deleted since it was opened, or another one created in its place."""
        refuse_gone(self._branch.store, self.graph_id)

    @property
    def served(self) -> bool:
        """Whether a coordinator that is not known to be dead owns the line: then writes go through it."""
        owner = self.owner
        return owner != EMBEDDED and not is_owner_known_dead(owner)

    def _on(self, branch: str | None) -> Self:
        """This graph on a branch: this handle, or one that is kept while the branch lives; for a verb that reads."""
        with self._using(branch) as on:
            return on

    @contextlib.contextmanager
    def _using(self, branch: str | None) -> Iterator[Self]:
        """The same for a verb that writes: the handle is not closed within this block."""
        self._refuse_fork()
        line = self.line if branch is None else self._others.line_of(branch)
        if line == self.line:
            yield self
        else:
            with self._others.used(line) as other:
                yield other

    def _no_others(self) -> BranchHandles[Self]:
        branch = self._branch
        main = branch.tip if branch.branch.is_main else None
        names = BranchNames(branch.store, branch.graph_id, branch.branch, main)
        return BranchHandles(names, self._opened, is_gone=lambda one: one._is_branch_gone, ends=lambda one: one._end())

    def _opened(self, line: str, main: CommitObject) -> Self:
        """A handle like this one for another branch; the store is this one's."""
        return type(self)(open_line(self._branch.store, line, main=main, read_only=True))

    def _end(self) -> None:
        """Release what a handle of another branch holds."""

    @property
    def _is_branch_gone(self) -> bool:
        """Whether this handle has seen that its branch was deleted."""
        return self._branch.tip.newest.closed

    def _refuse_fork(self) -> None:
        """Refuse use after a fork: neither our threads nor Lance's survive it, and a request would wait for ever."""
        if os.getpid() != self._pid:
            raise InputError("the graph was opened before this process was forked; open it again here")
