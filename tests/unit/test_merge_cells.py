"""The three-way merge of rows by property, against one of plain dicts; virtual bases, against what writes had seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniray.engine.branches.bases import Place
from omniray.engine.branches.cells import MergedRows, Rows, changed_rows, merged
from omniray.engine.branches.conflicts import OnConflict
from omniray.engine.branches.virtual_base import base_rows
from omniray.engine.schema.types import ID
from tests.branch_histories import History

SCHEMA = pa.schema(
    {
        ID: pa.string(),
        "n": pa.int64(),
        "x": pa.float64(),
        "tags": pa.list_(pa.string()),
        "place": pa.list_(pa.float32(), 2),
        "data": pa.large_binary(),
    }
)
NAMES = [name for name in SCHEMA.names if name != ID]
IDS = ["a", "b", "c"]
VALUES = st.fixed_dictionaries(
    {
        "n": st.sampled_from([None, 0, 1]),
        "x": st.sampled_from([None, 0.0, -0.0, math.nan]),
        "tags": st.sampled_from([None, [], ["a"], ["a", "b"]]),
        "place": st.sampled_from([None, [0.0, 1.0], [1.0, 0.0]]),
        "data": st.sampled_from([None, b"", b"\x00"]),
    }
)
SIDES = st.fixed_dictionaries({id: st.one_of(st.none(), VALUES) for id in IDS})

Row = Mapping[str, Any] | None
Side = Mapping[str, Row]


def everywhere(row: Row) -> dict[str, Row]:
    return {id: row for id in IDS}  # noqa: C420


def rows_of(side: Side) -> Rows:
    there = [{ID: id, **row} for id, row in side.items() if row is not None]
    places = {row[ID]: place for place, row in enumerate(there)}
    table = pa.Table.from_pylist(there, schema=SCHEMA)
    return Rows.at(table, np.array([places.get(id, -1) for id in IDS], np.int64))


def comparable(value: Any) -> Any:
    """The value such that == means: the same bits."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return [comparable(item) for item in value] if isinstance(value, list) else value


def plain(row: Row) -> Row:
    return None if row is None else {name: comparable(value) for name, value in row.items()}


def plain_merge(base: Row, source: Row, target: Row, how: OnConflict) -> tuple[Row, str, tuple[str, ...]]:
    """The row after a merge, and what conflicts in it: as the documentation says it, one row after another."""
    if source is None and target is None:
        return None, "", ()
    if base is None:
        if source is None or target is None:
            return source or target, "", ()
        clash = tuple(name for name in NAMES if source[name] != target[name])
        return (source if how is OnConflict.THEIRS else target), "divergent_insert" if clash else "", clash
    if source is None or target is None:
        stays = source if target is None else target
        assert stays is not None
        edited = tuple(name for name in NAMES if stays[name] != base[name])
        deleted_by = "source" if source is None else "target"
        if not edited:
            return None, "", ()
        keeps = how is not OnConflict.THEIRS if deleted_by == "source" else how is OnConflict.THEIRS
        return (stays if keeps else None), "delete_vs_update", edited
    result, clash = dict(target), []
    for name in NAMES:
        if source[name] in (base[name], target[name]):
            continue
        if target[name] != base[name]:
            clash.append(name)
        if target[name] == base[name] or how is OnConflict.THEIRS:
            result[name] = source[name]
    return result, "divergent_update" if clash else "", tuple(clash)


def applied(found: MergedRows, target: Side) -> dict[str, Row]:
    """The target's rows after the merge."""
    after = {id: plain(row) for id, row in target.items()}
    for position, row in zip(found.written.tolist(), found.cells.to_pylist(), strict=True):
        assert after[IDS[position]] != plain(row), "a row is written only if it changes"
        after[IDS[position]] = plain(row)
    for position in found.deleted.tolist():
        assert after[IDS[position]] is not None
        after[IDS[position]] = None
    return after


@pytest.mark.parametrize("how", OnConflict)
@settings(max_examples=400)
@given(base=SIDES, source=SIDES, target=SIDES)
def test_rows_are_merged_as_a_merge_of_plain_rows_merges_them(
    how: OnConflict, base: Side, source: Side, target: Side
) -> None:
    found = merged(rows_of(base), rows_of(source), rows_of(target), how)
    expected = {id: plain_merge(plain(base[id]), plain(source[id]), plain(target[id]), how) for id in IDS}
    conflicts = {
        IDS[position]: (str(one.kind), tuple(one.properties(position)))
        for one in found.conflicts
        for position in one.positions.tolist()
    }
    assert conflicts == {id: (kind, names) for id, (_, kind, names) in expected.items() if kind}
    after = applied(found, target)
    for id, (row, kind, _) in expected.items():
        assert after[id] == (plain(target[id]) if kind and how is OnConflict.FAIL else row)


@given(base=SIDES, side=SIDES)
def test_a_merge_into_what_the_base_was_gives_the_source_and_one_of_the_base_gives_nothing(
    base: Side, side: Side
) -> None:
    assert applied(merged(rows_of(base), rows_of(side), rows_of(base)), base) == {i: plain(r) for i, r in side.items()}
    idle = merged(rows_of(base), rows_of(base), rows_of(side))
    assert (len(idle.written), len(idle.deleted), idle.conflicts) == (0, 0, ())


@given(base=SIDES, side=SIDES)
def test_the_rows_that_a_side_changed(base: Side, side: Side) -> None:
    expected = [plain(base[id]) != plain(side[id]) for id in IDS]
    assert changed_rows(rows_of(base), rows_of(side)).tolist() == expected


def test_a_row_with_values_of_both_sides_is_told_from_one_that_is_just_the_source_s() -> None:
    row = {"n": 0, "x": 0.0, "tags": [], "place": None, "data": None}
    base = everywhere(row)
    source = {**everywhere({**row, "n": 1}), "c": row}
    target = {**base, "a": {**row, "tags": ["a"]}}
    found = merged(rows_of(base), rows_of(source), rows_of(target))
    assert ([IDS[n] for n in found.written], found.mixed.tolist()) == (["a", "b"], [True, False])


def test_nothing_agrees_with_a_base_of_which_nothing_is_known_but_equal_values() -> None:
    row = {"n": 0, "x": 0.0, "tags": [], "place": None, "data": None}
    source, target = {"a": row, "b": {**row, "n": 1}, "c": None}, {"a": row, "b": {**row, "n": 2}, "c": row}
    found = merged(Rows.unknown(rows_of(source)), rows_of(source), rows_of(target))
    assert [(str(one.kind), one.positions.tolist()) for one in found.conflicts] == [
        ("divergent_update", [1]),
        ("delete_vs_update", [2]),
    ]
    assert (len(found.written), len(found.deleted)) == (0, 0)


# Several bases

WRITER_LINES = ["m", "x", "y"]


class Cell:
    """One cell over a random history. Each write knows all that it has seen, so the oracle knows who must win.

    A write may set a value that the cell has had before. Of two states one wins whose writes have seen the other's.
    """

    def __init__(self, rng: Random) -> None:
        self.rng, self.history = rng, History(WRITER_LINES[0])
        self.value: dict[int, int] = {0: 0}
        self.seen: dict[int, frozenset[int]] = {0: frozenset()}
        self.holds: dict[Place, int] = {self.history.head("m"): 0}
        self.knows: dict[Place, frozenset[int]] = {self.history.head("m"): frozenset([0])}
        for line in WRITER_LINES[1:]:
            self._hold(self.history.branch(line, "m"), 0, frozenset([0]))

    def write(self, line: str) -> None:
        before = self.history.head(line)
        token = len(self.value)
        old = self.value[self.rng.choice(sorted(self.knows[before]))]
        self.value[token] = old if self.rng.random() < 0.25 else token
        if self.value[token] != self.value[self.holds[before]]:
            self.seen[token] = self.knows[before]
            self._hold(self.history.write(line), token, self.knows[before] | {token})

    def merge(self, counted: Counter[str], *, one_base: bool) -> None:
        source, target = self.rng.sample(WRITER_LINES, 2)
        at, here = self.history.head(source), self.history.head(target)
        if at in self.history.includes[here]:
            return
        bases = self.history.bases_of(at, here)
        there, stands = self.holds[at], self.holds[here]
        got, truth = self._merged(bases[:1] if one_base else bases, at, here), self._truth(there, stands)
        values = {self.value[self.holds[base]] for base in bases}
        is_net_zero = len(values) == 1 and values <= {self.value[there], self.value[stands]}
        if got != truth and not is_net_zero:
            counted["false conflict" if got == "conflict" else "edit lost" if truth != "conflict" else "missed"] += 1
        counted["of several bases"] += len(bases) > 1
        self._resolve(source, target, at, truth)

    def _merged(self, bases: Sequence[Place], at: Place, here: Place) -> str:
        """Which side's value the merge takes, by the code under test."""

        def rows_at(place: Place, positions: npt.NDArray[np.int64]) -> Rows:
            table = pa.table({"n": pa.array([self.value[self.holds[place]]], pa.int64())})
            return Rows.at(table, np.zeros(len(positions), np.int64))

        position = np.array([0])
        base = base_rows(bases, position, self.history.vector, rows_at)
        found = merged(base, rows_at(at, position), rows_at(here, position))
        if self.value[self.holds[at]] == self.value[self.holds[here]]:
            return "same"
        return "conflict" if found.conflicts else "source" if len(found.written) else "target"

    def _truth(self, there: int, stands: int) -> str:
        if self.value[there] == self.value[stands]:
            return "same"
        if stands in self.seen[there]:
            return "source"
        return "target" if there in self.seen[stands] else "conflict"

    def _resolve(self, source: str, target: str, at: Place, truth: str) -> None:
        """Go on with the true result; somebody settles a conflict by a new value."""
        here = self.history.head(target)
        there, stands = self.holds[at], self.holds[here]
        knows = self.knows[at] | self.knows[here]
        match truth:
            case "source":
                token = there
            case "target":
                token = stands
            case "same" if there in self.seen[stands] or there == stands:
                token = stands
            case "same" if stands in self.seen[there]:
                token = there
            case _:
                token = len(self.value)
                self.value[token] = self.value[stands] if truth == "same" else token
                self.seen[token] = knows
                knows |= {token}
        self._hold(self.history.merge(source, target, at), token, knows)

    def _hold(self, place: Place, token: int, knows: frozenset[int]) -> None:
        self.holds[place], self.knows[place] = token, knows


def run_histories(count: int, *, one_base: bool = False) -> Counter[str]:
    counted: Counter[str] = Counter()
    for seed in range(count):
        cell = Cell(Random(seed))
        for _ in range(cell.rng.randint(4, 16)):
            if cell.rng.random() < 0.45:
                cell.write(cell.rng.choice(WRITER_LINES))
            else:
                cell.merge(counted, one_base=one_base)
    return counted


def test_with_virtual_bases_no_edit_is_lost_and_no_conflict_is_made_up() -> None:
    """A side that set a cell back to what the bases make of it has not changed it: such a conflict is not seen."""
    found = run_histories(1500)
    assert found["of several bases"] > 100
    assert (found["edit lost"], found["false conflict"]) == (0, 0)


def test_with_one_of_several_bases_edits_are_lost() -> None:
    """The twin: the first best base is taken for the only one."""
    found = run_histories(1500, one_base=True)
    assert found["edit lost"] + found["false conflict"] > 5


def test_bases_that_conflict_make_a_conflict_only_where_the_sides_differ() -> None:
    """Two sides settled the same conflict: each its own way is a conflict, both the same way is none."""
    row = {"n": 0, "x": 0.0, "tags": [], "place": None, "data": None}
    history = History("m")
    history.branch("x", "m")
    states: dict[Place, Side] = {Place("m", 1): everywhere(row), Place("x", 1): everywhere(row)}
    states[history.write("m")] = everywhere({**row, "n": 1})
    states[history.write("x")] = everywhere({**row, "n": 2})
    here, there = history.head("m"), history.head("x")
    settled = {"a": {**row, "n": 3}, "b": {**row, "n": 4}, "c": {**row, "n": 5}}
    states[history.merge("x", "m", there)] = settled
    states[history.merge("m", "x", here)] = {**settled, "b": {**row, "n": 6}}

    def rows_at(place: Place, positions: npt.NDArray[np.int64]) -> Rows:
        return rows_of(states[place]).take(positions)

    def merged_now() -> list[int]:
        every = np.arange(3)
        base = base_rows(history.bases("x", "m"), every, history.vector, rows_at)
        found = merged(base, rows_of(states[history.head("x")]), rows_of(states[history.head("m")]))
        return [position for one in found.conflicts for position in one.positions.tolist()]

    assert merged_now() == [1]


def test_bases_that_conflict_go_on_conflicting_beside_a_third_one() -> None:
    """The third base left the cell alone and changed another one of its row: the sides must still settle the first."""
    row = {"n": 0, "x": 0.0, "tags": [], "place": None, "data": None}
    history = History("m")
    start = everywhere(row)
    states: dict[Place, Side] = {history.head("m"): start}
    for line in ("a", "b", "c", "source", "target"):
        states[history.branch(line, "m")] = start
    written = {"a": {**row, "n": 1}, "b": {**row, "n": 2}, "c": {**row, "tags": ["a"]}}
    for line, changed in written.items():
        states[history.write(line)] = everywhere(changed)
    for line, order, n in (("source", "abc", 1), ("target", "bac", 2)):
        for taken in order:
            states[history.merge(taken, line, history.head(taken))] = everywhere({**row, "n": n, "tags": ["a"]})

    def rows_at(place: Place, positions: npt.NDArray[np.int64]) -> Rows:
        return rows_of(states[place]).take(positions)

    there, here = history.head("source"), history.head("target")
    bases = history.bases_of(there, here)
    assert [place.line for place in bases] == ["a", "b", "c"]
    base = base_rows(bases, np.arange(len(IDS)), history.vector, rows_at)
    (conflict,) = merged(base, rows_of(states[there]), rows_of(states[here])).conflicts
    assert (str(conflict.kind), conflict.positions.tolist()) == ("divergent_update", [0, 1, 2])
