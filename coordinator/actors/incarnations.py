"""The incarnations of a branch's publisher in one process: a new one begins when the last has ended.

Each begins from storage alone: it takes the line over with the next epoch, names the digest of its door there, and puts
the door's record. None begins once another owner has taken the line over, the graph is gone, or the line was handed
back on purpose.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import replace
from functools import partial

from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.queue_actor import RemoteQueues
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.door.calls import RepairTerms
from omniray.coordinator.door.record import DoorRecord, delete_records, put_record
from omniray.coordinator.door.requests import RequestDecoder
from omniray.engine.base.errors import Fenced, GraphGone, LineOwned, NotFound, OmnirayError, StorageError, Unreachable
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import Incarnation, durability_after, is_owner_known_dead, release, take_over
from omniray.engine.recovery.repair import Repair, RepairReport
from omniray.engine.store.object_store import Durability

log = logging.getLogger("omniray")

BEGIN_PAUSE_S_MAX = 5.0
RELEASE_PAUSES_S = (0.1, 0.5, 2.0, 5.0)
IDLE_LOOK_S = 0.01


class HasLeft(Unreachable):
    """The publisher has handed the line back and waits to be ended: a new one may be created in its place."""


class Incarnations:
    """The publisher of one branch, as long as this process is to serve it."""

    def __init__(
        self, place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str, door: DoorRecord
    ) -> None:
        self.storage, self.address = storage, address
        self.queues = RemoteQueues(place, storage, queue_owners)
        self.reconciler = RemoteReconciler(place, storage, self._noticed)
        self.finalised = Finalised(0, {})
        self.gauges = Gauges()
        self.door_places: set[str] = set()  # of this incarnation and those before it: a client may know an earlier one
        self._door, self._instead_of = door, instead_of
        self._life = threading.Lock()
        self._has_ended = self._is_leaving = self._has_left = False
        self._gone: OmnirayError | None = None
        self._open()

    @property
    def is_serving(self) -> bool:
        return not (self._has_ended or self._is_leaving or self._gone)

    def admit(self, commit_id: str = "") -> Publisher:
        """The publisher that takes a write, or raises why none does; one under way is not turned away any more."""
        if self._is_leaving and self.publisher.under_way(commit_id) is None:
            raise _leaving(self.address)
        if self._gone is not None:
            raise self._gone
        if self._has_ended:
            raise Fenced("this life of the publisher has ended; send the write again with the same id")
        return self.publisher

    # Beginning

    def _open(self) -> None:
        """Begin a new incarnation: take the line over, and start from storage alone."""
        branch = self.storage.opened()
        self._refuse_usurping(branch.tip.newest)
        branch = self._as_durable_as_before(branch)
        self.branch, self.decoder = branch, RequestDecoder(branch.schema, branch.schema_hash)
        self._tip = branch.tip.another()
        self._owner = str(Incarnation.new(self.address))
        taken = take_over(self._tip, self._owner, Durability(self.storage.durability), door=self._door.digest)
        self.door_places.add(put_record(branch.store, self._door, taken.epoch))
        self.publisher = Publisher(
            branch, self._tip, self.queues, self._landed,
            owner=self._owner, on_ended=partial(self._ended, self._owner), gauges=self.gauges,
        )  # fmt: skip
        self._has_ended, self._gone = False, None
        self.reconciler.notice(taken, taken.op_id)  # and so Phase D of what the last incarnation left
        with contextlib.suppress(StorageError):  # they open nothing any more; the next incarnation deletes them
            delete_records(branch.store, taken.epoch)

    def _as_durable_as_before(self, branch: OpenBranch) -> OpenBranch:
        """The branch, opened with the durability of the coordinator whose place this one takes, if that is more."""
        wanted = Durability(self.storage.durability)
        kept = durability_after(branch.tip.newest, wanted, instead_of=self._instead_of)
        if kept is wanted:
            return branch
        branch.store.close()
        self.storage = replace(self.storage, durability=kept.value)
        self.queues.use(self.storage)
        self.reconciler.use(self.storage)
        return self.storage.opened()

    def _refuse_usurping(self, newest: CommitObject) -> None:
        """Never take the line from a coordinator of another cluster, except from `instead_of`.

        Ray restarts a publisher whenever it can, also long after another cluster has taken over.
        """
        owner = newest.owner
        if owner in (EMBEDDED, self._instead_of) or is_owner_known_dead(owner):
            return
        if (address := Incarnation.parse(owner).address) != self.address:
            raise LineOwned(
                f"a coordinator serves this graph from the cluster at {address}: connect to that one", address=address
            )

    def begin(self, instead_of: str) -> None:
        """Begin a new incarnation if the last one ended and the line is free; raises if none may begin.

        A publisher that was taken down does not begin again: the process that took it down may be about to end this
        actor. It waits for that process, or for another one that ends it instead.
        """
        if self._has_left:
            raise HasLeft(f"the coordinator at {self.address} has handed the line back", address=self.address)
        if self._is_leaving:
            raise _leaving(self.address)
        self._instead_of = instead_of
        self._open_if_ended()

    def _open_if_ended(self) -> None:
        with self._life:
            if self._has_ended and not self._is_leaving:
                self._open()

    # Ending

    def _ended(self, owner: str, error: OmnirayError) -> None:
        """Begin a new incarnation, unless another owner has taken over or the graph is gone: then only report that.

        A late step of an earlier incarnation may end that one once more, which says nothing of this one.
        """
        if owner != self._owner:
            return
        self._has_ended = True
        if isinstance(error, GraphGone):
            self._stay_behind(error)
        elif not (isinstance(error, Fenced) or self._is_leaving):
            threading.Thread(target=self._begin_anew, name="omniray-begin-anew", daemon=True).start()

    def _begin_anew(self) -> None:
        pause_s = 0.1
        while True:
            try:
                return self._open_if_ended()
            except LineOwned as error:
                return log.warning("event=begin_refused error=%s", error)
            except NotFound as error:  # the graph is gone, or another one is in its place
                self._stay_behind(error)
                return log.warning("event=begin_refused error=%s", error)
            except OmnirayError as error:
                log.warning("event=begin_failed error=%s", error)
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, BEGIN_PAUSE_S_MAX)

    def _stay_behind(self, gone: OmnirayError) -> None:
        """End the other actors of a graph that is gone; this one stays, to tell its clients so."""
        self._gone = gone
        self.queues.end()
        self.reconciler.end()

    def drain(self) -> None:
        """Take no more writes, finish those under way, and hand the line back (`embedded`).

        Raises if the line could not be handed back: the coordinator still owns it then, and may be drained again.
        """
        self._is_leaving = True
        while not self.publisher.is_idle:
            time.sleep(IDLE_LOOK_S)
        self.publisher.end(_leaving(self.address))
        if self._gone is None:  # else it was ended already
            self.reconciler.close()
        with contextlib.suppress(GraphGone):  # then there is no line to hand back
            self._release()
            with contextlib.suppress(StorageError):  # it opens nothing any more
                delete_records(self.branch.store, self._tip.newest.epoch)
        self._has_left = True

    def _release(self) -> None:
        """Hand the line back, in several tries: all writes are answered, and only this keeps embedded writers out."""
        for pause_s in RELEASE_PAUSES_S:
            try:
                release(self._tip, self._owner)
            except StorageError as error:
                log.warning("event=release_failed error=%s", error)
                time.sleep(pause_s)
            else:
                return
        release(self._tip, self._owner)

    # Repairing

    def repair(self, terms: RepairTerms) -> RepairReport:
        """Show or repair what a foreign writer did to tables; no round is under way while one is repaired."""
        publisher = self.admit()
        if not (terms.adopt or terms.discard):
            return self._repair(publisher, self.branch.tip.another(), terms)
        with publisher.held():
            report = self._repair(publisher, self._tip, terms)
        self.reconciler.flush()
        self.reconciler.recover()  # operations may have waited for the repair
        return report

    def _repair(self, publisher: Publisher, tip: Tip, terms: RepairTerms) -> RepairReport:
        return Repair(self.branch, tip, publisher.steps, publisher.steps.attempts, owner=self._owner).carried_out(
            terms.tables, adopt=terms.adopt, discard=terms.discard, actor=terms.actor
        )

    # Phase D

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        self.reconciler.notice(landed, operation_id)

    def _noticed(self, finalised: Finalised) -> None:
        self.finalised = finalised
        self.publisher.finalised(finalised.through, finalised.drifted)


def _leaving(address: str) -> Unreachable:
    return Unreachable(
        f"the coordinator at {address} was taken down and takes no more writes; nothing was written: connect again, "
        "which starts one, or write with 'omniray.open'",
        address=address,
    )
