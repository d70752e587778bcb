"""Credentials, endpoints and proxies mean the same to the store and to Lance: each test asks as both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from lance.file import LanceFileSession

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.store import s3_credentials
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3_options import resolve_options
from tests.answering import Asked, answering_server

URI = "s3://bucket/graph"
KEY = {"aws_access_key_id": "given", "aws_secret_access_key": "secret"}
PUTS_MAX = 20_000

# Prints credentials that soon expire, others each time.
_PROCESS = """
import datetime, json, pathlib, sys
count = pathlib.Path(sys.argv[1])
count.write_text(count.read_text() + "x" if count.exists() else "x")
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30)
print(json.dumps({
    "Version": 1, "AccessKeyId": "process", "SecretAccessKey": "secret",
    "SessionToken": f"token-{len(count.read_text())}", "Expiration": soon.strftime("%Y-%m-%dT%H:%M:%SZ"),
}))
"""


class Server(NamedTuple):
    endpoint: str
    asked: list[Asked]


@pytest.fixture
def server() -> Iterator[Server]:
    with answering_server(lambda request: (200, "")) as (endpoint, asked):
        yield Server(endpoint, asked)


Sender = Callable[[], None]


def store_sender(options: Mapping[str, str]) -> Sender:
    store = open_store(URI, options)
    return lambda: store.put("object", b"bytes")


def lance_sender(options: Mapping[str, str], file: Path) -> Sender:
    """What Lance does with the options that the store gives it."""
    session = LanceFileSession(URI, storage_options=open_store(URI, options).lance_options)
    return lambda: session.upload_file(str(file), "object")


@pytest.fixture(params=["store", "lance"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Mapping[str, str]], Sender]:
    """A put by each of the two clients, opened with some options."""
    (tmp_path / "file").write_bytes(b"bytes")
    return store_sender if request.param == "store" else lambda options: lance_sender(options, tmp_path / "file")


Senders = Callable[[Mapping[str, str]], Sender]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write an AWS profile, and choose it."""

    def chosen(**settings: str) -> None:
        lines = ["[profile ours]", *(f"{name} = {value}" for name, value in settings.items())]
        (tmp_path / "config").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "ours")

    return chosen


# Keys


def test_no_credentials_at_all_are_asked_for() -> None:
    with pytest.raises(StorageError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        open_store(URI, {"endpoint": "http://127.0.0.1:9"})


def test_a_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match="nobody"):
        open_store(URI, {"endpoint": "http://127.0.0.1:9"})


@pytest.mark.parametrize("half", sorted(KEY))
def test_half_of_a_key_is_refused_and_not_completed_from_elsewhere(half: str) -> None:
    with pytest.raises(InputError, match="half of a key"):
        open_store(URI, {half: KEY[half]})


@pytest.mark.parametrize("variable", ["AWS_SESSION_TOKEN", "AWS_TOKEN"])
def test_a_key_beside_a_token_of_another_one_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance reads the variable by itself, and would send the two together."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv(variable, "token")
    with pytest.raises(InputError, match=variable):
        open_store(URI, KEY)
    open_store(URI, {**KEY, "session_token": "own"})


def test_the_same_key_has_the_same_token(server: Server, sender: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "given")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    sender({**KEY, "endpoint": server.endpoint})()
    assert server.asked[-1].signed_by == ("given", "token")


def test_requests_are_left_unsigned_where_that_is_asked_for(server: Server, sender: Senders) -> None:
    sender({"skip_signature": "true", "endpoint": server.endpoint})()
    assert server.asked[-1].signed_by == (None, None)


# Profiles


def test_a_profile_with_an_http_endpoint_serves_both(
    server: Server, sender: Senders, profile: Callable[..., None]
) -> None:
    profile(
        aws_access_key_id="profiled",
        aws_secret_access_key="secret",
        region="eu-north-1",
        endpoint_url=server.endpoint,
    )
    sender({})()
    assert server.asked[-1].signed_by == ("profiled", None)
    assert "/eu-north-1/s3/" in server.asked[-1].headers["authorization"]


def test_what_is_given_stands_above_the_profile(server: Server, sender: Senders, profile: Callable[..., None]) -> None:
    profile(aws_access_key_id="profiled", aws_secret_access_key="secret", endpoint_url="http://127.0.0.1:9")
    sender({"endpoint": server.endpoint})()
    assert server.asked[-1].signed_by == ("profiled", None)
    sender({"endpoint": server.endpoint, **KEY})()
    assert server.asked[-1].signed_by == ("given", None)


def test_credentials_that_expire_are_renewed_while_a_client_lives(
    server: Server, sender: Senders, profile: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that kept the first credentials would be refused after some hours, and with it a coordinator."""
    monkeypatch.setattr(s3_credentials, "ASKED_EVERY_S", 0)
    (tmp_path / "process.py").write_text(_PROCESS)
    profile(credential_process=f"{sys.executable} {tmp_path}/process.py {tmp_path}/count", endpoint_url=server.endpoint)
    send = sender({})
    tokens: set[str | None] = set()
    for _ in range(PUTS_MAX):
        send()
        tokens.add(server.asked[-1].signed_by[1])
        if len(tokens) > 1:
            break
    assert len(tokens) > 1, "the first token is used for ever"
    assert None not in tokens


def test_a_provider_that_fails_later_is_told_as_such_and_nothing_is_taken_for_unclear(
    server: Server, profile: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile(credential_process=f"{sys.executable} {tmp_path}/process.py {tmp_path}/count", endpoint_url=server.endpoint)
    (tmp_path / "process.py").write_text(_PROCESS)
    store = open_store(URI)
    (tmp_path / "process.py").write_text("raise SystemExit('no more')")
    with pytest.raises(StorageError, match="no credentials:"):
        store.put_if_absent("object", b"")
    assert server.asked == []


# Places


@pytest.mark.parametrize("prefix", ["with blank", "ü", "a+b", "a~b*", "a&=b", "a:b"])
def test_a_prefix_is_the_same_place_for_both(server: Server, tmp_path: Path, prefix: str) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    store = open_store(f"s3://bucket/{prefix}", {**KEY, "endpoint": server.endpoint})
    store.put("object", b"bytes")
    LanceFileSession(store.uri, storage_options=store.lance_options).upload_file(str(tmp_path / "file"), "object")
    ours, lances = server.asked
    assert unquote(ours.target) == unquote(lances.target) == f"/bucket/{prefix}/object"


# Endpoints and proxies


def test_a_given_endpoint_stands_above_every_variable(
    server: Server, sender: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    sender({**KEY, "endpoint": server.endpoint})()
    assert server.asked[-1].method == "PUT"


def test_the_options_of_a_store_open_it_again_elsewhere() -> None:
    """They travel to workers, whose environment may differ."""
    first = resolve_options({"endpoint": "http://a", **KEY}, {"AWS_ENDPOINT_URL_S3": "http://b"})
    assert resolve_options(first, {"AWS_ENDPOINT_URL_S3": "http://c"}) == first
    assert resolve_options(first, {})["aws_endpoint"] == "http://a"


def test_two_names_of_one_option_are_one(server: Server, sender: Senders) -> None:
    """The client refuses an option that it gets twice, by whatever names; the particular name of an endpoint wins."""
    endpoints = {"aws_endpoint_url_s3": server.endpoint, "endpoint": "http://127.0.0.1:9"}
    sender({**KEY, **endpoints, "aws_allow_http": "true", "region": "eu-north-1", "aws_default_region": "eu-north-1"})()
    assert server.asked[-1].signed_by == ("given", None)


@pytest.mark.parametrize("way", ["variable", "option"])
def test_a_proxy_is_used_by_both(server: Server, sender: Senders, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    options = {**KEY, "endpoint": "http://store.invalid"}
    if way == "variable":
        monkeypatch.setenv("HTTP_PROXY", server.endpoint)
        monkeypatch.setenv("http_proxy", server.endpoint)
    else:
        options["proxy_url"] = server.endpoint
    sender(options)()
    assert server.asked[-1].target.startswith("http://store.invalid/bucket/graph/object")


# Other options


def test_an_option_that_only_lance_knows_is_no_obstacle(server: Server) -> None:
    store_sender({**KEY, "endpoint": server.endpoint, "download_retry_count": "0", "lance_aimd_max_retries": "0"})()
    assert len(server.asked) == 1


@pytest.mark.parametrize("options", [{"timeout": "soon"}, {"client_max_retries": "few"}, {"allow_http": "maybe"}])
def test_a_value_that_makes_no_sense_is_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"soon|few|maybe"):
        open_store(URI, {**KEY, **options})
