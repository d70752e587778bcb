"""Whatever plain Lance does to a table, the graph notices before it writes there, and can say what happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

import omniray
from omniray.engine.base.errors import InvariantViolation, NotFound, TableDrift
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.recovery.rules import TableClass
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.version_names import final_path
from tests.foreign import FOREIGN, PEOPLE, append, commit_and_die, plain, plain_ids, repair_of, with_people
from tests.graphs import CITY, INSERT_CITY, PERSON, Adding, insert, parts_of, people
from tests.stores import Root


@pytest.fixture
def store(disk: Root, template: str) -> ObjectStore:
    shutil.copytree(template, f"{disk.uri}/graph")
    return open_store(f"{disk.uri}/graph")


@contextmanager
def opened(store: ObjectStore, root: Root) -> Iterator[omniray.Graph]:
    with omniray.open(store.uri, storage_options=root.storage_options) as graph:
        yield graph


# The guard


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_write_stops_the_next_write_to_that_table_and_no_other(
    store: ObjectStore, disk: Root, kind: str
) -> None:
    FOREIGN[kind](store)
    with opened(store, disk) as graph:
        before = plain(store).version
        with pytest.raises(TableDrift, match=rf"{PERSON}.*omniray repair"):
            insert(graph, "dan")
        assert plain(store).version == before
        graph.mutate(INSERT_CITY, {"name": "rome"})
        assert graph.snapshot().table("City", ["name"])["name"].to_pylist() == ["rome"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_readers_of_the_graph_see_nothing_of_a_foreign_write(store: ObjectStore, disk: Root, kind: str) -> None:
    with opened(store, disk) as graph:
        commits = [entry.commit_id for entry in graph.history()]
        rows = [graph.snapshot(at=commit).table("Person") for commit in commits]
    FOREIGN[kind](store)
    with opened(store, disk) as graph:
        assert [graph.snapshot(at=commit).table("Person") for commit in commits] == rows
        assert people(graph) == ["ann", "bob"]


def test_a_warm_writer_notices_a_foreign_write_too(any_root: Root) -> None:
    store = with_people(any_root)
    with opened(store, any_root) as graph:
        insert(graph, "dan")
        graph.flush()
        append(store, "mallory")
        with pytest.raises(TableDrift, match="omniray repair"):
            insert(graph, "eve")
        assert people(graph) == ["ann", "bob", "dan"]


# What happened


class Seen(NamedTuple):
    operations: list[str]
    rows: list[tuple[int | None, int]]
    schema_changed: bool


HAPPENED = {
    "append": Seen(["Append"], [(2, 3)], False),
    "delete": Seen(["Delete"], [(2, 1)], False),
    "update": Seen(["Update"], [(2, 2)], False),
    "overwrite": Seen(["Overwrite"], [(2, 1)], False),
    "restore": Seen(["Restore"], [(2, 1)], False),
    "compaction": Seen(["Other", "Rewrite"], [(2, 2), (2, 2)], False),
    "add_columns": Seen(["Merge"], [(2, 2)], True),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_inspecting_tells_what_a_foreign_writer_did(store: ObjectStore, kind: str) -> None:
    parts = parts_of(store)
    pin = parts.newest().pins[PERSON]
    FOREIGN[kind](store)
    (drift,) = repair_of(parts).inspect()
    told = Seen(
        [one.operation for one in drift.foreign],
        [(one.rows_before, one.rows_after) for one in drift.foreign],
        any(one.schema_changed for one in drift.foreign),
    )
    assert told == HAPPENED[kind]
    several = len(told.operations) > 1
    assert drift.kind is (TableClass.UNEXPECTED_MULTISTEP if several else TableClass.UNEXPECTED_AT_P1)
    assert (drift.table_key, drift.pinned, drift.head) == (PERSON, pin.version, plain(store).version)
    assert drift.foreign[-1].transaction == plain(store).read_transaction(drift.head).uuid
    assert drift.commits_at_stake == ()


def test_inspecting_a_graph_that_nobody_touched_finds_nothing(store: ObjectStore) -> None:
    assert repair_of(parts_of(store)).inspect() == ()


def test_a_commit_whose_phase_d_is_unfinished_is_no_drift(store: ObjectStore) -> None:
    commit_and_die(store, "dan", "eve")
    assert repair_of(parts_of(store)).inspect() == ()


def test_a_name_that_was_taken_from_a_commit_is_told_with_the_commits_behind_it(any_root: Root) -> None:
    store = with_people(any_root)
    dead = commit_and_die(store, "dan", "eve")
    append(store, "mallory")
    (drift,) = repair_of(parts_of(store)).inspect()
    pinned = dead.newest().pins[PERSON].version
    assert (drift.kind, drift.pinned, drift.head) == (TableClass.FINAL_NAME_TAKEN, pinned, pinned - 1)
    assert list(drift.commits_at_stake) == dead.commit_ids()[-2:]
    assert [(one.version, one.operation, one.rows_before, one.rows_after) for one in drift.foreign] == [
        (pinned - 1, "Append", 2, 3)
    ]


def test_foreign_versions_beyond_a_taken_name_are_told_too(store: ObjectStore) -> None:
    dead = commit_and_die(store, "dan")
    for name in ("mallory", "mike"):
        append(store, name)
    (drift,) = repair_of(parts_of(store)).inspect()
    pinned = dead.newest().pins[PERSON].version
    assert (drift.kind, drift.head) == (TableClass.FINAL_NAME_TAKEN, pinned + 1)
    assert [one.version for one in drift.foreign] == [pinned, pinned + 1]


def test_a_commit_that_lands_between_head_and_line_is_not_taken_for_a_foreign_one(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the other way round, the new version would be beyond what the line pinned when it was read."""
    parts, other = parts_of(store), parts_of(store)
    repair, look = repair_of(parts), parts.log.newest_from

    def while_another_commits(known: CommitObject) -> CommitObject:
        newest = look(known)
        other.writer.commit(Adding(other.schema, {PERSON: [f"p{newest.seq}"]}))
        other.finaliser.flush()
        return newest

    monkeypatch.setattr(parts.log, "newest_from", while_another_commits)
    assert repair.inspect() == ()
    other.close()


def test_only_the_tables_that_were_named_are_looked_at(store: ObjectStore) -> None:
    append(store, "mallory")
    repair = repair_of(parts_of(store))
    assert repair.inspect([CITY]) == ()
    assert [drift.table_key for drift in repair.inspect([CITY, PERSON])] == [PERSON]
    with pytest.raises(NotFound, match="node:Persons"):
        repair.inspect(["node:Persons"])


def test_a_pinned_version_that_is_gone_is_no_drift_but_a_loss(store: ObjectStore) -> None:
    parts = parts_of(store)
    store.delete(final_path(PEOPLE, parts.newest().pins[PERSON].version))
    with pytest.raises(InvariantViolation, match="from a backup"):
        repair_of(parts).inspect()


def test_inspecting_writes_nothing(store: ObjectStore, disk: Root) -> None:
    commit_and_die(store, "dan")
    append(store, "mallory")
    before = plain_ids(store), plain(store).version, list(store.names("__recovery"))
    seq = parts_of(store).newest().seq
    repair_of(parts_of(store)).inspect()
    assert (plain_ids(store), plain(store).version, list(store.names("__recovery"))) == before
    assert parts_of(store).newest().seq == seq
