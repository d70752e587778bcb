"""HTTP/1.1 as a client of a door speaks it: requests and responses of a stated length, on connections that are kept.

Bytes in, values out: nothing is sent or read here. A door is a server of ours, so what it never says (chunks,
informational responses) is not understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEAD_BYTES_MAX = 64 << 10
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH_DIGITS_MAX = 15


class BadResponse(Exception):
    """What came is no whole response."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `closes`: its connection can't be used for another request."""

    status: int
    headers: Mapping[bytes, bytes]  # by their names in small letters
    body: bytes
    closes: bool


def head_of_post(path: str, headers: Mapping[str, str], length: int) -> bytes:
    """The beginning of a request, up to its body."""
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode("latin-1")


class ResponseReader:
    """Puts one response together from the pieces in which it arrives."""

    def __init__(self) -> None:
        self._begun = b""
        self._head: _Head | None = None
        self._body: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Response | None:
        """Take the next piece; the response, once it is whole."""
        if self._head is None:
            self._begun += data
            head, found, data = self._begun.partition(_END_OF_HEAD)
            if not found:
                if len(self._begun) > HEAD_BYTES_MAX:
                    raise BadResponse(f"a head of more than {HEAD_BYTES_MAX} bytes")
                return None
            self._head = _parsed(head)
        self._body.append(data)
        self._size += len(data)
        if self._head.length is None or self._size < self._head.length:
            return None
        return self._response(self._head, self._head.length)

    def end(self) -> Response:
        """The response of a server that has closed the connection; without a length, that is how its body ends."""
        if self._head is None or self._head.length is not None:
            raise BadResponse("the connection was closed")
        return self._response(self._head, self._size)

    def _response(self, head: _Head, length: int) -> Response:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        closes = head.closes or head.length is None or self._size > length
        return Response(head.status, head.headers, body[:length], closes)


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: Mapping[bytes, bytes]
    length: int | None

    @property
    def closes(self) -> bool:
        return self.headers.get(b"connection", b"").lower() == b"close"


def _parsed(head: bytes) -> _Head:
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    status = rest[:3]
    if version != b"HTTP/1.1" or not status.isdigit() or status < b"200":
        raise BadResponse(f"it does not answer as a door does: {first[:80]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"transfer-encoding" in headers:
        raise BadResponse("it answers in chunks, which a door never does")
    length = headers.get(b"content-length")
    if length is None:
        return _Head(int(status), headers, None)
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise BadResponse(f"it answers with a length of {length[:80]!r}")
    return _Head(int(status), headers, int(length))
