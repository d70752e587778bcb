"""One connection to a door: made, secured, and used for one request after another, on a socket that never blocks."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl

from omniray.coordinator.client.http1 import Response, ResponseReader
from omniray.coordinator.client.waits import Readable, Waits, Writable

READ_BYTES = 64 << 10
JOINED_BYTES_MAX = 64 << 10
"""The size of a body that is sent together with its head."""


def connecting(host: str, port: int, context: ssl.SSLContext | None, deadline: float) -> Waits[socket.socket]:
    """A new connection, secured if there is a context; raises `OSError`, and then nothing was sent."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        one = socket.socket(family, kind, protocol)
        try:
            yield from _connected(one, address, deadline)
            return one if context is None else (yield from _secured(one, context, host, deadline))
        except OSError as error:  # another address of the host may answer
            one.close()
            failed = error
        except BaseException:
            one.close()
            raise
    raise failed or OSError(f"no address of {host}")


def _connected(one: socket.socket, address: object, deadline: float) -> Waits[None]:
    one.setblocking(False)
    code = one.connect_ex(address)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS:
        yield Writable(one, deadline)
        code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _secured(one: socket.socket, context: ssl.SSLContext, host: str, deadline: float) -> Waits[socket.socket]:
    secured = context.wrap_socket(one, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                yield Readable(secured, deadline)
            except ssl.SSLWantWriteError:
                yield Writable(secured, deadline)
            else:
                return secured
    except BaseException:
        secured.close()
        raise


def exchanging(one: socket.socket, head: bytes, body: bytes, deadline: float) -> Waits[Response]:
    """Send a request and return its response; raises `BadResponse` or `OSError`, and then it may have been sent."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was refused before all was sent
        if len(body) <= JOINED_BYTES_MAX:
            yield from _sending(one, head + body, deadline)
        else:
            yield from _sending(one, head, deadline)
            yield from _sending(one, body, deadline)
    reader = ResponseReader()
    yield Readable(one, deadline)
    while True:
        try:
            data = one.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            yield Readable(one, deadline)
        except ssl.SSLWantWriteError:
            yield Writable(one, deadline)
        else:
            response = reader.feed(data) if data else reader.end()
            if response is not None:
                return response


def _sending(one: socket.socket, data: bytes, deadline: float) -> Waits[None]:
    left = memoryview(data)
    while left:
        try:
            left = left[one.send(left) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            yield Writable(one, deadline)
        except ssl.SSLWantReadError:
            yield Readable(one, deadline)
