"""A graph on disk with branches, and processes on it that live and die within one real process, one after the other.

Who is dead is up to the world. Phase D goes only as far as somebody asks, so that the same steps give the same end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.process import Process
from omniray.engine.branches import merge_lease
from omniray.engine.commit import attempt, phase_d
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line import owner
from omniray.engine.recovery import recoverer
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes import lease
from tests.kit.faulty_store import Crashed, FaultyStore
from tests.model.branch_model import SCHEMA, TYPES, Row, State

NEVER_S = 1e6
_FIRST = Process("this machine", 0, "1")
_DIR = "/dev/shm" if Path("/dev/shm").is_dir() else None  # deaths here are not the machine's


@functools.cache
def _new_graph() -> tempfile.TemporaryDirectory[str]:
    """A graph just after its creation, to be copied."""
    folder = tempfile.TemporaryDirectory(dir=_DIR)
    create_graph(DirectoryStore(Path(folder.name)), SCHEMA)
    return folder


@dataclass
class World:
    """The graph, the process that works on it, and those that are dead."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory(dir=_DIR))
    known_dead: set[Process] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    acting: Process = _FIRST
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def __post_init__(self) -> None:
        for module in (attempt, lease, merge_lease, owner):
            self.patch.setattr(module, "this_process", lambda: self.acting)
        for module in (recoverer, owner):
            self.patch.setattr(module, "is_known_dead", lambda process: process in self.known_dead)
        self.patch.setattr(recoverer, "SETTLED_S", -1.0)  # whatever was left is seen by the next write that looks
        self.patch.setattr(phase_d, "IDLE_S", NEVER_S)
        self.patch.setattr(phase_d, "FOLD_OBJECTS", 8)
        root = Path(self.folder.name, "graph")
        shutil.copytree(_new_graph().name, root)
        self.disk = DirectoryStore(root)
        self.start()

    def start(self) -> None:
        """A process opens the graph, and recovers what others left on main."""
        self.acting = Process("this machine", next(self.numbers), "1")
        self.store = FaultyStore(self.disk)
        self.graph = Graph(open_branch(cast(ObjectStore, self.store)), read_only=False)

    def restart(self) -> None:
        self.graph.close()
        self.start()

    def dies(self, point: Point, nth: int, act: Callable[[], object]) -> bool:
        """Let the process act and die if it comes to a point; whether it did. Another one takes its place."""
        with armed({point: Action(self._die, nth)}), contextlib.suppress(Crashed):
            act()
            self.see_through()
        if not self.store.is_dead:
            return False
        self.known_dead.add(self.acting)
        self._bury()
        self.start()
        return True

    def _bury(self) -> None:
        """End the threads of a process that died."""
        for one in (*self.graph._others.open, self.graph):
            with contextlib.suppress(Crashed, OmnirayError):
                one.close()

    def _die(self) -> None:
        self.store.die()

    def see_through(self) -> None:
        """Finish Phase D on every open branch, deletes and all."""
        self.graph.flush()
        for one in (self.graph, *self.graph._others.open):
            if not one._is_branch_gone:
                one._finaliser.tidy()

    def rows(self, branch: str) -> dict[str, dict[str, Row]]:
        snapshot = self.graph.snapshot(branch=branch)
        found: dict[str, dict[str, Row]] = {}
        for type in TYPES:
            rows: list[dict[str, Any]] = snapshot.table(type).to_pylist()
            found[type] = {row["id"]: {name: value for name, value in row.items() if name != "id"} for row in rows}
            assert len(found[type]) == len(rows), "an id is there twice"
        return found

    def check(self, branch: str, state: State) -> None:
        assert self.rows(branch) == state.rows, f"the rows of {branch}"

    def check_past(self, branch: str, state: State) -> None:
        """A commit shows for ever what the branch held then."""
        snapshot = self.graph.snapshot(branch=branch, at=state.commit_id)
        for type in TYPES:
            assert set(snapshot.table(type, ["id"])["id"].to_pylist()) == state.rows[type].keys()

    def end(self) -> None:
        self._bury()
        self.patch.undo()
        self.folder.cleanup()
