"""A door with a house behind it that a test builds, and what is said to it byte by byte."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import DoorApp, Reply
from omniray.coordinator.door.calls import Call
from omniray.coordinator.door.certificate import Certificate
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.record import DoorRecord, FoundDoor
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.judge.resolution import WriteResult

LINE, PLACE = "01K9ZQ5T7Z0000000000000000", "7-7"
LANDED = WriteAnswer(WriteResult("01K9ZQ5T7Z0000000000000001", 1, 0))
TIMEOUT_S = 60.0


@dataclass
class FakeHouse:
    """A house that takes everything, and says what it was asked."""

    line: str = LINE
    places: set[str] = field(default_factory=lambda: {PLACE})
    newest: int = 41
    is_ready: bool = True
    lines: list[str] = field(default_factory=list)  # that requests were for
    versions: list[int] = field(default_factory=list)  # of the messages
    written: list[bytes] = field(default_factory=list)
    called: list[tuple[str, bytes]] = field(default_factory=list)
    answers: Callable[[bytes], Awaitable[Reply]] | None = None
    gives: Mapping[str, Any] = field(default_factory=dict)

    def newest_of(self, line: str) -> int | None:
        return self.newest if line == self.line else None

    async def write(self, line: str, sent: bytes, version: int) -> Reply:
        self.lines.append(line)
        self.versions.append(version)
        self.written.append(sent)
        if self.answers is not None:
            return await self.answers(sent)
        return Reply(200, encode_reply(LANDED, version))

    async def call(self, line: str, call: Call, arguments: bytes) -> Reply:
        self.lines.append(line)
        self.called.append((call.name, arguments))
        return Reply(200, calls.encode(self.gives.get(call.name)))

    async def stage(self, line: str, arguments: bytes) -> Reply:
        self.lines.append(line)
        self.called.append(("stage", arguments))
        return Reply(200, b"a part")

    def metrics(self) -> str:
        return "omniray_commits_total 7\n"


@dataclass
class Door:
    """A door that is open."""

    house: FakeHouse
    app: DoorApp
    server: HttpServer
    record: DoorRecord

    def wire(self, *, line: str = LINE, place: str = PLACE, newest: int = 0, **changed: Any) -> Wire:
        record = replace(self.record, **changed)
        return Wire(FoundDoor(record, place), line, newest)

    def headers(self, **changed: str | None) -> dict[str, str]:
        """The headers of a client that may call."""
        own = {"Authorization": f"Bearer {self.record.secret}", "X-Omniray-Line": LINE, "X-Omniray-Place": PLACE}
        named = {**own, **{name.replace("_", "-"): value for name, value in changed.items()}}
        return {name: value for name, value in named.items() if value is not None}

    def speak(self, sent: bytes) -> Raw:
        """A connection that has said something."""
        raw = Raw(self.server.url)
        raw.say(sent)
        return raw

    def ask(self, path: str, body: bytes = b"", *, method: str = "POST", **changed: str | None) -> Said:
        """One request on a connection of its own. Without a length of its own, it has that of the body."""
        headers = self.headers(**changed)
        if "Content_Length" not in changed:
            headers["Content-Length"] = str(len(body))
        with self.speak(head(method, path, headers) + body) as raw:
            return raw.hear()


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: door", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class Said:
    """What a server has said: a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Raw:
    """A connection of bytes."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._read = self._socket.makefile("rb")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def say(self, sent: bytes) -> None:
        self._socket.sendall(sent)

    def hear(self) -> Said:
        """The next response; fails if the connection was closed."""
        status = self._read.readline().split()
        assert status, "the connection was closed"
        headers: dict[str, str] = {}
        while line := self._read.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        return Said(int(status[1]), headers, self._read.read(int(headers.get("content-length", "0"))))

    def hear_all(self) -> bytes:
        """Everything until the other side closes."""
        try:
            return self._read.read()
        except ConnectionResetError:
            return b""

    def leave(self) -> None:
        self._read.close()
        self._socket.close()


@contextmanager
def opened(house: FakeHouse | None = None, *, certificate: Certificate | None = None) -> Iterator[Door]:
    """A door on loopback."""
    behind = house or FakeHouse()
    context: ssl.SSLContext | None = None if certificate is None else certificate.server_context()
    server = HttpServer("127.0.0.1", context=context)
    record = DoorRecord.new(server.url, "" if certificate is None else certificate.public)
    app = DoorApp(behind, record.secret)
    server.start(app)
    try:
        yield Door(behind, app, server, record)
    finally:
        server.close()
