"""Write queues: what they answer follows what they staged, and what they have lost is never guessed at."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from omniray.coordinator.actors.facts import RoundState
from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.door.questions import Existing, Matching, Question, Scan
from omniray.engine.base.errors import InvariantViolation, OmnirayError, StorageError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.staging import Base, Cold, StagedPin, TableStage, Taken
from omniray.engine.commit.table_change import announced
from omniray.engine.judge.condition import Condition
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.judge.room import Room
from omniray.engine.line.commit_object import CommitObject, follow
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, Schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables import cache
from omniray.engine.tables import storage as tables
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.storage import NOTHING_REPLACED
from omniray.engine.tables.version_names import final_path, own_path
from tests import foreign
from tests.coordination import ByMessages, Gate, Sender
from tests.graphs import CITY, PERSON, create_store, opened, rows_of
from tests.stores import Root

Outcome = StagedPin | Taken | OmnirayError


@dataclass
class Rounds:
    """Rounds of one publisher, as its queues see them; they land when the test says so."""

    store: ObjectStore
    queues: ByMessages
    schema: Schema
    newest: CommitObject
    landed_through: int
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def on(cls, store: ObjectStore) -> Rounds:
        branch = opened(store)
        newest = branch.tip.newest
        return cls(store, ByMessages(TableQueues(branch)), branch.schema, newest, newest.seq)

    @property
    def base(self) -> Base:
        return Base(self.newest.pins, self.newest.line, self.landed_through)

    def land(self) -> None:
        self.landed_through = self.newest.seq

    def stage(self, *, land: bool = True, **writes: TableWrite) -> None:
        """A round on top of the last one; one that can't be staged comes to nothing."""
        by_key = {f"node:{name}": write for name, write in writes.items()}
        stages = [TableStage(announced(self.newest, key, write), write) for key, write in by_key.items()]
        self.outcomes = self.queues.stage(self.base, stages)
        staged = {key: one.pin for key, one in zip(by_key, self.outcomes, strict=True) if isinstance(one, StagedPin)}
        if len(staged) == len(by_key):
            self.newest = follow(self.newest, op_id=new_ulid(), changed=staged, commits=(), finalised_through=0)
        if land:
            self.land()

    def append(self, *ids: str, land: bool = True) -> None:
        self.stage(Person=self.write(Mode.APPEND, *ids), land=land)

    def write(self, mode: Mode, *ids: str, table_key: str = PERSON) -> TableWrite:
        replaced = NOTHING_REPLACED if mode is Mode.OVERWRITE else self.located(ids, table_key)
        return TableWrite(mode, rows_of(self.schema.by_table_key[table_key], ids), replaced)

    def delete(self, *ids: str) -> TableWrite:
        return TableWrite(Mode.DELETE, rows_of(self.schema.by_table_key[PERSON], ()), self.located(ids))

    def located(self, ids: Iterable[str], table_key: str = PERSON) -> pa.Table:
        question = Matching(self.schema.by_table_key[table_key], ID, pa.array(ids, pa.string()), (ID,))
        return self.queues.read(self.base, [question])[0]

    def people(self) -> list[str]:
        return sorted(_scanned(self.queues, self.base, self.schema))


def _scanned(queues: ByMessages, base: Base, schema: Schema) -> dict[str, int]:
    """The ids of all people with their addresses, as their table has them."""
    rows = queues.read(base, [Scan(schema.by_table_key[PERSON], (ID,))])[0]
    return dict(zip(rows[ID].to_pylist(), rows[ROWADDR].to_pylist(), strict=True))


@pytest.fixture
def rounds(disk: Root) -> Iterable[Rounds]:
    rounds = Rounds.on(create_store(disk))
    with closing(rounds.queues):
        yield rounds


# Following


@pytest.mark.parametrize("seed", range(3))
def test_ids_and_their_addresses_follow_every_version_that_is_staged(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Appends, merges, deletes and overwrites over tails that are folded and tails that are full.

    Oracle: an owner that has just been started reads the same version from storage.
    """
    monkeypatch.setattr(tables, "TAIL_ROWS_MAX", 6)
    chance = random.Random(seed)
    everybody = [f"p{n:02}" for n in range(24)]
    for _ in range(14):
        present = rounds.people()
        absent = sorted(set(everybody) - set(present))
        kind = chance.choice(("append", "merge", "merge", "delete", "delete", "overwrite"))
        match kind:
            case "append" if absent:
                write = rounds.write(Mode.APPEND, *chance.sample(absent, min(len(absent), chance.choice((1, 3, 7)))))
            case "delete" if present:
                write = rounds.delete(*chance.sample(present, chance.randint(1, len(present))))
            case "overwrite":
                write = rounds.write(Mode.OVERWRITE, *chance.sample(everybody, 4))
            case _:
                write = rounds.write(Mode.MERGE, *chance.sample(everybody, 5))
        rounds.stage(Person=write, land=chance.random() < 0.5)
        known = _addresses(rounds.located(everybody))
        assert known == _scanned(rounds.queues, rounds.base, rounds.schema), "as its own handle shows"
    fresh = Rounds.on(rounds.store)
    with closing(fresh.queues):
        assert known == _scanned(
            fresh.queues, Base(rounds.newest.pins, rounds.newest.line, rounds.newest.seq), rounds.schema
        )


def _addresses(located: pa.Table) -> dict[str, int]:
    return dict(zip(located[ID].to_pylist(), located[ROWADDR].to_pylist(), strict=True))


def test_a_round_on_a_version_that_is_only_staged_reads_nothing(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.append("ann")
    rounds.located(["ann"])
    monkeypatch.setattr(cache.KnownIds, "read", lambda table: pytest.fail("the ids were read again"))
    for name in ("bob", "cid"):
        rounds.append(name, land=False)
    assert _addresses(rounds.located(["ann", "bob", "cid"])).keys() == {"ann", "bob", "cid"}


def test_tables_are_staged_one_version_each(rounds: Rounds) -> None:
    before = {key: pin.version for key, pin in rounds.newest.pins.items()}
    rounds.stage(Person=rounds.write(Mode.APPEND, "ann", "bob"), City=rounds.write(Mode.APPEND, "rome", table_key=CITY))
    after = {key: pin.version for key, pin in rounds.newest.pins.items()}
    assert after == {**before, PERSON: before[PERSON] + 1, CITY: before[CITY] + 1}
    assert (rounds.newest.pins[PERSON].rows, rounds.newest.pins[CITY].rows) == (2, 1)


def test_questions_are_answered_in_the_order_in_which_they_were_asked(rounds: Rounds) -> None:
    rounds.stage(Person=rounds.write(Mode.APPEND, "ann"), City=rounds.write(Mode.APPEND, "rome", table_key=CITY))
    wanted = pa.array(["ann", "rome", "nobody"])
    questions = [Existing(rounds.schema.by_table_key[key], wanted) for key in (CITY, PERSON, CITY)]
    found = rounds.queues.read(rounds.base, questions)
    assert [one[ID].to_pylist() for one in found] == [["rome"], ["ann"], ["rome"]]


def test_a_table_that_is_being_staged_keeps_its_own_questions_waiting_and_no_others(rounds: Rounds) -> None:
    rounds.append("ann")
    gate = Gate()
    asked = [Existing(rounds.schema.by_table_key[key], pa.array(["ann"])) for key in (PERSON, CITY)]
    write, base = rounds.write(Mode.APPEND, "bob"), rounds.base
    with armed({Point.B_AFTER_ROWS: Action(gate.hold)}), ThreadPoolExecutor(2) as threads:
        staging = threads.submit(rounds.stage, Person=write, land=False)
        gate.wait_until_reached()
        waiting = threads.submit(rounds.queues.read, base, asked[:1])
        assert rounds.queues.read(base, asked[1:])[0][ID].to_pylist() == []
        assert not waiting.done()
        gate.open()
        staging.result()
        assert waiting.result()[0][ID].to_pylist() == ["ann"], "as of the version that was asked for"
    rounds.land()
    assert rounds.people() == ["ann", "bob"]


# Losing


def forget(rounds: Rounds) -> None:
    """Delete the version of Person that a round staged last, as whoever gives that round up does; the queue knows."""
    rounds.store.delete(own_path(rounds.newest.pins[PERSON], rounds.newest.line))
    rounds.queues.drop([PERSON])


def test_a_version_that_was_staged_is_read_by_its_path_before_it_lands_and_gets_no_final_name(rounds: Rounds) -> None:
    """The owner of the queues was started anew: it goes on, and plain readers see nothing of what may never land."""
    rounds.append("ann", land=False)
    rounds.queues.drop([PERSON])
    assert _addresses(rounds.located(["ann"])).keys() == {"ann"}
    rounds.append("bob", land=False)
    assert isinstance(rounds.outcomes[0], StagedPin)
    for pin in (rounds.newest.pins[PERSON], rounds.base.pins[PERSON]):
        assert rounds.store.get(final_path(pin.path, pin.version)) is None
    rounds.land()
    assert rounds.people() == ["ann", "bob"]


def test_a_version_that_is_gone_before_it_landed_is_cold(rounds: Rounds) -> None:
    rounds.append("ann", land=False)
    forget(rounds)
    with pytest.raises(Cold, match=PERSON):
        rounds.located(["ann"])
    rounds.stage(Person=TableWrite(Mode.APPEND, foreign.people("bob"), NOTHING_REPLACED), land=False)
    assert isinstance(rounds.outcomes[0], Cold)


def test_a_version_that_is_gone_after_it_landed_is_told_loudly(rounds: Rounds) -> None:
    """The twin: nothing that is committed is taken for a round that may be tried again."""
    rounds.append("ann")
    forget(rounds)
    with pytest.raises(InvariantViolation, match=PERSON):
        rounds.located(["ann"])


def test_a_version_whose_number_somebody_else_got_has_not_landed(rounds: Rounds) -> None:
    """Expected: that it is gone means that its round is tried again, not that a committed version is lost."""
    before = rounds.newest
    rounds.append("ann", land=False)
    others = follow(before, op_id=new_ulid(), changed={}, commits=(), finalised_through=0)
    for newest in (before, others, follow(others, op_id=new_ulid(), changed={}, commits=(), finalised_through=0)):
        assert not Base.on(rounds.newest, newest).is_landed(PERSON)
        assert Base.on(rounds.newest, newest).is_landed(CITY)
    assert Base.on(rounds.newest, rounds.newest).is_landed(PERSON)


def test_a_version_of_another_line_has_landed_whatever_its_number_there(rounds: Rounds) -> None:
    """A branch begins with versions of its parent, whose line may be the longer one, and finalised elsewhere."""
    newest = rounds.newest
    inherited = replace(newest.pins[PERSON], line=new_ulid(), since=newest.seq + 5)
    base = replace(newest, pins={**newest.pins, PERSON: inherited}, finalised_through=newest.seq + 9)
    assert Base.on(base, base).is_landed(PERSON)
    assert not Base.on(base, base).is_final(inherited)
    assert Base.on(base, base).is_final(newest.pins[CITY])


def test_tables_that_are_not_lost_go_on_beside_one_that_is(rounds: Rounds) -> None:
    rounds.stage(
        Person=rounds.write(Mode.APPEND, "ann"), City=rounds.write(Mode.APPEND, "rome", table_key=CITY), land=False
    )
    forget(rounds)
    oslo = rounds.write(Mode.APPEND, "oslo", table_key=CITY)
    rounds.stage(City=oslo, Person=TableWrite(Mode.APPEND, foreign.people("bob"), NOTHING_REPLACED), land=False)
    assert [type(one) for one in rounds.outcomes] == [StagedPin, Cold]


def test_what_is_dropped_never_happened(rounds: Rounds) -> None:
    """The next attempt has the same number: a handle of the lost one would show its rows."""
    rounds.append("ann")
    landed = rounds.newest
    rounds.located(["ann"])
    rounds.append("ghost", land=False)
    rounds.queues.drop([PERSON])
    rounds.newest = landed
    assert _addresses(rounds.located(["ann", "ghost"])).keys() == {"ann"}
    rounds.append("bob", land=False)
    assert rounds.newest.pins[PERSON].version == landed.pins[PERSON].version + 1
    assert rounds.people() == sorted(_addresses(rounds.located(["ann", "bob", "ghost"]))) == ["ann", "bob"]


def test_a_handle_of_a_lost_round_that_was_not_dropped_is_not_used_either(rounds: Rounds) -> None:
    """A round is given up while it is being staged: the handle is kept after everything was dropped."""
    rounds.append("ann")
    landed = rounds.newest
    rounds.located(["ann"])
    rounds.append("ghost", land=False)
    rounds.newest = landed
    assert _addresses(rounds.located(["ann", "ghost"])).keys() == {"ann"}
    assert rounds.people() == ["ann"]


def test_another_owner_reads_from_storage_what_the_first_one_knew(rounds: Rounds) -> None:
    rounds.append("ann", "bob")
    rounds.stage(Person=rounds.delete("bob"))
    heir = ByMessages(TableQueues(opened(rounds.store)))
    with closing(heir):
        assert list(_scanned(heir, rounds.base, rounds.schema)) == ["ann"]


# Failing


def test_a_version_that_somebody_else_has_taken_is_told_and_other_tables_are_staged(rounds: Rounds) -> None:
    rounds.append("ann")
    rounds.located(["ann"])
    version = rounds.newest.pins[PERSON].version
    # A foreign writer builds on the version that has its final name.
    give_final_name(rounds.store, rounds.newest.line, PERSON, rounds.newest.pins[PERSON])
    foreign.append(rounds.store, "mallory")
    writes = {"Person": rounds.write(Mode.APPEND, "bob"), "City": rounds.write(Mode.APPEND, "rome", table_key=CITY)}
    rounds.stage(**writes)
    taken, staged = rounds.outcomes
    assert taken == Taken(PERSON, version + 1, version + 2)
    assert isinstance(staged, StagedPin)
    assert rounds.people() == ["ann"]


def test_a_store_that_fails_while_staging_is_told_and_the_queue_begins_anew(rounds: Rounds) -> None:
    def fail() -> None:
        raise StorageError("the disk is gone")

    rounds.append("ann")
    bob = rounds.write(Mode.APPEND, "bob")
    with armed({Point.B_AFTER_ROWS: Action(fail, nth=1)}):
        rounds.stage(Person=bob)
        assert [str(one) for one in rounds.outcomes] == ["the disk is gone"]
        rounds.stage(Person=bob)
    assert rounds.people() == ["ann", "bob"]


def test_the_files_of_a_staged_version_are_those_made_for_it_alone(rounds: Rounds) -> None:
    rounds.append("ann")
    before = _files(rounds.store)
    rounds.append("bob", land=False)
    (staged,) = rounds.outcomes
    assert isinstance(staged, StagedPin)
    made = _files(rounds.store) - before
    assert set(staged.files) == made


def _files(store: ObjectStore) -> set[str]:
    return {file.path for file in store.files("nodes/Person.lance")}


# Facts


@dataclass
class Asking:
    """Asks the queues, and notes what."""

    rounds: Rounds
    asked: list[tuple[str, str]] = field(default_factory=list)

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        self.asked += [(type(question).__name__, question.type.table_key) for question in questions]
        return self.rounds.queues.read(base, questions)


def test_what_a_round_will_ask_for_is_asked_for_once(rounds: Rounds) -> None:
    rounds.append("ann", "bob")
    sender, asking = Sender(rounds.schema), Asking(rounds)
    facts = RoundState(rounds.base, asking, rounds.schema)
    loads = [sender.load_request([{"name": name}], type="Person", mode="merge") for name in ("ann", "eve", "fay")]
    edge = sender.load_request([{"from": "bob", "to": "nobody"}], type="Knows")
    facts.look_up([*loads, edge])
    assert asking.asked == [("Matching", PERSON)], "one question for each table that has rows"
    truth = PinnedState(opened(rounds.store).cache, rounds.newest)
    for ids in (["ann", "eve"], ["nobody", "bob"], []):
        wanted = pa.array(ids, pa.string())
        assert facts.existing(PERSON, wanted) == truth.existing(PERSON, wanted)
        assert _addresses(facts.matching(PERSON, ID, wanted, (ID,))) == _addresses(
            truth.matching(PERSON, ID, wanted, (ID,))
        )
    assert len(asking.asked) == 1, "and nothing more for what was foreseen"


def test_what_nobody_foresaw_is_asked_for_when_it_is_needed(rounds: Rounds) -> None:
    rounds.append("ann", "bob")
    asking = Asking(rounds)
    facts = RoundState(rounds.base, asking, rounds.schema)
    facts.look_up([Sender(rounds.schema).load_request([{"name": "ann"}], type="Person")])
    assert facts.existing(PERSON, pa.array(["ann", "bob"])).to_pylist() == ["ann", "bob"]
    assert facts.matching(PERSON, ID, pa.array(["ann"]), (ID, "name"))["name"].to_pylist() == ["ann"]
    assert facts.matching(PERSON, "name", pa.array(["bob"]), (ID,))[ID].to_pylist() == ["bob"]
    assert facts.select(PERSON, (ID,), Condition("name", "=", pa.array(["bob"])), Room())[ID].to_pylist() == ["bob"]
    assert facts.scan(PERSON, (ID,)).read_all()[ID].to_pylist() == ["ann", "bob"]
    assert [method for method, _ in asking.asked] == ["Matching", "Existing", "Matching", "Matching", "Select", "Scan"]


def test_an_empty_table_is_not_asked(rounds: Rounds) -> None:
    asking = Asking(rounds)
    RoundState(rounds.base, asking, rounds.schema).look_up(
        [Sender(rounds.schema).load_request([{"name": "ann"}], type="Person")]
    )
    assert asking.asked == []
