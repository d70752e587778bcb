"""Actors that die, hang or come back late: nothing is lost, nothing is doubled, and nobody cleans up by hand.

All of these tests use one graph: what one of them has broken is healed before the next.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import omniray
from omniray.coordinator.actors.cluster import Storage
from omniray.coordinator.actors.queue_actor import RemoteQueues
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.door.questions import Existing
from omniray.engine.base.errors import Unreachable
from omniray.engine.base.failpoints import Point
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.staging import Base
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation
from omniray.engine.schema.parser import parse_schema
from omniray.engine.writes.row_sink import INLINE_ROWS_MAX
from tests.graphs import INSERT, INSERT_CITY, PERSON, SCHEMA
from tests.processes.crew import Member
from tests.ray.drivers import PROCESSES, TORTURE, connected
from tests.ray.world import Gate, Served, add, hold_record
from tests.ray.world import served as serving
from tests.stores import Root

WRITES = 25
READS_WHILE_FROZEN = 4000 if TORTURE else 10

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.fixture
def client(graph: Served) -> Iterator[omniray.Client]:
    """A client of a coordinator that has written once, so that all actors are there."""
    with graph.connect() as client:
        add(client, f"warm-{new_ulid()}")
        yield client


def committed(graph: Served) -> Counter[str]:
    return Counter(commit.commit_id for obj in graph.line() for commit in obj.commits)


# The publisher


@pytest.mark.parametrize(
    ("point", "lands_at_first", "recorded_as"),
    [(Point.C_BEFORE_PUT, False, "RolledBack"), (Point.C_AFTER_PUT, True, "RolledForward")],
)
def test_a_publisher_that_is_killed_around_its_put_is_replaced_and_its_writes_are_answered(
    graph: Served, client: omniray.Client, point: Point, lands_at_first: bool, recorded_as: str
) -> None:
    """Fault: killed between Phases B and C, or after C before the answer. Expected: the client asks again by itself.

    Oracle: the commit once in the line, in the epoch of the victim or of its successor; one row; one audit row for the
    operation that was left; no sidecar.
    """
    graph.wait_until_healed()  # or what was left before would be told of, too
    before, recoveries = graph.newest(), len(client.recoveries())
    graph.arm(graph.place.publisher, f"{point}=kill")
    result = add(client, f"around-{point}")
    assert result.repeated == lands_at_first
    landed = [obj for obj in graph.line() for commit in obj.commits if commit.commit_id == result.commit_id]
    assert [obj.epoch for obj in landed] == [before.epoch + (not lands_at_first)]
    assert graph.newest().epoch == before.epoch + 1
    graph.wait_until_healed()
    assert [one.recovery_kind for one in client.recoveries()[: -recoveries or None]] == [recorded_as]
    assert graph.people().count(f"around-{point}") == 1
    plain = lance.dataset(f"{graph.uri}/nodes/Person.lance").to_table()["name"].to_pylist()
    assert plain.count(f"around-{point}") == 1, "plain readers see it too"


@pytest.mark.parametrize("point", [Point.C_BEFORE_PUT, Point.C_AFTER_PUT])
def test_a_large_load_whose_publisher_is_killed_keeps_the_rows_that_it_staged(
    graph: Served, client: omniray.Client, point: Point
) -> None:
    """Fault: killed around the put of rows that the client has staged. Oracle: a scan of all rows."""
    rows = [{"name": f"large-{point}-{n}"} for n in range(INLINE_ROWS_MAX + 1)]
    graph.arm(graph.place.publisher, f"{point}=kill")
    client.load(rows, type="Person")
    assert sum(name.startswith(f"large-{point}-") for name in graph.people()) == len(rows)


def test_what_ray_says_of_a_process_that_died_is_logged_and_not_printed(
    graph: Served, client: omniray.Client, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Ray writes it to standard output, where the document of a command goes."""
    graph.arm(graph.place.publisher, f"{Point.C_BEFORE_PUT}=kill")
    with caplog.at_level("INFO", "omniray"):
        add(client, "said")
        graph.wait_until(lambda: "ray_says" in caplog.text, "Ray says so")
    assert capfd.readouterr().out == ""


def test_publishers_that_are_killed_at_any_time_under_load_lose_and_double_nothing(
    graph: Served, members: Sequence[Member]
) -> None:
    """Fault: SIGKILL, twice, while processes write. Oracle: every answered commit is in the line and its row once."""
    epoch = graph.newest().epoch
    for member in connected(members, graph):
        member.tell("add_all", "load", WRITES)
    for _ in range(2):
        begun = graph.newest()
        graph.wait_until(lambda begun=begun: graph.newest().seq > begun.seq + 2, "writes land")
        os.kill(graph.publisher_pid, signal.SIGKILL)
        graph.wait_until(lambda begun=begun: graph.newest().epoch > begun.epoch, "another one takes over")
    answered = [commit for member in members for commit in member.answer()]
    line = committed(graph)
    assert [line[commit] for commit in answered] == [1] * (PROCESSES * WRITES)
    rows = Counter(name for name in graph.people() if "-load-" in name)
    assert rows == Counter(f"driver-{p}-load-{n}" for p in range(PROCESSES) for n in range(WRITES))
    assert graph.newest().epoch >= epoch + 2
    graph.wait_until_healed()


@pytest.mark.parametrize(("point", "lands_at_first"), [(Point.A_BEFORE_SIDECAR, False), (Point.C_AFTER_PUT, True)])
def test_a_publisher_that_fails_in_an_unknown_way_begins_anew_and_tells_no_lie(
    graph: Served, client: omniray.Client, point: Point, lands_at_first: bool
) -> None:
    """Fault: an error that nothing knows, before anything is written or after the put. Expected: the client asks again.

    Oracle: the same process in a new epoch, and the row once.
    """
    graph.wait_until_healed()  # or a remark of the reconciler might be the one that fails
    before, victim = graph.newest(), graph.publisher_pid
    graph.arm(graph.place.publisher, f"{point}=raise@1")
    assert add(client, f"unlucky-{point}").repeated == lands_at_first
    assert (graph.newest().epoch, graph.publisher_pid) == (before.epoch + 1, victim)
    assert graph.people().count(f"unlucky-{point}") == 1


def test_nobody_takes_a_graph_for_a_copy_whose_publisher_begins_anew(
    graph: Served, client: omniray.Client, tmp_path: Path
) -> None:
    """Fault: the publisher begins anew, and is held up when the record of its door is there and it does not serve yet.

    Expected: writers and new clients wait for it. Oracle: nobody gets an error, and the row is there once.
    """
    graph.wait_until_healed()
    reached, opened = tmp_path / "reached", tmp_path / "opened"
    graph.inside(graph.place.publisher, hold_record, reached, opened)
    graph.arm(graph.place.publisher, f"{Point.A_BEFORE_SIDECAR}=raise@1")
    written = client.submit_mutate(INSERT, {"name": "not-a-copy", "age": None})
    graph.wait_until(reached.exists, "the record is put")
    with pytest.raises(Unreachable):
        connect_to_serving(graph.uri, graph.root.storage_options, timeout_s=0.5)
    opened.touch()
    assert written.result().affected_nodes == 1
    assert graph.people().count("not-a-copy") == 1


def test_a_frozen_publisher_that_was_replaced_is_fenced_when_it_thaws(
    disk: Root, ray_address: str, tmp_path: Path
) -> None:
    """Fault: SIGSTOP just before a put; embedded writers take the branch over and write; SIGCONT.

    Oracle: nothing of the frozen one's epoch is in the line after the take-over, its client is told and its write,
    sent again with the same id by an embedded writer, is there once.
    """
    with serving(disk, ray_address) as graph, graph.connect() as client:
        add(client, "before")
        gate = Gate(tmp_path / "gate", graph, graph.place.publisher, Point.C_BEFORE_PUT)
        frozen = graph.newest()
        txn_id = new_ulid()
        doomed = client.submit_mutate(INSERT, {"name": "frozen", "age": None}, txn_id=txn_id)
        gate.wait_until_reached()
        os.kill(graph.publisher_pid, signal.SIGSTOP)
        gate.open()  # it goes on with its put when it thaws
        with graph.open() as embedded:
            embedded.recover(take_over=True)
            add(embedded, "meanwhile")
        os.kill(Incarnation.parse(frozen.owner).process.pid, signal.SIGCONT)
        with pytest.raises(omniray.OutcomeUnknown, match="taken"):
            doomed.result()
        later = [obj for obj in graph.line() if obj.seq > frozen.seq]
        assert {obj.owner for obj in later} == {EMBEDDED}
        assert all(obj.epoch > frozen.epoch for obj in later)
        with graph.open() as embedded:
            assert not add(embedded, "frozen", txn_id=txn_id).repeated
        assert graph.people() == ["before", "frozen", "meanwhile"]


def test_every_reader_reads_the_head_while_the_publisher_stands_still_between_its_put_and_phase_d(
    disk: Root, ray_address: str, tmp_path: Path
) -> None:
    """Fault: SIGSTOP right after a put, so that nobody gives the new version its final name."""
    with serving(disk, ray_address) as graph, graph.connect() as client:
        add(client, "before")
        client.flush()
        gate = Gate(tmp_path / "gate", graph, graph.place.publisher, Point.C_AFTER_PUT)
        landed = client.submit_mutate(INSERT, {"name": "landed", "age": None})
        gate.wait_until_reached()
        os.kill(graph.publisher_pid, signal.SIGSTOP)
        try:
            for _ in range(READS_WHILE_FROZEN):
                assert graph.people() == ["before", "landed"], "a fresh reader"
                names = client.snapshot().table("Person", ["name"])["name"].to_pylist()
                assert sorted(names) == ["before", "landed"], "a connected one"
            plain = lance.dataset(f"{graph.uri}/nodes/Person.lance")
            assert plain.count_rows() == 1, "Phase D has not begun"
        finally:
            os.kill(graph.publisher_pid, signal.SIGCONT)
            gate.open()
        assert not landed.result().repeated


# The others


@pytest.mark.parametrize("point", [Point.B_BEFORE_TABLE, Point.B_AFTER_TABLE])
def test_a_queue_owner_that_is_killed_while_it_stages_costs_a_retry(
    graph: Served, client: omniray.Client, point: Point
) -> None:
    """Fault: killed before or after a table is staged. Expected: the same publisher tries the round again."""
    epoch = graph.newest().epoch
    graph.arm(graph.place.queues(0), f"{point}=kill")
    result = add(client, f"staged-{point}")
    assert not result.repeated
    assert graph.people().count(f"staged-{point}") == 1
    assert graph.newest().epoch == epoch
    assert client.status().commits > 0, "the publisher is well"


def test_a_queue_owner_that_was_killed_is_there_again_when_its_failure_is_told(
    graph: Served, client: omniray.Client
) -> None:
    """Fault: killed while nobody asks it. Expected: whoever asks next fails once, however long the restart takes.

    Rounds are tried a few times only: without the wait a slow machine would refuse its writers.
    """
    storage = Storage(graph.uri, graph.root.storage_options, graph.place.graph_id)
    remote = RemoteQueues(graph.place, storage, owners=1).of(graph.place.graph_id)
    newest = graph.newest()
    person = parse_schema(SCHEMA).by_table_key[PERSON]
    asked = (Base(newest.pins, newest.line, newest.seq), [Existing(person, pa.array(["nobody"]))])
    assert len(remote.read(*asked)) == 1
    graph.kill(graph.place.queues(0))
    with pytest.raises(omniray.StorageError, match="tried again"):
        remote.read(*asked)
    assert len(remote.read(*asked)) == 1


def test_a_reconciler_that_is_killed_in_phase_d_has_a_successor_that_finishes_it(
    graph: Served, client: omniray.Client
) -> None:
    """Fault: killed before a final name is given. Expected: plain Lance readers see the row at last."""
    client.flush()  # or it dies of the write before this one, while it is being armed
    graph.arm(graph.place.reconciler, f"{Point.D_BEFORE_NAME}=kill")
    seq = graph.newest().seq
    client.mutate(INSERT_CITY, {"name": "killed-in-d"})
    graph.wait_until(lambda: client.status().finalised_through > seq, "Phase D goes on")

    def is_visible() -> bool:
        return "killed-in-d" in lance.dataset(f"{graph.uri}/nodes/City.lance").to_table()["name"].to_pylist()

    graph.wait_until(is_visible, "plain readers see it")


def test_a_reconciler_that_is_killed_before_it_has_tidied_up_has_a_successor_that_does(
    graph: Served, client: omniray.Client
) -> None:
    """Fault: killed when all is folded and the sidecars are still there. Oracle: no new sidecar after a flush."""
    client.flush()
    before = set(graph.sidecars())
    graph.arm(graph.place.reconciler, f"{Point.D_BEFORE_SIDECARS}=kill")
    add(client, "tidied")
    with pytest.raises(omniray.StorageError):
        client.flush()
    graph.wait_until(lambda: _flushes(client), "another one is there")
    assert set(graph.sidecars()) <= before


def _flushes(client: omniray.Client) -> bool:
    try:
        client.flush()
    except omniray.StorageError:
        return False
    return True


def test_all_actors_may_be_killed_at_once(graph: Served, client: omniray.Client) -> None:
    place = graph.place
    for name in (place.reconciler, place.queues(0), place.publisher):
        graph.kill(name)
    assert add(client, "after-all-died").affected_nodes == 1
    graph.wait_until_healed()
    assert client.status().drifted == ()
    assert graph.people().count("after-all-died") == 1
