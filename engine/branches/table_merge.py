"""One table of a merge: whether it is skipped, adopted or merged row by row, and the stream of its merged rows.

Only what differs between versions is read, and everything is looked at beside the source's version: the rows that a
base has and the source lacks, or the other way round, tell what the source changed; of these ids, the rows that the
target has and the source lacks tell what stands there. A row that the target shares with the source needs nothing. So
the cost follows what changed on the source, and what the target has changed of the same ids and files; ranges of ids
keep memory bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.branches.bases import Place, Vector
from omniray.engine.branches.cells import MergedRows, RowConflicts, Rows, changed_rows, merged
from omniray.engine.branches.conflicts import MergeConflict, OnConflict, shown
from omniray.engine.branches.virtual_base import base_rows
from omniray.engine.line.commit_object import Pin
from omniray.engine.reading.table_diff import ALL, Ids, Part, only_in, stretches
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.tables.table import ROWADDR, Table

LOOKUP_IDS_MAX = 5_000
NO_IDS = pa.array([], pa.string())

Places = npt.NDArray[np.int64]


class How(StrEnum):
    """What a merge does with a table."""

    SKIP = "skip"  # the target's version stays as it is
    ADOPT = "adopt"  # the target gets the source's version; no data file is written
    ROWS = "rows"  # the source's changes are applied to the target's rows


def how(source: Pin, target: Pin, bases: Sequence[Pin | None]) -> How:
    """Decide by the contents alone: version numbers of different lines say nothing about each other."""
    if source.content == target.content or all(base is not None and source.content == base.content for base in bases):
        return How.SKIP
    is_untouched = bool(bases) and all(base is not None and target.content == base.content for base in bases)
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
class Beside:
    """A version beside the source's: the rows that only this one has, and those that only the source has."""

    table: Table
    own: Part
    lacking: Part

    @classmethod
    def of(cls, table: Table, source: Table) -> Beside:
        return cls(table, only_in(table, source), only_in(source, table))


@dataclass(frozen=True, slots=True)
class _Range:
    """Some ids, and the source's rows among them, with their addresses."""

    ids: pa.Array
    within: Ids
    rows: pa.Table
    places: Places  # of each id among `rows`, below 0 where the source has none

    @property
    def source(self) -> Rows:
        return Rows.at(self.rows.select([name for name in self.rows.column_names if name != ROWADDR]), self.places)

    def take(self, positions: Places) -> _Range:
        """The same for a few of the ids."""
        ids = self.ids.take(pa.array(positions))
        within = Ids(self.within.low, self.within.high, ids if len(ids) <= LOOKUP_IDS_MAX else None)
        return _Range(ids, within, self.rows, self.places[positions])


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
    agreed: pa.Array = field(default_factory=lambda: NO_IDS)  # inserted on the source, equal to rows of the target
    _beside: dict[Place, Beside | None] = field(default_factory=dict)

    def run(self, room: Callable[[], int]) -> Iterator[MergedBatch]:
        """The merged rows, range by range, in the order of their ids; `room` says how many conflicts are listed yet."""
        sides = [Beside.of(table, self.source) for table in self.bases.values()]
        self._beside.update(zip(self.bases, sides, strict=True))
        target = Beside.of(self.target, self.source)
        parts = [part for beside in sides for part in (beside.own, beside.lacking)]
        is_small = sum(part.rows for part in parts) <= LOOKUP_IDS_MAX
        for within in [ALL] if is_small else stretches(*parts, target.own):
            changed = self._changed(within, sides)
            if changed is not None:
                yield from self._merged(changed, target, room)

    def _changed(self, within: Ids, bases: Sequence[Beside]) -> _Range | None:
        """The ids in a range whose rows only the source or only a base has."""
        found = [base.lacking.read_all(within, addresses=True) for base in bases]
        gone = [base.own.read_all(within, [ID])[ID] for base in bases]
        ids = pa.chunked_array([c for column in (*(f[ID] for f in found), *gone) for c in column.chunks], pa.string())
        if len(ids) == 0:
            return None
        unique = ids.unique()
        unique = unique.take(pc.array_sort_indices(unique))
        within = Ids(within.low, within.high, unique if len(unique) <= LOOKUP_IDS_MAX else None)
        rows = pa.concat_tables(found).combine_chunks()
        return _Range(unique, within, rows, _places(unique, rows))

    def _merged(self, some: _Range, target: Beside, room: Callable[[], int]) -> Iterator[MergedBatch]:
        every = np.arange(len(some.ids))
        base = base_rows(tuple(self.bases), every, self.vector_of, lambda place, at: self._base(place, some.take(at)))
        positions = np.flatnonzero(changed_rows(base, some.source))
        if len(positions) == 0:
            return
        some, base = some.take(positions), base.take(positions)
        stands, rows, places, is_shared = _rows_of(target, some, addresses=True)
        positions = np.flatnonzero(~is_shared)
        if len(positions) == 0:
            return
        ids, places = some.ids.take(pa.array(positions)), places[positions]
        source, here = some.take(positions).source, stands.take(positions)
        made = merged(base.take(positions), source, here, self.on_conflict)
        yield self._batch(ids, made, rows, places, source, here, room())

    def _batch(
        self,
        ids: pa.Array,
        made: MergedRows,
        stands: pa.Table,
        places: Places,
        source: Rows,
        here: Rows,
        room: int,
    ) -> MergedBatch:
        written = _with_ids(ids, made.written, made.cells, self.type)
        mixed = written.filter(pa.array(made.mixed))
        if len(self.agreed):
            written = written.filter(pc.invert(pc.is_in(written[ID], value_set=self.agreed)))
        removed = places[np.sort(np.concatenate([made.written[here.present[made.written]], made.deleted]))]
        displaced = stands.take(pa.array(removed))
        count = sum(len(found.positions) for found in made.conflicts)
        if self.on_conflict is not OnConflict.FAIL:
            return MergedBatch(written, displaced.select([ID, ROWADDR]), displaced, mixed, settled=count)
        listed: list[MergeConflict] = []
        for found in made.conflicts:
            listed += self._described(found, ids, source, here, room - len(listed))
        listed.sort(key=lambda one: one.id)
        return MergedBatch(written, displaced.select([ID, ROWADDR]), displaced, mixed, count, tuple(listed))

    def _described(
        self, found: RowConflicts, ids: pa.Array, source: Rows, here: Rows, room: int
    ) -> Iterator[MergeConflict]:
        positions = found.positions[: max(room, 0)]
        taken = pa.array(positions)
        rows = zip(
            positions.tolist(),
            ids.take(taken).to_pylist(),
            source.cells.take(taken).to_pylist(),
            here.cells.take(taken).to_pylist(),
            strict=True,
        )
        for position, id, there, stands in rows:
            properties = found.properties(position)
            yield MergeConflict(
                found.kind, self.type.name, id, properties,
                shown(there, properties) if source.present[position] else None,
                shown(stands, properties) if here.present[position] else None,
            )  # fmt: skip

    def _base(self, place: Place, some: _Range) -> Rows:
        """The rows of some ids in a base, or in a base of bases."""
        if place not in self._beside:
            table = self.older(place)
            self._beside[place] = None if table is None else Beside.of(table, self.source)
        beside = self._beside[place]
        if beside is None:  # it was cleaned up: nothing is known of it
            return Rows.unknown(some.source)
        return _rows_of(beside, some)[0]


def _rows_of(
    beside: Beside, some: _Range, *, addresses: bool = False
) -> tuple[Rows, pa.Table, Places, npt.NDArray[np.bool_]]:
    """The rows of some ids in a version: those that only it has, else the source's where it shares them.

    Also its own rows, the place of each id among these, and which ids are shared.
    """
    own = beside.own.read_all(some.within, addresses=addresses)
    own_places = _places(some.ids, own)
    at = some.rows[ROWADDR].to_numpy()[np.maximum(some.places, 0)] if some.rows.num_rows else np.zeros(len(some.ids))
    is_shared = (some.places >= 0) & (own_places < 0) & ~beside.lacking.holds(at.astype(np.uint64))
    columns = [name for name in own.column_names if name != ROWADDR]
    together = pa.concat_tables([own.select(columns), some.rows.select(columns)])
    places = np.where(own_places >= 0, own_places, np.where(is_shared, own.num_rows + some.places, -1))
    return Rows.at(together, places), own, own_places, is_shared


def _places(ids: pa.Array, rows: pa.Table) -> Places:
    """The place of each id among some rows, below 0 where it is not among them."""
    found: Places = pc.index_in(ids, value_set=rows[ID].combine_chunks()).fill_null(-1).to_numpy().astype(np.int64)
    return found


def _with_ids(ids: pa.Array, positions: Places, cells: pa.Table, type: ElementType) -> pa.Table:
    rows = cells.append_column(ID, ids.take(pa.array(positions)))
    return rows.select(type.arrow.names).cast(type.arrow)
