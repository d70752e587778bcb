"""The kill matrix of branches: each verb, killed with SIGKILL at every point that it reaches, on all branches at once.

After the kill every branch that is there is opened, which heals it. Then all of them hold what they held before the
verb, or all what they hold after it; and what was acknowledged is there. Asked for again under its id, the verb comes
to its end once.

    OMNIRAY_KILL=branch.after_mark@1 pytest tests/recovery/test_branch_kills.py -k 'delete and disk'
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import lance
import pytest

from omniray.engine.base.failpoints import Point
from omniray.engine.graph import Graph
from omniray.engine.history.branch_head import find_branch
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import FOLDER as COMMITS
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import unlawful
from omniray.engine.line.sidecar import FOLDER as SIDECARS
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.version_names import BRANCHES, STAGED, own_path
from tests.graphs import new_graph
from tests.kit.s3server import running_server
from tests.recovery.branch_scenarios import (
    OF_BRANCHES,
    VERBS,
    Verb,
    World,
    count_on_branches,
    die_on_branches,
    open_root,
    prepare,
)
from tests.recovery.matrix import S3, Disk, Ground
from tests.recovery.rows import TABLES, read_rows
from tests.recovery.scenarios import Kill
from tests.recovery.zygote import KILLED, Zygote, zygote
from tests.stores import Root

TORTURE = "OMNIRAY_TORTURE" in os.environ
STORES = ("disk", "s3")
REPLAYED = os.environ.get("OMNIRAY_KILL", "")

pytestmark = pytest.mark.timeout(3600 if TORTURE else 300)


@dataclass
class Worlds:
    """A graph with branches that is copied for each kill."""

    ground: Ground
    parent: Zygote
    template: Root
    world: World


@pytest.fixture(scope="module")
def parent() -> Iterator[Zygote]:
    with zygote() as found:
        yield found


def _prepared(ground: Ground, parent: Zygote) -> Worlds:
    root = ground.new()
    with new_graph(root) as graph:
        return Worlds(ground, parent, root, prepare(graph))


@pytest.fixture(scope="module")
def on_disk(parent: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return _prepared(Disk(str(tmp_path_factory.mktemp("branches"))), parent)


@pytest.fixture(scope="module")
def on_s3(parent: Zygote) -> Iterator[Worlds]:
    with running_server() as server:
        server.create_bucket("branches")
        yield _prepared(S3(server, "branches"), parent)


def _kills(verb: Verb, reached: Mapping[Point, int]) -> list[Kill]:
    every = [Kill(verb.name, point, nth) for point, times in reached.items() for nth in range(1, times + 1)]
    short = [doom for doom in every if doom.nth == 1]
    return [doom for doom in (every if TORTURE else short) if REPLAYED in ("", f"{doom.point}@{doom.nth}")]


@pytest.mark.parametrize(
    ("name", "store"),
    [(verb.name, store) for store in STORES for verb in VERBS.values() if TORTURE or store == "disk" or verb.on_s3],
)
def test_whatever_is_killed_all_branches_are_whole(
    name: str, store: str, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """Fault: SIGKILL. Expectation: all branches before or after the verb, and after it once it is asked for again."""
    worlds: Worlds = request.getfixturevalue(f"on_{store}")
    verb = VERBS[name]
    reached = _reached(worlds, verb)
    failures, killed = [], 0
    for doom in _kills(verb, reached):
        try:
            killed += _judge(worlds, verb, doom)
        except Exception as error:
            failures.append(f"{doom} on {store}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} states are not whole:\n" + "\n".join(failures)
    record_property("states", killed)


def test_no_point_of_the_verbs_of_branches_is_left_out(on_disk: Worlds) -> None:
    on_s3 = {point for verb in VERBS.values() if verb.on_s3 for point in _reached(on_disk, verb)}
    assert on_s3 >= OF_BRANCHES, "both stores have the verbs that reach these points"


def _reached(worlds: Worlds, verb: Verb) -> Mapping[Point, int]:
    root = worlds.ground.copy(worlds.template)
    ended = worlds.parent.run(count_on_branches, verb.name, root)
    assert ended.exit_code == 0, f"{verb.name} did not come to its end: {ended}"
    (reached,) = ended.reports
    found: Mapping[Point, int] = reached
    return found


def _judge(worlds: Worlds, verb: Verb, doom: Kill) -> bool:
    root = worlds.ground.copy(worlds.template)
    ended = worlds.parent.run(die_on_branches, doom, root)
    assert ended.exit_code == KILLED or (ended.exit_code == 0 and doom.nth > 1), f"was not killed: {ended}"
    store = worlds.ground.store(root)
    after, halfway = copy.deepcopy(worlds.world), copy.deepcopy(worlds.world)
    verb.effect(after)
    if verb.halfway is not None:
        verb.halfway(halfway)
    with open_root(root) as graph:
        _open_all(graph)
        graph.recover()
        healed = _world(graph)
        assert healed in (worlds.world, halfway, after), (
            f"neither before nor after: {_differences(healed, worlds.world, after)}"
        )
        assert not ended.reports or healed == after, "it was acknowledged and is not there"
    _check_traces(store)
    with open_root(root) as graph:
        verb.ask(graph)
        assert _world(graph) == after, f"asked for again: {_differences(_world(graph), after, after)}"
        for number, branch in enumerate(sorted(after)):
            graph.load([{"type": "City", "data": {"name": f"next-{number}"}}], branch=branch)
            after[branch]["City"][f"next-{number}"] = None
    _check_traces(store)
    with Graph(open_branch(store), read_only=True) as graph:
        assert _world(graph) == after
    _check_plain(store, after)
    return ended.exit_code == KILLED


def _open_all(graph: Graph) -> None:
    for branch in graph.branches():
        graph.history(1, branch=branch.name)


def _world(graph: Graph) -> World:
    return {one.name: read_rows(graph.snapshot(branch=one.name).table) for one in graph.branches()}


def _differences(found: World, before: World, after: World) -> str:
    names = [name for name in found.keys() | after.keys() if found.get(name) not in (before.get(name), after.get(name))]
    return f"branches {sorted(found)}; rows of {names}: {[found.get(name) for name in names]}"


def _check_traces(store: ObjectStore) -> None:
    """Every line is one, no deletion and no operation is half done, and no staged manifest is left."""
    newest = find_branch(store).newest
    assert [name for name, binding in newest.bindings.items() if binding.deleting] == []
    live = {newest.line, *(binding.ulid for binding in newest.bindings.values())}
    pinned: set[str] = set()
    for folder in store.names(COMMITS):
        ulid = folder.rstrip("/")
        log = CommitLog(store, BranchId(ulid, ulid))
        head = log.newest()
        assert head is not None
        assert head.closed == (ulid not in live), f"line {ulid}"
        line = log.down_to(head, 1)
        assert line[-1].seq == 1
        for younger, older in itertools.pairwise(line):
            assert unlawful(older, younger) is None
        pinned |= {own_path(pin, newest.line) for obj in line for pin in obj.pins.values()}
    assert list(store.names(SIDECARS)) == [], "sidecars are left"
    staged = [
        file.path
        for table in TABLES.values()
        for folder in (STAGED, BRANCHES)
        for file in store.files(f"{table}/{folder}")
        if file.path.endswith(".manifest") and (folder == BRANCHES or file.path not in pinned)
    ]
    assert [path for path in staged if path not in pinned] == [], "manifests of what did not land are left"


def _check_plain(store: ObjectStore, world: World) -> None:
    """Plain Lance sees main, and nothing of other branches."""
    plain = {
        name: lance.dataset(f"{store.uri}/{path}", storage_options=store.lance_options) for name, path in TABLES.items()
    }
    assert read_rows(lambda name: plain[name].to_table()) == world[MAIN]
