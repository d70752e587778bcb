"""The three-way merge of rows, by id and property: pure, on whole columns.

The rows of base, source and target come aligned: the same position is the same id on all sides. A property that one
side changed has that side's value afterwards; one that both changed to the same value has it; one that both changed to
different values is a conflict. A side that set a property back to the base's value has not changed it. Null differs
from every value; lists, vectors and blobs are compared whole; floats bit by bit.

With several best bases these are merged first, in the same way, to a virtual one (`virtual_base.py`). Where that
conflicts, the virtual base is unlike anything: then only values that are equal on both sides agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from omniray.engine.branches.conflicts import ConflictKind, OnConflict
from omniray.engine.reading.table_diff import differing
from omniray.engine.rows.casts import Mask
from omniray.engine.schema.types import ID


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of some ids on one side: the columns beside the id, null where a row is absent.

    Of a virtual base, `unlike` are cells that equal nothing, and `torn` rows of which it is not clear whether they are
    there at all; those count as present.
    """

    cells: pa.Table
    present: Mask
    torn: Mask
    unlike: Mapping[str, Mask] = field(default_factory=dict)

    @classmethod
    def at(cls, rows: pa.Table, places: npt.NDArray[np.int64]) -> Rows:
        """The rows at these places of a table; a place below 0 is that of an absent row."""
        present = places >= 0
        cells = rows.select([name for name in rows.column_names if name != ID])
        return cls(_taken(cells, np.where(present, places, 0), present), present, np.zeros(len(places), np.bool_))

    @classmethod
    def unknown(cls, like: Rows) -> Rows:
        """Rows about which nothing is known."""
        every = np.ones(len(like), np.bool_)
        return cls(like.cells, every, every, dict.fromkeys(like.cells.column_names, every))

    def __len__(self) -> int:
        return len(self.present)

    def absent(self) -> Rows:
        """As many rows, of which none is there."""
        return Rows.at(self.cells, np.full(len(self), -1))

    def take(self, positions: npt.NDArray[np.int64]) -> Rows:
        """The rows at some positions."""
        unlike = {name: mask[positions] for name, mask in self.unlike.items()}
        return Rows(self.cells.take(pa.array(positions)), self.present[positions], self.torn[positions], unlike)

    def patched(self, positions: npt.NDArray[np.int64], by: Rows) -> Rows:
        """These rows with others in their place at some positions."""
        places = np.arange(len(self))
        places[positions] = len(self) + np.arange(len(by))
        names = self.cells.column_names
        unlike = {n: np.concatenate([self.unlike_in(n), by.unlike_in(n)])[places] for n in names}
        return Rows(
            pa.concat_tables([self.cells, by.cells]).take(pa.array(places)),
            np.concatenate([self.present, by.present])[places],
            np.concatenate([self.torn, by.torn])[places],
            unlike,
        )

    def unlike_in(self, name: str) -> Mask:
        """Which cells of a column equal nothing."""
        return self.unlike[name] if name in self.unlike else np.zeros(len(self), np.bool_)

    def differs_from(self, other: Rows) -> dict[str, Mask]:
        """By column, where two sides have different values, absent rows included."""
        found = {}
        for name in self.cells.column_names:
            mask = differing(self.cells[name], other.cells[name])
            for unlike in (self.unlike.get(name), other.unlike.get(name)):
                mask = mask if unlike is None else mask | unlike
            found[name] = mask
        return found


@dataclass(frozen=True, slots=True)
class RowConflicts:
    """The positions of rows with one kind of conflict; `about` says by column at which of all positions it is."""

    kind: ConflictKind
    positions: npt.NDArray[np.int64]
    about: Mapping[str, Mask]

    def properties(self, position: int) -> tuple[str, ...]:
        """The properties that the conflict of a row is about."""
        return tuple(name for name, mask in self.about.items() if mask[position])


@dataclass(frozen=True, slots=True)
class MergedRows:
    """What a merge makes of some rows of the target.

    `written` are the positions of rows to write and `cells` their columns, in that order; `mixed` says which of these
    rows have cells of both sides. `deleted` are the positions of rows to remove. Rows in conflict are in neither,
    unless the conflict was to be settled.
    """

    written: npt.NDArray[np.int64]
    cells: pa.Table
    mixed: Mask
    deleted: npt.NDArray[np.int64]
    conflicts: tuple[RowConflicts, ...]


def merged(base: Rows, source: Rows, target: Rows, on_conflict: OnConflict = OnConflict.FAIL) -> MergedRows:
    """Merge the source's changes since the base into the target."""
    both = source.present & target.present
    by_source, by_target = source.differs_from(base), target.differs_from(base)
    apart = source.differs_from(target)
    names = source.cells.column_names
    is_born_twice = both & ~base.present
    clash = {name: both & apart[name] & (is_born_twice | (by_source[name] & by_target[name])) for name in names}
    is_gone_here = base.present & source.present & ~target.present & (base.torn | any_of(by_source, len(base)))
    is_gone_there = base.present & ~source.present & target.present
    is_kept_here = is_gone_there & (base.torn | any_of(by_target, len(base)))
    conflicts = (
        _conflicts(ConflictKind.DIVERGENT_INSERT, is_born_twice & any_of(clash, len(base)), clash),
        _conflicts(ConflictKind.DIVERGENT_UPDATE, ~is_born_twice & any_of(clash, len(base)), clash),
        _conflicts(ConflictKind.DELETE_VS_UPDATE, is_gone_here, by_source),
        _conflicts(ConflictKind.DELETE_VS_UPDATE, is_kept_here, by_target),
    )
    theirs = on_conflict is OnConflict.THEIRS
    from_source = {
        name: (both & apart[name] & by_source[name] & ~by_target[name] & ~is_born_twice) | (clash[name] & theirs)
        for name in names
    }
    is_unsettled = any_of(clash, len(base)) & (on_conflict is OnConflict.FAIL)
    is_changed = both & any_of(from_source, len(base)) & ~is_unsettled
    is_new = (source.present & ~target.present & ~base.present) | (is_gone_here & theirs)
    written = np.flatnonzero(is_changed | is_new)
    is_source = {name: (from_source[name] | is_new)[written] for name in names}
    cells = pa.table(
        [chosen(source.cells[name], target.cells[name], written, is_source[name]) for name in names],
        schema=source.cells.schema,
    )
    from_target = [~is_source[name] & apart[name][written] for name in names]
    mixed = np.logical_or.reduce([*from_target, np.zeros(len(written), np.bool_)]) & is_changed[written]
    deleted = np.flatnonzero(is_gone_there & (~is_kept_here | theirs))
    return MergedRows(written, cells, mixed, deleted, tuple(one for one in conflicts if len(one.positions)))


def changed_rows(base: Rows, side: Rows) -> Mask:
    """Which rows a side inserted, deleted or changed."""
    edited = base.present & side.present & any_of(side.differs_from(base), len(base))
    found: Mask = (base.present != side.present) | base.torn | edited
    return found


def any_of(masks: Mapping[str, Mask], length: int) -> Mask:
    found: Mask = np.logical_or.reduce([*masks.values(), np.zeros(length, np.bool_)])
    return found


def _conflicts(kind: ConflictKind, where: Mask, about: Mapping[str, Mask]) -> RowConflicts:
    return RowConflicts(kind, np.flatnonzero(where), about)


def chosen(
    yes: pa.ChunkedArray, no: pa.ChunkedArray, positions: npt.NDArray[np.int64], takes_yes: Mask
) -> pa.ChunkedArray:
    """Of two aligned columns, at each of the positions the value of one of them."""
    together = pa.chunked_array([*yes.chunks, *no.chunks], yes.type)
    return together.take(pa.array(positions + np.where(takes_yes, 0, len(yes))))


def _taken(rows: pa.Table, places: npt.NDArray[np.int64], present: Mask) -> pa.Table:
    return rows.take(pa.array(places, mask=~present))
