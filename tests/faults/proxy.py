"""An S3 proxy for fault tests: it passes every request on, keeps a log, and on demand breaks one of them.

    with running_proxy(endpoint) as proxy:
        proxy.arm(Fault(Kind.LOST_ANSWER, "PUT .*/__commits/"))

It stands before any S3 endpoint, so that requests of s3fs and of Lance's own object store are broken alike. It runs in
a process of its own, since Lance's blocking calls would hold up a thread of the test's, and is told what to do by
requests to `/__control/…`. Signatures go through unchecked and refer to the proxy's address; the server behind it must
not check them either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.kit.http_core import Request, read_request

CONTROL = "/__control/"
TIMEOUT_S = 60
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
# They describe a body in signed chunks, which `read_request` has put together.
_OF_CHUNKS = {"x-amz-decoded-content-length", "x-amz-trailer", "x-amz-content-sha256", "content-encoding"}


class Kind(StrEnum):
    """What goes wrong."""

    INTERNAL_ERROR = "internal_error"  # 500, and nothing happened
    SLOW_DOWN = "slow_down"  # 503, and nothing happened
    TIME_OUT = "time_out"  # nothing happened and nothing is answered: cut when the client gives up, or after the wait
    CUT = "cut"  # the connection breaks before anything happened
    DELAY = "delay"  # it happens, and is answered, after the wait: too late, if the client does not wait as long
    CUT_BODY = "cut_body"  # it happened, and half of the answer's body arrives; of its head, where there is no body
    LOST_ANSWER = "lost_answer"  # it happened, and the connection breaks instead of an answer
    FALSE_ERROR = "false_error"  # it happened, yet the answer is 500


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with the `nth` request, since arming, whose "METHOD /path?query" a pattern is found in.

    SDKs repeat a failed request by themselves. Of the repetitions of this one (the same method, path and query) the
    fault meets the first `times`, counting itself; 0 stands for all of them.
    """

    kind: Kind
    pattern: str = ""
    nth: int = 1
    times: int = 1
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, decoded, and the fault that it met."""

    method: str
    path: str
    query: str
    conditional: bool
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(slots=True)
class Armed:
    """A fault and how far it has come."""

    fault: Fault
    matches: int = 0
    victim: str | None = None
    hits: int = 0

    def meets(self, line: str) -> bool:
        """Count a request; whether it is the one to break, or a repetition of it."""
        if self.victim is None and re.search(self.fault.pattern, line):
            self.matches += 1
            if self.matches == self.fault.nth:
                self.victim = line
        if line != self.victim or self.hits == (self.fault.times or -1):
            return False
        self.hits += 1
        return True


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `length` is that of the body, which an answer to HEAD leaves out."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    length: str

    @classmethod
    def error(cls, status: int, code: str) -> Reply:
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        return cls(status, {"Content-Type": "application/xml"}, body.encode(), str(len(body)))

    @classmethod
    def of(cls, value: object) -> Reply:
        body = json.dumps(value).encode()
        return cls(200, {"Content-Type": "application/json"}, body, str(len(body)))

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {http.client.responses.get(self.status, '')}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status not in (http.client.NO_CONTENT, http.client.NOT_MODIFIED):
            lines.append(f"Content-Length: {self.length}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def first_half(self) -> bytes:
        head = self.head()
        return head + self.body[: len(self.body) // 2] if self.body else head[: len(head) // 2]


@dataclass(slots=True)
class Forwarding:
    """The server behind the proxy."""

    host: str
    port: int

    async def __call__(self, request: Request) -> Reply:
        return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: Request) -> Reply:
        left_out = _HOP_BY_HOP | (_OF_CHUNKS if "x-amz-decoded-content-length" in request.headers else set())
        headers = {name: value for name, value in request.headers.items() if name not in left_out}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(request.method, request.target, request.body, headers)
            answer = connection.getresponse()
            body = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            length = answer.getheader("Content-Length", "0") if request.method == "HEAD" else str(len(body))
            return Reply(answer.status, kept, body, length)


@dataclass(slots=True)
class Service:
    """The proxy's state, and the life of each connection."""

    forward: Forwarding
    armed: Armed | None = None
    log: list[Seen] = field(default_factory=list)
    busy: set[asyncio.Future[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one at a time, until either side closes it."""
        try:
            while (request := await read_request(reader, writer)) is not None:
                if request.path.startswith(CONTROL):
                    await _send(writer, await self._control(request))
                elif not await self._treat(request, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the proxy ends; whatever took effect stays
        finally:
            writer.close()

    async def _treat(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one request on, or break it; whether the connection goes on."""
        fault = self._note(request)
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.busy.add(under_way)
        try:
            return await self._answer(fault, request, reader, writer)
        finally:
            self.busy.discard(under_way)
            under_way.set_result(None)

    def _note(self, request: Request) -> Fault | None:
        path, _, query = request.target.partition("?")
        conditional = "if-none-match" in request.headers or "if-match" in request.headers
        seen = Seen(request.method, unquote(path), unquote(query), conditional)
        fault = self.armed.fault if self.armed is not None and self.armed.meets(str(seen)) else None
        self.log.append(replace(seen, fault=fault.kind) if fault else seen)
        return fault

    async def _answer(
        self, fault: Fault | None, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """What the request meets before it is passed on, and what its answer meets; whether the connection goes on."""
        kind, wait_s = (fault.kind, fault.wait_ms / 1000) if fault else (None, 0.0)
        match kind:
            case Kind.INTERNAL_ERROR:
                return await _send(writer, Reply.error(500, "InternalError"), request.method)
            case Kind.SLOW_DOWN:
                return await _send(writer, Reply.error(503, "SlowDown"), request.method)
            case Kind.CUT:
                return _cut(writer)
            case Kind.TIME_OUT:
                await _until_gone(reader, wait_s)
                return _cut(writer)
            case Kind.DELAY:
                await asyncio.sleep(wait_s)
        reply = await self.forward(request)
        match kind:
            case Kind.LOST_ANSWER:
                return _cut(writer)
            case Kind.CUT_BODY:
                writer.write(reply.first_half())
                return False
            case Kind.FALSE_ERROR:
                reply = Reply.error(500, "InternalError")
        return await _send(writer, reply, request.method)

    async def _control(self, request: Request) -> Reply:
        match request.path.removeprefix(CONTROL):
            case "arm":
                self.log, self.armed = [], Armed(Fault(**json.loads(request.body)))
            case "disarm":
                self.armed = None
                await asyncio.gather(*self.busy)
            case "log":
                return Reply.of([asdict(seen) for seen in self.log])
            case "forget":
                self.log = []
            case _:
                return Reply.error(404, "NoSuchControl")
        return Reply.of(None)


async def _send(writer: asyncio.StreamWriter, reply: Reply, method: str = "GET") -> bool:
    writer.write(reply.head() + (b"" if method == "HEAD" else reply.body))
    await writer.drain()
    return True


def _cut(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def _until_gone(reader: asyncio.StreamReader, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy, as tests hold it."""

    endpoint: str

    def arm(self, fault: Fault) -> None:
        """Break the request that fits; requests are counted, and logged, from here on."""
        self._call("arm", json.dumps(asdict(fault)).encode())

    def disarm(self) -> None:
        """Break nothing more; returns once every request that came in so far has had its effect."""
        self._call("disarm", b"")

    def forget(self) -> None:
        """Begin the log anew."""
        self._call("forget", b"")

    def log(self) -> list[Seen]:
        """Every request since `arm` or `forget`, in the order of arrival."""
        return [Seen(**entry) for entry in self._call("log")]

    def _call(self, what: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}{what}", data=body)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def running_proxy(target: str) -> Iterator[Proxy]:
    """A proxy before the endpoint `target`, gone when the block ends or this process does."""
    command = [sys.executable, "-m", "tests.faults.proxy", target]
    repository = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"the proxy did not start, exit code {process.wait()}: its error is above")
        try:
            yield Proxy(endpoint)
        finally:
            process.stdin.close()
            process.wait(timeout=TIMEOUT_S)


async def serve(target: str) -> None:
    """Serve on the loopback, print the endpoint once connections are taken, and go on until standard input ends."""
    behind = urlsplit(target)
    assert behind.hostname is not None
    assert behind.port is not None
    service = Service(Forwarding(behind.hostname, behind.port))
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", help="the endpoint behind the proxy")
    asyncio.run(serve(parser.parse_args().target))
