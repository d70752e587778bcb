"""Where tests keep a graph: a folder on disk, or a bucket of a real S3 server over HTTP."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

STOP_TIMEOUT_S = 30

# In a process of its own: Lance's blocking calls would hold up a server in a thread of the test's process. It ends with
# its standard input, so that a killed test run leaves no server behind. Where it checks signatures it takes the query
# as it was sent, while S3 decodes it first: a client may write "~" as "%7E".
_MOTO = """
import logging, sys
from urllib.parse import parse_qsl, quote
from botocore.auth import SigV4Auth
from moto.server import ThreadedMotoServer

def canonical_query(self, parts):
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    return "&".join(sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs))

SigV4Auth._canonical_query_string_url = canonical_query
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


class Root(NamedTuple):
    """A place for a graph, and what Lance needs to reach it."""

    uri: str
    storage_options: dict[str, str]


@contextmanager
def moto_server() -> Iterator[str]:
    """The endpoint of a moto server of one's own, on a port that was free."""
    command = [sys.executable, "-W", "ignore", "-c", _MOTO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"moto did not start, exit code {process.wait()}: its error is above")
        try:
            yield endpoint
        finally:
            process.stdin.close()
            process.wait(timeout=STOP_TIMEOUT_S)


def new_bucket(endpoint: str) -> Root:
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
    return Root(f"s3://{name}", options)
