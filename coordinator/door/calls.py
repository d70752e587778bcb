"""What may be asked of a coordinator besides writes: each call with the shape of its arguments and of its answer.

Both are JSON, read by msgspec straight into these types. A field that is added later has a default, and both sides pass
over fields that they don't know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from omniray.coordinator.door.status import Status
from omniray.engine.base.errors import InputError, OmnirayError, StorageError, error_of_kind
from omniray.engine.branches.branches import BranchChange
from omniray.engine.branches.merge_result import MergeResult
from omniray.engine.judge.resolution import Outcome
from omniray.engine.maintenance.sweep import OLDER_THAN_S, SweepReport
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.recovery.repair import RepairReport

ARGUMENTS_BYTES_MAX = 1 << 20
"""The size of a call's arguments; answers have no such limit, since a coordinator is believed."""


class Nothing(msgspec.Struct, frozen=True):
    """No arguments."""


class OfWrite(msgspec.Struct, frozen=True):
    """A write by its id."""

    txn_id: str


class SweepTerms(msgspec.Struct, frozen=True):
    older_than_s: float = OLDER_THAN_S
    dry_run: bool = False


class RepairTerms(msgspec.Struct, frozen=True):
    adopt: bool = False
    discard: bool = False
    tables: list[str] | None = None
    actor: str = ""


class StageTerms(msgspec.Struct, frozen=True):
    """A file to stage as a part of a load; `proof`: that the client may read it."""

    source: str
    proof: str
    mode: str
    on_error: str
    since_us: int
    type: str | None = None
    format: str | None = None


class _BranchTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the verbs of branches have in common; a verb is carried out once for its `txn_id`.

    `began` is the newest number of main's line that its caller knew then: one that was reported as not committed since
    is refused, however often it is sent.
    """

    name: str
    txn_id: str
    began: int = 0
    actor: str = ""
    tenant: str = ""
    message: str = ""


class CreateTerms(_BranchTerms, frozen=True, kw_only=True):
    """`start`: a branch, a commit or a time that the new branch begins with; main's head if it is not given."""

    start: str | None = None


class DeleteTerms(_BranchTerms, frozen=True, kw_only=True):
    """With `line`, the branch of that id, whatever its name is, and only if `only_at` is still its head."""

    force: bool = False
    line: str = ""
    only_at: str = ""


class RenameTerms(_BranchTerms, frozen=True, kw_only=True):
    new_name: str


class MergeCall(msgspec.Struct, frozen=True, kw_only=True):
    """A merge into the branch that is asked; `source` is a branch, or a commit of one.

    `began` is the newest number of the line that its caller knew then.
    """

    source: str
    txn_id: str
    began: int = 0
    on_conflict: str = "fail"
    actor: str = ""
    tenant: str = ""
    message: str = ""


class RevertCall(msgspec.Struct, frozen=True, kw_only=True):
    """A revert on the branch that is asked."""

    commit_id: str
    txn_id: str
    began: int = 0
    on_conflict: str = "fail"
    actor: str = ""
    tenant: str = ""
    message: str = ""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error instead of an answer."""

    kind: str
    message: str
    retry: str = ""
    facts: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Call:
    """A call by its name in the URL. `takes` are its arguments, `gives` its answer."""

    name: str
    takes: type[msgspec.Struct]
    gives: Any


NEWEST = Call("newest", Nothing, int)
STATUS = Call("status", Nothing, Status)
FLUSH = Call("flush", Nothing, None)
RECOVER = Call("recover", Nothing, RecoveryReport)
OUTCOME = Call("outcome", OfWrite, Outcome)
ABANDON = Call("abandon", OfWrite, None)
HOLD = Call("hold", OfWrite, None)
SWEEP = Call("sweep", SweepTerms, SweepReport)
STAGE = Call("stage", StageTerms, bytes)
REPAIR = Call("repair", RepairTerms, RepairReport)
DOWN = Call("down", Nothing, None)
BRANCH_CREATE = Call("branch_create", CreateTerms, BranchChange)
BRANCH_DELETE = Call("branch_delete", DeleteTerms, BranchChange)
BRANCH_RENAME = Call("branch_rename", RenameTerms, BranchChange)

MERGE = Call("merge", MergeCall, MergeResult)
REVERT = Call("revert", RevertCall, MergeResult)

_OF_BRANCHES = (BRANCH_CREATE, BRANCH_DELETE, BRANCH_RENAME, MERGE, REVERT)
CALLS: Mapping[str, Call] = {
    call.name: call
    for call in (NEWEST, STATUS, FLUSH, RECOVER, OUTCOME, ABANDON, HOLD, SWEEP, REPAIR, DOWN, *_OF_BRANCHES)
}


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def encode_error(error: OmnirayError) -> bytes:
    return encode(ErrorBody(error.kind, error.message, error.retry, error.facts))


def decode_arguments(call: Call, data: bytes) -> msgspec.Struct:
    try:
        arguments: msgspec.Struct = msgspec.json.decode(data or b"{}", type=call.takes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the arguments of '{call.name}' can't be read: {str(error)[:300]}") from error
    return arguments


def decode_answer(call: Call, data: bytes) -> Any:
    try:
        return msgspec.json.decode(data, type=call.gives)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(call.name, error) from error


def decode_error(data: bytes, what: str) -> OmnirayError:
    """The error to raise; one of a kind that only a later omniray has is an `OmnirayError`."""
    try:
        body = msgspec.json.decode(data, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _unreadable(what, error)
    return error_of_kind(body.kind, body.message, body.facts)


def _unreadable(what: str, error: Exception) -> StorageError:
    return StorageError(f"the coordinator's answer to '{what}' can't be read: {str(error)[:300]}; use the same release")
