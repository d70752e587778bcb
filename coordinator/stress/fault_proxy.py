"""A proxy in front of an S3 endpoint that breaks requests: a share of them, or a certain one.

It runs in a process of its own, since the calls of Lance would block a thread. Requests and answers are forwarded
unchanged, so that signatures stay valid: they are made for the address of the proxy, which the store sees as its own.
Requests to an endpoint that only speaks TLS can't be broken in this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote, urlsplit

from omniray.coordinator.stress.request_faults import Armed, RequestFault, Seen, StoreFault, Weather
from omniray.engine.base.errors import InputError, StorageError

DELAY_S = 0.5
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
HEAD_BYTES_MAX = 1 << 20
_HEAD_END = b"\r\n\r\n"
_BODILESS = (b"204", b"304")
_REFUSALS = {
    StoreFault.INTERNAL_ERROR: ("500 Internal Server Error", "InternalError"),
    StoreFault.SLOW_DOWN: ("503 Slow Down", "SlowDown"),
}


@dataclass(frozen=True, slots=True)
class FaultProxy:
    """The handle of a running proxy; a command is in force when its method returns."""

    endpoint: str
    pipe: Connection

    def set_weather(self, weather: Weather | None) -> None:
        """Break a share of the requests from now on, or none."""
        self._tell("set_weather", weather)

    def arm(self, fault: RequestFault) -> None:
        """Break the request that matches; requests are counted and logged from now on."""
        self._tell("arm", fault)

    def disarm(self) -> None:
        """Break no certain request any more, end the log, and wait until all requests so far are answered."""
        self._tell("disarm")

    def watch(self) -> None:
        """Start a new log."""
        self._tell("watch")

    def log(self) -> list[Seen]:
        """Every request from `arm` or `watch` until `disarm`, in the order of arrival."""
        seen: list[Seen] = self._tell("log")
        return seen

    def _tell(self, what: str, *arguments: object) -> Any:
        self.pipe.send((what, arguments))
        return self.pipe.recv()


@contextlib.contextmanager
def running_proxy(target: str, seed: int = 0) -> Iterator[FaultProxy]:
    """A proxy in front of the endpoint `target`; it ends with the block or with this process.

    The seed decides which requests get the fault of a weather. Endpoints begin with http://, since TLS hides requests.
    """
    if urlsplit(target).scheme != "http":
        raise InputError(f"no proxy can break requests to {target}: give an endpoint that begins with http://")
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
    """The main function of the proxy's process: send its address, then serve until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    asyncio.run(_run(target, seed, pipe))


async def _run(target: str, seed: int, pipe: Connection) -> None:
    parts = urlsplit(target)
    passage = _Passage(str(parts.hostname), parts.port or 80, random.Random(f"{seed}/store"))
    server = await asyncio.start_server(passage.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=1024)
    told: asyncio.Queue[tuple[str, tuple[Any, ...]] | None] = asyncio.Queue()

    def hear() -> None:
        try:
            told.put_nowait(pipe.recv())
        except EOFError:
            told.put_nowait(None)
            asyncio.get_running_loop().remove_reader(pipe.fileno())

    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    while (message := await told.get()) is not None:
        what, arguments = message
        answer = await getattr(passage, what)(*arguments)
        with contextlib.suppress(BrokenPipeError):  # the parent process is gone; the pipe closes next
            pipe.send(answer)


class _Passage:
    """Forwards the requests of each connection, one at a time."""

    def __init__(self, host: str, port: int, rng: random.Random) -> None:
        self._host, self._port, self._rng = host, port, rng
        self._weather: Weather | None = None
        self._armed: Armed | None = None
        self._log: list[Seen] | None = None  # kept on demand only: a run of hours would fill the memory
        self._seen: list[Seen] = []
        self._under_way: set[asyncio.Future[None]] = set()

    # Commands

    async def set_weather(self, weather: Weather | None) -> None:
        self._weather = weather

    async def arm(self, fault: RequestFault) -> None:
        self._armed = Armed(fault)
        await self.watch()

    async def disarm(self) -> None:
        self._armed, self._log = None, None
        await asyncio.gather(*self._under_way)

    async def watch(self) -> None:
        self._log = self._seen = []

    async def log(self) -> list[Seen]:
        return self._seen

    # Requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._pass_one(reader, writer):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of the two sides closed the connection
        finally:
            writer.close()

    async def _pass_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward one request, or break it; returns whether the connection stays open."""
        head = await reader.readuntil(_HEAD_END)
        if _header(head, b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _without(head, b"expect")
        request = head + await _body(reader, head)
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(under_way)
        try:
            return await self._answer(*self._met(head), request, reader, writer)
        finally:
            self._under_way.discard(under_way)
            under_way.set_result(None)

    def _met(self, head: bytes) -> tuple[StoreFault | None, float]:
        """Choose and log the fault of a request; returns it with the time to wait."""
        seen = _seen(head)
        fault, wait_s = None, DELAY_S
        if self._armed is not None and self._armed.meets(str(seen)):
            fault, wait_s = self._armed.fault.fault, self._armed.fault.wait_ms / 1000
        elif self._weather is not None and self._rng.random() < self._weather.share:
            fault = self._weather.fault
        if self._log is not None:
            self._log.append(replace(seen, fault=fault))
        return fault, wait_s

    async def _answer(
        self,
        fault: StoreFault | None,
        wait_s: float,
        request: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Forward a request with its fault, and write the answer; returns whether the connection stays open."""
        match fault:
            case StoreFault.INTERNAL_ERROR | StoreFault.SLOW_DOWN:
                writer.write(_refusal(fault, request))
                return True
            case StoreFault.CUT:
                return _cut(writer)
            case StoreFault.TIME_OUT:
                await _until_gone(reader, wait_s)
                return _cut(writer)
            case StoreFault.DELAY:
                await asyncio.sleep(wait_s)
            case StoreFault.TWICE:
                await self._asked(request)
        answer, is_open = await self._asked(request)
        match fault:
            case StoreFault.LOST_ANSWER:
                return _cut(writer)
            case StoreFault.CUT_BODY:
                writer.write(_first_half(answer))
                return False
            case StoreFault.FALSE_ERROR:
                writer.write(_refusal(StoreFault.INTERNAL_ERROR, request))
                return True
        writer.write(answer)
        return is_open

    async def _asked(self, request: bytes) -> tuple[bytes, bool]:
        """The store's answer, and whether its end is marked without closing the connection."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES_MAX)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(_HEAD_END)
            if request.startswith(b"HEAD ") or head.split(b" ", 2)[1] in _BODILESS:
                return head, _header(head, b"connection") != b"close"
            if _header(head, b"content-length") or _header(head, b"transfer-encoding"):
                return head + await _body(reader, head), _header(head, b"connection") != b"close"
            return head + await reader.read(), False
        finally:
            writer.close()


def _cut(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def _until_gone(reader: asyncio.StreamReader, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)


def _seen(head: bytes) -> Seen:
    method, target, _ = head.decode("latin-1").split(" ", 2)
    path, _, query = target.partition("?")
    is_conditional = bool(_header(head, b"if-none-match") or _header(head, b"if-match"))
    return Seen(method, unquote(path), unquote(query), is_conditional)


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


def _first_half(answer: bytes) -> bytes:
    head, end, body = answer.partition(_HEAD_END)
    return head + end + body[: len(body) // 2] if body else head[: len(head) // 2]


def _refusal(fault: StoreFault, request: bytes) -> bytes:
    status, code = _REFUSALS[fault]
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head if request.startswith(b"HEAD ") else head + body).encode()
