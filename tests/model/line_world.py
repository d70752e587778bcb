"""A random world around the commit line: writers that race, sleep and crash, puts that are late or lose their answer.

No Lance and no files: a dict is the store. The decisions are the real ones of `omniray.engine.line`, reached through
`Rules`, so that a test can break one of them and see the world notice. A schedule is known by its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from omniray.engine import line
from omniray.engine.line import EMBEDDED, Answer, Commit, CommitObject, Fate, Pin

Steps = Generator[None, None, None]
RETENTION_STEPS = 60
FOLD_COUNT_MIN = 3


class Violation(AssertionError):
    """A promise of the line is broken."""


@dataclass(frozen=True)
class Rules:
    """The decisions under test; a twin replaces one."""

    follow: Callable[..., CommitObject] = line.follow
    fate: Callable[[CommitObject, Answer, CommitObject | None], Fate] = line.fate
    believable: Callable[[float, float], bool] = line.believable
    may_answer: Callable[[CommitObject, CommitObject], bool] = line.may_answer
    belonging: Callable[[Iterable[CommitObject]], tuple[CommitObject, ...]] = line.belonging
    reaches: Callable[[tuple[CommitObject, ...], int], bool] = line.reaches


@dataclass
class World:
    """The store, and beside it the truth that no process can see."""

    rng: random.Random
    rules: Rules
    now: int = 0
    objects: dict[int, CommitObject] = field(default_factory=dict)
    born: dict[int, int] = field(default_factory=dict)
    truth: list[CommitObject] = field(default_factory=list)
    late: list[CommitObject] = field(default_factory=list)
    keys: dict[str, frozenset[str]] = field(default_factory=dict)  # by operation: the graph's content after it
    folded: list[CommitObject] = field(default_factory=list)
    owner: tuple[int, str] = (1, EMBEDDED)
    landed: int = 0
    fault: float = 0.0

    def apply(self, obj: CommitObject) -> bool:
        """A put-if-absent takes effect."""
        if obj.seq in self.objects:
            return False
        self.objects[obj.seq] = obj
        self.born[obj.seq] = self.now
        if obj.seq == len(self.truth) + 1:
            self._extend(obj)
        return True

    def _extend(self, obj: CommitObject) -> None:
        before = self.truth[-1] if self.truth else None
        if before is not None and (reason := line.unlawful(before, obj)) is not None:
            raise Violation(f"unlawful object in the line: {reason}")
        held = self.keys[before.op_id] if before is not None else frozenset()
        for commit in obj.commits:
            if (commit.payload_hash in held) == (commit.kind == "insert"):
                raise Violation(f"{commit.kind} of {commit.payload_hash} is committed on a graph where it can't be")
            held ^= {commit.payload_hash}
        self.keys[obj.op_id] = held
        self.truth.append(obj)

    def put(self, obj: CommitObject) -> Answer:
        """What a writer is told: the answer may be lost, the effect late, or a success come back as a refusal."""
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

    def answered_committed(self, commit_id: str) -> None:
        if not any(c.commit_id == commit_id for obj in self.truth for c in obj.commits):
            raise Violation(f"{commit_id} was answered 'committed' and is not in the line")
        self.landed += 1

    def answered_refused(self, commit_id: str, key: str, asked_at: int) -> None:
        """A refusal must be for a key that was there at some moment between the question and the answer."""
        if any(c.commit_id == commit_id for obj in self.truth for c in obj.commits):
            raise Violation(f"{commit_id} was refused and is in the line")
        if not any(key in self.keys[obj.op_id] for obj in self.truth[asked_at - 1 :]):
            raise Violation(f"{commit_id} was refused for key {key}, which was gone before it asked")


def writer(world: World, name: str, wishes: list[tuple[str, str]]) -> Steps:
    """An embedded writer: inserts or deletes keys, one commit each, on top of whatever it last saw."""
    base, read_at = world.newest(), world.now
    for number, (verb, key) in enumerate(wishes):
        commit_id, asked_at = f"{name}.{number}", len(world.truth)
        yield
        while True:
            held = world.keys[base.op_id]
            if (key in held) == (verb == "insert"):
                yield
                newest = world.newest()
                if world.rules.may_answer(base, newest):
                    if verb == "insert":
                        world.answered_refused(commit_id, key, asked_at)
                    break
                base, read_at = newest, world.now
                continue
            ours = world.rules.follow(
                base, op_id=f"{commit_id}@{world.now}", changed=_changed(base), finalised_through=0,
                commits=(Commit(commit_id, verb, name, world.now, ("T",), key),),
            )  # fmt: skip
            yield
            put_at = world.now
            fate = yield from _put(world, ours, read_at)
            if fate is Fate.LANDED:
                world.answered_committed(commit_id)
                base, read_at = ours, put_at
                break
            yield
            base, read_at = world.newest(), world.now


def _changed(base: CommitObject) -> dict[str, Pin]:
    return {"T": Pin(base.pins["T"].version + 1, f"t{base.seq + 1}", base.seq + 1, 0)}


def _put(world: World, ours: CommitObject, read_at: int) -> Generator[None, None, Fate]:
    """Phase C as the engine does it."""
    while True:
        answer = world.put(ours)
        yield
        seen = None if answer is Answer.CREATED else world.objects.get(ours.seq)
        fate = world.rules.fate(ours, answer, seen)
        if fate is Fate.LANDED and not world.rules.believable(world.now - read_at, RETENTION_STEPS):
            yield
            chain = world.down_from(world.newest())
            yield
            folded = {obj.op_id for obj in world.folded}
            return Fate.LANDED if line.landed_in(chain, ours) or ours.op_id in folded else Fate.LOST
        if fate is not Fate.PUT_AGAIN:
            return fate
        if world.now - read_at > RETENTION_STEPS // 10:
            return Fate.LOST if _surely_lost(world, ours) else Fate.LANDED
        yield


def _surely_lost(world: World, ours: CommitObject) -> bool:
    """A writer in doubt for too long is told the truth here: what it does then is a matter of recovery."""
    world.late = [obj for obj in world.late if obj.op_id != ours.op_id]
    return all(obj.op_id != ours.op_id for obj in world.truth)


def folder(world: World) -> Steps:
    """Folds objects into the manifest, in order, and prunes what is folded and old."""
    while True:
        yield
        chain = world.down_from(world.newest())
        for obj in reversed(chain):
            if obj.seq == len(world.folded) + 1:
                world.folded.append(obj)
        yield
        newest = max(world.objects)
        old = [s for s in world.objects if s < newest and s <= len(world.folded)]
        for seq in old:
            if world.now - world.born[seq] > RETENTION_STEPS:
                del world.objects[seq]


def reader(world: World) -> Steps:
    """Reads the history as manifest plus line: every commit that was there when it began, each once."""
    while True:
        yield
        expected = [c.commit_id for obj in world.truth for c in obj.commits]
        while True:
            folded = list(world.folded)
            yield
            chain = world.down_from(world.newest())
            if world.rules.reaches(chain, len(folded)):
                break
            yield
        recent = [obj for obj in reversed(chain) if obj.seq > len(folded)]
        seen = [c.commit_id for obj in (*folded, *recent) for c in obj.commits]
        if seen[: len(expected)] != expected:
            raise Violation(f"history shows {seen}, which lacks some of {expected}")


def run(seed: int, rules: Rules | None = None, steps: int = 600) -> World:
    """One schedule; raises `Violation` where a promise breaks."""
    rng = random.Random(seed)
    world = World(rng, rules or Rules(), fault=rng.choice([0.0, 0.05, 0.12]))
    birth = CommitObject(1, "", "birth", *world.owner, {"T": Pin(1, "t1", 1, 0)}, finalised_through=1)
    world.apply(birth)
    world.folded.append(birth)
    names = [f"w{n}" for n in range(rng.randint(2, 4))]
    processes: list[Steps] = [writer(world, name, _wishes(rng)) for name in names]
    processes += [folder(world), reader(world)]
    asleep: dict[int, int] = {}
    sleepiness = rng.choice([0.0, 0.005, 0.02])
    while world.now < steps and len(processes) > 2:
        world.now += 1
        if world.late and rng.random() < 0.1:
            world.apply(world.late.pop(rng.randrange(len(world.late))))
        awake = [p for p in processes if asleep.get(id(p), 0) <= world.now]
        if not awake:
            continue
        process = rng.choice(awake)
        if rng.random() < sleepiness:
            asleep[id(process)] = world.now + rng.choice([10, 100, 200])
            continue
        try:
            next(process)
        except StopIteration:
            processes.remove(process)
    return world


def _wishes(rng: random.Random) -> list[tuple[str, str]]:
    keys = ["a", "b", "c"]
    return [(rng.choice(["insert", "insert", "delete"]), rng.choice(keys)) for _ in range(rng.randint(4, 14))]
