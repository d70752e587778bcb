"""The proxy before the store: fair weather changes nothing, bad weather does to requests what was announced."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import omniray
from omniray.coordinator.stress.fault_proxy import FaultProxy, running_proxy
from omniray.coordinator.stress.operation import SCHEMA, Account
from omniray.coordinator.stress.request_faults import RequestFault, Seen, StoreFault, Weather
from omniray.engine.base.errors import InputError
from tests.kit.s3server import S3Server

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def running(server: S3Server) -> Iterator[FaultProxy]:
    with running_proxy(server.endpoint, seed=1) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: FaultProxy) -> Iterator[FaultProxy]:
    yield running
    running.set_weather(None)
    running.disarm()


def _ask(endpoint: str, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer
    finally:
        connection.close()


def _raw(endpoint: str, *messages: bytes) -> bytes:
    """All that comes back on one connection for what is sent, until the other side closes or all is answered."""
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(b"".join(messages))
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_graph_behind_the_proxy_is_like_any_other(server: S3Server, proxy: FaultProxy) -> None:
    options = {**server.storage_options, "aws_endpoint": proxy.endpoint}
    account = Account(name="ann", owner="w1", counter=1, stamp="x")
    with omniray.init("s3://bucket/graph", schema=SCHEMA, storage_options=options) as graph:
        graph.load([account.record()])
    with omniray.open("s3://bucket/graph", storage_options=server.storage_options) as graph:
        assert graph.snapshot().table("Account")["name"].to_pylist() == ["ann"]


def test_several_requests_of_one_connection_are_answered_in_turn(server: S3Server, proxy: FaultProxy) -> None:
    put = b"PUT /bucket/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
    head = b"HEAD /bucket/in-turn-1 HTTP/1.1\r\nHost: x\r\n\r\n"
    got = b"GET /bucket/in-turn-2 HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = _raw(proxy.endpoint, put % b"in-turn-1", head, put % b"in-turn-2", got)
    assert answers.count(b"HTTP/1.1 200") == 4
    assert answers.endswith(b"body")


def test_a_body_in_chunks_arrives_whole(server: S3Server, proxy: FaultProxy) -> None:
    head = b"PUT /bucket/chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"4\r\none \r\n5;with=extension\r\n\r\ntwo\r\n0\r\nTrailer: x\r\n\r\n"
    assert b"HTTP/1.1 200" in _raw(proxy.endpoint, head, body)
    assert _ask(server.endpoint, "GET", "/bucket/chunks").content == b"one \r\ntwo"


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(server: S3Server, proxy: FaultProxy) -> None:
    head = b"PUT /bucket/expected HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    answers = _raw(proxy.endpoint, head, b"body")
    assert answers.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(StoreFault.INTERNAL_ERROR, 500, b"InternalError"), (StoreFault.SLOW_DOWN, 503, b"SlowDown")],
)
def test_a_refused_request_has_no_effect(
    server: S3Server, proxy: FaultProxy, fault: StoreFault, status: int, code: bytes
) -> None:
    proxy.set_weather(Weather(fault, 1.0))
    answer = _ask(proxy.endpoint, "PUT", f"/bucket/{fault}", b"body")
    assert answer.status == status
    assert code in answer.content
    assert _ask(server.endpoint, "GET", f"/bucket/{fault}").status == 404


def test_a_refusal_of_a_head_request_leaves_its_connection_usable(proxy: FaultProxy) -> None:
    proxy.set_weather(Weather(StoreFault.INTERNAL_ERROR, 1.0))
    head = b"HEAD /bucket/missing HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = _raw(proxy.endpoint, head, head)
    assert answers.count(b"HTTP/1.1 500") == 2
    assert b"<Error>" not in answers


def test_an_answer_that_is_lost_had_its_effect(server: S3Server, proxy: FaultProxy) -> None:
    proxy.set_weather(Weather(StoreFault.LOST_ANSWER, 1.0))
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        _ask(proxy.endpoint, "PUT", "/bucket/lost", b"body")
    assert _ask(server.endpoint, "GET", "/bucket/lost").content == b"body"


def test_a_request_that_is_sent_twice_is_answered_as_the_second_time(server: S3Server, proxy: FaultProxy) -> None:
    proxy.set_weather(Weather(StoreFault.TWICE, 1.0))
    assert _ask(proxy.endpoint, "PUT", "/bucket/twice", b"body", **{"If-None-Match": "*"}).status == 412
    assert _ask(server.endpoint, "GET", "/bucket/twice").content == b"body"


def test_an_endpoint_that_speaks_tls_is_refused() -> None:
    with pytest.raises(InputError, match="give an endpoint that begins with http://"), running_proxy("https://s3"):
        pytest.fail("it runs")


def test_a_share_of_the_requests_goes_wrong(proxy: FaultProxy) -> None:
    proxy.set_weather(Weather(StoreFault.INTERNAL_ERROR, 0.5))
    statuses = {_ask(proxy.endpoint, "GET", "/bucket/missing").status for _ in range(100)}
    assert statuses == {404, 500}


# A certain request


def test_a_fault_of_a_request_meets_that_one_and_its_repetitions_and_the_log_has_it(proxy: FaultProxy) -> None:
    proxy.arm(RequestFault(StoreFault.SLOW_DOWN, "GET .*/b[0-9]", nth=2, times=2))
    paths = ["/bucket/a", "/bucket/b1", "/bucket/b2", "/bucket/b2", "/bucket/b2", "/bucket/b3"]
    assert [_ask(proxy.endpoint, "GET", path).status for path in paths] == [404, 404, 503, 503, 404, 404]
    proxy.disarm()
    _ask(proxy.endpoint, "GET", "/bucket/later")
    met = StoreFault.SLOW_DOWN
    faults = [None, None, met, met, None, None]
    assert proxy.log() == [Seen("GET", path, "", False, fault) for path, fault in zip(paths, faults, strict=True)]


def test_nothing_is_logged_unless_somebody_watches(proxy: FaultProxy) -> None:
    proxy.watch()
    proxy.disarm()
    _ask(proxy.endpoint, "GET", "/bucket/unwatched")
    assert proxy.log() == []
