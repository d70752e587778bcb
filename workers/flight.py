"""The receiving end of a handoff: an Arrow Flight server that stages incoming streams.

It serves one run, to senders with the token of that run, and keeps nothing: the answer to the sender is the part that
was staged, so a stream whose sender dies before passing it on never counts. Two tries of one partition give two parts,
of which the run takes the one that reaches it.

Memory is bounded by the number of streams that have a turn, the batches that each of them has credit for, and the size
of a batch. Further streams wait for a turn without credit. Batches are read when staging needs them, so that even a
sender that exceeds its credit fills no more than the buffers of the transport.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from omniray.engine.base.errors import InputError
from omniray.workers.flight_client import BATCH_BYTES_MAX, HELLO, bearer
from omniray.workers.flight_messages import Answer, Credit, Stream, decode_end, decode_stream, encode_from_server

log = logging.getLogger("omniray")

Stage = Callable[[Stream, Iterator[pa.RecordBatch]], Answer]
"""Stages the rows of a stream in the thread of its call. An error of the rows is an answer; other errors are raised."""

# The size of the same rows differs a little between processes: buffers are padded.
_BYTES_REFUSED = 2 * BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """How many streams and batches a server accepts at once, and how often a waiting stream gets a heartbeat."""

    streams: int = 8
    batches_per_stream: int = 4
    heartbeat_s: float = 15.0


class StagingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from its construction on, at one address of this host and a free port."""

    def __init__(self, host: str, run: str, token: str, stage: Stage, limits: Limits | None = None) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._run, self._stage, self._limits = run, stage, limits or Limits()
        self._turns = threading.BoundedSemaphore(self._limits.streams)
        super().__init__(f"grpc://{self._host}:0", middleware={"token": _TokenCheck(token)})

    @property
    def location(self) -> str:
        return f"grpc://{self._host}:{self.port}"

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Confirm the run to a sender before it sends anything."""
        if action.type != HELLO:
            raise flight.FlightServerError(f"no action {action.type!r}: this server stages streams")
        yield flight.Result(self._run.encode())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Stage one stream and answer with its part."""
        stream = decode_stream(descriptor.command)
        if stream.run != self._run:
            raise flight.FlightServerError(f"this server is of run {self._run}, and {stream} of {stream.run}")
        begun = time.monotonic()
        with self._turn(writer):
            arriving = _Arriving(stream, reader, writer, self._limits.batches_per_stream)
            answer = self._stage(stream, iter(arriving))
            if answer.rows is not None and not arriving.whole:
                raise flight.FlightServerError(f"{stream} was left after {arriving.rows} rows, before its end")
            _say(writer, answer)
            arriving.drain()
        log.info(
            "event=staged_stream run=%s type=%s partition=%d attempt=%d rows=%d ms=%d",
            stream.run, stream.type_name, stream.partition, stream.attempt, arriving.rows,
            (time.monotonic() - begun) * 1000,
        )  # fmt: skip

    @contextlib.contextmanager
    def _turn(self, writer: Any) -> Iterator[None]:
        while not self._turns.acquire(timeout=self._limits.heartbeat_s):
            _say(writer, Credit(0))  # fails if the sender is gone
        try:
            yield
        finally:
            self._turns.release()


class _Arriving:
    """The batches of one stream; each returns its credit when the next one is requested."""

    def __init__(self, stream: Stream, reader: Any, writer: Any, credit: int) -> None:
        self._stream, self._reader, self._writer = stream, reader, writer
        self._credit = 0
        self._credit_first = credit
        self.rows = 0
        self.whole = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._grant(self._credit_first)
        while (batch := self._next()) is not None:
            self.rows += batch.num_rows
            yield batch
            self._grant(1)

    def drain(self) -> None:
        """Read the batches that are still in flight after staging ended early: at most the credit that was granted."""
        with contextlib.suppress(StopIteration):
            while not self.whole and self._reader.read_chunk().data is not None:
                self._credit -= 1
                if self._credit < 0:
                    raise flight.FlightServerError(f"{self._stream} goes on without credit")

    def _next(self) -> pa.RecordBatch | None:
        """The next batch; None once the sender has sent its row count."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:  # a killed sender looks the same
            raise flight.FlightServerError(f"{self._stream} ended before it said how many rows it has") from None
        if chunk.data is None:
            self._end(chunk.app_metadata.to_pybytes())
            return None
        if chunk.data.num_rows > 1 and chunk.data.nbytes > _BYTES_REFUSED:
            raise flight.FlightServerError(f"{self._stream} sent a batch of {chunk.data.nbytes} bytes")
        self._credit -= 1
        return chunk.data

    def _end(self, data: bytes) -> None:
        try:
            sent = decode_end(data)
        except InputError as error:  # raised as it is, it would count as an error of the rows
            raise flight.FlightServerError(f"{self._stream} has no end that can be read: {error}") from error
        if sent != self.rows:
            raise flight.FlightServerError(f"{self._stream} sent {sent} rows, and {self.rows} arrived")
        self.whole = True

    def _grant(self, batches: int) -> None:
        self._credit += batches
        _say(self._writer, Credit(batches))


def _say(writer: Any, message: Credit | Answer) -> None:
    writer.write(pa.py_buffer(encode_from_server(message)))


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call without the token of the run, before anything of it is read."""

    def __init__(self, token: str) -> None:
        self._wanted = bearer(token)

    def start_call(self, info: Any, headers: Any) -> None:
        given = next(iter(headers.get("authorization", ())), "")
        if not hmac.compare_digest(str(given).encode(), self._wanted):
            raise flight.FlightUnauthenticatedError("a wrong token")
