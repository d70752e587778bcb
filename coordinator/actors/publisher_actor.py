"""The publisher's Ray actor: opens the door of a graph, and answers the coordinator's own actors and processes.

It hosts main, and other branches while somebody writes to them.

Writers don't call it: they come through the door (`house.py`).
"""

from __future__ import annotations

from typing import Any

from omniray.coordinator.actors.actor import create
from omniray.coordinator.actors.cluster import Place, Storage, end_of_self, own_host, was_restarted
from omniray.coordinator.actors.hosted_branches import IDLE_S
from omniray.coordinator.actors.house import CoordinatorHouse
from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.reconciler import NotServed
from omniray.coordinator.door.app import DoorApp
from omniray.coordinator.door.certificate import Certificate
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.record import DoorRecord, is_loopback
from omniray.engine.base.errors import OmnirayError
from omniray.engine.line.commit_object import CommitObject, Remark

CALLS_MAX = 128


class PublisherActor:
    """Publishes one graph; calls of Ray return a value or the error to raise."""

    def __init__(
        self,
        place: Place,
        storage: Storage,
        address: str,
        queue_owners: int,
        instead_of: str,
        branch_idle_s: float = IDLE_S,
    ) -> None:
        host = own_host()
        certificate = None if is_loopback(host) else Certificate.new(host)
        context = None if certificate is None else certificate.server_context()
        self._server = HttpServer(host, context=context)
        record = DoorRecord.new(self._server.url, certificate.public if certificate else "")
        self._incarnations = Incarnations(
            place, storage, address, queue_owners, instead_of, record,
            branch_idle_s=branch_idle_s, is_asked_for=not was_restarted(),
        )  # fmt: skip
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

    def lines(self) -> list[str]:
        """The lines of the branches that are hosted beside main."""
        return [branch.line for branch in self._incarnations.hosted.open]

    def host(self, line: str) -> OmnirayError | None:
        """Open a branch, if it is not."""
        try:
            with self._incarnations.hosted.opened(line):
                return None
        except OmnirayError as error:
            return error

    def newest(self, line: str = "") -> CommitObject | OmnirayError:
        """The newest object of a line; main's, if none is named."""
        try:
            return self._publisher(line).newest
        except OmnirayError as error:
            return error

    def remark(self, line: str, remark: Remark) -> OmnirayError | None:
        try:
            self._publisher(line).remark(remark).result()
        except OmnirayError as error:
            return error
        return None

    def _publisher(self, line: str) -> Publisher:
        if line in ("", self._incarnations.line):
            return self._incarnations.publisher
        if (branch := self._incarnations.hosted.found(line)) is None:
            raise NotServed(f"the branch with the id {line} is not hosted", line=line)
        return branch.publisher


def create_publisher(
    place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str, branch_idle_s: float = IDLE_S
) -> Any:
    """The existing publisher of a graph, or a new one, which may take main's line over from `instead_of`."""
    return create(
        PublisherActor, place.publisher, place, storage, address, queue_owners, instead_of, branch_idle_s,
        max_concurrency=CALLS_MAX,
    )  # fmt: skip
