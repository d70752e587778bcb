"""The door's HTTP: who is let in, with how much, and what they hear: a real server, and a house that takes all."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import msgspec
import pytest

from omniray.coordinator.door import app as app_module
from omniray.coordinator.door import messages
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import Reply
from omniray.coordinator.door.calls import ARGUMENTS_BYTES_MAX, CALLS
from omniray.coordinator.door.messages import BYTES_MAX
from omniray.coordinator.door.room import BODIES_BYTES_MAX, SMALL_BYTES, Room, Share
from tests.door.houses import LANDED, LINE, TIMEOUT_S, Door, FakeHouse, head, opened

PACKED = "application/vnd.msgpack"
WRITE, NEWEST = "/v1/write", "/v1/call/newest"


@pytest.fixture
def door() -> Iterator[Door]:
    with opened(FakeHouse(gives={"newest": 41})) as door:
        yield door


def kind(body: bytes) -> str:
    return str(json.loads(body)["kind"])


# Who is let in


def test_a_write_and_a_call_come_to_the_house_and_their_answers_back(door: Door) -> None:
    said = door.ask(WRITE, b"a write")
    assert (said.status, said.body, said.headers["content-type"]) == (200, encode_reply(LANDED), PACKED)
    assert said.headers["x-omniray-newest"] == "41"
    said = door.ask(NEWEST, b"{}")
    assert (said.status, json.loads(said.body), said.headers["content-type"]) == (200, 41, "application/json")
    assert (door.house.written, door.house.called) == ([b"a write"], [("newest", b"{}")])


@pytest.mark.parametrize(
    "credential", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {secret}", "{secret}", "Bearer {secret}x", "ß"]
)
@pytest.mark.parametrize("path", [WRITE, NEWEST, "/v1/call/no", "/v2"])
def test_without_the_secret_nothing_is_told_but_that(door: Door, path: str, credential: str | None) -> None:
    """Not even which paths there are, nor which place or line would be the right one."""
    given = None if credential is None else credential.format(secret=door.record.secret)
    said = door.ask(path, b"{}", Authorization=given, X_Omniray_Line="", X_Omniray_Place="")
    assert (said.status, kind(said.body)) == (401, "unauthenticated")
    assert said.headers["connection"] == "close"
    assert (door.house.written, door.house.called) == ([], [])


@pytest.mark.parametrize("place", [None, "", "7-8", f"{'7' * 300}"])
def test_a_client_that_has_read_a_copy_of_the_graph_is_told_how_to_free_it(door: Door, place: str | None) -> None:
    said = door.ask(WRITE, b"a write", X_Omniray_Place=place)
    assert (said.status, kind(said.body)) == (409, "line_owned")
    assert "recover --take-over" in json.loads(said.body)["message"]
    assert door.house.written == []


def test_a_client_that_knows_an_earlier_place_of_the_record_is_let_in(door: Door) -> None:
    door.house.places.add("8-8")
    assert door.ask(WRITE, b"a write").status == 200
    assert door.ask(WRITE, b"a write", X_Omniray_Place="8-8").status == 200


def test_before_its_record_is_put_a_door_lets_nobody_in(door: Door) -> None:
    door.house.places.clear()
    assert door.ask(WRITE, b"a write").status == door.ask(WRITE, b"a write", X_Omniray_Place="").status == 409


@pytest.mark.parametrize("line", [None, "", "main", "01k9zq5t7z0000000000000009"])
def test_a_request_that_names_no_line_is_not_carried_out(door: Door, line: str | None) -> None:
    said = door.ask(WRITE, b"a write", X_Omniray_Line=line)
    assert (said.status, kind(said.body)) == (404, "not_found")
    assert door.house.written == []


@pytest.mark.parametrize(("line", "newest"), [(LINE, "41"), ("01K9ZQ5T7Z0000000000000009", None)])
def test_the_house_is_told_which_branch_a_request_is_for(door: Door, line: str, newest: str | None) -> None:
    """The answer tells the number of that branch's line, if that is open."""
    said = [door.ask(path, b"{}", X_Omniray_Line=line) for path in (WRITE, NEWEST, "/v1/stage")]
    assert [one.status for one in said] == [200] * 3
    assert door.house.lines == [line] * 3
    assert [one.headers.get("x-omniray-newest") for one in said] == [newest] * 3


@pytest.mark.parametrize("path", ["/v9/write", "/v0/write", "/v2/call/newest", "/v3/stage", "/v7/no"])
def test_a_request_of_an_unknown_version_is_refused_by_name_before_it_is_read(door: Door, path: str) -> None:
    """In JSON, which every version reads."""
    said = door.ask(path, Content_Length="7")
    version = path[2]
    assert (said.status, kind(said.body), said.headers["content-type"]) == (400, "bad_input", "application/json")
    assert f"a request of version {version}, and this omniray understands 1: use" in json.loads(said.body)["message"]
    assert (door.house.written, door.house.called) == ([], [])


def test_a_request_is_answered_in_its_own_version(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a coordinator of the next release, while clients of this one still write."""
    monkeypatch.setattr(messages, "VERSIONS", (1, 2))
    said = [door.ask(f"/v{version}/write", b"a write") for version in (1, 2)]
    assert door.house.versions == [1, 2]
    assert [msgspec.msgpack.decode(one.body)["version"] for one in said] == [1, 2]


@pytest.mark.parametrize(
    "path", ["/v1/call/no", "/v1/call/", "/v1/call/newest/", "/v1/write/", "/", "/write", "/vx/write", "/v/write"]
)
def test_a_call_that_there_is_not_names_those_that_there_are(door: Door, path: str) -> None:
    said = door.ask(path, b"{}")
    assert (said.status, kind(said.body)) == (404, "not_found")
    assert all(name in said.body.decode() for name in CALLS)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_another_method_is_not_allowed(door: Door, method: str) -> None:
    assert door.ask(WRITE, b"x", method=method).status == 405
    assert door.house.written == []


# How much


@pytest.mark.parametrize("length", [None, "", "-1", "+1", "0x1", "1.0", "9" * 13])
def test_a_request_that_does_not_say_how_much_it_brings_is_refused_before_it_is_read(
    door: Door, length: str | None
) -> None:
    said = door.ask(WRITE, Content_Length=length)
    assert said.status == 400
    assert door.house.written == []


@pytest.mark.parametrize(("path", "most"), [(WRITE, BYTES_MAX), (NEWEST, ARGUMENTS_BYTES_MAX)])
def test_a_request_that_is_too_large_is_refused_before_it_is_read(door: Door, path: str, most: int) -> None:
    said = door.ask(path, Content_Length=str(most + 1))
    assert (said.status, kind(said.body)) == (400, "bad_input")
    assert f"at most {most}" in json.loads(said.body)["message"]


def test_a_body_in_chunks_is_refused(door: Door) -> None:
    """Its size is known only when it is there."""
    headers = door.headers(Transfer_Encoding="chunked")
    with door.speak(head("POST", WRITE, headers) + b"1\r\na\r\n0\r\n\r\n") as raw:
        assert raw.hear().status == 400
    with door.speak(head("POST", WRITE, {**headers, "Content-Length": "1"}) + b"1\r\na\r\n0\r\n\r\n") as raw:
        assert raw.hear().status == 400
    assert door.house.written == []


def test_two_lengths_that_differ_are_refused(door: Door) -> None:
    with door.speak(
        head("POST", WRITE, {**door.headers(), "Content-Length": "1", "content-length": "2"}) + b"ab"
    ) as raw:
        assert raw.hear().status == 400
    assert door.house.written == []


LONG = SMALL_BYTES + 1000


def test_where_there_is_no_room_a_request_is_to_come_again_and_its_body_is_not_read(door: Door) -> None:
    door.app.room = Room(10)
    said = door.ask(WRITE, Content_Length=str(LONG))
    assert (said.status, kind(said.body), said.headers["retry-after"]) == (429, "overloaded", "1")
    assert json.loads(said.body)["facts"]["retry_after_s"] > 0
    assert door.app.room.left == 10
    for path in (WRITE, NEWEST):
        assert door.ask(path, b"{}").status == 200, "what is small needs no room"


def test_room_is_taken_for_what_has_arrived_and_given_back_after_the_answer(door: Door) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    async def wait(sent: bytes) -> Reply:
        reached.set()
        await asyncio.get_running_loop().run_in_executor(None, goes_on.wait, TIMEOUT_S)
        return Reply(200, encode_reply(LANDED))

    door.house.answers = wait
    with door.speak(head("POST", WRITE, {**door.headers(), "Content-Length": str(LONG)})) as raw:
        assert door.ask(NEWEST, b"{}").status == 200, "the head has arrived by now"
        assert door.app.room.left == BODIES_BYTES_MAX
        raw.say(b"x" * LONG)
        assert reached.wait(TIMEOUT_S)
        assert door.app.room.left == BODIES_BYTES_MAX - 1000
        goes_on.set()
        assert raw.hear().status == 200
    assert door.app.room.left == BODIES_BYTES_MAX


def test_heads_that_announce_much_and_bring_nothing_keep_nobody_out(door: Door) -> None:
    announced = head("POST", WRITE, {**door.headers(), "Content-Length": str(BYTES_MAX)})
    with door.speak(announced), door.speak(announced), door.speak(announced):
        assert door.ask(WRITE, b"x" * LONG).status == 200
        assert door.ask(NEWEST, b"{}").status == 200


def test_a_client_that_leaves_in_the_middle_of_a_body_gives_its_room_back(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, has_left = threading.Event(), threading.Event()
    take = Share.arrived

    def watched(share: Share, size: int) -> None:
        take(share, size)
        if share.held:
            arrived.set()

    class Left(app_module._Left):
        def __init__(self) -> None:
            has_left.set()

    monkeypatch.setattr(Share, "arrived", watched)
    monkeypatch.setattr(app_module, "_Left", Left)
    with door.speak(head("POST", WRITE, {**door.headers(), "Content-Length": str(2 * LONG)}) + b"x" * LONG):
        assert arrived.wait(TIMEOUT_S)
        assert door.app.room.left < BODIES_BYTES_MAX
    assert has_left.wait(TIMEOUT_S)
    assert door.ask(NEWEST, b"{}").status == 200, "the loop has gone on since, and so has the end of that request"
    assert door.app.room.left == BODIES_BYTES_MAX
    assert door.house.written == []


def test_a_body_that_does_not_arrive_in_time_is_an_error_and_gives_its_room_back(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "BODY_S_MAX", 0.01)
    with door.speak(head("POST", WRITE, {**door.headers(), "Content-Length": str(2 * LONG)}) + b"x" * LONG) as raw:
        said = raw.hear()
        assert (said.status, kind(said.body)) == (503, "storage")
        assert raw.hear_all() == b"", "and the connection is closed"
    assert door.app.room.left == BODIES_BYTES_MAX
    assert door.house.written == []


def test_a_house_that_fails_gives_the_room_back(door: Door) -> None:
    async def fail(sent: bytes) -> Reply:
        raise ZeroDivisionError

    door.house.answers = fail
    assert door.ask(WRITE, b"x" * LONG).status == 500
    assert door.app.room.left == BODIES_BYTES_MAX
    door.house.answers = None
    assert door.ask(WRITE, b"a write").status == 200


# One connection


def test_many_requests_share_a_connection_also_without_waiting_for_answers(door: Door) -> None:
    request = head("POST", WRITE, {**door.headers(), "Content-Length": "3"})
    with door.speak(request + b"one" + request + b"two" + request[:20]) as raw:
        assert [raw.hear().status for _ in range(2)] == [200] * 2
        raw.say(request[20:] + b"x" * 3)
        assert raw.hear().status == 200
    assert door.house.written == [b"one", b"two", b"xxx"]


def test_what_follows_a_request_that_was_refused_unread_is_not_taken_for_another_one(door: Door) -> None:
    """Else the body of the first could bring a request of its own."""
    smuggled = head("POST", WRITE, {**door.headers(), "Content-Length": "3"}) + b"two"
    refused = head("POST", WRITE, {**door.headers(Authorization="Bearer no"), "Content-Length": str(len(smuggled))})
    with door.speak(refused + smuggled) as raw:
        assert raw.hear().status == 401
        assert raw.hear_all() == b""
    assert door.house.written == []


# For whoever watches


def test_health_readiness_and_metrics_need_no_credential(door: Door) -> None:
    said = [door.ask(path, method="GET") for path in ("/healthz", "/readyz", "/metrics", "/metric")]
    assert [(one.status, one.body) for one in said] == [
        (200, b"ok\n"), (200, b"ready\n"), (200, b"omniray_commits_total 7\n"), (404, b"")
    ]  # fmt: skip
    assert said[2].headers["content-type"].startswith("text/plain; version=0.0.4")
    assert all("x-omniray-newest" not in one.headers and "server" not in one.headers for one in said)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/metric"])
def test_who_brings_no_credential_keeps_no_connection(door: Door, path: str) -> None:
    """Kept ones count as clients, and thousands of them would leave no room for anybody else's."""
    with door.speak(head("GET", path, {})) as raw:
        assert raw.hear().headers["connection"] == "close"
        assert raw.hear_all() == b"", "and the connection is closed"


def test_a_door_whose_publisher_does_not_serve_is_alive_but_not_ready(door: Door) -> None:
    door.house.is_ready = False
    assert door.ask("/readyz", method="GET").status == 503
    assert door.ask("/healthz", method="GET").status == 200
