"""The sending end of a handoff: sends rows to a staging server on another host.

It imports Arrow Flight, the tree of errors and the messages only: it runs on hosts without Ray, Lance or credentials of
the store. One stream carries the rows of one try of one partition. The server says how many batches it will take
(credit), and grants one more for each batch that it has processed. The last message is the number of rows sent, without
which a dead sender would look like one that has finished; the answer is the part that was staged.

Flight's own back-pressure is the size of the transport's buffers, which follows the network, and it gives no sign of
life meanwhile. Credit is a bound that the server chooses over all its streams: a stream that waits for its turn has no
credit yet, and has sent nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from omniray.engine.base.errors import InputError, StorageError, Unreachable
from omniray.workers.flight_messages import Answer, Stream, decode_from_server, encode_end, encode_stream

BATCH_ROWS_MAX = 65_536
BATCH_BYTES_MAX = 8 << 20
CONNECT_TIMEOUT_S = 10.0
HELLO = "hello"

# A host that vanishes closes no connection. While rows are sent, the second option detects it, which is a timeout of
# the socket too; while a stream waits, a ping does. A server takes more than one ping in five minutes for an attack.
_PINGS = (("grpc.keepalive_time_ms", 330_000), ("grpc.keepalive_timeout_ms", 20_000))
_ADDED_BY_FLIGHT = re.compile(r"\. Detail: |\. gRPC client debug context: |\n")
_FAILURES = (flight.FlightError, pa.ArrowException, OSError)


@dataclass(frozen=True, slots=True)
class Route:
    """The addresses of a run's servers, their token, and the timeout of a stream.

    Spares are used for further tries, and if no other server answers.
    """

    run: str
    locations: Sequence[str]
    token: str = field(repr=False)
    timeout_s: float
    spares: Sequence[str] = ()

    def ways(self, stream: Stream) -> Sequence[str]:
        """All servers in the order to try them; the first one differs by partition and by try."""
        return _turned([*_turned(self.locations, stream.partition), *self.spares], stream.attempt)

    def options(self, timeout_s: float) -> Any:
        return flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", bearer(self.token))])


def _turned(locations: Sequence[str], by: int) -> Sequence[str]:
    first = by % len(locations)
    return [*locations[first:], *locations[:first]]


def bearer(token: str) -> bytes:
    """The header that carries a token."""
    return b"Bearer " + token.encode()


def hand_over(
    route: Route, stream: Stream, batches: Iterable[pa.RecordBatch], *, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> Answer | None:
    """Send rows to one of the servers, and wait for its answer; None if there are no rows.

    Rows are read from an iterator and can't be sent twice: a server that fails after the first batch fails the stream,
    and the caller must begin anew.
    """
    pieces = sized(batches)
    first = next(pieces, None)
    if first is None:
        return None
    with _reached(route, stream, connect_timeout_s) as (client, location):
        sending = _Sending(client, location, route, stream, first.schema)
        try:
            for batch in itertools.chain([first], pieces):
                if not sending.took(batch):
                    break
            return sending.end()
        except BaseException:
            sending.break_off()
            raise


def sized(
    batches: Iterable[pa.RecordBatch], *, rows_max: int = BATCH_ROWS_MAX, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches as large as the limits allow; a row above the limits is sent alone."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in itertools.chain.from_iterable(_halved(batch, rows_max, bytes_max) for batch in batches):
        if gathered and (rows + piece.num_rows > rows_max or size + piece.nbytes > bytes_max):
            yield _joined(gathered)
            gathered, rows, size = [], 0, 0
        gathered.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
    if gathered:
        yield _joined(gathered)


def _halved(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or (batch.num_rows <= rows_max and batch.nbytes <= bytes_max):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half), rows_max, bytes_max)
    yield from _halved(batch.slice(half), rows_max, bytes_max)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@contextlib.contextmanager
def _reached(route: Route, stream: Stream, timeout_s: float) -> Iterator[tuple[Any, str]]:
    """A client of the first server that answers and accepts the token."""
    failed = []
    for location in route.ways(stream):
        with flight.FlightClient(location, generic_options=list(_PINGS)) as client:
            try:
                list(client.do_action(flight.Action(HELLO, b""), route.options(timeout_s)))
            except _FAILURES as error:
                failed.append(f"{location} {_why(error, timeout_s)}")
                continue
            yield client, location
            return
    raise Unreachable(
        f"no staging server takes {stream}: {'; '.join(failed)}. Nothing was written: see that this host reaches the "
        "Ray nodes on all ports, and hand over again",
        locations=[*route.locations, *route.spares],
    )


def _why(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, flight.FlightUnauthenticatedError):
        return "refuses the token, so it is of another run"
    if isinstance(error, flight.FlightTimedOutError):
        return f"gives no answer within {timeout_s:.0f} s"
    return f"fails with {first_line(error)}"


class _Sending:
    """A stream in progress; it has no credit at first."""

    def __init__(self, client: Any, location: str, route: Route, stream: Stream, schema: pa.Schema) -> None:
        self._stream, self._location = stream, location
        self._credit = self._rows = 0
        self._answer: Answer | None = None
        descriptor = flight.FlightDescriptor.for_command(encode_stream(stream))
        with self._calling():
            self._writer, self._reader = client.do_put(descriptor, schema, route.options(route.timeout_s))

    def took(self, batch: pa.RecordBatch) -> bool:
        """Send a batch as soon as there is credit for it; False if the answer has come already: stop sending."""
        with self._calling():
            while self._credit == 0 and self._answer is None:
                self._listen()
            if self._answer is not None:
                return False
            self._writer.write_batch(batch)
        self._credit -= 1
        self._rows += batch.num_rows
        return True

    def end(self) -> Answer:
        """Send the row count, and wait for the answer."""
        with self._calling():
            if self._answer is None:
                self._writer.write_metadata(encode_end(self._rows))
            self._writer.done_writing()
            while self._answer is None:
                self._listen()
            self._writer.close()
        return self._checked(self._answer)

    def break_off(self) -> None:
        """Close the stream without the row count, so that the server does not take it for complete."""
        with contextlib.suppress(*_FAILURES):
            self._writer.close()

    def _listen(self) -> None:
        message = self._reader.read()
        if message is None:
            self._writer.close()  # raises the server's error
            raise flight.FlightServerError("it ended without an answer")
        said = decode_from_server(message.to_pybytes())
        if isinstance(said, Answer):
            self._answer = said
        else:
            self._credit += said.batches

    def _checked(self, answer: Answer) -> Answer:
        if answer.rows not in (self._rows, None):
            raise StorageError(
                f"{self._stream}: {self._rows} rows were sent and {answer.rows} staged; nothing was written: hand over "
                "again",
                sent=self._rows, staged=answer.rows,
            )  # fmt: skip
        return answer

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except (*_FAILURES, InputError) as error:  # `InputError`: what the server says can't be read
            raise StorageError(
                f"the handoff of {self._stream} to the staging server at {self._location} broke off, and nothing of it "
                f"counts: {first_line(error)}",
                location=self._location,
            ) from error


def first_line(error: BaseException) -> str:
    """The message of an error, without the debug details that Flight adds."""
    return _ADDED_BY_FLIGHT.split(str(error).strip(), maxsplit=1)[0] or type(error).__name__
