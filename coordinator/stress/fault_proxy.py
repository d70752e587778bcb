"""A proxy before an S3 endpoint that lets requests go wrong: the store in bad weather.

It runs in a process of its own, since the calls of Lance would hold up a thread. Requests and answers are passed on
byte by byte, so that signatures stay whole: they are made for the address of the proxy, which the store sees as its
own. What is meant for an endpoint that only speaks TLS can't be broken in this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from omniray.engine.base.errors import StorageError

DELAY_S = 0.5
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
HEAD_BYTES_MAX = 1 << 20
_BODILESS = (b"204", b"304")


class StoreFault(StrEnum):
    """What goes wrong with a request."""

    INTERNAL_ERROR = "internal_error"  # 500, and nothing happened
    SLOW_DOWN = "slow_down"  # 503, and nothing happened
    LOST_ANSWER = "lost_answer"  # it happened, and the connection breaks instead of an answer
    DELAY = "delay"  # it happens, late


_REFUSALS = {
    StoreFault.INTERNAL_ERROR: ("500 Internal Server Error", "InternalError"),
    StoreFault.SLOW_DOWN: ("503 Slow Down", "SlowDown"),
}


@dataclass(frozen=True, slots=True)
class Weather:
    """What goes wrong at the moment, and with which share of the requests."""

    fault: StoreFault
    share: float

    def __str__(self) -> str:
        return f"{self.fault} of {self.share:.0%} of the requests"


@dataclass(frozen=True, slots=True)
class FaultProxy:
    """A running proxy, as the one who makes the weather holds it."""

    endpoint: str
    pipe: Connection

    def set_weather(self, weather: Weather | None) -> None:
        """Let requests that come in from now on go wrong, or all of them through."""
        self.pipe.send(weather)


@contextlib.contextmanager
def running_proxy(target: str, seed: int) -> Iterator[FaultProxy]:
    """A proxy before the endpoint `target`, gone when the block ends or this process does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_proxy, args=(target, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield FaultProxy(_heard(ours, target), ours)
    finally:
        ours.close()
        process.join(STOP_TIMEOUT_S)


def _heard(pipe: Connection, target: str) -> str:
    try:
        if pipe.poll(START_TIMEOUT_S):
            return str(pipe.recv())
    except EOFError as error:
        raise StorageError(f"the proxy before {target} did not start: its error is above") from error
    raise StorageError(f"the proxy before {target} did not start within {START_TIMEOUT_S:.0f} s; try again")


def run_proxy(target: str, seed: int, pipe: Connection) -> None:
    """What the process of a proxy does: say where it is reached, then serve until the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    asyncio.run(_run(target, seed, pipe))


async def _run(target: str, seed: int, pipe: Connection) -> None:
    parts = urlsplit(target)
    passage = _Passage(str(parts.hostname), parts.port or 80, random.Random(f"{seed}/store"))
    server = await asyncio.start_server(passage.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=1024)
    gone = asyncio.Event()

    def hear() -> None:
        try:
            passage.weather = pipe.recv()
        except EOFError:
            gone.set()

    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await gone.wait()


class _Passage:
    """Passes the requests of each connection on, one at a time."""

    def __init__(self, host: str, port: int, rng: random.Random) -> None:
        self._host, self._port, self._rng = host, port, rng
        self.weather: Weather | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._pass_one(reader, writer):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of the two sides went away; whatever took effect stays
        finally:
            writer.close()

    async def _pass_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one request on, or break it; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        if _header(head, b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _without(head, b"expect")
        request = head + await _body(reader, head)
        fault = self._drawn_fault()
        match fault:
            case StoreFault.INTERNAL_ERROR | StoreFault.SLOW_DOWN:
                writer.write(_refusal(fault, request))
                return True
            case StoreFault.DELAY:
                await asyncio.sleep(DELAY_S)
        answer, is_open = await self._asked(request)
        if fault is StoreFault.LOST_ANSWER:
            writer.transport.abort()
            return False
        writer.write(answer)
        return is_open

    def _drawn_fault(self) -> StoreFault | None:
        weather = self.weather
        return weather.fault if weather is not None and self._rng.random() < weather.share else None

    async def _asked(self, request: bytes) -> tuple[bytes, bool]:
        """The answer of the store, and whether its end can be seen without closing the connection."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES_MAX)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"HEAD ") or head.split(b" ", 2)[1] in _BODILESS:
                return head, _header(head, b"connection") != b"close"
            if _header(head, b"content-length") or _header(head, b"transfer-encoding"):
                return head + await _body(reader, head), _header(head, b"connection") != b"close"
            return head + await reader.read(), False
        finally:
            writer.close()


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header in lower case; empty, if there is none."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip().lower()
    return b""


def _without(head: bytes, name: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if line.partition(b":")[0].strip().lower() != name)


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body that a head announces, as it was sent."""
    if _header(head, b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(_header(head, b"content-length") or 0))
    parts = [await reader.readuntil(b"\r\n")]
    while size := int(parts[-1].split(b";")[0], 16):
        parts.append(await reader.readexactly(size + len(b"\r\n")))
        parts.append(await reader.readuntil(b"\r\n"))
    while parts[-1] != b"\r\n":  # trailers, up to the empty line that ends the body
        parts.append(await reader.readuntil(b"\r\n"))
    return b"".join(parts)


def _refusal(fault: StoreFault, request: bytes) -> bytes:
    status, code = _REFUSALS[fault]
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head if request.startswith(b"HEAD ") else head + body).encode()
