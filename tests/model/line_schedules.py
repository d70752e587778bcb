"""Processes around the commit line, and the schedules they run under, each known by its seed.

Embedded writers, coordinators that take the line over and hand it back, recoveries that take live writers for dead, a
folder that prunes, a reader of the history. They race, sleep and die; their puts are late or lose their answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterable

from omniray.engine.line import commit_object as line
from omniray.engine.line.commit_object import EMBEDDED, Commit, CommitObject, Fate, Pin, Recovery, Remark, SchemaRef
from omniray.engine.recovery.rules import RECORDED_AS, Decision, OperationFacts, epoch_of
from omniray.engine.store.object_store import Answer
from tests.model.line_world import Rules, Violation, World

Steps = Generator[None, None, None]
RETENTION_STEPS = 60
KEYS = ("a", "b", "c")


class Doubt(Exception):
    """No clear answer for too long: the put may land yet, and what was announced is left to a recovery."""


def _pin(version: int) -> Pin:
    return Pin("T", "nodes/T.lance", version, f"t{version}", 0, content=f"t{version}")


# Putting


def _put(world: World, ours: CommitObject, read_at: int, by: str) -> Generator[None, None, Fate]:
    """Phase C as the engine does it."""
    while True:
        answer = world.put(ours, by)
        yield
        seen = None if answer is Answer.CREATED else world.objects.get(ours.seq)
        fate = world.rules.fate(ours, answer, seen)
        if fate is Fate.LANDED and not world.rules.believable(world.now - read_at, RETENTION_STEPS):
            return (yield from _look_for(world, ours))
        if fate is not Fate.PUT_AGAIN:
            return fate
        if world.now - read_at > RETENTION_STEPS // 10:
            raise Doubt
        yield


def _look_for(world: World, ours: CommitObject) -> Generator[None, None, Fate]:
    """A sleeper reads the line before it believes its put; what follows instead tells whether it was fenced."""
    yield
    newest = world.newest()
    chain = world.down_from(newest)
    yield
    if line.landed_in(chain, ours) or ours.op_id in {obj.op_id for obj in world.folded}:
        return Fate.LANDED
    return world.rules.fate(ours, Answer.REFUSED, newest)


def _extend(
    world: World, by: str, build: Callable[[CommitObject], CommitObject | None]
) -> Generator[None, None, tuple[CommitObject, int] | None]:
    """Put what is built on the newest object, anew on top of whoever was faster; what landed, and when it was put."""
    while True:
        newest, read_at = world.newest(), world.now
        yield
        ours = build(newest)
        if ours is None:
            return None
        put_at = world.now
        if (yield from _put(world, ours, read_at, by)) is Fate.LANDED:
            return ours, put_at
        yield


def _attempt(
    world: World, base: CommitObject, read_at: int, by: str, commit: Commit
) -> Generator[None, None, tuple[CommitObject, Fate]]:
    """One operation: announced by its sidecar, then put; a loser clears away what it announced."""
    changed = {"T": _pin(base.pins["T"].version + 1)}
    op_id = f"{commit.commit_id}@{world.now}"
    ours = world.rules.follow(base, op_id=op_id, changed=changed, commits=(commit,), finalised_through=0)
    world.sidecars[op_id] = base.epoch
    yield
    fate = yield from _put(world, ours, read_at, by)
    if fate is not Fate.LANDED:
        world.sidecars.pop(op_id, None)
    return ours, fate


# Writers


def writer(world: World, name: str, wishes: list[tuple[str, str]]) -> Steps:
    """An embedded writer: inserts or deletes keys, one commit each, on top of whatever it last saw."""
    base, read_at = world.newest(), world.now
    for number, (verb, key) in enumerate(wishes):
        commit_id, asked_at = f"{name}.{number}", len(world.truth)
        yield
        while True:
            if base.owner != EMBEDDED:  # it is told to write through the coordinator, and asks again later
                yield
                base, read_at = world.newest(), world.now
                continue
            if (key in world.keys[base.op_id]) == (verb == "insert"):
                yield
                newest = world.newest()
                if world.rules.may_answer(base, newest):
                    if verb == "insert":
                        world.answered_refused(commit_id, key, asked_at)
                    break
                base, read_at = newest, world.now
                continue
            put_at = world.now
            commit = Commit(commit_id, verb, name, world.now, ("T",), key)
            try:
                ours, fate = yield from _attempt(world, base, read_at, name, commit)
            except Doubt:
                base, read_at = world.newest(), world.now
                break
            if fate is Fate.LANDED:
                world.answered_committed(commit_id)
                base, read_at = ours, put_at
                break
            yield
            base, read_at = world.newest(), world.now
        _clear_folded(world, name)


def _clear_folded(world: World, name: str) -> None:
    """The end of Phase D: sidecars of this process's operations that are folded."""
    for obj in world.folded:
        if world.putters.get(obj.op_id) == name:
            world.sidecars.pop(obj.op_id, None)


def coordinator(world: World, name: str) -> Steps:
    """Takes the line over, commits as its owner, hands it back; where it is fenced, or in doubt, a life of it ends."""
    for life in itertools.count():
        for _ in range(world.rng.randint(5, 25)):
            yield
        owner = f"{name}#{life}"
        try:
            taken = yield from _extend(world, owner, _owner_change(world, owner))
            assert taken is not None
            if (yield from _commit_as(world, owner, *taken)):
                yield from _extend(world, owner, _owner_change(world, EMBEDDED, only_from=owner))
        except Doubt:
            yield


def _owner_change(
    world: World, owner: str, only_from: str | None = None
) -> Callable[[CommitObject], CommitObject | None]:
    def build(newest: CommitObject) -> CommitObject | None:
        if only_from not in (None, newest.owner):
            return None
        return world.rules.change_owner(newest, op_id=f"owner {owner}@{world.now}", owner=owner)

    return build


def _commit_as(world: World, owner: str, base: CommitObject, read_at: int) -> Generator[None, None, bool]:
    """A few commits of an owner; False when it was fenced. It goes by the fate of its puts and by nothing else."""
    for number in range(world.rng.randint(0, 3)):
        fate = Fate.LOST
        while fate is Fate.LOST:
            key = world.rng.choice(KEYS)
            verb = "delete" if key in world.keys[base.op_id] else "insert"
            commit, put_at = Commit(f"{owner}.{number}", verb, owner, world.now, ("T",), key), world.now
            ours, fate = yield from _attempt(world, base, read_at, owner, commit)
            base, read_at = (ours, put_at) if fate is Fate.LANDED else (world.newest(), world.now)
        if fate is Fate.FENCED:
            return False
        world.answered_committed(f"{owner}.{number}")
    _clear_folded(world, owner)
    return True


# Recovery


def recoverer(world: World, name: str) -> Steps:
    """Takes the owner of any operation for dead, rightly or not, and recovers it by the real decisions."""
    while True:
        yield
        if not world.sidecars:
            continue
        op_id, epoch = world.rng.choice(sorted(world.sidecars.items()))
        yield
        try:
            yield from _recover(world, name, op_id, epoch)
        except Doubt:
            continue


def _recover(world: World, name: str, op_id: str, epoch: int) -> Steps:
    newest = world.newest()
    named = yield from _is_named(world, op_id, newest)
    decision = _decide(world, named, epoch, newest)
    if decision is Decision.RAISE_FIRST:
        yield from _extend(world, name, _raise_above(world, name, epoch))
        newest = world.newest()
        if world.rules.looks_again_after_raise:
            named = yield from _is_named(world, op_id, newest)
        decision = _decide(world, named, epoch, newest)
        if decision is Decision.RAISE_FIRST:
            raise Violation(f"the epoch was raised, and {op_id} of epoch {epoch} may still be put")
    if decision not in RECORDED_AS:
        return
    if decision is Decision.ROLL_BACK:
        world.discard(op_id)
    yield
    yield from _extend(world, name, _record(world, name, op_id, decision))
    if world.newest().owner == EMBEDDED:
        yield
        world.sidecars.pop(op_id, None)


def _decide(world: World, named: bool, epoch: int, newest: CommitObject) -> Decision:
    facts = OperationFacts(
        named=named,
        gone=True,
        epoch=epoch_of(epoch, newest.epoch),
        may_put=newest.owner == EMBEDDED,
        own=False,
        staging_only=False,
    )
    return world.rules.decide(facts, ())


def _raise_above(world: World, name: str, epoch: int) -> Callable[[CommitObject], CommitObject | None]:
    def build(newest: CommitObject) -> CommitObject | None:
        if newest.epoch > epoch or newest.owner != EMBEDDED:
            return None
        return world.rules.change_owner(newest, op_id=f"{name} raises@{world.now}", owner=EMBEDDED)

    return build


def _record(world: World, name: str, op_id: str, decision: Decision) -> Callable[[CommitObject], CommitObject | None]:
    def build(newest: CommitObject) -> CommitObject | None:
        told = {r.operation_id for obj in (*world.folded, *world.down_from(newest)) for r in obj.recoveries}
        if newest.owner != EMBEDDED or (op_id in told and world.rules.sees_what_is_recorded):
            return None
        recovery = Recovery(op_id, RECORDED_AS[decision], "", "Mutation", {}, world.now)
        return world.rules.follow_with(newest, Remark(f"{name} records@{world.now}", recoveries=(recovery,)))

    return build


def _is_named(world: World, op_id: str, newest: CommitObject) -> Generator[None, None, bool]:
    """Whether an operation is in the line or in the lineage, as of one object of the line."""
    history = yield from _history(world, lambda: newest)
    return any(obj.op_id == op_id for obj in history)


# Phase D and readers


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
        expected = _commit_ids(world.truth)
        seen = _commit_ids((yield from _history(world, world.newest)))
        if seen[: len(expected)] != expected:
            raise Violation(f"history shows {seen}, which lacks some of {expected}")


def _history(world: World, newest: Callable[[], CommitObject]) -> Generator[None, None, list[CommitObject]]:
    """The objects of manifest and line, which are two reads that must meet, oldest first."""
    while True:
        folded = list(world.folded)
        yield
        chain = world.down_from(newest())
        if world.rules.reaches(chain, len(folded)):
            return [*folded, *(obj for obj in reversed(chain) if obj.seq > len(folded))]
        yield


def _commit_ids(objects: Iterable[CommitObject]) -> list[str]:
    return [commit.commit_id for obj in objects for commit in obj.commits]


# Schedules


def run(seed: int, rules: Rules | None = None, steps: int = 600) -> World:
    """One schedule; raises `Violation` where a promise breaks."""
    rng = random.Random(seed)
    world = World(rng, rules or Rules(), fault=rng.choice([0.0, 0.05, 0.12]))
    nothing_yet = line.before_first("main", SchemaRef("file", "hash", 1))
    first = line.follow(nothing_yet, op_id="first", changed={"T": _pin(1)}, commits=(), finalised_through=1)
    world.apply(first)
    world.folded.append(first)
    writers: list[Steps] = [writer(world, f"w{n}", _wishes(rng)) for n in range(rng.randint(2, 4))]
    others: list[Steps] = [folder(world), reader(world)]
    others += [recoverer(world, f"recovery{n}") for n in range(rng.choice([0, 1, 2]))]
    others += [coordinator(world, f"coordinator{n}") for n in range(rng.choice([0, 0, 1, 2]))]
    asleep: dict[Steps, int] = {}
    sleepiness, mortality = rng.choice([0.0, 0.005, 0.02]), rng.choice([0.0, 0.0, 0.01])
    while world.now < steps and writers:
        world.now += 1
        if world.late and rng.random() < 0.1:
            world.apply(world.late.pop(rng.randrange(len(world.late))))
        awake = [p for p in (*writers, *others) if asleep.get(p, 0) <= world.now]
        if not awake:
            continue
        process = rng.choice(awake)
        luck = rng.random()
        if luck < sleepiness:
            asleep[process] = world.now + rng.choice([10, 100, 200])
        elif (process in writers and luck < sleepiness + mortality) or next(process, process) is process:
            writers.remove(process)
    return world


def _wishes(rng: random.Random) -> list[tuple[str, str]]:
    return [(rng.choice(["insert", "insert", "delete"]), rng.choice(KEYS)) for _ in range(rng.randint(4, 14))]
