"""Coordinators with a Ray of their own, and clients without one.

Each test tells its fault, what is expected, and its oracle. None of them needs the Ray that other tests share.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import omniray
from omniray.coordinator.actors import cluster
from omniray.coordinator.client import background
from omniray.engine.base.errors import LineOwned
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import EMBEDDED
from tests.commands import omniray_process
from tests.graphs import INSERT, people
from tests.processes.crew import Member
from tests.ray.callers import (
    are_over,
    argv,
    callers,
    coordinators,
    descendants,
    down,
    new,
    own_address,
    owner,
    people_of,
    ray_at,
    up,
    wait_until,
    write,
)
from tests.ray.drivers import TORTURE, all_at_once
from tests.ray.world import TIMEOUT_S
from tests.stores import Root

CLIENTS_AT_ONCE = 8 if TORTURE else 4
IDLE_S = 5.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def caller() -> Iterator[Member]:
    """A client process."""
    with callers(1) as (one,):
        yield one


# Up and down


def test_a_detached_coordinator_serves_until_it_is_taken_down_and_takes_its_ray_with_it(
    disk: Root, tmp_path: Path
) -> None:
    """No fault. Oracle: the owner of the line, the process in the background, the port of its Ray, and a scan."""
    graph = new(disk, "graph")
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    secret = ("--storage-option", "aws_secret_access_key=hunter2")
    began = omniray_process("up", graph, "--detach", "--address", "local", "--json", *secret, **cache)
    assert (began.code, began.err) == (0, "")
    try:
        assert b"hunter2" not in Path(f"/proc/{began.document['pid']}/cmdline").read_bytes()
        _is_served_and_taken_down(graph, began.document, cache)
    finally:
        if Path(f"/proc/{began.document['pid']}").exists():
            os.kill(began.document["pid"], signal.SIGTERM)


def _is_served_and_taken_down(graph: str, began: dict[str, Any], cache: dict[str, str]) -> None:
    write(graph, "Ann")
    status = omniray_process("status", graph, "--json")
    assert (status.code, status.err) == (0, "")
    assert {key: status.document[key] for key in ("address", "owner", "epoch", "commits")} == {
        **{key: began[key] for key in ("address", "owner", "epoch")},
        "commits": 1,
    }
    again = omniray_process("up", graph, "--detach", "--json", **cache)
    assert (again.document["joined"], again.document["owner"], again.document["pid"]) == (True, began["owner"], None)

    down = omniray_process("down", graph, "--json")
    assert (down.code, down.document["address"], down.err) == (0, began["address"], "")
    assert owner(graph) == EMBEDDED
    wait_until(lambda: are_over({began["pid"]}), "the process in the background ends by itself")
    assert not cluster.is_listening(began["address"]), "its Ray has ended with it"
    with omniray.open(graph) as opened:
        opened.mutate(INSERT, {"name": "Bob", "age": None})
        assert people(opened) == ["Ann", "Bob"]


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

        began[0] = up(uris[0], "--address", began[1]["address"], cache=tmp_path)
        rays[0] = descendants(began[0]["pid"])
        caller.ask("add", uris[0], "second")
        assert not caller.ask("has_loaded", "ray")
        assert [people_of(uri) for uri in uris] == [["first", "second"]] * 2
    finally:
        for uri in uris:
            down(uri)
    for ray in rays:
        wait_until(lambda ray=ray: are_over(ray), "its Ray has ended")


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


# Beyond loopback


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
