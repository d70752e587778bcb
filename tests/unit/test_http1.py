"""HTTP as a client speaks it: a response is put together from any pieces, and what is none is never taken for one."""

from __future__ import annotations

import pytest

from omniray.coordinator.client.http1 import HEAD_BYTES_MAX, BadResponse, Response, ResponseReader, head_of_post

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Omniray-Newest:  7 \r\ncontent-length: 4\r\n\r\nbody"
HEADERS = {b"content-type": b"text/plain", b"x-omniray-newest": b"7", b"content-length": b"4"}


def read(*pieces: bytes) -> Response:
    """The response that the last of these pieces ends."""
    reader = ResponseReader()
    *some, last = pieces
    for piece in some:
        assert reader.feed(piece) is None
    response = reader.feed(last)
    assert response is not None
    return response


def test_a_request_says_where_it_goes_and_how_much_it_brings() -> None:
    assert head_of_post("/v1/write", {"Host": "door", "X-A": "1"}, 12) == (
        b"POST /v1/write HTTP/1.1\r\nHost: door\r\nX-A: 1\r\nContent-Length: 12\r\n\r\n"
    )


def test_a_response_is_the_same_however_it_is_cut() -> None:
    expected = Response(200, HEADERS, b"body", closes=False)
    assert read(WHOLE) == expected
    for cut in range(1, len(WHOLE)):
        assert read(WHOLE[:cut], WHOLE[cut:]) == expected
    assert read(*(WHOLE[place : place + 1] for place in range(len(WHOLE)))) == expected


def test_a_response_without_a_body_ends_with_its_head() -> None:
    assert read(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n") == Response(
        503, {b"content-length": b"0"}, b"", False
    )


@pytest.mark.parametrize(
    "response",
    [WHOLE.replace(b"Content-Type: text/plain", b"Connection: CLOSE"), WHOLE + b"and more"],
    ids=["it says so", "something follows that nobody asked for"],
)
def test_a_connection_that_is_not_to_be_used_again_is_told(response: bytes) -> None:
    answer = read(response)
    assert (answer.body, answer.closes) == (b"body", True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nbo") is None
    assert reader.feed(b"dy") is None
    assert reader.end() == Response(200, {}, b"body", closes=True)


@pytest.mark.parametrize("cut", [0, 5, len(WHOLE) - 10, len(WHOLE) - 1])
def test_a_connection_that_is_closed_too_soon_has_brought_no_response(cut: int) -> None:
    reader = ResponseReader()
    assert reader.feed(WHOLE[:cut]) is None
    with pytest.raises(BadResponse, match="the connection was closed"):
        reader.end()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"220 mail.example.com ESMTP\r\n\r\n", "as a door does"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "as a door does"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "as a door does"),
        (b"HTTP/1.1 20\r\n\r\n", "as a door does"),
        (b"HTTP/1.1 abc\r\n\r\n", "as a door does"),
        (b"\r\n\r\n", "as a door does"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", "chunks"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "a length of"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "a length of"),
        (b"x" * (HEAD_BYTES_MAX + 1), "a head of more than"),
    ],
)
def test_what_is_no_response_of_a_door_is_refused(response: bytes, reason: str) -> None:
    with pytest.raises(BadResponse, match=reason):
        ResponseReader().feed(response)
