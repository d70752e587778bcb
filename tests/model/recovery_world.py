"""A graph on disk, processes on it that live and die within one real process, and a plain model of what it must hold.

A process here is an open `Graph` with a store of its own, which goes dead where the process dies. Who is known to be
dead is up to the world, and so is every pause: no thread of the engine acts by a timer, and tasks of a pool are done in
turn. So the same steps give the same end.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import lance
import pytest

from omniray.engine import writer
from omniray.engine.base.errors import Fenced, LineOwned, OmnirayError, TableDrift
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.process import Process
from omniray.engine.commit import attempt, phase_d, staging
from omniray.engine.graph import Graph
from omniray.engine.history import audit
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line import owner
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, unlawful
from omniray.engine.line.owner import Incarnation
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.recovery import recoverer
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import FinalName, observe_final_name
from omniray.engine.writes import lease
from tests import foreign
from tests.graphs import create_store, main_of
from tests.healing import wounds
from tests.kit.faulty_store import Crashed, FaultyStore
from tests.kit.mortal import dying_at
from tests.recovery.rows import NOTHING, TABLES, Deed, Rows, after, read_rows
from tests.stores import Root

NEVER_S = 1e6
CREATION = "Init"
_DIR = "/dev/shm" if Path("/dev/shm").is_dir() else None  # deaths here are not the machine's
_FIRST = Process("this machine", 0, "1")


@functools.cache
def _new_graph() -> tempfile.TemporaryDirectory[str]:
    """A graph just after its creation, to be copied."""
    folder = tempfile.TemporaryDirectory(dir=_DIR)
    create_store(Root(folder.name, {}))
    return folder


class InTurn:
    """Stands in for a pool of threads: each task is done at once, so that they always come in the same order."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(task(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done

    def map(self, task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return map(task, *arguments)

    def shutdown(self) -> None: ...


@dataclass(eq=False)
class Runner:
    """One process: its graph, how it dies, and for whom it acts."""

    process: Process
    store: FaultyStore
    graph: Graph
    owner: str

    def is_here(self) -> bool:
        """Whether the thread that asks is one of this process: the test's own acts for whoever acts."""
        return threading.current_thread() in (threading.main_thread(), self.graph._finaliser._thread)

    def catch_up(self) -> None:
        """Wait until Phase D is as far as it goes without being asked for more."""
        part = self.graph._finaliser
        with part._wake:
            part._wake.wait_for(lambda: part._target is None or part._error or part._named_through >= part._target.seq)


@dataclass
class World:
    """All of it. The model is the deeds that have landed, in their order."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory(dir=_DIR))
    landed: list[Deed] = field(default_factory=list)
    rows: Rows = field(default_factory=lambda: copy.deepcopy(NOTHING))
    commit_ids: list[str] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)
    known_dead: set[Process] = field(default_factory=set)
    missing: list[Process] = field(default_factory=list)  # dead, and nobody knows yet
    on_their_way: list[tuple[CommitObject, Deed]] = field(default_factory=list)  # puts of the dead
    acting: Process = _FIRST
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def __post_init__(self) -> None:
        for module in (attempt, lease, owner):
            self.patch.setattr(module, "this_process", lambda: self.acting)
        for module in (recoverer, owner):
            self.patch.setattr(module, "is_known_dead", lambda process: process in self.known_dead)
        for module in (writer, phase_d, staging):
            self.patch.setattr(module, "ThreadPoolExecutor", InTurn)
        self.patch.setattr(recoverer, "SETTLED_S", -1.0)  # whatever was left is seen by the next write that looks
        self.patch.setattr(recoverer, "LOOK_EVERY_S", 0.0)
        self.patch.setattr(phase_d, "IDLE_S", NEVER_S)
        self.patch.setattr(phase_d, "FOLD_OBJECTS", 8)
        self.patch.setattr(phase_d, "TIDY_FILES", 6)
        self.patch.setattr(old_versions, "KEPT_VERSIONS", 4)
        shutil.copytree(_new_graph().name, self.folder.name, dirs_exist_ok=True)
        self.store = DirectoryStore(Path(self.folder.name, "graph"))
        self.log = CommitLog(self.store, main_of(self.store))

    # Processes

    def start(self, address: str = "") -> Runner:
        """One more process, embedded or a coordinator's writer; opening recovers what others left."""
        self.acting = Process("this machine", next(self.numbers), "1")
        name = str(Incarnation.new(address)) if address else EMBEDDED
        store = FaultyStore(self.store)
        graph = Graph(open_branch(cast(ObjectStore, store)), read_only=False, owner=name)
        runner = Runner(self.acting, store, graph, name)
        self.runners.append(runner)
        return runner

    def start_and_die(self, address: str, point: Point) -> None:
        """A process dies at a point while it opens the graph; if it does not come there, it ends as well as it can."""
        self.acting = Process("this machine", next(self.numbers), "1")
        store = FaultyStore(self.store)
        name = str(Incarnation.new(address)) if address else EMBEDDED
        with dying_at(store, point), contextlib.suppress(TableDrift):
            Graph(open_branch(cast(ObjectStore, store)), read_only=False, owner=name).close()
        if store.is_dead:
            self.known_dead.add(self.acting)

    def stop(self, runner: Runner) -> None:
        """A process ends as it should."""
        self.runners.remove(runner)
        self.acting = runner.process
        runner.graph.close()

    def bury(self, runner: Runner, *, is_noticed: bool) -> None:
        """A process has died; its threads end without having done any more."""
        self.runners.remove(runner)
        assert runner.store.is_dead
        with contextlib.suppress(Crashed, OmnirayError):
            runner.graph.close()
        if is_noticed:
            self.known_dead.add(runner.process)
        else:
            self.missing.append(runner.process)

    def notice(self) -> None:
        """Who was believed to be slow for the longest time is taken for dead."""
        if self.missing:
            self.known_dead.add(self.missing.pop(0))

    @contextlib.contextmanager
    def at(self, runner: Runner, point: Point, do: Callable[[], None], nth: int = 1) -> Iterator[None]:
        """Do something the nth time that this process, and no other, is at a point."""
        reached = itertools.count(1)

        def act() -> None:
            if runner.is_here() and next(reached) == nth:
                do()

        with armed({point: Action(act)}):
            yield

    # What is known of the line

    def newest(self) -> CommitObject:
        found = self.log.newest_listed()
        assert found is not None
        return found

    def refusal_of(self, runner: Runner) -> type[OmnirayError] | None:
        """How a write of this process must fail as the line is now; None if it must not."""
        held_by = self.newest().owner
        if held_by == runner.owner:
            return None
        if runner.owner != EMBEDDED:
            return Fenced
        return None if Incarnation.parse(held_by).process in self.known_dead else LineOwned

    def has_remains(self) -> bool:
        """Whether there is something of a process that died."""
        sidecars = Sidecars(self.store)
        return not {one.process for one in sidecars.read_all(sidecars.listed())} <= {r.process for r in self.runners}

    def is_shared(self) -> bool:
        return self.newest().owner == EMBEDDED

    def actors(self) -> list[str]:
        """The writes in the line, oldest first."""
        line = reversed(self.log.down_to(self.newest(), 1))
        return [commit.actor for obj in line for commit in obj.commits if commit.kind != CREATION]

    # What happens

    def lands(self, *deeds: Deed) -> None:
        """Say that deeds are in the line now, in this order."""
        self.landed += deeds
        for deed in deeds:
            deed.effect(self.rows)
        line = reversed(self.log.down_to(self.newest(), 1))
        self.commit_ids = [c.commit_id for obj in line for c in obj.commits if c.kind != CREATION]
        assert self.actors() == [deed.actor for deed in self.landed]

    def attempt(self, runner: Runner, deed: Deed) -> OmnirayError | None:
        """Let a process write; what it was refused with, if it was."""
        self.acting = runner.process
        try:
            deed.ask(runner.graph)
        except OmnirayError as refused:
            return refused
        runner.catch_up()
        return None

    def die_putting(self, runner: Runner, deed: Deed) -> None:
        """Let a process die while its put is on its way; one that is refused before that lives on."""
        log = runner.graph._branch.log

        def send(obj: CommitObject) -> Answer:
            if not any(commit.actor == deed.actor for commit in obj.commits):
                return CommitLog.put(log, obj)
            self.on_their_way.append((obj, deed))
            return runner.store.die()

        log.put = send  # type: ignore[method-assign]
        with contextlib.suppress(Crashed):
            self.attempt(runner, deed)
        del log.put

    def arrive(self) -> None:
        """A put comes to the store, long after whoever sent it has died."""
        obj, _ = self.on_their_way.pop()
        self.store.put_if_absent(self.log.path(obj.seq), encode(obj))

    # What must hold

    def check_rows(self, runner: Runner) -> None:
        assert read_rows(runner.graph.snapshot().table) == self.rows

    def check_past(self, runner: Runner, index: int) -> None:
        """A commit of the past shows what the graph held then."""
        found = runner.graph.snapshot(at=self.commit_ids[index])
        assert read_rows(found.table) == after(self.landed[: index + 1])

    def check_line(self) -> None:
        """The newest object pins as many rows as there are, and the line is one."""
        newest = self.newest()
        assert {key.partition(":")[2]: pin.rows for key, pin in newest.pins.items()} == {
            name: len(rows) for name, rows in self.rows.items()
        }
        line = self.log.down_to(newest, newest.seq - 1)
        assert all(unlawful(older, younger) is None for younger, older in itertools.pairwise(line))

    def check_recovered(self) -> None:
        """Nothing is left of a process that is known to be dead."""
        sidecars = Sidecars(self.store)
        assert not {one.process for one in sidecars.read_all(sidecars.listed())} & self.known_dead

    def end(self) -> None:
        """Let everybody go, heal, and hold everything against the model."""
        try:
            for runner in list(self.runners):
                self.stop(runner)
            while self.missing:
                self.notice()
            last = self.start()
            if not self.is_shared():
                last.graph.recover(take_over=True)
            self.check_rows(last)
            for index in range(0, len(self.commit_ids), 4):
                self.check_past(last, index)
            self.stop(last)
            self._check_store()
        finally:
            self.discard()

    def _check_store(self) -> None:
        assert list(self.store.names("__recovery")) == []
        plain = {name: lance.dataset(f"{self.store.uri}/{path}") for name, path in TABLES.items()}
        assert read_rows(lambda name: plain[name].to_table()) == self.rows, "plain readers see the same"
        assert wounds(self.store) == []
        told = [one.operation_id for obj in self.log.down_to(self.newest(), 1) for one in obj.recoveries]
        assert sorted(told) == sorted(one.operation_id for one in audit.recorded(self.store))
        assert len(set(told)) == len(told)

    def discard(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    # A foreign writer

    def write_behind_our_back(self, name: str, age: int) -> None:
        """Append a person with plain Lance."""
        foreign.write(self.store, foreign.people(name, age=age))

    def is_a_name_taken(self) -> bool:
        """Whether a foreign writer has the final name of a version that the line pins."""
        line = self.log.down_to(self.newest(), 1)
        pins = (pin for obj in line for pin in obj.introduced().values())
        return any(observe_final_name(self.store, pin) is FinalName.FOREIGN for pin in pins)

    def has_drifted(self) -> bool:
        """Whether a table is in need of repair, in the eyes of a process that has just come."""
        runner = self.start()
        found = runner.graph.repair().found
        with contextlib.suppress(TableDrift):
            self.stop(runner)
        return bool(found)
