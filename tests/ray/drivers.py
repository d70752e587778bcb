"""Client processes: each has a Ray connection and a client of its own, and does what it is told over a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import omniray
from omniray.engine.failpoints import Action, Point, armed, kill
from tests.graphs import AGE, CITY, INSERT_CITY, PERSON
from tests.processes.crew import Member
from tests.ray.world import TIMEOUT_S, Served, add, quiet_ray


@contextmanager
def drivers(served: Served, count: int) -> Iterator[Sequence[Member]]:
    """So many processes that are connected to a graph."""
    members = [
        Member(_drive, served.uri, served.root.storage_options, served.address, f"driver-{number}")
        for number in range(count)
    ]
    try:
        for member in members:
            assert member.answer() == "connected"
        yield members
    finally:
        for member in members:
            member.end()


def all_at_once(members: Sequence[Member], verb: str, *arguments: Any) -> list[Any]:
    """What each of them says to the same order, when all have got it before any has answered."""
    for member in members:
        member.tell(verb, *arguments)
    return [member.answer() for member in members]


def _drive(pipe: Connection, uri: str, options: dict[str, str], address: str, name: str) -> None:
    with quiet_ray():
        client = omniray.connect(
            uri, actor=name, tenant=name, storage_options=options, address=address, timeout_s=TIMEOUT_S
        )
        pipe.send("connected")
        driver = _Driver(client, name)
        while True:
            try:
                verb, arguments = pipe.recv()
            except EOFError:
                return client.close()
            try:
                pipe.send(getattr(driver, verb)(*arguments))
            except Exception as error:
                pipe.send(error)


class _Driver:
    """What a client process can be told."""

    def __init__(self, client: omniray.Client, name: str) -> None:
        self._client, self._name = client, name

    def mix(self, count: int) -> list[str | None]:
        """Own keys appended, one key of everybody's merged, own rows changed, several tables in one write."""
        done: list[omniray.WriteResult] = []
        for number in range(count):
            own = f"{self._name}-{number}"
            hot = [{"name": "hot", "age": number}, {"name": f"{own}-merged", "age": 0}]
            edge = {"edge": "Knows", "id": own, "from": own, "to": own}
            done += [
                add(self._client, own),
                self._client.load(hot, mode="merge", type="Person"),
                self._client.mutate(AGE, {"name": own, "age": number}),
                self._client.load([{"type": "City", "data": {"name": own}}, edge]),
            ]
        return [result.commit_id for result in done]

    def add_all(self, prefix: str, count: int) -> list[str | None]:
        """Insert people one by one; the commit ids."""
        return [add(self._client, f"{self._name}-{prefix}-{n}").commit_id for n in range(count)]

    def add_strictly(self, name: str, version: int) -> bool:
        """Insert a person if the table is at a version; whether it was."""
        try:
            add(self._client, f"{self._name}-{name}", expected_versions={PERSON: version})
        except omniray.ExpectedVersionMismatch:
            return False
        return True

    def add_until_refused(self) -> tuple[list[str], omniray.OmnirayError]:
        """Insert people until that is refused: those who were accepted, and the refusal."""
        accepted: list[str] = []
        while True:
            name = f"{self._name}-{len(accepted)}"
            try:
                add(self._client, name)
            except omniray.OmnirayError as error:
                return accepted, error
            accepted.append(name)

    def die_while_loading(self, count: int) -> None:
        """Stage a large load and be killed before it is sent."""
        with armed({Point.STAGE_AFTER_ROWS: Action(kill)}):
            self._client.load([{"name": f"{self._name}-lost-{n}"} for n in range(count)], type="Person")

    def add_city(self, name: str) -> str | None:
        return self._client.mutate(INSERT_CITY, {"name": name}).commit_id

    def cities(self) -> list[str]:
        return list(self._client.snapshot().table(CITY.partition(":")[2], ["name"])["name"].to_pylist())
