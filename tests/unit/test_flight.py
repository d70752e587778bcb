"""The two ends of a handoff, without Spark and Ray: what a stream brings, and what stops it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from omniray.engine.base.errors import InputError, StorageError, Unreachable
from omniray.workers import flight_client
from omniray.workers.flight import Limits, StagingServer
from omniray.workers.flight_client import Route, hand_over, sized
from omniray.workers.flight_messages import (
    Answer,
    Credit,
    Stream,
    decode_end,
    decode_from_server,
    decode_stream,
    encode_end,
    encode_from_server,
    encode_stream,
)
from tests.coordination import Gate

RUN, TOKEN = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "secret"
STREAM = Stream(RUN, "Person", 0, 0)
TIMEOUT_S = 60.0


def numbers(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def listed(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def keep_all(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
    """Staging whose part is what arrived."""
    rows = listed(batches)
    return Answer(len(rows), repr(rows).encode())


@contextmanager
def server(stage: Callable[[Stream, Iterator[pa.RecordBatch]], Answer] = keep_all, **limits: Any) -> Iterator[str]:
    with StagingServer("127.0.0.1", RUN, TOKEN, stage, Limits(**limits)) as one:
        yield one.location


def route(*locations: str, token: str = TOKEN) -> Route:
    return Route(RUN, locations, token, TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# Rows


def test_every_row_arrives_in_its_order_and_the_part_comes_back() -> None:
    batches = [numbers(10, first) for first in range(0, 1000, 10)]
    with server() as location:
        assert hand_over(route(location), STREAM, batches) == Answer(1000, repr(list(range(1000))).encode())


@pytest.mark.parametrize("batches", [[], [numbers(0)]])
def test_a_partition_without_rows_has_no_part_and_needs_no_server(batches: list[pa.RecordBatch]) -> None:
    assert hand_over(route(), STREAM, batches) is None


def test_a_server_is_told_which_stream_it_has() -> None:
    told = []

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        told.append(stream)
        return keep_all(stream, batches)

    with server(stage) as location:
        hand_over(route(location), Stream(RUN, "Knows", 7, 2), [numbers(1)])
    assert told == [Stream(RUN, "Knows", 7, 2)]


def test_small_batches_are_gathered_and_large_ones_cut() -> None:
    batches = [numbers(30), numbers(0, 30), numbers(30, 30), numbers(500, 60)]
    pieces = list(sized(batches, rows_max=100, bytes_max=8 * 80))
    assert listed(iter(pieces)) == list(range(560))
    assert max(piece.num_rows for piece in pieces) <= 80
    assert pieces[0].num_rows == 60


def test_a_row_above_the_limit_goes_alone() -> None:
    wide = pa.record_batch({"text": ["x" * flight_client.BATCH_BYTES_MAX, "y", "z" * flight_client.BATCH_BYTES_MAX]})
    assert [piece.num_rows for piece in sized([wide])] == [1, 1, 1]


def test_rows_that_a_server_loses_are_noticed_by_the_sender() -> None:
    """Fault: staging drops rows without an error. Expected: the sender refuses the part."""

    def forgetful(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        return Answer(len(listed(batches)) - 1, b"")

    with server(forgetful) as location, pytest.raises(StorageError, match="5 rows were sent and 4 staged"):
        hand_over(route(location), STREAM, [numbers(5)])


def test_a_part_of_a_stream_that_was_not_read_to_its_end_is_no_answer() -> None:
    """Fault: staging stops after its first batch. Expected: neither a part nor a sender that waits for ever."""

    def lazy(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        return Answer(next(batches).num_rows, b"")

    with server(lazy) as location, pytest.raises(StorageError, match="left after 65536 rows, before its end"):
        hand_over(route(location), STREAM, [numbers(65_536), numbers(1)])


def test_an_error_of_the_rows_ends_a_stream_early_and_is_its_answer() -> None:
    sent: list[int] = []

    def refuse(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        next(batches)
        return Answer(None, b"a row that does not fit")

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            sent.append(1)
            yield numbers(65_536)

    with server(refuse) as location:
        assert hand_over(route(location), STREAM, endless()) == Answer(None, b"a row that does not fit")
    assert len(sent) <= Limits().batches_per_stream + 2


def test_an_error_of_the_server_is_raised_in_one_line_with_its_place() -> None:
    def fail(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        raise StorageError("the store is full")

    with server(fail) as location, pytest.raises(StorageError) as caught:
        hand_over(route(location), STREAM, [numbers(1)])
    assert str(caught.value) == (
        f"the handoff of Person partition 0 (task 0) to the staging server at {location} broke off, and nothing of it "
        "counts: the store is full"
    )


# Senders that fail


def put(location: str, stream: Stream = STREAM) -> tuple[Any, Any]:
    """A stream by hand, for senders that do not keep to the rules."""
    client = flight.FlightClient(location)
    descriptor = flight.FlightDescriptor.for_command(encode_stream(stream))
    writer, reader = client.do_put(descriptor, numbers(0).schema, route(location).options(TIMEOUT_S))
    return writer, reader


def ended(writer: Any) -> str:
    """What the server says of a stream in the end."""
    with pytest.raises(flight.FlightError) as caught:
        writer.close()
    return str(caught.value)


def test_rows_that_get_lost_on_the_way_are_noticed_by_the_server() -> None:
    with server() as location:
        writer, reader = put(location)
        reader.read()
        writer.write_batch(numbers(3))
        writer.write_metadata(encode_end(4))
        assert "sent 4 rows, and 3 arrived" in ended(writer)


def test_a_sender_whose_rows_fail_to_come_leaves_no_part() -> None:
    answers = []

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        answers.append(keep_all(stream, batches))
        return answers[-1]

    def broken() -> Iterator[pa.RecordBatch]:
        yield numbers(65_536)
        yield numbers(65_536)
        raise RuntimeError("the user's own function")

    with server(stage) as location, pytest.raises(RuntimeError, match="the user's own function"):
        hand_over(route(location), STREAM, broken())
    assert answers == []


def test_a_stream_of_another_run_is_refused() -> None:
    with server() as location:
        writer, _ = put(location, Stream("another", "Person", 0, 0))
        assert f"this server is of run {RUN}" in ended(writer)


# Messages


@pytest.mark.parametrize("said", [Credit(0), Credit(4), Answer(7, b"\x00part"), Answer(0, b""), Answer(None, b"error")])
def test_what_a_server_says_arrives(said: Credit | Answer) -> None:
    assert decode_from_server(encode_from_server(said)) == said


def test_the_name_of_a_stream_and_its_end_arrive() -> None:
    assert decode_stream(encode_stream(Stream(RUN, "Knows", 7, 2))) == Stream(RUN, "Knows", 7, 2)
    assert decode_end(encode_end(2**40)) == 2**40


MESSAGES: list[tuple[bytes, Callable[[bytes], object]]] = [
    (encode_stream(STREAM), decode_stream),
    (encode_end(3), decode_end),
    (encode_from_server(Credit(1)), decode_from_server),
    (encode_from_server(Answer(1, b"part")), decode_from_server),
]


@pytest.mark.parametrize(("encoded", "decode"), MESSAGES)
def test_a_message_of_an_unknown_version_is_refused_by_name(encoded: bytes, decode: Callable[[bytes], object]) -> None:
    message = msgspec.msgpack.decode(encoded)
    for other in ({"version": 9}, {"version": 9, "message": "later"}):
        with pytest.raises(InputError, match="a message of version 9, and this omniray understands 1"):
            decode(msgspec.msgpack.encode(message | other))
    with pytest.raises(InputError, match="does not have the form"):
        decode(msgspec.msgpack.encode(message | {"message": "other"}))


@pytest.mark.parametrize(
    ("encoded", "decode", "wrong"),
    [
        (encode_stream(STREAM), decode_stream, {"partition": -1}),
        (encode_stream(STREAM), decode_stream, {"attempt": -1}),
        (encode_stream(STREAM), decode_stream, {"type_name": "x" * 5_000}),
        (encode_stream(STREAM), decode_stream, {"run": "x" * 100_000}),
        (encode_end(3), decode_end, {"rows": -1}),
        (encode_from_server(Credit(1)), decode_from_server, {"batches": -1}),
        (encode_from_server(Answer(1, b"")), decode_from_server, {"rows": -1}),
    ],
)
def test_numbers_below_zero_and_endless_names_are_refused(
    encoded: bytes, decode: Callable[[bytes], object], wrong: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"negative|characters|bytes"):
        decode(msgspec.msgpack.encode(msgspec.msgpack.decode(encoded) | wrong))


def test_a_stream_whose_name_can_not_be_read_is_refused() -> None:
    later = msgspec.msgpack.encode(msgspec.msgpack.decode(encode_stream(STREAM)) | {"version": 9})
    with server() as location:
        client = flight.FlightClient(location)
        descriptor = flight.FlightDescriptor.for_command(later)
        writer, _ = client.do_put(descriptor, numbers(0).schema, route(location).options(TIMEOUT_S))
        assert "a message of version 9" in ended(writer)


def test_an_end_that_can_not_be_read_is_no_error_of_the_rows() -> None:
    """Fault: the last message is broken. Expected: staging fails, since other rows would not fail in its place."""
    outcomes: list[str] = []

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        try:
            return keep_all(stream, batches)
        except InputError:
            outcomes.append("the rows are to blame")
            raise

    with server(stage) as location:
        for end in (b"\xc1", encode_from_server(Credit(1))):
            writer, reader = put(location)
            reader.read()
            writer.write_metadata(end)
            assert "has no end that can be read" in ended(writer)
    assert outcomes == []


def test_a_server_that_says_what_nobody_understands_is_given_up() -> None:
    server = Scripted(0)
    server.read = lambda: pa.py_buffer(b"\xc1")  # type: ignore[method-assign]
    sending = flight_client._Sending(server, "here", route(), STREAM, numbers(0).schema)
    with pytest.raises(
        StorageError, match=r"staging server at here broke off, .*: a message that does not have the form"
    ):
        sending.took(numbers(1))


# Credit


class Scripted:
    """Both ends of a stream whose server grants credit as a script says; it notes what the sender does when."""

    def __init__(self, *grants: int) -> None:
        self._grants = iter(grants)
        self.story: list[str] = []

    def do_put(self, *arguments: Any) -> tuple[Scripted, Scripted]:
        return self, self

    def read(self) -> pa.Buffer:
        granted = next(self._grants, None)
        self.story.append("answer" if granted is None else f"+{granted}")
        return pa.py_buffer(encode_from_server(Answer(None, b"") if granted is None else Credit(granted)))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.story.append("batch")

    def write_metadata(self, data: bytes) -> None:
        self.story.append("count")

    def done_writing(self) -> None:
        self.story.append("end")

    def close(self) -> None:
        pass


def test_a_sender_sends_no_batch_without_credit() -> None:
    server = Scripted(0, 2, 0, 0, 1)
    sending = flight_client._Sending(server, "", route(), STREAM, numbers(0).schema)
    assert all(sending.took(numbers(1)) for _ in range(3))
    sending.end()
    assert server.story == ["+0", "+2", "batch", "batch", "+0", "+0", "+1", "batch", "count", "end", "answer"]


def test_credit_comes_back_as_batches_are_staged() -> None:
    with server(batches_per_stream=1) as location:
        assert hand_over(route(location), STREAM, [numbers(65_536)] * 5) is not None


def test_a_sender_that_goes_on_after_its_answer_is_stopped() -> None:
    def refuse(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        next(batches)
        return Answer(None, b"")

    with server(refuse, batches_per_stream=1) as location:
        writer, _ = put(location)
        for _ in range(2):
            writer.write_batch(numbers(1))
        assert "goes on without credit" in ended(writer)


def test_a_batch_that_is_too_large_is_refused() -> None:
    with server() as location:
        writer, reader = put(location)
        reader.read()
        writer.write_batch(numbers(3 * flight_client.BATCH_BYTES_MAX // 8))
        assert "sent a batch of" in ended(writer)


def test_streams_above_the_limit_wait_for_their_turn_and_then_get_it() -> None:
    gate = Gate()
    order: list[int] = []

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        order.append(stream.partition)
        if stream.partition == 0:
            gate.hold()
        return keep_all(stream, batches)

    with server(stage, streams=1, heartbeat_s=0.05) as location:
        first = threading.Thread(target=hand_over, args=(route(location), STREAM, [numbers(1)]))
        first.start()
        gate.wait_until_reached()
        writer, reader = put(location, Stream(RUN, "Person", 1, 0))
        assert decode_from_server(reader.read().to_pybytes()) == Credit(0)  # it waits, and is told so
        assert order == [0]
        gate.open()
        while (said := decode_from_server(reader.read().to_pybytes())) == Credit(0):
            pass
        assert said == Credit(Limits().batches_per_stream)
        writer.write_batch(numbers(1))
        writer.write_metadata(encode_end(1))
        writer.done_writing()
        first.join(TIMEOUT_S)
        writer.close()
    assert order == [0, 1]


# Reaching a server


def test_a_wrong_token_is_refused_before_anything_is_staged() -> None:
    staged: list[Stream] = []

    def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
        staged.append(stream)
        return keep_all(stream, batches)

    with server(stage) as location:
        with pytest.raises(Unreachable, match=f"{location} refuses the token") as caught:
            hand_over(route(location, token="guessed"), STREAM, [numbers(1)])
        assert "guessed" not in str(caught.value)
        client = flight.FlightClient(location)
        descriptor = flight.FlightDescriptor.for_command(encode_stream(STREAM))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_put(descriptor, numbers(0).schema)[0].close()
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_flights())
    assert staged == []


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(route("grpc://127.0.0.1:1"))


def test_a_server_that_is_gone_is_passed_over_while_no_row_was_sent() -> None:
    gone = f"grpc://127.0.0.1:{free_port()}"
    with server() as location:
        for partition in range(2):
            assert hand_over(route(gone, location), Stream(RUN, "Person", partition, 0), [numbers(2)]) is not None


def test_servers_that_nobody_reaches_are_one_clear_line() -> None:
    gone = [f"grpc://127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(Unreachable) as caught:
        hand_over(route(*gone), STREAM, [numbers(1)])
    assert all(location in str(caught.value) for location in gone)
    assert "see that this host reaches the Ray nodes" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_given_up_after_a_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        location = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match="gives no answer within"):
            hand_over(route(location), STREAM, [numbers(1)], connect_timeout_s=0.5)


def test_partitions_and_their_further_tries_are_spread_over_the_servers() -> None:
    seen: dict[str, set[tuple[int, int]]] = {"a": set(), "b": set()}

    def noting(name: str) -> Callable[[Stream, Iterator[pa.RecordBatch]], Answer]:
        def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
            seen[name].add((stream.partition, stream.attempt))
            return keep_all(stream, batches)

        return stage

    with server(noting("a")) as a, server(noting("b")) as b:
        for partition, attempt in [(0, 0), (1, 0), (2, 0), (0, 1)]:
            hand_over(route(a, b), Stream(RUN, "Person", partition, attempt), [numbers(1)])
    assert seen == {"a": {(0, 0), (2, 0)}, "b": {(1, 0), (0, 1)}}


def test_a_spare_is_for_a_further_try_and_for_when_nobody_else_answers() -> None:
    two = Route(RUN, ("a", "b"), TOKEN, TIMEOUT_S, spares=("s",))
    assert [list(two.ways(Stream(RUN, "Person", partition, 0))) for partition in (0, 1, 2)] == [
        ["a", "b", "s"],
        ["b", "a", "s"],
        ["a", "b", "s"],
    ]
    one = Route(RUN, ("a",), TOKEN, TIMEOUT_S, spares=("s",))
    assert [next(iter(one.ways(Stream(RUN, "Person", 1, attempt)))) for attempt in (0, 1, 2)] == ["a", "s", "a"]


def test_a_server_listens_on_the_one_address_that_it_was_given() -> None:
    with StagingServer("127.0.0.1", RUN, TOKEN, keep_all) as one, socket.socket() as other:
        other.bind(("127.0.0.2", one.port))  # which a server on all addresses would not allow
