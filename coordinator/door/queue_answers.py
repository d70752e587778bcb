"""What table queues answer, as messages, and what the publisher checks of them: against what it asked.

An error is an answer too, by its kind, text and facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from omniray.coordinator.door.questions import Question
from omniray.coordinator.door.queue_messages import (
    DROPPED,
    FOUND,
    STAGED,
    DroppedMessage,
    ErrorBody,
    FailedMessage,
    FoundMessage,
    StagedBody,
    StagedMessage,
    TakenBody,
)
from omniray.coordinator.door.queue_requests import read_pin, refuse_outside
from omniray.engine.base.errors import InputError, OmnirayError, error_of_kind, rebuilt
from omniray.engine.commit.staging import Base, Cold, Staged, StagedPin, TableStage, Taken
from omniray.engine.commit.table_change import Create
from omniray.engine.line.commit_json import encode_pin
from omniray.engine.rows.arrow_stream import decode_pieces, encode_pieces, shaped

# Answering


def encode_found(questions: Sequence[Question], found: Sequence[pa.Table]) -> bytes:
    rows: Any = [
        encode_pieces(shaped(table, question.columns_answered))
        for question, table in zip(questions, found, strict=True)
    ]
    return FOUND.encode(FoundMessage(rows=rows))


def encode_staged(staged: Sequence[Staged]) -> bytes:
    return STAGED.encode(StagedMessage(staged=[_staged_body(one) for one in staged]))


def encode_dropped() -> bytes:
    return DROPPED.encode(DroppedMessage())


def encode_failed(error: OmnirayError) -> bytes:
    """The answer to any message: nothing was done."""
    return STAGED.encode(FailedMessage(error=_error_body(error)))


def _staged_body(staged: Staged) -> StagedBody | TakenBody | ErrorBody:
    match staged:
        case StagedPin(pin, files):
            return StagedBody(pin=encode_pin(pin), files=list(files))  # type: ignore[arg-type]
        case Taken(_, expected, found):
            return TakenBody(expected=expected, found=found)
        case OmnirayError():
            return _error_body(staged)


def _error_body(error: OmnirayError) -> ErrorBody:
    return ErrorBody(kind=error.kind, text=error.message, facts=error.facts)


# Answered


def decode_found(data: bytes, questions: Sequence[Question]) -> list[pa.Table] | OmnirayError:
    """The answers to these questions, or the error that came instead; raises `InputError` for anything else."""
    message = FOUND.decode(data)
    if isinstance(message, FailedMessage):
        return _error(message.error)
    _refuse_other_count(message.rows, questions)
    return [
        decode_pieces(pieces, question.columns_answered, f"the rows found in {question.type.table_key}")
        for pieces, question in zip(message.rows, questions, strict=True)
    ]


def decode_staged(data: bytes, base: Base, stages: Sequence[TableStage]) -> list[Staged] | OmnirayError:
    """What became of these stages, or the error that came instead; raises `InputError` for anything else."""
    message = STAGED.decode(data)
    if isinstance(message, FailedMessage):
        return _error(message.error)
    _refuse_other_count(message.staged, stages)
    return [_staged(body, base, stage) for body, stage in zip(message.staged, stages, strict=True)]


def decode_dropped(data: bytes) -> OmnirayError | None:
    """The error that came instead of the answer, if any; raises `InputError` for anything else."""
    message = DROPPED.decode(data)
    return _error(message.error) if isinstance(message, FailedMessage) else None


def _error(body: ErrorBody) -> OmnirayError:
    if body.kind == Cold.kind:
        return rebuilt(Cold, body.text, body.facts)
    return error_of_kind(body.kind, body.text, body.facts)


def _refuse_other_count(answers: Sequence[Any], asked: Sequence[Any]) -> None:
    if len(answers) != len(asked):
        raise InputError(f"{len(answers)} answers to {len(asked)} questions")


def _staged(body: StagedBody | TakenBody | ErrorBody, base: Base, stage: TableStage) -> Staged:
    table_key = stage.announced.table_key
    match body:
        case TakenBody(expected=expected, found=found):
            return Taken(table_key, expected, found)
        case ErrorBody():
            return _error(body)
        case StagedBody():
            return _staged_pin(body, base, stage)


def _staged_pin(body: StagedBody, base: Base, stage: TableStage) -> StagedPin:
    """The staged version, if it is one of this table and of this attempt: the attempt deletes its files if it fails."""
    announced, change = stage.announced, stage.change
    pin = read_pin(body.pin, announced.table_key)
    table_id = change.table_id if isinstance(change, Create) else base.pins[announced.table_key].table_id
    if (pin.table_id, pin.path, pin.transaction) != (table_id, announced.table_path, announced.transaction_uuid):
        raise InputError(f"{announced.table_key}: the staged version is not of this table and this attempt")
    for file in body.files:
        refuse_outside(announced.table_path, file)
    return StagedPin(pin, tuple(body.files))
