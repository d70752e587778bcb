"""The door: clients without a Ray find the coordinator by the graph alone, and outlive it.

Each test tells its fault, what is expected, and its oracle. Clients are real processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

import omniray
from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.hosting import QUEUE_OWNERS_MAX
from omniray.coordinator.client import background
from omniray.coordinator.client.link import Link
from omniray.coordinator.client.wire import Wire
from omniray.engine.base.errors import LineOwned, Unreachable, Withdrawn
from omniray.engine.base.failpoints import Point
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import EMBEDDED
from tests.commands import environment, run
from tests.graphs import INSERT
from tests.processes.crew import Member
from tests.ray.callers import callers, people_of
from tests.ray.drivers import TORTURE
from tests.ray.world import TIMEOUT_S, Served, add, served
from tests.stores import Root

RESTARTS = 6 if TORTURE else 2
CROWD = 16 if TORTURE else 3

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def trio() -> Iterator[Sequence[Member]]:
    """Three client processes."""
    with callers(3) as members:
        yield members


@pytest.fixture(scope="module")
def crowd(trio: Sequence[Member]) -> Iterator[Sequence[Member]]:
    """The clients of a rolling restart."""
    with callers(CROWD - len(trio)) as others:
        yield [*trio, *others]


@pytest.fixture(scope="module")
def caller(trio: Sequence[Member]) -> Member:
    return trio[0]


# Finding the successor


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_a_client_that_connects_just_after_the_publisher_was_killed_finds_its_successor(
    disk: Root, ray_address: str, caller: Member, after_s: float
) -> None:
    """Fault: SIGKILL of the publisher, `after_s` before a process connects that was never connected before.

    Expected: it waits for the successor on the same Ray. Oracle: address and epoch, and that no coordinator has begun
    in the background: on a busy machine one may be started, which finds at the door that it is not needed.
    """
    with served(disk, ray_address) as graph:
        before = graph.newest()
        os.kill(graph.publisher_pid, signal.SIGKILL)
        time.sleep(after_s)
        caller.ask("connect", graph.uri)
        _, address, epoch = caller.ask("status", graph.uri)
        assert (address, epoch) == (ray_address, before.epoch + 1)
        assert caller.ask("add", graph.uri, "found") in [one.commit_id for obj in graph.line() for one in obj.commits]
        with graph.open(read_only=True) as opened:
            log = background.log_of(opened.graph_id)
        assert not log.exists() or '"joined":false' not in log.read_text()


def test_a_write_in_doubt_is_asked_for_until_its_time_is_over(graph: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the publisher is killed after a put, and the client can't find its successor at its first look.

    Expected: it looks again; that the old door is closed says nothing of the write. Oracle: the first outcome.
    """
    find = Link.found_again

    def lost(link: Link, wire: Wire, timeout_s: float) -> None:
        monkeypatch.setattr(Link, "found_again", find)
        raise Unreachable("not found at the first look")

    with graph.connect() as client:
        add(client, "before-the-doubt")
        monkeypatch.setattr(Link, "found_again", lost)
        graph.arm(graph.place.publisher, f"{Point.C_AFTER_PUT}=kill")
        assert add(client, "in-doubt").repeated
    assert graph.people().count("in-doubt") == 1


def test_a_client_has_no_ray_and_its_coordinator_tells_whoever_watches_that_it_is_well(
    graph: Served, caller: Member
) -> None:
    """No fault. Expected: a client's process never imports Ray; health and metrics need no credential."""
    caller.ask("connect", graph.uri)
    caller.ask("add", graph.uri, "without-ray")
    assert not caller.ask("has_loaded", "ray")
    url = caller.ask("url", graph.uri)
    for path in ("/healthz", "/readyz", "/metrics"):
        with urlopen(url + path, timeout=TIMEOUT_S) as answer:
            assert answer.status == 200
            assert answer.read()


def test_work_that_a_client_sends_to_ray_needs_a_ray_that_its_user_named(
    graph: Served, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a process that has joined no Ray. Expected: the address is the user's or nobody's, not the graph's."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with callers(1) as (one,):
        with pytest.raises(omniray.InputError, match="part of no Ray cluster"):
            one.ask("join_ray", graph.uri, None)
        with pytest.raises(omniray.StorageError, match="nothing listens there"):
            one.ask("join_ray", graph.uri, "127.0.0.1:9")
        assert one.ask("join_ray", graph.uri, ray_address) == ray_address
        assert one.ask("join_ray", graph.uri, None) == ray_address, "it stays in the one that it has joined"


def test_a_coordinator_that_is_taken_down_through_its_door_leaves_no_actor(disk: Root, ray_address: str) -> None:
    """No fault. Oracle: Ray's own list of names, on a Ray that goes on."""
    with served(disk, ray_address) as graph, graph.connect() as client:
        add(client, "ann")
        place = graph.place
        client.down()
        names = (place.publisher, place.reconciler, *(place.queues(number) for number in range(QUEUE_OWNERS_MAX)))
        graph.wait_until(lambda: not any(map(cluster.find, names)), "all actors have ended")


# Outcomes


@pytest.mark.parametrize("is_killed", [False, True], ids=["the same publisher", "its successor"])
def test_a_write_that_was_told_as_not_committed_never_lands_unless_it_is_sent_again(
    disk: Root, ray_address: str, trio: Sequence[Member], tmp_path: Path, is_killed: bool
) -> None:
    """Fault: a try that has begun is held up before it is sent; meanwhile another process asks for its outcome, and
    the publisher may die.

    Expected: "not committed" stays true, so the try ends with `Withdrawn`; the write sent anew lands. Oracle: a scan.
    """
    writer, asker, _ = trio
    with served(disk, ray_address) as graph:
        for one in (writer, asker):
            one.ask("connect", graph.uri)
        txn_id = new_ulid()
        writer.tell("add_held", graph.uri, "held", txn_id, tmp_path)
        graph.wait_until((tmp_path / "begun").exists, "the try has begun")
        assert asker.ask("outcome", graph.uri, txn_id) is False
        if is_killed:
            os.kill(graph.publisher_pid, signal.SIGKILL)
        (tmp_path / "go").touch()
        with pytest.raises(Withdrawn) as told:
            writer.answer()
        assert told.value.facts["txn_id"] == txn_id
        assert graph.people() == []
        assert writer.ask("add", graph.uri, "held", txn_id) == txn_id
        assert asker.ask("outcome", graph.uri, txn_id) is True
        assert graph.people() == ["held"]


# Down, and up again


def test_a_rolling_restart_under_load_loses_and_doubles_nothing(
    disk: Root, ray_address: str, crowd: Sequence[Member], tmp_path: Path
) -> None:
    """Fault: while processes write, the publisher is killed, and the coordinator is taken down and started, in turns.

    Expected: each process goes on with the client that it has. Oracle: every commit once in the line, every row once.
    """
    under_way = tmp_path / "under-way"
    under_way.touch()
    with served(disk, ray_address) as graph:
        for member in crowd:
            member.ask("connect", graph.uri)
        for number, member in enumerate(crowd):
            member.tell("add_while", under_way, graph.uri, f"rolling-{number}")
        for _ in range(RESTARTS):
            begun = graph.newest()
            os.kill(graph.publisher_pid, signal.SIGKILL)
            graph.wait_until(lambda begun=begun: graph.newest().epoch > begun.epoch, "another one takes over")
            graph.wait_until(lambda begun=begun: graph.newest().seq > begun.seq + 2, "writes land")
            graph.down()
            assert graph.newest().owner == EMBEDDED
            graph.host()
        under_way.unlink()
        answered = [member.answer() for member in crowd]
        in_line = Counter(commit.commit_id for obj in graph.line() for commit in obj.commits)
        assert {in_line[commit] for own in answered for commit in own} == {1}
        assert graph.people() == sorted(f"rolling-{m}-{n}" for m, own in enumerate(answered) for n in range(len(own)))


# Forks


# In a process of its own: a fork of one that has threads of Ray would prove nothing.
FORKING = f"""
import os, sys, warnings, omniray
warnings.simplefilter("ignore")  # Lance warns of the fork, whose child here does without it
uri = sys.argv[1]
client = omniray.connect(uri)
client.mutate({INSERT!r}, {{"name": "parent", "age": None}})
child = os.fork()
if child == 0:
    try:
        write = lambda: client.mutate({INSERT!r}, {{"name": "nobody"}})
        load = lambda: client.load([{{"name": "nobody"}}], type="Person")
        for use in (client.status, client.flush, client.recover, write, load):
            try:
                use()
            except omniray.InputError as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("the parent's connection was used")
        client.close()
        with omniray.connect(uri) as own:
            own.mutate({INSERT!r}, {{"name": "child", "age": None}})
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.mutate({INSERT!r}, {{"name": "parent-again", "age": None}})
client.close()
"""


def test_a_forked_child_is_refused_the_clients_of_its_parent_and_may_connect_itself(
    disk: Root, ray_address: str
) -> None:
    """Fault: a fork. Expected: the child gets an error at once, and connects itself; the parent notices nothing."""
    with served(disk, ray_address) as graph:
        command = [sys.executable, "-c", FORKING, graph.uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        assert graph.people() == ["child", "parent", "parent-again"]


# Copies


def test_a_copy_of_a_served_graph_is_refused_by_the_door_of_its_original_until_it_is_taken_over(
    disk: Root, ray_address: str, caller: Member
) -> None:
    """Fault: the files of a graph are copied while a coordinator serves it, its door's record too.

    Expected: a client of the copy is refused by the original's coordinator; after a take-over the copy is written to.
    Oracle: the original's line and rows.
    """
    with served(disk, ray_address) as graph, graph.connect() as client:
        add(client, "before")
        client.flush()
        copy = f"{disk.uri}/copy"
        shutil.copytree(graph.uri, copy)
        untouched = graph.newest()
        with pytest.raises(LineOwned, match="omniray recover --take-over"):
            caller.ask("connect", copy)
        run("recover", copy, "--take-over")
        with omniray.open(copy) as embedded:
            embedded.mutate(INSERT, {"name": "copied", "age": None})
        assert people_of(copy) == ["before", "copied"]
        assert graph.newest() == untouched
        add(client, "after")
        assert graph.people() == ["after", "before"]
