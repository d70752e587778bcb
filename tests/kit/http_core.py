"""Just enough HTTP/1.1 for a server on the loopback: whole requests in, whole responses out, connections kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request; header names are in lower case, path and query decoded."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; one to HEAD names the length of a body that it leaves out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, head_only: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            lines.append(f"Content-Length: {len(self.body)}")
        head = "\r\n".join([*lines, "", ""]).encode()
        return head if head_only else head + self.body


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The connection's next request, or None once the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    request_line, *header_lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = request_line.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in header_lines)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(method, target, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    signed_in_chunks = headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
    if signed_in_chunks or "aws-chunked" in headers.get("content-encoding", ""):
        return join_aws_chunks(body)
    return body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readline()
    while (await reader.readline()).strip():
        pass  # trailers, up to the empty line that ends the request
    return b"".join(chunks)


def join_aws_chunks(body: bytes) -> bytes:
    """The payload of an `aws-chunked` body, without its chunk signatures and trailing checksums."""
    chunks: list[bytes] = []
    start = 0
    while True:
        line_end = body.index(b"\r\n", start)
        size = int(body[start:line_end].split(b";")[0], 16)
        if size == 0:
            return b"".join(chunks)
        chunks.append(body[line_end + 2 : line_end + 2 + size])
        start = line_end + 2 + size + 2
