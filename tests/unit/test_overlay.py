"""A state with pending writes over it answers as the state will once they are committed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from omniray.engine.judge.condition import Condition
from omniray.engine.judge.overlay import PENDING_ADDRESS, Overlay
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.resolution import TableWrite
from omniray.engine.judge.room import Room
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from tests.coordination import Held
from tests.graphs import CITY, PERSON, SCHEMA, rows_of

_SCHEMA = parse_schema(SCHEMA)
_TYPE = _SCHEMA.by_table_key[PERSON]
ALL = ["ann", "bob", "cid", "dan", "eve"]


class Person:
    """An overlay over a table of people who are 1 year old; each write is made as a judgement makes it."""

    def __init__(self, *pinned: str) -> None:
        self.held = Held(_SCHEMA, {PERSON: rows_of(_TYPE, pinned, age=1)})
        self.overlay = Overlay(self.held, _SCHEMA)

    def take(self, mode: Mode, *ids: str, age: int = 0, writer: str = "w") -> None:
        replaced = NOTHING_REPLACED if mode is Mode.OVERWRITE else self._located(*ids)
        rows = rows_of(_TYPE, () if mode is Mode.DELETE else ids, age)
        self.overlay.take({PERSON: TableWrite(mode, rows, replaced)}, writer)

    def _located(self, *ids: str) -> pa.Table:
        return self.overlay.matching(PERSON, ID, pa.array(ids, pa.string()), (ID,))

    def ages(self) -> dict[str, int]:
        """Every row with its age; however it is asked for, the answer is the same."""
        every = Condition("age", ">=", pa.array([0], pa.int32()))
        ages = {row[ID]: row["age"] for row in self.overlay.select(PERSON, (ID, "age"), every, Room()).to_pylist()}
        scanned = self.overlay.scan(PERSON, ("age", ID)).read_all()
        assert scanned.column_names == ["age", ID, ROWADDR]
        assert {row[ID]: row["age"] for row in scanned.to_pylist()} == ages
        assert len(set(scanned[ROWADDR].to_pylist())) == len(ages) == self.overlay.count(PERSON)
        assert sorted(self.overlay.existing(PERSON, pa.array(ALL)).to_pylist()) == sorted(ages)
        for column in (ID, "name"):
            found = self.overlay.matching(PERSON, column, pa.array(ALL), ("age", ID))
            assert {row[ID]: row["age"] for row in found.to_pylist()} == ages
            assert _addresses(found) == _addresses(scanned) == _addresses(self._located(*ALL))
        return ages

    def write(self) -> TableWrite:
        return self.overlay.writes()[PERSON]


def _addresses(found: pa.Table) -> dict[str, int]:
    return dict(zip(found[ID].to_pylist(), found[ROWADDR].to_pylist(), strict=True))


def _replaced(write: TableWrite) -> dict[str, int]:
    return _addresses(write.replaced)


@pytest.fixture
def person() -> Person:
    return Person("ann", "bob", "cid")


def test_pending_rows_are_found_beside_the_pinned_ones(person: Person) -> None:
    person.take(Mode.APPEND, "dan", "eve", age=2)
    assert person.ages() == {"ann": 1, "bob": 1, "cid": 1, "dan": 2, "eve": 2}
    assert (person.write().mode, person.write().rows[ID].to_pylist()) == (Mode.APPEND, ["dan", "eve"])


def test_a_pinned_row_that_is_replaced_is_there_once_and_as_it_will_be(person: Person) -> None:
    person.take(Mode.MERGE, "bob", "dan", age=2)
    assert person.ages() == {"ann": 1, "bob": 2, "cid": 1, "dan": 2}
    assert (person.write().mode, _replaced(person.write())) == (Mode.MERGE, {"bob": 1})


def test_a_pending_row_that_is_replaced_leaves_no_trace(person: Person) -> None:
    person.take(Mode.MERGE, "bob", "dan", age=2)
    person.take(Mode.MERGE, "dan", "bob", age=3)
    assert person.ages() == {"ann": 1, "bob": 3, "cid": 1, "dan": 3}
    assert person.write().rows.to_pylist() == rows_of(_TYPE, ["dan", "bob"], 3).to_pylist()
    assert _replaced(person.write()) == {"bob": 1}, "what goes is the pinned row alone"


def test_what_is_deleted_is_gone_whether_it_was_pinned_or_pending(person: Person) -> None:
    person.take(Mode.APPEND, "dan", "eve")
    person.take(Mode.DELETE, "ann", "dan")
    assert sorted(person.ages()) == ["bob", "cid", "eve"]
    assert (person.write().mode, _replaced(person.write())) == (Mode.MERGE, {"ann": 0})
    assert person.write().rows[ID].to_pylist() == ["eve"]


def test_a_row_may_come_back_after_it_was_deleted(person: Person) -> None:
    person.take(Mode.DELETE, "ann", "bob")
    person.take(Mode.APPEND, "ann", age=4)
    assert person.ages() == {"cid": 1, "ann": 4}
    assert _replaced(person.write()) == {"ann": 0, "bob": 1}


def test_deletes_alone_make_a_delete(person: Person) -> None:
    person.take(Mode.DELETE, "ann")
    person.take(Mode.DELETE, "cid")
    assert (person.write().mode, _replaced(person.write())) == (Mode.DELETE, {"ann": 0, "cid": 2})


def test_an_overwrite_hides_everything_before_it(person: Person) -> None:
    person.take(Mode.APPEND, "dan")
    person.take(Mode.DELETE, "ann")
    person.take(Mode.OVERWRITE, "eve", "bob", age=5)
    person.take(Mode.MERGE, "bob", "ann", age=6)
    assert person.ages() == {"eve": 5, "bob": 6, "ann": 6}
    assert (person.write().mode, person.write().replaced.num_rows) == (Mode.OVERWRITE, 0)
    assert person.write().rows[ID].to_pylist() == ["eve", "bob", "ann"]


def test_an_overwrite_whose_rows_are_deleted_again_still_empties_the_table(person: Person) -> None:
    person.take(Mode.OVERWRITE, "eve")
    person.take(Mode.DELETE, "eve")
    assert person.ages() == {}
    assert (person.write().mode, person.write().rows.num_rows) == (Mode.OVERWRITE, 0)


def test_writes_that_undo_each_other_leave_nothing_to_do(person: Person) -> None:
    person.take(Mode.APPEND, "dan")
    person.take(Mode.DELETE, "dan")
    assert person.overlay.writes() == {}
    assert sorted(person.ages()) == ["ann", "bob", "cid"]


def test_a_table_that_is_written_to_moves_by_one_version_however_often(person: Person) -> None:
    versions = [person.overlay.version(PERSON)]
    for name in ("dan", "eve"):
        person.take(Mode.APPEND, name)
        versions.append(person.overlay.version(PERSON))
    assert versions == [7, 8, 8]
    assert person.overlay.version(CITY) == 7


def test_a_row_is_known_by_whoever_wrote_it_last(person: Person) -> None:
    person.take(Mode.MERGE, "ann", "dan", writer="first")
    person.take(Mode.MERGE, "dan", writer="second")
    person.take(Mode.APPEND, "eve", writer="third")
    person.take(Mode.DELETE, "eve", writer="fourth")
    writers = {id: person.overlay.writer_of(PERSON, id) for id in ALL}
    assert writers == {"ann": "first", "bob": None, "cid": None, "dan": "second", "eve": None}
    assert person.overlay.writer_of(CITY, "ann") is None


def test_the_addresses_of_pending_rows_are_none_that_a_table_gives_out(person: Person) -> None:
    person.take(Mode.APPEND, "dan", "eve")
    addresses = _addresses(person.overlay.scan(PERSON, (ID,)).read_all())
    assert {id for id, address in addresses.items() if address >= PENDING_ADDRESS} == {"dan", "eve"}


def test_rows_that_are_staged_already_are_handed_on_as_they_are(person: Person) -> None:
    staged = StagedRows((), 3)
    person.overlay.take({PERSON: TableWrite(Mode.MERGE, staged, person._located("ann"))}, "w")
    assert person.write().rows is staged
    assert (person.write().mode, _replaced(person.write())) == (Mode.MERGE, {"ann": 0})


def test_a_table_that_nobody_wrote_to_is_asked_itself(person: Person) -> None:
    rome = rows_of(_SCHEMA.by_table_key[CITY], ["rome"])
    person.overlay.take({CITY: TableWrite(Mode.APPEND, rome, NOTHING_REPLACED)}, "w")
    assert person.ages() == {"ann": 1, "bob": 1, "cid": 1}


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
def test_nobody_is_asked_for_pinned_rows_where_none_can_be_left(mode: Mode) -> None:
    person = Person() if mode is Mode.APPEND else Person("ann")
    person.take(mode, "dan", age=2)
    person.held.asked = 0
    assert person.ages() == {"dan": 2}
    assert person.held.asked == 0


def test_ids_that_were_found_in_memory_and_ids_that_lance_has_read_go_together() -> None:
    """Lance says that an id is never null, and what is found in memory does not say so."""

    class Nullable(Held):
        def matching(self, *arguments: Any) -> pa.Table:
            found = super().matching(*arguments)
            return pa.table({name: found[name] for name in found.column_names})

    for held in (Held, Nullable):
        overlay = Overlay(held(_SCHEMA, {PERSON: rows_of(_TYPE, ["ann"])}), _SCHEMA)
        overlay.take({PERSON: TableWrite(Mode.APPEND, rows_of(_TYPE, ["dan"]), NOTHING_REPLACED)}, "w")
        for columns in ((ID,), (ID, "name")):
            found = overlay.matching(PERSON, ID, pa.array(["ann", "dan"]), columns)
            assert sorted(found[ID].to_pylist()) == ["ann", "dan"]
