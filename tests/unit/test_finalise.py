"""Phase D: who may give a version its final name, what else may be there, and what flush waits for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation, OmnirayError, StorageError, TableDrift
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit import phase_d as finalise
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.graph import Graph
from omniray.engine.history.manifest import Folded
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import EMBEDDED, Binding, CommitObject, Pin, first_of
from omniray.engine.maintenance.sweep import Sweeper
from omniray.engine.recovery.drift import sight
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables import old_versions as archive
from omniray.engine.tables.final_names import FinalName, give_final_name, observe_final_name
from omniray.engine.tables.version_names import final_path, own_path
from tests import foreign
from tests.graphs import CITY, PERSON, Adding, Parts, create_store, main_of, opened, parts_of, parts_on
from tests.healing import staged_versions
from tests.stores import Root

DAY_US = 24 * 3600 * 10**6


def commit_and_die(store: ObjectStore, *names: str) -> Pin:
    """A writer whose Phase D never runs; the pin that it left behind."""
    return foreign.commit_and_die(store, *names).newest().pins[PERSON]


def name_it(store: ObjectStore, pin: Pin) -> None:
    give_final_name(store, main_of(store).ulid, PERSON, pin)


def own_name(store: ObjectStore, pin: Pin) -> str:
    return own_path(pin, main_of(store).ulid)


def plain(store: ObjectStore, table: str = "nodes/Person.lance") -> lance.LanceDataset:
    return lance.dataset(f"{store.uri}/{table}", storage_options=store.lance_options)


def plain_names(store: ObjectStore) -> list[str]:
    found: list[str] = sorted(plain(store).to_table()["name"].to_pylist())
    return found


# Final names


def test_another_process_gives_the_final_name(any_root: Root) -> None:
    store = create_store(any_root)
    pin = commit_and_die(store, "ann")
    assert plain_names(store) == []
    name_it(store, pin)
    assert plain_names(store) == ["ann"]
    assert plain(store).read_transaction(pin.version).uuid == pin.transaction


def test_giving_the_final_name_again_changes_nothing(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    name_it(store, pin)
    name_it(store, pin)
    assert plain_names(store) == ["ann"]


def test_the_final_name_is_known_when_the_version_s_own_name_is_gone(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    name_it(store, pin)
    store.delete(own_name(store, pin))
    name_it(store, pin)


def test_a_final_name_that_a_foreign_writer_took_is_drift_and_stays_as_it_is(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    foreign = plain(store)
    lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
    assert plain(store).version == pin.version
    with pytest.raises(TableDrift, match="'omniray repair' shows") as drift:
        name_it(store, pin)
    assert drift.value.facts == {"table_key": PERSON, "version": pin.version}
    assert plain(store).read_transaction(pin.version).uuid != pin.transaction
    assert staged_versions(store) != []


def test_a_version_with_neither_name_is_an_invariant_violation(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    store.delete(own_name(store, pin))
    with pytest.raises(InvariantViolation, match="neither a final name nor one of its own"):
        name_it(store, pin)


def test_a_name_that_appears_between_the_two_looks_is_found(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process gives the final name and deletes the version's own name just before we copy."""
    pin = commit_and_die(store, "ann")
    copy = store.copy_if_absent

    def overtaken(source: str, target: str) -> Answer | None:
        copy(source, target)
        store.delete(source)
        return copy(source, target)

    monkeypatch.setattr(store, "copy_if_absent", overtaken)
    name_it(store, pin)
    assert plain_names(store) == ["ann"]


def test_unclear_answers_are_asked_again_and_then_told(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = commit_and_die(store, "ann")
    copy, answers = store.copy_if_absent, [Answer.UNCLEAR, Answer.UNCLEAR]

    def unclear_twice(source: str, target: str) -> Answer | None:
        return answers.pop() if answers else copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store, "copy_if_absent", lambda *_: Answer.UNCLEAR)
        with pytest.raises(StorageError, match="no clear answer"):
            name_it(store, pin)
    monkeypatch.setattr(store, "copy_if_absent", unclear_twice)
    name_it(store, pin)
    assert plain_names(store) == ["ann"]


def test_what_a_final_name_holds_is_told_from_its_bytes(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    assert observe_final_name(store, pin) is FinalName.ABSENT
    name_it(store, pin)
    assert observe_final_name(store, pin) is FinalName.OURS
    assert observe_final_name(store, replace(pin, transaction="another")) is FinalName.FOREIGN


def test_a_version_that_was_moved_to_the_history_had_its_final_name(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever comes late to Phase D would call it lost."""
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 1)
    pin = commit_and_die(store, "ann")
    name_it(store, pin)
    parts = parts_of(store)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
    parts.close()
    archive.archive(store, "nodes/Person.lance")
    assert store.get(final_path(pin.path, pin.version)) is None
    assert observe_final_name(store, pin) is FinalName.OURS
    name_it(store, pin)
    assert store.get(final_path(pin.path, pin.version)) is None


# Readers wait for nobody


@pytest.mark.parametrize("read_only", [True, False])
def test_everybody_reads_what_is_committed_before_phase_d(any_root: Root, read_only: bool) -> None:
    """The twin is plain Lance, which sees nothing before the final name is there."""
    store = create_store(any_root)
    commit_and_die(store, "ann", "bob")
    before = [file.path for file in store.files("")]
    with Graph(opened(store), read_only=read_only) as graph:
        assert sorted(graph.snapshot().table("Person", ["name"])["name"].to_pylist()) == ["ann", "bob"]
        if read_only:
            assert plain_names(store) == []
            assert [file.path for file in store.files("")] == before, "who only reads writes nothing"


def test_a_reader_of_a_drifted_table_reads_what_is_pinned(store: ObjectStore) -> None:
    """A foreign manifest under the final name of a pinned version is not taken for it."""
    pin = commit_and_die(store, "ann")
    theirs = plain(store)
    lance.write_dataset(theirs.to_table(), theirs.uri, mode="append")
    assert plain(store).version == pin.version
    assert parts_of(store).rows() == ["ann"]


# The finaliser


def test_when_flush_returns_names_are_final_and_folded_and_after_close_staged_versions_are_gone(any_root: Root) -> None:
    parts = parts_of(create_store(any_root))
    for name in ("ann", "bob"):
        parts.writer.commit(Adding(parts.schema, {PERSON: [name], CITY: [name]}))
    parts.finaliser.flush()
    assert plain_names(parts.store) == ["ann", "bob"]
    assert parts.manifest.folded_through() == parts.finaliser.finalised_through == parts.newest().seq
    parts.close()
    assert staged_versions(parts.store) == []


def test_what_a_dead_writer_left_is_finished_with_the_next_write(store: ObjectStore) -> None:
    commit_and_die(store, "ann", "bob")
    parts = parts_of(store)
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    parts.close()
    assert plain_names(store) == ["ann", "bob"]
    assert staged_versions(store) == []
    assert parts.manifest.folded_through() == 4


def test_final_names_are_given_in_the_order_of_the_line(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    real = finalise.give_final_name
    monkeypatch.setattr(
        finalise, "give_final_name", lambda *given_to: (given.append(given_to[-1].version), real(*given_to))
    )
    commit_and_die(parts.store, "ann", "bob", "cat")
    parts.writer.commit(Adding(parts.schema, {PERSON: ["dan"]}))
    parts.finaliser.flush()
    assert given == [2, 3, 4, 5]


def test_the_next_object_says_what_is_finalised(parts: Parts) -> None:
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    newest = parts.newest()
    assert newest.finalised_through == 2
    assert newest.is_final(newest.pins[PERSON])
    assert not newest.is_final(newest.pins[CITY])


def test_flush_waits_for_phase_d(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, real = threading.Event(), finalise.give_final_name

    def held(store: ObjectStore, main_line: str, key: str, pin: Pin) -> None:
        may_go.wait()
        real(store, main_line, key, pin)

    monkeypatch.setattr(finalise, "give_final_name", held)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    flushing = threading.Thread(target=parts.finaliser.flush)
    flushing.start()
    flushing.join(timeout=0.05)
    assert flushing.is_alive()
    assert plain_names(parts.store) == []
    may_go.set()
    flushing.join()
    assert plain_names(parts.store) == ["ann"]


def test_flush_with_nothing_to_do_returns(parts: Parts) -> None:
    parts.finaliser.flush()


def test_flush_says_what_stood_in_the_way_and_tries_again_the_next_time(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    with monkeypatch.context() as patch:
        patch.setattr(parts.store, "copy_if_absent", _down)
        parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
        with pytest.raises(StorageError, match="the store is down"):
            parts.finaliser.flush()
    parts.finaliser.flush()
    assert plain_names(parts.store) == ["ann", "bob"]


def _down(*_: object, **__: object) -> Answer:
    raise StorageError("the store is down")


def _broken(*_: object) -> Answer:
    raise RuntimeError("a bug, or an error of a library that nobody expected")


def test_an_unexpected_error_ends_a_flush_too(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the thread dies of it, and flush and close wait for ever."""
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    with monkeypatch.context() as patch:
        patch.setattr(parts.store, "copy_if_absent", _broken)
        parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
        flushing = threading.Thread(target=lambda: _swallow(parts.finaliser.flush), daemon=True)
        flushing.start()
        flushing.join(timeout=10)
        assert not flushing.is_alive()


def _swallow(call: Callable[[], None]) -> None:
    with pytest.raises(Exception, match="nobody expected"):
        call()


def test_drift_is_told_by_flush_and_the_foreign_version_is_left_alone(parts: Parts) -> None:
    foreign = plain(parts.store)
    pin = commit_and_die(parts.store, "ann")
    lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    with pytest.raises(TableDrift):
        parts.finaliser.flush()
    assert plain(parts.store).version == pin.version
    assert parts.manifest.folded() == Folded(3, named_through=1)


def test_a_writer_that_learnt_of_drift_behind_its_commit_writes_to_that_table_no_more(parts: Parts) -> None:
    """The numbers alone would not tell: its warm handle is one version ahead of the foreign one."""
    foreign = plain(parts.store)
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    parts.finaliser.flush()
    taken = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finalise, "give_final_name", lambda *_: taken.wait() and give_final_name(*_))
        parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
        lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
        taken.set()
        with pytest.raises(TableDrift):
            parts.finaliser.flush()
    with pytest.raises(TableDrift, match="'omniray repair' shows"):
        parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
    parts.writer.commit(Adding(parts.schema, {CITY: ["oslo"]}))


def test_a_name_that_can_t_be_deleted_is_no_failure(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.store, "delete_all", _down)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    assert plain_names(parts.store) == ["ann"]


# Sidecars


def test_an_operation_s_sidecar_is_there_until_it_is_folded_and_gone_after_close(any_root: Root) -> None:
    parts = parts_of(create_store(any_root))
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"], CITY: ["rome"]}))
    landed = parts.newest()
    assert parts.sidecars.listed() == [landed.op_id]
    folded: list[int] = []
    with armed({Point.D_BEFORE_SIDECARS: Action(lambda: folded.append(parts.manifest.folded_through()))}):
        parts.close()
    assert folded
    assert all(through >= landed.seq for through in folded)
    assert parts.sidecars.listed() == []


def test_the_sidecar_stays_when_the_fold_fails(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.manifest, "fold", _down)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    with pytest.raises(StorageError):
        parts.close()
    assert parts.sidecars.listed() == [parts.newest().op_id]
    assert staged_versions(parts.store) == [], "it has its final name"


def test_a_sidecar_that_can_t_be_deleted_is_no_failure_and_stays_for_the_next_recovery(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts.sidecars, "delete", _down)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.close()
    assert "event=tidy_failed sidecars=1" in caplog.text
    assert parts.sidecars.listed() == [parts.newest().op_id]


def test_when_nothing_new_comes_everything_is_finished_and_cleared_away_by_itself(parts: Parts) -> None:
    """Neither a flush nor a close is needed: in the steady state there is no sidecar and no staging name."""
    idle = threading.Event()
    with armed({Point.D_AFTER_SIDECARS: Action(idle.set)}):
        parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
        assert idle.wait(timeout=60)
    assert parts.sidecars.listed() == []
    assert staged_versions(parts.store) == []
    assert parts.manifest.folded_through() == parts.newest().seq


def test_a_flush_waits_for_what_was_noticed_before_it_and_not_for_writers_that_go_on(parts: Parts) -> None:
    """A fold that takes longer than the next commit must not keep a flush waiting for ever."""
    fold, folds = parts.manifest.fold, 0

    def busy(objects: Sequence[CommitObject], *, named_through: int) -> int:
        nonlocal folds
        folds += 1
        assert folds < 50, "the flush chases the writer"
        done = fold(objects, named_through=named_through)
        parts.writer.commit(Adding(parts.schema, {PERSON: [f"p{folds}"]}))
        return done

    parts.manifest.fold = busy  # type: ignore[method-assign]
    parts.writer.commit(Adding(parts.schema, {PERSON: ["first"]}))
    parts.finaliser.flush()
    parts.manifest.fold = fold  # type: ignore[method-assign]


def test_a_process_that_begins_does_not_read_the_line_further_back_than_the_fold(any_root: Root) -> None:
    store = create_store(any_root)
    for n in range(6):
        parts = parts_of(store)
        parts.writer.commit(Adding(parts.schema, {PERSON: [f"p{n}"]}))
        parts.finaliser.close()
    parts = parts_of(store)
    read: list[int] = []
    look = parts.log.read
    parts.log.read = lambda seq: read.append(seq) or look(seq)  # type: ignore[func-returns-value, method-assign]
    parts.writer.commit(Adding(parts.schema, {PERSON: ["last"]}))
    parts.finaliser.close()
    assert all(seq >= 6 for seq in read)


def test_drift_and_sweep_do_not_read_the_line_further_back_than_the_fold(store: ObjectStore) -> None:
    """Each process writes once and ends, so that no object says how far Phase D has come."""
    for n in range(6):
        parts = parts_of(store)
        parts.writer.commit(Adding(parts.schema, {PERSON: [f"p{n}"]}))
        parts.finaliser.close()
    parts = parts_of(store)
    newest, read = parts.newest(), []
    assert newest.finalised_through < 6
    look = parts.log.read
    parts.log.read = lambda seq: read.append(seq) or look(seq)  # type: ignore[func-returns-value, method-assign]
    seen = sight(parts.branch, parts.newest, [PERSON])
    assert (seen.unfinished, seen.drifted) == ((), ())
    sweeper = Sweeper(parts.branch, parts.tip, parts.finaliser, EMBEDDED)
    sweeper._pinned_staging(newest)
    assert all(seq >= newest.seq for seq in read)


# Pruning


def prunings(monkeypatch: pytest.MonkeyPatch, every: int) -> list[tuple[int, int]]:
    """What pruning is asked for from now on: up to which number, and at which time."""
    asked: list[tuple[int, int]] = []

    def note(store: ObjectStore, log: CommitLog, newest: CommitObject, through: int, *, now_us: int) -> None:
        asked.append((through, now_us))

    monkeypatch.setattr(finalise, "PRUNE_OBJECTS", every)
    monkeypatch.setattr(finalise, "prune", note)
    return asked


def write_and_end(store: ObjectStore, name: str) -> None:
    parts = parts_of(store)
    parts.writer.commit(Adding(parts.schema, {PERSON: [name]}))
    parts.close()


def test_one_in_many_short_lived_processes_prunes(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prunings(monkeypatch, every=4)
    for n in range(8):  # the birth is the first object
        write_and_end(store, f"p{n}")
    assert [through for through, _ in asked] == [4, 8]


def test_a_clock_ahead_of_the_store_s_makes_no_object_older(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prunings(monkeypatch, every=2)
    real_us = time.time_ns() // 1000
    monkeypatch.setattr(finalise.time, "time_ns", lambda: (real_us + 30 * DAY_US) * 1000)
    write_and_end(store, "ann")
    ((_, now_us),) = asked
    assert now_us < real_us + DAY_US


def test_a_clock_behind_the_store_s_is_believed(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prunings(monkeypatch, every=2)
    behind_us = time.time_ns() // 1000 - 30 * DAY_US
    monkeypatch.setattr(finalise.time, "time_ns", lambda: behind_us * 1000)
    write_and_end(store, "ann")
    assert [now_us for _, now_us in asked] == [behind_us]


# Drift of one table


def drifted_person(store: ObjectStore) -> Pin:
    """The pin of a version whose final name a foreign writer took."""
    theirs = plain(store)
    pin = commit_and_die(store, "ann")
    lance.write_dataset(theirs.to_table(), theirs.uri, mode="append")
    return pin


def _all_or_nothing(self: Finaliser, obj: CommitObject) -> None:
    for key, pin in obj.introduced().items():
        self._name_one(key, pin)


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_drift_of_one_table_holds_up_neither_the_final_names_nor_the_fold_of_the_others(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin names whole objects in the order of the line: one drifted table, and nothing is finished any more."""
    pin = drifted_person(store)
    if not has_guard:
        monkeypatch.setattr(Finaliser, "_name", _all_or_nothing)
    parts = parts_of(store)
    for n in range(3):
        parts.writer.commit(Adding(parts.schema, {CITY: [f"c{n}"]}))
    with pytest.raises(TableDrift):
        parts.finaliser.flush()
    newest, folded = parts.newest(), parts.manifest.folded()
    assert plain(store).version == pin.version, "the foreign version is left alone"
    assert folded == (Folded(newest.seq, pin.since - 1) if has_guard else Folded(1, 1))
    assert plain(store, "nodes/City.lance").count_rows() == (3 if has_guard else 0)
    assert parts.finaliser.finalised_through == (pin.since - 1 if has_guard else 1)
    assert set(parts.finaliser.drifted()) == ({PERSON} if has_guard else set())
    with contextlib.suppress(OmnirayError):
        parts.close()


def test_beside_a_drifted_table_each_write_walks_the_line_from_the_one_before(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not from the drift: that would cost more with each write, for as long as the table waits for its repair."""
    drifted_person(store)
    parts = parts_of(store)
    walked: list[int] = []
    down_to = CommitLog.down_to

    def walk(log: CommitLog, newest: CommitObject, seq: int) -> tuple[CommitObject, ...]:
        found = down_to(log, newest, seq)
        walked.append(len(found))
        return found

    with pytest.raises(TableDrift):
        write_and_flush(parts, "c0")
    monkeypatch.setattr(CommitLog, "down_to", walk)
    for n in range(1, 5):
        with pytest.raises(TableDrift):
            write_and_flush(parts, f"c{n}")
    assert walked == [1] * len(walked)
    assert len(walked) >= 4
    with contextlib.suppress(TableDrift):
        parts.close()


def test_beside_a_drifted_table_only_its_own_operation_keeps_its_sidecar(store: ObjectStore) -> None:
    """A sidecar that stays would be recovered after the grace period, although its process lives."""
    drifted_person(store)
    parts = parts_of(store)
    held_up = parts.sidecars.listed()
    for n in range(3):
        with pytest.raises(TableDrift):
            write_and_flush(parts, f"c{n}")
    parts.finaliser.tidy()
    assert len(held_up) == 1
    assert parts.sidecars.listed() == held_up
    with contextlib.suppress(TableDrift):
        parts.close()


def write_and_flush(parts: Parts, city: str) -> None:
    parts.writer.commit(Adding(parts.schema, {CITY: [city]}))
    parts.finaliser.flush()


def test_what_waits_for_a_repair_gets_its_final_name_once_the_foreign_version_is_gone(store: ObjectStore) -> None:
    pin = drifted_person(store)
    parts = parts_of(store)
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    with pytest.raises(TableDrift):
        parts.finaliser.flush()
    store.delete(final_path(pin.path, pin.version))  # somebody who knows what he does
    parts.writer.commit(Adding(parts.schema, {CITY: ["oslo"]}))
    parts.close()
    assert plain_names(store) == ["ann"]
    assert parts.manifest.folded() == Folded(parts.newest().seq, parts.newest().seq)
    assert (parts.finaliser.drifted(), staged_versions(store), parts.sidecars.listed()[1:]) == ({}, [], [])


def test_the_next_process_finishes_what_a_drifted_table_held_up(store: ObjectStore) -> None:
    """The fold has passed the object, so how far names are given is what tells where to begin."""
    pin = drifted_person(store)
    first = parts_of(store)
    first.writer.commit(Adding(first.schema, {CITY: ["rome"]}))
    with pytest.raises(TableDrift):
        first.close()
    assert first.manifest.folded() == Folded(first.newest().seq, pin.since - 1)
    store.delete(final_path(pin.path, pin.version))
    second = parts_of(store)
    second.writer.commit(Adding(second.schema, {CITY: ["oslo"]}))
    second.close()
    assert plain_names(store) == ["ann"]
    assert second.manifest.folded() == Folded(second.newest().seq, second.newest().seq)


# Branches


def test_a_branch_s_versions_get_no_final_names_and_its_line_is_folded(store: ObjectStore) -> None:
    main = parts_of(store)
    main.writer.commit(Adding(main.schema, {PERSON: ["ann"]}))
    main.close()
    trial = branched(main)
    trial.writer.commit(Adding(trial.schema, {PERSON: ["trial"]}))
    trial.close()
    assert trial.rows() == ["ann", "trial"]
    assert plain_names(store) == ["ann"]
    pin = trial.newest().pins[PERSON]
    assert store.get(own_path(pin, main.branch.graph_id)) is not None, "its one name stays"
    assert trial.manifest.folded() == Folded(2, 2)
    assert trial.sidecars.listed() == []
    assert parts_of(store).rows() == ["ann"]


def branched(main: Parts) -> Parts:
    """The parts of a process on a branch of main, which begins where main is now."""
    newest = main.newest()
    branch = BranchId("trial", new_ulid())
    binding = Binding(
        branch.ulid,
        newest.line,
        newest.seq,
        newest.pins,
        newest.schema,
        newest.contains,
        newest.head,
        newest.head_at_us,
    )
    first = first_of(binding)
    assert CommitLog(main.store, branch).put(first) is Answer.CREATED
    return parts_on(OpenBranch.at(main.store, main.branch.graph_id, branch, main.branch.accepted, first))


def test_a_flush_after_a_close_that_failed_says_so(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.manifest, "fold", _down)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    with pytest.raises(StorageError):
        parts.finaliser.close()
    with pytest.raises(StorageError, match="closed before Phase D was through"):
        parts.finaliser.flush()


def test_what_the_store_refused_once_is_finished_though_nobody_writes_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalise, "RETRY_S", 0.01)
    real, refusals, done = finalise.give_final_name, iter([StorageError("503")]), threading.Event()

    def unlucky(store: ObjectStore, main_line: str, table_key: str, pin: Pin) -> None:
        for refusal in refusals:
            raise refusal
        real(store, main_line, table_key, pin)
        done.set()

    monkeypatch.setattr(finalise, "give_final_name", unlucky)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    assert done.wait(60)
    parts.finaliser.flush()
    assert plain_names(parts.store) == ["ann"]


def test_who_was_told_of_nothing_deletes_nothing(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is only read has a finaliser, too, and reads the manifest."""
    parts.manifest.folded_through()
    monkeypatch.setattr(DirectoryStore, "delete_all", lambda self, paths: pytest.fail(f"deleted {paths}"))
    parts.finaliser.close()
