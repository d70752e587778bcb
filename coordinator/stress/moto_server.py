"""An S3 server on this machine, in memory: moto, in a process of its own.

Its process ends with its standard input, so that a killed parent leaves no server behind. Lance's calls block, and
would hold up a server in a thread of the caller's process.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote

import omniray
from omniray.coordinator.stress.fault_proxy import FaultProxy
from omniray.engine.base.errors import InputError, StorageError

STOP_TIMEOUT_S = 30.0
HOST = "127.0.0.1"

Environ: TypeAlias = dict[str, Any]
App: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A place on S3, and what is needed to reach it."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    @property
    def endpoint(self) -> str:
        """Where the S3 server listens."""
        return self.storage_options["aws_endpoint"]

    def behind(self, proxy: FaultProxy) -> Bucket:
        """The same bucket, reached through a proxy."""
        return Bucket(self.uri, {**self.storage_options, "aws_endpoint": proxy.endpoint})


@contextmanager
def s3_bucket() -> Iterator[Bucket]:
    """A new bucket on a server of its own, which ends with the block."""
    with s3_server() as endpoint:
        yield new_bucket(endpoint)


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a new S3 server, on a port that was free; it ends with the block or with this process."""
    if find_spec("moto") is None:
        raise InputError("moto is not installed: pip install 'omniray[testing]', or give the URI of a store")
    package = str(Path(omniray.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise StorageError(f"moto did not start, exit code {process.wait()}: its error is above")
        try:
            yield endpoint
        finally:
            process.stdin.close()
            process.wait(timeout=STOP_TIMEOUT_S)


def new_bucket(endpoint: str) -> Bucket:
    """A bucket that nobody else uses."""
    name = f"bucket-{uuid.uuid4()}"
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=STOP_TIMEOUT_S):
        pass
    options = {
        "aws_endpoint": endpoint,
        "aws_access_key_id": "moto-key-id",
        "aws_secret_access_key": "moto-key-of-tests",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    return Bucket(f"s3://{name}", options)


# The server's process


def one_at_a_time(app: App, lock: threading.Lock) -> App:
    """The application with its requests carried out one after another.

    moto looks whether an object is there and then puts it, and closes an object that is replaced while another request
    reads it: of two puts that race and must not replace anything, both would win, or one would get an error of moto's.
    """

    def answer(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        # Received first: a client that is slow, or frozen, must not hold up the others.
        length = -1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with lock:
            return app(environ, start_response)

    return answer


def _canonical_query(self: object, parts: Any) -> str:
    """moto takes the query as it was sent, while S3 decodes it first: a client may write "~" as "%7E"."""
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    return "&".join(sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs))


def main() -> None:
    """Serve until standard input ends; prints the endpoint first."""
    from botocore.auth import SigV4Auth
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    SigV4Auth._canonical_query_string_url = _canonical_query
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = one_at_a_time(DomainDispatcherApplication(create_backend_app), threading.Lock())
    server = make_server(HOST, 0, app, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{HOST}:{server.server_port}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
