"""Phase D: who may give a version its final name, what else may be there, and what flush waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation, NotFinalised, StorageError, TableDrift
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.commit import phase_d as finalise
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.maintenance.sweep import Sweeper
from omniray.engine.recovery.drift import sight
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables import final_names
from omniray.engine.tables import old_versions as archive
from omniray.engine.tables.final_names import FinalName, give_final_name, observe_final_name, wait_for_final_name
from omniray.engine.tables.version_names import final_name
from tests.graphs import CITY, PERSON, Adding, Parts, create_store, parts_of
from tests.kit.faulty_store import ALWAYS, CallFault, Effect, FaultyStore
from tests.stores import Root

DAY_US = 24 * 3600 * 10**6


class NoPhaseD:
    """Stands in for a finaliser whose process died after Phase C."""

    finalised_through = 0

    def notice(self, landed: object, operation_id: object = None) -> None:
        pass

    def refuse_drifted(self, table_keys: object) -> None:
        pass


def commit_and_die(store: ObjectStore, *names: str) -> Pin:
    """A writer whose Phase D never runs; the pin that it left behind."""
    parts = parts_of(store)
    parts.writer._finaliser = NoPhaseD()  # type: ignore[assignment]
    for name in names:
        parts.writer.commit(Adding(parts.schema, {PERSON: [name]}))
    parts.writer.close()
    return parts.newest().pins[PERSON]


def plain(store: ObjectStore, table: str = "nodes/Person.lance") -> lance.LanceDataset:
    return lance.dataset(f"{store.uri}/{table}", storage_options=store.lance_options)


def plain_names(store: ObjectStore) -> list[str]:
    found: list[str] = sorted(plain(store).to_table()["name"].to_pylist())
    return found


def staged_versions(store: ObjectStore) -> list[str]:
    return [name for name in store.names("nodes/Person.lance/_versions") if ".manifest-" in name]


# Final names


def test_another_process_gives_the_final_name(any_root: Root) -> None:
    store = create_store(any_root)
    pin = commit_and_die(store, "ann")
    assert plain_names(store) == []
    give_final_name(store, PERSON, pin)
    assert plain_names(store) == ["ann"]
    assert plain(store).read_transaction(pin.version).uuid == pin.transaction


def test_giving_the_final_name_again_changes_nothing(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    give_final_name(store, PERSON, pin)
    give_final_name(store, PERSON, pin)
    assert plain_names(store) == ["ann"]


def test_the_final_name_is_known_when_the_staging_name_is_gone(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    assert pin.staging is not None
    give_final_name(store, PERSON, pin)
    store.delete(pin.staging)
    give_final_name(store, PERSON, pin)


def test_a_final_name_that_a_foreign_writer_took_is_drift_and_stays_as_it_is(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    foreign = plain(store)
    lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
    assert plain(store).version == pin.version
    with pytest.raises(TableDrift, match="'omniray repair' shows") as drift:
        give_final_name(store, PERSON, pin)
    assert drift.value.facts == {"table_key": PERSON, "version": pin.version}
    assert plain(store).read_transaction(pin.version).uuid != pin.transaction
    assert staged_versions(store) != []


def test_a_version_with_neither_name_is_an_invariant_violation(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    assert pin.staging is not None
    store.delete(pin.staging)
    with pytest.raises(InvariantViolation, match="neither a final nor a staging name"):
        give_final_name(store, PERSON, pin)


def test_a_name_that_appears_between_the_two_looks_is_found(store: ObjectStore) -> None:
    """Another process gives the final name and deletes the staging name just before we copy."""
    pin = commit_and_die(store, "ann")

    def overtake() -> None:
        assert pin.staging is not None
        give_final_name(store, PERSON, pin)
        store.delete(pin.staging)

    overtaken = FaultyStore(store)
    overtaken.arm(CallFault(Effect.PAUSE, frozenset({"copy_if_absent"}), pause=overtake))
    give_final_name(cast(ObjectStore, overtaken), PERSON, pin)
    assert plain_names(store) == ["ann"]


def test_unclear_answers_are_asked_again_and_then_told(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    silent, hesitant = FaultyStore(store), FaultyStore(store)
    silent.arm(CallFault(Effect.UNCLEAR, frozenset({"copy_if_absent"}), times=ALWAYS))
    with pytest.raises(StorageError, match="no clear answer"):
        give_final_name(cast(ObjectStore, silent), PERSON, pin)
    hesitant.arm(CallFault(Effect.UNCLEAR, frozenset({"copy_if_absent"}), times=2))
    give_final_name(cast(ObjectStore, hesitant), PERSON, pin)
    assert plain_names(store) == ["ann"]


def test_what_a_final_name_holds_is_told_from_its_bytes(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    assert pin.staging is not None
    assert observe_final_name(store, pin) is FinalName.ABSENT
    give_final_name(store, PERSON, pin)
    assert observe_final_name(store, pin) is FinalName.OURS
    assert observe_final_name(store, replace(pin, transaction="another")) is FinalName.FOREIGN


def test_a_version_that_was_moved_to_the_history_had_its_final_name(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever comes late to Phase D would call it lost."""
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 1)
    pin = commit_and_die(store, "ann")
    give_final_name(store, PERSON, pin)
    parts = parts_of(store)
    parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
    parts.close()
    archive.archive(store, "nodes/Person.lance")
    assert pin.staging is not None
    assert store.get(final_name(pin.staging)) is None
    assert observe_final_name(store, pin) is FinalName.OURS
    give_final_name(store, PERSON, pin)
    assert store.get(final_name(pin.staging)) is None


# Readers that may not write


def test_a_read_only_reader_waits_until_the_writer_is_through(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            give_final_name(store, PERSON, pin)

    wait_for_final_name(store, PERSON, pin, sleep=sleep)
    assert len(pauses) == 3


def test_a_read_only_reader_gives_up_after_a_while_says_who_must_heal_and_writes_nothing(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    pauses: list[float] = []
    with pytest.raises(NotFinalised, match="open the graph read-write once to heal"):
        wait_for_final_name(store, PERSON, pin, sleep=pauses.append)
    assert final_names.WAIT_FOR_FINAL_S <= sum(pauses) < 2 * final_names.WAIT_FOR_FINAL_S
    assert plain_names(store) == []


def test_a_read_only_reader_does_not_take_a_foreign_version_for_the_pinned_one(store: ObjectStore) -> None:
    pin = commit_and_die(store, "ann")
    foreign = plain(store)
    lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
    with pytest.raises(TableDrift):
        wait_for_final_name(store, PERSON, pin, sleep=lambda _: pytest.fail("it waited for what is there"))


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
        finalise, "give_final_name", lambda store, key, pin: (given.append(pin.version), real(store, key, pin))
    )
    commit_and_die(parts.store, "ann", "bob", "cat")
    parts.writer.commit(Adding(parts.schema, {PERSON: ["dan"]}))
    parts.finaliser.flush()
    assert given == [2, 3, 4, 5]


def test_the_next_object_says_what_is_finalised_and_frees_its_pins(parts: Parts) -> None:
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    parts.writer.commit(Adding(parts.schema, {CITY: ["rome"]}))
    newest = parts.newest()
    assert newest.finalised_through == 2
    assert newest.pins[PERSON].staging is None
    assert newest.pins[CITY].staging is not None


def test_flush_waits_for_phase_d(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, real = threading.Event(), finalise.give_final_name

    def held(store: ObjectStore, key: str, pin: Pin) -> None:
        may_go.wait()
        real(store, key, pin)

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


def test_flush_says_what_stood_in_the_way_and_tries_again_the_next_time(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    parts = parts_of(cast(ObjectStore, faulty))
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    faulty.arm(CallFault(Effect.FAIL, frozenset({"copy_if_absent"}), times=ALWAYS))
    parts.writer.commit(Adding(parts.schema, {PERSON: ["bob"]}))
    with pytest.raises(StorageError, match="was made to fail"):
        parts.finaliser.flush()
    faulty.disarm()
    parts.finaliser.flush()
    assert plain_names(store) == ["ann", "bob"]
    parts.close()


def _down(*_: object) -> Answer:
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
    assert parts.manifest.folded_through() == 1


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


def test_a_staging_name_that_can_t_be_deleted_is_no_failure(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.arm(CallFault(Effect.FAIL, frozenset({"delete_all"}), times=ALWAYS))
    parts = parts_of(cast(ObjectStore, faulty))
    parts.writer.commit(Adding(parts.schema, {PERSON: ["ann"]}))
    parts.finaliser.flush()
    assert plain_names(store) == ["ann"]
    faulty.disarm()
    parts.close()


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


def test_the_final_name_is_the_staging_name_without_its_suffix() -> None:
    assert final_name("nodes/A.lance/_versions/00001.manifest-abc-def") == "nodes/A.lance/_versions/00001.manifest"


def test_a_pin_without_a_staging_path_needs_nothing(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = replace(commit_and_die(store, "ann"), staging=None)
    nowhere = DirectoryStore(Path("/nowhere"))
    give_final_name(nowhere, PERSON, pin)
    wait_for_final_name(nowhere, PERSON, pin)


def test_a_flush_waits_for_what_was_noticed_before_it_and_not_for_writers_that_go_on(parts: Parts) -> None:
    """A fold that takes longer than the next commit must not keep a flush waiting for ever."""
    fold, folds = parts.manifest.fold, 0

    def busy(objects: Sequence[CommitObject]) -> int:
        nonlocal folds
        folds += 1
        assert folds < 50, "the flush chases the writer"
        done = fold(objects)
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
    seen = sight(store, parts.log, parts.schema, parts.newest, [PERSON])
    assert (seen.unfinished, seen.drifted) == ((), ())
    sweeper = Sweeper(store, parts.log, parts.tip, parts.manifest, parts.finaliser, parts.schema)
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


def test_drift_of_one_table_does_not_keep_the_others_from_their_final_names(parts: Parts) -> None:
    foreign = plain(parts.store)
    pin = commit_and_die(parts.store, "ann")
    lance.write_dataset(foreign.to_table(), foreign.uri, mode="append")
    for n in range(3):
        parts.writer.commit(Adding(parts.schema, {CITY: [f"c{n}"]}))
    with pytest.raises(TableDrift):
        parts.finaliser.flush()
    assert plain(parts.store, "nodes/City.lance").count_rows() == 3
    assert plain(parts.store).version == pin.version


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

    def unlucky(store: ObjectStore, table_key: str, pin: Pin) -> None:
        for refusal in refusals:
            raise refusal
        real(store, table_key, pin)
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
