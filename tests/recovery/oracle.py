"""The oracle: what must hold of a graph after a process was killed and another one has opened it.

    before    what is in the line at the kill stays, what was acknowledged is among it
    after     nothing more has come in, every table holds exactly what the history tells, by whatever way it is read
    traces    no sidecar, no staging manifest, one audit row for each operation that had a sidecar
    next      the next write works
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import lance

from omniray.engine import audit
from omniray.engine.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.errors import NotFound
from omniray.engine.graph import Graph
from omniray.engine.heal import RecoveryReport
from omniray.engine.line import CommitObject, Recovery, unlawful
from omniray.engine.manifest import LineageEntry, Manifest
from omniray.engine.recovery import RECORDED_AS, Decision
from omniray.engine.repair import DISCARDED
from omniray.engine.sidecar import STAGING, Sidecar, Sidecars
from omniray.engine.store import ObjectStore
from tests.recovery.rows import TABLES, Deed, after, insert, read_rows

NEXT = insert("next", "next@one", 1)
BIRTH = "Init"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a kill left, as a reader sees it who heals nothing."""

    born: bool
    actors: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    sidecars: tuple[Sidecar, ...] = ()


def observe(store: ObjectStore) -> Evidence:
    """Look at a graph without writing anything; a read-only open works whatever has happened."""
    sidecars = Sidecars(store)
    left = tuple(sidecars.read_all(sidecars.listed()))
    try:
        with Graph(store, read_only=True) as graph:
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
    with Graph(store, read_only=False) as graph:
        assert graph.recovered == RecoveryReport(), "one opening heals everything"
        _check_rows(graph, store, landed)
        _check_line(graph, store, landed)
        _check_traces(graph, store, at_kill)
        NEXT.ask(graph)
    with Graph(store, read_only=True) as graph:
        _check_rows(graph, store, [*landed, NEXT])
        _check_line(graph, store, [*landed, NEXT])
        _check_traces(graph, store, at_kill)


def _actors(history: Sequence[LineageEntry]) -> tuple[str, ...]:
    """The actors of all commits but the birth, oldest first."""
    return tuple(entry.actor for entry in reversed(history) if entry.kind != BIRTH)


def _check_rows(graph: Graph, store: ObjectStore, landed: Sequence[Deed]) -> None:
    """The graph, plain Lance and time travel agree with the history; every write is in whole and once."""
    snapshot = graph.snapshot()
    expected = after(landed)
    assert read_rows(snapshot.table) == expected
    plain = {name: _plain(store, path) for name, path in TABLES.items()}
    assert read_rows(lambda name: plain[name].to_table()) == expected, "plain Lance sees other rows"
    for name, dataset in plain.items():
        pinned = (snapshot.versions[_key(name)], snapshot.count(name))
        assert (dataset.version, dataset.count_rows()) == pinned, f"plain Lance sees another version of {name}"
    for entry, count in zip(graph.history(), range(len(landed), -1, -1), strict=True):
        assert read_rows(graph.snapshot(at=entry.commit_id).table) == after(landed[:count]), f"at {entry.commit_id}"


def _plain(store: ObjectStore, path: str) -> lance.LanceDataset:
    return lance.dataset(f"{store.uri}/{path}", storage_options=store.lance_options)


def _key(type_name: str) -> str:
    return f"{TABLES[type_name].partition('s/')[0]}:{type_name}"


def _check_line(graph: Graph, store: ObjectStore, landed: Sequence[Deed]) -> None:
    """The line is one, and `__manifest` has folded all that it tells."""
    log, manifest = CommitLog(store, MAIN_BRANCH), Manifest(store, MAIN)
    newest = log.newest_listed()
    assert newest is not None
    line = log.down_to(newest, 1)
    for younger, older in zip(line, line[1:], strict=False):
        assert unlawful(older, younger) is None
    history = graph.history()
    assert _actors(history) == tuple(deed.actor for deed in landed)
    assert [entry.parent for entry in history] == [*(entry.commit_id for entry in history[1:]), ""]
    unfolded = [obj for obj in line if obj.seq > manifest.folded_through()]
    assert [obj for obj in unfolded if obj.commits or obj.recoveries] == [], "what the line tells is not folded"
    assert list(manifest.commits()) == history
    assert {k: p.version for k, p in manifest.pins_at(newest.seq).items()} == _versions(newest)
    in_line = [commit.commit_id for obj in line for commit in reversed(obj.commits)]
    assert in_line == [entry.commit_id for entry in history][: len(in_line)]


def _versions(obj: CommitObject) -> dict[str, int]:
    return {key: pin.version for key, pin in obj.pins.items()}


def _check_traces(graph: Graph, store: ObjectStore, at_kill: Evidence) -> None:
    """Nothing is left of what was killed but one audit row for each operation that had begun."""
    assert list(store.names("__recovery")) == []
    assert _staged(store, at_kill) == [], "staging manifests are left"
    recoveries = graph.recoveries()
    recorded = audit.recorded(store)
    assert sorted(map(_id, recorded)) == sorted(map(_id, recoveries)), "audit and line differ"
    assert [one for one, count in Counter(map(_id, recorded)).items() if count > 1] == [], "recorded twice"
    due = {sidecar.operation_id for sidecar in at_kill.sidecars if sidecar.kind != STAGING} | set(at_kill.recovered)
    by_repair = {_id(one) for one in recorded if one.recovery_kind == DISCARDED}
    assert set(map(_id, recorded)) - by_repair == due - by_repair, "one audit row for each operation that was left"
    landed = {entry.op_id for entry in graph.history()}
    forward = {_id(one) for one in recorded if one.recovery_kind == RECORDED_AS[Decision.ROLL_FORWARD]}
    assert forward == due & landed, "what landed is rolled forward, and the rest back"


def _staged(store: ObjectStore, at_kill: Evidence) -> list[str]:
    """The staging manifests of operations that landed or had a sidecar; those that had none yet are the sweep's."""
    log = CommitLog(store, MAIN_BRANCH)
    newest = log.newest_listed()
    assert newest is not None
    marks = {pin.transaction for obj in log.down_to(newest, 1) for pin in obj.pins.values()}
    marks |= {table.transaction_uuid for sidecar in at_kill.sidecars for table in sidecar.tables if sidecar.kind != STAGING}
    folders = [f"{path}/_versions" for path in TABLES.values()]
    names = [f"{folder}/{name}" for folder in folders for name in store.names(folder) if ".manifest-" in name]
    return [name for name in names if any(mark.encode() in (store.get(name) or b"") for mark in marks)]


def _id(recovery: Recovery) -> str:
    return recovery.operation_id
