"""One table of a merge: whether it is skipped, adopted or merged row by row, and the stream of its merged rows.

Only what differs between versions is read. The rows that a base has and the source lacks, or the other way round, tell
what the source changed; of these ids, the rows that the target has and the base lacks tell what the target changed. So
the cost follows what changed on the source, and what the target changed of the same ids; ranges of ids keep memory
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.branches.bases import Place, Vector
from omniray.engine.branches.cells import MergedRows, RowConflicts, Rows, changed_rows, merged
from omniray.engine.branches.conflicts import MergeConflict, OnConflict, shown
from omniray.engine.branches.equal_edges import EqualEdges, Replaced
from omniray.engine.branches.virtual_base import base_rows
from omniray.engine.line.commit_object import Pin
from omniray.engine.reading.table_diff import ALL, Ids, Part, apart, moved_addresses, stretches
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.table import ROWADDR, Table

LOOKUP_IDS_MAX = 5_000

Places = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]


class How(StrEnum):
    """What a merge does with a table."""

    SKIP = "skip"  # the target's version stays as it is
    ADOPT = "adopt"  # the target gets the source's version; no data file is written
    ROWS = "rows"  # the source's changes are applied to the target's rows


def how(source: Pin, target: Pin, bases: Sequence[Pin | None]) -> How:
    """Decide by the contents alone: version numbers of different lines say nothing about each other."""
    if source.content == target.content or all(base is not None and source.content == base.content for base in bases):
        return How.SKIP
    is_untouched = all(base is not None and target.content == base.content for base in bases)
    return How.ADOPT if is_untouched and source.path == target.path else How.ROWS


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """The merged rows within a range of ids.

    `replaced` (`id`, `_rowaddr`) are the target's rows to remove, those that are written anew among them, and
    `displaced` their columns. `mixed` are the written rows that have values of both sides.
    """

    rows: pa.Table
    replaced: pa.Table
    displaced: pa.Table
    mixed: pa.Table
    conflicts: int = 0
    listed: tuple[MergeConflict, ...] = ()  # the first of them
    settled: int = 0  # conflicts that were settled as the caller said


@dataclass(frozen=True, slots=True)
class _Located:
    """The rows of some ids in one version: their place in a table, below 0 where there is none, and their addresses."""

    rows: pa.Table
    places: Places
    addresses: Addresses

    @property
    def cells(self) -> Rows:
        return Rows.at(self.rows, self.places)

    def with_replaced(self, ids: pa.Array, replaced: Replaced, side: Table) -> _Located:
        """The same, with the rows that replaced some of these on a side in their places."""
        found = pc.index_in(ids, value_set=replaced.ids).fill_null(-1).to_numpy()
        positions = np.flatnonzero((found >= 0) & (self.places < 0))
        if not len(positions):
            return self
        places, addresses = self.places.copy(), self.addresses.copy()
        places[positions] = self.rows.num_rows + np.arange(len(positions))
        addresses[positions] = replaced.addresses[found[positions]]
        rows = side.rows_at(pa.array(addresses[positions]), self.rows.column_names)
        return _Located(pa.concat_tables([self.rows, rows.cast(self.rows.schema)]), places, addresses)

    def take(self, positions: Places) -> _Located:
        return _Located(self.rows, self.places[positions], self.addresses[positions])


@dataclass(frozen=True, slots=True)
class _Beside:
    """A version beside another: the rows that only one of the two has, and where this one has the others."""

    own: Part
    lacking: Part
    moved: Callable[[Addresses], Addresses]

    @classmethod
    def of(cls, table: Table, other: Table) -> _Beside:
        own, lacking = apart(table, other)
        return cls(own, lacking, moved_addresses(other, table))

    def located(self, ids: pa.Array, own: pa.Table, other: _Located) -> _Located:
        """The rows of some ids in this version, given those that only it has, and the other version's."""
        places = _places(ids, own)
        is_shared = (other.places >= 0) & (places < 0)
        is_shared[is_shared] = ~self.lacking.holds(other.addresses[is_shared])
        addresses = np.zeros(len(ids), np.uint64)
        addresses[places >= 0] = own[ROWADDR].to_numpy()[places[places >= 0]]
        addresses[is_shared] = self.moved(other.addresses[is_shared])
        rows = pa.concat_tables([_without_addresses(own), other.rows])
        return _Located(rows, np.where(is_shared, own.num_rows + other.places, places), addresses)


@dataclass(frozen=True, slots=True)
class _Range:
    """Some ids, the source's rows among them, and the rows of each base that the source lacks."""

    ids: pa.Array
    within: Ids
    source: _Located
    owns: Mapping[Place, pa.Table]

    def take(self, positions: Places) -> _Range:
        """The same for a few of the ids."""
        ids = self.ids.take(pa.array(positions))
        within = Ids(self.within.low, self.within.high, _few(ids))
        return _Range(ids, within, self.source.take(positions), self.owns)


@dataclass(frozen=True)
class RowMerge:
    """The merge of one table row by row. `older` opens further bases, which only bases that disagree need."""

    type: ElementType
    source: Table
    target: Table
    bases: Mapping[Place, Table]
    older: Callable[[Place], Table | None]
    vector_of: Callable[[Place], Vector]
    on_conflict: OnConflict = OnConflict.FAIL
    equal: EqualEdges = field(default_factory=EqualEdges)
    _beside: dict[Place, _Beside | None] = field(default_factory=dict)  # versions beside the source's

    def run(self, room: Callable[[], int]) -> Iterator[MergedBatch]:
        """The merged rows, range by range, in the order of their ids; `room` says how many conflicts are listed yet."""
        bases = self._bases()
        target = _Beside.of(self.target, next(iter(self.bases.values())))
        parts = [part for beside in bases.values() for part in (beside.own, beside.lacking)]
        is_small = sum(part.rows for part in parts) <= LOOKUP_IDS_MAX
        for within in [ALL] if is_small else stretches(*parts, target.own):
            changed = self._changed(within, bases)
            if changed is not None:
                yield from self._merged(changed, target, room)

    def changes_any(self, ids: pa.Array) -> bool:
        """Whether the source changed the row of one of a few ids."""
        some = self._changed(Ids(among=ids), self._bases())
        return some is not None and bool(changed_rows(self._base_of(some), some.source.cells).any())

    def _bases(self) -> dict[Place, _Beside]:
        """The bases beside the source."""
        known = {place: self._beside.get(place) for place in self.bases}
        found = {place: known[place] or _Beside.of(table, self.source) for place, table in self.bases.items()}
        self._beside.update(found)
        return found

    def _changed(self, within: Ids, bases: Mapping[Place, _Beside]) -> _Range | None:
        """The ids in a range whose rows only the source or only a base has."""
        come = [base.lacking.read_all(within, addresses=True) for base in bases.values()]
        owns = {place: base.own.read_all(within, addresses=True) for place, base in bases.items()}
        chunks = [chunk for rows in (*come, *owns.values()) for chunk in rows[ID].chunks]
        ids = pa.chunked_array(chunks, pa.string()).unique()
        if len(ids) == 0:
            return None
        ids = ids.take(pc.array_sort_indices(ids))
        rows = pa.concat_tables(come).combine_chunks()
        places = _places(ids, rows)
        addresses = np.zeros(len(ids), np.uint64)
        addresses[places >= 0] = rows[ROWADDR].to_numpy()[places[places >= 0]]
        source = _Located(_without_addresses(rows), places, addresses)
        return _Range(ids, Ids(within.low, within.high, _few(ids)), source, owns)

    def _merged(self, some: _Range, target: _Beside, room: Callable[[], int]) -> Iterator[MergedBatch]:
        base = self._base_of(some)
        positions = np.flatnonzero(changed_rows(base, some.source.cells))
        if len(positions) == 0:
            return
        some, base = some.take(positions), base.take(positions)
        first = next(iter(self.bases))
        here = target.located(some.ids, target.own.read_all(some.within, addresses=True), self._located(first, some))
        here = here.with_replaced(some.ids, self.equal.on_target, self.target)
        some = replace(some, source=some.source.with_replaced(some.ids, self.equal.on_source, self.source))
        made = merged(base, some.source.cells, here.cells, self.on_conflict)
        yield self._batch(some, made, here, room())

    def _batch(self, some: _Range, made: MergedRows, here: _Located, room: int) -> MergedBatch:
        written = _with_ids(_renamed(some.ids, self.equal.on_target), made.written, made.cells, self.type)
        mixed = written.filter(pa.array(made.mixed))
        for elsewhere in (self.equal.agreed.ids, self.equal.on_source.by):
            if len(elsewhere):
                written = written.filter(pc.invert(pc.is_in(written[ID], value_set=elsewhere)))
        removed = np.sort(np.concatenate([made.written[here.places[made.written] >= 0], made.deleted]))
        displaced = here.rows.take(pa.array(here.places[removed]))
        replaced = pa.table({ID: displaced[ID], ROWADDR: pa.array(here.addresses[removed])})
        count = sum(len(found.positions) for found in made.conflicts)
        if self.on_conflict is not OnConflict.FAIL:
            return MergedBatch(written, replaced, displaced, mixed, settled=count)
        listed: list[MergeConflict] = []
        for found in made.conflicts:
            listed += self._described(found, some, here, room - len(listed))
        listed.sort(key=lambda one: one.id)
        return MergedBatch(written, replaced, displaced, mixed, count, tuple(listed))

    def _described(self, found: RowConflicts, some: _Range, here: _Located, room: int) -> Iterator[MergeConflict]:
        positions = found.positions[: max(room, 0)]
        source, target = some.source.take(positions).cells, here.take(positions).cells
        rows = zip(
            positions.tolist(),
            some.ids.take(pa.array(positions)).to_pylist(),
            source.cells.to_pylist(),
            target.cells.to_pylist(),
            source.present.tolist(),
            target.present.tolist(),
            strict=True,
        )
        for position, id, there, stands, is_there, is_here in rows:
            properties = found.properties(position)
            yield MergeConflict(
                found.kind, self.type.name, id, properties,
                shown(there, properties) if is_there else None,
                shown(stands, properties) if is_here else None,
            )  # fmt: skip

    def _base_of(self, some: _Range) -> Rows:
        """The rows of some ids in the base."""
        every = np.arange(len(some.ids))
        return base_rows(tuple(self.bases), every, self.vector_of, lambda place, at: self._base(place, some.take(at)))

    def _base(self, place: Place, some: _Range) -> Rows:
        """The rows of some ids in a base, or in a base of bases."""
        if place not in self._beside:
            table = self.older(place)
            self._beside[place] = None if table is None else _Beside.of(table, self.source)
        if self._beside[place] is None:  # it was cleaned up: nothing is known of it
            return Rows.unknown(some.source.cells)
        return self._located(place, some).cells

    def _located(self, place: Place, some: _Range) -> _Located:
        beside = self._beside[place]
        assert beside is not None, "only what is there is looked for"
        own = some.owns[place] if place in some.owns else beside.own.read_all(some.within, addresses=True)
        return beside.located(some.ids, own, some.source)


def _few(ids: pa.Array) -> pa.Array | None:
    """The ids, if they are few enough to be looked up one by one."""
    return ids if len(ids) <= LOOKUP_IDS_MAX else None


def _places(ids: pa.Array, rows: pa.Table) -> Places:
    """The place of each id among some rows, below 0 where it is not among them."""
    found: Places = pc.index_in(ids, value_set=rows[ID].combine_chunks()).fill_null(-1).to_numpy().astype(np.int64)
    return found


def _without_addresses(rows: pa.Table) -> pa.Table:
    return rows.select([name for name in rows.column_names if name != ROWADDR])


def _renamed(ids: pa.Array, replaced: Replaced) -> pa.Array:
    """The ids, each replaced one by the new one."""
    return pc.coalesce(replaced.by.take(pc.index_in(ids, value_set=replaced.ids)), ids) if len(replaced.ids) else ids


def _with_ids(ids: pa.Array, positions: Places, cells: pa.Table, type: ElementType) -> pa.Table:
    columns = {ID: ids.take(pa.array(positions)), **dict(zip(cells.column_names, cells.columns, strict=True))}
    return pa.table(columns).select(type.arrow.names).cast(type.arrow)
