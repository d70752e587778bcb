"""The oracle: what must hold of a graph after a process was killed and another one has opened it.

before    what is in the line at the kill stays, what was acknowledged is among it
after     nothing more has come in, every table holds exactly what the history tells, by whatever way it is read
traces    no sidecar, no staged manifest, one audit row for each operation that had a sidecar
next      the next write works
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import lance

from omniray.engine.base.errors import NotFound
from omniray.engine.graph import Graph
from omniray.engine.history import audit
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, unlawful
from omniray.engine.line.sidecar import FOLDER, STAGING, Sidecar, Sidecars
from omniray.engine.reading.snapshot import Snapshot
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.recovery.repair import DISCARDED
from omniray.engine.recovery.rules import RECORDED_AS, Decision
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.version_names import STAGED
from tests.graphs import main_of
from tests.recovery.rows import TABLES, Deed, after, insert, read_rows

NEXT = insert("next", "next@one", 1)
CREATION = "Init"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a kill left, as a reader sees it who heals nothing."""

    is_created: bool
    actors: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    sidecars: tuple[Sidecar, ...] = ()


def observe(store: ObjectStore) -> Evidence:
    """Look at a graph without writing anything; a read-only open works whatever has happened."""
    sidecars = Sidecars(store)
    left = tuple(sidecars.read_all(sidecars.listed()))
    try:
        with Graph(open_branch(store), read_only=True) as graph:
            recovered = tuple(recovery.operation_id for recovery in graph.recoveries())
            return Evidence(True, _actors(graph.history()), recovered, left)
    except NotFound:
        return Evidence(False, sidecars=left)


def check_kill(at_kill: Evidence, acknowledged: Sequence[str], deeds: Sequence[Deed]) -> None:
    """Of all the deeds there may be, the first ones are in the line, those that were acknowledged among them."""
    actors = tuple(deed.actor for deed in deeds)
    assert at_kill.actors == actors[: len(at_kill.actors)], f"the line holds {at_kill.actors} of {actors}"
    lost = set(acknowledged) & set(actors) - set(at_kill.actors)
    assert not lost, f"acknowledged and not in the line: {lost}"


def check_healed(store: ObjectStore, at_kill: Evidence, landed: Sequence[Deed]) -> None:
    """Hold a graph that somebody has opened since the kill against the deeds that must have landed, in order."""
    with Graph(open_branch(store), read_only=False) as graph:
        assert graph.recovered == RecoveryReport(), "one opening heals everything"
        history = graph.history()
        _check_history(history, landed)
        _check_rows(graph.snapshot(), store, landed)
        _check_line(store, history)
        _check_traces(graph, store, at_kill, {entry.op_id for entry in history})
        NEXT.ask(graph)
    with Graph(open_branch(store), read_only=True) as graph:
        _check_history(graph.history(), [*landed, NEXT])
        _check_rows(graph.snapshot(), store, [*landed, NEXT])
        assert read_rows(graph.snapshot(at=history[0].commit_id).table) == after(landed), (
            "the commit before has changed"
        )
        assert list(store.names(FOLDER)) == []


def _actors(history: Sequence[LineageEntry]) -> tuple[str, ...]:
    """The actors of all commits but the creation, oldest first."""
    return tuple(entry.actor for entry in reversed(history) if entry.kind != CREATION)


def _check_history(history: Sequence[LineageEntry], landed: Sequence[Deed]) -> None:
    """The history is one line, and holds every write once."""
    assert _actors(history) == tuple(deed.actor for deed in landed)
    assert [entry.parent for entry in history] == [*(entry.commit_id for entry in history[1:]), ""]


def _check_rows(snapshot: Snapshot, store: ObjectStore, landed: Sequence[Deed]) -> None:
    """The graph and plain Lance agree with the history: every write is in whole and once, or not at all."""
    expected = after(landed)
    assert read_rows(snapshot.table) == expected
    plain = {
        name: lance.dataset(f"{store.uri}/{path}", storage_options=store.lance_options) for name, path in TABLES.items()
    }
    assert read_rows(lambda name: plain[name].to_table()) == expected, "plain Lance sees other rows"
    for name, dataset in plain.items():
        pinned = (snapshot.versions[_key(name)], snapshot.count(name))
        assert (dataset.version, dataset.count_rows()) == pinned, f"plain Lance sees another version of {name}"


def _key(type_name: str) -> str:
    return f"{TABLES[type_name].partition('s/')[0]}:{type_name}"


def _check_line(store: ObjectStore, history: Sequence[LineageEntry]) -> None:
    """The line is one, and `__manifest` has folded all that it tells."""
    manifest = Manifest(store, main_of(store))
    line = _line(store)
    for younger, older in itertools.pairwise(line):
        assert unlawful(older, younger) is None
    folded_through = manifest.folded_through()
    told = [obj for obj in line if obj.seq > folded_through and (obj.commits or obj.recoveries)]
    assert told == [], "what the line tells is not folded"
    assert list(manifest.commits()) == history
    newest = line[0]
    assert {key: pin.version for key, pin in manifest.pins_at(newest.seq).items()} == _versions(newest)
    in_line = [commit.commit_id for obj in line for commit in reversed(obj.commits)]
    assert in_line == [entry.commit_id for entry in history][: len(in_line)]


def _line(store: ObjectStore) -> tuple[CommitObject, ...]:
    """The line as far down as it was not pruned, newest first."""
    log = CommitLog(store, main_of(store))
    newest = log.newest_listed()
    assert newest is not None
    return log.down_to(newest, 1)


def _versions(obj: CommitObject) -> dict[str, int]:
    return {key: pin.version for key, pin in obj.pins.items()}


def _check_traces(graph: Graph, store: ObjectStore, at_kill: Evidence, landed: set[str]) -> None:
    """Nothing is left of what was killed but one audit row for each operation that had begun."""
    assert list(store.names(FOLDER)) == []
    assert _staged(store, at_kill) == [], "staged manifests are left"
    recorded = audit.recorded(store)
    ids = [one.operation_id for one in recorded]
    assert sorted(ids) == sorted(one.operation_id for one in graph.recoveries()), "audit and line differ"
    assert len(ids) == len(set(ids)), "recorded twice"
    by_repair = {one.operation_id for one in recorded if one.recovery_kind == DISCARDED}
    due = {s.operation_id for s in at_kill.sidecars if s.kind != STAGING} | set(at_kill.recovered) - by_repair
    assert set(ids) - by_repair == due, "one audit row for each operation that was left"
    forward = {one.operation_id for one in recorded if one.recovery_kind == RECORDED_AS[Decision.ROLL_FORWARD]}
    assert forward == due & landed, "what landed is rolled forward, and the rest back"


def _staged(store: ObjectStore, at_kill: Evidence) -> list[str]:
    """The staged manifests of operations that landed or had a sidecar; those that had none yet are the sweep's."""
    announced = [table for sidecar in at_kill.sidecars for table in sidecar.tables if sidecar.kind != STAGING]
    marks = {table.transaction_uuid for table in announced}
    marks |= {pin.transaction for obj in _line(store) for pin in obj.pins.values()}
    staged = (file.path for path in TABLES.values() for file in store.files(f"{path}/{STAGED}"))
    return [path for path in staged if path.endswith(".manifest") and path.split("/")[-2] in marks]
