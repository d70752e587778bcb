"""A proxy before an S3 endpoint that lets requests go wrong: a share of them, or a certain one.

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
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote, urlsplit

from omniray.coordinator.stress.request_faults import Armed, RequestFault, Seen, StoreFault, Weather
from omniray.engine.base.errors import StorageError

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
    """A running proxy, as the one who makes the faults holds it: what a method tells it is so when that returns."""

    endpoint: str
    pipe: Connection

    def set_weather(self, weather: Weather | None) -> None:
        """Let a share of the requests that come in from now on go wrong, or all of them through."""
        self._tell("set_weather", weather)

    def arm(self, fault: RequestFault) -> None:
        """Break the request that fits; requests are counted, and logged, from here on."""
        self._tell("arm", fault)

    def disarm(self) -> None:
        """Break no request by its name any more, and wait until every one so far has had its effect; end the log."""
        self._tell("disarm")

    def watch(self) -> None:
        """Begin the log anew."""
        self._tell("watch")

    def log(self) -> list[Seen]:
        """Every request from `arm` or `watch` until `disarm`, in the order of arrival."""
        seen: list[Seen] = self._tell("log")
        return seen

    def _tell(self, what: str, *arguments: object) -> Any:
        self.pipe.send((what, arguments))
        return self.pipe.recv()


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
        with contextlib.suppress(BrokenPipeError):  # who asked has gone; the pipe's end comes next
            pipe.send(answer)


class _Passage:
    """Passes the requests of each connection on, one at a time."""

    def __init__(self, host: str, port: int, rng: random.Random) -> None:
        self._host, self._port, self._rng = host, port, rng
        self._weather: Weather | None = None
        self._armed: Armed | None = None
        self._log: list[Seen] | None = None  # kept on demand only: a run of hours would fill the memory
        self._seen: list[Seen] = []
        self._under_way: set[asyncio.Future[None]] = set()

    # What the holder of the proxy asks for

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

    # What clients ask for

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
        """What goes wrong with a request, and how long something is waited for; the log has it then."""
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
        """What the request meets before it is passed on, and what its answer meets; whether the connection goes on."""
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
        """The answer of the store, and whether its end can be seen without closing the connection."""
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
