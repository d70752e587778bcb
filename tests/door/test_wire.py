"""A client's connections to a real door: what is said of a request that failed depends on whether it was sent."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from omniray.coordinator.client import wire as wire_module
from omniray.coordinator.door import messages
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import Reply
from omniray.coordinator.door.calls import FLUSH, NEWEST, OUTCOME, OfWrite
from omniray.coordinator.door.certificate import Certificate, client_context
from omniray.coordinator.door.http_server import HttpServer
from omniray.coordinator.door.requests import encode_request
from omniray.coordinator.door.room import RETRY_AFTER_S, Room
from omniray.engine.base.errors import (
    InputError,
    KeyConflict,
    LineOwned,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StorageError,
    Unauthenticated,
    Unreachable,
)
from omniray.engine.base.messages import Form
from omniray.engine.judge.resolution import Outcome
from omniray.engine.schema.parser import parse_schema
from tests.clocks import SleepersClock
from tests.coordination import Sender
from tests.door.houses import LANDED, LINE, TIMEOUT_S, Door, FakeHouse, opened
from tests.graphs import INSERT, SCHEMA

REQUEST = Sender(parse_schema(SCHEMA)).mutation(INSERT, {"name": "ann"})
ID = REQUEST.header.commit_id
OTHER_LINE = "01K9ZQ5T7Z0000000000000009"
LARGE = Sender(parse_schema(SCHEMA)).mutation(INSERT, {"name": "a" * (16 << 20)})


@pytest.fixture
def door() -> Iterator[Door]:
    with opened(FakeHouse(gives={"newest": 41, "outcome": Outcome(ID, committed=True)})) as door:
        yield door


def replying(answer: Any) -> Callable[[bytes], Any]:
    async def reply(sent: bytes) -> Reply:
        return answer if isinstance(answer, Reply) else Reply(200, encode_reply(answer))

    return reply


# There and back


def test_a_write_and_calls_go_there_and_back_on_one_connection(door: Door) -> None:
    wire = door.wire()
    assert wire.write(REQUEST, TIMEOUT_S) == LANDED
    assert door.house.written == [encode_request(REQUEST)]
    assert wire.call(NEWEST, TIMEOUT_S) == 41
    assert wire.call(FLUSH, TIMEOUT_S) is None
    assert wire.call(OUTCOME, TIMEOUT_S, OfWrite(ID)) == Outcome(ID, committed=True)
    assert door.server.connections == 1
    assert door.house.called[-1] == ("outcome", b'{"txn_id":"%b"}' % ID.encode())
    wire.close()


def test_requests_of_threads_have_connections_of_their_own_and_keep_them(door: Door) -> None:
    """A slow answer keeps nobody else waiting."""
    slow, goes_on = threading.Event(), threading.Event()

    async def wait(sent: bytes) -> Reply:
        slow.set()
        await asyncio.get_running_loop().run_in_executor(None, goes_on.wait, TIMEOUT_S)
        return Reply(200, encode_reply(LANDED))

    door.house.answers = wait
    wire, answers = door.wire(), list[Any]()
    writer = threading.Thread(target=lambda: answers.append(wire.write(REQUEST, TIMEOUT_S)))
    writer.start()
    assert slow.wait(TIMEOUT_S)
    assert wire.call(NEWEST, TIMEOUT_S) == 41
    assert door.server.connections == 2
    goes_on.set()
    writer.join(TIMEOUT_S)
    assert answers == [LANDED]
    assert wire.call(NEWEST, TIMEOUT_S) == 41
    assert door.server.connections == 2
    wire.close()


def test_an_error_of_a_write_is_raised_as_it_is(door: Door) -> None:
    told = KeyConflict("node:Person", "ann", record="record 3")
    door.house.answers = replying(told)
    with pytest.raises(KeyConflict) as conflict, closing(door) as wire:
        wire.write(REQUEST, TIMEOUT_S)
    assert (str(conflict.value), conflict.value.facts) == (str(told), told.facts)


@contextmanager
def closing(door: Door, **options: Any) -> Iterator[Any]:
    wire = door.wire(**options)
    try:
        yield wire
    finally:
        wire.close()


def test_the_newest_number_that_was_told_is_known_and_never_goes_back(door: Door) -> None:
    with closing(door, newest=7) as wire:
        assert wire.newest == 7
        wire.call(NEWEST, TIMEOUT_S)
        assert wire.newest == 41
        door.house.newest = 12
        wire.call(NEWEST, TIMEOUT_S)
        assert wire.newest == 41


def test_a_wire_that_has_heard_nothing_for_long_has_paused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepersClock()
    monkeypatch.setattr(wire_module, "time", clock)
    with closing(door) as wire:
        assert not wire.has_paused
        clock.sleep(wire_module.IDLE_S + 1)
        assert wire.has_paused
        wire.call(NEWEST, TIMEOUT_S)
        assert not wire.has_paused


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_whoever_waits_for_ever_waits_as_long_as_a_socket_can(door: Door, timeout_s: float) -> None:
    with closing(door) as wire:
        assert wire.write(REQUEST, timeout_s) == LANDED
        assert wire.call(NEWEST, timeout_s) == 41


def test_the_secret_of_a_door_is_not_in_the_text_of_its_wire(door: Door) -> None:
    with closing(door) as wire:
        assert door.record.secret not in repr(wire)


# Versions


@pytest.mark.parametrize(("spoken", "version"), [((1,), 1), ((1, 2), 1), ((0, 1), 1)])
def test_the_newest_version_that_both_sides_know_is_spoken(door: Door, spoken: tuple[int, ...], version: int) -> None:
    with closing(door, versions=spoken) as wire:
        assert wire.write(REQUEST, TIMEOUT_S) == LANDED
    assert door.house.versions == [version]
    assert msgspec.msgpack.decode(door.house.written[0])["version"] == version


def test_a_client_of_the_next_release_speaks_the_version_of_this_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "VERSIONS", (1, 2))
    monkeypatch.setattr(messages, "_ANSWERS", Form(messages.AnyAnswer, (1, 2), messages.BYTES_MAX))
    with closing(door) as wire:
        assert wire.write(REQUEST, TIMEOUT_S) == LANDED
    with closing(door, versions=(1, 2)) as wire:
        wire.write(REQUEST, TIMEOUT_S)
    assert door.house.versions == [1, 2]
    assert [msgspec.msgpack.decode(sent)["version"] for sent in door.house.written] == [1, 2]


@pytest.mark.parametrize("spoken", [(2, 3), (0,), ()], ids=["newer", "older", "none"])
def test_a_coordinator_that_speaks_no_common_version_is_told_by_name_before_anything_is_sent(
    door: Door, spoken: tuple[int, ...]
) -> None:
    named = ", ".join(map(str, spoken)) or "none"
    with pytest.raises(InputError, match=f"speaks version {named} of the messages, and this omniray 1: use the same"):
        door.wire(versions=spoken)


# Not let in


def test_a_wire_with_the_secret_of_before_is_not_let_in(door: Door) -> None:
    with closing(door, secret="of-before") as wire:
        for ask in (lambda: wire.write(REQUEST, TIMEOUT_S), lambda: wire.call(NEWEST, TIMEOUT_S)):
            with pytest.raises(Unauthenticated, match="read the door's record again"):
                ask()
    assert (door.house.written, door.house.called) == ([], [])


def test_a_wire_that_was_found_in_a_copy_is_told_how_to_free_it(door: Door) -> None:
    with closing(door, place="of a copy") as wire, pytest.raises(LineOwned, match="recover --take-over"):
        wire.write(REQUEST, TIMEOUT_S)
    assert door.house.written == []


def test_a_wire_that_names_no_line_is_told_so(door: Door) -> None:
    with closing(door, line="main") as wire, pytest.raises(NotFound):
        wire.write(REQUEST, TIMEOUT_S)


def test_a_wire_for_another_branch_shares_the_connections_and_has_a_number_of_its_own(door: Door) -> None:
    with closing(door) as wire:
        wire.call(NEWEST, TIMEOUT_S)
        other = wire.on(OTHER_LINE, wire_module.Known(5))
        assert (other.root, wire.root) == (wire, wire)
        other.write(REQUEST, TIMEOUT_S)
        assert (door.house.lines, door.server.connections) == ([LINE, OTHER_LINE], 1)
        assert (wire.newest, other.newest) == (41, 5), "this house tells the number of main alone"


def test_a_large_write_without_room_is_overloaded_and_not_in_doubt(door: Door) -> None:
    """The door reads nothing and closes the connection while it is still being sent."""
    door.app.room = Room(10)
    with closing(door) as wire:
        with pytest.raises(Overloaded) as overload:
            wire.write(LARGE, TIMEOUT_S)
        assert overload.value.facts["retry_after_s"] == RETRY_AFTER_S
        door.app.room = Room()
        assert wire.write(LARGE, TIMEOUT_S) == LANDED


# Nothing was sent


def test_a_port_on_which_nobody_listens_is_unreachable_with_its_url() -> None:
    with opened() as door:
        wire = door.wire()
    for ask in (lambda: wire.write(REQUEST, TIMEOUT_S), lambda: wire.call(NEWEST, TIMEOUT_S)):
        with pytest.raises(Unreachable, match="does not answer") as silent:
            ask()
        assert silent.value.facts == {"url": door.server.url}


def test_a_server_that_ended_between_two_requests_is_unreachable_and_the_second_is_not_in_doubt() -> None:
    """The connection that was kept is seen to be closed before anything is sent on it."""
    with opened(FakeHouse(gives={"newest": 41})) as door:
        wire = door.wire()
        wire.call(NEWEST, TIMEOUT_S)
    with pytest.raises(Unreachable) as silent:
        wire.write(REQUEST, TIMEOUT_S)
    assert silent.value.facts["url"] == door.server.url


# No whole answer came


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does something to its first connection once it has heard from it; the url."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(TIMEOUT_S)


FAILS: dict[str, Callable[[socket.socket], object]] = {
    "it died": lambda connection: None,
    "it died in its answer": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
    "it says nothing that is HTTP": lambda connection: connection.sendall(b"220 mail.example.com ESMTP\r\n"),
    "it is another server": lambda connection: connection.sendall(
        b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno"
    ),
    "it answers nonsense": lambda connection: connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.msgpack\r\nContent-Length: 2\r\n\r\nno"
    ),
}


@pytest.mark.parametrize("how", FAILS)
def test_a_write_that_was_sent_and_not_answered_is_unknown(door: Door, how: str) -> None:
    with listening(FAILS[how]) as url, closing(door, url=url) as wire:
        with pytest.raises(OutcomeUnknown, match=ID) as doubt:
            wire.write(REQUEST, TIMEOUT_S)
        assert doubt.value.facts["txn_id"] == ID


@pytest.mark.parametrize("how", [how for how in FAILS if how != "it answers nonsense"])
def test_a_call_that_was_not_answered_may_be_made_again(door: Door, how: str) -> None:
    with listening(FAILS[how]) as url, closing(door, url=url) as wire:
        with pytest.raises(Unreachable, match="gave no answer to 'flush'") as silent:
            wire.call(FLUSH, TIMEOUT_S)
        assert silent.value.facts["url"] == url


def test_a_write_that_is_not_answered_in_time_is_unknown(door: Door) -> None:
    hangs = threading.Event()
    try:
        with listening(lambda connection: hangs.wait(TIMEOUT_S)) as url, closing(door, url=url) as wire:
            with pytest.raises(OutcomeUnknown, match=r"no answer in 0\.01 s"):
                wire.write(REQUEST, 0.01)
            hangs.set()
    finally:
        hangs.set()


def test_a_write_whose_house_has_a_bug_is_unknown(door: Door) -> None:
    """It may be committed: that it failed after that says nothing."""

    async def fail(sent: bytes) -> Reply:
        raise ZeroDivisionError

    door.house.answers = fail
    with closing(door) as wire, pytest.raises(OutcomeUnknown, match="status 500"):
        wire.write(REQUEST, TIMEOUT_S)


def test_an_answer_of_another_form_is_an_error_that_names_the_call(door: Door) -> None:
    door.house.gives = {"newest": "not a number"}
    with closing(door) as wire, pytest.raises(StorageError, match=r"'newest' can't be read.*the same release"):
        wire.call(NEWEST, TIMEOUT_S)


def test_a_wire_that_was_closed_keeps_no_connection(door: Door) -> None:
    """A link closes the wire of a coordinator that is gone while requests of other threads are still under way."""
    reached, goes_on = threading.Event(), threading.Event()

    async def wait(sent: bytes) -> Reply:
        reached.set()
        await asyncio.get_running_loop().run_in_executor(None, goes_on.wait, TIMEOUT_S)
        return Reply(200, encode_reply(LANDED))

    door.house.answers = wait
    wire, answers = door.wire(), list[Any]()
    writer = threading.Thread(target=lambda: answers.append(wire.write(REQUEST, TIMEOUT_S)))
    writer.start()
    assert reached.wait(TIMEOUT_S)
    wire.close()
    goes_on.set()
    writer.join(TIMEOUT_S)
    assert answers == [LANDED]
    assert wire._idle == []


# With a certificate


def test_a_door_with_a_certificate_is_reached_by_those_who_have_it_and_by_nobody_else() -> None:
    certificate, other = (Certificate.new("127.0.0.1") for _ in range(2))
    with opened(FakeHouse(gives={"newest": 41}), certificate=certificate) as door:
        assert door.record.url.startswith("https://")
        with closing(door) as wire:
            assert wire.call(NEWEST, TIMEOUT_S) == 41
            assert wire.write(REQUEST, TIMEOUT_S) == LANDED
        with closing(door, certificate=other.public) as wire, pytest.raises(Unreachable, match="certificate") as silent:
            wire.write(REQUEST, TIMEOUT_S)
        assert "url" in silent.value.facts, "the secret was not sent"
    assert len(door.house.written) == 1


def test_a_certificate_is_for_its_own_host_alone() -> None:
    elsewhere = Certificate.new("10.0.0.1")
    with (
        opened(FakeHouse(gives={"newest": 41}), certificate=elsewhere) as door,
        closing(door) as wire,
        pytest.raises(Unreachable, match=r"certificate|IP address"),
    ):
        wire.call(NEWEST, TIMEOUT_S)
    assert door.house.called == []


def test_a_certificate_may_be_for_a_name() -> None:
    certificate = Certificate.new("localhost")
    with opened(FakeHouse(gives={"newest": 41}), certificate=certificate) as door:
        port = door.record.url.rpartition(":")[2]
        with closing(door, url=f"https://localhost:{port}") as wire:
            assert wire.call(NEWEST, TIMEOUT_S) == 41


def test_the_private_key_is_neither_in_a_text_nor_left_in_a_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    certificate = Certificate.new("127.0.0.1")
    assert "PRIVATE KEY" in certificate.private
    assert "PRIVATE KEY" not in repr(certificate) + certificate.public
    certificate.server_context()
    assert list(tmp_path.iterdir()) == []


def test_only_the_newest_version_of_tls_is_spoken() -> None:
    certificate = Certificate.new("127.0.0.1")
    for context in (certificate.server_context(), client_context(certificate.public)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert client_context(certificate.public).verify_mode is ssl.CERT_REQUIRED
    assert client_context(certificate.public).check_hostname


def test_a_server_that_speaks_no_tls_is_unreachable_by_those_who_expect_it() -> None:
    certificate = Certificate.new("127.0.0.1")
    with opened() as door:
        port = door.record.url.rpartition(":")[2]
        with (
            closing(door, url=f"https://127.0.0.1:{port}", certificate=certificate.public) as wire,
            pytest.raises(Unreachable) as silent,
        ):
            wire.write(REQUEST, TIMEOUT_S)
        assert "url" in silent.value.facts
    assert door.house.written == []


def test_a_server_is_made_for_loopback_without_a_certificate() -> None:
    server = HttpServer("127.0.0.1")
    assert server.url.startswith("http://127.0.0.1:")
    server.close()
