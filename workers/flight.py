"""The receiving end of a handoff: an Arrow Flight server that stages the streams that it is sent.

It serves one run, to whoever has the token of that run, and keeps nothing: the part that a stream came to is the answer
to its sender, so that a stream whose sender does not live to pass it on never counts. What two tries of one partition
staged are two parts, of which the run takes the one that reaches it.

Memory is bounded by the number of streams that have a turn, the batches that each of them has credit for, and the size
of a batch. Further streams wait for a turn without credit. Batches are read when staging asks for them, so that even a
sender that does not keep to its credit fills no more than the buffers of the transport.
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

from omniray.workers.flight_client import (
    BATCH_BYTES_MAX,
    HELLO,
    Answer,
    Stream,
    bearer,
    packed_credit,
    unpacked_count,
)

log = logging.getLogger("omniray")

Stage = Callable[[Stream, Iterator[pa.RecordBatch]], Answer]
"""Stages what a stream brings, in the thread of its call. An error of the rows is an answer; what is raised is not."""

# Sizes of the same rows differ a little from one process to the next: buffers are padded.
_BYTES_REFUSED = 2 * BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server takes at once, and how often it tells a stream that waits that it is still there."""

    streams: int = 8
    batches_per_stream: int = 4
    heartbeat_s: float = 15.0


class StagingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves as soon as it is made, at one address of this host and a port that is free."""

    def __init__(self, host: str, run: str, token: str, stage: Stage, limits: Limits | None = None) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._run, self._stage, self._limits = run, stage, limits or Limits()
        self._turns = threading.BoundedSemaphore(self._limits.streams)
        super().__init__(f"grpc://{self._host}:0", middleware={"token": _TokenCheck(token)})

    @property
    def location(self) -> str:
        return f"grpc://{self._host}:{self.port}"

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Tell a sender that it is in the right place before it sends anything."""
        if action.type != HELLO:
            raise flight.FlightServerError(f"no action {action.type!r}: this server stages streams")
        yield flight.Result(self._run.encode())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Stage one stream and answer with its part."""
        stream = Stream.unpacked(descriptor.command)
        if stream.run != self._run:
            raise flight.FlightServerError(f"this server is of run {self._run}, and {stream} of {stream.run}")
        begun = time.monotonic()
        with self._turn(writer):
            arriving = _Arriving(stream, reader, writer, self._limits.batches_per_stream)
            answer = self._stage(stream, iter(arriving))
            if answer.rows is not None and not arriving.whole:
                raise flight.FlightServerError(f"{stream} was left after {arriving.rows} rows, before its end")
            writer.write(pa.py_buffer(answer.packed()))
            arriving.drain()
        log.info(
            "event=staged_stream run=%s type=%s partition=%d attempt=%d rows=%d ms=%d",
            stream.run, stream.type_name, stream.partition, stream.attempt, arriving.rows,
            (time.monotonic() - begun) * 1000,
        )  # fmt: skip

    @contextlib.contextmanager
    def _turn(self, writer: Any) -> Iterator[None]:
        while not self._turns.acquire(timeout=self._limits.heartbeat_s):
            writer.write(pa.py_buffer(packed_credit(0)))  # fails if the sender is gone
        try:
            yield
        finally:
            self._turns.release()


class _Arriving:
    """The batches of one stream: each gives its credit back when the next one is asked for."""

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
        """Read what is still on its way to a stream that was left early, which is what it had credit for."""
        with contextlib.suppress(StopIteration):
            while not self.whole and self._reader.read_chunk().data is not None:
                self._credit -= 1
                if self._credit < 0:
                    raise flight.FlightServerError(f"{self._stream} goes on without credit")

    def _next(self) -> pa.RecordBatch | None:
        """The next batch; None once the sender has said that this was all, and how much."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:  # so it looks, too, when a sender is killed
            raise flight.FlightServerError(f"{self._stream} ended before it said how many rows it has") from None
        if chunk.data is None:
            self._end(unpacked_count(chunk.app_metadata.to_pybytes()))
            return None
        if chunk.data.num_rows > 1 and chunk.data.nbytes > _BYTES_REFUSED:
            raise flight.FlightServerError(f"{self._stream} sent a batch of {chunk.data.nbytes} bytes")
        self._credit -= 1
        return chunk.data

    def _end(self, sent: int) -> None:
        if sent != self.rows:
            raise flight.FlightServerError(f"{self._stream} sent {sent} rows, and {self.rows} arrived")
        self.whole = True

    def _grant(self, batches: int) -> None:
        self._credit += batches
        self._writer.write(pa.py_buffer(packed_credit(batches)))


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call without the token of the run, whichever it is, before anything of it is read."""

    def __init__(self, token: str) -> None:
        self._wanted = bearer(token)

    def start_call(self, info: Any, headers: Any) -> None:
        given = next(iter(headers.get("authorization", ())), "")
        if not hmac.compare_digest(str(given).encode(), self._wanted):
            raise flight.FlightUnauthenticatedError("a wrong token")
