"""The rules of the commit protocol that recovery does not test, each with a twin that lacks the guard and breaks it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from omniray.engine import writer
from omniray.engine.base.errors import Conflict, InvariantViolation, LineOwned, OmnirayError, StorageError, TableDrift
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit import attempt, phase_d
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.cas_table import StagedSwap, SwapTable
from omniray.engine.history.manifest import Manifest
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.line import prune
from omniray.engine.line.commit_json import encode
from omniray.engine.line.commit_log import HINT, CommitLog
from omniray.engine.line.commit_object import (
    SEQ_MAX,
    CommitObject,
    Fate,
    Pin,
    Remark,
    explain_version,
    follow,
    follow_with,
)
from omniray.engine.line.line_end import RETENTION_S, LineEnd
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.maintenance import barrier, sweep
from omniray.engine.maintenance.sweep import Sweeper
from omniray.engine.recovery import recoverer, repair
from omniray.engine.recovery.recoverer import Recoverer
from omniray.engine.recovery.rules import Decision, OperationFacts, TableClass, decide
from omniray.engine.rows.mode import Mode
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore, StoredFile
from omniray.engine.tables import storage
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.old_versions import newest_version
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.tables.version_names import final_path
from tests.foreign import NoPhaseD, append, commit_and_die, plain, plain_ids, repair_of
from tests.graphs import CITY, PERSON, Adding, Parts, main_of, parts_of, rows_of
from tests.healing import add, left_by, recovered, wounds
from tests.kit.mortal import bury, crash, mortal
from tests.lines import BRANCH, line
from tests.stores import Root

COORDINATOR = str(Incarnation.new("ray://head:6379"))
DAY_S = 24 * 3600
NOW_US = time.time_ns() // 1000
LONG_AFTER_US = NOW_US + int((RETENTION_S + DAY_S) * 1e6)

with_twin = pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])


@pytest.fixture
def opened(opened: Callable[..., Parts]) -> Callable[..., Parts]:
    """Opens the graph as one more process."""
    return lambda **options: opened(**{"is_dead": lambda sidecar: False, **options})


def write(parts: Parts, name: str, table_key: str = PERSON) -> Adding:
    return add(parts, name, tables=[table_key])


def seen_by_its_newest(parts: Parts) -> list[str]:
    """The people as of the object that this process took for the newest when it began."""
    table = parts.cache.open(PERSON, parts.tip.newest.pins[PERSON])
    found: list[str] = sorted(table.scan(["id"]).read_all()["id"].to_pylist())
    return found


# Reading


def _by_the_hint_alone(self: CommitLog) -> CommitObject | None:
    hinted = self._hinted()
    return None if hinted is None else self.newest_from(hinted)


@with_twin
def test_a_hint_of_long_ago_does_not_hide_the_newest_object(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """A writer slept before it left its hint, and another put a number that was pruned: nothing lies above it.

    The twin does not list then. It takes the stray for the newest object, and acknowledged rows are not there.
    """
    first, others = parts_of(store).newest(), opened()
    for name in ("ann", "bob", "cid"):
        write(others, name)
    others.finaliser.flush()
    newest = others.newest()
    assert prune.prune(store, others.log, newest, newest.seq, now_us=LONG_AFTER_US, keep=1) == 2
    stray = follow(first, op_id=new_ulid(), changed={}, commits=(), finalised_through=0)
    assert store.put_if_absent(others.log.path(stray.seq), encode(stray)) is Answer.CREATED
    store.put_hint(f"__commits/{others.branch.graph_id}/{HINT}", str(stray.seq).encode())
    if not has_guard:
        monkeypatch.setattr(CommitLog, "newest", _by_the_hint_alone)
    late = opened()
    assert late.tip.newest == (newest if has_guard else stray)
    assert seen_by_its_newest(late) == (["ann", "bob", "cid"] if has_guard else [])


def _explained_by_the_line_before_head(
    found: int, expected: int, newest: CommitObject, table_key: str, judged_on: CommitObject
) -> str:
    return explain_version(found, expected, judged_on, table_key, judged_on)


@with_twin
def test_a_writer_does_not_take_a_faster_one_for_a_foreign_one(
    opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """HEAD is read, then the line. The twin goes by the line as it was before, which does not explain HEAD."""
    slow, fast = opened(), opened()
    write(fast, "ann")
    fast.finaliser.flush()
    if not has_guard:
        monkeypatch.setattr(writer, "explain_version", _explained_by_the_line_before_head)
    with contextlib.nullcontext() if has_guard else pytest.raises(TableDrift):
        write(slow, "bob")
    assert fast.rows() == (["ann", "bob"] if has_guard else ["ann"])


@with_twin
def test_a_writer_does_not_take_a_foreign_one_for_a_faster_one(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin tries again until its time is up, and tells its caller of too many writers."""
    parts = opened()
    append(store, "mallory")

    def always_explained(*_: object) -> str:
        parts.clock.sleep(writer.COMMIT_TIMEOUT_S / 3)
        return "explained"

    if not has_guard:
        monkeypatch.setattr(writer, "explain_version", always_explained)
    with pytest.raises(TableDrift if has_guard else Conflict, match="repair" if has_guard else "lost every race"):
        write(parts, "ann")


# One owner


def _decide_for_a_line_of_everybody_s(operation: OperationFacts, classes: Iterable[TableClass]) -> Decision:
    return decide(replace(operation, may_put=True), classes)


def _sweep(parts: Parts) -> None:
    Sweeper(parts.branch, parts.tip, parts.finaliser).sweep(now_us=NOW_US)


EXTENDING: dict[str, Callable[[Parts], object]] = {
    "write": lambda parts: write(parts, "ann", CITY),
    "recovery": recovered,
    "sweep": _sweep,
    "adoption": lambda parts: repair_of(parts).adopt([PERSON]),
    "discard": lambda parts: repair_of(parts).discard([PERSON]),
}


@with_twin
@pytest.mark.parametrize("what", EXTENDING)
def test_while_a_coordinator_owns_the_line_nobody_else_extends_it(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, what: str, has_guard: bool
) -> None:
    """The twins don't look at the owner. An object in the coordinator's own epoch is not its own, and beats its put."""
    stranger = opened(is_dead=lambda sidecar: True)
    if what == "recovery":
        left_by(store, Point.C_BEFORE_PUT)
    elif what != "sweep":
        append(store, "mallory")
    coordinator = opened(owner=COORDINATOR)
    taken = take_over(coordinator.tip, COORDINATOR)
    if not has_guard:
        for module in (writer, barrier, repair):
            monkeypatch.setattr(module, "refuse_stranger", lambda owner, newest: None)
        monkeypatch.setattr(recoverer, "decide", _decide_for_a_line_of_everybody_s)
        monkeypatch.setattr(stranger.recoverer, "_owner", COORDINATOR)  # what it asks again, before each put
        monkeypatch.setattr(Recoverer, "_owns", lambda self, sidecar, newest: False)
    with contextlib.suppress(OmnirayError):
        EXTENDING[what](stranger)
    strangers = [obj for obj in coordinator.line() if obj.seq > taken.seq]
    assert {obj.owner for obj in strangers} == (set() if has_guard else {COORDINATOR})
    fate = coordinator.tip.put(follow_with(taken, Remark(new_ulid())))
    assert fate is (Fate.LANDED if has_guard else Fate.LOST)


BEFORE_ITS_PUT = {"sweep": Point.SWEEP_BEFORE_PUT, "discard": Point.REPAIR_BEFORE_PUT}


@with_twin
@pytest.mark.parametrize("what", BEFORE_ITS_PUT)
def test_who_owns_the_line_is_asked_again_before_every_put(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, what: str, has_guard: bool
) -> None:
    """A coordinator takes the line over after it was seen to be everybody's. The twins go by that first look."""
    commit_and_die(store, "ann")
    if what == "discard":
        append(store, "mallory")
    stranger, coordinator = opened(), opened(owner=COORDINATOR)
    if not has_guard:
        for module in (barrier, repair):
            monkeypatch.setattr(module, "refuse_stranger", lambda owner, newest: None)
    taking_over = Action(lambda: (take_over(coordinator.tip, COORDINATOR), None)[1], nth=1)
    with (
        armed({BEFORE_ITS_PUT[what]: taking_over}),
        pytest.raises(LineOwned) if has_guard else contextlib.nullcontext(),
    ):
        EXTENDING[what](stranger)
    of_its_epoch = [obj.op_id for obj in coordinator.line() if obj.owner == COORDINATOR]
    assert (of_its_epoch == [coordinator.tip.newest.op_id]) == has_guard


# Fresh attempts


@with_twin
def test_what_is_recorded_as_rolled_back_does_not_commit_later(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """A writer that was only slow is recovered just before its put. The twin tries again under the same operation."""
    slow, healer = opened(), opened(is_dead=lambda sidecar: True)
    if not has_guard:
        always = new_ulid()
        monkeypatch.setattr(attempt, "new_ulid", lambda: always)
    with armed({Point.C_BEFORE_PUT: Action(lambda: (recovered(healer), None)[1], nth=1)}):
        write(slow, "ann")
    assert slow.rows() == ["ann"]
    (told,) = healer.lineage.recoveries(None)
    assert told.recovery_kind == "RolledBack"
    assert wounds(store) == ([] if has_guard else [f"{told.operation_id} is told to be RolledBack"])


# Phase D


def _through_what_landed(self: Finaliser) -> int:
    return 0 if self._target is None else self._target.seq


def _through_what_is_named(self: Finaliser) -> int:
    return self._named_through


def die_between_two_commits_and(point: Point, store: ObjectStore) -> None:
    """A process commits ann, and then a city while Phase D of the first is at a point; it dies there."""
    its_own, parts = mortal(store)
    arrived, may_go = threading.Event(), threading.Event()

    def stay() -> None:
        arrived.set()
        may_go.wait()
        its_own.die()

    with armed({point: Action(stay)}):
        write(parts, "ann")
        assert arrived.wait(timeout=60)
        write(parts, "rome", CITY)
        may_go.set()
        bury(parts)
    assert its_own.is_dead


@pytest.mark.parametrize(
    ("claims", "point"),
    [
        pytest.param(None, Point.D_BEFORE_NAME, id="guarded before the name"),
        pytest.param(_through_what_landed, Point.D_BEFORE_NAME, id="twin before the name"),
        pytest.param(None, Point.D_BEFORE_FOLD, id="guarded before the fold"),
        pytest.param(_through_what_is_named, Point.D_BEFORE_FOLD, id="twin before the fold"),
    ],
)
def test_only_what_has_its_final_name_and_is_folded_is_called_finalised(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, claims: Any, point: Point
) -> None:
    """The twins claim it earlier: plain Lance never sees a version, or the fold never sees a number again."""
    with monkeypatch.context() as patch:
        if claims is not None:
            patch.setattr(Finaliser, "finalised_through", property(claims))
        die_between_two_commits_and(point, store)
    heir = opened()
    newest = heir.newest()
    assert newest.is_final(newest.pins[PERSON]) == (claims is not None)
    assert (newest_version(store, "nodes/Person.lance") < newest.pins[PERSON].version) == (point is Point.D_BEFORE_NAME)
    assert heir.rows() == ["ann"]
    heir.finaliser.notice(newest)
    with contextlib.nullcontext() if claims is None else pytest.raises(InvariantViolation, match="can't fold object 3"):
        heir.finaliser.flush()
    is_unseen = claims is not None and point is Point.D_BEFORE_NAME
    assert plain_ids(store) == ([] if is_unseen else ["ann"])


@with_twin
def test_versions_become_visible_in_the_order_of_the_line(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """A process dies after the first of two final names. The twin begins with the newest one, and leaves a hole."""
    newest = commit_and_die(store, "ann", "bob").newest()
    if not has_guard:
        monkeypatch.setattr(phase_d, "reversed", tuple, raising=False)  # the line is read newest first
    crash(store, Point.D_AFTER_NAME, lambda parts: parts.finaliser.notice(newest), nth=1)
    visible = [version["version"] for version in plain(store).versions()]
    assert visible == ([1, 2] if has_guard else [1, 3])


@with_twin
def test_a_final_name_that_somebody_has_taken_is_not_overwritten(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin puts its own bytes there: the rows of a foreign writer are gone, and nobody is told."""
    pin = commit_and_die(store, "ann").newest().pins[PERSON]
    append(store, "mallory")
    if not has_guard:
        monkeypatch.setattr(store, "copy_if_absent", lambda source, target: _overwrite(store, source, target))
    with pytest.raises(TableDrift) if has_guard else contextlib.nullcontext():
        give_final_name(store, main_of(store).ulid, PERSON, pin)
    assert plain_ids(store) == (["mallory"] if has_guard else ["ann"])


def _overwrite(store: ObjectStore, source: str, target: str) -> Answer:
    data = store.get(source)
    assert data is not None
    store.put(target, data)
    return Answer.CREATED


def _under_the_final_name_alone(pin: Pin, main_line: str, *, is_final: bool) -> tuple[str, ...]:
    return (final_path(pin.path, pin.version),)


@with_twin
def test_an_acknowledged_version_is_read_before_its_phase_d(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Its writer died before Phase D. The twin looks where plain Lance does, and can't read what was acknowledged."""
    commit_and_die(store, "ann")
    if not has_guard:
        monkeypatch.setattr(storage, "possible_paths", _under_the_final_name_alone)
    before = list(store.files("nodes"))
    with contextlib.nullcontext() if has_guard else pytest.raises(InvariantViolation, match="neither a final name"):
        assert opened().rows() == ["ann"]
    assert list(store.files("nodes")) == before, "reading gives no names"


def _publish_over_it(self: SwapTable, staged: StagedSwap) -> object:
    _overwrite(self._store, staged.staging, final_path(self._path, staged.dataset.version))
    return staged.dataset


@with_twin
def test_of_two_folds_on_one_head_the_later_one_begins_again(
    disk: Root, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The other one folds more objects, just before the first one publishes. The twin overwrites what it folded."""
    store, objects = DirectoryStore(Path(disk.uri)), line(4)
    slow, fast = Manifest(store, BRANCH), Manifest(store, BRANCH)
    slow.fold(objects[:1], named_through=1)
    if not has_guard:
        monkeypatch.setattr(SwapTable, "publish", _publish_over_it)
    with armed({Point.D_FOLD_STAGED: Action(lambda: (fast.fold(objects, named_through=4), None)[1], nth=1)}):
        assert slow.fold(objects[:2], named_through=2) == (4 if has_guard else 2)
    assert [entry.seq for entry in fast.commits()] == ([4, 3, 2, 1] if has_guard else [2, 1])


# Sweeps


@dataclass
class Bringing(Adding):
    """A load that brings data files along, which it staged long ago."""

    staged: StagedRows | None = None

    def resolve(self, state: Any) -> Resolution:
        assert self.staged is not None
        return Resolution({PERSON: TableWrite(Mode.APPEND, self.staged, NOTHING_REPLACED)}, Affected(nodes=1))


def staged_a_day_ago(parts: Parts, name: str) -> Bringing:
    """A load that has taken so long that its lease was given up."""
    table = parts.cache.open(PERSON, parts.newest().pins[PERSON])
    staged = parts.storage.stage_rows(table, rows_of(table.type, [name]))
    begun_s = NOW_US // 1_000_000 - DAY_S
    for file in staged.files:
        os.utime(Path(parts.store.uri) / table.path / "data" / file, (begun_s, begun_s))
    return Bringing(parts.schema, {}, staged=replace(staged, staged_since_us=begun_s * 1_000_000))


def _put_nothing(end: LineEnd, finaliser: Finaliser, owner: str, swept_before_us: int) -> CommitObject:
    newest = end.refresh()
    finaliser.notice(newest)
    finaliser.flush()
    return newest


@pytest.mark.parametrize("guard", ["none is missing", "the object comes first", "what was swept is refused"])
def test_no_commit_refers_to_a_file_that_was_swept(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """A load comes to Phase A after the sweep has looked at sidecars, and has no final name when versions are read.

    It loses its number to the sweep's object, and builds on that no more: without either, rows are gone that landed.
    """
    if guard == "the object comes first":
        monkeypatch.setattr(sweep, "put_barrier", _put_nothing)
    if guard == "what was swept is refused":
        monkeypatch.setattr(writer, "refuse_swept", lambda tables, base: None)
    loader, sweeping = opened(), opened()
    loader.writer._finaliser = NoPhaseD()  # type: ignore[assignment]
    load = staged_a_day_ago(loader, "ann")
    refusals: list[StorageError] = []

    def commit() -> None:
        try:
            loader.writer.commit(load)
        except StorageError as refusal:
            refusals.append(refusal)

    with armed({Point.SWEEP_AFTER_SIDECARS: Action(commit, nth=1)}):
        _sweep(sweeping)
    is_guarded = guard == "none is missing"
    assert ["may have been swept" in str(refusal) for refusal in refusals] == [True] * is_guarded
    assert (load.commit_id in loader.commit_ids()) != is_guarded
    with contextlib.nullcontext() if is_guarded else pytest.raises(StorageError, match=r"(?i)not found"):
        assert opened().rows() == []


# Pruning


def _also_unfolded(file: StoredFile, finalised_through: int, before_us: int, real: Any = prune._prunable) -> Any:
    return real(file, SEQ_MAX, before_us)


def _also_young(file: StoredFile, finalised_through: int, before_us: int, real: Any = prune._prunable) -> Any:
    return real(file, finalised_through, LONG_AFTER_US)


@with_twin
def test_what_is_not_folded_is_not_pruned(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin deletes the only place where a commit is told of: the history has a gap."""
    left = commit_and_die(store, "ann", "bob", "cid")
    if not has_guard:
        monkeypatch.setattr(prune, "_prunable", _also_unfolded)
    folded = left.manifest.folded_through()
    pruned = prune.prune(store, left.log, left.newest(), folded, now_us=LONG_AFTER_US, keep=1)
    assert pruned == (0 if has_guard else 2)
    with contextlib.nullcontext() if has_guard else pytest.raises(InvariantViolation, match="does not reach down"):
        assert [entry.kind for entry in opened().branch.ancestry.entries()] == ["Mutation"] * 3 + ["Init"]


@with_twin
def test_what_a_writer_may_still_put_beside_is_not_pruned(
    store: ObjectStore, opened: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """A writer that did not sleep believes its put. The twin frees a number for it that is past: its write is lost."""
    slow, others = opened(), opened()
    for name in ("ann", "bob", "cid"):
        write(others, name)
    others.finaliser.flush()
    newest = others.newest()
    if not has_guard:
        monkeypatch.setattr(prune, "_prunable", _also_young)
    assert prune.prune(store, others.log, newest, newest.seq, now_us=NOW_US, keep=1) == (0 if has_guard else 2)
    late = write(slow, "rome", CITY)
    assert opened().rows(CITY) == (["rome"] if has_guard else [])
    assert (late.commit_id in others.commit_ids()) == has_guard
