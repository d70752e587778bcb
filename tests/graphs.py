"""A small graph for tests of the write path, and its parts with a clock that the test owns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import omniray
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.accepted_schema import read_schema
from omniray.engine.history.branch_head import find_branch
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.line_end import Tip
from omniray.engine.line.sidecar import Sidecar, Sidecars
from omniray.engine.recovery.recoverer import Recoverer
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, ElementType, Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.cache import TableCache
from omniray.engine.tables.storage import NOTHING_REPLACED, TableStorage
from omniray.engine.writer import Writer
from tests.stores import Root

SCHEMA = """node Person {
    name: String @key
    age: I32?
}
node City {
    name: String @key
}
edge Knows: Person -> Person
"""
PERSON, CITY, KNOWS = "node:Person", "node:City", "edge:Knows"

INSERT = "query add($name: String, $age: I32?) { insert Person { name: $name, age: $age } }"
INSERT_CITY = "query add($name: String) { insert City { name: $name } }"
AGE = "query age($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
DELETE = "query remove($name: String) { delete Person where name = $name }"


def new_graph(root: Root, name: str = "graph") -> omniray.Graph:
    return omniray.init(f"{root.uri}/{name}", schema=SCHEMA, storage_options=root.storage_options)


def reopen(graph: omniray.Graph, root: Root, *, read_only: bool = False) -> omniray.Graph:
    return omniray.open(graph.uri, storage_options=root.storage_options, read_only=read_only)


def insert(graph: omniray.Graph, *names: str) -> None:
    for name in names:
        graph.mutate(INSERT, {"name": name, "age": None})


def people(graph: omniray.Graph | omniray.Snapshot) -> list[str]:
    snapshot = graph.snapshot() if isinstance(graph, omniray.Graph) else graph
    found: list[str] = sorted(snapshot.table("Person", ["name"])["name"].to_pylist())
    return found


def files_below(folder: str | Path) -> list[str]:
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@dataclass
class Clock:
    """Time that passes only when somebody sleeps, or the test says so."""

    now_s: float = 0.0
    slept_s: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@dataclass
class Parts:
    """The engine below `Graph`, each part in reach."""

    branch: OpenBranch
    finaliser: Finaliser
    recoverer: Recoverer
    tip: Tip
    writer: Writer
    clock: Clock

    @property
    def store(self) -> ObjectStore:
        return self.branch.store

    @property
    def schema(self) -> Schema:
        return self.branch.schema

    @property
    def log(self) -> CommitLog:
        return self.branch.log

    @property
    def manifest(self) -> Manifest:
        return self.branch.manifest

    @property
    def storage(self) -> TableStorage:
        return self.branch.storage

    @property
    def cache(self) -> TableCache:
        return self.branch.cache

    @property
    def sidecars(self) -> Sidecars:
        return self.branch.sidecars

    @property
    def lineage(self) -> Lineage:
        return self.branch.lineage

    def newest(self) -> CommitObject:
        found = self.log.newest_listed()
        assert found is not None
        return found

    def line(self) -> list[CommitObject]:
        """All objects, oldest first."""
        return list(reversed(self.log.down_to(self.newest(), 1)))

    def commit_ids(self) -> list[str]:
        return [commit.commit_id for obj in self.line() for commit in obj.commits if commit.kind != "Init"]

    def rows(self, table_key: str = PERSON) -> list[str]:
        table = self.cache.open(table_key, self.newest().pins[table_key])
        found: list[str] = sorted(table.scan([ID]).read_all()[ID].to_pylist())
        return found

    def close(self) -> None:
        try:
            self.finaliser.close()
        finally:
            self.writer.close()


def create_store(root: Root, name: str = "graph") -> ObjectStore:
    """A graph's store just after its creation."""
    store = open_store(f"{root.uri}/{name}", root.storage_options)
    create_graph(store, SCHEMA)
    return store


def main_of(store: ObjectStore) -> BranchId:
    """The main branch of the graph in a store."""
    return find_branch(store).branch


def opened(store: ObjectStore, wrap_log: Callable[[CommitLog], CommitLog] = lambda log: log) -> OpenBranch:
    """A graph's main branch, opened as one more process does."""
    head = find_branch(store)
    log = wrap_log(CommitLog(store, head.branch))
    return OpenBranch.at(
        store, head.graph_id, head.branch, read_schema(store, head.newest.schema), head.newest, log=log
    )


def parts_of(
    store: ObjectStore,
    wrap_log: Callable[[CommitLog], CommitLog] = lambda log: log,
    *,
    owner: str = EMBEDDED,
    is_dead: Callable[[Sidecar], bool] = lambda sidecar: False,
) -> Parts:
    """The parts of one more process on a graph; `is_dead` says which operations' owners it takes for dead."""
    return parts_on(opened(store, wrap_log), owner=owner, is_dead=is_dead)


def parts_on(
    branch: OpenBranch,
    *,
    owner: str = EMBEDDED,
    is_dead: Callable[[Sidecar], bool] = lambda sidecar: False,
) -> Parts:
    """The same on a branch that is open."""
    clock = Clock()
    finaliser = Finaliser(branch)
    tip = Tip(branch.log, branch.tip.newest, is_folded=branch.manifest.is_folded, clock=clock, sleep=clock.sleep)
    recoverer = Recoverer(branch, finaliser, owner=owner, is_dead=is_dead)
    writer = Writer(branch, tip, finaliser, recoverer, owner=owner, clock=clock, sleep=clock.sleep, random=lambda: 1.0)
    return Parts(branch, finaliser, recoverer, tip, writer, clock)


def rows_of(type: ElementType, ids: Iterable[str], age: int = 0) -> pa.Table:
    """Rows of a node type, each with its id as name."""
    columns: dict[str, Any] = {ID: list(ids)}
    columns["name"] = columns[ID]
    if "age" in type.arrow.names:
        columns["age"] = pa.array([age] * len(columns[ID]), pa.int32())
    return pa.table(columns, schema=type.arrow)


@dataclass
class Adding:
    """An intent that appends ids to tables, and notes on which versions it was judged."""

    schema: Schema
    ids: Mapping[str, list[str]]
    consults: tuple[str, ...] = ()
    strictly: frozenset[str] = frozenset()
    expected_versions: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    refuse: Callable[[PinnedState], Exception | None] = lambda state: None
    commit_id: str = field(default_factory=new_ulid)
    resubmittable: bool = False
    message: str = ""
    payload_hash: str = ""
    kind: str = "Mutation"
    author: Author = Author("ann")  # noqa: RUF009
    judged: list[dict[str, int]] = field(default_factory=list)

    def resolve(self, state: PinnedState) -> Resolution:
        self.judged.append({key: state.version(key) for key in (PERSON, CITY)})
        for table_key in self.consults:
            state.count(table_key)
        if (refusal := self.refuse(state)) is not None:
            raise refusal
        tables = {
            key: TableWrite(Mode.APPEND, rows_of(self.schema.by_table_key[key], ids), NOTHING_REPLACED)
            for key, ids in self.ids.items()
            if ids
        }
        return Resolution(tables, Affected(nodes=sum(map(len, self.ids.values()))), self.strictly)
