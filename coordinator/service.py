"""The coordinator of one graph as its clients see it: found or started, asked, and taken down."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from omniray.coordinator import cluster
from omniray.coordinator.cluster import Place, Storage, ray
from omniray.coordinator.wire import packed, unpacked
from omniray.engine.commit_log import MAIN_BRANCH
from omniray.engine.errors import LineOwned, OmnirayError, OutcomeUnknown, Unreachable
from omniray.engine.graph import Graph
from omniray.engine.heal import RecoveryReport
from omniray.engine.line import EMBEDDED
from omniray.engine.owner import Incarnation, is_owner_known_dead
from omniray.engine.request import Request

if TYPE_CHECKING:
    from omniray.coordinator.conflicts import WriteAnswer
    from omniray.coordinator.publisher_actor import Status

START_TIMEOUT_S = 120.0
LOOK_EVERY_S = 0.2
QUEUE_OWNERS_MAX = 8


@dataclass(frozen=True, slots=True)
class Service:
    """A coordinator that answers. `started_ray` says that its cluster ends with this process."""

    publisher: Any
    place: Place
    storage: Storage
    address: str
    started_ray: bool

    def submit(self, request: Request, timeout_s: float) -> WriteAnswer:
        """Send a write and wait for its answer, which is raised if it is an error."""
        module = ray()
        try:
            answer = unpacked(module.get(self.publisher.submit.remote(packed(request)), timeout=timeout_s))
        except module.exceptions.GetTimeoutError as error:
            self.publisher.abandon.remote(request.header.commit_id)
            raise OutcomeUnknown("no answer in time", txn_id=request.header.commit_id) from error
        except module.exceptions.RayError as error:  # it may have run all the same
            raise OutcomeUnknown(_silent(self.address, error), txn_id=request.header.commit_id) from error
        if isinstance(answer, OmnirayError):
            raise answer
        answered: WriteAnswer = answer
        return answered

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

    def found_again(self, graph: Graph, timeout_s: float) -> Service:
        """The service after its publisher has died or lost the line; raises `LineOwned` if there is none here any more.

        One that was taken down is not started again: whoever took it down would have to fight its clients.
        """
        owner = graph.owner
        if owner == EMBEDDED:
            raise LineOwned(
                f"the coordinator at {self.address} was taken down: connect again, which starts one", owner=owner
            )
        try:
            found = serve(graph, self.storage.uri, self.storage.options, self.address, timeout_s=timeout_s)
        except Unreachable:
            return self  # it is asked again, until its caller's time is over
        return replace(found, started_ray=self.started_ray)

    def down(self, timeout_s: float) -> None:
        """Drain, hand the line back to everybody, and end the actors."""
        self._ask("drain", timeout_s)
        self.end()

    def end(self) -> None:
        """End the actors as they are: for those of a coordinator that has lost the line."""
        for name in (self.place.publisher, self.place.reconciler):
            _end(name)
        number = 0
        while _end(self.place.queues(number)) or number < QUEUE_OWNERS_MAX:
            number += 1

    def close(self, timeout_s: float) -> None:
        """Let go; a cluster that was started by this process is taken down."""
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
    graph: Graph,
    uri: str,
    storage_options: Mapping[str, str] | None,
    address: str | None,
    *,
    take_over: bool = False,
    timeout_s: float = START_TIMEOUT_S,
) -> Service:
    """The coordinator of a graph: the one that serves it, or a new one on the cluster at `address` or of this machine.

    One that serves it from another cluster is not taken over, unless that is asked for: two never serve at once.
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
    place, storage = _place(graph), _storage(uri, storage_options)
    publisher = _begin(place, storage, here, owner if take_over else "", timeout_s)
    return Service(publisher, place, storage, here, started_ray)


def find(graph: Graph, uri: str, storage_options: Mapping[str, str] | None) -> Service | None:
    """The coordinator that serves a graph, None where there is none; nothing is started.

    One that owns the line and is not to be found is `Unreachable`, unless it is known to be dead.
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
    return Service(publisher, _place(graph), _storage(uri, storage_options), address, started_ray=False)


def _begin(place: Place, storage: Storage, here: str, instead_of: str, timeout_s: float) -> Any:
    """The publisher, once it is there: Ray may be restarting it."""
    from omniray.coordinator.publisher_actor import create_publisher

    deadline = time.monotonic() + timeout_s
    while True:
        publisher = cluster.find(place.publisher) or create_publisher(place, storage, here, _queue_owners(), instead_of)
        left_s = max(0.0, deadline - time.monotonic())
        try:
            _answer(publisher, "begin", left_s, here, instead_of, group="admin")
        except Unreachable:
            if left_s <= LOOK_EVERY_S:
                raise
            time.sleep(LOOK_EVERY_S)
        else:
            return publisher


def _serving_at(owner: str) -> str | None:
    """The address of the coordinator that owns the line, unless it is known to be dead."""
    return None if owner == EMBEDDED or is_owner_known_dead(owner) else Incarnation.parse(owner).address


def _place(graph: Graph) -> Place:
    return Place(graph.graph_id, str(MAIN_BRANCH))


def _storage(uri: str, options: Mapping[str, str] | None) -> Storage:
    return Storage(absolute(uri), None if options is None else dict(options))


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
        answer = module.get(asked, timeout=timeout_s)
    except module.exceptions.RayTaskError as error:
        if isinstance(error.cause, OmnirayError):
            raise error.cause from error
        raise
    except module.exceptions.GetTimeoutError as error:
        message = f"the coordinator at {address} gave no answer in {timeout_s:g} s: ask again"
        raise Unreachable(message, address=address) from error
    except module.exceptions.RayError as error:
        raise Unreachable(_silent(address, error), address=address) from error
    if isinstance(answer, OmnirayError):
        raise answer
    return answer


def _silent(address: str, error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"the coordinator at {address} does not answer: {first}"


def _end(name: str) -> bool:
    actor = cluster.find(name)
    if actor is not None:
        ray().kill(actor)
    return actor is not None
