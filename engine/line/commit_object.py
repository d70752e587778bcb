"""The line of commit objects: the only truth about a branch, and the pure rules that keep it one line.

A branch is a line of numbered objects. Object S+1 is created by one put-if-absent, so exactly one writer can follow
S, and that put is the only commit point for all tables at once. An object says everything: the newest one is enough to
read the graph. This module holds the value and every decision about it, without I/O and without a clock:

    follow          what a writer may put after S
    change_owner    what takes the line over, hands it back, or fences everything that is under way
    remark          what records something about the line without changing a table
    unlawful        why an object may not follow S
    fate            what a put's answer means, given what is seen at S+1
    belonging       which of the objects found are the line, and which are strays
    reaches         whether manifest and line together leave no gap
    believable      whether a put's answer may be trusted without reading the line again
    may_answer      whether an answer that was judged on some object may leave
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

import msgspec

from omniray.engine.base.errors import FormatMismatch, InvariantViolation
from omniray.engine.store.object_store import Answer

FORMAT = 1
EMBEDDED = "embedded"
RECOVERY_ACTOR = "omniray:recovery"
SEQ_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Pin:
    """One table's version in the graph, and the staging path of its manifest while the final name may be missing."""

    version: int
    transaction: str
    since: int
    rows: int
    branch: str = ""
    staging: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One accepted write: its id is also its idempotency key."""

    commit_id: str
    kind: str
    actor: str
    at_us: int
    tables: tuple[str, ...]
    payload_hash: str = ""
    tenant: str = ""
    nodes: int = 0
    edges: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery did to one operation; recorded in the line, once for each operation."""

    operation_id: str
    recovery_kind: str
    recovery_for_actor: str
    sidecar_writer_kind: str
    outcomes: Mapping[str, str]  # by table: how it was classified
    created_at_us: int
    actor: str = RECOVERY_ACTOR


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """The schema that a graph was born with, in the object that gave birth to it."""

    graph_id: str
    schema_hash: str
    schema_version: int
    text: str


@dataclass(frozen=True, slots=True)
class CommitObject:
    seq: int
    prev_op_id: str
    op_id: str
    epoch: int
    owner: str
    pins: Mapping[str, Pin]
    commits: tuple[Commit, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    finalised_through: int = 0
    head: str = ""  # the newest commit id at or below this object
    head_at_us: int = 0  # its time: commits never go back in time, whatever the clocks of their writers say
    withdrawn: tuple[str, ...] = ()  # writes told as not committed: tries that began before this object may not land
    swept_before_us: int = 0  # data files staged before this time may be gone: nobody may bring them along any more
    schema: AcceptedSchema | None = None  # in the object that gave birth to the graph
    format: int = field(default=FORMAT)

    def __str__(self) -> str:
        return f"seq={self.seq} op={self.op_id} epoch={self.epoch} owner={self.owner}"

    def introduced(self) -> Mapping[str, Pin]:
        """The pins that this very object brought in."""
        return {key: pin for key, pin in self.pins.items() if pin.since == self.seq}


def encode(obj: CommitObject) -> bytes:
    return msgspec.json.encode(obj)


class _Stamp(msgspec.Struct):
    format: int = 0


# Made here, by one thread: msgspec looks at a type when it first meets it, and two threads that do so at once crash.
_read_stamp = msgspec.json.Decoder(_Stamp).decode
_read_object = msgspec.json.Decoder(CommitObject).decode


def decode(data: bytes, *, where: str) -> CommitObject:
    """Read an object back; one of another format is refused before anything else in it is believed."""
    try:
        check_format(_read_stamp(data).format, where=where)
        return _read_object(data)
    except msgspec.DecodeError as error:
        raise InvariantViolation(
            f"{where} is not a commit object: {error}; keep the file and look at what wrote it", path=where
        ) from error


def check_format(found: int, *, where: str) -> None:
    """Refuse storage of another format: an older one with a recipe, a newer one with 'upgrade'."""
    if found < FORMAT:
        raise FormatMismatch(
            f"{where} has format {found}, this omniray serves only {FORMAT}: export the graph with the omniray that "
            "wrote it (omniray export), create a new one with this version (omniray init) and load the export into it",
            found=found, served=FORMAT,
        )  # fmt: skip
    if found > FORMAT:
        raise FormatMismatch(
            f"{where} has format {found}, this omniray serves only {FORMAT}: upgrade omniray",
            found=found,
            served=FORMAT,
        )


# Putting


def follow(
    newest: CommitObject,
    *,
    op_id: str,
    changed: Mapping[str, Pin],
    commits: tuple[Commit, ...],
    finalised_through: int,
    recoveries: tuple[Recovery, ...] = (),
) -> CommitObject:
    """The object that this writer may put after `newest`: its epoch and owner, its pins with ours laid over.

    `finalised_through` never goes back: the larger of what S says and what the putter confirmed itself. A pin drops its
    staging path once the number that introduced it is finalised, since its final name is known to be there.
    """
    through = max(newest.finalised_through, finalised_through)
    kept = {key: replace(pin, staging=None) if pin.since <= through else pin for key, pin in newest.pins.items()}
    return CommitObject(
        seq=newest.seq + 1,
        prev_op_id=newest.op_id,
        op_id=op_id,
        epoch=newest.epoch,
        owner=newest.owner,
        pins={**kept, **{key: replace(pin, since=newest.seq + 1) for key, pin in changed.items()}},
        commits=commits,
        recoveries=recoveries,
        finalised_through=through,
        head=commits[-1].commit_id if commits else newest.head,
        head_at_us=commits[-1].at_us if commits else newest.head_at_us,
        swept_before_us=newest.swept_before_us,
    )


def remark(
    newest: CommitObject,
    *,
    op_id: str,
    recoveries: tuple[Recovery, ...] = (),
    withdrawn: tuple[str, ...] = (),
    swept_before_us: int = 0,
) -> CommitObject:
    """The object that records something after `newest` and changes no table."""
    said = follow(newest, op_id=op_id, changed={}, commits=(), finalised_through=0, recoveries=recoveries)
    return replace(said, withdrawn=withdrawn, swept_before_us=max(newest.swept_before_us, swept_before_us))


def change_owner(newest: CommitObject, *, op_id: str, owner: str) -> CommitObject:
    """The object that makes `owner` the only one who may go on after `newest`; everything under way is fenced.

    An object of its own with the next epoch, so that an epoch has one owner. `owner` is the putter's own incarnation,
    or `embedded`: a recovery that raises the epoch, or an owner that hands the line back.
    """
    return replace(remark(newest, op_id=op_id), epoch=newest.epoch + 1, owner=owner)


def unlawful(newest: CommitObject, candidate: CommitObject) -> str | None:
    """Why `candidate` may not follow `newest`, or nothing if it may."""
    same_owner = (candidate.epoch, candidate.owner) == (newest.epoch, newest.owner)
    changes_owner = candidate.epoch == newest.epoch + 1 and not candidate.commits
    if candidate.seq != newest.seq + 1:
        return f"number {candidate.seq} does not follow {newest.seq}"
    if candidate.prev_op_id != newest.op_id:
        return f"names {candidate.prev_op_id} as its predecessor, which is {newest.op_id}"
    if not (same_owner or changes_owner):
        return f"epoch {candidate.epoch} of {candidate.owner} may not follow {newest.epoch} of {newest.owner}"
    if candidate.finalised_through < newest.finalised_through:
        return f"takes finalised_through back from {newest.finalised_through} to {candidate.finalised_through}"
    if candidate.swept_before_us < newest.swept_before_us:
        return f"takes swept_before back from {newest.swept_before_us} to {candidate.swept_before_us}"
    if missing := sorted(newest.pins.keys() - candidate.pins.keys()):
        return f"forgets the pins of {', '.join(missing)}"
    return None


# Answers


class Fate(StrEnum):
    """What became of our object S+1."""

    LANDED = "landed"
    LOST = "lost"  # somebody was faster: resolve again on top of it
    FENCED = "fenced"  # the line has another owner now
    PUT_AGAIN = "put_again"  # not there: the same object may be put once more


def fate(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    """Say what a put's answer means; `seen` is the object at our number, read after the answer.

    Only a clear success speaks for itself. SDKs retry on their own, so a refusal may be our own success come back,
    and an unclear answer may be anything: in both cases the object that is there decides.
    """
    if answer is Answer.CREATED:
        return Fate.LANDED
    if seen is None:
        return Fate.PUT_AGAIN
    if seen.op_id == ours.op_id:
        return Fate.LANDED
    if seen.epoch > ours.epoch or seen.owner != ours.owner:
        return Fate.FENCED
    return Fate.LOST


def believable(elapsed_s: float, retention_s: float) -> bool:
    """Whether a put may be believed without reading the line again.

    A writer that slept longer than a small part of the retention may have put a number that was pruned meanwhile: its
    put then succeeds beside the line. `elapsed_s` comes from a clock that runs on during suspension.
    """
    return elapsed_s < retention_s / 10


def landed_in(chain: Iterable[CommitObject], ours: CommitObject) -> bool:
    """Whether our object is in the line, not merely in the store; one that was pruned since is in the lineage."""
    return any(obj.op_id == ours.op_id for obj in chain)


def may_answer(judged_on: CommitObject, newest: CommitObject) -> bool:
    """Whether an answer judged on an object may leave: only if nothing has followed that object.

    A refusal judged on an older object might name a conflict that is gone since; then the write is judged again.
    """
    return judged_on.op_id == newest.op_id


# Reading


def belonging(objects: Iterable[CommitObject]) -> tuple[CommitObject, ...]:
    """The line among objects given newest first: each older one only if its successor names it.

    Anything else at a number is a stray (a sleeper's put of a number that was pruned) and proves nothing.
    """
    line: list[CommitObject] = []
    for obj in objects:
        if line and (obj.seq != line[-1].seq - 1 or obj.op_id != line[-1].prev_op_id):
            break
        line.append(obj)
    return tuple(line)


def reaches(chain: tuple[CommitObject, ...], folded_through: int) -> bool:
    """Whether the line reaches down to the first object that the manifest has not folded; else read it again."""
    return bool(chain) and chain[-1].seq <= folded_through + 1


Standing = Literal["explained", "drift"]


def explain_version(
    found: int, expected: int, newest: CommitObject, table_key: str, judged_on: CommitObject
) -> Standing:
    """Say whether a table version that came out other than expected is explained by the line.

    HEAD is read before the line, so if the newest object pins a version of the table that our base did not, somebody
    was merely faster. If no object explains it, a foreign writer has touched the table.
    """
    moved = newest.pins[table_key].version > judged_on.pins[table_key].version
    return "explained" if moved or found == expected else "drift"
