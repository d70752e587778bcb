"""A random world around the commit line: the store as processes see it, and beside it the truth that none of them can.

No Lance and no files: a dict is the store. The decisions are the real ones of `line.commit_object` and
`recovery.rules`, reached through `Rules`, so that a test can break one of them and see the world notice. The
processes, and the schedules that they run under, are in `line_schedules`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Fate, Recovery
from omniray.engine.recovery import rules as recovery
from omniray.engine.recovery.rules import Decision, OperationFacts, TableClass
from omniray.engine.store.object_store import Answer


class Violation(AssertionError):
    """A promise of the line is broken."""


@dataclass(frozen=True)
class Rules:
    """The decisions under test; a twin replaces one."""

    follow: Callable[..., CommitObject] = line.follow
    change_owner: Callable[..., CommitObject] = line.change_owner
    follow_with: Callable[..., CommitObject] = line.follow_with
    fate: Callable[[CommitObject, Answer, CommitObject | None], Fate] = line.fate
    believable: Callable[[float, float], bool] = line.believable
    may_answer: Callable[[CommitObject, CommitObject], bool] = line.may_answer
    belonging: Callable[[Iterable[CommitObject]], tuple[CommitObject, ...]] = line.belonging
    reaches: Callable[[tuple[CommitObject, ...], int], bool] = line.reaches
    decide: Callable[[OperationFacts, Iterable[TableClass]], Decision] = recovery.decide
    looks_again_after_raise: bool = True
    sees_what_is_recorded: bool = True


@dataclass
class World:
    """The store, and beside it the truth that no process can see."""

    rng: random.Random
    rules: Rules
    fault: float = 0.0
    now: int = 0
    objects: dict[int, CommitObject] = field(default_factory=dict)
    born: dict[int, int] = field(default_factory=dict)
    folded: list[CommitObject] = field(default_factory=list)
    sidecars: dict[str, int] = field(default_factory=dict)  # by operation: the epoch that it was begun in
    late: list[CommitObject] = field(default_factory=list)
    truth: list[CommitObject] = field(default_factory=list)
    keys: dict[str, frozenset[str]] = field(default_factory=dict)  # by operation: the graph's content after it
    putters: dict[str, str] = field(default_factory=dict)  # by operation: who put it
    discarded: set[str] = field(default_factory=set)  # operations whose staging manifests a recovery deleted
    recorded: dict[str, Recovery] = field(default_factory=dict)
    landed: int = 0

    # The store

    def apply(self, obj: CommitObject) -> bool:
        """A put-if-absent takes effect."""
        if obj.seq in self.objects:
            return False
        self.objects[obj.seq] = obj
        self.born[obj.seq] = self.now
        if obj.seq == len(self.truth) + 1:
            self._extend(obj)
        return True

    def put(self, obj: CommitObject, by: str) -> Answer:
        """What a putter is told: the answer may be lost, the effect late, or a success come back as a refusal."""
        self.putters[obj.op_id] = by
        luck = self.rng.random()
        if luck < self.fault:
            self.late.append(obj)
            return Answer.UNCLEAR
        created = self.apply(obj)
        if luck < 2 * self.fault:
            return Answer.UNCLEAR
        if created and luck < 3 * self.fault:
            return Answer.REFUSED
        return Answer.CREATED if created else Answer.REFUSED

    def newest(self) -> CommitObject:
        return self.objects[max(self.objects)]

    def down_from(self, newest: CommitObject) -> tuple[CommitObject, ...]:
        found = [newest]
        while found[-1].seq - 1 in self.objects:
            found.append(self.objects[found[-1].seq - 1])
        return self.rules.belonging(found)

    # The truth

    def _extend(self, obj: CommitObject) -> None:
        before = self.truth[-1] if self.truth else None
        if before is not None:
            if (reason := line.unlawful(before, obj)) is not None:
                raise Violation(f"unlawful object in the line: {reason}")
            self._check_putter(before, obj)
        if obj.op_id in self.discarded:
            raise Violation(f"{obj.op_id} is in the line, and a recovery has deleted what it staged")
        self._check_recoveries(obj)
        held = self.keys[before.op_id] if before is not None else frozenset()
        for commit in obj.commits:
            if (commit.payload_hash in held) == (commit.kind == "insert"):
                raise Violation(f"{commit.kind} of {commit.payload_hash} is committed on a graph where it can't be")
            held ^= {commit.payload_hash}
        self.keys[obj.op_id] = held
        self.truth.append(obj)

    def _check_putter(self, before: CommitObject, obj: CommitObject) -> None:
        """Only the owner puts, and a change of owner names everybody or whoever makes it."""
        putter = self.putters[obj.op_id]
        if obj.epoch > before.epoch:
            if obj.owner not in (EMBEDDED, putter):
                raise Violation(f"{putter} gives the line to {obj.owner}")
            if obj.owner == EMBEDDED and before.owner not in (EMBEDDED, putter):
                raise Violation(f"{putter} takes the line from {before.owner}")
        elif putter != obj.owner and (obj.owner != EMBEDDED or is_coordinator(putter)):
            raise Violation(f"{putter} was fenced and puts as {obj.owner}")

    def _check_recoveries(self, obj: CommitObject) -> None:
        in_line = {one.op_id for one in self.truth}
        for told in obj.recoveries:
            if told.operation_id in self.recorded:
                raise Violation(f"the recovery of {told.operation_id} is recorded twice")
            if (told.recovery_kind == "RolledForward") != (told.operation_id in in_line):
                raise Violation(f"{told.operation_id} is recorded as {told.recovery_kind}")
            self.recorded[told.operation_id] = told

    def is_committed(self, commit_id: str) -> bool:
        return any(c.commit_id == commit_id for obj in self.truth for c in obj.commits)

    # What processes claim

    def answered_committed(self, commit_id: str) -> None:
        if not self.is_committed(commit_id):
            raise Violation(f"{commit_id} was answered 'committed' and is not in the line")
        self.landed += 1

    def answered_refused(self, commit_id: str, key: str, asked_at: int) -> None:
        """A refusal must be for a key that was there at some moment between the question and the answer."""
        if self.is_committed(commit_id):
            raise Violation(f"{commit_id} was refused and is in the line")
        if not any(key in self.keys[obj.op_id] for obj in self.truth[asked_at - 1 :]):
            raise Violation(f"{commit_id} was refused for key {key}, which was gone before it asked")

    def discard(self, op_id: str) -> None:
        """A recovery deletes what an operation staged."""
        if any(obj.op_id == op_id for obj in self.truth):
            raise Violation(f"a recovery deletes what {op_id} staged, which is in the line")
        self.discarded.add(op_id)


def is_coordinator(name: str) -> bool:
    return name.startswith("coordinator")
