"""The incarnations of main's publisher in one process, and the branches that it hosts beside main.

Main's line says who serves the graph: a new incarnation names the digest of its door there, and puts the door's record.
None begins once another owner has taken the line over, the graph is gone, or the line was handed back on purpose. The
lines of other branches name the same owner; their clients come through the same door.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from omniray.coordinator.actors.bound_lines import BoundLines
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.hosted_branch import HostedBranch
from omniray.coordinator.actors.hosted_branches import IDLE_S, HostedBranches
from omniray.coordinator.actors.line_service import LineService, leaving
from omniray.coordinator.actors.opener import Opener
from omniray.coordinator.actors.queue_actor import RemoteQueues
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.door.record import DoorRecord, delete_records, put_record
from omniray.engine.base.errors import Fenced, LineOwned, OmnirayError, StorageError, Unreachable
from omniray.engine.branches.branches import Branches
from omniray.engine.branches.starts import StartOf, start_of_branch
from omniray.engine.history.branch_head import BranchHead
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation, durability_after, is_owner_known_dead
from omniray.engine.store.object_store import Durability

log = logging.getLogger("omniray")

T = TypeVar("T")


class HasLeft(Unreachable):
    """The publisher has handed the line back and waits to be ended: a new one may be created in its place."""


class Incarnations(LineService):
    """The publisher of a graph's main branch, and of others that somebody writes to."""

    def __init__(
        self,
        place: Place,
        storage: Storage,
        address: str,
        queue_owners: int,
        instead_of: str,
        door: DoorRecord,
        *,
        branch_idle_s: float = IDLE_S,
        is_asked_for: bool = True,
    ) -> None:
        self.storage = storage
        self.queues = RemoteQueues(place, storage, queue_owners)
        self.totals = Gauges()
        self.door_places: set[str] = set()  # of this incarnation and those before it: a client may know an earlier one
        self._place, self._door, self._instead_of = place, door, instead_of
        self._opener = Opener(storage)
        self._owners: set[str] = set()  # of all incarnations in this process
        self._is_asked_for = is_asked_for  # or begins by itself: then only in the place of one that has died or ended
        line = place.graph_id
        super().__init__(
            line, address, self.queues.of(line), partial(RemoteReconciler, place, storage, line), Gauges(self.totals)
        )
        lines = BoundLines(lambda: self.publisher.newest, lambda: self.branch.tip.another().refresh())
        self.hosted = HostedBranches(self._host, lines, idle_s=branch_idle_s)
        self._open()

    # Beginning

    def _open(self) -> None:
        branch = self._opener.opened(self.line)
        self._refuse_usurping(branch.tip.newest)
        branch = self._as_durable_as_before(branch)
        owner = str(Incarnation.new(self.address))
        self._owners.add(owner)
        self._is_asked_for = False
        taken = self._begin_on(branch, owner, self.storage.durability, door=self._door.digest)
        with contextlib.suppress(StorageError):  # they open nothing any more; the next incarnation deletes them
            delete_records(branch.store, taken.epoch)
        if any(binding.deleting for binding in taken.bindings.values()):
            threading.Thread(target=self._finish_deletions, name="omniray-finish-deletions", daemon=True).start()

    def _taken_over(self, taken: CommitObject) -> None:
        self.door_places.add(put_record(self.branch.store, self._door, taken.epoch))

    def _as_durable_as_before(self, branch: OpenBranch) -> OpenBranch:
        """The branch, opened with the durability of the coordinator whose place this one takes, if that is more."""
        wanted = Durability(self.storage.durability)
        kept = durability_after(branch.tip.newest, wanted, instead_of=self._instead_of)
        if kept is wanted:
            return branch
        self._opener.close()
        self.storage = replace(self.storage, durability=kept.value)
        self._opener = Opener(self.storage)
        self.queues.use(self.storage)
        self.reconciler.use(self.storage)
        return self._opener.opened(self.line)

    def _refuse_usurping(self, newest: CommitObject) -> None:
        """Never take the line from a coordinator of another cluster, except from `instead_of`.

        Ray restarts a publisher whenever it can, also long after another cluster has taken over, or after it has handed
        the line back and before it was ended. A line that belongs to nobody is taken only by one that was asked for.
        """
        owner = newest.owner
        if owner == EMBEDDED and not self._is_asked_for:
            raise Fenced(
                f"the line was handed back in epoch {newest.epoch}: no coordinator begins on it by itself; "
                "'omniray up' starts one",
                epoch=newest.epoch,
            )
        if owner in (EMBEDDED, self._instead_of) or is_owner_known_dead(owner):
            return
        if (address := Incarnation.parse(owner).address) != self.address:
            raise LineOwned(
                f"a coordinator serves this graph from the cluster at {address}: write through it with "
                "omniray.connect(uri)",
                address=address,
            )

    def begin(self, instead_of: str) -> None:
        """Begin a new incarnation if the last one ended and the line is free; raises if none may begin.

        A publisher that was taken down does not begin again: the process that took it down may be about to end this
        actor. It waits for that process, or for another one that ends it instead.
        """
        if self._has_left:
            raise HasLeft(f"the coordinator at {self.address} has handed the line back", address=self.address)
        if self._is_leaving:
            raise leaving(self.address)
        self._instead_of, self._is_asked_for = instead_of, True
        try:
            self._open_if_ended()
        finally:
            self._is_asked_for = False

    # Other branches

    def _host(self, line: str) -> HostedBranch:
        """Serve another branch from now on."""
        return HostedBranch(
            line, self.address, self._opened_beside, self.queues.of(line),
            partial(RemoteReconciler, self._place, self.storage, line), Gauges(self.totals),
            on_over=self.hosted.forget, on_graph_gone=self._stay_behind,
        )  # fmt: skip

    def _opened_beside(self, line: str) -> tuple[OpenBranch, str, str]:
        """A branch to be served, its owner and its durability; raises `Fenced` if another coordinator owns main's line.

        Who owns main serves the graph: without this look, two coordinators might take a branch from each other.
        """
        main = self.branch.tip.another().refresh()
        if main.owner not in self._owners:
            raise Fenced(
                f"another owner has taken this graph over in epoch {main.epoch}: this coordinator serves none of its "
                "branches any more; send the write again with the same id",
                epoch=main.epoch, owner=main.owner,
            )  # fmt: skip
        return self._opener.opened(line, main=main), self._owner, self.storage.durability

    def change_branches(self, carry_out: Callable[[Branches], T], txn_id: str | None = None, began: int = 0) -> T:
        """Carry out a verb that changes which branches there are; no round of main is under way meanwhile."""
        publisher = self.admit()
        try:
            with self._held(publisher, txn_id, began):
                return carry_out(Branches(self.branch, self._tip, publisher.steps.notice, owner=self._owner))
        finally:
            self._end_deleted()

    def start_of(self, from_: str | None) -> StartOf:
        """Where a new branch is to begin. To look that up may take long, and main's rounds go on meanwhile."""
        self.admit()
        return start_of_branch(self.branch, self.branch.tip.another(), from_)

    def _finish_deletions(self) -> None:
        """Delete the branches whose deletion the last incarnation has begun; else who wants their names does."""
        try:
            self.change_branches(Branches.finish)
        except OmnirayError as error:
            log.warning("event=deletions_not_finished error=%s", error)

    def _end_deleted(self) -> None:
        """Tell the writers of branches that were deleted just now, who would learn it from their next round."""
        bound = {binding.ulid for binding in self.publisher.newest.bindings.values() if not binding.is_doomed}
        for branch in self.hosted.open:
            if branch.line not in bound:
                branch.look_again()

    def name_of(self, line: str) -> str:
        """The name that a branch has now; empty for one that was deleted."""
        if line == self.line:
            return MAIN
        bindings = self.publisher.newest.bindings
        return next((name for name, binding in bindings.items() if binding.ulid == line), "")

    def look_at(self, line: str) -> BranchHead:
        """A branch as it is in storage, for whoever does not want to write to it; nothing is put."""
        return self._opener.looked_at(line, main=self.branch.tip.another().refresh())

    # Ending

    def _stay_behind(self, gone: OmnirayError) -> None:
        """End the other actors of a graph that is gone; this one stays, to tell its clients so."""
        self._gone = gone
        self.queues.end()
        self.reconciler.end()

    def _lost(self, error: OmnirayError) -> None:
        threading.Thread(target=self.hosted.let_all_go, name="omniray-let-go", daemon=True).start()

    def drain(self) -> None:
        """Hand all lines back, main's last: as long as that is ours, clients are told here what happens."""
        with self._life:
            self._is_leaving = True
        self.hosted.drain(leaving(self.address))
        super().drain()

    def _released(self) -> None:
        with contextlib.suppress(StorageError):  # it opens nothing any more
            delete_records(self.branch.store, self._tip.newest.epoch)
