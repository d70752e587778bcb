"""The messages between clients and a coordinator: their shapes, and the versions of them.

Rows are Arrow streams inside (`arrow_stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omniray.engine.base.errors import InputError
from omniray.engine.base.messages import Form, encoded_message

VERSION = 1
VERSIONS = (1,)
"""The versions that this omniray understands: the current one and the one before, so that a rolling restart works.

A coordinator says which it speaks in the record of its door. A client speaks the newest that both know, and is answered
in that.
"""

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
    message: str = ""


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


WriteMessage = LoadMessage | MutationMessage | PreparedMessage
AnyAnswer = AnswerMessage | ErrorMessage

_WRITES = Form(WriteMessage, VERSIONS, BYTES_MAX)
_ANSWERS = Form(AnyAnswer, VERSIONS, BYTES_MAX)


def agreed_version(spoken: Sequence[int], by: str) -> int:
    """The newest version that a coordinator speaks and this omniray understands; `by` names the coordinator."""
    common = set(spoken) & set(VERSIONS)
    if not common:
        raise InputError(
            f"{by} speaks version {_listed(spoken)} of the messages, and this omniray {_listed(VERSIONS)}: {_ADVICE}",
            spoken=list(spoken),
        )
    return max(common)


def refuse_unknown_version(version: int) -> None:
    """Raise unless a request's version is one that this omniray understands."""
    if version not in VERSIONS:
        raise InputError(
            f"a request of version {version}, and this omniray understands {_listed(VERSIONS)}: {_ADVICE}",
            version=version,
        )


_ADVICE = "use the same release of omniray on both sides, or two that follow each other"


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or "none"


def encode(message: WriteMessage | AnyAnswer, version: int = VERSION) -> bytes:
    if message.version != version:
        message = msgspec.structs.replace(message, version=version)
    encoded = encoded_message(message)
    if len(encoded) > BYTES_MAX:
        raise InputError(
            f"the write takes {len(encoded)} bytes as a message, and {BYTES_MAX} are the limit: split it in several"
        )
    return encoded


def decode_write(data: bytes) -> WriteMessage:
    message: WriteMessage = _WRITES.decode(data)
    return message


def decode_answer(data: bytes) -> AnyAnswer:
    message: AnyAnswer = _ANSWERS.decode(data)
    return message
