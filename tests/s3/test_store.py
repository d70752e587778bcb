"""The behaviour suite of stores on two S3 servers, ours and moto, and what is particular to S3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import Answer
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3 import REQUEST_TRIES
from tests.answering import answering_server, error_body
from tests.kit.s3server import Fault, S3Server
from tests.stores import Root, new_bucket
from tests.unit.test_store import *  # noqa: F403

TIMEOUT_S = 60
KEY = {"aws_access_key_id": "key", "aws_secret_access_key": "s3cr3t"}


@pytest.fixture(scope="module", params=["s3_endpoint", "moto_endpoint"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """What the kit's server does is what a server does that others wrote."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def lasting_root(endpoint: str) -> Root:
    """A bucket that the tests of the module share."""
    return new_bucket(endpoint)


@pytest.fixture
def any_root(endpoint: str) -> Root:
    """A bucket."""
    return new_bucket(endpoint)


@pytest.fixture
def s3(endpoint: str) -> Root:
    """A bucket for what is particular to S3."""
    return new_bucket(endpoint)


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


def test_a_missing_bucket_is_named_by_every_verb(s3: Root) -> None:
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


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        (403, "AccessDenied", "check that the credentials may"),
        (400, "ExpiredToken", "get new credentials"),
        (301, "PermanentRedirect", "set AWS_REGION"),
    ],
)
def test_each_refusal_is_told_by_every_verb_with_what_to_do(status: int, code: str, hint: str) -> None:
    with answering_server(lambda request: (status, error_body(code))) as (endpoint, _):
        store = open_store("s3://bucket/graph", {"endpoint": endpoint, **KEY})
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get("a"),
            lambda: store.put("a", b""),
            lambda: store.put_if_absent("a", b""),
            lambda: store.copy("a", "b"),
            lambda: store.delete_all(["a", "b"]),
            lambda: list(store.names("")),
            lambda: list(store.files("")),
            lambda: store.first_name("a"),
        )
        for call in calls:
            with pytest.raises(StorageError, match=hint) as raised:
                call()
            assert raised.value.facts["code"] == code
            assert KEY["aws_secret_access_key"] not in str(raised.value)


def test_an_error_that_nobody_foresaw_is_told_in_the_store_s_own_words() -> None:
    with answering_server(lambda request: (400, error_body("EntityTooLarge"))) as (endpoint, _):
        store = open_store("s3://bucket/graph", {"endpoint": endpoint, **KEY})
        with pytest.raises(StorageError, match=r"can't write s3://bucket/graph/a: EntityTooLarge: no$"):
            store.put("a", b"")


def test_a_store_that_throttles_is_asked_again_and_then_told_of() -> None:
    with answering_server(lambda request: (503, error_body("SlowDown"))) as (endpoint, asked):
        store = open_store("s3://bucket/graph", {"endpoint": endpoint, **KEY})
        with pytest.raises(StorageError, match="throttling"):
            store.get("a")
        assert len(asked) == REQUEST_TRIES
        assert store.put_if_absent("a", b"") is Answer.UNCLEAR


@pytest.mark.parametrize(
    ("status", "code", "answer"),
    [(412, "PreconditionFailed", Answer.REFUSED), (409, "ConditionalRequestConflict", Answer.UNCLEAR)],
)
def test_a_conflict_of_two_puts_at_once_is_no_refusal(status: int, code: str, answer: Answer) -> None:
    """Where two puts meet, S3 may turn both away: nothing need be there."""
    with answering_server(lambda request: (status, error_body(code))) as (endpoint, _):
        store = open_store("s3://bucket/graph", {"endpoint": endpoint, **KEY})
        assert store.put_if_absent("a", b"") is answer


def test_a_process_that_was_forked_is_told_so_instead_of_waiting_for_ever(s3: Root) -> None:
    script = f"""
import os, signal
from omniray.engine.store.open_store import open_store
store = open_store("{s3.uri}/graph", {s3.storage_options!r})
store.put("object", b"")
if os.fork() == 0:
    signal.alarm({TIMEOUT_S // 2})  # one that waits for ever ends with the test
    try:
        open_store("{s3.uri}/graph", {s3.storage_options!r}).get("object")
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
print(store.get("object"))
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    told, parent = child.stdout.splitlines()
    assert told.startswith("StorageError")
    assert "forked" in told
    assert parent == "b''"


def test_the_marker_that_some_tools_make_of_a_folder_is_no_file(server: S3Server) -> None:
    store = open_store("s3://bucket/marked", server.storage_options)
    fill(server, ["bucket/marked/", "bucket/marked/folder/", "bucket/marked/folder/a"])
    assert list(store.names("")) == ["folder/"]
    assert list(store.names("folder")) == ["a"]
    assert store.first_name("folder") == "a"
    assert "folder/a" in [file.path for file in store.files("")]
    assert "" not in [file.path for file in store.files("")]


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


def test_objects_that_can_t_be_deleted_are_not_passed_over() -> None:
    """The answer to a bulk delete is a success even where each of its objects was refused."""
    refused = "<Error><Key>graph/object</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    with answering_server(lambda request: (200, f"<DeleteResult>{refused}</DeleteResult>")) as (endpoint, _):
        store = open_store("s3://bucket/graph", {"endpoint": endpoint, **KEY})
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
