"""The messages of a handoff's streams: their shapes, and the versions of them.

Rows travel as Flight sends them. Beside them go a stream's name, the credit that the server grants, the number of rows
when all are sent, and the answer. This module is imported on hosts without Ray and Lance.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from omniray.engine.base.errors import InputError
from omniray.engine.base.messages import Form

VERSION = 1
VERSIONS = (1,)
"""The versions that this omniray understands."""

BYTES_MAX = 2 << 30  # a part with few rows, each of which may be large
_TEXT_CHARS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Stream:
    """One try of one partition of a run, and the type of its rows."""

    run: str
    type_name: str
    partition: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.type_name} partition {self.partition} (task {self.attempt})"


@dataclass(frozen=True, slots=True)
class Credit:
    """How many more batches the server will take; 0 is a sign of life."""

    batches: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a stream: a part as a message and its row count, or an error of the rows (`rows` is None)."""

    rows: int | None
    part: bytes


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="message"):
    version: int = VERSION


class _StreamMessage(_Message, frozen=True, kw_only=True, tag="stream"):
    run: str
    type_name: str
    partition: int
    attempt: int


class _CreditMessage(_Message, frozen=True, kw_only=True, tag="credit"):
    batches: int


class _AnswerMessage(_Message, frozen=True, kw_only=True, tag="answer"):
    rows: int | None
    part: bytes


class _EndMessage(_Message, frozen=True, kw_only=True, tag="end"):
    rows: int


_STREAM = Form(_StreamMessage, VERSIONS, 1 << 16)
_END = Form(_EndMessage, VERSIONS, 1 << 10)
_FROM_SERVER = Form(_CreditMessage | _AnswerMessage, VERSIONS, BYTES_MAX)


def encode_stream(stream: Stream) -> bytes:
    return _STREAM.encode(
        _StreamMessage(run=stream.run, type_name=stream.type_name, partition=stream.partition, attempt=stream.attempt)
    )


def decode_stream(data: bytes) -> Stream:
    """The name of a stream; raises `InputError` for anything else."""
    message: _StreamMessage = _STREAM.decode(data)
    if max(len(message.run), len(message.type_name)) > _TEXT_CHARS_MAX:
        raise InputError(f"a stream whose run or type has more than {_TEXT_CHARS_MAX} characters")
    partition = _count(message.partition, "the number of a partition")
    return Stream(message.run, message.type_name, partition, _count(message.attempt, "the number of a try"))


def encode_end(rows: int) -> bytes:
    """The last message of a sender: how many rows it has sent."""
    return _END.encode(_EndMessage(rows=rows))


def decode_end(data: bytes) -> int:
    """The number of rows that were sent; raises `InputError` for anything else."""
    message: _EndMessage = _END.decode(data)
    return _count(message.rows, "the number of rows")


def encode_from_server(message: Credit | Answer) -> bytes:
    if isinstance(message, Credit):
        return _FROM_SERVER.encode(_CreditMessage(batches=message.batches))
    return _FROM_SERVER.encode(_AnswerMessage(rows=message.rows, part=message.part))


def decode_from_server(data: bytes) -> Credit | Answer:
    """What a server says to the sender of a stream; raises `InputError` for anything else."""
    message = _FROM_SERVER.decode(data)
    if isinstance(message, _CreditMessage):
        return Credit(_count(message.batches, "credit"))
    rows = None if message.rows is None else _count(message.rows, "the number of rows")
    return Answer(rows, message.part)


def _count(number: int, what: str) -> int:
    if number < 0:
        raise InputError(f"{what} can't be negative, got {number}")
    return number
