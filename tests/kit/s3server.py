"""An S3 server in memory, for benchmarks and fault tests: it adds latency, counts every request, and fails on demand.

    python -m tests.kit.s3server --port 9000 --delay-ms 20

A request takes effect after half of the delay and is answered after the other half, as over a network. One event loop
serves all connections, and no await lies between a condition's check and its effect, so exactly one of two racing
conditional puts wins.

Besides S3 it answers `/__control/<what>` with JSON:

    delay?ms=20      from now on, delay each request so long
    reset            forget the logged requests and the faults; objects stay
    stats            {"requests": n, "objects": {bucket: n}, "bytes": n, "delay_ms": ms}
    requests         the log, in the order of the answers: a mapping with the fields of `LoggedRequest` for each
    fault            (POST a mapping with the fields of `Fault`) fail the next requests that fit
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tests.kit.http_core import Request, Response, read_request
from tests.kit.s3_store import Store, object_counts, refusal, total_bytes

CONTROL = "/__control/"
START_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with the next `times` requests of a method on a key that contains a text.

    `refused`: 500, and nothing happened. `refused_after`: it happened, yet the answer is 500. `cut`: the connection
    breaks before anything happened. `cut_after`: it happened, and the answer is lost.
    """

    method: str
    key_contains: str
    kind: Literal["refused", "refused_after", "cut", "cut_after"]
    times: int = 1

    def fits(self, request: Request) -> bool:
        return self.times > 0 and request.method == self.method and self.key_contains in request.path


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request as the server saw it; times are the server's monotonic clock, status 0 is a connection cut."""

    method: str
    target: str
    status: int
    start_s: float
    end_s: float
    received_bytes: int
    sent_bytes: int
    conditional: bool


def sequential_depth(requests: Iterable[LoggedRequest]) -> int:
    """How many of the requests had to wait for one another: the longest chain in which none overlaps the next."""
    depth, free_from_s = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.end_s):
        if request.start_s >= free_from_s:
            depth += 1
            free_from_s = request.end_s
    return depth


class Service:
    """The server's whole state: objects, delay, faults and the log."""

    def __init__(self, delay_ms: float) -> None:
        self.store = Store()
        self.delay_ms = delay_ms
        self.faults: list[Fault] = []
        self.log: list[LoggedRequest] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one at a time, until either side closes it."""
        try:
            while (request := await read_request(reader, writer)) is not None:
                response = await self._answer(request)
                if response is None:
                    writer.transport.abort()
                    return
                writer.write(response.encode(head_only=request.method == "HEAD"))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the server ends; whatever took effect stays, as in S3
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Response | None:
        """The response after its delay, or None where the connection is to be cut."""
        if request.path.startswith(CONTROL):
            return self._control(request)
        start_s = asyncio.get_running_loop().time()
        await self._half_delay()
        response = self._apply(request)
        await self._half_delay()
        self.log.append(
            LoggedRequest(
                method=request.method,
                target=request.target,
                status=response.status if response else 0,
                start_s=start_s,
                end_s=asyncio.get_running_loop().time(),
                received_bytes=len(request.body),
                sent_bytes=len(response.body) if response and request.method != "HEAD" else 0,
                conditional="if-none-match" in request.headers or "if-match" in request.headers,
            )
        )
        return response

    async def _half_delay(self) -> None:
        if self.delay_ms > 0:
            await asyncio.sleep(self.delay_ms / 2000)

    def _apply(self, request: Request) -> Response | None:
        kind = self._take_fault(request)
        response = None if kind in ("refused", "cut") else self.store.answer(request)
        if kind in ("refused", "refused_after"):
            return refusal(500, "InternalError")
        return None if kind in ("cut", "cut_after") else response

    def _take_fault(self, request: Request) -> str | None:
        for index, fault in enumerate(self.faults):
            if fault.fits(request):
                self.faults[index] = replace(fault, times=fault.times - 1)
                return fault.kind
        return None

    def _control(self, request: Request) -> Response:
        match request.path.removeprefix(CONTROL):
            case "delay":
                self.delay_ms = float(request.query["ms"])
            case "reset":
                self.log, self.faults = [], []
            case "fault":
                self.faults.append(Fault(**json.loads(request.body)))
            case "requests":
                return _json([asdict(entry) for entry in self.log])
            case "stats":
                pass
            case _:
                return refusal(404, "NoSuchControl")
        return _json(self._stats())

    def _stats(self) -> dict[str, Any]:
        buckets = self.store.buckets
        return {
            "requests": len(self.log),
            "objects": object_counts(buckets),
            "bytes": sum(total_bytes(bucket.objects.values()) for bucket in buckets.values()),
            "delay_ms": self.delay_ms,
        }


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server, as those who use it hold it."""

    endpoint: str

    @property
    def storage_options(self) -> dict[str, str]:
        """What Lance needs to reach the server."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    def create_bucket(self, name: str) -> str:
        """Make a bucket, if it isn't there, and give its URI."""
        self._call(f"/{name}", method="PUT")
        return f"s3://{name}"

    def set_delay(self, delay_ms: float) -> None:
        """From now on, delay each request so long."""
        self._call(f"{CONTROL}delay?ms={delay_ms}")

    def reset(self) -> None:
        """Forget the logged requests and the faults; objects stay."""
        self._call(f"{CONTROL}reset")

    def add_fault(self, fault: Fault) -> None:
        """Fail the next requests that fit."""
        self._call(f"{CONTROL}fault", method="POST", body=json.dumps(asdict(fault)).encode())

    def stats(self) -> dict[str, Any]:
        """Counts of requests, objects and bytes."""
        stats: dict[str, Any] = json.loads(self._call(f"{CONTROL}stats"))
        return stats

    def requests(self) -> list[LoggedRequest]:
        """Every request since the last reset, in the order of the answers."""
        return [LoggedRequest(**entry) for entry in json.loads(self._call(f"{CONTROL}requests"))]

    def _call(self, target: str, *, method: str = "GET", body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.endpoint + target, data=body, method=method)
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as answer:
            content: bytes = answer.read()
        return content


@contextmanager
def running_server(delay_ms: float = 0) -> Iterator[S3Server]:
    """A server in a process of its own, on a port that was free, gone when the block ends or this process does."""
    command = [sys.executable, "-m", "tests.kit.s3server", "--port", "0", "--delay-ms", str(delay_ms), "--until-eof"]
    repository = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"the S3 server did not start, exit code {process.wait()}: its error is above")
        try:
            yield S3Server(endpoint)
        finally:
            process.stdin.close()
            process.wait(timeout=START_TIMEOUT_S)


async def serve(port: int, delay_ms: float, until_eof: bool) -> None:
    """Serve on the loopback, print the endpoint once connections are taken, and go on until told to stop."""
    server = await asyncio.start_server(Service(delay_ms).serve, "127.0.0.1", port, backlog=1024)
    bound_port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{bound_port}", flush=True)
    if until_eof:
        await asyncio.to_thread(sys.stdin.read)
    else:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="An S3 server in memory, with latency, a request log and faults.")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one; the endpoint is printed")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    args = parser.parse_args()
    asyncio.run(serve(args.port, args.delay_ms, args.until_eof))


if __name__ == "__main__":
    main()
