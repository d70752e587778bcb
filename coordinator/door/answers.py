"""Answers as messages: the result of a write, or the error that refuses it."""

from __future__ import annotations

from dataclasses import asdict

from omniray.coordinator.door.messages import (
    VERSION,
    AnswerMessage,
    ErrorMessage,
    ViolationBody,
    decode_answer,
    encode,
)
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import OmnirayError, error_of_kind
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.judge.verdict import Violation


def encode_reply(answer: WriteAnswer | OmnirayError, version: int = VERSION) -> bytes:
    """The answer to a write, in the version of its message."""
    if isinstance(answer, OmnirayError):
        return encode(ErrorMessage(kind=answer.kind, text=answer.message, facts=answer.facts), version)
    result = answer.result
    return encode(
        AnswerMessage(
            commit_id=result.commit_id,
            affected_nodes=result.affected_nodes,
            affected_edges=result.affected_edges,
            rejected=result.rejected,
            versions=dict(result.versions),
            repeated=result.repeated,
            unfit=[ViolationBody(**asdict(violation)) for violation in answer.unfit],
        ),
        version,
    )


def decode_reply(data: bytes) -> WriteAnswer | OmnirayError:
    """The answer, or the error to raise; an error of a kind that only a later omniray has is an `OmnirayError`."""
    message = decode_answer(data)
    if isinstance(message, ErrorMessage):
        return error_of_kind(message.kind, message.text, message.facts)
    result = WriteResult(
        message.commit_id, message.affected_nodes, message.affected_edges, message.rejected, message.versions,
        message.repeated,
    )  # fmt: skip
    return WriteAnswer(result, tuple(Violation(*(getattr(v, f) for f in v.__struct_fields__)) for v in message.unfit))
