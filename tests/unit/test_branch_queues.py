"""The table queues of many branches in one process: opened when they are asked for, forgotten when they are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import omniray
from omniray.coordinator.actors.branch_queues import BranchQueues, _Kept
from omniray.coordinator.actors.cluster import Storage
from omniray.coordinator.actors.opener import Opener
from omniray.coordinator.actors.queue_actor import QueuesActor
from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.door.questions import Existing, Scan
from omniray.coordinator.door.queue_answers import decode_dropped, decode_found
from omniray.coordinator.door.queue_requests import encode_drop, encode_read
from omniray.engine.base.errors import BranchGone, StorageError
from omniray.engine.commit.staging import Base
from omniray.engine.history.open_branch import OpenBranch, open_branch
from omniray.engine.schema.types import ID
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.cache import KnownIds
from tests.coordination import TIMEOUT_S
from tests.graphs import PERSON, Clock, create_store, main_of
from tests.stores import Root

SIDE = "side"


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    """A graph with ann, and a branch with bob, too."""
    store = create_store(disk)
    with omniray.open(store.uri) as graph:
        graph.load([{"name": "ann"}], type="Person")
        graph.create_branch(SIDE)
        graph.load([{"name": "bob"}], type="Person", branch=SIDE)
    return store


def opener_of(store: ObjectStore) -> Opener:
    return Opener(Storage(store.uri, None, main_of(store).ulid))


def line_of(store: ObjectStore, name: str = SIDE) -> str:
    return open_branch(store, name).branch.ulid


class Branches:
    """Queues of branches that are opened as the test says."""

    def __init__(self, store: ObjectStore) -> None:
        self.clock, self.slow, self.gate = Clock(), set[str](), threading.Event()
        self.waiting = threading.Event()
        self.opened: list[str] = []
        self._opener = opener_of(store)
        self.queues = BranchQueues(self._open, idle_s=10.0, clock=self.clock)

    def _open(self, line: str) -> OpenBranch:
        self.opened.append(line)
        if line in self.slow:
            self.waiting.set()
            assert self.gate.wait(TIMEOUT_S)
        return self._opener.opened(line)


@pytest.fixture
def branches(store: ObjectStore) -> Iterator[Branches]:
    branches = Branches(store)
    yield branches
    branches.queues.close()


def people(queues: TableQueues, store: ObjectStore, name: str) -> list[str]:
    newest = open_branch(store, name).tip.newest
    (rows,) = queues.read(Base.on(newest, newest), [Scan(queues.schema.by_table_key[PERSON], (ID,))])
    found: list[str] = sorted(rows[ID].to_pylist())
    return found


def test_each_branch_has_queues_of_its_own_which_are_opened_once(store: ObjectStore, branches: Branches) -> None:
    for _ in range(2):
        for name, expected in (("main", ["ann"]), (SIDE, ["ann", "bob"])):
            with branches.queues.of(line_of(store, name)) as queues:
                assert people(queues, store, name) == expected
    assert branches.opened == [main_of(store).ulid, line_of(store)]


def test_a_branch_that_is_slow_to_open_holds_no_other_up(store: ObjectStore, branches: Branches) -> None:
    branches.slow.add(line_of(store))

    def use() -> None:
        with branches.queues.of(line_of(store)):
            pass

    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(use) for _ in range(12)]
        assert branches.waiting.wait(TIMEOUT_S)
        with branches.queues.of(main_of(store).ulid) as queues:
            assert people(queues, store, "main") == ["ann"]
        assert not any(one.done() for one in slow)
        branches.gate.set()
        for one in slow:
            one.result(TIMEOUT_S)
    assert branches.opened.count(line_of(store)) == 1


def test_a_branch_that_nobody_asks_for_is_forgotten_and_one_that_is_used_is_not(
    store: ObjectStore, branches: Branches
) -> None:
    main, side = main_of(store).ulid, line_of(store)
    with branches.queues.of(side):
        pass
    branches.clock.now_s += 9.0
    with branches.queues.of(main):
        assert branches.queues.lines == sorted([main, side])
    branches.clock.now_s += 9.0
    with branches.queues.of(main):
        closing = [one for one in threading.enumerate() if one.name == "omniray-let-go"]
        for thread in closing:
            thread.join(TIMEOUT_S)
        branches.clock.now_s += 99.0
        with branches.queues.of(side):
            assert branches.queues.lines == sorted([main, side]), "main is in use"
    assert branches.opened == [side, main, side]


def test_queues_that_are_let_go_while_they_are_used_are_closed_after_that(
    store: ObjectStore, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[TableQueues] = []
    close = TableQueues.close
    monkeypatch.setattr(TableQueues, "close", lambda queues: (closed.append(queues), close(queues))[1])
    with branches.queues.of(line_of(store)) as queues:
        branches.queues.let_go(line_of(store))
        assert closed == []
        assert people(queues, store, SIDE) == ["ann", "bob"]
        with branches.queues.of(line_of(store)) as again:
            assert again is not queues
    assert closed == [queues]
    branches.queues.let_go("no such line")


def test_a_branch_that_could_not_be_opened_is_tried_again(
    store: ObjectStore, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(line: str) -> OpenBranch:
        raise StorageError("no route to the store")

    with monkeypatch.context() as failing:
        failing.setattr(branches.queues, "_opened", fail)
        with pytest.raises(StorageError), branches.queues.of(line_of(store)):
            pass
    assert branches.queues.lines == []
    with branches.queues.of(line_of(store)) as queues:
        assert people(queues, store, SIDE) == ["ann", "bob"]


def test_queues_that_could_not_be_opened_and_were_let_go_meanwhile_forget_none_but_themselves(
    store: ObjectStore, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the ones that were opened after them would never be closed."""
    line, opened = line_of(store), branches._opener.opened

    def fail_at_first(line: str) -> OpenBranch:
        if len(branches.opened) == 1:
            raise StorageError("the store is away")
        return opened(line)

    def ask() -> None:
        with branches.queues.of(line):
            pass

    monkeypatch.setattr(branches._opener, "opened", fail_at_first)
    branches.slow = {line}
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(ask)
        assert branches.waiting.wait(TIMEOUT_S)
        branches.queues.let_go(line)
        branches.slow = set()
        opened_since = branches.queues._kept[line] = _Kept(queues=None)
        branches.gate.set()
        with pytest.raises(StorageError):
            failing.result(TIMEOUT_S)
    assert branches.queues._kept[line] is opened_since


def test_a_branch_knows_the_ids_that_it_began_with_without_reading_them(
    store: ObjectStore, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied from the queues of its parent."""
    with omniray.open(store.uri) as graph:
        graph.create_branch("new")
        graph.create_branch("newer", SIDE)
    with branches.queues.of(main_of(store).ulid) as queues:
        assert known_people(queues, store, "main") == ["ann"]
    reads: list[object] = []
    read = KnownIds.read
    monkeypatch.setattr(KnownIds, "read", lambda table: (reads.append(table), read(table))[1])
    with branches.queues.of(line_of(store, "new")) as queues:
        assert known_people(queues, store, "new") == ["ann"]
    assert reads == []
    with branches.queues.of(line_of(store, "newer")) as queues:
        assert known_people(queues, store, "newer") == ["ann", "bob"], "nobody has these"
    assert len(reads) == 1


def known_people(queues: TableQueues, store: ObjectStore, name: str) -> list[str]:
    newest = open_branch(store, name).tip.newest
    asked = Existing(queues.schema.by_table_key[PERSON], pa.array(["ann", "bob", "zoe"]))
    (rows,) = queues.read(Base.on(newest, newest), [asked])
    found: list[str] = sorted(rows[ID].to_pylist())
    return found


# The actor


def test_an_actor_answers_for_the_branch_that_a_message_names(store: ObjectStore) -> None:
    actor = QueuesActor(Storage(store.uri, None, main_of(store).ulid))
    for name, expected in (("main", ["ann"]), (SIDE, ["ann", "bob"])):
        branch = open_branch(store, name)
        newest = branch.tip.newest
        questions = [Scan(branch.schema.by_table_key[PERSON], (ID,))]
        found = decode_found(actor.read(encode_read(Base.on(newest, newest), questions)), questions)
        assert isinstance(found, list)
        assert sorted(found[0][ID].to_pylist()) == expected
    actor.let_go(line_of(store))
    assert actor._branches.lines == [main_of(store).ulid]


def test_an_actor_that_is_asked_for_a_branch_that_was_deleted_says_so(store: ObjectStore) -> None:
    line = line_of(store)
    with omniray.open(store.uri) as graph:
        graph.delete_branch(SIDE)
    actor = QueuesActor(Storage(store.uri, None, main_of(store).ulid))
    assert isinstance(decode_dropped(actor.drop(encode_drop(line, [PERSON]))), BranchGone)
    assert actor._branches.lines == []
