"""The door: clients without a Ray find the coordinator by the graph alone, and outlive it.

Each test tells its fault, what is expected, and its oracle. Clients are real processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
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
from tests.graphs import INSERT, new_graph, people
from tests.processes.crew import Member
from tests.ray.callers import (
    are_over,
    argv,
    callers,
    coordinators,
    descendants,
    down,
    own_address,
    ray_at,
    up,
    wait_until,
)
from tests.ray.drivers import TORTURE, all_at_once, other_cluster
from tests.ray.world import TIMEOUT_S, Served, add, served
from tests.stores import Root

CLIENTS_AT_ONCE = 8 if TORTURE else 4
RESTARTS = 6 if TORTURE else 2
CROWD = 16 if TORTURE else 3
IDLE_S = 5.0

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


def new(disk: Root, name: str) -> str:
    with new_graph(disk, name) as graph:
        return graph.uri


def owner(uri: str) -> str:
    with omniray.open(uri, read_only=True) as graph:
        return graph.owner


def people_of(uri: str) -> list[str]:
    with omniray.open(uri, read_only=True) as graph:
        return people(graph)


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


def test_clients_outlive_the_ray_of_their_coordinators_and_write_on_when_another_one_serves(
    disk: Root, caller: Member, tmp_path: Path
) -> None:
    """Fault: of two coordinators, each with a Ray of its own, one is taken down, so that all of its Ray ends.

    Expected: a process writes to both graphs; it lives on, reads, is told that nobody serves, and goes on writing with
    the same client when the graph is served again. Oracle: scans, and the processes of the machine.
    """
    uris = [new(disk, name) for name in ("one", "two")]
    began = [up(uri, cache=tmp_path) for uri in uris]
    rays = [descendants(one["pid"]) for one in began]
    try:
        for uri in uris:
            caller.ask("connect", uri)
        assert {caller.ask("status", uri)[1] for uri in uris} == {one["address"] for one in began}
        for uri in uris:
            caller.ask("add", uri, "first")
        assert down(uris[0]).code == 0
        wait_until(lambda: are_over(rays[0]), "every process of the first Ray has ended")
        assert caller.process.is_alive()
        assert caller.ask("people", uris[0]) == ["first"]
        with pytest.raises(LineOwned, match="taken down"):
            caller.ask("add", uris[0], "nobody-serves")
        assert caller.ask("add", uris[1], "second"), "the other graph is served as before"

        began[0] = up(uris[0], cache=tmp_path)
        rays[0] = descendants(began[0]["pid"])
        caller.ask("add", uris[0], "second")
        assert not caller.ask("has_loaded", "ray")
        assert [people_of(uri) for uri in uris] == [["first", "second"]] * 2
    finally:
        for uri in uris:
            down(uri)
    for ray in rays:
        wait_until(lambda ray=ray: are_over(ray), "its Ray has ended")


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


# The first client of a graph


def test_of_many_clients_that_connect_at_once_one_starts_a_coordinator_which_ends_when_it_is_idle(
    disk: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: processes connect at the same moment to a graph that nobody serves.

    Expected: one coordinator, for all of them, which ends by itself after the last has gone. Oracle: the line has one
    change of owner, the log one beginning, and a scan has all rows.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    uri = new(disk, "graph")
    with callers(CLIENTS_AT_ONCE) as members:
        all_at_once(members, "connect", uri, None, IDLE_S)
        (pid,) = coordinators(uri)
        of_coordinator = descendants(pid)
        assert len(set(all_at_once(members, "status", uri))) == 1
        for number, member in enumerate(members):
            member.tell("add", uri, f"client-{number}")
        assert all(member.answer() for member in members)
    with omniray.open(uri, read_only=True) as graph:
        log = background.log_of(graph.graph_id)
    assert [line.startswith('{"uri"') for line in log.read_text().splitlines()].count(True) == 1
    wait_until(lambda: owner(uri) == EMBEDDED, "it ends when it is idle")
    wait_until(lambda: are_over(of_coordinator), "and its Ray with it")
    assert people_of(uri) == [f"client-{number}" for number in range(CLIENTS_AT_ONCE)]
    with omniray.open(uri) as graph:
        assert graph.mutate(INSERT, {"name": "embedded", "age": None}).commit_id


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


# Nodes


def test_a_door_is_found_again_on_another_node(disk: Root, caller: Member) -> None:
    """Fault: the publisher's node is lost. Expected: a process outside of the cluster finds the door on another node.

    Oracle: another address of the door, a later epoch, and a scan.
    """
    uri = new(disk, "graph")
    with other_cluster() as keeper:
        keeper.ask("grow_to", 3)
        keeper.ask("serve", uri, {}, False)
        keeper.ask("leave_first_node")
        caller.ask("connect", uri)
        caller.ask("add", uri, "before")
        door, (_, _, epoch) = caller.ask("url", uri), caller.ask("status", uri)
        keeper.ask("lose_publisher")
        caller.ask("add", uri, "after")
        assert caller.ask("url", uri) != door
        assert caller.ask("status", uri)[2] > epoch
        assert people_of(uri) == ["after", "before"]
        keeper.ask("down")


@pytest.mark.skipif(own_address() is None, reason="this machine has only its loopback")
def test_a_door_beyond_loopback_speaks_tls_and_only_to_those_who_read_its_record(disk: Root, caller: Member) -> None:
    """No fault. Expected: clients find it and write; the certificate is that of the record, and no other is accepted.

    Oracle: a scan, and a client of Python's own that trusts the machine's authorities is refused.
    """
    uri = new(disk, "graph")
    with ray_at(str(own_address())) as keeper:
        url = keeper.ask("serve", uri)
        assert url.startswith(f"https://{own_address()}:")
        caller.ask("connect", uri)
        caller.ask("add", uri, "over-tls")
        assert caller.ask("url", uri) == url
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            urlopen(f"{url}/healthz", timeout=TIMEOUT_S)
        with pytest.raises(OSError, match=r"closed|reset|disconnect"):
            urlopen(f"http{url.removeprefix('https')}/healthz", timeout=TIMEOUT_S)
        assert people_of(uri) == ["over-tls"]


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


# Secrets


CANARIES = {name: f"canary-{name}-{new_ulid()}" for name in ("option", "environment")}


def test_secrets_are_nowhere_but_where_they_belong(disk: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: secrets in storage options and in the environment; the publisher is killed, and writes are refused.

    Expected: no log, error, argument, repr or file tells them. The door's secret is in its own file only, and gone with
    its coordinator. Oracle: a search through the files of graph, cache and Ray's session, and all arguments.
    """
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARIES["environment"])
    uri = new(disk, "graph")
    with callers(1) as (one,):
        one.ask("connect", uri, {"aws_secret_access_key": CANARIES["option"]}, IDLE_S)
        one.ask("add", uri, "ann")
        (pid,) = coordinators(uri)
        of_coordinator = descendants(pid)
        (session,) = Path(tempfile.gettempdir(), "ray").glob(f"session_*_{pid}")
        (record,) = Path(uri, "__door").iterdir()
        assert record.stat().st_mode & 0o077 == 0
        first = json.loads(record.read_bytes())["secret"]
        (publisher,) = [pid for pid, words in argv().items() if pid in of_coordinator and b"PublisherActor" in words]
        os.kill(publisher, signal.SIGKILL)
        one.ask("add", uri, "bob")
        (record,) = Path(uri, "__door").iterdir()
        second = json.loads(record.read_bytes())["secret"]
        assert first != second
        said = one.ask("texts", uri)
        said += [words.decode(errors="replace") for words in argv().values()]
        secrets = (*CANARIES.values(), first, second)
        assert [secret for secret in secrets for text in said if secret in text] == []
        folders = (cache, Path(uri), session)
        assert told_in(folders, secrets) == {(second, record)}
    wait_until(lambda: are_over(of_coordinator), "it ends when it is idle")
    assert told_in(folders, secrets) == set()


def told_in(folders: Sequence[Path], secrets: Sequence[str]) -> set[tuple[str, Path]]:
    """Which secret is in which file."""
    found = set()
    for file in (file for folder in folders for file in folder.rglob("*")):
        try:
            data = file.read_bytes() if file.is_file() else b""
        except OSError:  # it has just been deleted
            continue
        found |= {(secret, file) for secret in secrets if secret.encode() in data}
    return found
