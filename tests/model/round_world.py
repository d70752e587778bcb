"""A random world around the rounds: publishers that come, are fenced and die, clients that ask until they know.

The publishers are the real ones, with their steps, their end of the line, commit log, sidecars and lineage. Below them
are a store in memory and queues without Lance, and every request to them is a place where the seeded schedule may let
somebody else run, lose the answer, kill the process or have another one take over. Beside stands the truth that none of
them can see: every object that takes effect and every answer that leaves is held against it.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from omniray.engine.base.errors import TableDrift
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_object import EMBEDDED, Commit, CommitObject, Pin, change_owner, follow
from tests.model.round_clients import Errand, any_limits, any_writes
from tests.model.round_life import Life, Waiting
from tests.model.round_queues import FOREIGN, QueueOwners, Read, final_path, next_rows, staging_path
from tests.model.round_requests import request_of
from tests.model.round_tasks import Crashed, Tasks
from tests.model.round_terms import (
    KEYS,
    LATE_ANSWERS,
    SCHEMA,
    TABLES,
    Told,
    Violation,
    Weather,
    Write,
    any_weather,
    pin_of,
)
from tests.model.round_truth import MEDDLER, Truth

TURMOIL_STEPS = 400
DRAIN_STEPS = 30_000
LIVES_MAX = 7


class World(Truth):
    """The truth, everybody who works on it, and the schedule."""

    def __init__(self, rng: random.Random, weather: Weather | None = None) -> None:
        self.rng, self.weather = rng, weather or any_weather(rng)
        self.is_calm, self.was_store_sound = False, self.weather.store == 0
        self.is_saturated = rng.random() < 0.02
        self.limits = any_limits(rng, self.is_saturated)
        self.tasks = Tasks(self._delay, self.notice)
        self.broken: list[BaseException] = []  # promises
        super().__init__(lists_newest_first=rng.random() < 0.5)
        self.drifted: set[str] = set()  # tables with a version that is not ours
        self.ever_drifted: set[str] = set()
        self.lives: list[Life] = []
        self.owners = [QueueOwners(self.storage, self.pinned.__contains__)]
        self._numbers = itertools.count(1)
        trickles = self.weather is LATE_ANSWERS or rng.random() < 0.5
        span = TURMOIL_STEPS if trickles and not self.is_saturated else 0
        writes = any_writes(rng, self.is_saturated)
        self.errands = [Errand(write, not_before=rng.randint(0, span)) for write in writes]
        self.writes |= {errand.write.write_id: errand.write for errand in self.errands}
        self._by_id = {errand.write.write_id: errand for errand in self.errands}

    def is_unlucky(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    def notice(self, violation: BaseException) -> None:
        """A promise is broken, where raising would tell only the code under test."""
        self.broken.append(violation)

    @property
    def story(self) -> object:
        """What happened, without the names that are minted anew in each run."""
        line = [(obj.epoch, obj.owner, [commit.commit_id for commit in obj.commits]) for obj in self.line]
        return self.tasks.now, dict(self.tally), line, [errand.told for errand in self.errands]

    # Answers

    def answered(self, by: Life, waiting: Waiting, told: Told) -> None:
        """Hold an answer against the truth, then hand it to the client, if that still listens there."""
        self.check_answer(waiting.write, waiting.asked_at, told)
        self.tally[told] += 1
        errand = self._by_id[waiting.write.write_id]
        if errand.at is by:
            errand.hear(told, self.tasks.now, self.rng)

    # The schedule

    def step(self) -> None:
        self.tasks.now += 1
        self._see_that_somebody_serves()
        self._make_trouble()
        ready = self.tasks.ready()
        if (self.is_saturated or not ready or self.rng.random() < 0.25) and self._send_one():
            return
        if ready:
            self.tasks.go_on(self.rng.choice(ready))
        elif self.tasks.all and self.tasks.now > TURMOIL_STEPS:  # nothing else happens by itself any more
            self.tasks.now = max(self.tasks.now, min(task.due for task in self.tasks.all) - 1)

    def _send_one(self) -> bool:
        now = self.tasks.now
        unsent = [e for e in self.errands if e.told is None and e.at is None and e.not_before <= now]
        serving = [life for life in self.lives if life.serves] if unsent else []
        if serving:
            confused = self.is_unlucky(self.weather.confusion)
            self._send(self.rng.choice(unsent), self.rng.choice(serving) if confused else serving[-1])
        return bool(serving)

    def _send(self, errand: Errand, life: Life) -> None:
        errand.at, write = life, errand.write
        if write.prepared or (write.strict and not write.versions):  # goes by what its client reads just now
            versions = {table: self.content.versions[table] for table in write.tables}
            write = errand.write = self.writes[write.write_id] = replace(write, versions=versions)
        life.submit(write, request_of(write, Read(self.storage, self.newest)))

    def steps(self, seconds: float) -> int:
        """How many steps some time takes; nothing here may depend on how long a round really took."""
        return self.rng.choice((2, 5, 20)) if seconds <= 0.1 else self.rng.choice((20, 60))

    def _delay(self, kind: str) -> int:
        is_slow = self.weather.slow_kind in kind and self.is_unlucky(self.weather.slow)
        return self.rng.choice((10, 30, 100)) if is_slow else 0

    def _see_that_somebody_serves(self) -> None:
        active = [life for life in self.lives if not life.is_over]
        suspects = self.is_unlucky(self.weather.suspicion) and len(self.lives) < LIVES_MAX
        if not active or suspects:
            self.tally["zombies"] += bool(active)
            if self.rng.random() < 0.3:  # in another cluster, with queues of its own
                self.owners.append(QueueOwners(self.storage, self.pinned.__contains__))
            self.lives.append(Life(self, f"publisher{len(self.lives)}", self.rng.choice(self.owners[-2:])))

    def _make_trouble(self) -> None:
        late = self.storage.late
        if late and self.rng.random() < 0.05:
            self.storage.put_if_absent(*late.pop(self.rng.randrange(len(late))))
        if self.rng.random() < 0.05:
            self._finalise()
        if self.lives and self.is_unlucky(self.weather.crash) and len(self.lives) < LIVES_MAX:
            self._crash(self.rng.choice(self.lives))
        if self.is_unlucky(self.weather.meddling):
            self._meddle()
        if self.is_unlucky(self.weather.drift):
            self._write_behind_the_back(self.rng.choice(TABLES))
        if self.drifted and self.rng.random() < 0.02:
            self._repair(self.rng.choice(sorted(self.drifted)))
        if self.is_unlucky(self.weather.impatience):
            self._give_up(self.rng.choice(self.errands))

    def _crash(self, life: Life) -> None:
        """Its memory is gone; what it was putting may arrive all the same."""
        self.tally["crashes"] += 1
        life.is_alive = False
        self.tasks.kill(life)
        for errand in self.errands:
            if errand.at is life:
                errand.hear(Told.ENDED, self.tasks.now, self.rng)

    def _meddle(self) -> None:
        """A recovery raises the epoch, or somebody who speaks for the owner is faster than its rounds."""
        operation = f"meddling{next(self._numbers)}"
        if self.rng.random() < 0.1:
            self._put(change_owner(self.newest, op_id=operation, owner=EMBEDDED))
            return
        key, table = self.rng.choice(KEYS), self.rng.choice(TABLES)
        verb = "delete" if key in self.content.rows[table] else "append"
        write = self.writes[operation] = Write(operation, "", verb, key, (table,))
        resolution = request_of(write, Read(self.storage, self.newest)).resolve(Read(self.storage, self.newest), SCHEMA)
        changed = {table: self._staged(table, operation, resolution.tables[table])}
        commits = (Commit(operation, "Mutation", "", 0, (table,)),)
        self._put(follow(self.newest, op_id=operation, changed=changed, commits=commits, finalised_through=0))

    def _staged(self, table: str, transaction: str, write: TableWrite) -> Pin:
        before = self.newest.pins[table]
        rows = next_rows(Read(self.storage, self.newest).rows(table), write, before.version + 1)
        path = staging_path(table, transaction)
        self.storage.objects[path] = msgspec.json.encode(rows)
        return pin_of(table, before.version + 1, transaction, len(rows))

    def _put(self, obj: CommitObject) -> None:
        self.storage.put_if_absent(self._log.path(obj.seq), encode(obj), MEDDLER)

    def _give_up(self, errand: Errand) -> None:
        life, errand.at = errand.at, None
        if life is not None:
            errand.in_doubt = True
            if self.rng.random() < 0.8:
                life.publisher.abandon(errand.write.write_id)

    # Phase D, and who is in its way

    def _finalise(self) -> None:
        """Final names and folds, in the order of the line, of what the line's owner knows of, as far as they go."""
        owner = next((life for life in self.lives if life.name == self.newest.owner and not life.is_over), None)
        through = owner.known_seq if owner is not None else self.newest.seq
        for obj in self.line[self.folded.folded_through() : through]:
            if not self._give_final_names(obj):
                break
            self.folded.fold(obj)
            if self.rng.random() < 0.5:  # now or never: tidying may fail
                for path in [staging_path(key, pin.transaction) for key, pin in obj.introduced().items()]:
                    self.storage.delete(path)
                self.storage.delete(self._sidecars.path(obj.op_id))
        if owner is not None and owner.is_ready:
            drifted = {key: TableDrift("somebody was here", table_key=key) for key in sorted(self._blocked())}
            owner.publisher.finalised(self.folded.folded_through(), drifted)

    def _give_final_names(self, obj: CommitObject) -> bool:
        for table_key, pin in obj.introduced().items():
            final = final_path(table_key, pin.version)
            if self.storage.objects.get(final) == FOREIGN:
                return False
            self.storage.objects[final] = self.storage.objects.get(
                staging_path(table_key, pin.transaction), self.storage.objects.get(final, b"")
            )
        return True

    def _blocked(self) -> set[str]:
        """Tables whose next object to finalise finds its final name taken."""
        unfolded = self.line[self.folded.folded_through() :]
        return {
            key
            for obj in unfolded
            for key, pin in obj.introduced().items()
            if self.storage.objects.get(final_path(key, pin.version)) == FOREIGN
        }

    def _write_behind_the_back(self, table_key: str) -> None:
        path = final_path(table_key, self.newest.pins[table_key].version + 1)
        if path not in self.storage.objects:
            self.storage.objects[path] = FOREIGN
            self.drifted.add(table_key)
            self.ever_drifted.add(table_key)

    def _repair(self, table_key: str) -> None:
        self.drifted.discard(table_key)
        foreign = [p for p, d in self.storage.objects.items() if d == FOREIGN and p.startswith(table_key)]
        for path in foreign:
            del self.storage.objects[path]

    # The end

    def calm_down(self) -> None:
        self.weather, self.is_calm = Weather(), True
        for table_key in sorted(self.drifted):
            self._repair(table_key)
        for task in self.tasks.all:
            task.due = min(task.due, self.tasks.now)

    @property
    def is_done(self) -> bool:
        return not self.tasks.all and not self.storage.late and all(errand.told is not None for errand in self.errands)

    def check(self) -> None:
        if self.broken:
            raise self.broken[0] if isinstance(self.broken[0], AssertionError) else Violation(repr(self.broken[0]))

    def check_end(self) -> None:
        for errand in self.errands:
            if errand.told is None:
                raise Violation(f"nobody answers {errand.write.write_id}")
            if (errand.told is Told.COMMITTED) != (errand.write.write_id in self.committed):
                raise Violation(f"{errand.write.write_id} was answered '{errand.told}', which the line denies")
        for life in self.lives:
            if life.serves and (life.waiting or not life.publisher.is_idle):
                raise Violation(f"{life.name} holds on to {sorted(life.waiting)}")
            if life.serves and self.was_store_sound:
                self.check_tidiness(life.name)

    def close(self) -> None:
        """Let nothing run on: a job that is dropped while it is suspended would be unwound at some later time."""
        for life in self.lives:
            life.is_alive = False
            self.tasks.kill(life)


# Schedules


def run(seed: int, weather: Weather | None = None) -> World:
    """One schedule: turmoil, then calm until everybody knows; raises `Violation` where a promise breaks."""
    world = World(random.Random(seed), weather)
    with _listening(world):
        try:
            while not world.is_done and world.tasks.now < TURMOIL_STEPS + DRAIN_STEPS:
                if not world.is_calm and world.tasks.now >= TURMOIL_STEPS:
                    world.calm_down()
                world.step()
                world.check()
            world.check_end()
        finally:
            world.close()
    return world


class _Listener(logging.Handler):
    """Hears of what the publisher itself takes for a bug, and goes on after."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Crashed):
            self._world.notice(error)


@contextmanager
def _listening(world: World) -> Iterator[None]:
    log, listener = logging.getLogger("omniray"), _Listener(world)
    log.addHandler(listener)
    propagated, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagated
