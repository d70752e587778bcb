"""The publisher's Ray actor: opens the door of one branch, and answers the coordinator's own actors and processes.

Writers don't call it: they come through the door (`house.py`).
"""

from __future__ import annotations

from typing import Any

from omniray.coordinator.actors.actor import create
from omniray.coordinator.actors.cluster import Place, Storage, end_of_self, own_host
from omniray.coordinator.actors.house import CoordinatorHouse
from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.door.app import DoorApp
from omniray.coordinator.door.certificate import Certificate
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.record import DoorRecord, is_loopback
from omniray.engine.base.errors import OmnirayError
from omniray.engine.line.commit_object import CommitObject, Remark

CALLS_MAX = 64


class PublisherActor:
    """Publishes one branch; calls of Ray return a value or the error to raise."""

    def __init__(self, place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> None:
        host = own_host()
        certificate = None if is_loopback(host) else Certificate.new(host)
        context = None if certificate is None else certificate.server_context()
        self._server = HttpServer(host, context=context)
        record = DoorRecord.new(self._server.url, certificate.public if certificate else "")
        self._incarnations = Incarnations(place, storage, address, queue_owners, instead_of, record)
        self._house = CoordinatorHouse(self._incarnations, self._server.url, end_of_self())
        self._server.start(DoorApp(self._house, record.secret))

    def begin(self, instead_of: str) -> OmnirayError | None:
        """Make the publisher ready; begin a new incarnation if the last one ended and the line is free."""
        try:
            self._incarnations.begin(instead_of)
        except OmnirayError as error:
            return error
        return None

    def url(self) -> str:
        return self._server.url

    def clients(self) -> int:
        """How many connections are open: a client keeps at least one while it lives."""
        return self._server.connections

    def drain(self) -> None:
        self._house.down()

    # For the reconciler

    def newest(self) -> CommitObject:
        return self._incarnations.publisher.newest

    def remark(self, remark: Remark) -> OmnirayError | None:
        try:
            self._incarnations.publisher.remark(remark).result()
        except OmnirayError as error:
            return error
        return None


def create_publisher(place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> Any:
    """The existing publisher of a branch, or a new one, which may take the line over from `instead_of`."""
    return create(
        PublisherActor, place.publisher, place, storage, address, queue_owners, instead_of, max_concurrency=CALLS_MAX
    )
