"""Starts the coordinator of a graph on a Ray cluster, watches over it there, and ends it.

For `omniray up` and tests. Clients need none of it: they find a coordinator by the line, and call it through its door.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.actor import first_line
from omniray.coordinator.actors.cluster import Place, Storage, ray
from omniray.coordinator.actors.hosted_branches import IDLE_S
from omniray.coordinator.actors.incarnations import HasLeft
from omniray.coordinator.actors.publisher_actor import create_publisher
from omniray.engine.base.errors import LineOwned, OmnirayError, Unreachable
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation, is_owner_known_dead
from omniray.engine.reader import GraphReader
from omniray.engine.store.object_store import Durability

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.2
QUEUE_OWNERS_MAX = 8
WAIT_S_MAX = 24 * 60 * 60.0
"""The longest wait in one call of Ray: its milliseconds must fit a machine integer."""


class _CouldNotBegin(Unreachable):
    """The actor failed when it was created: another one would fail too."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A coordinator on the Ray cluster that this process has joined. `url` is its door's."""

    publisher: Any
    place: Place
    storage: Storage
    address: str
    url: str

    def newest(self) -> CommitObject:
        """The newest object of the line."""
        newest: CommitObject = _answer(self.publisher, "newest", ANSWER_TIMEOUT_S, self.address)
        return newest

    def clients(self) -> int:
        """How many clients are connected."""
        return int(_answer(self.publisher, "clients", ANSWER_TIMEOUT_S, self.address))

    def down(self, timeout_s: float) -> None:
        """Drain, hand the line back (`embedded`), and end the actors."""
        _answer(self.publisher, "drain", timeout_s, self.address)
        _end_actors(self.publisher, self.place)

    def end(self) -> None:
        """End the actors without draining: for a coordinator that has lost the line."""
        _end_actors(cluster.find(self.place.publisher), self.place)


def host(
    graph: GraphReader,
    uri: str,
    storage_options: Mapping[str, str] | None,
    address: str | None,
    *,
    take_over: bool = False,
    durability: str = Durability.PROCESS.value,
    timeout_s: float = START_TIMEOUT_S,
    branch_idle_s: float = IDLE_S,
) -> Hosted:
    """The coordinator of a graph on the cluster at `address`, or of this machine: the one that is there, or a new one.

    A coordinator on another cluster is fenced only with `take_over`: two never serve at once. `branch_idle_s`: how long
    a new one keeps a branch that nobody uses.
    """
    owner = graph.owner
    serving_at = _serving_at(owner)
    cluster.join(address)
    here = cluster.address()
    if serving_at is not None and serving_at != here and not take_over:
        raise LineOwned(
            f"a coordinator serves this graph from the cluster at {serving_at}: write through it with "
            "omniray.connect(uri), take it down with 'omniray down', or take over with 'omniray up --take-over' if it "
            "is gone for good",
            address=serving_at,
        )
    options = None if storage_options is None else dict(storage_options)
    place = Place(graph.graph_id)
    storage = Storage(uri if "://" in uri else os.path.abspath(uri), options, graph.graph_id, durability)
    new = partial(create_publisher, place, storage, here, _queue_owners(), owner if take_over else "", branch_idle_s)
    publisher = _begin(place, new, here, owner if take_over else "", timeout_s)
    return Hosted(publisher, place, storage, here, str(_answer(publisher, "url", timeout_s, here)))


def _begin(place: Place, new: Callable[[], Any], here: str, instead_of: str, timeout_s: float) -> Any:
    """The publisher, once it answers: Ray may be restarting it.

    A publisher that was taken down but not ended is ended here, and a new one created.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = cluster.find(place.publisher)
        publisher = found or new()
        left_s = max(0.0, deadline - time.monotonic())
        try:
            _answer(publisher, "begin", left_s, here, instead_of)
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


def _queue_owners() -> int:
    cpus = int(ray().cluster_resources().get("CPU", 1))
    return max(1, min(QUEUE_OWNERS_MAX, cpus // 2))


def _answer(actor: Any, method: str, timeout_s: float, address: str, *arguments: Any) -> Any:
    module = ray()
    try:
        answer = module.get(getattr(actor, method).remote(*arguments), timeout=min(timeout_s, WAIT_S_MAX))
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
        silent = f"the coordinator at {address} does not answer: {first_line(error)}"
        raise Unreachable(silent, address=address) from error
    if isinstance(answer, OmnirayError):
        raise answer
    return answer


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
