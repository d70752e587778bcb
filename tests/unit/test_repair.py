"""Repair: foreign changes are adopted as a commit of their own or set aside, whatever interrupts it."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.errors import (
    ConstraintViolation,
    InvariantViolation,
    KeyConflict,
    LineOwned,
    OmnirayError,
    OutcomeUnknown,
    RecordError,
    StorageError,
    TableDrift,
)
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.judge.pinned_state import moved
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.maintenance.orphans import Kind, kind_of
from omniray.engine.recovery import repair as repair_module
from omniray.engine.recovery.repair import DISCARDED, KIND, RepairReport
from omniray.engine.recovery.rules import TableClass
from omniray.engine.schema.types import ID
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import versions
from omniray.engine.tables.version_names import final_path, own_path
from omniray.engine.tables.versions import VersionReader
from tests.coordination import TIMEOUT_S
from tests.foreign import (
    FOREIGN,
    FRIENDS,
    PEOPLE,
    NoPhaseD,
    append,
    commit_and_die,
    edges,
    people,
    plain,
    plain_ids,
    repair_of,
    with_people,
    write,
)  # fmt: skip
from tests.graphs import CITY, DELETE, INSERT_CITY, KNOWS, PERSON, Adding, Parts, insert, parts_of
from tests.graphs import people as people_of
from tests.stores import Root

ADOPTABLE = {
    "append": ["ann", "bob", "mallory"],
    "delete": ["bob"],
    "update": ["ann", "bob"],
    "overwrite": ["mallory"],
    "restore": ["ann"],
    "compaction": ["ann", "bob"],
}
ACTS: tuple[Callable[[Parts], RepairReport], ...] = (
    lambda parts: repair_of(parts).discard(actor="ann"),
    lambda parts: repair_of(parts).adopt(actor="ann"),
)


@pytest.fixture
def store(disk: Root, template: str) -> ObjectStore:
    shutil.copytree(template, f"{disk.uri}/graph")
    return open_store(f"{disk.uri}/graph")


def taken(store: ObjectStore, *, beyond: bool) -> None:
    """Two acknowledged commits, the first one's name taken; with `beyond`, further foreign versions on top."""
    commit_and_die(store, "dan", "eve")
    for name in ("mallory", "mike", "max") if beyond else ("mallory",):
        append(store, name)


def check_healthy(store: ObjectStore, expected: list[str]) -> None:
    """The graph, plain Lance and the next writer agree, and nothing is left once the dead are recovered."""
    parts = parts_of(store, is_dead=lambda sidecar: True)
    parts.writer.recover()
    try:
        assert repair_of(parts).inspect() == ()
        assert parts.rows() == expected
        parts.writer.commit(Adding(parts.schema, {PERSON: ["zoe"]}))
        parts.finaliser.flush()
        assert plain_ids(store) == sorted([*expected, "zoe"])
        assert plain(store).version == parts.newest().pins[PERSON].version
    finally:
        parts.close()
    assert list(store.names("__recovery")) == []


# Discarding what is ahead of the graph


@pytest.mark.parametrize("kind", FOREIGN)
def test_discarding_a_foreign_write_brings_the_acknowledged_rows_back(store: ObjectStore, kind: str) -> None:
    parts = parts_of(store)
    before = plain(store).to_table()
    FOREIGN[kind](store)
    head = plain(store).version
    report = repair_of(parts).discard(actor="ann")
    parts.close()
    assert report.versions == {PERSON: head + 1}
    assert plain(store).version == head + 1
    assert plain(store).to_table() == before
    check_healthy(store, ["ann", "bob"])


def test_discarding_is_a_commit_of_the_history_and_keeps_what_was_set_aside(any_root: Root) -> None:
    store = with_people(any_root)
    parts = parts_of(store)
    append(store, "mallory")
    report = repair_of(parts).discard(actor="ann")
    parts.close()
    with omniray.open(store.uri, storage_options=any_root.storage_options, read_only=True) as graph:
        entry = graph.history(1)[0]
        assert (entry.commit_id, entry.kind, entry.actor) == (report.commit_id, KIND, "ann")
        assert list(entry.tables) == [PERSON]
    assert sorted(plain(store).checkout_version(report.found[0].head).to_table()[ID].to_pylist()) == [
        "ann", "bob", "mallory",
    ]  # fmt: skip
    check_healthy(store, ["ann", "bob"])


def test_several_tables_are_repaired_in_one_commit(parts: Parts) -> None:
    append(parts.store, "mallory")
    write(parts.store, edges(("ann", "nobody")), FRIENDS)
    report = repair_of(parts).discard()
    assert report.versions.keys() == {PERSON, KNOWS}
    assert parts.newest().commits[0].tables == (KNOWS, PERSON)


def test_only_the_tables_that_were_named_are_repaired(parts: Parts) -> None:
    append(parts.store, "mallory")
    write(parts.store, edges(("ann", "nobody")), FRIENDS)
    assert repair_of(parts).discard([PERSON]).versions.keys() == {PERSON}
    assert [drift.table_key for drift in repair_of(parts).inspect()] == [KNOWS]


# Discarding what took a name


@pytest.mark.parametrize("beyond", [False, True])
def test_discarding_gives_acknowledged_commits_their_names_back(store: ObjectStore, beyond: bool) -> None:
    taken(store, beyond=beyond)
    with omniray.open(store.uri, read_only=True) as graph:
        commits = [entry.commit_id for entry in graph.history()]
    parts = parts_of(store)
    report = repair_of(parts).discard(actor="ann")
    parts.close()
    assert (report.commit_id is not None) == beyond
    assert plain_ids(store) == ["ann", "bob", "dan", "eve"]
    with omniray.open(store.uri) as graph:
        expected = [["ann", "bob", "dan", "eve"], ["ann", "bob", "dan"], ["ann", "bob"], ["ann", "bob", "cid"]]
        assert [people_of(graph.snapshot(at=commit)) for commit in commits[:4]] == expected
    check_healthy(store, ["ann", "bob", "dan", "eve"])


def test_a_write_after_a_name_was_taken_and_before_phase_d_found_it_loses_nothing(store: ObjectStore) -> None:
    """A listing shows the number as it would after Phase D, so it is accepted; the documents say so."""
    commit_and_die(store, "dan")
    append(store, "mallory")
    commit_and_die(store, "eve")
    parts = parts_of(store)
    assert parts.rows() == ["ann", "bob", "dan", "eve"]
    assert len(repair_of(parts).discard().aside) == 1
    parts.close()
    check_healthy(store, ["ann", "bob", "dan", "eve"])


def test_all_that_took_a_name_is_set_aside_wherever_the_graph_lies(any_root: Root) -> None:
    store = with_people(any_root)
    taken(store, beyond=True)
    parts = parts_of(store)
    assert len(repair_of(parts).discard().aside) == 2
    parts.close()
    check_healthy(store, ["ann", "bob", "dan", "eve"])


def test_a_process_that_looked_at_the_foreign_rows_reads_the_acknowledged_ones_afterwards(parts: Parts) -> None:
    """Lance caches by number, and this number held both."""
    commit_and_die(parts.store, "dan")
    append(parts.store, "mallory")
    repair_of(parts).discard()
    assert parts.rows() == ["ann", "bob", "dan"]
    pin = parts.newest().pins[PERSON]
    assert parts.cache.open(PERSON, pin).dataset.read_transaction(pin.version).uuid == pin.transaction


def test_a_pinned_version_without_its_final_name_gets_it_before_it_is_brought_back(parts: Parts) -> None:
    pin = commit_and_die(parts.store, "dan").newest().pins[PERSON]
    final = final_path(pin.path, pin.version)
    parts.store.copy(own_path(pin, parts.branch.graph_id), final)
    append(parts.store, "mallory")
    parts.store.delete(final)
    repair_of(parts).discard()
    check_healthy(parts.store, ["ann", "bob", "dan"])


def test_the_foreign_manifest_is_kept_aside_and_the_sweep_knows_its_files(parts: Parts) -> None:
    taken(parts.store, beyond=False)
    files = {file.path for fragment in plain(parts.store).get_fragments() for file in fragment.data_files()}
    version = plain(parts.store).version
    foreign = parts.store.get(f"{PEOPLE}/_versions/{SEQ_MAX - version:020}.manifest")
    (path,) = repair_of(parts).discard().aside
    assert parts.store.get(path) == foreign
    assert kind_of(PEOPLE, path) is Kind.MANIFEST
    assert VersionReader(parts.store).references(PEOPLE, path) >= {f"data/{file}" for file in files}


def test_giving_names_back_is_recorded_in_the_line(parts: Parts) -> None:
    taken(parts.store, beyond=False)
    repair_of(parts).discard(actor="ann")
    (recovery,) = [recovery for obj in parts.line() for recovery in obj.recoveries]
    assert (recovery.recovery_kind, recovery.sidecar_writer_kind) == (DISCARDED, KIND)
    assert recovery.recovery_for_actor == "ann"
    assert recovery.outcomes == {PERSON: TableClass.FINAL_NAME_TAKEN}


def test_a_name_is_given_back_again_without_harm_by_a_process_that_slept(parts: Parts) -> None:
    """The second repair saw the foreign manifest before the first gave the name back, and acts long after it."""
    store = parts.store
    taken(store, beyond=False)
    other = parts_of(store)
    with armed({Point.REPAIR_AFTER_ASIDE: Action(lambda: _discard(other), nth=1)}):
        repair_of(parts).discard()
    other.close()
    assert plain_ids(store) == ["ann", "bob", "dan", "eve"]
    assert len(list(store.names(f"{PEOPLE}/_aside"))) == 1


def test_a_foreign_manifest_that_was_moved_to_the_history_is_set_aside_there(parts: Parts) -> None:
    store = parts.store
    taken(store, beyond=False)
    version = plain(store).version
    final, old = (f"{PEOPLE}/{folder}/{SEQ_MAX - version:020}.manifest" for folder in ("_versions", "_history"))
    store.copy(final, old)
    store.delete(final)
    repair_of(parts).discard()
    assert plain_ids(store) == ["ann", "bob", "dan", "eve"]
    assert len(list(store.names(f"{PEOPLE}/_aside"))) == 1


@pytest.mark.parametrize("spoil", [lambda store, path: store.delete(path), lambda store, path: store.put(path, b"?")])
def test_a_name_is_not_overwritten_when_the_pinned_manifest_is_gone(
    parts: Parts, spoil: Callable[[ObjectStore, str], None]
) -> None:
    store = parts.store
    dead = commit_and_die(store, "dan")
    append(store, "mallory")
    spoil(store, own_path(dead.newest().pins[PERSON], dead.branch.graph_id))
    with pytest.raises(InvariantViolation, match="from a backup"):
        repair_of(parts).discard()
    assert plain_ids(store) == ["ann", "bob", "mallory"]


@pytest.mark.usefixtures("no_transactions")
def test_a_name_is_given_back_behind_an_adopted_version_that_has_no_transaction(store: ObjectStore) -> None:
    """The adopted version is not finished either; nothing was staged of it, and its final name is its own."""
    append(store, "mallory")
    adopting = repair_of(parts_of(store))
    died: Any = NoPhaseD()
    adopting._finaliser = died
    adopting.adopt()
    commit_and_die(store, "dan")
    append(store, "mike")
    parts = parts_of(store, is_dead=lambda sidecar: True)
    assert len(repair_of(parts).discard().aside) == 1
    parts.close()
    check_healthy(store, ["ann", "bob", "dan", "mallory"])


# Beside other threads


class WatchedLock:
    """A lock that says when somebody has to wait for it."""

    def __init__(self, waits: Callable[[], object]) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("how", ["adopt", "discard"])
def test_a_write_of_another_thread_waits_for_the_repair(store: ObjectStore, how: str) -> None:
    append(store, "mallory")
    decided = threading.Event()
    writes: list[Future[object]] = []
    with omniray.open(store.uri) as graph, ThreadPoolExecutor(1) as pool:
        lock: Any = WatchedLock(decided.set)
        graph._writer._lock = lock

        def write_beside() -> None:
            writes.append(pool.submit(graph.mutate, INSERT_CITY, {"name": "rome"}))
            writes[0].add_done_callback(lambda _: decided.set())
            assert decided.wait(TIMEOUT_S)
            assert not writes[0].done(), "it waits"

        with armed({Point.REPAIR_BEFORE_PUT: Action(write_beside, nth=1)}):
            repaired = graph.repair(adopt=how == "adopt", discard=how == "discard")
        writes[0].result()
        assert [entry.commit_id for entry in graph.history(2)][1] == repaired.commit_id
        assert [entry.kind for entry in graph.history(2)] == ["Mutation", KIND]


# Adopting


@pytest.mark.parametrize("kind", ADOPTABLE)
def test_adopting_makes_a_foreign_write_a_commit(store: ObjectStore, kind: str) -> None:
    parts = parts_of(store)
    FOREIGN[kind](store)
    head = plain(store).version
    report = repair_of(parts).adopt(actor="ann")
    commit = parts.newest().commits[0]
    assert (commit.commit_id, commit.kind, commit.actor) == (report.commit_id, KIND, "ann")
    assert report.versions == {PERSON: head}
    parts.close()
    check_healthy(store, ADOPTABLE[kind])


@pytest.fixture
def no_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign writers leave no transaction."""
    monkeypatch.setattr(versions, "_transaction_of", lambda dataset, version: ("Other", ""))


@pytest.mark.usefixtures("no_transactions")
def test_two_versions_that_were_adopted_without_a_transaction_are_told_apart(store: ObjectStore) -> None:
    """Neither the ids that a process knows nor the content of the first one are taken for those of the second."""
    pins = [parts_of(store).newest().pins[PERSON]]
    with omniray.open(store.uri) as graph:
        for name in ("mallory", "mike"):
            append(store, name)
            graph.repair(adopt=True)
            pins.append(parts_of(store).newest().pins[PERSON])
            with pytest.raises(KeyConflict):
                graph.load([{"name": name}], type="Person")
    assert [pin.transaction for pin in pins[1:]] == ["", ""]
    assert "" not in {pin.content for pin in pins}
    assert len({pin.content for pin in pins}) == 3


def test_a_table_with_another_adopted_version_has_moved_though_neither_has_a_transaction(parts: Parts) -> None:
    first = replace(parts.newest().pins[PERSON], transaction="")
    before = replace(parts.newest(), pins={PERSON: first})
    after = replace(before, pins={PERSON: replace(first, version=first.version + 1)})
    assert moved({PERSON}, before, after) == {PERSON}
    assert moved({PERSON}, before, before) == set()


def test_rows_of_several_tables_are_adopted_as_one(store: ObjectStore) -> None:
    """The edge needs the node, and neither is in the graph before."""
    parts = parts_of(store)
    append(store, "mallory")
    write(store, edges(("ann", "mallory")), FRIENDS)
    with pytest.raises(ConstraintViolation, match="dst 'mallory' not found in Person"):
        repair_of(parts).adopt([KNOWS])
    assert repair_of(parts).adopt().versions.keys() == {PERSON, KNOWS}
    parts.close()
    check_healthy(store, ["ann", "bob", "mallory"])


def other_id() -> pa.Table:
    rows = people("mallory")
    return rows.set_column(0, rows.schema.field(ID), pa.array(["somebody else"]))


@pytest.mark.parametrize(
    ("spoil", "error", "match"),
    [
        (lambda s: write(s, other_id()), RecordError, "'somebody else' differs from 'mallory'"),
        (lambda s: append(s, ""), RecordError, "an id has 1 to"),
        (lambda s: append(s, "ann"), ConstraintViolation, "duplicate key 'ann'"),
        (lambda s: write(s, edges(("ann", "nobody")), FRIENDS), ConstraintViolation, "dst 'nobody' not found"),
        (FOREIGN["add_columns"], TableDrift, "its schema changed to .*extra"),
        (
            lambda s: write(s, people("ann"), mode="overwrite", data_storage_version="2.0"),
            TableDrift, "another storage format",
        ),
    ],
    ids=["id not of the key", "empty id", "duplicate", "edge to nobody", "new column", "old file format"],
)  # fmt: skip
def test_adopting_refuses_what_the_graph_would_not_have_accepted(
    parts: Parts, spoil: Callable[[ObjectStore], None], error: type[OmnirayError], match: str
) -> None:
    before = parts.newest()
    spoil(parts.store)
    with pytest.raises(error, match=f"can't be adopted: .*{match}.*omniray repair --discard"):
        repair_of(parts).adopt()
    assert parts.newest() == before
    assert len(repair_of(parts).inspect()) == 1


def test_a_column_that_was_dropped_and_made_anew_is_not_adopted(parts: Parts) -> None:
    """It looks the same, but has another field id: rows of later writes would be read as null."""
    plain(parts.store).drop_columns(["age"])
    plain(parts.store).add_columns(pa.schema([pa.field("age", pa.int32())]))
    with pytest.raises(TableDrift, match="its schema changed"):
        repair_of(parts).adopt()


def test_a_node_that_edges_of_the_graph_need_is_not_adopted_away(parts: Parts) -> None:
    write(parts.store, edges(("ann", "bob")), FRIENDS)
    repair_of(parts).adopt()
    plain(parts.store).delete("id = 'bob'")
    with pytest.raises(ConstraintViolation, match="still needs it"):
        repair_of(parts).adopt()


def test_a_name_that_was_taken_is_not_adopted_since_commits_would_be_lost(parts: Parts) -> None:
    taken(parts.store, beyond=True)
    lost = parts.commit_ids()[-2:]
    with pytest.raises(TableDrift, match=f"{', '.join(lost)}.*omniray repair --discard"):
        repair_of(parts).adopt()
    assert plain_ids(parts.store) == ["ann", "bob", "mallory", "max", "mike"]


# Beside others


@pytest.mark.parametrize("act", ACTS)
def test_repairing_twice_does_nothing_more(parts: Parts, act: Callable[[Parts], RepairReport]) -> None:
    append(parts.store, "mallory")
    act(parts)
    seq = parts.newest().seq
    assert act(parts) == RepairReport(())
    assert parts.newest().seq == seq


@pytest.mark.parametrize("act", ACTS)
def test_a_commit_to_another_table_meanwhile_is_built_on(parts: Parts, act: Callable[[Parts], RepairReport]) -> None:
    append(parts.store, "mallory")
    other = parts_of(parts.store)
    city = Action(lambda: _add(other, CITY, "rome"), nth=1)
    with armed({Point.REPAIR_BEFORE_PUT: city}):
        act(parts)
    assert [commit.kind for obj in parts.line()[-2:] for commit in obj.commits] == ["Mutation", KIND]
    other.close()
    parts.close()
    assert list(parts.store.names("__recovery")) == []


def test_rows_are_judged_again_when_the_graph_moved_meanwhile(parts: Parts) -> None:
    write(parts.store, edges(("ann", "bob")), FRIENDS)

    def remove_bob() -> None:
        with omniray.open(parts.store.uri) as graph:
            graph.mutate(DELETE, {"name": "bob"})

    with (
        armed({Point.REPAIR_BEFORE_PUT: Action(remove_bob, nth=1)}),
        pytest.raises(ConstraintViolation, match="dst 'bob' not found"),
    ):
        repair_of(parts).adopt([KNOWS])


def test_what_a_foreign_writer_adds_meanwhile_is_judged_and_adopted_too(parts: Parts) -> None:
    append(parts.store, "mallory")
    other = parts_of(parts.store)

    def write_on() -> None:
        append(parts.store, "mike")
        _add(other, CITY, "rome")

    with armed({Point.REPAIR_BEFORE_PUT: Action(write_on, nth=1)}):
        repair_of(parts).adopt()
    other.close()
    check_healthy(parts.store, ["ann", "bob", "mallory", "mike"])


def test_somebody_else_s_repair_leaves_nothing_to_do(parts: Parts) -> None:
    append(parts.store, "mallory")
    other = parts_of(parts.store)
    with armed({Point.REPAIR_BEFORE_PUT: Action(lambda: _discard(other), nth=1)}):
        report = repair_of(parts).adopt()
    assert (report.commit_id, len(report.found)) == (None, 1)
    assert parts.rows() == ["ann", "bob"]
    other.close()


def _discard(parts: Parts) -> None:
    repair_of(parts).discard()


def _add(parts: Parts, table_key: str, name: str) -> None:
    parts.writer.commit(Adding(parts.schema, {table_key: [name]}))


def test_a_foreign_write_during_the_repair_is_discarded_too(parts: Parts) -> None:
    append(parts.store, "mallory")
    with armed({Point.REPAIR_BEFORE_ACT: Action(lambda: append(parts.store, "mike"), nth=1)}):
        repair_of(parts).discard()
    check_healthy(parts.store, ["ann", "bob"])


def test_a_foreign_write_that_takes_the_repair_s_own_name_is_discarded_too(parts: Parts) -> None:
    append(parts.store, "mallory")
    with armed({Point.REPAIR_BEFORE_PUT: Action(lambda: append(parts.store, "mike"), nth=1)}):
        repair_of(parts).discard()
    assert plain_ids(parts.store) == ["ann", "bob"]


def test_a_table_that_never_rests_is_given_up(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "ROUNDS_MAX", 3)
    append(parts.store, "mallory")
    with (
        armed({Point.REPAIR_BEFORE_ACT: Action(lambda: append(parts.store, "mike"))}),
        pytest.raises(TableDrift, match="kept changing"),
    ):
        repair_of(parts).discard()


def test_while_a_coordinator_owns_the_line_nothing_is_repaired_beside_it(parts: Parts) -> None:
    append(parts.store, "mallory")
    take_over(parts.tip, str(Incarnation.new("there:1")))
    for act in ACTS:
        with pytest.raises(LineOwned):
            act(parts)


def test_a_writer_that_met_the_drift_goes_on_after_another_process_repaired_it(store: ObjectStore, disk: Root) -> None:
    with omniray.open(store.uri) as graph:
        append(store, "mallory")
        with pytest.raises(TableDrift):
            insert(graph, "dan")
        other = parts_of(store)
        repair_of(other).discard()
        other.close()
        insert(graph, "dan")
        assert people_of(graph) == ["ann", "bob", "dan"]


# Interrupted


POINTS = [point for point in Point if point.name.startswith("REPAIR_")]


@pytest.mark.parametrize("point", POINTS)
def test_a_discard_that_died_anywhere_is_finished_by_the_next_one(store: ObjectStore, point: Point) -> None:
    """Both kinds of drift at once; what the dead process left is recovered like any other operation."""
    taken(store, beyond=True)
    for nth in (1, 2, 3):
        dying = parts_of(store)
        with armed({point: Action(fail, nth=nth)}), contextlib.suppress(FailpointHit):
            repair_of(dying).discard()
    survivor = parts_of(store, is_dead=lambda sidecar: True)
    survivor.writer.recover()
    repair_of(survivor).discard()
    survivor.writer.recover()
    survivor.finaliser.flush()
    survivor.close()
    discarded = [r for obj in survivor.line() for r in obj.recoveries if r.recovery_kind == DISCARDED]
    assert len(discarded) == 1
    check_healthy(store, ["ann", "bob", "dan", "eve"])


@pytest.mark.parametrize("point", [Point.REPAIR_BEFORE_ACT, Point.REPAIR_BEFORE_PUT, Point.REPAIR_AFTER_PUT])
def test_an_adoption_that_died_anywhere_is_finished_by_the_next_one(store: ObjectStore, point: Point) -> None:
    append(store, "mallory")
    with armed({point: Action(fail)}), pytest.raises(FailpointHit):
        repair_of(parts_of(store)).adopt()
    survivor = parts_of(store, is_dead=lambda sidecar: True)
    survivor.writer.recover()
    repair_of(survivor).adopt()
    survivor.close()
    commits = [commit for obj in survivor.line() for commit in obj.commits if commit.kind == KIND]
    assert len(commits) == 1
    check_healthy(store, ["ann", "bob", "mallory"])


def test_a_repair_whose_outcome_is_unknown_leaves_everything_to_recovery(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an unclear put may have committed must not be deleted: here it has."""
    append(parts.store, "mallory")
    repair = repair_of(parts)

    def put_and_lose_the_answer(tip: Tip, ours: CommitObject) -> NoReturn:
        parts.log.put(ours)
        raise OutcomeUnknown("no clear answer", txn_id=ours.op_id)

    with monkeypatch.context() as patch:
        patch.setattr(Tip, "put", put_and_lose_the_answer)
        with pytest.raises(OutcomeUnknown):
            repair.discard()
    check_healthy(parts.store, ["ann", "bob"])


def test_a_repair_whose_put_is_refused_keeps_what_a_late_arrival_would_need(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the store says nothing of a request that is still on its way."""
    append(parts.store, "mallory")
    repair = repair_of(parts)
    on_their_way: list[CommitObject] = []

    def refuse(tip: Tip, ours: CommitObject) -> NoReturn:
        on_their_way.append(ours)
        raise StorageError("503 SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(Tip, "put", refuse)
        with pytest.raises(StorageError, match="SlowDown"):
            repair.discard()
    for late in on_their_way:
        parts.log.put(late)
    check_healthy(parts.store, ["ann", "bob"])
