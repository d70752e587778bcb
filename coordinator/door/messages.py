"""The messages between clients and a coordinator: their shapes, and the versions of them.

A message is MessagePack, read by msgspec straight into one of these types: whatever has another shape is refused before
anything else looks at it. Rows are Arrow streams inside (`arrow_stream`). Nothing here is a pickle, so nothing that
arrives can run code.

A sender says which `version` of the messages it speaks. A field that is added later has a default, and both sides pass
over fields that they don't know; what can't be understood that way gets the next version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omniray.engine.base.errors import InputError

VERSION = 1
VERSIONS = (1,)
"""The versions that this omniray understands."""

BYTES_MAX = 512 << 20


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="message"):
    version: int = VERSION


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all writes say of themselves."""

    commit_id: str
    kind: str
    actor: str
    tenant: str
    expected_versions: dict[str, int]
    payload_hash: str
    schema_hash: str
    fresh: bool
    began: int = 0


class LoadMessage(_Message, frozen=True, kw_only=True, tag="load"):
    """A load that carries its rows: for each table a stream, whose ids are null where the receiver has to make them."""

    head: Head
    mode: str
    on_error: str
    rejected: int
    sources: list[str]
    tables: dict[str, memoryview]


class MutationMessage(_Message, frozen=True, kw_only=True, tag="mutation"):
    """A query with its parameters, in the form that JSON has for them; `now_us` is the client's time."""

    head: Head
    text: str
    params: dict[str, Any]
    name: str | None
    now_us: int


class PreparedTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table, in a stream or in staged files, and the rows that they replace."""

    mode: str
    replaced: memoryview
    rows: memoryview | None = None
    fragments: list[str] = []
    staged_rows: int = 0
    staged_since_us: int = 0


class PreparedMessage(_Message, frozen=True, kw_only=True, tag="prepared"):
    """A load that its client has staged and judged, on the versions `judged_on`."""

    head: Head
    tables: dict[str, PreparedTable]
    judged_on: dict[str, int]
    read_strictly: list[str]
    affected_nodes: int
    affected_edges: int
    rejected: int
    unfit: list[ViolationBody]


class ViolationBody(msgspec.Struct, frozen=True, array_like=True):
    """A record that was rejected; the fields of `Violation`."""

    table_key: str
    row: int | None
    record: int | None
    source: str
    kind: str
    reason: str
    key: str


class AnswerMessage(_Message, frozen=True, kw_only=True, tag="answer"):
    """The result of a write."""

    commit_id: str | None
    affected_nodes: int
    affected_edges: int
    rejected: int
    versions: dict[str, int]
    repeated: bool
    unfit: list[ViolationBody]


class ErrorMessage(_Message, frozen=True, kw_only=True, tag="error"):
    """A write that was refused, or whose outcome is unknown."""

    kind: str
    text: str
    facts: dict[str, Any]


class _Versioned(msgspec.Struct, frozen=True):
    version: int


WriteMessage = LoadMessage | MutationMessage | PreparedMessage
AnyAnswer = AnswerMessage | ErrorMessage

_WRITES = msgspec.msgpack.Decoder(WriteMessage)
_ANSWERS = msgspec.msgpack.Decoder(AnyAnswer)
_MISSHAPEN = (msgspec.DecodeError, ValueError, RecursionError, OverflowError)
_VERSIONED = msgspec.msgpack.Decoder(_Versioned)


def encode(message: WriteMessage | AnyAnswer) -> bytes:
    encoded = _ENCODER.encode(message)
    if len(encoded) > BYTES_MAX:
        raise InputError(
            f"the write takes {len(encoded)} bytes as a message, and {BYTES_MAX} are the limit: split it in several"
        )
    return encoded


def decode_write(data: bytes) -> WriteMessage:
    message: WriteMessage = _decode(data, _WRITES)
    return message


def decode_answer(data: bytes) -> AnyAnswer:
    message: AnyAnswer = _decode(data, _ANSWERS)
    return message


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    if len(data) > BYTES_MAX:
        raise InputError(f"a message of {len(data)} bytes: at most {BYTES_MAX} are taken")
    try:
        message = decoder.decode(data)
    except _MISSHAPEN as error:
        _refuse_other_version(data)
        raise InputError(f"a message that does not have the form of version {VERSION}: {str(error)[:300]}") from error
    _refuse_unknown(message.version)
    return message


def _refuse_other_version(data: bytes) -> None:
    """Name the version of a message that is not understood, if that is the reason."""
    try:
        given = _VERSIONED.decode(data)
    except _MISSHAPEN:
        return
    _refuse_unknown(given.version)


def _refuse_unknown(version: int) -> None:
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise InputError(
            f"a message of version {version}, and this omniray understands {known}: use the same release of omniray on "
            "both sides, or two that follow each other",
            version=version,
        )


def _plain(value: Any) -> Any:
    """What MessagePack has no form for: NumPy's values, and mappings and texts of other classes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
