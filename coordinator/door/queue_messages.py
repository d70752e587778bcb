"""The messages between publishers and the owners of their table queues: their shapes, and the versions of them.

Every message names the line of its branch, since an owner works for all branches.

Rows are Arrow streams inside, pins are JSON as in the line: so what a later omniray adds to a pin gets through.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omniray.engine.base.messages import Form
from omniray.engine.judge.room import BYTES_MAX, ROWS_MAX
from omniray.engine.line.sidecar import SidecarTable

VERSION = 1
VERSIONS = (1,)
"""The versions that this omniray understands."""

ASKED_BYTES_MAX = 1 << 30
ANSWERED_BYTES_MAX = 16 << 30  # a scan answers with a whole table


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="message"):
    version: int = VERSION


class _Case(msgspec.Struct, frozen=True, kw_only=True, tag_field="case"):
    """One of several things that a message may have in one place."""


# Asked


class _Asked(_Message, frozen=True, kw_only=True):
    """`line` is that of the branch, by whose schema the rest is read."""

    line: str


class BaseBody(msgspec.Struct, frozen=True):
    """The fields of `Base` but for its line; of its pins those of the tables in this message."""

    pins: dict[str, memoryview]
    landed_through: int
    finalised_through: int


class ExistingBody(_Case, frozen=True, kw_only=True, tag="existing"):
    table_key: str
    ids: memoryview


class MatchingBody(_Case, frozen=True, kw_only=True, tag="matching"):
    table_key: str
    column: str
    values: memoryview
    columns: list[str]


class ScanBody(_Case, frozen=True, kw_only=True, tag="scan"):
    table_key: str
    columns: list[str]


class SelectBody(_Case, frozen=True, kw_only=True, tag="select"):
    """`column`, `comparison` and `values` are those of a `Condition`, the last two those of a `Room`."""

    table_key: str
    columns: list[str]
    column: str
    comparison: str
    values: memoryview
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX


QuestionBody = ExistingBody | MatchingBody | ScanBody | SelectBody


class ReadMessage(_Asked, frozen=True, kw_only=True, tag="read"):
    base: BaseBody
    questions: list[QuestionBody]


class WriteBody(_Case, frozen=True, kw_only=True, tag="write"):
    """A `TableWrite`: its rows in a stream or in staged files, and the rows that they replace."""

    mode: str
    replaced: memoryview
    rows: memoryview | None = None
    fragments: list[str] = []
    staged_rows: int = 0
    staged_since_us: int = 0


class RestoreBody(_Case, frozen=True, kw_only=True, tag="restore"):
    source: memoryview
    head: int | None = None


class AdoptBody(_Case, frozen=True, kw_only=True, tag="adopt"):
    number: int
    transaction: str
    rows: int


class CreateBody(_Case, frozen=True, kw_only=True, tag="create"):
    table_id: str
    path: str
    transaction: str
    files: dict[str, memoryview]


class StageBody(msgspec.Struct, frozen=True):
    announced: SidecarTable
    change: WriteBody | RestoreBody | AdoptBody | CreateBody


class StageMessage(_Asked, frozen=True, kw_only=True, tag="stage"):
    base: BaseBody
    stages: list[StageBody]


class DropMessage(_Asked, frozen=True, kw_only=True, tag="drop"):
    table_keys: list[str]


# Answered


class ErrorBody(_Case, frozen=True, kw_only=True, tag="error"):
    kind: str
    text: str
    facts: dict[str, Any]


class StagedBody(_Case, frozen=True, kw_only=True, tag="staged"):
    pin: memoryview
    files: list[str]


class TakenBody(_Case, frozen=True, kw_only=True, tag="taken"):
    expected: int
    found: int | None


class FoundMessage(_Message, frozen=True, kw_only=True, tag="found"):
    """The rows that answer each question, in one or more streams."""

    rows: list[list[memoryview]]


class StagedMessage(_Message, frozen=True, kw_only=True, tag="staged"):
    """What became of each stage."""

    staged: list[StagedBody | TakenBody | ErrorBody]


class DroppedMessage(_Message, frozen=True, kw_only=True, tag="dropped"):
    """The tables were dropped."""


class FailedMessage(_Message, frozen=True, kw_only=True, tag="failed"):
    """Nothing was done, for this reason."""

    error: ErrorBody


class Address(msgspec.Struct, frozen=True):
    """What all that is asked has in common."""

    version: int
    line: str


ADDRESS = Form(Address, VERSIONS, ASKED_BYTES_MAX)
READ = Form(ReadMessage, VERSIONS, ASKED_BYTES_MAX)
STAGE = Form(StageMessage, VERSIONS, ASKED_BYTES_MAX)
DROP = Form(DropMessage, VERSIONS, ASKED_BYTES_MAX)
FOUND = Form(FoundMessage | FailedMessage, VERSIONS, ANSWERED_BYTES_MAX)
STAGED = Form(StagedMessage | FailedMessage, VERSIONS, ANSWERED_BYTES_MAX)
DROPPED = Form(DroppedMessage | FailedMessage, VERSIONS, ANSWERED_BYTES_MAX)
