"""A server that answers every request as it is told, and keeps what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

_TOKEN = "x-amz-security-token"


class Asked(NamedTuple):
    """A request as the server saw it."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def signed_by(self) -> tuple[str | None, str | None]:
        """The key that signed it, if any, and the session token that came with it."""
        signature = self.headers.get("authorization", "").partition("Credential=")[2]
        return signature.partition("/")[0] or None, self.headers.get(_TOKEN)


@contextmanager
def answering_server(answer: Callable[[Asked], tuple[int, str]]) -> Iterator[tuple[str, list[Asked]]]:
    """A server that answers everything as it is told, with a status and an XML body, and its list of requests."""
    asked: list[Asked] = []

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            status, body = answer(asked[-1])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"etag"')
            self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body.encode())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False  # clients keep their connections open

    with Server(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def error_body(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
