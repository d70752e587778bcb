"""The server of a door: connections that bring nothing are closed, and what it is told of its connections is true."""

from __future__ import annotations

import socket
import threading

import pytest

from omniray.coordinator.door import http_server
from omniray.coordinator.door.http_server import HEAD_BYTES_MAX, HttpServer
from omniray.engine.base.errors import StorageError
from tests.door.houses import TIMEOUT_S, Door, Raw, head, opened


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for no head."""
    monkeypatch.setattr(http_server, "HEAD_S_MAX", 0.05)


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("sent", [b"", b"POST /v1/write HTTP/1.1\r\nHost: door\r\nX-A: "])
def test_a_connection_that_brings_no_whole_head_in_time_is_closed(sent: bytes) -> None:
    with opened() as door, door.speak(sent) as raw:
        assert raw.hear_all() == b""


@pytest.mark.usefixtures("_hasty")
def a_write(door: Door) -> bytes:
    return head("POST", "/v1/write", {**door.headers(), "Content-Length": "3"}) + b"one"


def test_a_connection_that_has_brought_a_head_is_kept_however_long_it_is_silent_then() -> None:
    """Its client lives; and that it is there keeps its coordinator from ending."""
    with opened() as door, door.speak(a_write(door)) as raw:
        assert raw.hear().status == 200
        with door.speak(b"") as another:
            assert another.hear_all() == b"", "a time has passed after which it would have been closed"
        raw.say(a_write(door))
        assert raw.hear().status == 200


@pytest.mark.parametrize("is_second", [False, True])
def test_a_head_without_end_is_refused(is_second: bool) -> None:
    """It would be kept in memory, from somebody who has not shown any credential yet."""
    with opened() as door, door.speak(a_write(door) if is_second else b"") as raw:
        if is_second:
            assert raw.hear().status == 200
        said = b""
        try:
            raw.say(b"GET /healthz HTTP/1.1\r\nHost: door\r\n")
            for _ in range(4 * HEAD_BYTES_MAX // 1000):
                raw.say(b"X-A: " + b"a" * 990 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        said = raw.hear_all()
        assert said == b"" or said.startswith(b"HTTP/1.1 400")
        assert door.ask("/healthz", method="GET").status == 200


def test_a_head_of_usual_size_after_a_large_body_is_no_large_head() -> None:
    large = b"x" * (4 << 20)  # it arrives in several parts
    with opened() as door:
        request = head("POST", "/v1/write", {**door.headers(), "Content-Length": str(len(large))}) + large
        with door.speak(request) as raw:
            assert raw.hear().status == 200
            for _ in range(3):
                raw.say(request)
                assert raw.hear().status == 200


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\0" * 100])
def test_what_is_no_http_is_refused(sent: bytes) -> None:
    with opened() as door:
        with door.speak(sent) as raw:
            said = raw.hear_all()
        assert said == b"" or said.startswith(b"HTTP/1.1 400")
        assert door.ask("/healthz", method="GET").status == 200


def test_open_connections_are_counted() -> None:
    with opened() as door:
        assert door.server.connections == 0
        with door.speak(a_write(door)) as one, door.speak(a_write(door)) as other:
            assert (one.hear().status, other.hear().status) == (200, 200)
            assert door.server.connections == 2


def test_who_connects_before_the_server_answers_is_answered_when_it_does() -> None:
    """A publisher knows its port before it knows anything else: the record is put before the first answer."""
    server = HttpServer("127.0.0.1")
    heard: list[bytes] = []

    def listen() -> None:
        with Raw(server.url) as raw:
            raw.say(head("GET", "/healthz", {"Connection": "close"}))
            heard.append(raw.hear_all())

    asking = threading.Thread(target=listen)
    asking.start()

    async def app(scope: object, receive: object, send: object) -> None:
        answer = [{"type": "http.response.start", "status": 204, "headers": []}, {"type": "http.response.body"}]
        for message in answer:
            await send(message)  # type: ignore[operator]

    server.start(app)
    asking.join(TIMEOUT_S)
    server.close()
    assert heard[0].startswith(b"HTTP/1.1 204")


def test_a_server_that_was_never_started_is_closed_all_the_same() -> None:
    server = HttpServer("127.0.0.1")
    assert server.connections == 0
    server.close()


def test_a_host_that_is_not_this_one_is_an_error_that_names_it() -> None:
    with pytest.raises(StorageError, match=r"can't listen on 192\.0\.2\.1"):
        HttpServer("192.0.2.1")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_of_ipv6_is_written_as_urls_want_it() -> None:
    try:
        server = HttpServer("::1")
    except StorageError as error:
        pytest.skip(str(error))
    assert server.url.startswith("http://[::1]:")
    server.close()
