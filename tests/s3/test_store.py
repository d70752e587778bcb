"""The behaviour suite of stores on S3, and what is particular to S3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import Answer
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3 import S3Store
from tests.kit.s3server import Fault, S3Server
from tests.stores import Root
from tests.unit.test_store import *  # noqa: F403


def fill(server: S3Server, paths: list[str]) -> None:
    """Put empty objects over one connection, without the cost of a client."""
    connection = HTTPConnection(urlsplit(server.endpoint).netloc)
    with closing(connection):
        for path in paths:
            connection.request("PUT", f"/{path}", body=b"")
            connection.getresponse().read()


def test_more_names_than_fit_a_page_are_listed_in_order_and_deleted(server: S3Server) -> None:
    store = open_store("s3://bucket/pages", server.storage_options)
    names = [f"{number:020}" for number in range(1010)]
    fill(server, [f"bucket/pages/folder/{name}" for name in names])
    assert list(store.names("folder")) == names
    assert store.first_name("folder") == names[0]
    assert [file.path for file in store.files("")] == [f"folder/{name}" for name in names]
    assert [file.path for file in store.files("folder", after=names[4])] == [f"folder/{name}" for name in names[5:]]
    store.delete_all([f"folder/{name}" for name in names[1:]])
    assert list(store.names("folder")) == names[:1]


def test_a_missing_bucket_is_named_by_every_verb(s3_endpoint: str, s3: Root) -> None:
    store = open_store("s3://no-such-bucket/graph", s3.storage_options)
    calls = (
        lambda: store.put("object", b""),
        lambda: store.put_if_absent("object", b""),
        lambda: list(store.names("")),
        lambda: store.first_name("folder"),
        lambda: store.get("object"),
    )
    for call in calls:
        with pytest.raises(StorageError, match=r"no-such-bucket.*the bucket does not exist"):
            call()


@contextmanager
def refusing_server(code: str) -> Iterator[str]:
    """A server that answers everything with 403 and an S3 error code."""

    class Refuse(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = refuse

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("code", "hint"),
    [("InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"), ("AccessDenied", "check that the credentials may")],
)
def test_credentials_that_are_refused_are_told_from_a_missing_object(code: str, hint: str) -> None:
    with refusing_server(code) as endpoint:
        options = {"endpoint": endpoint, "access_key_id": "key", "secret_access_key": "wrong"}
        store = open_store("s3://bucket/graph", options)
        for call in (lambda: store.get("a"), lambda: store.put_if_absent("a", b""), lambda: list(store.names(""))):
            with pytest.raises(StorageError, match=hint):
                call()


@pytest.mark.parametrize("kind", ["refused", "cut", "refused_after", "cut_after"])
def test_a_lost_answer_to_a_put_if_absent_never_passes_for_a_clear_one(server: S3Server, kind: str) -> None:
    """The library asks again by itself; what comes back is a success, or a refusal by our own first try."""
    server.reset()
    store = open_store("s3://bucket/graph", server.storage_options)
    server.add_fault(Fault("PUT", f"object-{kind}", kind))  # type: ignore[arg-type]
    answer = store.put_if_absent(f"object-{kind}", b"ours")
    assert answer is (Answer.REFUSED if kind.endswith("after") else Answer.CREATED)
    assert store.get(f"object-{kind}") == b"ours"


def test_a_store_that_only_fails_gives_an_unclear_answer(server: S3Server) -> None:
    server.reset()
    store = open_store("s3://bucket/graph", server.storage_options)
    server.add_fault(Fault("PUT", "object-down", "refused", times=1000))
    assert store.put_if_absent("object-down", b"ours") is Answer.UNCLEAR
    server.reset()
    assert store.get("object-down") is None


def test_objects_that_can_t_be_deleted_are_not_passed_over(s3: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a bulk delete is a success even where each of its objects was refused."""
    store = open_store(f"{s3.uri}/graph", s3.storage_options)
    assert isinstance(store, S3Store)
    store.put("object", b"")
    call = store._call

    def refusing(method: str, **arguments: Any) -> dict[str, Any]:
        if method == "delete_objects":
            return {"Errors": [{"Key": "graph/object", "Code": "AccessDenied", "Message": "no"}]}
        return call(method, **arguments)

    monkeypatch.setattr(store, "_call", refusing)
    with pytest.raises(StorageError, match=r"can't delete.*access denied"):
        store.delete_all(["object"])


def test_a_store_is_opened_by_the_usual_environment_alone(s3: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.storage_options["aws_endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = open_store(f"{s3.uri}/graph")
    store.put("object", b"one")
    assert store.get("object") == b"one"
    assert store.lance_options is not None
    assert store.lance_options["aws_endpoint"] == s3.storage_options["aws_endpoint"]
