"""The line of commit objects: the only truth about a branch, and the pure rules that keep it one line.

A branch is a line of numbered objects. Object S+1 is created by one put-if-absent, so exactly one writer can follow
S, and that put is the only commit point for all tables at once. An object is complete: the newest one is enough to
read the graph. This module holds the value and every decision about it, without I/O and without a clock:

    follow          the object that a writer may put after S
    first_of        the first object of a branch, from its binding in main's line
    without_first   the binding once that object is there
    change_owner    the object that takes the line over, hands it back, or fences everything under way
    follow_with     the object that records a remark without changing a table
    rebind          the object of main's line that changes which branches there are
    close           the object that ends a branch's line
    unlawful        why an object may not follow S
    fate            what a put's answer means, given what is seen at S+1
    belonging       which of the objects found are the line, and which are strays
    reaches         whether manifest and line together leave no gap
    believable      whether a put's answer may be trusted without reading the line again
    may_answer      whether an answer that was judged on some object may be sent
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from omniray.engine.line.stored_names import StoredName, StoredPath, StoredVersion
from omniray.engine.store.object_store import Answer, Durability

FORMAT = 2
EMBEDDED = "embedded"
DURABILITY, DOOR = "durability", "door"
_OF_THE_OWNER = (DURABILITY, DOOR)  # entries of the policy that end with their owner
RECOVERY_ACTOR = "omniray:recovery"
SEQ_MAX = 2**64 - 1

NOTHING_MORE: Mapping[str, int] = {}

Later: TypeAlias = Mapping[str, msgspec.Raw] | msgspec.UnsetType
"""Fields of a later omniray, kept as they are; UNSET, which is not encoded, if there are none."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One table's version in the graph. Where its manifest lies follows from path, line and transaction.

    `table_id` stays when the table is renamed. `content` identifies the rows: two pins of one table with the same
    content hold the same rows, whatever their version numbers, which each line counts by itself.
    """

    table_id: str
    path: StoredPath
    version: StoredVersion
    transaction: StoredName
    rows: int
    content: str
    line: StoredName = ""  # the branch whose line introduced it, by its ULID
    since: int = 0  # the number of the object there
    later: Later = field(default=msgspec.UNSET, hash=False)

    @property
    def identity(self) -> tuple[int, str]:
        """Tells the version from all others of its table in a line.

        Another version may get the number of one that is lost; and a version that was adopted may have no transaction.
        """
        return self.version, self.transaction


@dataclass(frozen=True, slots=True)
class MergedParent:
    """A commit of another line that a merge took in."""

    line: StoredName
    seq: int
    commit_id: str


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
    message: str = ""
    merged: tuple[MergedParent, ...] = ()
    later: Later = field(default=msgspec.UNSET, hash=False)
    outcome: str = ""  # what a merge came to


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
class SchemaRef:
    """The accepted schema of a line: `file` is the hash of its text, `hash` that of its meaning, which is compared."""

    file: StoredName
    hash: str
    version: int


_NO_SCHEMA = SchemaRef("", "", 0)


@dataclass(frozen=True, slots=True)
class Binding:
    """A branch as main's line knows it, by its name: which line it is, and where it left its parent.

    `deleting` is set first when the branch is deleted: the name is still taken then, and its line is closed next. With
    `only_at`, a commit, that is done only if the line still ends with it; else the mark is taken back.

    Pins, schema and vector make the first object of the line. Once that is there (`is_begun`) they are left out, or
    each object of main's line would repeat them for every branch.
    """

    ulid: StoredName
    parent: StoredName
    parent_seq: int
    pins: Mapping[str, Pin]
    schema: SchemaRef
    contains: Mapping[str, int]
    head: str
    head_at_us: int
    swept_before_us: int = 0
    later: Later = field(default=msgspec.UNSET, hash=False)
    actor: str = ""
    at_us: int = 0  # when it was created
    deleting: bool = False
    only_at: str = ""
    is_begun: bool = False

    @property
    def is_doomed(self) -> bool:
        """Whether its line will be closed, whatever is written to it."""
        return self.deleting and not self.only_at


@dataclass(frozen=True, slots=True)
class CommitObject:
    """One object of a line. Its successor repeats every field that it does not change, unknown ones included.

    Pins, commits and bindings keep theirs, too: a table's next version has those of the version before.
    """

    line: StoredName  # the branch by its ULID; main's is the graph's id
    seq: int
    prev_op_id: StoredName
    op_id: StoredName
    epoch: int
    owner: str
    pins: Mapping[str, Pin]
    schema: SchemaRef
    commits: tuple[Commit, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    finalised_through: int = 0
    head: str = ""  # the newest commit id at or below this object
    head_at_us: int = 0  # its time: commits never go back in time, whatever the clocks of their writers say
    withdrawn: tuple[str, ...] = ()  # writes reported as not committed: tries that began before this object can't land
    swept_before_us: int = 0  # data files staged before this time may be gone: no later commit may add them
    contains: Mapping[str, int] = field(default_factory=dict)  # which number of which line it includes
    bindings: Mapping[str, Binding] = field(default_factory=dict)  # main's alone: the branches by their names
    horizons: Mapping[str, int] = field(default_factory=dict)  # by table: versions below may be cleaned up
    going: tuple[StoredName, ...] = ()  # closed lines that are about to be cleaned up
    policy: Mapping[str, str] = field(default_factory=dict)  # `durability` of the owner, if more than usual; its `door`
    parent: StoredName = ""  # the line that the branch began on; main has none
    parent_seq: int = 0  # the number there
    closed: bool = False  # the branch was deleted: nothing follows this object
    format: int = FORMAT
    later: Mapping[str, msgspec.Raw] = field(default_factory=dict)  # fields of a later omniray, kept as they are

    def __str__(self) -> str:
        return f"line={self.line} seq={self.seq} op={self.op_id} epoch={self.epoch} owner={self.owner}"

    @property
    def merges(self) -> bool:
        """Whether it takes in commits of other lines: nothing else changes what it contains beside its own number."""
        return any(commit.merged for commit in self.commits)

    @property
    def includes_anew(self) -> bool:
        """Whether what it contains of other lines differs from its predecessor, which the first one of a line lacks."""
        return self.merges or (self.seq == 1 and len(self.contains) > 1)

    def introduced(self) -> Mapping[str, Pin]:
        """The pins that this object introduced."""
        return {key: pin for key, pin in self.pins.items() if pin.since == self.seq and pin.line == self.line}

    def is_final(self, pin: Pin) -> bool:
        """Whether a version is known to have its final name: says only where to look first."""
        return pin.line == self.line and pin.since <= self.finalised_through


# Putting


def before_first(line: str, schema: SchemaRef) -> CommitObject:
    """The empty predecessor of the first object of main's line."""
    return CommitObject(line=line, seq=0, prev_op_id="", op_id="", epoch=1, owner=EMBEDDED, pins={}, schema=schema)


def first_of(binding: Binding) -> CommitObject:
    """The first object of a branch, which follows from its binding alone: every process puts the same bytes."""
    assert not binding.is_begun, "the line has its first object: nobody makes it again"
    return CommitObject(
        line=binding.ulid,
        seq=1,
        prev_op_id="",
        op_id=binding.ulid,
        epoch=1,
        owner=EMBEDDED,
        pins=binding.pins,
        schema=binding.schema,
        head=binding.head,
        head_at_us=binding.head_at_us,
        swept_before_us=binding.swept_before_us,
        contains={**binding.contains, binding.ulid: 1},
        parent=binding.parent,
        parent_seq=binding.parent_seq,
    )


def without_first(binding: Binding) -> Binding:
    """The binding of a line whose first object is there, without what that one says."""
    return replace(binding, pins={}, schema=_NO_SCHEMA, contains={}, is_begun=True)


def follow(
    newest: CommitObject,
    *,
    op_id: str,
    changed: Mapping[str, Pin],
    commits: tuple[Commit, ...],
    finalised_through: int,
    contains: Mapping[str, int] = NOTHING_MORE,
) -> CommitObject:
    """The object that this writer may put after `newest`: its epoch and owner, its pins with ours laid over.

    Everything else is repeated. `finalised_through` never goes back: it is the larger of the number in S and the one
    that the writer confirmed itself. `contains` is what a merge takes in.
    """
    seq = newest.seq + 1
    taken_in = {line: max(number, newest.contains.get(line, 0)) for line, number in contains.items()}
    introduced = {key: replace(pin, line=newest.line, since=seq) for key, pin in changed.items()}
    return replace(
        newest,
        seq=seq,
        prev_op_id=newest.op_id,
        op_id=op_id,
        pins={**newest.pins, **introduced},
        commits=commits,
        recoveries=(),
        withdrawn=(),
        finalised_through=max(newest.finalised_through, finalised_through),
        head=commits[-1].commit_id if commits else newest.head,
        head_at_us=commits[-1].at_us if commits else newest.head_at_us,
        contains={**newest.contains, **taken_in, newest.line: seq},
    )


@dataclass(frozen=True, slots=True)
class Remark:
    """A record in a line that changes no table. Only the line's owner puts it; other processes forward it there."""

    remark_id: str
    recoveries: tuple[Recovery, ...] = ()
    withdrawn: tuple[str, ...] = ()
    swept_before_us: int = 0


def remarked(obj: CommitObject, remark: Remark) -> CommitObject:
    """The object with a remark added."""
    return replace(
        obj,
        recoveries=(*obj.recoveries, *remark.recoveries),
        withdrawn=(*obj.withdrawn, *remark.withdrawn),
        swept_before_us=max(obj.swept_before_us, remark.swept_before_us),
    )


def follow_with(newest: CommitObject, remark: Remark) -> CommitObject:
    """The object after `newest` that records a remark and changes no table."""
    said = follow(newest, op_id=remark.remark_id, changed={}, commits=(), finalised_through=0)
    return remarked(said, remark)


def change_owner(
    newest: CommitObject, *, op_id: str, owner: str, durability: Durability | None = None, door: str = ""
) -> CommitObject:
    """The object that makes `owner` the line's owner after `newest`; everything under way is fenced.

    An object of its own with the next epoch, so that an epoch has one owner. `owner` is the putter's own incarnation,
    or `embedded`: a recovery that raises the epoch, or an owner that hands the line back. `durability` and `door`, the
    digest of its door's record, are the new owner's; without them, an owner that stays keeps its own, and another one
    has none.
    """
    ends = () if owner == newest.owner else _OF_THE_OWNER
    policy = {name: value for name, value in newest.policy.items() if name not in ends}
    if durability is Durability.POWER:
        policy[DURABILITY] = durability.value
    if door:
        policy[DOOR] = f"{newest.epoch + 1}:{door}"  # a later epoch of the same owner keeps the record of this one
    return replace(follow_with(newest, Remark(op_id)), epoch=newest.epoch + 1, owner=owner, policy=policy)


def rebind(newest: CommitObject, *, op_id: str, bindings: Mapping[str, Binding], commit: Commit) -> CommitObject:
    """The object after `newest` of main's line that changes which branches there are; `commit` records who did it."""
    said = follow(newest, op_id=op_id, changed={}, commits=(commit,), finalised_through=0)
    return replace(said, bindings=bindings)


def close(newest: CommitObject, *, op_id: str) -> CommitObject:
    """The object that ends a branch's line after `newest`: everything under way is fenced, and nothing may follow."""
    return replace(change_owner(newest, op_id=op_id, owner=EMBEDDED), closed=True)


def unlawful(newest: CommitObject, candidate: CommitObject) -> str | None:
    """Why `candidate` may not follow `newest`, or None if it may."""
    same_owner = (candidate.epoch, candidate.owner) == (newest.epoch, newest.owner)
    changes_owner = candidate.epoch == newest.epoch + 1 and not candidate.commits
    if newest.closed:
        return f"may not follow {newest.seq}, which closes the line"
    if candidate.line != newest.line:
        return f"is of line {candidate.line}, not of {newest.line}"
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
    if any(candidate.contains.get(line, 0) < number for line, number in newest.contains.items()):
        return f"contains less than {newest.contains}"
    if not candidate.merges and _of_others(candidate) != _of_others(newest):
        return f"contains more of other lines than {newest.contains}, and merges nothing"
    if missing := sorted(newest.pins.keys() - candidate.pins.keys()):
        return f"forgets the pins of {', '.join(missing)}"
    return None


def _of_others(obj: CommitObject) -> Mapping[str, int]:
    return {line: number for line, number in obj.contains.items() if line != obj.line}


# Answers


class Fate(StrEnum):
    """What became of our object S+1."""

    LANDED = "landed"
    LOST = "lost"  # another writer was faster: resolve again on top of it
    FENCED = "fenced"  # the line has another owner now
    PUT_AGAIN = "put_again"  # not there: the same object may be put once more


def fate(ours: CommitObject, answer: Answer, seen: CommitObject | None) -> Fate:
    """What a put's answer means; `seen` is the object at our number, read after the answer.

    Only a clear success decides by itself. SDKs retry on their own, so a refusal may follow our own success, and an
    unclear answer may mean anything: in both cases the object that is there decides.
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

    A writer that paused longer than a small part of the retention may have put a number that was pruned meanwhile: its
    put then succeeds beside the line. `elapsed_s` comes from a clock that runs on during suspension.
    """
    return elapsed_s < retention_s / 10


def landed_in(chain: Iterable[CommitObject], ours: CommitObject) -> bool:
    """Whether our object is in the line, not merely in the store; an object that was pruned since is in the lineage."""
    return any(obj.op_id == ours.op_id for obj in chain)


def may_answer(judged_on: CommitObject, newest: CommitObject) -> bool:
    """Whether an answer judged on an object may be sent: only if nothing has followed that object.

    A refusal judged on an older object might name a conflict that is gone since; then the write is judged again.
    """
    return judged_on.op_id == newest.op_id


# Reading


def belonging(objects: Iterable[CommitObject]) -> tuple[CommitObject, ...]:
    """The line among objects given newest first: each older one only if its successor names it.

    Anything else at a number is a stray (a paused writer's put of a pruned number) and proves nothing.
    """
    line: list[CommitObject] = []
    for obj in objects:
        if line and (obj.seq != line[-1].seq - 1 or obj.op_id != line[-1].prev_op_id):
            break
        line.append(obj)
    return tuple(line)


def reaches(chain: tuple[CommitObject, ...], folded_through: int) -> bool:
    """Whether the line reaches down to the first object that the manifest has not folded; else read both again."""
    return bool(chain) and chain[-1].seq <= folded_through + 1


Standing = Literal["explained", "drift"]


def explain_version(
    found: int, expected: int, newest: CommitObject, table_key: str, judged_on: CommitObject
) -> Standing:
    """Whether the line explains that a table's new version is not the expected one.

    The table is read before the line, so if the newest object pins a version of it that our base did not, another
    writer was merely faster. If no object explains it, a foreign writer has written to the table.
    """
    moved = newest.pins[table_key].version > judged_on.pins[table_key].version
    return "explained" if moved or found == expected else "drift"
