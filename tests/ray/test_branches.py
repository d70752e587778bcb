"""Branches in service on a real Ray: hosted by the actors that are there, each for itself, and let go when idle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import omniray
from omniray.engine.base.errors import BranchGone, LineOwned
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import Incarnation
from tests.processes.crew import Member
from tests.ray.callers import argv
from tests.ray.drivers import PROCESSES, all_at_once, connected
from tests.ray.world import Served, add, served
from tests.stores import Root

WRITES = 4
MANY = 50

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


def committed(line: Sequence[CommitObject]) -> Counter[str]:
    return Counter(commit.commit_id for obj in line for commit in obj.commits)


def names(prefix: str, count: int) -> set[str]:
    return {f"driver-{p}-{prefix}-{n}" for p in range(PROCESSES) for n in range(count)}


def test_several_branches_are_written_by_several_processes_at_once(graph: Served, members: Sequence[Member]) -> None:
    """No fault. Oracle: every commit id once in its branch's line and in no other, all rows by a full scan."""
    before = graph.people()
    with graph.connect() as client:
        made = {name: client.create_branch(name).branch_id for name in ("at-once/a", "at-once/b", "at-once/c")}
    done = all_at_once(connected(members, graph), "add_to", list(made), "at-once", WRITES)
    for name, line in made.items():
        answered = [commit for each in done for commit in each[name]]
        assert committed(graph.line(line)) == Counter(answered)
        assert set(graph.people(name)) - set(before) == names("at-once", WRITES)
        assert len(graph.people(name)) == len(set(graph.people(name)))
    assert graph.people() == before


def test_the_writers_of_a_branch_that_is_deleted_are_all_told_and_main_s_go_on(
    graph: Served, members: Sequence[Member]
) -> None:
    """Fault: the branch is deleted while processes write to it. Oracle: its closed line has what was answered."""
    with graph.connect() as client:
        line = client.create_branch("deleted").branch_id
        for member in connected(members, graph):
            member.tell("add_until_gone", "deleted")
        graph.wait_until(lambda: len(committed(graph.line(line))) > 2 * PROCESSES, "all write")
        client.delete_branch("deleted")
        told = [member.answer() for member in members]
        assert {type(error) for _, error in told} == {BranchGone}
        assert committed(graph.line(line)) == Counter(commit for accepted, _ in told for commit in accepted)
        assert graph.line(line)[-1].closed
        assert "deleted" not in client.status().hosted
        add(client, "after-the-deletion")
        client.create_branch("deleted")
        add(client, "another", branch="deleted")
    assert "another" in graph.people("deleted")


def test_a_publisher_that_is_killed_with_branches_open_loses_and_doubles_nothing(
    graph: Served, members: Sequence[Member]
) -> None:
    """Fault: SIGKILL of the publisher, and of the reconciler, while processes write to two branches and to main.

    Oracle: every answered commit once in its line; nothing is left of the dead, on any branch.
    """
    with graph.connect() as client:
        made = {name: client.create_branch(name).branch_id for name in ("killed/a", "killed/b")}
    lines = {**made, "main": ""}
    epoch = graph.newest().epoch
    for member in connected(members, graph):
        member.tell("add_to", list(lines), "killed", 2 * WRITES)
    graph.wait_until(lambda: len(graph.line(made["killed/b"])) > 3, "all write")
    graph.kill(graph.place.reconciler)
    os.kill(graph.publisher_pid, signal.SIGKILL)
    done = [member.answer() for member in members]
    assert graph.newest().epoch > epoch
    for name, line in lines.items():
        found = committed(graph.line(line))
        assert [found[commit] for each in done for commit in each[name]] == [1] * (PROCESSES * 2 * WRITES)
        people = Counter(one for one in graph.people(name) if "-killed-" in one)
        assert people == Counter(names("killed", 2 * WRITES))
    graph.wait_until_healed()


def test_an_idle_branch_is_handed_back_and_written_again_by_everybody(disk: Root, ray_address: str) -> None:
    with served(disk, ray_address, branch_idle_s=0.5) as graph, graph.connect() as client:
        line = client.create_branch("idle").branch_id
        add(client, "ann", branch="idle")
        graph.wait_until(lambda: graph.line(line)[-1].owner == EMBEDDED, "it is let go")
        assert graph.sidecars() == []
        with graph.open() as embedded:
            add(embedded, "bob", branch="idle")
            add(client, "cid", branch="idle")
            with pytest.raises(LineOwned):
                add(embedded, "dan", branch="idle")
        graph.down()
        assert graph.line(line)[-1].owner == EMBEDDED
        with graph.open() as embedded:
            add(embedded, "dan", branch="idle")
        assert graph.people("idle") == ["ann", "bob", "cid", "dan"]
        assert graph.people() == []
        assert graph.sidecars() == []


def test_many_branches_take_no_more_processes_than_one(graph: Served) -> None:
    with graph.connect() as client:
        add(client, "warm-for-many")
        made = [f"many/{number}" for number in range(MANY)]
        for name in made:
            client.create_branch(name)
        before = actors(client)
        writing = [client.submit_load([{"name": "ann"}], type="Person", mode="merge", branch=name) for name in made]
        for one in writing:
            one.result()
        assert actors(client) == before
        assert set(made) <= set(client.status().hosted)
        merged = client.merge(made[0], into=made[1])
        assert merged.outcome == "already_up_to_date" or merged.commit_id is not None


def actors(client: omniray.Client) -> Counter[bytes]:
    """The Ray actors of the coordinator's own Ray, by what they are: processes with the parent of its publisher."""
    raylet = parent_of(Incarnation.parse(client.status().owner).process.pid)
    titles = (words.partition(b"\0")[0] for pid, words in argv().items() if parent_of(pid) == raylet)
    # An actor that is carrying something out is called after its method, too.
    return Counter(title.partition(b".")[0] for title in titles if title.startswith(b"ray::") and b"Actor" in title)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 of one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_what_a_merge_says_comes_from_the_publisher_of_its_target(graph: Served) -> None:
    with graph.connect() as client:
        client.create_branch("merged")
        add(client, "on-merged", branch="merged")
        add(client, "on-main")
        assert client.merge("merged").outcome == "merged"
        add(client, "on-main-later")
        with pytest.raises(omniray.KeyConflict):
            client.load([{"name": "on-merged"}], type="Person")
    assert {"on-merged", "on-main", "on-main-later"} <= set(graph.people())
