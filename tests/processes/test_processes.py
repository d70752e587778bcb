"""What several processes on one graph may count on. `OMNIRAY_RACES=50` runs the races at full length."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance
import pytest

import omniray
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.version_names import final_path, own_path
from tests.graphs import PERSON, Adding, create_store, insert, new_graph, parts_of, people, reopen
from tests.healing import staged_versions
from tests.processes.crew import (
    Member,
    committed,
    crew,
    killed_between_b_and_c,
    killed_between_c_and_d,
    visible,
    watched_writer,
)
from tests.stores import Root

ROUNDS = int(os.environ.get("OMNIRAY_RACES", "5"))
AT_LENGTH = "OMNIRAY_RACES" in os.environ
PROCESSES, INSERTS = (8, 20) if AT_LENGTH else (4, 10)
WATCHED_WRITES = 200 if AT_LENGTH else 40
SIGKILLED = -9

# One group: the processes are started once, by whichever worker runs these tests.
pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(600 if AT_LENGTH else 180)]


@pytest.fixture(scope="module")
def members() -> Iterator[Sequence[Member]]:
    with crew(PROCESSES) as members:
        yield members


def everybody_opens(members: Sequence[Member], graph: omniray.Graph, root: Root) -> None:
    for member in members:
        member.tell("open", graph.uri, root.storage_options)
    for member in members:
        member.answer()


def everybody_closes(members: Sequence[Member]) -> None:
    for member in members:
        member.ask("close")


# Races


def test_of_two_strict_processes_exactly_one_wins_every_round(any_root: Root, members: Sequence[Member]) -> None:
    pair = members[:2]
    with new_graph(any_root) as graph:
        everybody_opens(pair, graph, any_root)
        for number in range(ROUNDS):
            version = 1 + number
            for name, member in zip("ab", pair, strict=True):
                member.tell("insert_strictly", f"{name}-{number}", version)
            answers = sorted(member.answer() for member in pair)
            assert answers == [f"expected {version}, it is {version + 1}", "won"]
        everybody_closes(pair)
        assert len(people(graph)) == ROUNDS
        assert [entry.seq for entry in graph.history()] == list(range(ROUNDS + 1, 0, -1))


def test_keyed_inserts_of_many_processes_all_land_in_one_linear_history(disk: Root, members: Sequence[Member]) -> None:
    with new_graph(disk) as graph:
        everybody_opens(members, graph, disk)
        for number, member in enumerate(members):
            member.tell("insert_many", f"{number}", INSERTS, PROCESSES)
        commits = [commit for member in members for commit in member.answer()]
        everybody_closes(members)
        expected = sorted(f"{process}-{n}" for process in range(PROCESSES) for n in range(INSERTS))
        assert people(graph) == expected
        history = graph.history()
        assert sorted(entry.commit_id for entry in history[:-1]) == sorted(commits)
        assert [entry.seq for entry in history] == list(range(len(commits) + 1, 0, -1))
        assert [entry.parent for entry in history] == [*(entry.commit_id for entry in history[1:]), ""]
        assert sorted(lance.dataset(f"{graph.uri}/nodes/Person.lance").to_table()["name"].to_pylist()) == expected


# Plain readers


def test_a_plain_reader_never_sees_a_row_of_a_write_that_is_not_committed(disk: Root) -> None:
    """The poller looks at least once between Phase B and Phase C of every write, and all the time besides."""
    new_graph(disk).close()
    uri = f"{disk.uri}/graph"
    with watched_writer(uri, WATCHED_WRITES) as (poller, writer):
        assert writer.answer() == "done"
        violations, states_seen = poller.ask("stop")
    assert violations == []
    assert states_seen > WATCHED_WRITES / 4, "the poller saw the graph grow"
    assert len(visible(open_store(uri))) == WATCHED_WRITES


def test_the_plain_reader_s_test_can_fail(disk: Root) -> None:
    """The twin: a version that is given its final name before Phase C is visible, and in no object of the line."""
    store = create_store(disk)
    parts = parts_of(store)
    put = parts.log.put

    def too_early(obj):  # type: ignore[no-untyped-def]
        for pin in obj.introduced().values():
            store.copy_if_absent(own_path(pin, parts.branch.graph_id), final_path(pin.path, pin.version))
        early.update(visible(store) - committed(CommitLog(store, parts.branch.branch), {}))
        return put(obj)

    early: set[str] = set()
    parts.log.put = too_early  # type: ignore[method-assign]
    parts.writer.commit(Adding(parts.schema, {PERSON: ["write-1@a"]}))
    parts.close()
    assert early == {"write-1"}


# Processes that are killed


def test_a_writer_killed_between_b_and_c_leaves_no_visible_trace_and_the_next_write_works(
    any_root: Root, members: Sequence[Member]
) -> None:
    with new_graph(any_root) as graph:
        insert(graph, "ann")
        graph.flush()
        table = f"{graph.uri}/nodes/Person.lance"
        assert killed_between_b_and_c(any_root, graph.uri, "ghost") == SIGKILLED
        store = open_store(graph.uri, any_root.storage_options)
        assert staged_versions(store) != [], "Phase B was through"
        plain = lance.dataset(table, storage_options=any_root.storage_options)
        assert (plain.version, plain.to_table()["name"].to_pylist()) == (2, ["ann"])
        everybody_opens(members[:1], graph, any_root)
        assert members[0].ask("people") == ["ann"]
        everybody_closes(members[:1])
        insert(graph, "bob")
        graph.flush()
        plain = lance.dataset(table, storage_options=any_root.storage_options)
        assert (plain.version, sorted(plain.to_table()["name"].to_pylist())) == (3, ["ann", "bob"])
        assert len(graph.history()) == 3
        assert [one.recovery_kind for one in graph.recoveries()] == ["RolledBack"]
    assert staged_versions(store) == []
    assert list(store.names("__recovery")) == []


def test_what_a_writer_killed_between_c_and_d_wrote_is_seen_and_healed_by_the_next_process(
    disk: Root, members: Sequence[Member]
) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.flush()
        table = f"{graph.uri}/nodes/Person.lance"
        assert killed_between_c_and_d(disk, graph.uri, "bob") == SIGKILLED
        assert lance.dataset(table).to_table()["name"].to_pylist() == ["ann"], "it has no final name yet"
        everybody_opens(members[:1], graph, disk)
        assert members[0].ask("people") == ["ann", "bob"]
        assert sorted(lance.dataset(table).to_table()["name"].to_pylist()) == ["ann", "bob"]
        everybody_closes(members[:1])
        insert(graph, "cat")
        graph.flush()
        assert [entry.seq for entry in graph.history()] == [5, 3, 2, 1], "number 4 tells of the recovery"
        assert [one.recovery_kind for one in graph.recoveries()] == ["RolledForward"]
    assert not list(Path(table).glob("_staged/*"))
    assert not list(Path(f"{graph.uri}/__recovery").glob("*"))


def test_when_a_write_returns_a_fresh_process_sees_it_whether_or_not_phase_d_is_through(
    any_root: Root, members: Sequence[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = new_graph(any_root)
    with monkeypatch.context() as patch:
        patch.setattr(Finaliser, "notice", lambda self, landed, operation_id: None)
        for number in range(3):
            insert(graph, f"{number}")
            everybody_opens(members[:1], graph, any_root)
            assert members[0].ask("people") == [f"{n}" for n in range(number + 1)]
    everybody_closes(members[:1])
    graph.close()
    with reopen(graph, any_root, read_only=True) as reader:
        assert people(reader) == ["0", "1", "2"]
