"""A graph's coordinator as its clients use it: find or start it, call it, take it down."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.cluster import Place, Storage, ray
from omniray.coordinator.door.answers import decode_reply
from omniray.coordinator.door.requests import encode_request
from omniray.engine.base.errors import LineOwned, OmnirayError, OutcomeUnknown, Unreachable
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation, is_owner_known_dead
from omniray.engine.reader import GraphReader
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.store.object_store import Durability
from omniray.engine.writes.write_requests import Request

if TYPE_CHECKING:
    from omniray.coordinator.actors.publisher_actor import Status
    from omniray.coordinator.rounds.conflicts import WriteAnswer

START_TIMEOUT_S = 120.0
PROCESS = Durability.PROCESS.value
LOOK_EVERY_S = 0.2
QUEUE_OWNERS_MAX = 8
WAIT_S_MAX = 24 * 60 * 60.0
"""The longest wait in one call of Ray: its milliseconds must fit a machine integer."""


class _CouldNotBegin(Unreachable):
    """The actor failed when it was created: another one would fail too."""


@dataclass(frozen=True, slots=True)
class Service:
    """A coordinator that answers. `started_ray`: this process started its cluster, which ends with the process."""

    publisher: Any
    place: Place
    storage: Storage
    address: str
    started_ray: bool

    def submit(self, request: Request, timeout_s: float) -> WriteAnswer:
        """Send a write and wait for its answer; an error is raised."""
        module = ray()
        try:
            answer = decode_reply(_waited_for(self.publisher.submit.remote(encode_request(request)), timeout_s))
        except module.exceptions.GetTimeoutError as error:
            self.publisher.abandon.remote(request.header.commit_id)
            raise OutcomeUnknown("no answer in time", txn_id=request.header.commit_id) from error
        except module.exceptions.RayError as error:  # the write may still have been applied
            raise OutcomeUnknown(_silent(self.address, error), txn_id=request.header.commit_id) from error
        if isinstance(answer, OmnirayError):
            raise answer
        return answer

    def is_committed(self, commit_id: str, timeout_s: float) -> bool:
        return bool(self._ask("is_committed", timeout_s, commit_id))

    def status(self, timeout_s: float) -> Status:
        found: Status = self._ask("status", timeout_s)
        return found

    def flush(self, timeout_s: float) -> None:
        self._of_reconciler("flush", timeout_s)

    def recover(self, timeout_s: float) -> RecoveryReport:
        report: RecoveryReport = self._of_reconciler("recover", timeout_s)
        return report

    def found_again(self, graph: GraphReader, timeout_s: float) -> Service:
        """The service after its publisher has died or lost the line; raises `LineOwned` if none serves here any more.

        Raises `Unreachable` if it does not answer in time, and the store's error if the line can't be read. A
        coordinator that was taken down is not started again: its clients must not undo `omniray down`. Nor is one
        whose graph is gone (`GraphGone`), which could not begin.
        """
        graph.refuse_gone()
        owner = graph.owner
        if owner == EMBEDDED:
            raise LineOwned(
                f"the coordinator at {self.address} was taken down: connect again, which starts one", owner=owner
            )
        found = serve(
            graph, self.storage.uri, self.storage.options, self.address,
            durability=self.storage.durability, timeout_s=timeout_s,
        )  # fmt: skip
        return replace(found, started_ray=self.started_ray)

    def down(self, timeout_s: float) -> None:
        """Drain, hand the line back (`embedded`), and end the actors."""
        self._ask("drain", timeout_s)
        _end_actors(self.publisher, self.place)

    def end(self) -> None:
        """End the actors without draining: for a coordinator that has lost the line."""
        _end_actors(cluster.find(self.place.publisher), self.place)

    def close(self, timeout_s: float) -> None:
        """Disconnect; a cluster that this process started is taken down."""
        if self.started_ray:
            try:
                self.down(timeout_s)
            finally:
                cluster.leave()

    def _ask(self, method: str, timeout_s: float, *arguments: Any) -> Any:
        return _answer(self.publisher, method, timeout_s, self.address, *arguments, group="admin")

    def _of_reconciler(self, method: str, timeout_s: float) -> Any:
        reconciler = cluster.find(self.place.reconciler)
        if reconciler is None:
            raise Unreachable(f"the coordinator at {self.address} has no reconciler; try again", address=self.address)
        return _answer(reconciler, method, timeout_s, self.address)


def serve(
    graph: GraphReader,
    uri: str,
    storage_options: Mapping[str, str] | None,
    address: str | None,
    *,
    take_over: bool = False,
    durability: str = PROCESS,
    timeout_s: float = START_TIMEOUT_S,
) -> Service:
    """The coordinator that serves a graph, or a new one on the cluster at `address` or of this machine.

    A coordinator on another cluster is fenced only with `take_over`: two never serve at once.
    """
    owner = graph.owner
    serving_at = _serving_at(owner)
    started_ray = cluster.join(address or (None if take_over else serving_at))
    here = cluster.address()
    if serving_at is not None and serving_at != here and not take_over:
        raise LineOwned(
            f"a coordinator serves this graph from the cluster at {serving_at}: connect to that one, take it down with "
            "'omniray down', or take over with 'omniray up --take-over' if it is gone for good",
            address=serving_at,
        )
    place, storage = _place(graph), _storage(graph, uri, storage_options, durability)
    publisher = _begin(place, storage, here, owner if take_over else "", timeout_s)
    return Service(publisher, place, storage, here, started_ray)


def find(graph: GraphReader, uri: str, storage_options: Mapping[str, str] | None) -> Service | None:
    """The coordinator that serves a graph, or None; nothing is started.

    Raises `Unreachable` if the line's owner can't be found and is not known to be dead.
    """
    owner = graph.owner
    if owner == EMBEDDED:
        return None
    address = Incarnation.parse(owner).address
    if not cluster.is_listening(address):
        if is_owner_known_dead(owner):
            return None
        raise _gone(address, "does not answer")
    cluster.join(address)
    publisher = cluster.find(_place(graph).publisher)
    if publisher is None:
        raise _gone(address, "has ended without handing the branch back")
    return Service(publisher, _place(graph), _storage(graph, uri, storage_options), address, started_ray=False)


def end_idle(graph: GraphReader) -> int:
    """End the left-over actors of a coordinator that handed the line back but was not ended.

    Only on a cluster that runs on this machine, or that this process has joined; returns how many it ended.
    """
    if not cluster.is_running_here():
        return 0
    cluster.join(None)
    try:
        place = _place(graph)
        names = (place.publisher, place.reconciler, *(place.queues(number) for number in range(QUEUE_OWNERS_MAX)))
        return sum(cluster.end(name) for name in names)
    finally:
        cluster.leave()


def _begin(place: Place, storage: Storage, here: str, instead_of: str, timeout_s: float) -> Any:
    """The publisher, once it answers: Ray may be restarting it.

    A publisher that was taken down but not ended is ended here, and a new one created.
    """
    from omniray.coordinator.actors.publisher_actor import HasLeft, create_publisher

    deadline = time.monotonic() + timeout_s
    while True:
        found = cluster.find(place.publisher)
        publisher = found or create_publisher(place, storage, here, _queue_owners(), instead_of)
        left_s = max(0.0, deadline - time.monotonic())
        try:
            _answer(publisher, "begin", left_s, here, instead_of, group="admin")
        except Unreachable as error:
            if isinstance(error, HasLeft):
                _end_actors(publisher, place)
            if left_s <= LOOK_EVERY_S or (found is None and isinstance(error, _CouldNotBegin)):
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return publisher


def _serving_at(owner: str) -> str | None:
    """The address of the coordinator that owns the line, unless it is known to be dead."""
    return None if owner == EMBEDDED or is_owner_known_dead(owner) else Incarnation.parse(owner).address


def _place(graph: GraphReader) -> Place:
    return Place(graph.line)


def _storage(graph: GraphReader, uri: str, options: Mapping[str, str] | None, durability: str = PROCESS) -> Storage:
    return Storage(
        absolute(uri), None if options is None else dict(options), graph.graph_id, graph.line, durability=durability
    )


def _gone(address: str, what: str) -> Unreachable:
    return Unreachable(
        f"the coordinator of this graph at {address} {what}: if it is gone for good, start one with "
        "'omniray up --take-over', or write without one after 'omniray recover --take-over'",
        address=address,
    )


def _queue_owners() -> int:
    cpus = int(ray().cluster_resources().get("CPU", 1))
    return max(1, min(QUEUE_OWNERS_MAX, cpus // 2))


def absolute(uri: str) -> str:
    return uri if "://" in uri else os.path.abspath(uri)


def _answer(actor: Any, method: str, timeout_s: float, address: str, *arguments: Any, group: str | None = None) -> Any:
    module = ray()
    call = getattr(actor, method)
    try:
        asked = (call if group is None else call.options(concurrency_group=group)).remote(*arguments)
        answer = _waited_for(asked, timeout_s)
    except module.exceptions.RayTaskError as error:
        if isinstance(error.cause, OmnirayError):
            raise error.cause from error
        raise
    except module.exceptions.GetTimeoutError as error:
        message = f"the coordinator at {address} gave no answer in {timeout_s:g} s: ask again"
        raise Unreachable(message, address=address) from error
    except module.exceptions.RayError as error:
        if getattr(error, "actor_init_failed", False):
            raise _CouldNotBegin(_not_begun(address, error), address=address) from error
        raise Unreachable(_silent(address, error), address=address) from error
    if isinstance(answer, OmnirayError):
        raise answer
    return answer


def _waited_for(asked: Any, timeout_s: float) -> Any:
    return ray().get(asked, timeout=min(timeout_s, WAIT_S_MAX))


def _silent(address: str, error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"the coordinator at {address} does not answer: {first}"


def _not_begun(address: str, error: BaseException) -> str:
    """The message for an actor that failed when it was created: Ray's text ends with the error itself."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return f"a coordinator could not begin on the cluster at {address}: {reason.strip()}"


def _end_actors(publisher: Any | None, place: Place) -> None:
    """End a publisher and its actors; a publisher that has taken its place creates new ones."""
    if publisher is not None:
        ray().kill(publisher)
    cluster.end(place.reconciler)
    number = 0
    while cluster.end(place.queues(number)) or number < QUEUE_OWNERS_MAX:
        number += 1
