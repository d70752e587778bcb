"""The door's HTTP: which requests it takes, from whom, and how large.

    GET  /healthz, /readyz, /metrics    for whoever watches it; they need no credential and tell no tenant's name
    POST /v1/write                      a write: a message as `messages.py` has them, and its answer
    POST /v1/stage                      a file to be staged by the workers, and the part that they made of it
    POST /v1/call/<name>                any other call: JSON as `calls.py` has it

The number is the version of the messages; a request is answered in its own. One of an unknown version is refused by
name, in JSON that every version reads.

A request brings the door's secret, the line of the branch that it is for, and the place that it read the door's record
from. All of that is checked before a byte of the body is read. Room for the body is taken as it arrives (`room.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from omniray.coordinator.door import paths
from omniray.coordinator.door.calls import ARGUMENTS_BYTES_MAX, CALLS, Call, encode_error
from omniray.coordinator.door.http_server import Message, Receive, Scope, Send
from omniray.coordinator.door.messages import BYTES_MAX, refuse_unknown_version
from omniray.coordinator.door.paths import CALL, JSON, LINE, NEWEST, PACKED, PLACE, WRITE, parsed_path
from omniray.coordinator.door.room import Room, Share
from omniray.engine.base.errors import (
    InputError,
    LineOwned,
    NotFound,
    OmnirayError,
    StorageError,
    Unauthenticated,
    Unreachable,
)
from omniray.engine.base.ulids import is_ulid

log = logging.getLogger("omniray")

BODY_S_MAX = 120.0
_PACKED, _JSON, _TEXT = PACKED.encode(), JSON.encode(), b"text/plain; version=0.0.4; charset=utf-8"
_LINE, _PLACE, _NEWEST = (name.lower().encode() for name in (LINE, PLACE, NEWEST))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its HTTP status."""

    status: int
    body: bytes


CarryOut = Callable[[bytes], Awaitable[Reply]]


class House(Protocol):
    """What lies behind a door: the owner of main's line, which hosts the other branches of the graph, too."""

    @property
    def line(self) -> str:
        """Main's."""

    @property
    def places(self) -> Collection[str]:
        """Where the door's record lies and has lain; empty until it is put."""

    @property
    def is_ready(self) -> bool: ...

    def newest_of(self, line: str) -> int | None:
        """The number of the newest object of a line, which every answer tells; None if the line is not open here."""

    async def write(self, line: str, sent: bytes, version: int) -> Reply: ...

    async def call(self, line: str, call: Call, arguments: bytes) -> Reply: ...

    async def stage(self, line: str, arguments: bytes) -> Reply:
        """Have a file staged as a part of a load."""

    def metrics(self) -> str: ...


class DoorApp:
    """The ASGI app of one door."""

    def __init__(self, house: House, secret: str) -> None:
        self._house, self._credential = house, f"Bearer {secret}".encode()
        self.room = Room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD"):
            await self._watched(path, send)
        elif method == "POST":
            await self._asked(path, _headers(scope), receive, send)
        else:
            await _send(send, 405, b"", _TEXT, closes=True)

    async def _watched(self, path: str, send: Send) -> None:
        """Answer a request without a credential, and close: only clients may keep connections, and count as such."""
        match path:
            case "/healthz":
                await _send(send, 200, b"ok\n", _TEXT, closes=True)
            case "/readyz":
                ready = self._house.is_ready
                said = b"ready\n" if ready else b"not ready\n"
                await _send(send, 200 if ready else 503, said, _TEXT, closes=True)
            case "/metrics":
                await _send(send, 200, self._house.metrics().encode(), _TEXT, closes=True)
            case _:
                await _send(send, 404, b"", _TEXT, closes=True)

    async def _asked(self, path: str, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        try:
            line = self._admitted(headers)
            version, name = parsed_path(path)
            carry_out, kind = self._chosen(path, version, name, line)
            size = _size(headers, BYTES_MAX if name == WRITE else ARGUMENTS_BYTES_MAX)
            with self.room.share(line, size) as share:
                reply = await carry_out(await _body(receive, size, share))
        except _Left:
            return
        except OmnirayError as error:
            # The rest of the body is not read, so the connection can't be used again.
            await _send(send, error.http_status, encode_error(error), _JSON, closes=True)
            return
        await _send(send, reply.status, reply.body, kind, newest=self._house.newest_of(line))

    def _chosen(self, path: str, version: int, name: str, line: str) -> tuple[CarryOut, bytes]:
        """What carries out a request, and the kind of its answer."""
        if name != path:
            refuse_unknown_version(version)
        match name:
            case paths.WRITE:
                return partial(self._house.write, line, version=version), _PACKED
            case paths.STAGE:
                return partial(self._house.stage, line), _PACKED
            case _:
                return partial(self._house.call, line, _call(path, name)), _JSON

    def _admitted(self, headers: Mapping[bytes, bytes]) -> str:
        """The line that a request is for; raises why it is not taken."""
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._credential):
            raise Unauthenticated("the coordinator does not know this secret: read the door's record again")
        is_ready = self._house.is_ready  # first: one that begins puts its record a moment before it knows the place
        if headers.get(_PLACE, b"").decode("latin-1") not in self._house.places:
            if not is_ready:
                raise Unreachable("the coordinator is beginning or ending: ask again")
            raise LineOwned(
                "this graph is a copy: the coordinator that its line names serves the one that it was copied from; "
                "'omniray recover --take-over' frees the copy",
                line=self._house.line,
            )
        line = headers.get(_LINE, b"").decode("latin-1")
        if not is_ulid(line):
            raise NotFound("this coordinator does not serve that branch", line=self._house.line)
        return line


class _Left(Exception):
    """The client went away while it was sending: nothing was taken from it."""


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _call(path: str, name: str) -> Call:
    called = name.removeprefix(CALL)
    if not name.startswith(CALL) or called not in CALLS:
        raise NotFound(f"no call {path[:80]!r}; there are {', '.join(CALLS)}")
    return CALLS[called]


def _size(headers: Mapping[bytes, bytes], limit: int) -> int:
    said = headers.get(b"content-length", b"")
    if not said.isdigit() or len(said) > 12:
        raise InputError("a request says how many bytes it brings (Content-Length)")
    if int(said) > limit:
        raise InputError(f"a request of {int(said)} bytes: at most {limit} are taken; split it in several")
    return int(said)


async def _body(receive: Receive, size: int, share: Share) -> bytes:
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Left
                parts.append(part := message.get("body", b""))
                share.arrived(len(part))
                if not message.get("more_body"):
                    break
    except TimeoutError as error:
        raise StorageError(f"the {size} bytes of a request did not arrive in {BODY_S_MAX:g} s") from error
    return b"".join(parts) if len(parts) > 1 else parts[0]


async def _send(
    send: Send, status: int, body: bytes, kind: bytes, *, newest: int | None = None, closes: bool = False
) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    if newest is not None:
        headers.append((_NEWEST, b"%d" % newest))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
