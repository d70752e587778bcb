"""Runs an ASGI app on a thread of its own, and closes connections that keep it waiting or send heads without end."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from asyncio import Transport
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omniray.engine.base.errors import StorageError

log = logging.getLogger("omniray")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTIONS_MAX = 10_000
BACKLOG = 1_024
HEAD_BYTES_MAX = 32 << 10
HEAD_S_MAX = 20.0
KEEP_ALIVE_S = 24 * 3600  # an idle client stays connected: that it is there keeps its coordinator from ending
END_S = 2


class HttpServer:
    """A server on a host's free port; `connections` are those that are open."""

    def __init__(self, host: str, *, context: ssl.SSLContext | None = None) -> None:
        self._socket = _listening(host)
        port = self._socket.getsockname()[1]
        named = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if context else 'http'}://{named}:{port}"
        self._context = context
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._serve, name="omniray-door", daemon=True)

    @property
    def connections(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.connections)

    def start(self, app: App) -> None:
        """Serve; who connected before that is answered now."""
        self._server = uvicorn.Server(_settings(app, self._context))
        self._thread.start()

    def close(self) -> None:
        """Answer what was asked already, and end."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        assert self._server is not None, "it is made when the thread is started"
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:
            log.exception("event=door_failed url=%s", self.url)


def _settings(app: App, context: ssl.SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=_Connection, loop="uvloop", ws="none", lifespan="off", interface="asgi3", log_config=None,
        access_log=False, proxy_headers=False, server_header=False, date_header=False, backlog=BACKLOG,
        limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=END_S,
        ssl_context_factory=None if context is None else lambda config, default: context,
    )  # fmt: skip


class _Connection(HttpToolsProtocol):
    """A connection whose requests begin in time, with heads of a bounded size.

    A connection that has brought a whole head may be silent for long: clients keep theirs.
    """

    _head_bytes = 0
    _deadline: Any = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone is noticed
        self._deadline = self.loop.call_later(HEAD_S_MAX, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > max(HEAD_BYTES_MAX, len(data)) and not self.transport.is_closing():
            self.send_400_response(f"a head of more than {HEAD_BYTES_MAX} bytes")

    def on_headers_complete(self) -> None:
        self._deadline.cancel()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)


def _listening(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.bind((host, 0))
        one.listen(BACKLOG)
    except OSError as error:
        one.close()
        raise StorageError(f"the door can't listen on {host}: {error.strerror or error}", host=host) from error
    return one
