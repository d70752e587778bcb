"""The publisher's Ray actor: a thin shell around `Publisher` that begins a new incarnation when one has ended.

Calls of the concurrency group `admin` are answered while writes are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omniray.coordinator.actors.actor import create
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.gauges import Rates
from omniray.coordinator.actors.metrics import ExportedGauges
from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.queue_actor import RemoteQueues
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.requests import decode_request
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import Fenced, GraphGone, LineOwned, NotFound, OmnirayError, StorageError, Unreachable
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Remark
from omniray.engine.line.owner import Incarnation, durability_after, is_owner_known_dead, release, take_over
from omniray.engine.store.object_store import Durability
from omniray.engine.writes.write_requests import Request

log = logging.getLogger("omniray")

WRITES_MAX = 50_000
BEGIN_PAUSE_S_MAX = 5.0
RELEASE_PAUSES_S = (0.1, 0.5, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a coordinator at one moment."""

    uri: str
    address: str
    owner: str
    epoch: int
    seq: int
    head: str
    waiting: int
    rounds: int
    commits: int
    refusals: dict[str, int]
    rates: Rates
    finalised_through: int
    drifted: tuple[str, ...]
    recovered: int
    trouble: str  # the error that stops the reconciler's recovery, if any
    queue_owners: int

    @property
    def pending_finalisations(self) -> int:
        return self.seq - self.finalised_through


class HasLeft(Unreachable):
    """The publisher has handed the line back and waits to be ended: a new one may be created in its place."""


class PublisherActor:
    """Publishes one branch; every call returns a value or the error to raise."""

    def __init__(self, place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> None:
        self._storage, self._address, self._instead_of = storage, address, instead_of
        self._queues = RemoteQueues(place, storage, queue_owners)
        self._finalised = Finalised(0, {})
        self._reconciler = RemoteReconciler(place, storage, self._noticed)
        self._life = threading.Lock()
        self._has_ended = self._is_leaving = self._has_left = False
        self._gone: OmnirayError | None = None
        self._gauges = ExportedGauges(storage.uri, storage.branch)
        self._open()

    def _open(self) -> None:
        """Begin a new incarnation: take the line over, and start from storage alone."""
        branch = self._storage.opened()
        self._refuse_usurping(branch.tip.newest)
        branch = self._as_durable_as_before(branch)
        self._branch = branch
        self._tip = branch.tip.another()
        self._owner = str(Incarnation.new(self._address))
        taken = take_over(self._tip, self._owner, Durability(self._storage.durability))
        self._publisher = Publisher(
            branch, self._tip, self._queues, self._landed,
            owner=self._owner, on_ended=partial(self._ended, self._owner), gauges=self._gauges,
        )  # fmt: skip
        self._has_ended, self._gone = False, None
        self._reconciler.notice(taken, taken.op_id)  # and so Phase D of what the last incarnation left

    def _as_durable_as_before(self, branch: OpenBranch) -> OpenBranch:
        """The branch, opened with the durability of the coordinator whose place this one takes, if that is more."""
        wanted = Durability(self._storage.durability)
        kept = durability_after(branch.tip.newest, wanted, instead_of=self._instead_of)
        if kept is wanted:
            return branch
        branch.store.close()
        self._storage = replace(self._storage, durability=kept.value)
        self._queues.use(self._storage)
        self._reconciler.use(self._storage)
        return self._storage.opened()

    def _refuse_usurping(self, newest: CommitObject) -> None:
        """Never take the line from a coordinator of another cluster, except from `instead_of`.

        Ray restarts a publisher whenever it can, also long after another cluster has taken over.
        """
        owner = newest.owner
        if owner in (EMBEDDED, self._instead_of) or is_owner_known_dead(owner):
            return
        if (address := Incarnation.parse(owner).address) != self._address:
            raise LineOwned(
                f"a coordinator serves this graph from the cluster at {address}: connect to that one", address=address
            )

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
        self._queues.end()
        self._reconciler.end()

    def _open_if_ended(self) -> None:
        with self._life:
            if self._has_ended and not self._is_leaving:
                self._open()

    # Writes

    async def submit(self, sent: bytes) -> bytes:
        """Take a write as it arrives; one that can't be read is refused alone."""
        try:
            request = decode_request(sent, self._branch.schema, self._branch.schema_hash)
        except OmnirayError as error:
            return encode_reply(error)
        return encode_reply(await self._submit(request))

    async def _submit(self, request: Request) -> WriteAnswer | OmnirayError:
        if self._is_leaving and self._publisher.under_way(request.header.commit_id) is None:
            return _leaving(self._address)
        if self._gone is not None:
            return self._gone
        if self._has_ended:
            return Fenced("this life of the publisher has ended; send the write again with the same id")
        try:
            return await asyncio.wrap_future(self._publisher.submit(request))
        except OmnirayError as error:
            return error

    async def abandon(self, commit_id: str) -> None:
        self._publisher.abandon(commit_id)

    # Admin

    async def remark(self, remark: Remark) -> WriteAnswer | OmnirayError:
        try:
            return await asyncio.wrap_future(self._publisher.remark(remark))
        except OmnirayError as error:
            return error

    async def newest(self) -> CommitObject:
        return self._publisher.newest

    async def is_committed(self, commit_id: str) -> bool | None:
        """Whether a write is in the line; None while it is under way."""
        is_under_way = self._publisher.under_way(commit_id) is not None  # first: it may land during the look-up
        is_committed = await asyncio.to_thread(self._publisher.is_committed, commit_id)
        return True if is_committed else None if is_under_way else False

    async def status(self) -> Status:
        await self._reconciler.ask()
        gauges, newest = self._publisher.gauges, self._publisher.newest
        return Status(
            uri=self._storage.uri,
            address=self._address,
            owner=newest.owner,
            epoch=newest.epoch,
            seq=newest.seq,
            head=newest.head,
            waiting=self._publisher.waiting,
            rounds=gauges.rounds,
            commits=gauges.commits,
            refusals=dict(gauges.refusals),
            rates=gauges.rates(),
            finalised_through=self._finalised.through,
            drifted=tuple(self._finalised.drifted),
            recovered=self._reconciler.recovered,
            trouble=self._reconciler.trouble,
            queue_owners=self._queues.made,
        )

    async def begin(self, instead_of: str) -> OmnirayError | None:
        """Make the publisher ready for a client; begin a new incarnation if the last one ended and the line is free.

        A publisher that was taken down does not begin again: the process that took it down may be about to end this
        actor. It waits for that process, or for a client that ends it instead.
        """
        if self._has_left:
            return HasLeft(f"the coordinator at {self._address} has handed the line back", address=self._address)
        if self._is_leaving:
            return _leaving(self._address)
        self._instead_of = instead_of
        try:
            return await asyncio.to_thread(self._open_if_ended)
        except OmnirayError as error:
            return error

    async def drain(self) -> None:
        """Take no more writes, finish those under way, and hand the line back (`embedded`).

        Raises if the line could not be handed back: the coordinator still owns it then, and may be drained again.
        """
        self._is_leaving = True
        while not self._publisher.is_idle:
            await asyncio.sleep(0.01)
        self._publisher.end(_leaving(self._address))
        await asyncio.to_thread(self._hand_back)

    def _hand_back(self) -> None:
        if self._gone is None:  # else it was ended already
            self._reconciler.close()
        with contextlib.suppress(GraphGone):  # then there is no line to hand back
            self._release()
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

    # Phase D

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        self._reconciler.notice(landed, operation_id)

    def _noticed(self, finalised: Finalised) -> None:
        self._finalised = finalised
        self._publisher.finalised(finalised.through, finalised.drifted)


def create_publisher(place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> Any:
    """The existing publisher of a branch, or a new one, which may take the line over from `instead_of`."""
    groups = {"concurrency_groups": {"admin": 64}}
    return create(
        PublisherActor, place.publisher, place, storage, address, queue_owners, instead_of, groups=groups,
        max_concurrency=WRITES_MAX,
    )  # fmt: skip


def _leaving(address: str) -> Unreachable:
    return Unreachable(
        f"the coordinator at {address} was taken down and takes no more writes; nothing was written: connect again, "
        "which starts one, or write with 'omniray.open'",
        address=address,
    )
