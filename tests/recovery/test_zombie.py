"""A writer that was believed dead and is not: stopped just before its commit, and continued when others have gone on.

`OMNIRAY_TORTURE=1` runs the rounds at full length, on S3 too.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

import omniray
from omniray.engine import writer as writer_module
from omniray.engine.base.errors import Fenced
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import create_store, new_graph, parts_of
from tests.healing import add
from tests.recovery.writers import WHOLE, Child, own, records, rows_of_writes, stop_before_commit, wait_until_stopped
from tests.stores import Root

TORTURE = "OMNIRAY_TORTURE" in os.environ
GRAPHS, ROUNDS = (10, 5) if TORTURE else (1, 2)  # a sweep reads the whole history, so no graph grows old here
COMMITS = 20

pytestmark = pytest.mark.timeout(3600 if TORTURE else 180)


STORES = ("disk", "s3") if TORTURE else ("disk",)


@pytest.fixture(params=list(itertools.product(STORES, range(GRAPHS))), ids=lambda which: "-".join(map(str, which)))
def root(request: pytest.FixtureRequest) -> Root:
    name, _ = request.param
    found: Root = request.getfixturevalue(name)
    new_graph(found).close()
    return found


@pytest.fixture
def store(root: Root) -> ObjectStore:
    return open_store(f"{root.uri}/graph", root.storage_options)


@pytest.fixture
def zombie(root: Root) -> Iterator[Child]:
    child = Child(stop_before_commit, root, context=own)
    yield child
    if child.process.is_alive():
        os.kill(child.pid, signal.SIGCONT)
    assert child.end() == 0


def files_of_tables(store: ObjectStore) -> set[str]:
    """All files of the graph's tables but Lance's hints, which are nobody's."""
    found = (file.path for folder in ("nodes", "edges") for file in store.files(folder))
    return {path for path in found if not path.endswith("_hint.json")}


def stopped(zombie: Child, store: ObjectStore, write: str, owner: str) -> set[str]:
    """Let the zombie begin a write and stop; the files that it has staged."""
    before = files_of_tables(store)
    zombie.pipe.send((write, owner))
    wait_until_stopped(zombie.pid)
    staged = files_of_tables(store) - before
    assert any("/_staged/" in path for path in staged), "Phase B was through"
    return staged


def continued(zombie: Child) -> object:
    os.kill(zombie.pid, signal.SIGCONT)
    return zombie.pipe.recv()


def commits(graph: Graph, number: int) -> list[str]:
    writes = [f"round{number}commit{n}" for n in range(COMMITS)]
    for write in writes:
        graph.load(records(write), actor=write)
    return writes


def test_a_coordinator_s_writer_that_wakes_after_a_take_over_is_fenced_and_changes_nothing(
    root: Root, store: ObjectStore, zombie: Child
) -> None:
    expected: list[str] = []
    for number in range(ROUNDS):
        staged = stopped(zombie, store, f"zombie{number}", "ray://zombie")
        successor = Graph(open_branch(store), read_only=False, owner=str(Incarnation.new("ray://successor")))
        expected += commits(successor, number)
        successor.flush()
        successor._finaliser.tidy()  # else it would come to that while we look
        line, files = successor._branch.log.newest_listed(), set(store.files(""))

        answer = continued(zombie)
        assert isinstance(answer, Fenced)
        assert answer.facts["owner"] == successor._owner
        assert successor._branch.log.newest_listed() == line
        vanished = {file.path for file in files - set(store.files(""))}
        assert {path for path in vanished if not path.startswith("__recovery/")} <= staged
        assert set(store.files("")) <= files, "and nothing new is there"
        assert zombie.ask("close") == "closed"

        successor.close()
        with omniray.open(f"{root.uri}/graph", storage_options=root.storage_options) as graph:
            graph.sweep(older_than_s=0)
            assert not staged & files_of_tables(store)
            assert rows_of_writes(graph.snapshot().table) == dict.fromkeys(expected, WHOLE)
            assert [entry.actor for entry in reversed(graph.history())][1:] == expected
        assert list(store.names("__recovery")) == []


def test_an_embedded_writer_that_wakes_after_a_recovery_rejoins_and_its_caller_notices_nothing(
    root: Root, store: ObjectStore, zombie: Child
) -> None:
    uri, expected = f"{root.uri}/graph", []
    for number in range(ROUNDS):
        stopped(zombie, store, f"zombie{number}", "")
        with omniray.open(uri, storage_options=root.storage_options, grace_s=1e-6) as impatient:
            (taken_for_dead,) = impatient.recoveries(1)
            assert taken_for_dead.recovery_kind == "RolledBack"
        with omniray.open(uri, storage_options=root.storage_options) as graph:
            expected += [*commits(graph, number), f"zombie{number}"]

            commit_id = continued(zombie)
            assert isinstance(commit_id, str)
            assert zombie.ask("close") == "closed"
            assert graph.history(1)[0].commit_id == commit_id
            assert rows_of_writes(graph.snapshot().table) == dict.fromkeys(expected, WHOLE)
            assert [entry.actor for entry in reversed(graph.history())][1:] == expected
            assert len(graph.recoveries()) == number + 1
        assert list(store.names("__recovery")) == []


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_a_writer_that_was_fenced_does_not_go_on_in_its_successor_s_name(
    disk: Root, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin builds on whatever is the newest object: its commit carries the epoch and the owner of another."""
    if not has_guard:
        monkeypatch.setattr(writer_module, "refuse_stranger", lambda owner, newest: None)
    store = create_store(disk)
    first, second = str(Incarnation.new("ray://first")), str(Incarnation.new("ray://second"))
    fenced, successor = parts_of(store, owner=first), parts_of(store, owner=second)
    take_over(fenced.tip, first)
    with armed({Point.C_BEFORE_PUT: Action(lambda: take_over(successor.tip, second), nth=1)}):
        try:
            add(fenced, "zombie")
        except Fenced:
            assert has_guard
    assert successor.rows() == ([] if has_guard else ["zombie"])
    assert successor.newest().owner == second
    fenced.close()
    successor.close()
